//! Nodes as child processes of this one.
//!
//! No node outlives its launcher. The node's standard input is the reading end of a pipe whose only
//! writing end is here. When this process ends in any way, the pipe closes, and the node ends.
//! Nodes have their own process group, so that Ctrl-C on the terminal reaches the launcher alone,
//! which ends them in order.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::time::Duration;

use springtide_base::memory::OutOfMemoryWatch;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::{LocalFuture, NodeRequest, Provider, ProviderError, Stub, StubEnd, StubEvent, StubId};

/// Number of a node's last lines to show.
const LAST_LINES: usize = 8;
/// Bytes at the end of the log that are searched for them.
const LAST_BYTES: u64 = 8 << 10;

/// Changes the command that starts a node.
type Prepare = dyn Fn(&NodeRequest, &mut std::process::Command);

/// Starts nodes on this machine.
#[derive(Clone, Default)]
pub struct LocalProvider {
    on_demand: bool,
    args: Option<Vec<String>>,
    prepare: Option<Rc<Prepare>>,
}

impl LocalProvider {
    /// Starts nodes by `PROGRAM node run --config FILE --with-parent`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts programs with these arguments instead.
    pub fn with_args(args: Vec<String>) -> Self {
        Self { args: Some(args), ..Self::default() }
    }

    /// Starts nodes only while jobs need them.
    pub fn on_demand() -> Self {
        Self { on_demand: true, ..Self::default() }
    }

    /// Changes each node's command before it starts: its environment, or its namespaces.
    pub fn preparing(
        self,
        prepare: impl Fn(&NodeRequest, &mut std::process::Command) + 'static,
    ) -> Self {
        Self { prepare: Some(Rc::new(prepare)), ..self }
    }

    /// Starts a node's process, which is the stub: processors of this machine are not reserved.
    ///
    /// # Errors
    /// [`ProviderError`] of the start.
    pub fn spawn(&self, request: &NodeRequest) -> Result<LocalStub, ProviderError> {
        let mut command = Command::new(&request.program);
        match &self.args {
            Some(args) => command.args(args),
            None => command.args(["node", "run", "--with-parent", "--config"]).arg(&request.config),
        };
        command.envs(request.env.iter().map(|(key, value)| (key, value)));
        // Lines of tasks stand among those of the node.
        command.stdout(open_log(&request.log)?);
        let process = PipedProcess::spawn(command, &request.log, |command| {
            if let Some(prepare) = &self.prepare {
                prepare(request, command);
            }
        })?;
        Ok(LocalStub { provider: self.clone(), process, reported_active: false })
    }
}

impl Provider for LocalProvider {
    fn hold<'a>(
        &'a self,
        request: &'a NodeRequest,
    ) -> LocalFuture<'a, Result<Box<dyn Stub>, ProviderError>> {
        let started = self.spawn(request);
        Box::pin(async move { started.map(|stub| Box::new(stub) as Box<dyn Stub>) })
    }

    fn starts_programs(&self) -> bool {
        true
    }

    fn on_demand(&self) -> bool {
        self.on_demand
    }
}

/// Opens a log, to append to it.
fn open_log(log: &Path) -> Result<File, ProviderError> {
    let file = OpenOptions::new().create(true).append(true).open(log);
    file.map_err(|source| ProviderError::Log { log: log.to_owned(), source })
}

/// A process that ends with its pipe: the base of all providers' stubs on this machine.
pub(super) struct PipedProcess {
    child: Child,
    /// Closing it orders the end. Separate from `child`, whose `wait` would close it.
    pipe: Option<ChildStdin>,
    log: PathBuf,
    /// Offset of this process's first line in the log.
    begin: u64,
    memory: OutOfMemoryWatch,
    ended: Option<StubEnd>,
}

