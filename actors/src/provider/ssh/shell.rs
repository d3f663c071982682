//! What shells on other machines are told: the scripts that bring a node's files and start it.
//!
//! Scripts go over standard input, which no list of processes shows; command lines hold paths alone. Must not know ssh.

use std::fmt::Write;

use crate::provider::words::quote;

/// The line that says that a node's program is being started. What shells print before it is noise of whoever set them up.
pub(super) const STARTED: &str = "springtide: the node is being started";

/// Runs the node of the directory `$1`, then takes the directory away: keys do not stay on machines that others own. A
/// shell waits for the node, so that its end by a signal is an exit code: ssh itself says 255 to that, as to a lost link.
const KEEP: &str = r#"sh "$1/start.sh"; code=$?; rm -rf "$1"; exit "$code""#;

/// A directory of the config as shells over there understand it, where it is relative to the home directory.
pub(super) fn directory(given: &str) -> String {
    let given = given.strip_prefix("~/").unwrap_or(given).trim_end_matches('/');
    match given {
        "" | "~" => ".".to_owned(),
        // No command takes it for an option.
        dash if dash.starts_with('-') => format!("./{dash}"),
        plain => plain.to_owned(),
    }
}

/// A node's directory on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Common to all lives of this node under this head: what it names begins so.
    node: String,
    /// This life's own.
    life: String,
}

impl Place {
    /// The directory of a node's life. `head` tells apart the heads that use the same machine, `life` the lives of the node.
    pub(super) fn new(dir: &str, node: &str, head: &str, life: &str) -> Self {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' };
        let head: String = head.chars().map(plain).collect();
        let node = format!("{dir}/{node}.{head}");
        let life = format!("{node}.{life}");
        Self { node, life }
    }

    /// A file of it.
    pub(super) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.life)
    }

    /// The command that starts what [`bring`] brought. Its standard input is the node's.
    pub(super) fn start(&self) -> String {
        format!("exec sh -c {} springtide {}", quote(KEEP), quote(&self.life))
    }
}

/// A file that is brought.
pub(super) struct Brought {
    /// Its name in the node's directory.
    pub name: &'static str,
    /// Its text.
    pub text: String,
}

/// The script that ends what former lives of the node left, makes its directory, for the owner alone, and writes its
/// files, also for the owner alone.
///
/// It is one block, which a shell reads to its end before it does any of it: half a script does nothing.
pub(super) fn bring(place: &Place, files: &[Brought]) -> String {
    let life = quote(&place.life);
    let former = sweep(&format!("{}.*", quote(&place.node)));
    let mut script = format!("{{\numask 077\nset -e\n{former}mkdir -p {life}\nchmod 700 {life}\n");
    for Brought { name, text } in files {
        // No here-document: dash loses the byte beyond ASCII that follows what its end begins with.
        let file = quote(&place.file(name));
        let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let text = quote(&format!("{text}{newline}"));
        let _ = write!(script, "rm -f {file}\nprintf %s {text} > {file}\n");
    }
    script.push_str("}\n");
    script
}

/// The script that takes away what [`bring`] brought, where no node will.
pub(super) fn forget(place: &Place) -> String {
    format!("{{\n{}}}\n", sweep(&quote(&place.life)))
}

