//! Commands of a batch system as processes: limited in time, output and number.
//!
//! This module does not know the meaning of the commands.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::Builder;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::system::{CommandLine, UnsetVariables};
use crate::ProviderError;

/// The maximum number of simultaneous commands. Hundreds of processes are slower than a queue of
/// them, here and at the batch system.
const COMMANDS_MAX: usize = 8;
/// The longest output, in bytes: that of some ten thousand jobs.
const OUTPUT_MAX: u64 = 8 << 20;
/// The length of the shown end of the error output, in bytes.
const ERROR_MAX: usize = 600;
/// The longest line of output that an error shows, in characters.
const LINE_MAX: usize = 200;

/// Runs the commands of a batch system.
pub(super) struct CommandRunner {
    /// The directory of the commands; none: the search path.
    dir: Option<PathBuf>,
    variables: BTreeMap<String, String>,
    unset: UnsetVariables,
    timeout: Duration,
    permits: Semaphore,
}

impl CommandRunner {
    pub fn new(
        dir: Option<PathBuf>,
        variables: BTreeMap<String, String>,
        unset: UnsetVariables,
        timeout: Duration,
    ) -> Self {
        Self { dir, variables, unset, timeout, permits: Semaphore::new(COMMANDS_MAX) }
    }

    /// Runs a command and returns its standard output.
    pub async fn run(&self, line: &CommandLine) -> Result<String, ProviderError> {
        // The semaphore is never closed. An error would only permit more commands.
        let _permit = self.permits.acquire().await;
        let mut command = tokio::process::Command::from(self.command(line));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let failed = |source| ProviderError::Start { program: self.program(line), source };
        let mut child = command.spawn().map_err(failed)?;
        // Dropped before the child, which keeps its number until then.
        let mut group = ProcessGroup(child.id());
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let work = async {
            let write = async {
                if let Some(mut stdin) = stdin {
                    // A command that does not read its input reports the reason by its end.
                    let _ = stdin.write_all(&line.input).await;
                }
            };
            let ((), output, errors) = tokio::join!(write, head(stdout), tail(stderr));
            child.wait().await.map(|status| (status, output, errors))
        };
        let Ok(done) = timeout(self.timeout, work).await else {
            // The dropped group is killed.
            let (command, after) = (line.to_string(), self.timeout);
            return Err(ProviderError::Timeout { command, after });
        };
        group.0 = None;
        let (status, output, errors) = done.map_err(failed)?;
        if !status.success() {
            let said = if errors.is_empty() { tail_of(output.as_bytes()) } else { errors };
            let (command, how) = (line.to_string(), status.to_string());
            return Err(ProviderError::Failed { command, how, said });
        }
        if output.len() as u64 > OUTPUT_MAX {
            let said = output.lines().next().unwrap_or_default().chars().take(LINE_MAX).collect();
            let reason = format!("it is longer than {OUTPUT_MAX} bytes");
            return Err(ProviderError::Unintelligible { command: line.to_string(), said, reason });
        }
        Ok(output)
    }

    /// Starts a command and does not wait: at the end of the process, or without an executor.
    pub fn start(&self, line: &CommandLine) {
        let mut command = self.command(line);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            // By a thread, for there may be no executor. Without a wait it would become a zombie.
            Ok(mut child) => drop(Builder::new().spawn(move || child.wait())),
            Err(error) => tracing::warn!("cannot start {line}: {error}"),
        }
    }

    fn program(&self, line: &CommandLine) -> PathBuf {
        let name = line.words.first().map(PathBuf::from).unwrap_or_default();
        self.dir.as_ref().map_or_else(|| name.clone(), |dir| dir.join(&name))
    }

    fn command(&self, line: &CommandLine) -> std::process::Command {
        use std::os::unix::process::CommandExt;

        let mut command = std::process::Command::new(self.program(line));
        command.args(line.words.iter().skip(1));
        for (key, _) in std::env::vars_os() {
            let name = key.to_string_lossy();
            let is_unset = self.unset.prefixes.iter().any(|prefix| name.starts_with(prefix));
            if is_unset && !self.unset.except.iter().any(|kept| *kept == name) {
                command.env_remove(&key);
            }
        }
        // The environment of a submission becomes that of the job, and only numbers are read of its
        // output.
        if !line.is_submission {
            command.env("LC_ALL", "C").env_remove("LANGUAGE");
        }
        command.envs(&self.variables);
        // The head handles Ctrl-C of the terminal, and needs its commands for an orderly end.
        command.process_group(0);
        command
    }
}

/// The processes of a command that has not ended, killed on drop. A site's wrapper of a command is
/// a script, and the program that hangs is a child of it.
struct ProcessGroup(Option<u32>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        let Some(pid) = self.0 else { return };
        let mut kill = std::process::Command::new("kill");
        kill.args(["-KILL", "--", &format!("-{pid}")]);
        kill.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ends at once. Without this program, the command itself is killed all the same.
        let _ = kill.status();
    }
}

/// Reads up to one byte more than is allowed.
async fn head(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // After an error, the bytes until then are judged.
        let _ = (&mut from).take(OUTPUT_MAX + 1).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads all and returns the end.
async fn tail(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut last = VecDeque::new();
    if let Some(mut from) = from {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut piece).await {
            last.extend(&piece[..n]);
            last.drain(..last.len().saturating_sub(ERROR_MAX));
        }
    }
    tail_of(last.make_contiguous())
}

fn tail_of(bytes: &[u8]) -> String {
    let last = &bytes[bytes.len().saturating_sub(ERROR_MAX)..];
    String::from_utf8_lossy(last).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_started_command_leaves_no_zombie() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let variables = [("PID_FILE".to_owned(), file.display().to_string())].into();
        let (unset, dir) = (UnsetVariables::default(), Some("/bin".into()));
        let runner = CommandRunner::new(dir, variables, unset, Duration::MAX);
        let script = "echo $$ >\"$PID_FILE.new\"; mv \"$PID_FILE.new\" \"$PID_FILE\"";
        let words = ["sh", "-c", script].map(Into::into).to_vec();
        runner.start(&CommandLine { words, ..CommandLine::default() });
        let begun = std::time::Instant::now();
        let exists = || {
            assert!(begun.elapsed() < Duration::from_secs(60), "it stays");
            std::thread::sleep(Duration::from_millis(10));
            let pid = fs::read_to_string(&file).unwrap_or_default();
            pid.is_empty() || fs::metadata(format!("/proc/{}", pid.trim())).is_ok()
        };
        while exists() {}
    }
}
