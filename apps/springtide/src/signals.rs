//! Ctrl-C and SIGTERM: the first asks for an orderly end, the second for a quick one.
//!
//! Must not know what is ended.

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::exit::{Exit, Failed};

/// The signals of this process.
pub struct Signals {
    interrupt: Stream,
    terminate: Stream,
}

impl Signals {
    /// Takes them over from the system's default, which would end the process at once.
    ///
    /// # Errors
    /// The system refuses.
    pub fn take() -> Result<Self, Failed> {
        let failed = |error| Failed::failure(format!("cannot take signals: {error}"));
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
        })
    }

    /// Waits for the next one: what the process is to end with. May be dropped and called again.
    pub async fn next(&mut self) -> Exit {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => Exit::Interrupted,
            _ = self.terminate.recv() => Exit::Terminated,
        }
    }
}

/// What is said of it.
pub fn word(exit: Exit) -> &'static str {
    if exit == Exit::Terminated { "SIGTERM" } else { "Ctrl-C" }
}
