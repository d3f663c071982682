//! The public items of the crates that programs depend on, as a listing in `tests/public-api`.
//!
//! The listing is read from the pages that `cargo doc` writes, since rustdoc resolves re-exports.
//! A difference fails the test, so that each change of the surface is in the diff of a commit.
//! `SPRINGTIDE_BLESS=1` writes the listing.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The facades: all that they export is inlined in their pages.
const CRATES: &[&str] = &["springtide", "springtide_runtime"];

/// Entities of HTML that rustdoc writes.
const ENTITIES: &[(&str, &str)] = &[
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&#60;", "<"),
    ("&#62;", ">"),
    ("&quot;", "\""),
    ("&#34;", "\""),
    ("&#39;", "'"),
    ("&nbsp;", " "),
    ("ⓘ", ""),
    ("&amp;", "&"),
];

/// The parts of a text between two marks, in order.
fn parts<'t>(text: &'t str, start: &'t str, end: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(start).skip(1).filter_map(move |rest| Some(rest.split_once(end)?.0))
}

/// The text of HTML, without tags.
fn plain(html: &str) -> String {
    let mut pieces = html.split('<');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    text.extend(pieces.filter_map(|piece| Some(piece.split_once('>')?.1)));
    ENTITIES.iter().fold(text, |text, (entity, meaning)| text.replace(entity, meaning))
}

/// A declaration in one line.
fn one_line(html: &str) -> String {
    plain(html).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes the declaration of an item, the signatures of its methods, and the traits that it
/// implements. Those of its `Deref` target, auto traits and blanket implementations are left out.
fn write_item(listing: &mut String, html: &str) {
    let until = |text: &'_ str, ids: &[&str]| {
        let ends = ids.iter().filter_map(|id| text.find(&format!("<h2 id=\"{id}")));
        ends.min().unwrap_or(text.len())
    };
    for declaration in parts(html, "<pre class=\"rust item-decl\"><code>", "</code></pre>") {
        // "Show 12 variants"
        let pieces = declaration
            .split("<summary")
            .map(|piece| piece.split_once("</summary>").map_or(piece, |(_, rest)| rest));
        for line in plain(&pieces.collect::<String>()).lines().map(str::trim_end) {
            if !line.is_empty() {
                let _ = writeln!(listing, "  {line}");
            }
        }
    }
    // The declaration of a trait has its methods.
    let is_trait = html.contains("<body class=\"rustdoc trait\">");
    let later =
        ["trait-implementations\"", "synthetic-implementations\"", "blanket-implementations\""];
    let own_end = until(html, &[&later[..], &["deref-methods"]].concat());
    let own = html.find("<div id=\"implementations-list\">").filter(|start| *start < own_end);
    if let Some(start) = own.filter(|_| !is_trait) {
        for section in html[start..own_end].split("<section ").skip(1) {
            let indent = if section.contains("<h3 class=\"code-header\">") { "  " } else { "    " };
            for header in parts(section, "class=\"code-header\">", "</h") {
                let _ = writeln!(listing, "{indent}{}", one_line(header));
            }
        }
    }
    if let Some(start) = html.find("<div id=\"trait-implementations-list\">") {
        let end = start + until(&html[start..], &later);
        let headers = parts(&html[start..end], "<h3 class=\"code-header\">", "</h3>");
        for header in headers.map(one_line).collect::<BTreeSet<_>>() {
            let _ = writeln!(listing, "  {header}");
        }
    }
}

