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

use serde_json::json;
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::print::print;
use springtide_runtime::id::JobId;

/// Prints a failure as a JSON object, if JSON is requested and nothing else is printed.
///
/// # Errors
/// Always the failure itself.
pub fn print_early_failure(json: bool, job: Option<JobId>, failed: Failed) -> Result<(), Failed> {
    if json {
        let mut object = json!({ "schema": SCHEMA, "ok": false, "error": failed.message });
        if let (Some(job), Some(object)) = (job, object.as_object_mut()) {
            object.insert("job".to_owned(), json!(job.0));
        }
        print(&format!("{object}\n"))?;
    }
    Err(failed)
}
