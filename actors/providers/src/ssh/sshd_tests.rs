//! Nodes behind a real sshd on a loopback port, with each directive of a user's configuration that
//! could do harm.
//!
//! Without an sshd, or without the right to run one, the tests say so and end.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use springtide_config::{GridConfig, SSH_DIRECTIVES, Sources, SshTreatment, load};

use super::*;

const LONG: Duration = Duration::from_secs(60);
/// Possible paths of sshd, which must be started by its full path.
const SSHD: [&str; 3] = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"];
/// Values of the directives that could do harm. `{}` is the directory of the test.
const HARMFUL: &[(&str, &str)] = &[
    ("AddKeysToAgent", "ask"),
    ("BatchMode", "no"),
    ("ClearAllForwardings", "no"),
    ("ControlMaster", "yes"),
    ("ControlPath", "{}/control"),
    ("ControlPersist", "yes"),
    ("DynamicForward", "127.0.0.1:{port}"),
    ("EscapeChar", "^A"),
    ("ExitOnForwardFailure", "yes"),
    ("ForkAfterAuthentication", "yes"),
    ("ForwardAgent", "yes"),
    ("ForwardX11", "yes"),
    ("LocalCommand", "touch {}/local"),
    ("LocalForward", "127.0.0.1:{port} 127.0.0.1:9"),
    ("PermitLocalCommand", "yes"),
    ("RemoteCommand", "touch {}/remote"),
    ("RemoteForward", "127.0.0.1:{port} 127.0.0.1:9"),
    ("RequestTTY", "force"),
    ("SessionType", "none"),
    ("StdinNull", "yes"),
    ("Tunnel", "yes"),
    ("UpdateHostKeys", "ask"),
    ("VisualHostKey", "yes"),
];

