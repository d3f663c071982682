//! `netem-scripts/kernel.sh` with tools that only write down what they are told: no right is needed, and no network is made.
//!
//! Must not know what a kernel makes of it: networks by the real tools are tested where they are held.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::text;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../netem-scripts/kernel.sh");

/// All that the script runs and that could change something. What `nsenter` is to run by a shell sets the kernel up: it is left out.
const TOOLS: [(&str, &str); 6] = [
    ("id", "echo 0"),
    (
        "ip",
        "case \"$*\" in -V) echo 'ip utility, iproute2-test' ;; *-batch*) cat >/dev/null ;; esac",
    ),
    (
        "tc",
        "case \"$*\" in -V) echo 'tc utility, iproute2-test'; exit ;; *-batch*) ;; *) exit ;; esac\n\
         failed=0; number=0\n\
         while read -r line; do\n\
             number=$((number + 1))\n\
             echo \"$line\" >>\"$TOLD\"\n\
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

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
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

    /// Runs the script with these lines; what it complains of. `tc` refuses lines that have `refused` in them.
    fn script(&self, what: &str, lines: &str, refused: &str) -> (Option<i32>, String) {
        let input = self.file("input");
        fs::write(&input, lines).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command.args([SCRIPT, what, "test"]).stdin(fs::File::open(&input).unwrap());
        command.stdout(Stdio::null()).env("STATE", self.file("state"));
        command.env("PATH", format!("{}:{path}", self.dir.path().display()));
        command.env("TOLD", self.file("told")).env("REFUSED", refused);
        for space in ["core", "a", "b"] {
            command.env(format!("NS_{space}"), self.file(&format!("ns-{space}")));
        }
        let ended = command.output().expect("a shell is there");
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    }

    fn up(&self) {
        assert_eq!(self.script("up", TABLE, ""), (Some(0), String::new()));
    }

    /// What `tc` was told since this was last asked.
    fn told(&self) -> String {
        let told = text(&self.file("told"));
        let _ = fs::remove_file(self.file("told"));
        told
    }
}

/// The last line that has this in it.
fn last<'a>(told: &'a str, part: &str) -> &'a str {
    told.lines().rfind(|line| line.contains(part)).unwrap_or_else(|| panic!("{part}: {told}"))
}

/// Where the links between the two clusters are: towards `a`, and towards `b`.
const QUEUES: [&str; 2] = ["qdisc change dev c1 parent 1:102", "qdisc change dev c2 parent 1:101"];

#[test]
fn a_change_that_is_refused_is_taken_back_whole() {
    let place = Place::new();
    place.up();
    let before = text(&place.file("state"));
    assert!(before.contains("link a a 50 0 0 - 100000 0\n"), "{before}");
    place.told();
    let lines = "uplink a 500000 50000\nlink b a 20000 0 0 1000000 100000 0\n\
        link a b 66600 0 0 1000000 100000 0\n";
    let (code, err) = place.script("set", lines, "delay 66600us");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("no such thing") && err.contains("nothing is changed"), "{err}");
    assert_eq!(text(&place.file("state")), before);
    let told = place.told();
    // The first was done and is undone; what came after the second was never begun, but might have been.
    assert!(told.contains("delay 20000us"), "{told}");
    for queue in QUEUES {
        assert!(last(&told, queue).contains("delay 10000us"), "{told}");
    }
    assert!(last(&told, "dev wan").contains("rate 16000000bit"), "{told}");
    assert!(!told.contains("rate 4000000bit"), "{told}");

    // One that is not refused is there to stay.
    let (code, err) = place.script("set", lines, "");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let told = place.told();
    assert!(last(&told, QUEUES[0]).contains("delay 20000us"), "{told}");
    assert!(last(&told, QUEUES[1]).contains("delay 66600us"), "{told}");
    assert!(text(&place.file("state")).contains("link a b 66600 0 0 1000000 100000 0\n"));
}

#[test]
fn what_cannot_be_taken_back_is_told_and_the_rest_is() {
    let place = Place::new();
    place.up();
    let before = text(&place.file("state"));
    place.told();
    let lines = "link b a 20000 0 0 1000000 100000 0\nlink a b 66600 0 0 1000000 100000 0\n";
    let (code, err) = place.script("set", lines, "dev c2");
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("could not all be taken back: take it down, and up again"), "{err}");
    assert!(last(&place.told(), QUEUES[0]).contains("delay 10000us"));
    assert_eq!(text(&place.file("state")), before);
}

#[test]
fn a_direction_that_has_no_line_is_told_before_anything_is_made() {
    let place = Place::new();
    let table = TABLE.replace("link b a 10000 0 0 1000000 100000 0\n", "");
    let (code, err) = place.script("up", &table, "");
    assert_eq!(code, Some(2), "{err}");
    assert_eq!(
        err,
        "table: nothing says what goes from b to a: add `link b a DELAY_US JITTER_US LOSS RATE QUEUE REORDER`\n"
    );
    // Another mistake counts first: this may follow from it.
    let (code, err) = place.script("up", &table.replace("10000 0 0", "10000 0"), "");
    assert_eq!(code, Some(2), "{err}");
    assert!(err.starts_with("line 5: it must have the form: link FROM TO"), "{err}");
    assert!(!err.contains("nothing says"), "{err}");
    assert_eq!(place.told(), "");
    assert!(!place.file("state").exists());
}
