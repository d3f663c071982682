//! Commands on a pool without a network: real processes of this host.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{CommandSpec, EnvironmentVariable, ProcessUnit};
use crate::work::{
    Context, Failure, Job, Outcome, OutputStream, PoolConfig, ProgressReport, Registry, Stop,
    encode_job, solo,
};

#[derive(Serialize, Deserialize)]
struct ShellJob(CommandSpec);

impl Job for ShellJob {
    const NAME: &'static str = "run";
    const ABOUT: &'static str = "A command";

    fn register(registry: &mut Registry) {
        super::register(registry);
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        super::run(&self.0, cx)
    }
}

fn shell(script: &str) -> CommandSpec {
    CommandSpec {
        program: "sh".to_owned(),
        arguments: vec!["-c".to_owned(), script.to_owned()],
        environment: vec![EnvironmentVariable { name: "OWN".to_owned(), value: "1".to_owned() }],
        directory: None,
        submit_directory: None,
        stdin: None,
        inputs: Vec::new(),
        unit: ProcessUnit::Processor,
        restarts: 0,
        grace: Duration::from_millis(200),
    }
}

/// A rank with its standard output and its standard error.
type RankOutput = (u32, String, String);

/// A piece of output.
type ReceivedPiece = (u32, OutputStream, Vec<u8>);

/// The outcome, and the output of each rank and stream.
fn run(spec: CommandSpec, threads: usize) -> (Result<Outcome, Failure>, Vec<RankOutput>) {
    let mut registry = Registry::new();
    registry.job::<ShellJob>();
    let config = PoolConfig { threads, ..PoolConfig::default() };
    let pieces: Arc<Mutex<Vec<ReceivedPiece>>> = Arc::default();
    let kept = pieces.clone();
    let note = move |note| {
        if let ProgressReport::Output { rank, stream, bytes, .. } = note {
            kept.lock().unwrap().push((rank, stream, bytes.to_vec()));
        }
    };
    let body = encode_job(ShellJob(spec)).unwrap();
    let ended = solo::run(Arc::new(registry), "run", body, &config, note).unwrap();
    let pieces = std::mem::take(&mut *pieces.lock().unwrap());
    let text = |rank: u32, stream: OutputStream| {
        let own = pieces.iter().filter(|(at, of, _)| (*at, *of) == (rank, stream));
        let bytes: Vec<u8> = own.flat_map(|(_, _, bytes)| bytes.clone()).collect();
        String::from_utf8(bytes).unwrap()
    };
    let ranks = 0..u32::try_from(threads).unwrap();
    let output = ranks
        .map(|rank| (rank, text(rank, OutputStream::Stdout), text(rank, OutputStream::Stderr)));
    let output = output.collect();
    (ended.outcome, output)
}

#[test]
fn each_process_has_its_rank_and_its_output_is_kept() {
    let script = "echo $SPRINGTIDE_RANK/$SPRINGTIDE_PROCESSES $OWN; cat $SPRINGTIDE_HOSTFILE >&2";
    let (outcome, output) = run(shell(script), 3);
    assert_eq!(outcome.unwrap().result["processes"], 3);
    for (rank, out, err) in output {
        assert_eq!(out, format!("{rank}/3 1\n"));
        assert!(err.ends_with(" slots=3\n"), "{err}");
    }
}

#[test]
fn input_output_and_codes_are_exact() {
    let spec = CommandSpec {
        stdin: Some("a\nb".into()),
        unit: ProcessUnit::Job,
        ..shell("cat; head -c 3000000 /dev/zero | tr '\\0' x; exit 3")
    };
    let (outcome, output) = run(spec, 2);
    let failure = outcome.unwrap_err();
    assert_eq!(failure.exit, Some(3));
    assert!(failure.message.contains("rank 0 on node alone exited with code 3"), "{failure}");
    assert_eq!(output[0].1.len(), 3 + 3_000_000);
    assert!(output[0].1.starts_with("a\nbxxx"));
    for (script, code) in [("kill -9 $$", 137), ("exec /nowhere/program", 127)] {
        assert_eq!(run(shell(script), 1).0.unwrap_err().exit, Some(code), "{script}");
    }
    let missing = CommandSpec { program: "no-such-program".to_owned(), ..shell("") };
    let failure = run(missing, 1).0.unwrap_err();
    assert_eq!(failure.exit, Some(127));
    assert!(failure.message.contains("no-such-program"), "{failure}");
}

/// A failure ends processes that ignore SIGTERM, and what they have started.
#[test]
fn the_first_failure_ends_all_processes() {
    let script = "if [ $SPRINGTIDE_RANK = 1 ]; then sleep 0.3; exit 5; fi; \
                  trap 'echo asked' TERM; sleep 1000 & while true; do wait; done";
    let (outcome, output) = run(shell(script), 2);
    assert_eq!(outcome.unwrap_err().exit, Some(5));
    assert_eq!(output[0].1, "asked\n");
}
