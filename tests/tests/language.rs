//! The language of the project's sources: names, comments, documentation, help texts and errors.
//!
//! Each rule counts its violations by file. `language/allowed.txt` lists the exceptions, each with
//! its reason. A count other than the listed one fails the test, so that the list only shrinks.
//! `SPRINGTIDE_SHOW=RULE cargo test -p springtide-tests language -- --nocapture` prints the
//! violations of a rule, and `RULE:FILE` those in one file.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use self::source::{CommentKind, SourceLine, lines};

/// Words of a private dialect, and phrases. The field has a term for each: see the glossary.
const DIALECT: &[&str] = &[
    "told",
    "heard",
    "nobody",
    "whoever",
    "whomever",
    "whatever",
    "whichever",
    "anew",
    "beside",
    "whom",
    "whence",
    "afar",
    "so many",
    "so few",
    "so often",
    "so much of",
    "goes on",
    "go on",
    "went on",
    "gone on",
    "going on",
    "let go",
    "lets go",
    "what came of",
    "what comes of",
    "what is told",
    "that which",
    "foretell",
    "foretold",
    "foreseen",
    "sounder",
    "parole",
    "hungry",
    "stirred",
    "bequest",
    "muster",
    "begins its life",
    "a new life",
    "earlier life",
    "later life",
];

/// Words that are no type names, alone or at the end of one: function words and participles.
const NO_NOUNS: &[&str] = &[
    "How",
    "What",
    "Which",
    "Whose",
    "Whom",
    "Who",
    "Why",
    "When",
    "Where",
    "Then",
    "Than",
    "At",
    "Of",
    "By",
    "On",
    "In",
    "To",
    "From",
    "With",
    "Any",
    "All",
    "Some",
    "None_",
    "Now",
    "Here",
    "There",
    "Instead",
    "Behind",
    "Beside",
    "Before",
    "After",
    "Until",
    "Since",
    "Away",
    "Told",
    "Heard",
    "Came",
    "Come",
    "Gone",
    "Went",
    "Seen",
    "Known",
    "Given",
    "Taken",
    "Made",
    "Done",
    "Left",
    "Held",
    "Kept",
    "Sent",
    "Said",
    "Hung",
    "Met",
    "Led",
    "Lost",
    "Found",
    "Spent",
    "Drawn",
    "Grown",
    "Shown",
    "Begun",
    "Asked",
    "Ended",
    "Started",
    "Granted",
    "Submitted",
    "Passed",
    "Played",
    "Wanted",
    "Saved",
    "Shared",
    "Opened",
    "Closed",
    "Joined",
    "Called",
    "Named",
    "Listed",
];

/// Type names that many files may define: traits' associated types and conventional names.
const COMMON_TYPES: &[&str] = &["Error", "Output", "Item", "Target", "Result", "Config", "Args"];

/// The widest line.
const COLUMNS: usize = 100;
/// The longest sentence, in words.
const WORDS: usize = 25;
/// The shortest doc comment of a public item, in words.
const DOC_WORDS: usize = 4;

/// A rule, the file that breaks it, and where.
type Violation = (&'static str, String, String);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn files(under: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(under) else { return };
    for entry in entries {
        let path = entry.expect("an entry of a directory").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        if path.is_dir() {
            if name.is_none_or(|name| name != "target" && !name.starts_with('.')) {
                files(&path, ending, found);
            }
        } else if path.extension().is_some_and(|found| found == ending) {
            found.push(path);
        }
    }
}

fn name_of(path: &Path) -> String {
    let root = root();
    path.strip_prefix(&root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

/// Counts phrases at word boundaries, without regard to case.
fn phrases<'a>(text: &str, phrases: &[&'a str]) -> Vec<&'a str> {
    let letters = |c: char| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { ' ' };
    let words: String = text.chars().map(letters).collect();
    let words = format!(" {} ", words.split_whitespace().collect::<Vec<_>>().join(" "));
    let found = phrases.iter().flat_map(|phrase| {
        let count = words.matches(&format!(" {phrase} ")).count();
        std::iter::repeat_n(*phrase, count)
    });
    found.collect()
}

