//! What a stub's batch job runs: a shell script that starts one program after the other in the same allocation.
//!
//! Signals. When Slurm ends a job it sends SIGTERM to all processes of it, the program as well: the script only notes it, for a
//! second one would tell the program to hurry. Who wants the stub to leave in order sends SIGUSR1 to the script alone, which
//! passes one SIGTERM on, however often it is told; SIGALRM has it kill the program. (Slurm's own SIGKILL is no such thing: to a
//! job it is the beginning of an orderly end, and to a script alone it leaves the program behind.) SIGUSR2 says that another program waits to be started: the first ends the
//! present program in order, the second kills it; if that other one has been started meanwhile, neither does anything.
//!
//! Must not know Slurm beyond the number of the job in its environment.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::words::{check_env, quote_os};
use crate::{NodeRequest, ProviderError};

/// The signal for an orderly end.
pub(super) const LEAVE: &str = "USR1";
/// The signal for an end at once.
pub(super) const KILL: &str = "ALRM";
/// The signal for another program in its place.
pub(super) const SWAP: &str = "USR2";

/// What comes after the first program and the files' names.
///
/// The signal for another program is the proof that its file was written. A file system of several machines may still say from
/// memory that there is none: to list the folder makes it look, or some seconds do. File `.next-JOB-N` is the Nth other program; by renaming it the script takes it. Each has a name of its own, so that no file
/// system's memory of an earlier one hides it. `.up-JOB` says that signals are listened to.
const LOOP: &str = r#"
n=1 pid= told= end= swap= started= heard= code=0
pass() {
    if [ -n "$pid" ] && [ -z "$told" ]; then told=1; kill -TERM "$pid" 2>/dev/null; fi
}
leave() { heard=1 end=1; pass; }
finish() { heard=1 end=2; [ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null; }
seen() {
    tries=0
    until [ -e "$base.next-$job-$n" ]; do
        [ "$tries" -lt 10 ] || return 1
        tries=$((tries + 1))
        ls -a "${base%/*}" >/dev/null 2>&1
        [ -e "$base.next-$job-$n" ] || sleep 0.2 2>/dev/null || sleep 1
    done
}
swap() {
    heard=1
    seen || return 0
    if [ "$swap" != "$n" ]; then swap=$n; pass
    elif [ -n "$pid" ]; then kill -KILL "$pid" 2>/dev/null
    fi
}
trap 'heard=1 end=1' TERM
trap leave USR1
trap finish ALRM
trap swap USR2
: >"$base.up-$job"
while [ -z "$end" ]; do
    told=
    if mv -f "$base.next-$job-$n" "$base.ran-$job-$n" 2>/dev/null; then
        n=$((n + 1))
        /bin/sh "$base.ran-$job-$((n - 1))" &
    elif [ -z "$started" ]; then
        first &
    else
        break
    fi
    pid=$! started=1
    if [ "$end" = 2 ]; then finish; elif [ -n "$end" ] || [ "$swap" = "$n" ]; then pass; fi
    heard=
    wait "$pid"
    code=$?
    # A signal ends the wait, not the program. 127: its end was told already.
    while [ -n "$heard" ]; do
        heard=
        wait "$pid"
        again=$?
        [ "$again" -eq 127 ] || code=$again
    done
    pid=
done
rm -f "$base.up-$job" "$base.ran-$job-"*
exit "$code"
"#;

/// The batch script of a stub, whose first program is that of `request`. `base` is what its files' names begin with.
pub(super) fn batch(request: &NodeRequest, base: &Path) -> io::Result<Vec<u8>> {
    let mut script = b"#!/bin/sh\n# A node of a Springtide grid.\nbase=".to_vec();
    script.extend(quote_os(std::path::absolute(base)?.as_os_str()));
    script.extend(b"\njob=$SLURM_JOB_ID\nfirst() { ");
    script.extend(start(request)?);
    script.extend(b"; }\n");
    script.extend(LOOP.as_bytes());
    Ok(script)
}

/// A script that becomes the program of `request`.
pub(super) fn next(request: &NodeRequest) -> io::Result<Vec<u8>> {
    let mut script = start(request)?;
    script.push(b'\n');
    Ok(script)
}

/// The shell's line by which a node starts, in place of the shell. Not with its parent: it is to outlive the head, and ends by itself
/// when that has been gone for long.
fn start(request: &NodeRequest) -> io::Result<Vec<u8>> {
    let mut words: Vec<OsString> = vec!["env".into()];
    for (key, value) in &request.env {
        words.push(format!("{key}={value}").into());
    }
    let program = &request.program;
    if program.as_os_str().as_bytes().contains(&b'=') {
        // That command would take it for one more variable.
        words.extend(["/bin/sh", "-c", "exec \"$0\" \"$@\""].map(OsString::from));
    }
    // A bare name is looked for there, on the path.
    words.push(if program.components().count() > 1 {
        std::path::absolute(program)?.into()
    } else {
        program.into()
    });
    words.extend(["node", "run", "--config"].map(OsString::from));
    words.push(std::path::absolute(&request.config)?.into());
    let mut line = b"exec".to_vec();
    for word in &words {
        line.push(b' ');
        line.extend(quote_os(word));
    }
    line.extend(b" >>");
    line.extend(quote_os(std::path::absolute(&request.log)?.as_os_str()));
    line.extend(b" 2>&1");
    Ok(line)
}

/// Whether a shell can start a node so.
pub(super) fn check(request: &NodeRequest) -> Result<(), ProviderError> {
    check_env(&request.env).map_err(|reason| ProviderError::Start {
        program: request.program.clone(),
        source: io::Error::new(io::ErrorKind::InvalidInput, reason),
    })
}

/// The file for `sbatch` to append to: its own patterns must not be seen in a path. None if there is no way to write it.
pub(super) fn output(log: &Path) -> io::Result<Option<PathBuf>> {
    let log = std::path::absolute(log)?;
    let bytes = log.as_os_str().as_bytes();
    if bytes.contains(&b'\\') {
        return Ok(None);
    }
    let mut pattern = Vec::new();
    for byte in bytes {
        pattern.push(*byte);
        if *byte == b'%' {
            pattern.push(b'%');
        }
    }
    Ok(Some(OsString::from_vec(pattern).into()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// A batch job of a real shell, without Slurm. Ended with the test, whatever comes of that.
    struct ScriptBatch {
        dir: tempfile::TempDir,
        shell: Option<Child>,
    }

    /// A program that says what it is told, and ends when it is told to.
    const LISTENS: &str = "#!/bin/sh\ntrap 'echo told; told=1' TERM\necho \"$GREETING $0 $*\"\n\
        while [ -z \"$told\" ] || [ -e \"$STAY\" ]; do sleep 0.05; done\nexit 3\n";

    impl ScriptBatch {
        fn new() -> Self {
            let dir = tempfile::Builder::new().prefix("it's a \"test\" $HOME ").tempdir().unwrap();
            Self { dir, shell: None }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn request(&self, greeting: &str) -> NodeRequest {
            let program = self.path("a=b program");
            // By a process of its own: a file that is open for writing in this one cannot be run.
            let made = Command::new("sh")
                .args(["-c", "printf %s \"$1\" >\"$0\" && chmod +x \"$0\""])
                .args([program.as_os_str(), OsStr::new(LISTENS)])
                .status();
            assert!(made.unwrap().success());
            let stay = self.path("stay").to_str().unwrap().to_owned();
            let env =
                [("GREETING", greeting.to_owned()), ("STAY", stay), ("QUOTE", "'".to_owned())];
            NodeRequest {
                node: "vu-1".into(),
                program,
                config: self.path("vu-1's.toml"),
                log: self.path("log %j"),
                env: env.map(|(key, value)| (key.to_owned(), value)).to_vec(),
                threads: 1,
            }
        }

        fn start(&mut self) {
            let request = self.request("it's \"$HOME\"");
            let script = self.path("script");
            fs::write(&script, batch(&request, &request.config).unwrap()).unwrap();
            let mut command = Command::new("sh");
            command.arg(&script).env("SLURM_JOB_ID", "7").stdin(Stdio::null());
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            self.shell = Some(command.spawn().unwrap());
        }

        fn signal(&self, signal: &str, group: bool) {
            let pid = self.shell.as_ref().unwrap().id();
            let whom = if group { format!("-{pid}") } else { pid.to_string() };
            let mut kill = Command::new("kill");
            // An error: it has ended.
            let _ = kill.args([signal, "--", &whom]).stderr(Stdio::null()).status();
        }

        fn log(&self) -> String {
            fs::read_to_string(self.path("log %j")).unwrap_or_default()
        }

        fn told(&self) -> usize {
            self.log().matches("told").count()
        }

        fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
            let begun = Instant::now();
            while !is(self) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {}", self.log());
                std::thread::sleep(Duration::from_millis(10));
            }
        }

        fn runs(&self, greeting: &str) {
            self.until(greeting, |batch| batch.log().contains(greeting));
        }

        fn next(&self, n: u32, greeting: &str) {
            let to = self.path(&format!("vu-1's.toml.next-7-{n}"));
            fs::write(to, next(&self.request(greeting)).unwrap()).unwrap();
        }

        fn code(&mut self) -> Option<i32> {
            self.shell.as_mut().unwrap().wait().unwrap().code()
        }
    }

    impl Drop for ScriptBatch {
        fn drop(&mut self) {
            if self.shell.is_none() {
                return;
            }
            self.signal("-KILL", true);
            if let Some(shell) = &mut self.shell {
                let _ = shell.wait();
            }
        }
    }

    #[test]
    fn one_order_to_leave_is_passed_on_and_the_exit_code_is_the_programs() {
        let mut batch = ScriptBatch::new();
        fs::write(batch.path("stay"), "").unwrap();
        batch.start();
        batch.runs("it's \"$HOME\" ");
        let config = batch.path("vu-1's.toml");
        assert!(batch.log().contains(&format!(" node run --config {}\n", config.display())));
        assert!(batch.path("vu-1's.toml.up-7").exists());
        batch.signal("-USR1", false);
        batch.until("told", |batch| batch.told() == 1);
        batch.signal("-USR1", false);
        std::thread::sleep(Duration::from_millis(200));
        fs::remove_file(batch.path("stay")).unwrap();
        assert_eq!(batch.code(), Some(3));
        assert_eq!(batch.told(), 1);
        assert!(!batch.path("vu-1's.toml.up-7").exists());
    }

    #[test]
    fn who_does_not_listen_is_killed() {
        let mut batch = ScriptBatch::new();
        fs::write(batch.path("stay"), "").unwrap();
        batch.start();
        batch.runs("it's");
        batch.signal("-ALRM", false);
        assert_eq!(batch.code(), Some(128 + 9));
        assert_eq!(batch.told(), 0);
    }

    #[test]
    fn what_slurm_tells_all_processes_is_not_told_twice() {
        let mut batch = ScriptBatch::new();
        batch.start();
        batch.runs("it's");
        batch.next(1, "another");
        batch.signal("-TERM", true);
        assert_eq!(batch.code(), Some(3));
        assert_eq!(batch.told(), 1);
        // A job that ends begins nothing.
        assert!(!batch.log().contains("another"));
    }

    #[test]
    fn another_program_takes_its_place_and_another() {
        let mut batch = ScriptBatch::new();
        batch.start();
        batch.runs("it's");
        // Nothing waits to be started: nothing happens.
        batch.signal("-USR2", false);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(batch.told(), 0);
        // It was only not seen yet: the signal is not lost.
        batch.next(1, "second");
        batch.runs("second");
        assert_eq!(batch.told(), 1);
        // The third does not get the second to end in order.
        fs::write(batch.path("stay"), "").unwrap();
        batch.next(2, "third");
        batch.signal("-USR2", false);
        batch.until("told", |batch| batch.told() == 2);
        batch.signal("-USR2", false);
        batch.runs("third");
        fs::remove_file(batch.path("stay")).unwrap();
        batch.signal("-USR1", false);
        assert_eq!(batch.code(), Some(3));
        assert!(!batch.path("vu-1's.toml.ran-7-1").exists());
    }

    #[test]
    fn one_that_waits_from_the_start_comes_first() {
        let mut batch = ScriptBatch::new();
        batch.next(1, "second");
        batch.start();
        batch.runs("second");
        assert!(!batch.log().contains("it's \"$HOME\" "), "{}", batch.log());
        batch.signal("-USR1", false);
        assert_eq!(batch.code(), Some(3));
    }

    #[test]
    fn patterns_of_sbatch_are_not_seen_in_paths() {
        let doubled = output(Path::new("/a b/%j/log")).unwrap();
        assert_eq!(doubled, Some("/a b/%%j/log".into()));
        assert_eq!(output(Path::new("/a\\b/log")).unwrap(), None);
    }
}