/// The public items of a crate, from its pages in a directory.
fn listing(docs: &Path, name: &str) -> String {
    let folder = docs.join(name);
    let read = |path: &Path| {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    // Pages of former items stay in the directory, and this page does not link to them.
    let all = read(&folder.join("all.html"));
    let all = &all[all.find("id=\"main-content\"").expect("the page of all items has a body")..];
    let pages: BTreeSet<PathBuf> = parts(all, "<li><a href=\"", "\"")
        .filter(|link| link.ends_with(".html"))
        .map(PathBuf::from)
        .collect();
    let mut listing = String::new();
    let modules: BTreeSet<PathBuf> = pages
        .iter()
        .flat_map(|page| page.ancestors().skip(1))
        .map(|dir| dir.join("index.html"))
        .collect();
    for page in &modules {
        let html = read(&folder.join(page));
        let exports = html.split("id=\"reexport.").skip(1);
        for export in exports.filter_map(|rest| parts(rest, "<code>", "</code>").next()) {
            let _ = writeln!(listing, "{}: {}", module(name, page), one_line(export));
        }
    }
    for page in &pages {
        let file = page.file_name().expect("a page is a file").to_string_lossy();
        let mut words = file.split('.');
        let (kind, item) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let _ = writeln!(listing, "\n{kind} {}::{item}", module(name, page));
        write_item(&mut listing, &read(&folder.join(page)));
    }
    listing
}

/// The path of a page's module.
fn module(name: &str, page: &Path) -> String {
    let parents = page.parent().into_iter().flat_map(Path::iter).map(|part| part.to_string_lossy());
    [name.into()].into_iter().chain(parents).collect::<Vec<_>>().join("::")
}

#[test]
#[ignore = "the stage docs of CI runs it, since it builds the documentation"]
fn public_items_are_those_that_are_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = Command::new(env!("CARGO"))
        .args(["doc", "--workspace", "--no-deps", "--offline", "-q"])
        .current_dir(&root)
        .status();
    assert!(built.expect("cargo starts").success(), "cargo doc failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let mut changed = Vec::new();
    for name in CRATES {
        let current = listing(&root.join(&target).join("doc"), name);
        assert!(
            current.lines().count() > 100,
            "the pages of {name} list too few items:\n{current}"
        );
        let file = root.join("tests/public-api").join(name).with_extension("txt");
        if std::env::var_os("SPRINGTIDE_BLESS").is_some() {
            fs::create_dir_all(root.join("tests/public-api"))
                .expect("the directory can be created");
            fs::write(&file, &current).expect("the listing can be written");
        }
        let listed = fs::read_to_string(&file).unwrap_or_default();
        let (old, new): (BTreeSet<_>, BTreeSet<_>) =
            (listed.lines().collect(), current.lines().collect());
        changed.extend(old.difference(&new).map(|line| format!("{name}: - {line}")));
        changed.extend(new.difference(&old).map(|line| format!("{name}: + {line}")));
        if listed != current && changed.is_empty() {
            changed.push(format!("{name}: items are elsewhere"));
        }
    }
    assert!(
        changed.is_empty(),
        "the public items have changed:\n{}\n\nIf that is meant, write the listing by \
         SPRINGTIDE_BLESS=1 cargo test --workspace --test all public_items -- --ignored, \
         and describe the change in CHANGELOG.md.",
        changed.join("\n")
    );
}

/// The relevant parts of a page as rustdoc writes it.
const PAGE: &str = r#"<body class="rustdoc struct"><pre class="rust item-decl"><code>pub struct
Pool&lt;T&gt; { <span>/* private fields */</span> }</code></pre>
<h2 id="implementations">x</h2><div id="implementations-list">
<section id="impl-Pool"><h3 class="code-header">impl&lt;T&gt; <a>Pool</a>&lt;T&gt;</h3></section>
<section id="method.new"><h4 class="code-header">pub fn <a>new</a>(
    threads: usize,
) -&gt; Self</h4></section></div>
<h2 id="trait-implementations">x</h2><div id="trait-implementations-list">
<section id="impl-Drop"><h3 class="code-header">impl Drop for Pool</h3></section>
<section class="trait-impl"><h4 class="code-header">fn drop(&amp;mut self)</h4></section></div>
<h2 id="synthetic-implementations">x</h2><h3 class="code-header">impl Send for Pool</h3>"#;

#[test]
fn signatures_are_read_from_pages() {
    let mut listing = String::new();
    write_item(&mut listing, PAGE);
    let expected = "  pub struct\n  Pool<T> { /* private fields */ }\n  impl<T> Pool<T>\n    \
                    pub fn new( threads: usize, ) -> Self\n  impl Drop for Pool\n";
    assert_eq!(listing, expected);
}