/// The sentences of a paragraph that have too many words.
fn long_sentences(paragraph: &str) -> Vec<String> {
    let mut long = Vec::new();
    let mut sentence: Vec<&str> = Vec::new();
    let mut end = |sentence: &mut Vec<&str>| {
        let words = sentence.iter().filter(|word| word.contains(char::is_alphanumeric)).count();
        if words > WORDS {
            long.push(sentence.join(" "));
        }
        sentence.clear();
    };
    for word in paragraph.split_whitespace() {
        sentence.push(word);
        if word.ends_with(['.', '!', '?', ':', ';']) || word.ends_with(".)") {
            end(&mut sentence);
        }
    }
    end(&mut sentence);
    long
}

/// Joins lines of text into paragraphs, without code blocks, tables and headings.
fn paragraphs<'a>(text: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut fenced = false;
    for line in text {
        let line = line.trim();
        if line.starts_with("```") {
            fenced = !fenced;
        }
        let item = ["- ", "* ", "1. ", "> "].iter().any(|mark| line.starts_with(mark));
        let breaks = fenced || line.is_empty() || line.starts_with(['#', '|', '`']) || item;
        if breaks {
            all.push(String::new());
        }
        if !(fenced || line.starts_with(['#', '|']) || line.starts_with("```"))
            && let Some(last) = all.last_mut()
        {
            last.push(' ');
            last.push_str(line);
        }
    }
    all
}

/// The types that a line of code defines.
fn defined_type(code: &str) -> Option<&str> {
    let words: Vec<&str> =
        code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).collect();
    let starts = ["pub", "struct", "enum", "trait", "union", "type", "unsafe"];
    if !words.first().is_some_and(|first| starts.contains(first)) {
        return None;
    }
    let at = words.iter().position(|word| ["struct", "enum", "trait", "union"].contains(word))?;
    // A macro defines `$name`.
    words.get(at + 1).copied().filter(|defined| defined.starts_with(char::is_uppercase))
}

/// The last word of a name in camel case.
fn last_word(name: &str) -> &str {
    let start = name.rfind(char::is_uppercase).unwrap_or(0);
    &name[start..]
}

/// Whether the parameters of a public function have a tuple of several values.
fn has_tuple_parameter(signature: &str) -> bool {
    let Some(open) = signature.find('(') else { return false };
    let (mut depth, mut before) = (0, ' ');
    for (i, c) in signature.char_indices().skip(signature[..open].chars().count()) {
        match c {
            '(' => {
                let inner = signature[i..].find(')').map_or("", |end| &signature[i..i + end]);
                if depth == 1 && before == ':' && inner.contains(',') {
                    return true;
                }
                depth += 1;
            }
            ')' => {
                depth -= 1;
                if depth == 0 {
                    return false;
                }
            }
            _ => {}
        }
        if !c.is_whitespace() {
            before = c;
        }
    }
    false
}

fn check_comments(name: &str, lines: &[SourceLine], found: &mut Vec<Violation>) {
    let mut at = 0;
    while at < lines.len() {
        let kind = lines[at].comment.as_ref().map(|(kind, _)| *kind);
        let Some(kind) = kind.filter(|_| lines[at].is_comment()) else {
            if let Some((_, text)) = &lines[at].comment {
                comment(name, at, std::iter::once(text.as_str()), found);
            }
            at += 1;
            continue;
        };
        let same = |line: &&SourceLine| {
            line.is_comment() && line.comment.as_ref().is_some_and(|(other, _)| *other == kind)
        };
        let block: Vec<&str> = lines[at..]
            .iter()
            .take_while(same)
            .filter_map(|line| line.comment.as_ref().map(|(_, text)| text.as_str()))
            .collect();
        comment(name, at, block.iter().copied(), found);
        let next = lines[at + block.len()..].iter().map(|line| line.code.trim());
        let mut next = next.skip_while(|code| code.is_empty() || code.starts_with("#["));
        let public = next.next().is_some_and(|code| code.starts_with("pub "));
        let words = block.iter().flat_map(|line| line.split_whitespace()).count();
        if kind == CommentKind::Item && public && words < DOC_WORDS {
            let text = block.concat();
            found.push(("short_docs", name.to_owned(), format!("{}:{text}", at + 1)));
        }
        at += block.len();
    }
}

