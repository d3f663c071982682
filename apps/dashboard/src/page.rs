//! The page's files, for the server and for reports.

pub(super) const HTML: &str = include_str!("page/index.html");
pub(super) const SCRIPT: &str = include_str!("page/app.js");
/// Pure functions of the script that convert a tick, without a page.
pub(super) const SHAPES: &str = include_str!("page/model.js");
pub(super) const STYLE: &str = include_str!("page/style.css");

/// Escapes text for HTML, also inside quotes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}
