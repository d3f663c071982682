//! Ctrl-C and SIGTERM: the first signal requests an orderly end, the second a fast one.
//!
//! This module does not know what ends.

use springtide_cli::exit::{Exit, Failed};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The signals of this process.
pub struct Signals {
    interrupt: Stream,
    terminate: Stream,
}

impl Signals {
    /// Replaces the system's default, which would end the process at once.
    ///
    /// # Errors
    /// The operating system reports an error.
    pub fn take() -> Result<Self, Failed> {
        let failed = |error| Failed::failure(format!("cannot take signals: {error}"));
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    /// Waits for the next signal and returns the exit code for it. Cancel safe.
    pub async fn next(&mut self) -> Exit {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
        }
    }
}

/// The name of a signal in messages.
pub fn word(exit: Exit) -> &'static str {
    if exit == Exit::Terminated { "SIGTERM" } else { "Ctrl-C" }
}
