//! Standard output of a command.

use crate::exit::Failed;

/// Prints data to standard output in one piece.
///
/// # Errors
/// It cannot be written. A closed pipe is no failure.
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
