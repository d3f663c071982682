//! A config as text: the effective one with origins, and the template with comments.
//!
//! It uses the schema, not individual keys.

use std::fmt::Write;

use toml::Value;

use super::problem::ValueOrigin;
use super::schema::{ConfigSchema, Fallback, Field, KeyKind};
use super::tree::{ConfigTree, ValueNode};

/// The replacement of a secret.
const REDACTED: &str = "<redacted>";

/// Whether the name of a variable suggests a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    ["SECRET", "TOKEN", "PASSWORD", "PASSWD", "KEY", "CREDENTIAL"].iter().any(|w| name.contains(w))
}

/// The TOML form of a key.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(bare) {
        name.to_owned()
    } else {
        Value::String(name.to_owned()).to_string()
    }
}

/// The effective config as TOML, which loads again except for secrets. With `origins`, each value
/// has its origin as a comment.
pub(super) fn effective(schema: &ConfigSchema, tree: &ConfigTree, origins: bool) -> String {
    let mut out = String::new();
    table(&mut out, schema, tree, "", origins);
    out
}

fn line(out: &mut String, name: &str, value: &str, origin: Option<&ValueOrigin>) {
    let start = out.len();
    let _ = write!(out, "{} = {value}", key(name));
    if let Some(origin) = origin {
        let width = out[start..].chars().count();
        let _ = write!(out, "{:pad$}  # {origin}", "", pad = 32usize.saturating_sub(width));
    }
    out.push('\n');
}

fn table(out: &mut String, schema: &ConfigSchema, tree: &ConfigTree, path: &str, origins: bool) {
    let nodes = || schema.fields.iter().filter_map(|f| Some((f.key, f.kind, tree.get(f.key)?)));
    for (name, _, node) in nodes() {
        if let ValueNode::Leaf(value, origin) = node {
            line(out, name, &value.to_string(), origins.then_some(origin));
        }
    }
    for (name, kind, node) in nodes() {
        let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match (kind, node) {
            (KeyKind::Section(schema), ValueNode::Section(tree)) => {
                let _ = write!(out, "\n[{path}]\n");
                table(out, schema, tree, &path, origins);
            }
            (KeyKind::List(schema), ValueNode::List(elements)) => {
                for element in elements {
                    let _ = write!(out, "\n[[{path}]]\n");
                    table(out, schema, &element.tree, &path, origins);
                }
            }
            (KeyKind::Texts, ValueNode::Texts(texts)) if !texts.is_empty() => {
                let _ = write!(out, "\n[{path}]\n");
                for (name, (text, origin)) in texts {
                    let text = if is_secret(name) { REDACTED } else { text };
                    let value = Value::String(text.to_owned()).to_string();
                    line(out, name, &value, origins.then_some(origin));
                }
            }
            _ => {}
        }
    }
}

/// A commented file with every key: defaults as values, and keys without a default commented out.
pub(super) fn template(schema: &ConfigSchema, head: &str) -> String {
    let mut out = head.to_owned();
    described(&mut out, schema, "", &[]);
    out
}

fn comment(out: &mut String, lines: &[&str]) {
    for line in lines {
        let _ = writeln!(out, "#{line}");
    }
}

fn described(out: &mut String, schema: &ConfigSchema, path: &str, given: &[(&str, &str)]) {
    for field in schema.fields {
        let value = given.iter().find(|(key, _)| *key == field.key).map(|(_, value)| *value);
        match (field.fallback, value) {
            (_, Some(value)) | (Fallback::Is(value) | Fallback::Required(value), None) => {
                comment(out, field.about);
                let _ = writeln!(out, "{} = {value}", field.key);
            }
            (Fallback::Absent(example), None) => {
                comment(out, field.about);
                let _ = writeln!(out, "# {} = {example}", field.key);
            }
            (
                Fallback::Section
                | Fallback::Optional
                | Fallback::Elements(_)
                | Fallback::Examples(_),
                None,
            ) => {}
        }
    }
    for field in schema.fields {
        let Field { key, .. } = field;
        let path = if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
        match (field.kind, field.fallback) {
            (KeyKind::Section(schema), Fallback::Optional) => {
                out.push('\n');
                comment(out, field.about);
                let mut section = format!("[{path}]\n");
                described(&mut section, schema, &path, &[]);
                commented_out(out, &section);
            }
            (KeyKind::Section(schema), _) => {
                out.push('\n');
                comment(out, field.about);
                let _ = writeln!(out, "[{path}]");
                described(out, schema, &path, &[]);
            }
            (KeyKind::List(schema), Fallback::Elements(all)) => {
                elements(out, field, schema, &path, all);
            }
            (KeyKind::List(schema), Fallback::Examples(all)) => {
                let mut section = String::new();
                elements(&mut section, field, schema, &path, all);
                commented_out(out, &section);
            }
            _ => {}
        }
    }
}

/// The tables of a list: the first with every key, the others with what they say.
fn elements(
    out: &mut String,
    field: &Field,
    schema: &ConfigSchema,
    path: &str,
    all: &[&[(&str, &str)]],
) {
    for (i, given) in all.iter().enumerate() {
        out.push('\n');
        if i == 0 {
            comment(out, field.about);
        }
        let _ = writeln!(out, "[[{path}]]");
        if i == 0 {
            described(out, schema, path, given);
        } else {
            for (key, value) in *given {
                let _ = writeln!(out, "{key} = {value}");
            }
        }
    }
}

/// Lines that count for nothing before somebody takes the signs away.
fn commented_out(out: &mut String, section: &str) {
    for line in section.lines() {
        let mark = if line.starts_with('#') || line.is_empty() { "" } else { "# " };
        let _ = writeln!(out, "{mark}{line}");
    }
}
