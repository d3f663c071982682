//! `netem-scripts/kernel.sh` with tools that only record their arguments: it needs no rights and
//! creates no network.
//!
//! This module does not know the kernel: other tests use the real tools.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::text;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../netem-scripts/kernel.sh");

/// All programs that the script runs and that could change something. Shell commands for `nsenter`
/// set up the kernel and are omitted.
const TOOLS: [(&str, &str); 6] = [
    ("id", "echo 0"),
    (
        "ip",
        "case \"$*\" in -V) echo 'ip utility, iproute2-test' ;; *-batch*) cat >/dev/null ;; esac",
    ),
    (
        "tc",
        "case \"$*\" in -V) echo 'tc utility, iproute2-test'; exit ;; *-batch*) ;; *) exit ;; \
        esac\n\
        failed=0; number=0\n\
        while read -r line; do\n\
        number=$((number + 1))\n\
        echo \"$line\" >>\"$ARGUMENTS\"\n\
        case $line in *\"${REFUSED:-nothing is}\"*) ;; *) continue ;; esac\n\
        echo 'Error: no such thing.'; echo \"Command failed -:$number\"; failed=1\n\
        case \"$*\" in *-force*) ;; *) exit 1 ;; esac\n\
        done\n\
        exit $failed",
    ),
    ("nsenter", "shift; case $1 in sh) exit 0 ;; esac; exec \"$@\""),
    ("unshare", "shift; exec \"$@\""),
    ("nft", "cat >/dev/null"),
];

const TABLE: &str = "net 10.77\ncluster a 1 2\ncluster b 2 1\nuplink a 2000000 200000\n\
link a b 10000 0 0 1000000 100000 0\nlink b a 10000 0 0 1000000 100000 0\n";

struct Script {
    dir: tempfile::TempDir,
}

impl Script {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, does) in TOOLS {
            let file = dir.path().join(name);
            fs::write(&file, format!("#!/bin/sh\n{does}\n")).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for space in ["core", "a", "b"] {
            fs::write(dir.path().join(format!("ns-{space}")), "").unwrap();
        }
        Self { dir }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the script with these lines and returns its errors. `tc` refuses arguments that contain
    /// `refused`.
    fn script(&self, what: &str, lines: &str, refused: &str) -> (Option<i32>, String) {
        let input = self.file("input");
        fs::write(&input, lines).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.args([SCRIPT, what, "test"]).stdin(fs::File::open(&input).unwrap());
        command.stdout(Stdio::null()).env("STATE", self.file("state"));
        command.env("PATH", format!("{}:{path}", self.dir.path().display()));
        command.env("ARGUMENTS", self.file("arguments")).env("REFUSED", refused);
        for space in ["core", "a", "b"] {
            command.env(format!("NS_{space}"), self.file(&format!("ns-{space}")));
        }
        let ended = command.output().expect("a shell is there");
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    }

    fn up(&self) {
        assert_eq!(self.script("up", TABLE, ""), (Some(0), String::new()));
    }

    /// The arguments of `tc` since the last call.
    fn recorded(&self) -> String {
        let recorded = text(&self.file("arguments"));
        let _ = fs::remove_file(self.file("arguments"));
        recorded
    }
}

/// The last line that contains this text.
fn last<'a>(recorded: &'a str, part: &str) -> &'a str {
    recorded
        .lines()
        .rfind(|line| line.contains(part))
        .unwrap_or_else(|| panic!("{part}: {recorded}"))
}

/// The queues of the links between the two clusters: towards `a`, and towards `b`.
const QUEUES: [&str; 2] = ["qdisc change dev c1 parent 1:102", "qdisc change dev c2 parent 1:101"];

#[test]
fn a_refused_change_is_undone_completely() {
    let place = Script::new();
    place.up();
    let before = text(&place.file("state"));
    assert!(before.contains("link a a 50 0 0 - 100000 0\n"), "{before}");
    place.recorded();
    let lines = "uplink a 500000 50000\nlink b a 20000 0 0 1000000 100000 0\n\
    link a b 66600 0 0 1000000 100000 0\n";
    let (code, err) = place.script("set", lines, "delay 66600us");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("no such thing") && err.contains("nothing is changed"), "{err}");
    assert_eq!(text(&place.file("state")), before);
    let recorded = place.recorded();
    // The first change was made and undone. The changes after the second were not made, but undone
    // in case.
    assert!(recorded.contains("delay 20000us"), "{recorded}");
    for queue in QUEUES {
        assert!(last(&recorded, queue).contains("delay 10000us"), "{recorded}");
    }
    assert!(last(&recorded, "dev wan").contains("rate 16000000bit"), "{recorded}");
    assert!(!recorded.contains("rate 4000000bit"), "{recorded}");

    // A change that is not refused stays.
    let (code, err) = place.script("set", lines, "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let recorded = place.recorded();
    assert!(last(&recorded, QUEUES[0]).contains("delay 20000us"), "{recorded}");
    assert!(last(&recorded, QUEUES[1]).contains("delay 66600us"), "{recorded}");
    assert!(text(&place.file("state")).contains("link a b 66600 0 0 1000000 100000 0\n"));
}

#[test]
fn failed_undo_is_reported_and_the_rest_is_undone() {
    let place = Script::new();
    place.up();
    let before = text(&place.file("state"));
    place.recorded();
    let lines = "link b a 20000 0 0 1000000 100000 0\nlink a b 66600 0 0 1000000 100000 0\n";
    let (code, err) = place.script("set", lines, "dev c2");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("could not all be taken back: take it down, and up again"), "{err}");
    assert!(last(&place.recorded(), QUEUES[0]).contains("delay 10000us"));
    assert_eq!(text(&place.file("state")), before);
}

#[test]
fn a_missing_direction_is_reported_before_any_change() {
    let place = Script::new();
    let table = TABLE.replace("link b a 10000 0 0 1000000 100000 0\n", "");
    let (code, err) = place.script("up", &table, "");
    assert_eq!(code, Some(2), "{err}");
    assert_eq!(
        err,
        "table: nothing says what goes from b to a: add `link b a DELAY_US JITTER_US LOSS RATE \
        QUEUE REORDER`\n"
    );
    // Other errors take precedence, as this one may be their consequence.
    let (code, err) = place.script("up", &table.replace("10000 0 0", "10000 0"), "");
    assert_eq!(code, Some(2), "{err}");
    assert!(err.starts_with("line 5: it must have the form: link FROM TO"), "{err}");
    assert!(!err.contains("nothing says"), "{err}");
    assert_eq!(place.recorded(), "");
    assert!(!place.file("state").exists());
}
