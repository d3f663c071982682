//! The layers of a config: defaults, file, environment and flags. Each value has its origin.
//!
//! It uses the schema, not individual keys.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::problem::{ConfigProblem, SpellingWarning, ValueOrigin, nearest};
use super::schema::{ConfigSchema, Fallback, Field, KeyKind};

/// The values of a table by key.
pub(super) type ConfigTree = BTreeMap<String, ValueNode>;

#[derive(Clone, Debug)]
pub(super) enum ValueNode {
    Leaf(Value, ValueOrigin),
    Section(ConfigTree),
    List(Vec<Element>),
    Texts(BTreeMap<String, (String, ValueOrigin)>),
}

#[derive(Clone, Debug)]
pub(super) struct Element {
    pub tree: ConfigTree,
    /// The place of its start.
    pub origin: ValueOrigin,
}

/// A default or an example of the schema, which is valid TOML.
pub(super) fn builtin(toml: &str) -> Value {
    toml.parse().expect("defaults and examples are TOML: a test loads every one")
}

/// The section of a key in a tree. Adds it with its defaults if it does not exist.
fn section_of<'a>(
    tree: &'a mut ConfigTree,
    field: &Field,
    schema: &ConfigSchema,
) -> &'a mut ValueNode {
    tree.entry(field.key.to_owned()).or_insert_with(|| ValueNode::Section(defaults(schema)))
}

/// The tree of all defaults.
pub(super) fn defaults(schema: &ConfigSchema) -> ConfigTree {
    let mut tree = ConfigTree::new();
    for field in schema.fields {
        let node = match (field.kind, field.fallback) {
            (KeyKind::Section(_), Fallback::Optional) => continue,
            (KeyKind::Section(schema), _) => ValueNode::Section(defaults(schema)),
            (KeyKind::List(_), _) => ValueNode::List(Vec::new()),
            (KeyKind::Texts, _) => ValueNode::Texts(BTreeMap::new()),
            (KeyKind::Leaf { .. }, Fallback::Is(toml)) => {
                ValueNode::Leaf(builtin(toml), ValueOrigin::Default)
            }
            (KeyKind::Leaf { .. }, _) => continue,
        };
        tree.insert(field.key.to_owned(), node);
    }
    tree
}

/// The values as a plain table.
pub(super) fn plain(tree: &ConfigTree) -> toml::Table {
    let value = |node: &ValueNode| match node {
        ValueNode::Leaf(value, _) => value.clone(),
        ValueNode::Section(tree) => Value::Table(plain(tree)),
        ValueNode::List(elements) => {
            Value::Array(elements.iter().map(|e| Value::Table(plain(&e.tree))).collect())
        }
        ValueNode::Texts(texts) => {
            let entry = |(key, (text, _)): (&String, &(String, ValueOrigin))| {
                (key.clone(), Value::String(text.clone()))
            };
            Value::Table(texts.iter().map(entry).collect())
        }
    };
    tree.iter().map(|(key, node)| (key.clone(), value(node))).collect()
}

/// The origin of the value at a path such as `net.gso` or `cluster[1].name`; of a list's element,
/// its start. None if no value was given.
pub(super) fn origin(tree: &ConfigTree, path: &str) -> Option<ValueOrigin> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let (key, index) = match first.split_once('[') {
        Some((key, index)) => (key, index.trim_end_matches(']').parse::<usize>().ok()),
        None => (first, None),
    };
    match (tree.get(key)?, index) {
        (ValueNode::Leaf(_, at), None) if rest.is_empty() => Some(at.clone()),
        (ValueNode::Section(tree), None) => origin(tree, rest),
        (ValueNode::List(elements), Some(index)) => {
            let element = elements.get(index)?;
            if rest.is_empty() { Some(element.origin.clone()) } else { origin(&element.tree, rest) }
        }
        (ValueNode::Texts(texts), None) => texts.get(rest).map(|(_, at)| at.clone()),
        _ => None,
    }
}

/// Adds a layer to a tree, and collects its problems.
pub(super) struct Layer<'a> {
    /// The place of a range of the text.
    pub place: &'a dyn Fn(Range<usize>) -> ValueOrigin,
    /// The schema of the whole config, to find the section of a misplaced key.
    pub root: &'static ConfigSchema,
    /// Whether all of the text could be parsed. If not, keys may be missing or misplaced for that
    /// reason, and are not reported.
    pub whole: bool,
    pub findings: &'a mut Findings,
}

