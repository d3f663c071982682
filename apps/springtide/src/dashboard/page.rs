//! The page's files, for the server and for reports.

pub(super) const HTML: &str = include_str!("page/index.html");
pub(super) const SCRIPT: &str = include_str!("page/app.js");
/// What the script makes of a tick, without a page: pure functions.
pub(super) const SHAPES: &str = include_str!("page/model.js");
pub(super) const STYLE: &str = include_str!("page/style.css");
