//! Scripts for shells on other machines: they bring a node's files and start it.
//!
//! Scripts are sent over standard input, which process lists do not show; command lines contain
//! paths only. This module does not know ssh.

use std::fmt::Write;

use crate::words::quote;

/// Line that reports the start of a node's program. Earlier output of a shell comes from its
/// configuration.
pub(super) const STARTED: &str = "springtide: the node is being started";

/// Runs the node of the directory `$1`, then removes the directory: keys must not stay on other
/// owners' machines. A shell waits for the node, so that a signal becomes an exit code. ssh itself
/// would return 255, as for a lost connection.
const RUN_AND_REMOVE: &str = r#"sh "$1/start.sh"; code=$?; rm -rf "$1"; exit "$code""#;

/// Converts a directory of the config for remote shells, where it is relative to the home
/// directory.
pub(super) fn remote_path(given: &str) -> String {
    let given = given.strip_prefix("~/").unwrap_or(given).trim_end_matches('/');
    match given {
        "" | "~" => ".".to_owned(),
        // Commands must not parse it as an option.
        dash if dash.starts_with('-') => format!("./{dash}"),
        plain => plain.to_owned(),
    }
}

/// Directory of a node on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteDirectory {
    /// Common prefix for all processes of this node under this head.
    node: String,
    /// Directory of one process.
    process: String,
}

impl RemoteDirectory {
    /// The directory of a process of a node. `head` distinguishes heads that use the same machine,
    /// `process` the processes of the node.
    pub(super) fn new(dir: &str, node: &str, head: &str, process: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' };
        let head: String = head.chars().map(plain).collect();
        let node = format!("{dir}/{node}.{head}");
        let process = format!("{node}.{process}");
        Self { node, process }
    }

    /// Path of a file in it.
    pub(super) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.process)
    }

    /// The command that starts the node brought by [`bring`]. Its standard input is the node's.
    pub(super) fn start(&self) -> String {
        format!("exec sh -c {} springtide {}", quote(RUN_AND_REMOVE), quote(&self.process))
    }
}

/// A file to bring.
pub(super) struct RemoteFile {
    /// Name in the node's directory.
    pub name: &'static str,
    /// Contents of the file.
    pub text: String,
}

/// The script that removes former processes of the node, and creates its directory and files,
/// private to the owner.
///
/// It is a single block, which a shell reads completely before it executes any of it: a truncated
/// script has no effect.
pub(super) fn bring(directory: &RemoteDirectory, files: &[RemoteFile]) -> String {
    let process = quote(&directory.process);
    let former = remove_processes(&format!("{}.*", quote(&directory.node)));
    let mut script =
        format!("{{\numask 077\nset -e\n{former}mkdir -p {process}\nchmod 700 {process}\n");
    for RemoteFile { name, text } in files {
        // Not a here-document: dash loses the non-ASCII byte after a prefix of the delimiter.
        let file = quote(&directory.file(name));
        let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let text = quote(&format!("{text}{newline}"));
        let _ = write!(script, "rm -f {file}\nprintf %s {text} > {file}\n");
    }
    script.push_str("}\n");
    script
}

/// The script that removes the files brought by [`bring`], where no node does.
pub(super) fn remove(directory: &RemoteDirectory) -> String {
    format!("{{\n{}}}\n", remove_processes(&quote(&directory.process)))
}

/// Part of a script that kills processes with directories matching this shell pattern, and removes
/// the directories.
fn remove_processes(pattern: &str) -> String {
    // A process whose connection was cut ends by itself, but a hanging one would keep its
    // processor. Its pid may belong to another process by now, whose arguments do not contain the
    // directory. A process that never started has no pid file, but keys.
    format!(
        r#"for old in {pattern}/; do
    test -d "$old" || continue
    if test -f "$old"pid && read -r pid < "$old"pid; then
        case $(ps -p "$pid" -o args= 2> /dev/null || :) in
            *"${{old}}node.toml"*) kill -9 "$pid" || : ;;
        esac
    fi
    rm -rf "$old"
done
"#
    )
}