fn comment<'a>(
    name: &str,
    at: usize,
    text: impl Iterator<Item = &'a str> + Clone,
    found: &mut Vec<Violation>,
) {
    for (line, text) in (at + 1..).zip(text.clone()) {
        for phrase in phrases(text, DIALECT) {
            found.push(("dialect", name.to_owned(), format!("{line}: {phrase}")));
        }
    }
    for sentence in paragraphs(text).iter().flat_map(|text| long_sentences(text)) {
        found.push(("long_sentences", name.to_owned(), format!("{}: {sentence}", at + 1)));
    }
}

fn check_code(name: &str, lines: &[SourceLine], found: &mut Vec<Violation>) {
    let mut add = |rule, at: usize, text: &str| {
        found.push((rule, name.to_owned(), format!("{}: {}", at + 1, text.trim())));
    };
    for (at, line) in lines.iter().enumerate() {
        for phrase in phrases(&line.strings, DIALECT) {
            add("dialect_in_texts", at, phrase);
        }
        if let Some(defined) = defined_type(&line.code)
            && NO_NOUNS.contains(&last_word(defined))
        {
            add("type_names", at, defined);
        }
        let signature = || {
            let all = lines[at..].iter().take(12).map(|line| line.code.trim());
            all.collect::<Vec<_>>().join(" ")
        };
        let code = line.code.trim_start();
        if ["pub fn ", "pub async fn ", "pub const fn "].iter().any(|start| code.starts_with(start))
            && has_tuple_parameter(&signature())
        {
            add("tuple_parameters", at, code);
        }
        let next = lines.get(at + 1).map_or("", |line| line.code.trim_start());
        if code.contains("match ")
            && ["true =>", "false =>"].iter().any(|arm| next.starts_with(arm))
        {
            add("match_on_bool", at, code);
        }
    }
}

/// Whether a file belongs to tests, benchmarks or examples.
fn is_local(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name);
    let folders = ["/tests/", "/benches/", "/examples/", "/bars/"];
    name.starts_with("tests/")
        || folders.iter().any(|folder| name.contains(folder))
        || file.starts_with("test")
        || file.ends_with("tests.rs")
}

struct Survey {
    violations: Vec<Violation>,
    comment_lines: usize,
}

fn survey() -> Survey {
    let (mut sources, mut pages) = (Vec::new(), Vec::new());
    for room in ["runtime", "actors", "apps", "tests", "netem-scripts"] {
        files(&root().join(room), "rs", &mut sources);
    }
    files(&root(), "md", &mut pages);
    assert!(sources.len() > 300 && pages.len() > 20, "{} {}", sources.len(), pages.len());
    let mut found: Vec<Violation> = Vec::new();
    let mut types: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut comment_lines = 0;
    sources.sort();
    for path in &sources {
        let (name, text) = (name_of(path), fs::read_to_string(path).expect("a source file"));
        let lines = lines(&text);
        comment_lines += lines.iter().filter(|line| line.comment.is_some()).count();
        for (at, line) in (1..).zip(text.lines()) {
            if line.chars().count() > COLUMNS {
                found.push(("wide_lines", name.clone(), format!("{at}: {line}")));
            }
        }
        // This file lists the words that it looks for.
        if name.starts_with("tests/tests/language") {
            continue;
        }
        check_comments(&name, &lines, &mut found);
        check_code(&name, &lines, &mut found);
        // Types of tests, benchmarks and examples are local to them, as are those of macros.
        if is_local(&name) {
            continue;
        }
        let unit_tests = lines.iter().position(|line| line.code.trim() == "#[cfg(test)]");
        let product = &lines[..unit_tests.unwrap_or(lines.len())];
        for defined in product.iter().filter_map(|line| defined_type(&line.code)) {
            types.entry(defined.to_owned()).or_default().insert(name.clone());
        }
    }
    for path in &pages {
        let (name, text) = (name_of(path), fs::read_to_string(path).expect("a page"));
        // This page maps earlier names to present ones.
        if name == "NAMES.md" {
            continue;
        }
        for (at, line) in (1..).zip(text.lines()) {
            for phrase in phrases(line, DIALECT) {
                found.push(("dialect_in_pages", name.clone(), format!("{at}: {phrase}")));
            }
        }
        for sentence in paragraphs(text.lines()).iter().flat_map(|text| long_sentences(text)) {
            found.push(("long_sentences_in_pages", name.clone(), sentence));
        }
    }
    let repeated = types
        .into_iter()
        .filter(|(name, files)| files.len() >= 3 && !COMMON_TYPES.contains(&name.as_str()));
    for (defined, files) in repeated {
        let files: Vec<String> = files.into_iter().collect();
        found.push(("repeated_types", defined, files.join(", ")));
    }
    Survey { violations: found, comment_lines }
}

