//! This process: its arbiter, its reaction to panics, and its log.

use springtide_cli::exit::Failed;
use springtide_runtime::config::Level;
use springtide_runtime::guard::{is_in_user_code, note_panic_place};
use tracing_subscriber::EnvFilter;

#[cfg(feature = "command")]
use crate::options::GlobalArgs;

/// Runs a command on this process's main arbiter, which owns its endpoint and the runtime's actors.
///
/// # Errors
/// As the command.
pub fn on_arbiter<T>(command: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    abort_on_panic();
    actix::System::new().block_on(command)
}

/// Runs a command that needs no arbiter, before any arbiter exists.
///
/// # Errors
/// As the command; or the runtime cannot be started.
pub fn on_runtime<T>(command: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = |error| Failed::failure(format!("cannot start the asynchronous runtime: {error}"));
    runtime.map_err(failed)?.block_on(command)
}

/// Aborts the process on a panic of the runtime's own actors, which leaves it in an undefined
/// state; its site then restarts it. These actors live on the main thread. The pool catches panics
/// of tasks, and the caller catches panics of users' code in those actors. Panics of users' actors
/// affect only these. All panics are logged.
fn abort_on_panic() {
    let main = std::thread::current().id();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        note_panic_place(info);
        if std::thread::current().id() == main && !is_in_user_code() {
            usual(info);
            std::process::abort();
        }
        let thread = std::thread::current();
        tracing::warn!("thread {}: {info}", thread.name().unwrap_or("unnamed"));
    }));
}

/// Writes log lines to standard error, of the level of these options.
#[cfg(feature = "command")]
pub fn start_log(global: &GlobalArgs) {
    log_to_stderr(own_level(global), false);
}

#[cfg(feature = "command")]
fn own_level(global: &GlobalArgs) -> Level {
    global.log_level.unwrap_or(match (global.quiet, global.verbose) {
        (true, _) => Level::Error,
        (false, 0 | 1) => Level::Warn,
        (false, 2) => Level::Info,
        (false, _) => Level::Debug,
    })
}

/// Writes log lines of this level to standard error.
pub fn log_to_stderr(level: Level, json: bool) {
    // quinn and rustls log every packet from `debug` on. Datagrams that the system refuses are
    // diagnosed where the peer is not reached.
    let filter = EnvFilter::new(format!("warn,quinn_udp=error,springtide={level}"));
    start_subscriber(filter, json);
}

/// Writes the events of a user's program to standard error: of `RUST_LOG`, or of this level, with
/// warnings of the libraries.
pub fn log_of_users_to_stderr(level: Level) {
    let default = format!("{level},springtide=warn,quinn=warn,rustls=warn,actix=warn,tokio=warn");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    start_subscriber(filter, false);
}

fn start_subscriber(filter: EnvFilter, json: bool) {
    use std::io::IsTerminal;
    let colours = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    // Later calls in one process, as in tests, keep the first subscriber.
    let _ = if json { lines.json().try_init() } else { lines.try_init() };
}
