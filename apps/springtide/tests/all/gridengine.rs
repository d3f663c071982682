//! A grid in a real Grid Engine cell: nodes are batch jobs, and a later head takes them over.
//!
//! The cell is that of `springtide_tests::gridengine`; without Grid Engine this test says so and
//! passes.

use std::fs;

use springtide_tests::gridengine::GridEngineLab;

use crate::support::finish;

const CONFIG: &str = r#"
grid = "campus"
[scheduling]
poll = "500ms"
scan_interval = "500ms"
[adaptation]
mode = "static"
[[cluster]]
name = "vu"
nodes = 3
provider = "batch"
[cluster.batch]
preset = "gridengine"
queue = "all.q"
poll = "500ms"
keep = "1s"
"#;

/// A user's session in the cell, whose network has no other processes. All of them end with it.
const SESSION: &str = r#"
cd "$1"
program=$2
springtide() { "$program" "$@" --config grid.toml; }
until_ok() {
    tries=0
    until "$@" >last.out 2>last.err; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || { echo "failed: $*"; cat last.out last.err up.log; exit 1; }
        sleep 0.2
    done
}
jobs() { qstat | sed -n 's/^ *\([0-9][0-9]*\) .* r .*/\1/p' | tr '\n' ' '; }
runs() { [ "$(jobs | wc -w)" = "$1" ]; }
# Whether the nodes of a job have registered: a stub that runs has a node a moment later.
has() { springtide job status "$1" --json | tr -d ' \n' | grep -q "\"sizes\":{\"vu\":$2}"; }
"$program" up grid.toml >up.log 2>&1 &
head=$!
until_ok springtide job submit queens --size 18 --min 1 --max 3 -q
until_ok runs 3
until_ok has 1 3
before=$(jobs)
kill -KILL "$head"
"$program" up grid.toml >>up.log 2>&1 &
head=$!
until_ok springtide job status 1
sleep 5
[ "$(jobs)" = "$before" ] || { echo "jobs $(jobs), before $before"; cat up.log; exit 1; }
until_ok springtide job cancel 1
until_ok springtide job submit queens --size 10 --min 2 --max 2 -q
until_ok springtide job result 2 --wait
cat last.out
until_ok runs 0
kill -TERM "$head"
wait "$head"
echo "the head ended with $?"
"#;

#[test]
fn a_job_outlives_its_head() {
    let lab = match GridEngineLab::start(4) {
        Ok(lab) => lab,
        Err(skipped) => return println!("{skipped}"),
    };
    let dir = lab.files();
    fs::write(dir.join("grid.toml"), CONFIG).unwrap();
    fs::write(dir.join("session"), SESSION).unwrap();
    let mut session = lab.in_cell("sh");
    session.arg(dir.join("session")).arg(&dir).arg(env!("CARGO_BIN_EXE_springtide"));
    for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("SPRINGTIDE_")) {
        session.env_remove(key);
    }
    let output = finish(session);
    assert_eq!(output.code, Some(0), "{}\n{}", output.out, output.err);
    assert!(output.out.contains("solutions = 724"), "{}", output.out);
    assert!(output.out.ends_with("the head ended with 0\n"), "{}", output.out);
}