/// The script `start.sh`, which becomes the node's program. With `reached`, the node listens on
/// this port of the address by which its machine was reached, so that others reach it. Its config
/// or environment takes precedence.
pub(super) fn start(
    directory: &RemoteDirectory,
    program: &str,
    env: &[(String, String)],
    reached: Option<u16>,
) -> String {
    let mut script = format!("echo $$ > {}\n", quote(&directory.file("pid")));
    for (name, value) in env {
        let _ = writeln!(script, "{name}={}\nexport {name}", quote(value));
    }
    if let Some(port) = reached {
        let _ = write!(
            script,
            r#"if test -z "${{SPRINGTIDE_NET__BIND+x}}" && test -n "${{SSH_CONNECTION-}}"; then
    set -- $SSH_CONNECTION
    case $3 in
        *%*) ;;
        *:*) SPRINGTIDE_NET__BIND="[$3]:{port}"; export SPRINGTIDE_NET__BIND ;;
        *) SPRINGTIDE_NET__BIND="$3:{port}"; export SPRINGTIDE_NET__BIND ;;
    esac
fi
"#
        );
    }
    let (program, config) = (quote(program), quote(&directory.file("node.toml")));
    let _ = write!(
        script,
        "echo {}\nexec {program} node run --with-parent --config {config} > /dev/null\n",
        quote(STARTED)
    );
    script
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::{Command, Output, Stdio};

    use proptest::prelude::*;

    use super::*;

    /// Runs `sh` with a script on its standard input.
    fn sh(script: &str, home: &Path) -> Output {
        let mut command = Command::new("sh");
        command.current_dir(home).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn directories_are_taken_as_people_write_them() {
        let given = ["", "~", "~/grid/", "/var/grid", ".springtide", "-rf"].map(remote_path);
        assert_eq!(given, [".", ".", "grid", "/var/grid", ".springtide", "./-rf"]);
    }

    #[test]
    fn a_truncated_script_has_no_effect() {
        let home = tempfile::tempdir().unwrap();
        let directory = RemoteDirectory::new("grid", "a-1", "[::1]:47000", "1");
        let files = [RemoteFile { name: "ca.pem", text: "one\nEND\ntwo".to_owned() }];
        let script = bring(&directory, &files);
        for end in 0..script.len() - "\n}\n".len() {
            sh(&script[..end], home.path());
            assert!(!home.path().join("grid").exists(), "after {end} bytes of {script}");
        }
        let output = sh(&script, home.path());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let dir = home.path().join("grid/a-1.___1__47000.1");
        let file = dir.join("ca.pem");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\nEND\ntwo\n");
        assert_eq!((mode(&dir), mode(&file)), (0o700, 0o600));
    }

    #[test]
    fn only_the_given_process_is_removed() {
        let home = tempfile::tempdir().unwrap();
        let [first, second] =
            ["1", "10"].map(|process| RemoteDirectory::new("it's * $HOME", "a-1", "h:1", process));
        let script = remove(&first);
        let key = |directory: &RemoteDirectory| home.path().join(directory.file("node.key"));
        let bring = |directory: &RemoteDirectory| {
            let key = key(directory);
            std::fs::create_dir_all(key.parent().unwrap()).unwrap();
            std::fs::write(key, "secret").unwrap();
        };
        [&first, &second].into_iter().for_each(bring);
        for end in 0..script.len() - "\n}\n".len() {
            sh(&script[..end], home.path());
            assert!(key(&first).exists(), "after {end} bytes of {script}");
        }
        // Also where nothing is left.
        for _ in 0..2 {
            let output = sh(&script, home.path());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(!key(&first).parent().unwrap().exists() && key(&second).exists());
        }
    }

    #[test]
    fn a_node_listens_on_the_address_by_which_its_machine_was_reached() {
        let home = tempfile::tempdir().unwrap();
        let directory = RemoteDirectory::new(".", "a-1", "h:1", "1");
        std::fs::create_dir(home.path().join("a-1.h_1.1")).unwrap();
        let said = |connection: Option<&str>, env: &[(String, String)]| {
            // `env` instead of the program would parse the arguments.
            let script = start(&directory, "printenv", env, Some(47001));
            let script = script.replace("printenv' node run", "printenv' SPRINGTIDE_NET__BIND #");
            let script = quote(&script.replace("> /dev/null", ""));
            let connection =
                connection.map(|c| format!("SSH_CONNECTION={} ", quote(c))).unwrap_or_default();
            let script = format!("{connection}sh -c {script}");
            let output = sh(&script, home.path());
            let lines = String::from_utf8(output.stdout).unwrap();
            let after = lines.split_once(STARTED).expect("it begins").1.trim().to_owned();
            (!after.is_empty()).then_some(after)
        };
        let four = Some("192.0.2.1 5000 192.0.2.7 22");
        assert_eq!(said(four, &[]).as_deref(), Some("192.0.2.7:47001"));
        let six = Some("2001:db8::1 5000 2001:db8::7 22");
        assert_eq!(said(six, &[]).as_deref(), Some("[2001:db8::7]:47001"));
        assert_eq!(said(Some("fe80::1%e0 5 fe80::7%e0 22"), &[]), None);
        let own = [("SPRINGTIDE_NET__BIND".to_owned(), "10.0.0.1:0".to_owned())];
        assert_eq!(said(four, &own).as_deref(), Some("10.0.0.1:0"));
        assert_eq!(said(None, &[]), None);
    }

    /// A here-document loses bytes of this text; found by the property below.
    #[test]
    fn text_beyond_ascii_arrives_whole() {
        let home = tempfile::tempdir().unwrap();
        let directory = RemoteDirectory::new(&remote_path("x"), "a-1", "h:1", "1");
        let text = "E\u{e000}\nEN\u{e9}\n";
        let files = [RemoteFile { name: "node.toml", text: text.to_owned() }];
        assert!(sh(&bring(&directory, &files), home.path()).status.success());
        let config = home.path().join(directory.file("node.toml"));
        assert_eq!(std::fs::read_to_string(&config).unwrap(), text);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Any directory, program, variable and text arrive unchanged through all scripts.
        #[test]
        fn files_and_arguments_arrive_unchanged(
            dir in "[a-z '\"$*\\\\;-]{1,12}", value in "[^\\x00]{0,30}", text in "[^\\x00\r]{0,60}",
        ) {
            let home = tempfile::tempdir().unwrap();
            let program = home.path().join("it's a \"program\"");
            let prints = "#!/bin/sh\nprintf '%s\n' \"$@\" >&2\nprintf %s \"$VALUE\" >&2\n";
            std::fs::write(&program, prints).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
            let directory = RemoteDirectory::new(&remote_path(&dir), "a-1", "h:1", "1");
            let env = [("VALUE".to_owned(), value.clone())];
            let files = [
                RemoteFile { name: "node.toml", text: text.clone() },
                RemoteFile {
                    name: "start.sh",
                    text: start(&directory, program.to_str().unwrap(), &env, Some(0)),
                },
            ];
            let output = sh(&bring(&directory, &files), home.path());
            prop_assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let config = home.path().join(directory.file("node.toml"));
            let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            prop_assert_eq!(std::fs::read_to_string(&config).unwrap(), format!("{text}{newline}"));
            let output = sh(&directory.start(), home.path());
            prop_assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{STARTED}\n"));
            let config = directory.file("node.toml");
            let words = format!("node\nrun\n--with-parent\n--config\n{config}\n{value}");
            prop_assert_eq!(String::from_utf8_lossy(&output.stderr), words);
            prop_assert!(!home.path().join(config).exists());
        }
    }
}
