//! A grid with nodes behind a real sshd: the test's own, on a loopback port, with its own keys and
//! config.
//!
//! Without an sshd, or without the right to run one, the test says so and ends.

use std::fmt::Write as _;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{RunningCommand, finish, kill, program, text, until};

/// Possible paths of sshd, which must be started by its full path.
const SSHD: [&str; 3] = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"];
/// A directory that sshd requires when it runs as root.
const PRIVILEGES: &str = "/run/sshd";

/// A running sshd; killed when the test ends.
struct Sshd {
    child: Child,
    dir: PathBuf,
    port: u16,
    user: String,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let ended = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
    ended.status.success().then(|| String::from_utf8_lossy(&ended.stdout).trim().to_owned())
}

impl Sshd {
    /// Starts an sshd.
    ///
    /// # Errors
    /// The reason why it cannot run here.
    fn start(dir: &Path) -> Result<Self, String> {
        let sshd = SSHD.into_iter().find(|path| Path::new(path).exists());
        let sshd = sshd.ok_or("no sshd is installed")?;
        let user = output("id", &["-un"]).ok_or("the user is unknown")?;
        let root = output("id", &["-u"]).as_deref() == Some("0");
        for key in ["host", "user"] {
            let file = dir.join(key).display().to_string();
            let made = output("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &file]);
            made.ok_or("no ssh-keygen is installed")?;
        }
        fs::copy(dir.join("user.pub"), dir.join("authorized")).unwrap();
        let mut log = String::new();
        // Another program may take the port meanwhile.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let path = dir.display();
            let config = format!(
                "Port {port}\nListenAddress 127.0.0.1\nHostKey {path}/host\n\
                AuthorizedKeysFile {path}/authorized\n\
                PidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n\
                KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
            );
            fs::write(dir.join("sshd.conf"), config).unwrap();
            let child = Self::spawn(dir, sshd, root);
            let child = child.map_err(|error| format!("sshd does not start: {error}"))?;
            let mut sshd = Self { child, dir: dir.to_owned(), port, user: user.clone() };
            let mut ended = false;
            until("sshd listens or ends", || {
                ended = sshd.child.try_wait().unwrap().is_some();
                ended || TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
            if !ended {
                let key = text(&dir.join("host.pub"));
                fs::write(dir.join("known"), format!("[127.0.0.1]:{port} {key}")).unwrap();
                return Ok(sshd);
            }
            log = text(&dir.join("sshd.log"));
        }
        Err(format!("sshd does not run here: {log}"))
    }

    fn spawn(dir: &Path, sshd: &str, root: bool) -> std::io::Result<Child> {
        let needs_directory = root && !Path::new(PRIVILEGES).exists();
        let mut command = if needs_directory {
            // In a mount namespace of its own, so that the system's files stay unchanged.
            let script = format!(
                "mount -t tmpfs none /run && mkdir -m 755 {PRIVILEGES} && exec \"$0\" \"$@\""
            );
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", &script, sshd]);
            command
        } else {
            Command::new(sshd)
        };
        command.args(["-D", "-e", "-f"]).arg(dir.join("sshd.conf")).stdin(Stdio::null());
        let log = fs::File::create(dir.join("sshd.log"))?;
        command.stdout(Stdio::null()).stderr(log).spawn()
    }

    /// Refuses new connections; existing ones stay.
    fn shut(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Accepts connections again, at the same port.
    fn open(&mut self) {
        let sshd = SSHD.into_iter().find(|path| Path::new(path).exists()).unwrap();
        let root = output("id", &["-u"]).as_deref() == Some("0");
        self.child = Self::spawn(&self.dir, sshd, root).unwrap();
        until("sshd listens", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    /// The grid's config: one cluster here and one of two nodes behind this sshd. Settings of the
    /// user or host for ssh are excluded.
    fn grid(&self) -> String {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let ssh = self.dir.join("ssh");
        fs::write(&ssh, "#!/bin/sh\nexec ssh -F none \"$@\"\n").unwrap();
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700)).unwrap();
        let mut grid = format!(
            "[[cluster]]\nname = \"here\"\n[[cluster]]\nname = \"there\"\nnodes = 2\n\
            provider = \"ssh\"\nprogram = {:?}\n\
            env = {{ GREETING = \"it's me\" }}\n[cluster.ssh]\n\
            hosts = {{ \"{}@127.0.0.1:{}\" = \"2\" }}\n\
            command = {:?}\ndir = {:?}\n[cluster.ssh.options]\n",
            env!("CARGO_BIN_EXE_springtide"),
            self.user,
            self.port,
            path("ssh"),
            path("over there"),
        );
        for (key, value) in [
            ("IdentityFile", path("user")),
            ("IdentitiesOnly", "yes".to_owned()),
            ("UserKnownHostsFile", path("known")),
            ("StrictHostKeyChecking", "yes".to_owned()),
        ] {
            let _ = writeln!(grid, "{key} = {value:?}");
        }
        grid
    }

    /// The nodes that run there, with their processes.
    fn nodes(&self) -> Vec<(String, u32)> {
        let start = format!("{}/", self.dir.join("over there").display());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let config = line.split('\0').find_map(|word| word.strip_prefix(&start));
            if let Some(life) = config.and_then(|config| config.strip_suffix("/node.toml")) {
                found.push((life.split('.').next().unwrap_or_default().to_owned(), pid));
            }
        }
        found.sort();
        found
    }

    /// The number of files that nodes left there.
    fn left(&self) -> usize {
        fs::read_dir(self.dir.join("over there")).map_or(0, Iterator::count)
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn nodes_behind_ssh_work_are_replaced_and_leave_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let sshd = match Sshd::start(temp.path()) {
        Ok(sshd) => sshd,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let file = temp.path().join("grid.toml");
    fs::write(&file, sshd.grid()).unwrap();
    let config = file.to_str().unwrap();
    let log = || text(&temp.path().join("stderr.log"));
    let all_logs = || format!("{}\n{}", log(), text(&temp.path().join("sshd.log")));
    let up = || {
        let running = RunningCommand::start(program(&["up", config]), temp.path());
        until("it is up", || log().contains("Ctrl-C ends the grid"));
        running
    };
    // Whether all three nodes contributed to a job with the right result.
    let whole = || {
        let ended = finish(program(&["run", "fib", "--n", "27", "--config", config, "--json"]));
        assert_eq!(ended.code, Some(0), "{}\n{}", ended.err, all_logs());
        let result = json(&ended.out);
        assert_eq!(result["result"]["fib"], 196_418);
        let all = serde_json::json!([
            { "name": "here", "workers": 1 }, { "name": "there", "workers": 2 },
        ]);
        result["clusters"] == all
    };

    let mut grid = up();
    let names = |nodes: &[(String, u32)]| -> Vec<String> {
        nodes.iter().map(|(name, _)| name.clone()).collect()
    };
    let first = sshd.nodes();
    assert_eq!(names(&first), ["there-1", "there-2"], "{}", all_logs());
    let variables = fs::read(format!("/proc/{}/environ", first[0].1)).unwrap();
    assert!(variables.split(|b| *b == 0).any(|word| word == b"GREETING=it's me"));
    assert!(whole(), "{}", all_logs());

    // A node that dies there is restarted there.
    kill(first[1].1, "KILL");
    until("it is restarted", || {
        let now = sshd.nodes();
        names(&now) == ["there-1", "there-2"] && now[1] != first[1]
    });
    until("the grid is whole again", whole);
    grid.signal("TERM");
    assert_eq!(grid.wait().code(), Some(0), "{}", all_logs());
    assert_eq!(sshd.nodes(), []);
    until("no file is left there", || sshd.left() == 0);

    // No node outlives its head, however the head ends.
    let mut grid = up();
    assert_eq!(sshd.nodes().len(), 2, "{}", all_logs());
    grid.signal("KILL");
    grid.wait();
    until("the nodes end", || sshd.nodes().is_empty());
    until("no file is left there", || sshd.left() == 0);
}

/// A host that is unreachable longer than a program may fail: the site waits, and keeps the node.
#[test]
fn an_unreachable_host_is_used_again_later() {
    let temp = tempfile::tempdir().unwrap();
    let mut sshd = match Sshd::start(temp.path()) {
        Ok(sshd) => sshd,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let file = temp.path().join("grid.toml");
    fs::write(&file, sshd.grid()).unwrap();
    let mut up = RunningCommand::start(program(&["up", file.to_str().unwrap()]), temp.path());
    let log = || text(&temp.path().join("stderr.log"));
    until("it is up", || log().contains("Ctrl-C ends the grid"));
    assert_eq!(sshd.nodes().len(), 2, "{}", log());
    sshd.shut();
    for (_, pid) in sshd.nodes() {
        kill(pid, "KILL");
    }
    until("they are gone", || sshd.nodes().is_empty());
    // Four attempts, one more than the limit for failing programs.
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert_eq!(sshd.nodes(), []);
    sshd.open();
    until("they are back", || sshd.nodes().len() == 2);
    let line = ["run", "fib", "--n", "24", "--config", file.to_str().unwrap(), "--json"];
    let all =
        serde_json::json!([{ "name": "here", "workers": 1 }, { "name": "there", "workers": 2 }]);
    until("jobs have them", || {
        let ended = finish(program(&line));
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        json(&ended.out)["clusters"] == all
    });
    up.signal("TERM");
    assert_eq!(up.wait().code(), Some(0));
}

#[test]
fn a_host_that_refuses_the_connection_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let sshd = match Sshd::start(temp.path()) {
        Ok(sshd) => sshd,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let file = temp.path().join("grid.toml");
    fs::write(&file, sshd.grid()).unwrap();
    fs::write(temp.path().join("authorized"), "").unwrap();
    let mut up = RunningCommand::start(program(&["up", file.to_str().unwrap()]), temp.path());
    let log = || text(&temp.path().join("stderr.log"));
    until("it is reported", || log().contains("Permission denied (publickey)"));
    let from = format!("-p {} {}@127.0.0.1 sh` failed (exit status: 255)", sshd.port, sshd.user);
    assert!(log().contains(&from), "{}", log());
    up.signal("TERM");
    up.wait();
    assert_eq!(sshd.left(), 0);
}