impl PipedProcess {
    /// Starts a command with the pipe as its standard input and the log as its standard error.
    /// `prepare` changes it last.
    pub(super) fn spawn(
        mut command: Command,
        log: &Path,
        prepare: impl FnOnce(&mut std::process::Command),
    ) -> Result<Self, ProviderError> {
        let file = open_log(log)?;
        let log_error = |source| ProviderError::Log { log: log.to_owned(), source };
        let begin = file.metadata().map_err(log_error)?.len();
        let program = PathBuf::from(command.as_std().get_program());
        command.stdin(Stdio::piped()).stderr(file).process_group(0).kill_on_drop(true);
        prepare(command.as_std_mut());
        let memory = OutOfMemoryWatch::begin();
        let started = command.spawn();
        let mut child = started.map_err(|source| ProviderError::Start { program, source })?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe, log: log.to_owned(), begin, memory, ended: None })
    }

    /// Its process id, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Its standard output, if the command has it piped. Returned once.
    pub(super) fn output(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Its last lines of output, oldest first.
    pub(super) fn last_lines(&self) -> Vec<String> {
        last_lines(&self.log, self.begin)
    }

    /// Waits for its end. May be dropped and called again.
    pub(super) async fn wait(&mut self) -> StubEnd {
        if let Some(ended) = &self.ended {
            return ended.clone();
        }
        let status = self.child.wait().await;
        self.note(status)
    }

    fn note(&mut self, status: std::io::Result<ExitStatus>) -> StubEnd {
        let out_of_memory = status
            .as_ref()
            .is_ok_and(|status| self.memory.is_cause(status.code(), status.signal()));
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let ended = StubEnd { status, out_of_memory, last_lines: self.last_lines() };
        self.ended = Some(ended.clone());
        ended
    }

    /// Orders it to end, and kills it after `grace`.
    pub(super) async fn end(&mut self, grace: Duration) -> StubEnd {
        self.pipe = None;
        if timeout(grace, self.wait()).await.is_err() {
            self.kill();
        }
        self.wait().await
    }

    /// Kills the process.
    pub(super) fn kill(&mut self) {
        // An error means that it has ended.
        let _ = self.child.start_kill();
    }
}

/// A node that is a child of this process.
pub struct LocalStub {
    provider: LocalProvider,
    process: PipedProcess,
    /// Whether its start was reported.
    reported_active: bool,
}

impl LocalStub {
    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }
}

impl Stub for LocalStub {
    fn id(&self) -> Option<StubId> {
        self.pid().map(|pid| StubId(pid.to_string()))
    }

    fn last_lines(&self) -> Vec<String> {
        self.process.last_lines()
    }

    fn news(&mut self) -> LocalFuture<'_, StubEvent> {
        Box::pin(async {
            if !std::mem::replace(&mut self.reported_active, true) {
                return StubEvent::Active;
            }
            StubEvent::Ended(self.process.wait().await)
        })
    }

    fn recruit<'a>(
        &'a mut self,
        request: &'a NodeRequest,
        grace: Duration,
    ) -> LocalFuture<'a, Result<(), ProviderError>> {
        Box::pin(async move {
            self.process.end(grace).await;
            *self = self.provider.spawn(request)?;
            Ok(())
        })
    }

    fn release(&mut self, grace: Duration) -> LocalFuture<'_, StubEnd> {
        Box::pin(self.process.end(grace))
    }

    fn kill(&mut self) {
        self.process.kill();
    }

    /// It ends as well, since its pipe closes.
    fn leave(self: Box<Self>) {}
}

