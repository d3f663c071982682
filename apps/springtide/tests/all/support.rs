//! Runs the program and inspects its effects.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use springtide_judge::{Expectation, judge_dir};

/// Longer than any step takes on a working host.
pub const LONG: Duration = Duration::from_secs(120);

/// The end of a command.
pub struct CommandOutput {
    /// The exit code; none after a signal.
    pub code: Option<i32>,
    /// The text on standard output.
    pub out: String,
    /// The text on standard error.
    pub err: String,
}

/// The program with these arguments, without variables of the caller's environment that concern it.
pub fn program(line: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_springtide"));
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("SPRINGTIDE_")) {
        command.env_remove(key);
    }
    command.args(line).stdin(Stdio::null()).env("NO_COLOR", "1").env_remove("RUST_LOG");
    command
}

/// Runs the program to its end.
pub fn run(line: &[&str]) -> CommandOutput {
    finish(program(line))
}

/// Starts a program that a test may just have written. Until the children that other tests start at
/// that moment execute their own programs, they have this one's file open for writing.
fn retry_busy<T>(mut start: impl FnMut() -> io::Result<T>) -> T {
    let begin = Instant::now();
    loop {
        match start() {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy && begin.elapsed() < LONG =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            started => return started.expect("the program starts"),
        }
    }
}

/// Runs a command to its end.
pub fn finish(mut command: Command) -> CommandOutput {
    let out = retry_busy(|| command.output());
    CommandOutput {
        code: out.status.code(),
        out: String::from_utf8(out.stdout).expect("text"),
        err: String::from_utf8(out.stderr).expect("text"),
    }
}

/// A program in the background; killed when the test ends.
pub struct RunningCommand(pub Child);

impl RunningCommand {
    /// Starts it with output to `stdout.log` and `stderr.log` in `dir`.
    pub fn start(mut command: Command, dir: &Path) -> Self {
        let log = std::fs::File::create(dir.join("stderr.log")).unwrap();
        let out = std::fs::File::create(dir.join("stdout.log")).unwrap();
        command.stderr(log).stdout(out);
        Self(retry_busy(|| command.spawn()))
    }

    /// Sends the program a signal, such as `TERM`.
    pub fn signal(&self, signal: &str) {
        kill(self.0.id(), signal);
    }

    /// Waits for the program's end.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < LONG {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a process a signal.
pub fn kill(pid: u32, signal: &str) {
    let killed = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(killed.expect("kill is there").success(), "process {pid}");
}

/// Waits until a condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The processes started with a config below `dir`, by node name.
pub fn nodes(dir: &Path) -> Vec<(String, u32)> {
    let start = format!("{}/", dir.join("node").display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        let config = line.split('\0').find_map(|word| word.strip_prefix(&start));
        if let Some(node) = config.and_then(|config| config.strip_suffix("/node.toml")) {
            found.push((node.to_owned(), pid));
        }
    }
    found.sort();
    found
}

/// Judges the logs of a run or a grid.
pub fn assert_sound(dir: &Path) {
    let verdict = judge_dir(dir, &Expectation::default()).unwrap();
    assert!(verdict.faults.is_empty(), "{}: {verdict}", dir.display());
}

/// The text of an existing file, or of all files below a directory.
pub fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
