//! The script of a stub's batch job: it runs one program after another in the same allocation.
//!
//! SIGUSR1 to the script ends the program in order: it becomes one SIGTERM, however often it comes.
//! SIGALRM kills the program. The first SIGUSR2 ends the program in order and starts the next one,
//! the second kills the program; once the next one has started, neither does anything. Batch
//! systems that cannot signal a script write the signal to a file, which the script reads each
//! second.
//!
//! A batch system that ends a job sends SIGTERM to all its processes. The script does not pass it
//! on, for a second one makes the program end at once. Slurm's own SIGKILL is not a substitute: to
//! a job it begins an orderly end, and to a script it leaves the program behind.
//!
//! This module does not know the batch system.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use super::files::StubFiles;
use crate::words::{check_env, quote, quote_os};
use crate::{NodeRequest, ProviderError};

/// The signal for an orderly end.
pub(super) const LEAVE: &str = "USR1";
/// The signal for an end at once.
pub(super) const KILL: &str = "ALRM";
/// The signal for the next program.
pub(super) const SWAP: &str = "USR2";

/// The functions and traps of the script.
///
/// Variables begin with `_st`: others may be exported, and would change the program's environment.
/// File `.next-TOKEN-N` is the Nth further program. The script renames it when it starts it. Each
/// has its own name, so that the cache of a network file system does not hide it. After the signal
/// the file exists, even if the cache says that it does not: to list the directory, or to wait,
/// refreshes the cache.
const FUNCTIONS: &str = r#"
_st_n=1 _st_pid= _st_passed= _st_end= _st_swap= _st_started= _st_signal= _st_code=0 _st_watch=
_st_pass() {
    if [ -n "$_st_pid" ] && [ -z "$_st_passed" ]; then
        _st_passed=1
        kill -TERM "$_st_pid" 2>/dev/null
    fi
}
_st_leave() { _st_signal=1 _st_end=1; _st_pass; }
_st_kill() { _st_signal=1 _st_end=2; [ -z "$_st_pid" ] || kill -KILL "$_st_pid" 2>/dev/null; }
_st_exists() {
    _st_tries=0
    until [ -e "$_st_base.next-$_st_job-$_st_n" ]; do
        [ "$_st_tries" -lt 10 ] || return 1
        _st_tries=$((_st_tries + 1))
        ls -a "${_st_base%/*}" >/dev/null 2>&1
        [ -e "$_st_base.next-$_st_job-$_st_n" ] || sleep 0.2 2>/dev/null || sleep 1
    done
}
_st_next() {
    _st_signal=1
    _st_exists || return 0
    if [ "$_st_swap" != "$_st_n" ]; then _st_swap=$_st_n; _st_pass
    elif [ -n "$_st_pid" ]; then kill -KILL "$_st_pid" 2>/dev/null
    fi
}
_st_exit() {
    [ -z "$_st_watch" ] || kill "$_st_watch" 2>/dev/null
    echo "$1" >"$_st_base.exit-$_st_job.new"
    mv -f "$_st_base.exit-$_st_job.new" "$_st_base.exit-$_st_job"
    rm -f "$_st_base.up-$_st_job" "$_st_base.order-$_st_job" "$_st_base.script-$_st_job" \
        "$_st_base.ran-$_st_job-"*
    exit "$1"
}
trap '_st_signal=1 _st_end=1' TERM
trap _st_leave USR1
trap _st_kill ALRM
trap _st_next USR2
"#;

/// Reads signals from a file. Opening the directory refreshes the cache of a network file system.
const WATCH: &str = r#"
_st_read() {
    while kill -0 $$ 2>/dev/null; do
        { : <"${_st_base%/*}"; } 2>/dev/null
        if mv -f "$_st_base.order-$_st_job" "$_st_base.ran-$_st_job-order" 2>/dev/null; then
            read -r _st_word <"$_st_base.ran-$_st_job-order"
            case $_st_word in
            USR1 | USR2 | ALRM) kill -s "$_st_word" $$ ;;
            esac
        fi
        sleep 1
    done
}
_st_read </dev/null >/dev/null 2>&1 &
_st_watch=$!
"#;

/// Runs the programs.
const LOOP: &str = r#"
: >"$_st_base.up-$_st_job"
while [ -z "$_st_end" ]; do
    _st_passed=
    if mv -f "$_st_base.next-$_st_job-$_st_n" "$_st_base.ran-$_st_job-$_st_n" 2>/dev/null; then
        _st_n=$((_st_n + 1))
        /bin/sh "$_st_base.ran-$_st_job-$((_st_n - 1))" &
    elif [ -z "$_st_started" ]; then
        _st_first &
    else
        break
    fi
    _st_pid=$! _st_started=1
    if [ "$_st_end" = 2 ]; then _st_kill
    elif [ -n "$_st_end" ] || [ "$_st_swap" = "$_st_n" ]; then _st_pass
    fi
    _st_signal=
    wait "$_st_pid"
    _st_code=$?
    # A signal ends the wait, not the program. 127: its end is known already.
    while [ -n "$_st_signal" ]; do
        _st_signal=
        wait "$_st_pid"
        _st_again=$?
        [ "$_st_again" -eq 127 ] || _st_code=$_st_again
    done
    _st_pid=