/// The last lines of a log after offset `begin`.
pub(super) fn last_lines(log: &Path, begin: u64) -> Vec<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let from = file.metadata()?.len().saturating_sub(LAST_BYTES).max(begin);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(LAST_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let mut lines = VecDeque::new();
    for line in String::from_utf8_lossy(&bytes).lines() {
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        let shown: String = line.chars().filter(|c| !c.is_control()).take(400).collect();
        lines.push_back(shown);
    }
    lines.into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn request(dir: &Path) -> NodeRequest {
        NodeRequest {
            node: "ams-1".into(),
            program: "sh".into(),
            config: dir.join("node.toml"),
            log: dir.join("node.log"),
            env: vec![("GREETING".into(), "hello".into())],
            threads: 1,
            host: None,
            shipped: None,
        }
    }

    async fn ended(stub: &mut LocalStub) -> StubEnd {
        loop {
            if let StubEvent::Ended(ended) = stub.news().await {
                return ended;
            }
        }
    }

    fn shell(script: &str) -> LocalProvider {
        LocalProvider::with_args(vec!["-c".into(), script.into()])
    }

    fn alive(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie counts as ended.
        stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    }

    #[actix_rt::test]
    async fn only_the_last_lines_of_this_process_are_returned() {
        let dir = tempfile::tempdir().unwrap();
        let request = request(dir.path());
        std::fs::write(&request.log, "of an earlier process\n").unwrap();
        let script = "for i in 1 2 3 4 5 6 7 8 9; do echo $GREETING $i >&2; done; exit 3";
        let provider = shell(script);
        let mut process = provider.spawn(&request).unwrap();
        let ended = ended(&mut process).await;
        assert_eq!(ended.status, "exit status: 3");
        assert_eq!(ended.last_lines.len(), LAST_LINES);
        assert_eq!(ended.last_lines[LAST_LINES - 1], "hello 9");
        assert!(ended.describe().contains("exit status: 3"));
        let mut process = shell("exit 0").spawn(&request).unwrap();
        assert_eq!(super::tests::ended(&mut process).await.last_lines, [""; 0]);
    }

    #[actix_rt::test]
    async fn the_end_of_the_pipe_is_the_order_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let request = request(dir.path());
        let mut process = shell("cat; echo bye >&2").spawn(&request).unwrap();
        // A dropped wait must not end it.
        assert_eq!(process.news().await, StubEvent::Active);
        assert!(timeout(Duration::from_millis(50), process.news()).await.is_err());
        assert!(alive(process.pid().unwrap()));
        let ended = process.release(LONG).await;
        assert_eq!(
            (ended.status.as_str(), ended.last_lines),
            ("exit status: 0", vec!["bye".into()])
        );
        assert_eq!(process.release(LONG).await.status, "exit status: 0");
    }

    #[actix_rt::test]
    async fn another_program_takes_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let request = request(dir.path());
        let mut process = shell("cat; echo first >&2").spawn(&request).unwrap();
        process.provider = shell("echo second $GREETING >&2; exit 4");
        process.recruit(&request, LONG).await.unwrap();
        let ended = ended(&mut process).await;
        assert_eq!(
            (ended.status.as_str(), ended.last_lines),
            ("exit status: 4", vec!["second hello".into()])
        );
        let log = std::fs::read_to_string(&request.log).unwrap();
        assert_eq!(log, "first\nsecond hello\n");
    }

    #[actix_rt::test]
    async fn a_process_that_ignores_its_pipe_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let request = request(dir.path());
        let mut process = shell("exec sleep 600").spawn(&request).unwrap();
        let ended = process.release(Duration::from_millis(50)).await;
        assert_eq!(ended.status, "signal: 9 (SIGKILL)");
    }

    #[actix_rt::test]
    async fn dropping_a_stub_kills_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let request = request(dir.path());
        let process = shell("exec sleep 600").spawn(&request).unwrap();
        let pid = process.pid().unwrap();
        assert!(alive(pid));
        drop(process);
        for _ in 0..6000 {
            if !alive(pid) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("process {pid} lives on");
    }

    #[actix_rt::test]
    async fn a_failed_start_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("nothing");
        let lost = NodeRequest { program, ..request(dir.path()) };
        let Err(error) = LocalProvider::new().hold(&lost).await else { panic!("it started") };
        let text = error.to_string();
        assert!(text.contains("cannot start") && text.contains("nothing"), "{text}");
        let lost = NodeRequest { log: dir.path().join("no/log"), ..request(dir.path()) };
        let Err(error) = LocalProvider::new().hold(&lost).await else { panic!("it started") };
        assert!(error.to_string().contains("no/log"), "{error}");
    }
}
