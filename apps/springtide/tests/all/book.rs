//! Checks the book and the README against the program: commands run as shown, names exist, and
//! generated pages are current.
//!
//! This module does not know the text; it knows only the formats in the book's introduction (*How
//! this book is kept true*).

mod first_programs;
mod lines;
mod links;
mod named;
mod page;
mod reference;
mod run;
mod sources;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use page::{Page, PageBlock};
use springtide_runtime::config::{
    self, Config, GridConfig, JobsConfig, LinksConfig, NodeConfig, ProfileConfig, ScenarioConfig,
    SiteConfig, Sources, TopologyConfig, WorkloadConfig,
};

/// The program's own `main`, for its command line.
#[path = "../../src/main.rs"]
#[allow(dead_code, reason = "nothing is run in this process")]
mod program;

/// The root directory of the workspace.
fn root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).expect("the crate lies two folders deep").to_owned()
}

/// The directory of the book's pages.
fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("book/src")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All pages in the order of the summary, and the README.
fn pages() -> Vec<Page> {
    let summary = Page::parse(&src().join("SUMMARY.md"));
    let mut pages: Vec<Page> = summary
        .links
        .iter()
        .filter(|link| link.to.ends_with(".md"))
        .map(|link| Page::parse(&src().join(&link.to)))
        .collect();
    pages.push(Page::parse(&root().join("README.md")));
    pages
}