/// The part of a script that ends the lives whose directories these are, a shell's pattern, and takes those away.
fn sweep(lives: &str) -> String {
    // A life whose connection was cut ends by itself; one that hangs does not, and would keep its processor. The number may
    // by now be another process's, whose words do not name the directory. One that was brought and not started has none, but keys.
    format!(
        r#"for old in {lives}/; do
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

/// The script `start.sh`, which turns into the node's program. With `reached` the node listens on this port of the address by
/// which its machine was reached, so that others reach the node by it too; its config or environment says it otherwise.
pub(super) fn start(
    place: &Place,
    program: &str,
    env: &[(String, String)],
    reached: Option<u16>,
) -> String {
    let mut script = format!("echo $$ > {}\n", quote(&place.file("pid")));
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
    let (program, config) = (quote(program), quote(&place.file("node.toml")));
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

    /// What `sh` makes of a script on its standard input.
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
        let given = ["", "~", "~/grid/", "/var/grid", ".springtide", "-rf"].map(directory);
        assert_eq!(given, [".", ".", "grid", "/var/grid", ".springtide", "./-rf"]);
    }

    #[test]
    fn half_a_script_does_nothing() {
        let home = tempfile::tempdir().unwrap();
        let place = Place::new("grid", "a-1", "[::1]:47000", "1");
        let files = [Brought { name: "ca.pem", text: "one\nEND\ntwo".to_owned() }];
        let script = bring(&place, &files);
        for end in 0..script.len() - "\n}\n".len() {
            sh(&script[..end], home.path());
            assert!(!home.path().join("grid").exists(), "after {end} bytes of {script}");
        }
        let told = sh(&script, home.path());
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
        let dir = home.path().join("grid/a-1.___1__47000.1");
        let file = dir.join("ca.pem");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\nEND\ntwo\n");
        assert_eq!((mode(&dir), mode(&file)), (0o700, 0o600));
    }

    #[test]
    fn one_life_is_forgotten_and_no_other() {
        let home = tempfile::tempdir().unwrap();
        let [first, second] =
            ["1", "10"].map(|life| Place::new("it's * $HOME", "a-1", "h:1", life));
        let script = forget(&first);
        let key = |place: &Place| home.path().join(place.file("node.key"));
        let bring = |place: &Place| {
            let key = key(place);
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
            let told = sh(&script, home.path());
            assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
            assert!(!key(&first).parent().unwrap().exists() && key(&second).exists());
        }
    }

    #[test]
    fn the_address_by_which_a_machine_is_reached_is_where_its_node_listens() {
        let home = tempfile::tempdir().unwrap();
        let place = Place::new(".", "a-1", "h:1", "1");
        std::fs::create_dir(home.path().join("a-1.h_1.1")).unwrap();
        let said = |connection: Option<&str>, env: &[(String, String)]| {
            // `env` in the program's place would read the arguments as its own.
            let script = start(&place, "printenv", env, Some(47001));
            let script = script.replace("printenv' node run", "printenv' SPRINGTIDE_NET__BIND #");
            let script = quote(&script.replace("> /dev/null", ""));
            let connection =
                connection.map(|c| format!("SSH_CONNECTION={} ", quote(c))).unwrap_or_default();
            let script = format!("{connection}sh -c {script}");
            let told = sh(&script, home.path());
            let lines = String::from_utf8(told.stdout).unwrap();
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

    /// Found by the property below: a here-document loses bytes of this.
    #[test]
    fn text_beyond_ascii_arrives_whole() {
        let home = tempfile::tempdir().unwrap();
        let place = Place::new(&directory("x"), "a-1", "h:1", "1");
        let text = "E\u{e000}\nEN\u{e9}\n";
        let files = [Brought { name: "node.toml", text: text.to_owned() }];
        assert!(sh(&bring(&place, &files), home.path()).status.success());
        let config = home.path().join(place.file("node.toml"));
        assert_eq!(std::fs::read_to_string(&config).unwrap(), text);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Any directory, program, variable and text arrive as they are, through all scripts.
        #[test]
        fn a_node_gets_what_it_was_sent(
            dir in "[a-z '\"$*\\\\;-]{1,12}", value in "[^\\x00]{0,30}", text in "[^\\x00\r]{0,60}",
        ) {
            let home = tempfile::tempdir().unwrap();
            let program = home.path().join("it's a \"program\"");
            std::fs::write(&program, "#!/bin/sh\nprintf '%s\n' \"$@\" >&2\nprintf %s \"$VALUE\" >&2\n").unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
            let place = Place::new(&directory(&dir), "a-1", "h:1", "1");
            let env = [("VALUE".to_owned(), value.clone())];
            let files = [
                Brought { name: "node.toml", text: text.clone() },
                Brought { name: "start.sh", text: start(&place, program.to_str().unwrap(), &env, Some(0)) },
            ];
            let told = sh(&bring(&place, &files), home.path());
            prop_assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
            let config = home.path().join(place.file("node.toml"));
            let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            prop_assert_eq!(std::fs::read_to_string(&config).unwrap(), format!("{text}{newline}"));
            let told = sh(&place.start(), home.path());
            prop_assert_eq!(String::from_utf8_lossy(&told.stdout), format!("{STARTED}\n"));
            let words = format!("node\nrun\n--with-parent\n--config\n{}\n{value}", place.file("node.toml"));
            prop_assert_eq!(String::from_utf8_lossy(&told.stderr), words);
            prop_assert!(!config.exists());
        }
    }
}