fn counts(violations: &[Violation]) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for (rule, file, _) in violations {
        *counts.entry(((*rule).to_owned(), file.clone())).or_insert(0) += 1;
    }
    counts
}

/// Reads lines of rule, file, count and `# reason`.
///
/// # Panics
/// A line has another form, or no reason.
fn allowed(text: &str) -> BTreeMap<(String, String), usize> {
    let entry = |line: &str| {
        let (entry, reason) = line.split_once(" # ")?;
        let mut words = entry.split_whitespace();
        let (rule, file, count) = (words.next()?, words.next()?, words.next()?);
        let is_whole = words.next().is_none() && !reason.trim().is_empty();
        is_whole.then_some(())?;
        Some(((rule.to_owned(), file.to_owned()), count.parse().ok()?))
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|line| entry(line).unwrap_or_else(|| panic!("no entry: {line}"))).collect()
}

#[test]
fn language_of_the_sources_only_gets_better() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/language/allowed.txt");
    let survey = survey();
    let found = counts(&survey.violations);
    if let Ok(shown) = std::env::var("SPRINGTIDE_SHOW") {
        for (rule, file, what) in &survey.violations {
            if shown == *rule || shown == format!("{rule}:{file}") {
                println!("{rule} {file}:{what}");
            }
        }
    }
    println!("{} lines with comments", survey.comment_lines);
    let allowed = allowed(&fs::read_to_string(&path).expect("the list"));
    let mut wrong = Vec::new();
    for key in found.keys().chain(allowed.keys()).collect::<BTreeSet<_>>() {
        let (now, then) = (found.get(key).copied(), allowed.get(key).copied());
        let (now, then) = (now.unwrap_or(0), then.unwrap_or(0));
        if now > then {
            let (rule, file) = key;
            let all = survey.violations.iter().filter(|one| one.0 == rule && one.1 == *file);
            let all: Vec<&str> = all.map(|(_, _, what)| what.as_str()).collect();
            wrong
                .push(format!("{rule} {file}: {now}, allowed {then}:\n    {}", all.join("\n    ")));
        } else if now < then {
            wrong.push(format!("{} {}: {now}, allowed {then}: lower the count", key.0, key.1));
        }
    }
    assert!(wrong.is_empty(), "\n{}\nthe list is {}", wrong.join("\n"), path.display());
}

#[test]
fn each_rule_finds_its_violation() {
    let text = "//! Who was told goes on.\n/// The time.\npub struct Told;\nstruct ClusterTold;\n\
                pub fn f(a: u8, (b, c): (u8, u8)) {}\npub fn g(a: u8, b: (u8, u8)) {}\n\
                pub fn h(a: Fn(u8) -> (u8, u8)) -> (u8, u8) {}\n\
                fn i() { match a {\n true => \"nobody heard\",\n";
    let lines = lines(text);
    let mut found = Vec::new();
    check_comments("a.rs", &lines, &mut found);
    check_code("a.rs", &lines, &mut found);
    let counts = counts(&found);
    let count = |rule: &str| counts.get(&(rule.to_owned(), "a.rs".to_owned())).copied();
    assert_eq!(count("dialect"), Some(2), "{found:?}");
    assert_eq!(count("dialect_in_texts"), Some(2), "{found:?}");
    assert_eq!(count("type_names"), Some(2), "{found:?}");
    assert_eq!(count("short_docs"), Some(1), "{found:?}");
    assert_eq!(count("tuple_parameters"), Some(2), "{found:?}");
    assert_eq!(count("match_on_bool"), Some(1), "{found:?}");
    let long = vec!["word"; WORDS + 1].join(" ");
    assert_eq!(long_sentences(&long).len(), 1);
    assert_eq!(long_sentences(&format!("{long}. Short. {long}")).len(), 2);
    let page = format!("# {long}\n| {long} |\n```\n{long}\n```\n- {long}\n");
    let long = paragraphs(page.lines());
    assert_eq!(long.iter().flat_map(|text| long_sentences(text)).count(), 1);
    assert_eq!(allowed("# a\nrule file 3 # a reason\n").len(), 1);
}
