//! Builds and runs the pages "From `cargo new`" outside of the workspace, as a reader does.
//!
//! One package has the programs of all pages. Its dependencies are built as those of any package,
//! without the profiles of this workspace, so that the test takes minutes of processor time.

use std::path::Path;
use std::process::Command;

use super::page::{Page, PageBlock};

/// The pages, and how the output of each program begins.
const PAGES: [(&str, &str); 4] = [
    ("task", "230631 has the longest sequence, of 443 numbers\n"),
    ("master-worker", "17984 primes in 100 ranges\n"),
    ("processes", "the middle of the rod has 0."),
    ("actors", "ams-1: hello world, number 1 in process "),
];

/// The manifest of a page and its program.
fn parts(page: &Page) -> (String, String) {
    let manifest = page.parts.iter().find_map(|part| match part {
        PageBlock::File { kind: Some(kind), text, .. } if kind == "manifest" => Some(text.clone()),
        _ => None,
    });
    let program = page.parts.iter().find_map(|part| match part {
        PageBlock::Excerpt { text, .. } if text.contains("fn main()") => Some(text.clone()),
        _ => None,
    });
    let name = page.name();
    match (manifest, program) {
        (Some(manifest), Some(program)) => (manifest, program),
        _ => panic!("{name} lacks its manifest or its program"),
    }
}

fn page(name: &str) -> Page {
    Page::parse(&super::src().join("embed").join(name).with_extension("md"))
}

#[test]
fn each_first_page_has_a_manifest_and_a_whole_program() {
    let all: Vec<_> = PAGES.iter().map(|(name, _)| parts(&page(name))).collect();
    let serde = "serde = { version = \"1\", features = [\"derive\"] }\n";
    for (manifest, program) in &all {
        // A program whose tasks are functions derives nothing.
        let uses_serde = program.contains("serde");
        assert_eq!(manifest.contains(serde), uses_serde, "{manifest}\n{program}");
        let others = manifest.replace(serde, "");
        assert_eq!(others, all[0].0.replace(serde, ""), "the pages have one manifest");
        assert!(program.starts_with("//! ") && program.ends_with("}\n"));
    }
}

#[test]
#[ignore = "builds every crate: cargo test -p springtide --test all first_programs -- --ignored"]
fn the_first_pages_build_and_run_outside_of_the_workspace() {
    let temp = tempfile::tempdir().unwrap();
    let package = temp.path();
    std::fs::create_dir_all(package.join("src/bin")).unwrap();
    let manifest = parts(&page("task")).0;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = manifest
        .replace("../springtide/apps/springtide", &here.display().to_string())
        // The usual runtime of tokio has several threads.
        .replace("\"rt\"", "\"rt-multi-thread\"");
    std::fs::write(package.join("Cargo.toml"), manifest).unwrap();
    // The versions of the workspace are on this host.
    std::fs::copy(super::root().join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    for (name, _) in PAGES {
        let program = parts(&page(name)).1.replace("(flavor = \"current_thread\")", "");
        std::fs::write(package.join("src/bin").join(name).with_extension("rs"), program).unwrap();
    }
    let target = Path::new(env!("CARGO_BIN_EXE_springtide")).ancestors().nth(2).expect("target");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--offline", "--quiet"])
        .current_dir(package)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .status();
    assert!(built.unwrap().success());
    for (name, expected) in PAGES {
        let output = Command::new(target.join("debug").join(name)).output().unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && out.starts_with(expected), "{name}: {out}\n{err}");
    }
}