/// The problems found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub problems: Vec<ConfigProblem>,
    /// Dotted keys that are not reported as missing. Either an unknown key was likely meant to be
    /// one of them, or its value is reported.
    pub excused: Vec<String>,
    /// The keys in an earlier spelling.
    pub warnings: Vec<SpellingWarning>,
}

impl Layer<'_> {
    fn problem(&mut self, at: ValueOrigin, reason: String, meant: Option<&str>) {
        self.findings.problems.push(ConfigProblem { at, reason, meant: meant.map(str::to_owned) });
    }

    /// Adds a table. `path` is its dotted name, empty for the root.
    pub fn table(
        &mut self,
        schema: &'static ConfigSchema,
        table: &DeTable<'_>,
        tree: &mut ConfigTree,
        path: &str,
    ) {
        // In order of place, not of name.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let mut given = BTreeMap::new();
        for (key, value) in entries {
            match schema.field(key.get_ref()) {
                Some(field) => {
                    let (at, path) = ((self.place)(key.span()), join(path, field.key));
                    self.note_spelling(field, key.get_ref(), &at);
                    if let Some(first) = given.insert(field.key, at.clone()) {
                        self.given_twice(field, at, &first, &path);
                        continue;
                    }
                    let findings = self.findings.problems.len();
                    self.field(field, value, at, tree, &path);
                    // Problems within a section are excused by their own keys.
                    let findings = self.findings.problems.len() > findings;
                    if findings && !matches!(value.get_ref(), DeValue::Table(_)) {
                        self.findings.excused.push(path);
                    }
                }
                None => self.unknown(schema, key, path),
            }
        }
    }

    /// Records that a key has its earlier spelling.
    fn note_spelling(&mut self, field: &Field, key: &str, at: &ValueOrigin) {
        if field.alias == Some(key) {
            let warning = SpellingWarning { at: at.clone(), given: key.to_owned(), key: field.key };
            self.findings.warnings.push(warning);
        }
    }

    /// Reports a key that one source gives in both of its spellings.
    fn given_twice(&mut self, field: &Field, at: ValueOrigin, first: &ValueOrigin, path: &str) {
        let first = match first {
            ValueOrigin::File { line, .. } => format!("on line {line}"),
            other => format!("from {other}"),
        };
        let alias = field.alias.unwrap_or(field.key);
        let reason = format!(
            "`{path}` is given twice, as `{alias}` and as `{}`; the other is {first}: leave \
             `{alias}` out",
            field.key
        );
        self.problem(at, reason, None);
    }

    fn unknown(
        &mut self,
        schema: &'static ConfigSchema,
        key: &Spanned<toml::de::DeString<'_>>,
        path: &str,
    ) {
        if !self.whole {
            return;
        }
        let word = key.get_ref().as_ref();
        let place = if path.is_empty() { "at the top".to_owned() } else { format!("in [{path}]") };
        let mut reason = format!("unknown key `{}` {place}", word.escape_debug());
        let meant = nearest(word, schema.fields.iter().map(|field| field.key));
        let home = || self.root.fields.iter().find(|field| has(field, word));
        if meant.is_none()
            && let Some(home) = home()
        {
            reason.push_str(&format!("; there is one in [{}]", home.key));
        }
        self.findings.excused.extend(meant.map(|meant| join(path, meant)));
        self.problem((self.place)(key.span()), reason, meant);
    }

    fn field(
        &mut self,
        field: &'static Field,
        value: &Spanned<DeValue<'_>>,
        at: ValueOrigin,
        tree: &mut ConfigTree,
        path: &str,
    ) {
        let wrong = |is: &str| format!("`{path}` must be {is}, found {}", kind_of(value.get_ref()));
        match (field.kind, value.get_ref()) {
            (KeyKind::Leaf { check, choices }, given) => {
                let read = owned(given).and_then(|value| check(&value).map(|()| value));
                match read {
                    Ok(value) => {
                        tree.insert(field.key.to_owned(), ValueNode::Leaf(value, at));
                    }
                    Err(reason) => {
                        let word = given.as_str().unwrap_or_default();
                        let meant = nearest(word, choices.iter().copied());
                        let at = (self.place)(value.span());
                        self.problem(at, format!("`{path}` {reason}"), meant);
                    }
                }
            }
            (KeyKind::Section(schema), DeValue::Table(table)) => {
                if let ValueNode::Section(tree) = section_of(tree, field, schema) {
                    self.table(schema, table, tree, path);
                }
            }
            (KeyKind::List(schema), DeValue::Array(array)) => {
                let mut elements = Vec::new();
                for element in array.iter() {
                    let origin = (self.place)(element.span());
                    let DeValue::Table(table) = element.get_ref() else {
                        let found = kind_of(element.get_ref());
                        let reason =
                            format!("an element of `{path}` must be a table, found {found}");
                        self.problem(origin, reason, None);
                        continue;
                    };
                    let mut tree = defaults(schema);
                    let excused = self.findings.excused.len();
                    self.table(schema, table, &mut tree, path);
                    self.missing(schema, &tree, &origin, &format!("[[{path}]]"), path);
                    // Keys excused in this element are not excused in the next.
                    self.findings.excused.truncate(excused);
                    elements.push(Element { tree, origin });
                }
                tree.insert(field.key.to_owned(), ValueNode::List(elements));
            }
            (KeyKind::Texts, DeValue::Table(table)) => {
                let mut texts = BTreeMap::new();
                for (key, value) in table.iter() {
                    match value.get_ref() {
                        DeValue::String(text) => {
                            let entry = (text.to_string(), (self.place)(key.span()));
                            texts.insert(key.get_ref().to_string(), entry);
                        }
                        other => {
                            let key = key.get_ref().escape_debug();
                            let reason = format!(
                                "`{path}.{key}` must be text in quotes, found {}",
                                kind_of(other)
                            );
                            self.problem((self.place)(value.span()), reason, None);
                        }
                    }
                }
                tree.insert(field.key.to_owned(), ValueNode::Texts(texts));
            }
            (KeyKind::Section(_), _) => {
                self.problem(at, wrong(&format!("a table: [{path}]")), None)
            }
            (KeyKind::List(_), _) => {
                self.problem(at, wrong(&format!("a list of tables: [[{path}]]")), None);
            }
            (KeyKind::Texts, _) => {
                self.problem(at, wrong("a table of texts such as { NAME = \"value\" }"), None);
            }
        }
    }

    /// Reports missing required keys of the table at `path`, except excused ones.
    pub fn missing(
        &mut self,
        schema: &ConfigSchema,
        tree: &ConfigTree,
        at: &ValueOrigin,
        place: &str,
        path: &str,
    ) {
        for field in schema.fields {
            if let Fallback::Required(example) = field.fallback
                && self.whole
                && !tree.contains_key(field.key)
                && !self.findings.excused.contains(&join(path, field.key))
            {
                let key = field.key;
                let reason =
                    format!("{place} lacks the key `{key}`: for example {key} = {example}");
                self.problem(at.clone(), reason, None);
            }
        }
    }

    /// Like [`Layer::missing`], for the root and its sections once all layers are added. List
    /// elements are checked where they are read.
    pub fn missing_in_sections(&mut self, tree: &ConfigTree, at: &ValueOrigin) {
        self.missing(self.root, tree, at, "the config", "");
        for field in self.root.fields {
            if let (KeyKind::Section(schema), Some(ValueNode::Section(tree))) =
                (field.kind, tree.get(field.key))
            {
                self.missing(schema, tree, at, &format!("[{}]", field.key), field.key);
            }
        }
    }

    /// Sets one key by its dotted name from text, as the environment and flags give it.
    ///
    /// A list's element is named by its `name`, as in `cluster.ams.nodes`. There `_` also stands
    /// for `-`, for environment variables have no dash. A whole list is given in TOML.
    pub fn set(&mut self, tree: &mut ConfigTree, key: &str, text: &str) {
        let mut segments = key.split('.').map(str::to_owned).collect::<Vec<_>>();
        segments.reverse();
        self.descend(self.root, tree, segments, text, String::new());
    }

    fn descend(
        &mut self,
        schema: &'static ConfigSchema,
        tree: &mut ConfigTree,
        mut rest: Vec<String>,
        text: &str,
        path: String,
    ) {
        let at = (self.place)(0..0);
        let Some(key) = rest.pop() else {
            return self.problem(at, format!("`{path}` is a section: name a key in it"), None);
        };
        let Some(field) = schema.field(&key) else {
            let place =
                if path.is_empty() { "at the top".to_owned() } else { format!("in [{path}]") };
            let reason = format!("unknown key `{}` {place}", key.escape_debug());
            return self.problem(at, reason, nearest(&key, schema.fields.iter().map(|f| f.key)));
        };
        self.note_spelling(field, &key, &at);
        let path = join(&path, field.key);
        if let KeyKind::Section(schema) = field.kind {
            section_of(tree, field, schema);
        }
        match (field.kind, tree.get_mut(field.key)) {
            (KeyKind::Section(schema), Some(ValueNode::Section(tree))) => {
                self.descend(schema, tree, rest, text, path);
            }
            (KeyKind::List(schema), Some(ValueNode::List(elements))) if !rest.is_empty() => {
                let name = rest.pop().unwrap_or_default().replace('_', "-");
                let names = || elements.iter().filter_map(|e| name_of(&e.tree));
                match names().position(|there| there == name) {
                    Some(index) => {
                        let path = format!("{path}.{name}");
                        self.descend(schema, &mut elements[index].tree, rest, text, path);
                    }
                    None => {
                        let meant = nearest(&name, names()).map(str::to_owned);
                        let reason =
                            format!("there is no `{path}` named `{}`", name.escape_debug());
                        self.problem(at, reason, meant.as_deref());
                    }
                }
            }
            (KeyKind::Texts, Some(ValueNode::Texts(texts))) if rest.len() == 1 => {
                texts.extend(rest.pop().map(|key| (key, (text.to_owned(), at))));
            }
            // Two variables name one key only if they spell it differently.
            (KeyKind::Leaf { .. }, Some(ValueNode::Leaf(_, first @ ValueOrigin::Env(_))))
                if rest.is_empty()
                    && field.alias.is_some()
                    && matches!(at, ValueOrigin::Env(_)) =>
            {
                let first = first.clone();
                self.given_twice(field, at, &first, &path);
            }
            (KeyKind::Leaf { check, .. }, _) if rest.is_empty() => {
                // Plain text if the key takes text, else TOML.
                let as_text = Value::String(text.to_owned());
                let as_toml = || text.parse::<Value>().ok().filter(|value| check(value).is_ok());
                match check(&as_text).is_ok().then(|| as_text.clone()).or_else(as_toml) {
                    Some(value) => {
                        tree.insert(field.key.to_owned(), ValueNode::Leaf(value, at));
                    }
                    None => {
                        let given = DeValue::String(text.into());
                        self.field(field, &Spanned::new(0..0, given), at, tree, &path);
                        self.findings.excused.push(path);
                    }
                }
            }
            (KeyKind::List(_), _) => {
                let toml = format!("value = {text}");
                match DeTable::parse(&toml) {
                    Ok(table) => match table.get_ref().get("value") {
                        Some(value) => self.field(field, value, at, tree, &path),
                        None => self.problem(at, format!("`{path}` must be a list in TOML"), None),
                    },
                    Err(error) => {
                        let reason =
                            format!("`{path}` must be a list in TOML: {}", error.message());
                        self.problem(at, reason, None);
                    }
                }
            }
            _ => self.problem(at, format!("`{path}` holds a value, not keys"), None),
        }
    }
}

