//! What makes two runs of one seed differ is kept out of the code that simulations run.
//!
//! Sources are read as text: what is meant for real time or real nodes alone is listed here, with
//! its reason.

use std::fs;
use std::path::{Path, PathBuf};

/// What runs in simulations.
const ROOMS: &[&str] = &[
    "runtime/src",
    "runtime/forkjoin/src",
    "runtime/work/src",
    "runtime/base/src",
    "runtime/macros/src",
    "runtime/metrics/src",
    "runtime/net/src",
    "runtime/remote/src",
    "actors/policy/src",
    "actors/protocol/src",
    "actors/providers/src",
    "actors/scheduler/src",
    "actors/src",
    "apps/simulator/src",
];

/// A word, why it has no place there, and the files in which it has one.
const TRAPS: &[(&str, &str, &[&str])] = &[
    ("HashMap", "its order differs from process to process: BTreeMap", &[]),
    ("HashSet", "its order differs from process to process: BTreeSet", &[]),
    ("RandomState", "it differs from process to process: random::SplitMix with a seed", &[]),
    ("thread_rng", "it differs from process to process: random::SplitMix with a seed", &[]),
    (
        "std::time::Instant",
        "it is no simulated time: tokio::time::Instant",
        // QUIC's timers are set with this type, to times that are made of simulated ones.
        &["runtime/net/src/net/memory/ticks.rs"],
    ),
    (
        "SystemTime",
        "it is no simulated time",
        // Records of real processes carry dates, which are shown; certificates hold by the
        // calendar, of which simulated ones carry the length alone; and QUIC asks for dates of this
        // type, which the simulated ones make of simulated time. The fuzzer draws a seed that it
        // prints. Histories of jobs carry dates, which are shown. The mirror of a real head
        // compares the dates of files. A store dates programs, so that a later process removes the
        // least recently used one.
        &[
            "actors/src/standby/mirror.rs",
            "actors/src/programs/store.rs",
            "actors/src/store/history.rs",
            "runtime/base/src/fuzz.rs",
            "runtime/work/src/event/recorder.rs",
            "runtime/net/src/net/tls.rs",
            "runtime/net/src/net/tls/enrol.rs",
            "runtime/net/src/net/memory/endpoints.rs",
        ],
    ),
    (
        "process::id()",
        "it differs from process to process, and so does its length in a message",
        // The name of a file of one process; the holder of a real lease; the directory of a node on
        // a real machine.
        &[
            "runtime/base/src/atomic_file.rs",
            "runtime/net/src/net/tls.rs",
            "actors/src/lease.rs",
            "actors/providers/src/ssh/mod.rs",
        ],
    ),
    (
        "thread::sleep",
        "it blocks all that is simulated: tokio::time::sleep",
        // Real compute threads; the executor of a program without one; a test of real endpoints.
        &[
            "runtime/forkjoin/src/seam.rs",
            "runtime/work/src/work/here.rs",
            "runtime/work/src/work/throttle.rs",
            "actors/src/admit/rogue.rs",
        ],
    ),
];

pub(crate) fn sources(under: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(under).expect("a folder of the repository") {
        let path = entry.expect("its entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            found.push(path);
        }
    }
}

/// Its code, without comments and without unit tests, which stand at the end or in files of their
/// own.
pub(crate) fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// What is wrong with a file's code.
fn mistakes(name: &str, code: &str) -> Vec<String> {
    let trapped = TRAPS.iter().filter(|(word, _, but)| code.contains(word) && !but.contains(&name));
    let mut mistakes: Vec<String> =
        trapped.map(|(word, why, _)| format!("{name}: {word}: {why}")).collect();
    for branches in code.split("select! {").skip(1) {
        if !branches.trim_start().starts_with("biased;") {
            mistakes.push(format!(
                "{name}: select! draws lots among its branches: begin it with `biased;`"
            ));
        }
    }
    mistakes
}

#[test]
fn nothing_that_is_simulated_depends_on_the_process_it_runs_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    ROOMS.iter().for_each(|room| sources(&root.join(room), &mut files));
    assert!(files.len() > 100, "{} files", files.len());
    files.sort();
    let mut found = Vec::new();
    for path in &files {
        let name = path.strip_prefix(&root).expect("under it").to_string_lossy().replace('\\', "/");
        if name.contains("tests") {
            continue;
        }
        let text = fs::read_to_string(path).expect("a source file");
        found.extend(mistakes(&name, &code(&text)));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_traps_are_seen() {
    let wrong =
        code("use std::collections::HashMap; // SystemTime\ntokio::select! {\n  a = b => {}\n}\n");
    assert_eq!(mistakes("a.rs", &wrong).len(), 2, "{:?}", mistakes("a.rs", &wrong));
    let right = code(
        "tokio::select! {\n  biased;\n  a = b => {}\n}\n\n#[cfg(test)]\nmod tests {\nHashMap\n}\n",
    );
    assert_eq!(mistakes("a.rs", &right), Vec::<String>::new());
    let listed = code("SystemTime::now()");
    assert_eq!(mistakes("runtime/net/src/net/tls.rs", &listed), Vec::<String>::new());
    assert_eq!(mistakes("actors/src/worker/mod.rs", &listed).len(), 1);
    // No incarnation depends on a clock.
    for file in ["actors/src/endpoint.rs", "runtime/base/src/incarnation.rs"] {
        assert_eq!(mistakes(file, &listed).len(), 1, "{file}");
    }
}
