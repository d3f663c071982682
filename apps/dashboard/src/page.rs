//! The page's files, for the server and for reports.

pub(super) const HTML: &str = include_str!("page/index.html");
pub(super) const SCRIPT: &str = include_str!("page/app.js");
/// Pure functions of the script that convert a tick, without a page.
pub(super) const SHAPES: &str = include_str!("page/model.js");
pub(super) const STYLE: &str = include_str!("page/style.css");