done
_st_exit "$_st_code"
"#;

/// The batch script of a stub, whose first program is that of `request`.
///
/// The commands of `prologue` run before it. `reads_signals`: it reads signals from a file.
pub(super) fn batch(
    request: &NodeRequest,
    files: &StubFiles,
    prologue: &[String],
    reads_signals: bool,
) -> io::Result<Vec<u8>> {
    let mut script = b"#!/bin/sh\n# A node of a Springtide grid.\n_st_base=".to_vec();
    script.extend(quote_os(std::path::absolute(&files.base)?.as_os_str()));
    script.extend(format!("\n_st_job={}\n_st_first() {{ ", quote(&files.token)).bytes());
    script.extend(start(request)?);
    script.extend(b"; }\n");
    script.extend(FUNCTIONS.bytes());
    for command in prologue {
        let failed = quote(&format!("springtide: the prologue failed: {command}"));
        let check = format!("[ $? -eq 0 ] || {{ echo {failed} >&2; _st_exit 1; }}");
        script.extend(format!("{command}\n{check}\n").bytes());
    }
    if reads_signals {
        script.extend(WATCH.bytes());
    }
    script.extend(LOOP.bytes());
    Ok(script)
}

/// A script that becomes the program of `request`.
pub(super) fn next(request: &NodeRequest) -> io::Result<Vec<u8>> {
    let mut script = start(request)?;
    script.push(b'\n');
    Ok(script)
}