fn name_of(tree: &ConfigTree) -> Option<&str> {
    match tree.get("name") {
        Some(ValueNode::Leaf(Value::String(name), _)) => Some(name),
        _ => None,
    }
}

fn has(field: &Field, key: &str) -> bool {
    match field.kind {
        KeyKind::Section(schema) => schema.field(key).is_some(),
        _ => false,
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

fn owned(value: &DeValue<'_>) -> Result<Value, String> {
    Ok(match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(digits) => {
            let number = i64::from_str_radix(digits.as_str(), digits.radix());
            Value::Integer(number.map_err(|_| format!("is too large a number: {digits}"))?)
        }
        DeValue::Float(digits) => {
            let number = digits.as_str().parse();
            Value::Float(number.map_err(|_| format!("is no number: {}", digits.as_str()))?)
        }
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Datetime(date) => {
            // The parser accepts some dates that it cannot write.
            let text = date.to_string();
            let whole = text.parse::<toml::value::Datetime>().is_ok();
            Value::Datetime(whole.then_some(*date).ok_or_else(|| format!("is no date: {text}"))?)
        }
        DeValue::Array(array) => {
            Value::Array(array.iter().map(|v| owned(v.get_ref())).collect::<Result<_, _>>()?)
        }
        DeValue::Table(table) => {
            let entry =
                |(key, value): (&Spanned<toml::de::DeString<'_>>, &Spanned<DeValue<'_>>)| {
                    Ok((key.get_ref().to_string(), owned(value.get_ref())?))
                };
            Value::Table(table.iter().map(entry).collect::<Result<_, String>>()?)
        }
    })
}
