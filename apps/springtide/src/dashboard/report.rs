//! `report`: a run on one page, in one file that needs no server and no network.
//!
//! Must not know what a run is.

use std::path::{Path, PathBuf};

use crate::exit::Failed;
use crate::outdir::write_file;
use crate::run::print;
use crate::runlog::Story;

use super::page::{HTML, SCRIPT, SHAPES, STYLE};
use super::replay;

/// Nothing is fetched: what is here is all there is.
const CSP: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; \
                   style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">";

/// Writes the report of a run, beside its log where no file is named.
///
/// # Errors
/// There is no run, its log is malformed, or the file cannot be written.
pub fn report(run: &Path, out: Option<PathBuf>) -> Result<(), Failed> {
    let story = Story::read(run)?;
    let out = out.unwrap_or_else(|| run.join("report.html"));
    write_file(&out, page(&replay::frames(&story).to_string()).as_bytes())?;
    print(&format!("{}\n", out.display()))?;
    if let Some(gap) = &story.gap {
        crate::talk::tell(gap);
    }
    Ok(())
}

/// The page with all that it needs inside.
fn page(run: &str) -> String {
    let shapes = SHAPES.replace("\nexport ", "\n");
    let lines = SCRIPT.split_inclusive('\n').filter(|line| !line.starts_with("import "));
    let script: String = lines.collect();
    // In a script `</` would end it, whatever it stands in.
    let data = run.replace('<', "\\u003c");
    let link = "<link rel=\"stylesheet\" href=\"/style.css\">";
    let module = "<script type=\"module\" src=\"/app.js\"></script>";
    debug_assert!(HTML.contains(link) && HTML.contains(module));
    HTML.replace(link, &format!("{CSP}\n<style>\n{STYLE}</style>")).replace(
        module,
        &format!(
            "<script type=\"application/json\" id=\"run\">{data}</script>\n<script type=\"module\">\n{shapes}\n{script}</script>"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_nothing_in_the_run_ends_its_script() {
        let text = page(r#"{"run":"</script><img src=x>"}"#);
        assert!(
            !text.contains("src=\"/") && !text.contains("href=\"/"),
            "it would fetch something"
        );
        assert!(!text.contains("</script><img"));
        assert!(!text.contains("\nimport ") && !text.contains("\nexport "));
        assert_eq!(text.matches("</script>").count(), 2);
    }
}
