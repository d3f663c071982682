//! Comparison of the simulator over frames with the simulator over real QUIC endpoints: both must
//! agree.

use springtide_runtime::config::{ScenarioConfig, Sources, load};
use springtide_runtime::net::LinkUnit;

use crate::scenario::{SimulationParams, SimulationResult, simulate_over};

const GRID: &str = r#"
    name = "both"
    [app]
    iterations = 5
    work = "40s"
    leaves = 256
    bodies = 10000
    [job]
    period = "2s"
    [wide]
    rtt = "20ms"
    jitter = "1ms"
    [[cluster]]
    name = "a"
    nodes = 3
    start = 3
    uplink = "2MB/s"
    [[cluster]]
    name = "b"
    nodes = 3
    start = 3
    uplink = "2MB/s"
    [adaptation]
    mode = "static"
"#;

fn run_over(text: &str, seed: u64, wire: LinkUnit) -> SimulationResult {
    let config: ScenarioConfig = load(&Sources::of_text("test.toml", text)).expect("right").value;
    let how = SimulationParams { mode: config.adaptation.mode.into(), period: None, seed };
    let began = std::time::Instant::now();
    let played = simulate_over(&config, &how, wire.clone()).expect("it ends");
    let name = if wire == LinkUnit::Frames { "frames" } else { "quic" };
    println!(
        "{name:6} {:8.3} s in {:.3} s",
        played.wall.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    let outcome = played.ended.outcome.as_ref().expect("no failure");
    assert_eq!(outcome.checksum, played.answer, "{name}");
    played
}

/// Simulates a grid over both wires. The runtimes differ by at most this factor.
fn run_over_both(text: &str, factor: f64) -> [SimulationResult; 2] {
    let both = [LinkUnit::Frames, LinkUnit::quic()].map(|wire| run_over(text, 1, wire));
    let ratio = both[1].wall.as_secs_f64() / both[0].wall.as_secs_f64();
    assert!((1.0 / factor..factor).contains(&ratio), "{ratio}");
    both
}

#[test]
fn both_wires_give_the_right_answer_in_a_similar_time() {
    run_over_both(GRID, 1.1);
}

#[test]
fn both_wires_survive_a_cut_a_killed_root_and_crashed_machines() {
    let events = r#"
        [[event]]
        what = "cut"
        at = "6s"
        between = ["a", "b"]
        duration = "5s"
        [[event]]
        what = "kill"
        at = "20s"
        role = "root"
        [[event]]
        what = "crash"
        at = "25s"
        cluster = "b"
        nodes = 1
        duration = "20s"
    "#;
    let both = run_over_both(&format!("{GRID}{events}"), 1.25);
    for played in &both {
        let fewest = played.nodes.iter().map(|(_, nodes)| *nodes).min();
        assert!(fewest < Some(6), "{:?}", played.nodes);
    }
}

#[test]
fn adaptation_decides_alike_over_both_wires() {
    let text = GRID.replace("mode = \"static\"", "mode = \"adaptive\"\nmin_processors = 2");
    let text = text.replace(
        "name = \"b\"\n    nodes = 3\n    start = 3",
        "name = \"b\"\n    nodes = 3\n    start = 0",
    );
    let [frames, quic] = run_over_both(&text, 1.25);
    let most = |played: &SimulationResult| played.nodes.iter().map(|(_, nodes)| *nodes).max();
    assert_eq!(most(&frames), most(&quic), "{:?} {:?}", frames.nodes, quic.nodes);
}

#[test]
fn one_seed_gives_one_history_over_real_endpoints() {
    let events = "[[event]]\nwhat = \"kill\"\nat = \"5s\"\ncluster = \"b\"\nnodes = 1\n";
    let text = format!("{GRID}{events}");
    let [one, other] = [(); 2].map(|()| run_over(&text, 3, LinkUnit::quic()));
    assert_eq!((one.wall, one.digest), (other.wall, other.digest));
    assert_ne!(run_over(&text, 4, LinkUnit::quic()).digest, one.digest);
}

#[test]
fn clusters_that_cannot_reach_each_other_work_together_through_a_third() {
    let third = "[[cluster]]\nname = \"c\"\nnodes = 3\nstart = 3\nuplink = \"2MB/s\"\n";
    let whole = format!("{GRID}{third}");
    let cut = "[[link]]\nbetween = [\"a\", \"b\"]\nloss = 1.0\n";
    let [whole, cut] =
        [whole.clone(), format!("{whole}{cut}")].map(|t| run_over(&t, 1, LinkUnit::quic()));
    // No member was taken for dead.
    let fewest = |played: &SimulationResult| played.nodes.iter().map(|(_, nodes)| *nodes).min();
    assert_eq!(fewest(&cut), fewest(&whole), "{:?}", cut.nodes);
    // Before a relay is asked, an attempt must fail, which takes five seconds.
    assert!(cut.wall < whole.wall + std::time::Duration::from_secs(15), "{:?}", cut.wall);
}
