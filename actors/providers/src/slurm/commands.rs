//! Slurm's commands as processes: bounded in time, in what is read of them, and in how many run at once.
//!
//! Must not know what they are asked, nor what their answers mean.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::Builder;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::ProviderError;

/// So many commands at once: hundreds of processes would be slower than their queue, here and at Slurm's controller.
const AT_ONCE: usize = 8;
/// Longest answer, in bytes: some ten thousands of jobs.
const ANSWER_MAX: u64 = 8 << 20;
/// So much of the end of what is written on standard error is shown, in bytes.
const SAID_MAX: usize = 600;
/// What stays of the variables that Slurm's commands read: where the controller is, and how one proves who one is. All others change
/// what is printed or asked for, be it the user's taste or those of a batch job that the head runs in.
const KEPT: [&str; 4] = ["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_KEY"];
/// Begin what the commands read.
const READ: [&str; 6] = ["SLURM", "SBATCH", "SQUEUE", "SINFO", "SCANCEL", "SCONTROL"];

/// Runs Slurm's commands.
pub(super) struct Commands {
    conf: Option<PathBuf>,
    dir: Option<PathBuf>,
    within: Duration,
    turns: Semaphore,
}

impl Commands {
    pub fn new(conf: Option<PathBuf>, dir: Option<PathBuf>, within: Duration) -> Self {
        Self { conf, dir, within, turns: Semaphore::new(AT_ONCE) }
    }

    /// Runs one and returns what it wrote on standard output.
    pub async fn run(
        &self,
        name: &str,
        args: &[OsString],
        input: &[u8],
    ) -> Result<String, ProviderError> {
        // It is never closed, so an error, which would only let more run at once, does not come.
        let _turn = self.turns.acquire().await;
        let mut command = tokio::process::Command::from(self.command(name, args));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let shown = shown(name, args);
        let failed = |source| ProviderError::Start { program: self.program(name), source };
        let mut child = command.spawn().map_err(failed)?;
        // Dropped before the child, whose number is nobody else's until then.
        let mut group = CommandProcesses(child.id());
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let work = async {
            let write = async {
                if let Some(mut stdin) = stdin {
                    // Who does not read it says why by the way it ends.
                    let _ = stdin.write_all(input).await;
                }
            };
            let ((), out, said) = tokio::join!(write, head(stdout), tail(stderr));
            child.wait().await.map(|status| (status, out, said))
        };
        let (status, out, said) = match timeout(self.within, work).await {
            Ok(done) => {
                group.0 = None;
                done.map_err(failed)?
            }
            // What is dropped is killed.
            Err(_) => return Err(ProviderError::Timeout { command: shown, after: self.within }),
        };
        if !status.success() {
            let said = if said.is_empty() { tail_of(out.as_bytes()) } else { said };
            return Err(ProviderError::Failed { command: shown, how: status.to_string(), said });
        }
        if out.len() as u64 > ANSWER_MAX {
            let said = out.lines().next().unwrap_or_default().chars().take(200).collect();
            let reason = format!("it is longer than {ANSWER_MAX} bytes");
            return Err(ProviderError::Unintelligible { command: shown, said, reason });
        }
        Ok(out)
    }

    /// Starts one and waits for nothing: for when there is no time left, or nobody who could wait.
    pub fn start(&self, name: &str, args: &[OsString]) {
        let mut command = self.command(name, args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            // A thread, for there may be no executor any more: who is never waited for stays in the list of processes.
            Ok(mut child) => drop(Builder::new().spawn(move || child.wait())),
            Err(error) => tracing::warn!("cannot start {}: {error}", shown(name, args)),
        }
    }

    fn program(&self, name: &str) -> PathBuf {
        self.dir.as_ref().map_or_else(|| name.into(), |dir| dir.join(name))
    }

    fn command(&self, name: &str, args: &[OsString]) -> std::process::Command {
        use std::os::unix::process::CommandExt;

        let mut command = std::process::Command::new(self.program(name));
        command.args(args);
        for (key, _) in std::env::vars_os() {
            let text = key.to_string_lossy();
            if READ.iter().any(|start| text.starts_with(start)) && !KEPT.contains(&text.as_ref()) {
                command.env_remove(&key);
            }
        }
        // What sbatch has in its environment is the job's, and numbers are all that is read of its answer.
        if name != "sbatch" {
            command.env("LC_ALL", "C").env_remove("LANGUAGE");
        }
        if let Some(conf) = &self.conf {
            command.env("SLURM_CONF", conf);
        }
        // Ctrl-C on the terminal is the head's, which needs its commands to end in order.
        command.process_group(0);
        command
    }
}

/// The processes of a command that has not ended: killed when this is dropped. A site's wrapper of a command is a script, and what
/// hangs is what that has started.
struct CommandProcesses(Option<u32>);

impl Drop for CommandProcesses {
    fn drop(&mut self) {
        let Some(pid) = self.0 else { return };
        let mut kill = std::process::Command::new("kill");
        kill.args(["-KILL", "--", &format!("-{pid}")]);
        kill.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // It waits for nothing. Where there is no such command, the process that was started is killed all the same.
        let _ = kill.status();
    }
}

/// A command as one would type it.
pub(super) fn shown(name: &str, args: &[OsString]) -> String {
    let mut text = name.to_owned();
    for arg in args {
        let arg = arg.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:@%+".contains(c);
        if !arg.is_empty() && arg.chars().all(plain) {
            text.extend([" ", &arg])
        } else {
            text.extend([" '", &arg.replace('\'', "'\\''"), "'"])
        }
    }
    text
}

/// What is read, up to one byte more than is allowed.
async fn head(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // What was read until an error is judged as it is.
        let _ = (&mut from).take(ANSWER_MAX + 1).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The end of what is read.
async fn tail(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut last = VecDeque::new();
    if let Some(mut from) = from {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut piece).await {
            last.extend(&piece[..n]);
            last.drain(..last.len().saturating_sub(SAID_MAX));
        }
    }
    tail_of(last.make_contiguous())
}

fn tail_of(bytes: &[u8]) -> String {
    let last = &bytes[bytes.len().saturating_sub(SAID_MAX)..];
    String::from_utf8_lossy(last).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_only_started_is_no_zombie() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("pid");
        let commands = Commands::new(Some(conf.clone()), Some("/bin".into()), Duration::MAX);
        let args = ["-c", "echo $$ >\"$SLURM_CONF.new\"; mv \"$SLURM_CONF.new\" \"$SLURM_CONF\""];
        commands.start("sh", &args.map(OsString::from));
        let begun = std::time::Instant::now();
        let left = || {
            assert!(begun.elapsed() < Duration::from_secs(60), "it stays");
            std::thread::sleep(Duration::from_millis(10));
            let pid = fs::read_to_string(&conf).unwrap_or_default();
            pid.is_empty() || fs::metadata(format!("/proc/{}", pid.trim())).is_ok()
        };
        while left() {}
    }
}
