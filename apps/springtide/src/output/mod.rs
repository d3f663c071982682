//! Texts, tables and JSON objects of commands.

pub mod files;
pub mod jobs;
pub mod life;
#[cfg(target_os = "linux")]
pub mod network;
pub mod nodes;
pub mod paths;
pub mod slots;
pub mod table;
pub mod tokens;