/// The line of a shell that becomes a node. The node outlives the head, and ends by itself when the
/// head stays away.
fn start(request: &NodeRequest) -> io::Result<Vec<u8>> {
    let mut words: Vec<OsString> = vec!["env".into()];
    for (key, value) in &request.env {
        words.push(format!("{key}={value}").into());
    }
    let program = &request.program;
    if program.as_os_str().as_bytes().contains(&b'=') {
        // `env` would take it for a variable.
        words.extend(["/bin/sh", "-c", "exec \"$0\" \"$@\""].map(OsString::from));
    }
    // The shell looks for a bare name on its search path.
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

/// Checks that a shell can start this node.
pub(super) fn check(request: &NodeRequest) -> Result<(), ProviderError> {
    check_env(&request.env).map_err(|reason| ProviderError::Start {
        program: request.program.clone(),
        source: io::Error::new(io::ErrorKind::InvalidInput, reason),
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// A batch job of a real shell, without a batch system. It ends with the test, also if that
    /// fails.
    struct ScriptRun {
        dir: tempfile::TempDir,
        shell: Option<Child>,
        prologue: Vec<String>,
        reads_signals: bool,
    }

    /// A program that reports SIGTERM, and ends then unless a file exists.
    const LISTENS: &str = "#!/bin/sh\ntrap 'echo term; term=1' TERM\necho \"$GREETING $0 $*\"\n\
        while [ -z \"$term\" ] || [ -e \"$STAY\" ]; do sleep 0.05; done\nexit 3\n";

    impl ScriptRun {
        fn new() -> Self {
            let dir = tempfile::Builder::new().prefix("it's a \"test\" $HOME ").tempdir().unwrap();
            Self { dir, shell: None, prologue: Vec::new(), reads_signals: false }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn files(&self) -> StubFiles {
            StubFiles { base: self.path("vu-1's.toml"), token: "7".to_owned() }
        }

        fn request(&self, greeting: &str) -> NodeRequest {
            let program = self.path("a=b program");
            // By another process: a file that is open for writing in this one cannot be run.
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
                host: None,
                shipped: None,
            }
        }

        fn start(&mut self) {
            let request = self.request("it's \"$HOME\"");
            let text = batch(&request, &self.files(), &self.prologue, self.reads_signals).unwrap();
            let script = self.path("script");
            fs::write(&script, text).unwrap();
            let mut command = Command::new("sh");
            command.arg(&script).stdin(Stdio::null()).stderr(Stdio::null());
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            self.shell = Some(command.spawn().unwrap());
        }

        fn signal(&self, signal: &str, group: bool) {
            let pid = self.shell.as_ref().unwrap().id();
            let target = if group { format!("-{pid}") } else { pid.to_string() };
            let mut kill = Command::new("kill");
            // A process that has ended is not an error.
            let _ = kill.args([signal, "--", &target]).stderr(Stdio::null()).status();
        }

        fn log(&self) -> String {
            fs::read_to_string(self.path("log %j")).unwrap_or_default()
        }

        fn terms(&self) -> usize {
            self.log().matches("term\n").count()
        }

        fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
            let begun = Instant::now();
            while !is(self) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {}", self.log());
                std::thread::sleep(Duration::from_millis(10));
            }
        }

        fn runs(&self, greeting: &str) {
            self.until(greeting, |run| run.log().contains(greeting));
        }

        fn next(&self, n: u32, greeting: &str) {
            fs::write(self.files().next(n), next(&self.request(greeting)).unwrap()).unwrap();
        }

        fn code(&mut self) -> Option<i32> {
            self.shell.as_mut().unwrap().wait().unwrap().code()
        }

        fn exit(&self) -> String {
            self.files().exit_status().map(|exit| exit.to_string()).unwrap_or_default()
        }
    }

    impl Drop for ScriptRun {
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
    fn an_order_to_leave_is_passed_on_once() {
        let mut run = ScriptRun::new();
        fs::write(run.path("stay"), "").unwrap();
        run.start();
        run.runs("it's \"$HOME\" ");
        let config = run.path("vu-1's.toml");
        assert!(run.log().contains(&format!(" node run --config {}\n", config.display())));
        assert!(run.files().up().exists());
        run.signal("-USR1", false);
        run.until("SIGTERM", |run| run.terms() == 1);
        run.signal("-USR1", false);
        std::thread::sleep(Duration::from_millis(200));
        fs::remove_file(run.path("stay")).unwrap();
        assert_eq!(run.code(), Some(3));
        assert_eq!((run.terms(), run.exit().as_str()), (1, "exit status: 3"));
        assert!(!run.files().up().exists());
    }

    #[test]
    fn a_program_that_stays_is_killed() {
        let mut run = ScriptRun::new();
        fs::write(run.path("stay"), "").unwrap();
        run.start();
        run.runs("it's");
        run.signal("-ALRM", false);
        assert_eq!(run.code(), Some(128 + 9));
        assert_eq!((run.terms(), run.exit().as_str()), (0, "signal: 9"));
    }

    #[test]
    fn signals_come_by_a_file() {
        let mut run = ScriptRun::new();
        run.reads_signals = true;
        run.start();
        run.runs("it's");
        super::super::files::write(&run.files().order(), b"USR1\n").unwrap();
        assert_eq!(run.code(), Some(3));
        assert_eq!(run.terms(), 1);
        let left = fs::read_dir(run.dir.path()).unwrap();
        let left = left.filter(|file| file.as_ref().unwrap().path() != run.path("script"));
        assert_eq!(left.count(), 3, "the program, its log and its exit status");
    }

    #[test]
    fn a_prologue_prepares_the_environment_or_ends_the_job() {
        let prologue = |command: &str| vec!["export GREET=it".to_owned(), command.to_owned()];
        let mut run = ScriptRun::new();
        run.prologue = prologue("[ $GREET = it ]");
        run.start();
        run.runs("it's");
        run.signal("-USR1", false);
        assert_eq!(run.code(), Some(3));
        let mut run = ScriptRun::new();
        run.prologue = prologue("false # it's");
        run.start();
        assert_eq!(run.code(), Some(1));
        assert_eq!((run.log().as_str(), run.exit().as_str()), ("", "exit status: 1"));
    }

    #[test]
    fn a_signal_to_all_processes_is_not_repeated() {
        let mut run = ScriptRun::new();
        run.start();
        run.runs("it's");
        run.next(1, "another");
        run.signal("-TERM", true);
        assert_eq!(run.code(), Some(3));
        assert_eq!(run.terms(), 1);
        // A job that ends starts no program.
        assert!(!run.log().contains("another"));
    }

    #[test]
    fn further_programs_take_their_turns() {
        let mut run = ScriptRun::new();
        run.start();
        run.runs("it's");
        // No program waits, so that the signal has no effect.
        run.signal("-USR2", false);
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(run.terms(), 0);
        // The program becomes visible late. The signal is not lost.
        run.next(1, "second");
        run.runs("second");
        assert_eq!(run.terms(), 1);
        // The second does not end in order.
        fs::write(run.path("stay"), "").unwrap();
        run.next(2, "third");
        run.signal("-USR2", false);
        run.until("SIGTERM", |run| run.terms() == 2);
        run.signal("-USR2", false);
        run.runs("third");
        fs::remove_file(run.path("stay")).unwrap();
        run.signal("-USR1", false);
        assert_eq!(run.code(), Some(3));
        assert!(!run.files().taken(1).exists());
    }

    #[test]
    fn a_program_that_waits_from_the_start_comes_first() {
        let mut run = ScriptRun::new();
        run.next(1, "second");
        run.start();
        run.runs("second");
        assert!(!run.log().contains("it's \"$HOME\" "), "{}", run.log());
        run.signal("-USR1", false);
        assert_eq!(run.code(), Some(3));
    }
}