/// A running sshd; killed when the test ends.
struct Sshd {
    child: Child,
    dir: tempfile::TempDir,
    port: u16,
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
    fn start() -> Result<Self, String> {
        let sshd = SSHD.into_iter().find(|path| Path::new(path).exists());
        let sshd = sshd.ok_or("no sshd is installed")?;
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().display().to_string();
        for key in ["host", "user"] {
            let file = format!("{dir}/{key}");
            let made = output("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &file]);
            made.ok_or("no ssh-keygen is installed")?;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {dir}/host\n\
            AuthorizedKeysFile {dir}/user.pub\nPidFile none\nUsePAM no\nStrictModes no\n\
            PasswordAuthentication no\nKbdInteractiveAuthentication no\n\
            PermitRootLogin prohibit-password\n"
        );
        fs::write(temp.path().join("sshd.conf"), config).unwrap();
        // As root, sshd needs a directory, here in a mount namespace of its own.
        let is_root = output("id", &["-u"]).as_deref() == Some("0");
        let script = "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec \"$0\" \"$@\"";
        let mut command = if is_root && !Path::new("/run/sshd").exists() {
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", script, sshd]);
            command
        } else {
            Command::new(sshd)
        };
        let log = fs::File::create(temp.path().join("sshd.log")).unwrap();
        command.args(["-D", "-e", "-f"]).arg(temp.path().join("sshd.conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|error| format!("sshd does not start: {error}"))?;
        let mut sshd = Self { child, dir: temp, port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let has_ended = sshd.child.try_wait().unwrap().is_some();
            if has_ended || began.elapsed() > LONG {
                let log = fs::read_to_string(sshd.path("sshd.log")).unwrap_or_default();
                return Err(format!("sshd does not run here: {log}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let key = fs::read_to_string(sshd.path("host.pub")).unwrap();
        fs::write(sshd.path("known"), format!("[127.0.0.1]:{port} {key}")).unwrap();
        Ok(sshd)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A provider whose user has this line in the configuration of ssh.
    fn provider(&self, name: &str, line: &str) -> SshProvider {
        let dir = self.dir.path().display();
        let config = format!(
            "{line}\nIdentityFile {dir}/user\nIdentitiesOnly yes\nUserKnownHostsFile {dir}/known\n\
            GlobalKnownHostsFile none\nStrictHostKeyChecking yes\n"
        );
        let file = self.path(&format!("{name}.conf"));
        fs::write(&file, config).unwrap();
        let ssh = self.path(&format!("{name}.ssh"));
        fs::write(&ssh, format!("#!/bin/sh\nexec ssh -F '{}' \"$@\"\n", file.display())).unwrap();
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700)).unwrap();
        let user = output("id", &["-un"]).unwrap();
        let text = format!(
            "[[cluster]]\nname = \"a\"\nprovider = \"ssh\"\n[cluster.ssh]\n\
            hosts = {{ \"{user}@127.0.0.1:{}\" = \"1\" }}\ncommand = {:?}\ndir = {:?}\n",
            self.port,
            ssh.display().to_string(),
            self.path("there").display().to_string(),
        );
        let config = load::<GridConfig>(&Sources::of_text("grid.toml", &text)).unwrap().value;
        let section = config.cluster[0].ssh.clone().unwrap();
        SshProvider::new(&section, &["a-1".into()]).unwrap()
    }

    /// A node that copies its standard input, which stays open, to its log.
    fn request(&self, name: &str) -> NodeRequest {
        let local = self.path(name);
        fs::create_dir(&local).unwrap();
        let path = |file: &str| local.join(file).display().to_string();
        for file in ["node.pem", "node.key", "ca.pem"] {
            fs::write(path(file), "a file\n").unwrap();
        }
        let config = format!(
            "node = \"a-1\"\ncluster = \"a\"\n[head]\naddress = \"127.0.0.1:47000\"\n[identity]\n\
            certificate = {:?}\nkey = {:?}\nca = {:?}\n",
            path("node.pem"),
            path("node.key"),
            path("ca.pem"),
        );
        fs::write(local.join("node.toml"), config).unwrap();
        let program = self.path("node");
        fs::write(&program, "#!/bin/sh\necho it runs >&2\ncat\nexit 5\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        NodeRequest {
            node: "a-1".into(),
            program,
            config: local.join("node.toml"),
            log: local.join("node.log"),
            env: Vec::new(),
            threads: 1,
            host: None,
            shipped: None,
        }
    }
}

/// One sshd for all directives: a node starts, lives, and ends with its own exit code; nothing else
/// is done.
#[actix_rt::test]
async fn no_directive_of_the_user_breaks_a_node() {
    let sshd = match Sshd::start() {
        Ok(sshd) => sshd,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let dir = sshd.dir.path().display().to_string();
    for directive in SSH_DIRECTIVES {
        let overridden =
            matches!(directive.treatment, SshTreatment::Overridden(_) | SshTreatment::ClearedBy(_));
        let has_case = HARMFUL.iter().any(|(name, _)| *name == directive.name);
        // The installed ssh may not know it.
        assert!(has_case || !overridden || directive.since >= Some((9, 3)), "{}", directive.name);
    }
    for (name, value) in HARMFUL {
        let value = value.replace("{}", &dir).replace("{port}", &port);
        // A command or a failing forward has an effect only with a second directive.
        let with = match *name {
            "LocalCommand" => "\nPermitLocalCommand yes",
            "PermitLocalCommand" => "\nLocalCommand touch /nowhere/local",
            "LocalForward" | "RemoteForward" | "DynamicForward" => "\nExitOnForwardFailure yes",
            "ExitOnForwardFailure" | "ClearAllForwardings" => {
                &format!("\nExitOnForwardFailure yes\nLocalForward 127.0.0.1:{port} 127.0.0.1:9")
            }
            "ControlMaster" | "ControlPersist" => &format!("\nControlPath {dir}/control"),
            "ControlPath" => "\nControlMaster auto\nControlPersist yes",
            _ => "",
        };
        let provider = sshd.provider(name, &format!("{name} {value}{with}"));
        let request = sshd.request(&format!("local-{name}"));
        let log = || fs::read_to_string(&request.log).unwrap_or_default();
        let mut stub = match provider.hold(&request).await {
            Ok(stub) => stub,
            Err(error) => panic!("{name}: {error}"),
        };
        let began = Instant::now();
        while !log().contains("it runs") {
            assert!(began.elapsed() < LONG, "{name}: {}", log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(stub.release(LONG).await.status, "exit status: 5", "{name}: {}", log());
        assert_eq!(log().trim(), "it runs", "{name}");
        for effect in ["control", "local", "remote"] {
            assert!(!sshd.path(effect).exists(), "{name}");
        }
        assert_eq!(fs::read_dir(sshd.path("there")).unwrap().count(), 0, "{name}");
    }
    // The reason of a failure is reported at any level of messages of the user.
    fs::write(sshd.path("user.pub"), "").unwrap();
    let provider = sshd.provider("quiet", "LogLevel QUIET");
    let request = sshd.request("local-quiet");
    let Err(error) = provider.hold(&request).await else { panic!("it started") };
    assert!(error.to_string().contains("Permission denied (publickey)"), "{error}");
}