/// The documents at the root, apart from the README.
fn documents() -> Vec<Page> {
    ["ARCHITECTURE.md", "BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
        .iter()
        .map(|name| Page::parse(&root().join(name)))
        .collect()
}

/// Fails with all errors and advice, if there are errors.
fn assert_no_errors(wrong: &[String], advice: &str) {
    assert!(wrong.is_empty(), "{} wrong:\n\n{}\n\n{advice}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_command_of_the_book_prints_what_is_shown() {
    // Two pages at once: each has at most six node processes, and mostly waits.
    let only = std::env::var("SPRINGTIDE_BOOK_PAGE").ok();
    let wanted = |page: &Page| only.as_ref().is_none_or(|only| page.name().contains(only));
    let pages: Mutex<VecDeque<Page>> =
        Mutex::new(pages().into_iter().filter(|page| wanted(page)).collect());
    let next = || pages.lock().expect("no thread panics with it").pop_front();
    let run = || {
        let mut wrong = Vec::new();
        while let Some(page) = next() {
            let start = Instant::now();
            wrong.extend(run::page(&page).err());
            println!("{:5.1} s  {}", start.elapsed().as_secs_f64(), page.name());
        }
        wrong
    };
    let wrong = std::thread::scope(|scope| {
        let other = scope.spawn(run);
        let mut wrong = run();
        wrong.extend(other.join().expect("it returns the errors"));
        wrong
    });
    assert_no_errors(
        &wrong,
        "The page must show a command's output below it: `...` stands for any text, alone on a \
        line for any lines, and `(exit 3)` as the last line for an exit code other than 0. \
        SPRINGTIDE_BOOK_PAGE=NAME runs the pages of that name alone.",
    );
}

#[test]
fn every_command_line_is_one_of_the_programs() {
    let command = program::program().command_line();
    let mut wrong = Vec::new();
    for page in pages() {
        for part in &page.parts {
            let PageBlock::Console { commands, .. } = part else { continue };
            // A refused command need not be valid.
            let right = |page_command: &&page::PageCommand| {
                page_command.expected.last().is_none_or(|l| l != "(exit 2)")
            };
            for page_command in commands.iter().filter(right) {
                for line in lines::of_program(&page_command.line) {
                    if let Err(error) = lines::parse(&command, &line) {
                        wrong.push(format!("{}:{}: {error}", page.name(), page_command.at));
                    }
                }
            }
        }
    }
    assert_no_errors(&wrong, "`springtide COMMAND --help` shows the options; correct the page.");
}

#[test]
fn names_in_the_text_exist() {
    let names = named::Names::of(&program::program().command_line());
    let mut wrong = Vec::new();
    for page in pages() {
        for code in &page.code {
            if let Err(error) = names.check(&code.text) {
                wrong.push(format!("{}:{}: `{}`: {error}", page.name(), code.at, code.text));
            }
        }
    }
    assert_no_errors(
        &wrong,
        "Commands, options, keys and metrics in `code` must exist; correct the page.",
    );
}

#[test]
fn files_and_items_for_contributors_exist() {
    let sources = sources::Sources::read(&root());
    let internals = src().join("internals");
    let of_book = pages().into_iter().filter(|page| page.path.starts_with(&internals));
    // The changelog and the benchmarks also name what the tree has no more.
    let of_root = documents().into_iter().filter(|page| {
        ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].contains(&page.name().as_str())
    });
    let wrong: Vec<String> =
        of_book.chain(of_root).flat_map(|page| sources.missing(&root(), &page)).collect();
    assert_no_errors(
        &wrong,
        "A file or item in `code` must exist: correct its name, or give the place to which it \
         moved.",
    );
}

#[test]
fn links_anchors_and_images_exist() {
    let pages: Vec<Page> = pages().into_iter().chain(documents()).collect();
    let wrong = links::check(&src(), &pages);
    assert_no_errors(&wrong, "Correct the link, or add the page to SUMMARY.md.");
}

#[test]
fn files_in_the_book_are_valid() {
    let mut wrong = Vec::new();
    for page in pages() {
        for part in &page.parts {
            let checked = match part {
                PageBlock::File { kind: Some(kind), text, whole, .. } => load(kind, text, *whole),
                PageBlock::Excerpt { file, text, .. } => excerpt(file, text),
                _ => Ok(()),
            };
            if let Err(error) = checked {
                wrong.push(format!("{}:{}: {error}", page.name(), part.at()));
            }
        }
    }
    assert_no_errors(
        &wrong,
        "TOML must load as its `kind=` says (`part` for a piece of one); Rust must be an exact \
        excerpt of its `file=`.",
    );
}

/// Loads a config as the program does.
fn load(kind: &str, text: &str, whole: bool) -> Result<(), String> {
    fn as_kind<T: Config>(text: &str) -> Result<(), String> {
        let sources = Sources::of_text("this block", text);
        let loaded = config::load::<T>(&sources).map_err(|error| error.to_string())?;
        loaded.warnings.first().map_or(Ok(()), |warning| Err(warning.to_string()))
    }
    // A part of a grid's config needs clusters.
    let clusters = "[[cluster]]\nname = \"ams\"\n[[cluster]]\nname = \"del\"\n";
    let needs = kind == "grid" && !whole && !text.lines().any(|l| l.starts_with("[[cluster]]"));
    let text = if needs { format!("{text}\n{clusters}") } else { text.to_owned() };
    match kind {
        "grid" => as_kind::<GridConfig>(&text),
        "node" => as_kind::<NodeConfig>(&text),
        "site" => as_kind::<SiteConfig>(&text),
        "jobs" => as_kind::<JobsConfig>(&text),
        "scenario" => as_kind::<ScenarioConfig>(&text),
        "topology" => as_kind::<TopologyConfig>(&text),
        "links" => as_kind::<LinksConfig>(&text),
        "workload" => as_kind::<WorkloadConfig>(&text),
        "profile" => as_kind::<ProfileConfig>(&text),
        // The tests of `wan` run these files.
        "compose" => toml::from_str::<toml::Table>(&text).map(drop).map_err(|e| e.to_string()),
        "wrong" => match as_kind::<GridConfig>(&text) {
            Ok(()) => Err("it must be a wrong config of a grid, but it is valid".to_owned()),
            Err(_) => Ok(()),
        },
        // The commands that read it check it, and cargo reads manifests.
        "workflow" | "manifest" => {
            text.parse::<toml::Table>().map(drop).map_err(|error| error.to_string())
        }
        other => Err(format!("no config is of kind {other}")),
    }
}

/// Whether lines are in a file of the workspace, apart from their indentation.
fn excerpt(file: &str, text: &str) -> Result<(), String> {
    let whole =
        std::fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let (whole, piece) = (lines(&whole), lines(text));
    let found = whole.windows(piece.len().max(1)).any(|window| window == piece);
    if found { Ok(()) } else { Err(format!("these lines are not in {file}")) }
}

#[test]
fn the_reference_is_as_the_code_is() {
    let write = std::env::var_os("SPRINGTIDE_WRITE_BOOK").is_some();
    let mut wrong = Vec::new();
    for (file, text) in reference::pages(&program::program().command_line()) {
        let path = src().join("reference").join(file);
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        if write {
            std::fs::create_dir_all(path.parent().expect("it has a folder")).unwrap();
            std::fs::write(&path, &text).unwrap();
        } else {
            wrong.push(format!("reference/{file} differs from the code"));
        }
    }
    assert_no_errors(
        &wrong,
        "Regenerate the pages: SPRINGTIDE_WRITE_BOOK=1 cargo test -p springtide --test all \
        book::the_reference",
    );
}
