//! Standard output of a command.

use serde_json::json;
use springtide_runtime::id::JobId;

use crate::exit::Failed;
use crate::format::SCHEMA;

/// Prints data to standard output in one piece.
///
/// # Errors
/// It cannot be written. A closed pipe is not a failure.
pub fn print(text: &str) -> Result<(), Failed> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        // The reader has closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => {
            other.map_err(|error| Failed::failure(format!("cannot write the result: {error}")))
        }
    }
}

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
