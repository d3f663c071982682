//! Checks that links, anchors and images of the pages have targets, and that the summary lists
//! every page.

use std::path::{Path, PathBuf};

use super::page::Page;

/// The broken links of the pages.
pub fn check(src: &Path, pages: &[Page]) -> Vec<String> {
    let mut wrong = Vec::new();
    for page in pages {
        for link in &page.links {
            if link.to.contains("://") || link.to.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.to.split_once('#').unwrap_or((&link.to, ""));
            let folder = page.path.parent().expect("a page lies in a folder");
            let path = if file.is_empty() { page.path.clone() } else { folder.join(file) };
            let mut report = |what| {
                wrong.push(format!("{}:{}: {} {what}", page.name(), link.at, link.to));
            };
            if !path.exists() {
                report("does not exist");
            } else if !anchor.is_empty()
                && !Page::parse(&path).anchors.iter().any(|known| known == anchor)
            {
                report("names a heading that does not exist");
            }
        }
    }
    let listed: Vec<PathBuf> =
        pages.iter().filter_map(|page| page.path.canonicalize().ok()).collect();
    for file in below(src) {
        let page = file.extension().is_some_and(|ext| ext == "md");
        if page && !file.ends_with("SUMMARY.md") && !listed.contains(&file) {
            wrong.push(format!("{} is not in SUMMARY.md", file.display()));
        }
    }
    wrong
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the book's pages").flatten() {
        let path = entry.path();
        if path.is_dir() { all.extend(below(&path)) } else { all.extend(path.canonicalize().ok()) }
    }
    all
}
