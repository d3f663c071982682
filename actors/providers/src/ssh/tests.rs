//! Tests of the provider with commands in place of ssh: one that runs a local shell, and ones that
//! fail as ssh does. The tests of the `springtide` program use a real sshd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use springtide_config::{GridConfig, Sources, load};
use tempfile::TempDir;

use super::*;

const LONG: Duration = Duration::from_secs(60);
const SECRET: &str = "it's a secret";

/// An ssh's answer about its version.
const VERSION: &str = "test \"$1\" = -V && { echo 'OpenSSH_9.2p1 Debian' >&2; exit; }\n";

/// A successful ssh: the last argument goes to a shell, in the home directory.
const WELL: &str =
    "for last; do :; done\ncd \"$(dirname \"$0\")\" || exit 1\nexec sh -c \"$last\"\n";

fn executable(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
}

/// A machine's home directory, with scripts in place of ssh and of the node.
struct SshWorld {
    dir: TempDir,
}

impl SshWorld {
    fn new(ssh: &str, program: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| dir.path().join(name);
        executable(&of("ssh"), &format!("{VERSION}echo \"$*\" >> \"$0.log\"\n{ssh}"));
        executable(&of("node"), program);
        fs::create_dir(of("local")).unwrap();
        for name in ["node.pem", "node.key", "ca.pem"] {
            fs::write(of("local").join(name), format!("the {name}\n")).unwrap();
        }
        let path = |name: &str| of("local").join(name).display().to_string();
        let config = format!(
            "node = \"a-1\"\ncluster = \"a\"\n[head]\naddress = \"127.0.0.1:47000\"\n[identity]\n\
             certificate = {:?}\nkey = {:?}\nca = {:?}\n",
            path("node.pem"),
            path("node.key"),
            path("ca.pem"),
        );
        fs::write(of("local/node.toml"), config).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn provider(&self) -> SshProvider {
        self.provider_of(&["a-1".into()])
    }

    fn provider_of(&self, nodes: &[NodeId]) -> SshProvider {
        let text = format!(
            "[[cluster]]\nname = \"a\"\nprovider = \"ssh\"\nprogram = \"/x\"\n[cluster.ssh]\n\
             hosts = {{ \"me@h:22\" = \"20\" }}\ncommand = {:?}\ndir = \"grid\"\n\
             answer_timeout = \"60s\"\noptions = {{ Compression = \"yes\" }}\n",
            self.path("ssh").display().to_string(),
        );
        SshProvider::new(&section(&text), nodes).unwrap()
    }

    fn hurried(&self) -> SshProvider {
        let provider = self.provider();
        let mut shared = Rc::into_inner(provider.shared).unwrap();
        shared.answer_timeout = Duration::from_secs(1);
        SshProvider { shared: Rc::new(shared) }
    }

    fn request(&self) -> NodeRequest {
        NodeRequest {
            node: "a-1".into(),
            program: self.path("node"),
            config: self.path("local/node.toml"),
            log: self.path("a-1.log"),
            env: vec![("API_TOKEN".into(), SECRET.into())],
            threads: 1,
            host: None,
            shipped: None,
        }
    }

    /// The directories of the node's processes.
    fn process_directories(&self) -> Vec<std::path::PathBuf> {
        let Ok(entries) = fs::read_dir(self.path("grid")) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

fn section(text: &str) -> SshSection {
    let config = load::<GridConfig>(&Sources::of_text("grid.toml", text)).unwrap().value;
    config.cluster[0].ssh.clone().unwrap()
}

async fn failure(provider: &SshProvider, request: &NodeRequest) -> String {
    match provider.hold(request).await {
        Ok(_) => panic!("it started"),
        Err(error) => error.to_string(),
    }
}

async fn ended(stub: &mut Box<dyn Stub>) -> StubEnd {
    loop {
        if let StubEvent::Ended(ended) = stub.news().await {
            return ended;
        }
    }
}

fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie counts as ended.
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}

#[actix_rt::test]
async fn a_node_is_brought_started_and_ended() {
    let program = "echo \"$API_TOKEN\" >&2\ncat\nfor last; do :; done\ncat \"$last\" >&2\nexit 5\n";
    let world = SshWorld::new(&format!("echo welcome\n{WELL}"), program);
    let provider = world.provider();
    let mut stub = provider.hold(&world.request()).await.unwrap();
    assert_eq!(stub.news().await, StubEvent::Active);
    assert!(stub.id().unwrap().0.starts_with("me@h:22/"));
    let directories = world.process_directories();
    let [life] = &directories[..] else { panic!("{directories:?}") };
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(life), 0o700);
    for name in ["node.toml", "node.pem", "node.key", "ca.pem", "start.sh"] {
        assert_eq!(mode(&life.join(name)), 0o600, "{name}");
    }
    assert_eq!(fs::read_to_string(life.join("node.key")).unwrap(), "the node.key\n");
    // The paths in its config are those on the remote machine: relative to the home directory.
    let text = fs::read_to_string(life.join("node.toml")).unwrap();
    let config = load::<NodeConfig>(&Sources::of_text("node.toml", &text)).unwrap().value;
    assert_eq!(world.path("").join(config.identity.key), life.join("node.key"));
    assert_eq!(config.head.address.first().to_string(), "127.0.0.1:47000");

    let how = stub.release(LONG).await.status;
    assert_eq!(how, "exit status: 5");
    let log = fs::read_to_string(world.path("a-1.log")).unwrap();
    assert!(log.starts_with(SECRET) && log.contains("node.key"), "{log}");
    assert!(stub.last_lines().last().is_some_and(|line| !line.is_empty()));
    assert_eq!(world.process_directories(), [""; 0].map(std::path::PathBuf::from));
    let lines = fs::read_to_string(world.path("ssh.log")).unwrap();
    let [bring, start] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    let ours = unattended_options(Some((9, 2))).join(" -o ");
    assert!(ours.contains("BatchMode=yes") && ours.contains("RemoteCommand=none"), "{ours}");
    let options = format!(
        "-o {ours} -o Compression=yes -o ConnectTimeout=60 -o ServerAliveInterval=5 \
        -o ServerAliveCountMax=3 -o LogLevel=INFO -p 22 -l me -- h exec sh"
    );
    assert_eq!(bring, options);
    assert!(start.starts_with(&options) && !lines.contains("secret"), "{start}");
}

#[actix_rt::test]
async fn the_output_of_ssh_is_reported() {
    let refused = SshWorld::new("echo 'me@h: Permission denied (publickey).' >&2\nexit 255\n", "");
    let error = failure(&refused.provider(), &refused.request()).await;
    let ssh = refused.path("ssh").display().to_string();
    let golden = format!(
        "`{ssh} -p 22 me@h sh` failed (exit status: 255): me@h: Permission denied (publickey)."
    );
    assert_eq!(error, golden);

    let silent = SshWorld::new("exec sleep 600\n", "");
    let error = failure(&silent.hurried(), &silent.request()).await;
    assert!(error.contains("did not answer within 1 s"), "{error}");

    // The directory cannot be created.
    let full = SshWorld::new(WELL, "");
    fs::write(full.path("grid"), "a file").unwrap();
    let error = failure(&full.provider(), &full.request()).await;
    assert!(error.contains("failed (exit status: 1)") && error.contains("mkdir"), "{error}");
}

/// An ssh whose second command does this; all others succeed.
fn second(then: &str) -> String {
    format!("case \"$*\" in *start.sh*) {then} ;; esac\n{WELL}")
}

/// Failures of the second command, for which the first must succeed.
#[actix_rt::test]
async fn a_node_that_does_not_start_leaves_no_key() {
    let brought = "ls \"$(dirname \"$0\")\"/grid/*/node.key >> \"$0.keys\"; ";
    let refused =
        SshWorld::new(&second(&format!("{brought} echo 'Connection refused' >&2; exit 255")), "");
    let error = failure(&refused.provider(), &refused.request()).await;
    assert!(
        error.contains("/start.sh` failed (exit status: 255: the connection to me@h:22"),
        "{error}"
    );
    assert!(error.ends_with("Connection refused"), "{error}");
    until("what was brought is taken away", || refused.process_directories().is_empty()).await;
    assert_eq!(fs::read_to_string(refused.path("ssh.keys")).unwrap().lines().count(), 1);

    let silent = SshWorld::new(&second("exec sleep 600"), "");
    let error = failure(&silent.hurried(), &silent.request()).await;
    assert!(error.contains("/start.sh` did not answer within 1 s"), "{error}");
    until("what was brought is taken away", || silent.process_directories().is_empty()).await;

    // Its log is not writable.
    let world = SshWorld::new(WELL, "");
    let request = NodeRequest { log: world.path("no/log"), ..world.request() };
    let error = failure(&world.provider(), &request).await;
    assert!(error.contains("cannot write") && world.process_directories().len() == 1, "{error}");
    until("what was brought is taken away", || world.process_directories().is_empty()).await;

    let world = SshWorld::new(WELL, "");
    let request = NodeRequest { program: "/no/such program".into(), ..world.request() };
    let mut stub = world.provider().hold(&request).await.unwrap();
    let ended = ended(&mut stub).await;
    assert_eq!(ended.status, "exit status: 127");
    assert!(ended.last_lines.join("\n").contains("/no/such program"), "{ended:?}");
}

/// The machine is unreachable from then on.
#[actix_rt::test]
async fn an_unreachable_key_is_removed_at_the_next_start() {
    let away = "test -e \"$0.away\" && exit 255\n";
    let world = SshWorld::new(&format!("{away}{}", second(": > \"$0.away\"; exit 255")), "cat\n");
    let provider = world.provider();
    failure(&provider, &world.request()).await;
    let connections = || fs::read_to_string(world.path("ssh.log")).unwrap().lines().count();
    until("it is tried", || connections() == 3).await;
    // An unreachable machine is not asked to remove files.
    let error = failure(&provider, &world.request()).await;
    assert!(error.contains("exit status: 255"), "{error}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((world.process_directories().len(), connections()), (1, 4));

    let left = world.process_directories();
    executable(&world.path("ssh"), WELL);
    let stub = provider.hold(&world.request()).await.unwrap();
    let directories = world.process_directories();
    assert!(directories.len() == 1 && directories != left, "{directories:?}");
    drop(stub);
}

#[actix_rt::test]
async fn a_lost_connection_differs_from_the_nodes_end() {
    let script =
        format!("echo '{STARTED}'; echo 'Timeout, server h not responding.' >&2; exit 255");
    let lost = SshWorld::new(&format!("case \"$*\" in *start.sh*) {script} ;; esac\n{WELL}"), "");
    let mut stub = lost.provider().hold(&lost.request()).await.unwrap();
    let news = ended(&mut stub).await;
    assert_eq!(news.status, "exit status: 255: the connection to me@h:22 failed or was lost");
    assert_eq!(news.last_lines, ["Timeout, server h not responding."]);
    assert_eq!(ended(&mut stub).await, news);

    let killed = SshWorld::new(WELL, "kill -9 $$\n");
    let mut stub = killed.provider().hold(&killed.request()).await.unwrap();
    assert_eq!(ended(&mut stub).await.status, "exit status: 137");
}

#[actix_rt::test]
async fn another_program_takes_its_place() {
    let world = SshWorld::new(WELL, "cat\necho first >&2\n");
    let mut stub = world.provider().hold(&world.request()).await.unwrap();
    executable(&world.path("other"), "echo second >&2\nexit 4\n");
    let other = NodeRequest { program: world.path("other"), ..world.request() };
    stub.recruit(&other, LONG).await.unwrap();
    assert_eq!(stub.news().await, StubEvent::Active);
    assert_eq!(ended(&mut stub).await.status, "exit status: 4");
    assert_eq!(fs::read_to_string(world.path("a-1.log")).unwrap(), "first\nsecond\n");
    let lost = NodeRequest { config: world.path("none.toml"), ..world.request() };
    let error = stub.recruit(&lost, LONG).await.unwrap_err().to_string();
    assert!(error.contains("none.toml"), "{error}");
    assert_eq!(ended(&mut stub).await.status, "exit status: 4");
}

/// Its connection ends unnoticed by the node.
#[actix_rt::test]
async fn a_hanging_process_ends_when_the_next_starts() {
    let program = "echo $$ >> \"$(dirname \"$0\")/pids\"\nfor i in $(seq 300); do sleep 1; done\n";
    let world = SshWorld::new(WELL, program);
    let left = HangingProcesses(world.path("pids"));
    let pids = || left.pids();
    let provider = world.provider();
    let mut stub = provider.hold(&world.request()).await.unwrap();
    until("the node runs", || !pids().is_empty()).await;
    stub.kill();
    assert_eq!(ended(&mut stub).await.status, "signal: 9 (SIGKILL)");
    let first = pids()[0];
    assert!(runs(first));
    let mut stub = provider.hold(&world.request()).await.unwrap();
    until("the first life has ended", || !runs(first)).await;
    until("the second runs", || pids().len() == 2).await;
    assert_eq!(world.process_directories().len(), 1);
    // It hangs like the first.
    let second = pids()[1];
    assert!(runs(second));
    stub.kill();
    ended(&mut stub).await;
}

/// Hanging processes, listed by number in a file; killed when the test ends.
struct HangingProcesses(PathBuf);

impl HangingProcesses {
    fn pids(&self) -> Vec<u32> {
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Drop for HangingProcesses {
    fn drop(&mut self) {
        for pid in self.pids().into_iter().filter(|pid| runs(*pid)) {
            let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

#[actix_rt::test]
async fn few_connections_open_at_once() {
    let busy = "echo + >> \"$0.turns\"\nsleep 0.1\necho - >> \"$0.turns\"\nexit 255\n";
    let world = SshWorld::new(busy, "");
    let nodes: Vec<NodeId> = (1..=20).map(|i| format!("a-{i}").as_str().into()).collect();
    let provider = world.provider_of(&nodes);
    let hold = |node: NodeId| {
        let (provider, request) = (provider.clone(), NodeRequest { node, ..world.request() });
        actix_rt::spawn(async move { provider.hold(&request).await.is_err() })
    };
    for refused in nodes.into_iter().map(hold).collect::<Vec<_>>() {
        assert!(refused.await.unwrap());
    }
    let turns = fs::read_to_string(world.path("ssh.turns")).unwrap();
    let (mut inside, mut most) = (0, 0);
    for turn in turns.lines() {
        inside = if turn == "+" { inside + 1 } else { inside - 1 };
        most = most.max(inside);
    }
    assert_eq!((turns.lines().count(), inside), (40, 0));
    // From 10 on, an sshd with default settings refuses some.
    assert!(most < 10, "{most}");
}

#[actix_rt::test]
async fn a_dropped_hold_leaves_nothing() {
    let world = SshWorld::new("echo $$ >> \"$0.pids\"\nexec sleep 300\n", "");
    let left = HangingProcesses(world.path("ssh.pids"));
    let provider = world.provider();
    let request = world.request();
    tokio::select! {
        _ = provider.hold(&request) => panic!("nothing answered"),
        () = until("ssh runs", || !left.pids().is_empty()) => {}
    }
    let pid = left.pids()[0];
    until("it is killed", || !runs(pid)).await;

    // The files are present and the node has not started.
    let script = "echo $$ >> \"$0.pids\"; exec sleep 300";
    let world = SshWorld::new(&second(script), "");
    let left = HangingProcesses(world.path("ssh.pids"));
    let provider = world.provider();
    let request = world.request();
    tokio::select! {
        _ = provider.hold(&request) => panic!("nothing answered"),
        () = until("it is being started", || !left.pids().is_empty()) => {}
    }
    assert_eq!(world.process_directories().len(), 1);
    until("what was brought is taken away", || world.process_directories().is_empty()).await;
    let pid = left.pids()[0];
    until("it is killed", || !runs(pid)).await;
}

#[actix_rt::test]
async fn values_that_no_shell_accepts_are_refused() {
    let world = SshWorld::new(WELL, "");
    let provider = world.provider();
    for (name, value) in [("A B", "x"), ("", "x"), ("1A", "x"), ("A", "x\0y")] {
        let env = vec![(name.to_owned(), value.to_owned())];
        let error = failure(&provider, &NodeRequest { env, ..world.request() }).await;
        assert!(error.contains("`cluster.env`"), "{error}");
    }
    let error = failure(&provider, &NodeRequest { node: "b-1".into(), ..world.request() }).await;
    assert!(error.contains("`ssh.hosts` has no host for node b-1"), "{error}");
    fs::write(world.path("local/node.toml"), "node = 3\n").unwrap();
    let error = failure(&provider, &world.request()).await;
    assert!(error.contains("node.toml:1:8"), "{error}");
    assert!(!world.path("ssh.log").exists());
}

#[test]
fn each_host_gets_as_many_nodes_as_it_takes() {
    let text = "[[cluster]]\nname = \"a\"\nprovider = \"ssh\"\nprogram = \"/x\"\n[cluster.ssh]\n\
                hosts = { h2 = \"9\", h1 = \"2\" }\n";
    let nodes: Vec<NodeId> = (1..=4).map(|i| format!("a-{i}").as_str().into()).collect();
    let provider = SshProvider::new(&section(text), &nodes).unwrap();
    let hosts: Vec<_> =
        nodes.iter().map(|node| provider.shared.hosts[node].host.name.as_str()).collect();
    assert_eq!(hosts, ["h1", "h1", "h2", "h2"]);
    assert!(!provider.starts_programs() && !provider.on_demand());
    let nodes: Vec<NodeId> = (1..=12).map(|i| format!("a-{i}").as_str().into()).collect();
    let Err(error) = SshProvider::new(&section(text), &nodes) else { panic!("they have places") };
    assert!(error.to_string().contains("`ssh.hosts` has places for 11 nodes"), "{error}");
}

#[test]
fn versions_of_ssh_are_read() {
    let said = ["OpenSSH_9.2p1 Debian-2+deb12u10, OpenSSL 3.0", "OpenSSH_for_Windows_8.1p1, x"];
    assert_eq!(said.map(version_of), [Some((9, 2)), Some((8, 1))]);
    assert_eq!(["", "Dropbear v2022.83", "OpenSSH_"].map(version_of), [None; 3]);
}

/// The machine gets the program once, whole, and again if it is gone.
#[actix_rt::test]
async fn a_program_is_copied_once_and_checked() {
    let world = SshWorld::new(WELL, "echo 'not this one' >&2\nexit 9\n");
    executable(&world.path("mine"), "cat\nexit 5\n");
    let nodes: [NodeId; 2] = ["a-1".into(), "a-2".into()];
    let provider = || world.provider_of(&nodes).copying(world.path("mine"));
    let first = provider();
    let request = world.request();
    let second = NodeRequest { node: "a-2".into(), ..world.request() };
    let (one, other) = tokio::join!(first.hold(&request), first.hold(&second));
    let programs = || {
        let all = fs::read_dir(world.path("grid/programs")).unwrap();
        all.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let copied = programs();
    let [program] = &copied[..] else { panic!("{copied:?}") };
    assert_eq!(fs::read(program).unwrap(), fs::read(world.path("mine")).unwrap());
    let name = program.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.starts_with("springtide-") && name.len() == "springtide-".len() + 64, "{name}");
    assert_eq!(one.unwrap().release(LONG).await.status, "exit status: 5");
    drop(other);
    let copies = || {
        let log = fs::read_to_string(world.path("ssh.log")).unwrap();
        log.matches("cat > ").count()
    };
    assert_eq!(copies(), 1);
    // The next head finds it; a damaged one is replaced.
    drop(provider().hold(&request).await.unwrap());
    assert_eq!(copies(), 1);
    fs::write(program, "half").unwrap();
    drop(provider().hold(&request).await.unwrap());
    assert_eq!((copies(), fs::read(program).unwrap()), (2, fs::read(world.path("mine")).unwrap()));

    // A transfer that loses bytes leaves no program.
    let cut = format!("case \"$*\" in *'cat > '*) head -c 5 | {{ {WELL} }}; exit ;; esac\n{WELL}");
    let world = SshWorld::new(&cut, "");
    executable(&world.path("mine"), "cat\n");
    let provider = world.provider().copying(world.path("mine"));
    let error = failure(&provider, &world.request()).await;
    assert!(error.contains("differs from that of this host"), "{error}");
    assert_eq!(fs::read_dir(world.path("grid/programs")).unwrap().count(), 0);
    // A program for another kind of machine.
    let other = "case \"$1\" in -s) echo Plan9 ;; *) echo mips ;; esac\n";
    executable(&world.path("uname"), other);
    let path = format!("PATH=\"$(dirname \"$0\"):$PATH\"\nexport PATH\n{WELL}");
    executable(&world.path("ssh"), &format!("{VERSION}{path}"));
    let provider = world.provider().copying(world.path("mine"));
    let error = failure(&provider, &world.request()).await;
    assert!(error.contains("runs Plan9 mips") && error.contains("set `program`"), "{error}");
}

/// Each host gets a user's program once, and says if it is another kind of machine.
#[actix_rt::test]
async fn a_users_program_is_copied_once_and_named_by_its_digest() {
    let world = SshWorld::new(WELL, "echo 'not this one' >&2\nexit 9\n");
    executable(&world.path("brought"), "cat\nexit 6\n");
    let bytes = fs::metadata(world.path("brought")).unwrap().len();
    let digest =
        ring::digest::digest(&ring::digest::SHA256, &fs::read(world.path("brought")).unwrap());
    let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let brought = |node: &str, machine: &str| NodeRequest {
        node: node.into(),
        program: world.path("brought"),
        shipped: Some(ShippedFile {
            digest: digest.clone(),
            bytes,
            machine: Some(machine.to_owned()),
        }),
        ..world.request()
    };
    let nodes: [NodeId; 2] = ["a-1".into(), "a-2".into()];
    let provider = world.provider_of(&nodes);
    assert_eq!(provider.delivery(), ProgramDelivery::Copies);
    let own = std::env::consts::ARCH;
    let (first, second) = (brought("a-1", own), brought("a-2", own));
    let (one, other) = tokio::join!(provider.hold(&first), provider.hold(&second));
    let copied = world.path("grid/programs").join(format!("user-{digest}"));
    assert_eq!(fs::read(&copied).unwrap(), fs::read(world.path("brought")).unwrap());
    assert_eq!(one.unwrap().release(LONG).await.status, "exit status: 6");
    drop(other.unwrap());
    let log = fs::read_to_string(world.path("ssh.log")).unwrap();
    assert_eq!(log.matches("cat > ").count(), 1);
    // A copy that no node was started with for long makes room at the next one.
    let old = world.path("grid/programs/user-old");
    fs::write(&old, "").unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(20 * 24 * 3600);
    fs::File::open(&old).unwrap().set_modified(long_ago).unwrap();
    fs::remove_file(&copied).unwrap();
    drop(provider.hold(&first).await.unwrap());
    assert!(copied.exists() && !old.exists());
    // The host is of another kind.
    fs::remove_file(&copied).unwrap();
    match provider.hold(&brought("a-1", "s390x")).await {
        Ok(_) => panic!("it started"),
        Err(error @ ProviderError::OtherMachine { .. }) => {
            let text = error.to_string();
            let expected = format!("runs Linux {own}, and the program is for Linux s390x");
            assert!(text.contains(&expected) && !error.is_transient(), "{text}");
        }
        Err(error) => panic!("{error}"),
    }
}
