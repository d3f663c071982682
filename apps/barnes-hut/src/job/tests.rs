//! Tests of the job.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use springtide_runtime::work::{Failure, PoolConfig, ProgressReport, SavedRoot, encode_job, solo};

use super::*;
use crate::options::SnapshotFormat;
use crate::setup::CellExpansion;
use crate::{gadget, write};

fn small() -> BarnesHut {
    BarnesHut { bodies: 1500, steps: 3, grain: 64, group: 32, ..BarnesHut::default() }
}

fn run_from(
    body: Bytes,
    threads: usize,
    saved: Option<SavedRoot>,
) -> (Result<Outcome, Failure>, Vec<ProgressReport>) {
    let mut registry = Registry::new();
    registry.job::<BarnesHut>();
    let notes = Arc::new(Mutex::new(Vec::new()));
    let keep = notes.clone();
    let config = PoolConfig { threads, checkpoint_rate: 0, ..PoolConfig::default() };
    let note = move |note| keep.lock().unwrap().push(note);
    let registry = Arc::new(registry);
    let report = match saved {
        None => solo::run(registry, "barnes-hut", body, &config, note),
        Some(saved) => solo::resume(registry, "barnes-hut", body, saved, &config, note),
    };
    let notes = std::mem::take(&mut *notes.lock().unwrap());
    (report.unwrap().outcome, notes)
}

fn run_encoded(body: Bytes, threads: usize) -> (Outcome, Vec<ProgressReport>) {
    let (outcome, notes) = run_from(body, threads, None);
    (outcome.unwrap(), notes)
}

fn run(job: BarnesHut, threads: usize) -> (Outcome, Vec<ProgressReport>) {
    run_encoded(encode_job(job).unwrap(), threads)
}

#[test]
fn any_number_of_threads_and_any_grain_give_the_same_outcome() {
    let openings = [None, Some(1e-3)].into_iter();
    let kinds =
        openings.flat_map(|error| [(CellExpansion::Mono, error), (CellExpansion::Quad, error)]);
    for (order, cell_error) in kinds {
        let job = BarnesHut { order, cell_error, ..small() };
        let bodies = generate::galaxies(job.bodies, job.seed);
        let setup = Setup::new(&bodies, job.accuracy()).with_error(job.cell_error);
        let mut history = RunHistory::new(job.steps);
        let end = simulate::run(bodies, &setup, job.time_step(), job.steps, |_, report| {
            history.push(*report);
        });
        let alone = outcome(&end.unwrap(), &history);
        for (threads, grain) in [(1, 1), (2, 64), (3, 1), (1, 1 << 30)] {
            let (outcome, _) = run(BarnesHut { grain, ..job.clone() }, threads);
            assert_eq!(outcome, alone, "{threads} threads, grain {grain}");
        }
    }
}

/// Loops over these bodies have several pieces.
#[test]
fn larger_runs_have_the_same_outcome_on_any_number_of_threads() {
    let job = BarnesHut { bodies: 10_000, steps: 2, model: Model::Plummer, ..small() };
    let (alone, _) = run(job.clone(), 1);
    assert_eq!(run(job, 3).0, alone);
}

#[test]
fn the_result_is_the_same_everywhere() {
    // These bits must not depend on compiler, instruction set or machine; a change of the physics
    // changes them.
    assert_eq!(run(small(), 2).0.checksum, 0xa5dc44d182c758df);
}

#[test]
fn reports_and_artefacts_come_in_order() {
    let job = BarnesHut {
        snapshot_every: 2,
        picture_every: 3,
        render: 2,
        picture_size: 64,
        checkpoint_every: 2,
        snapshot_format: SnapshotFormat::Csv,
        ..small()
    };
    let (outcome, notes) = run(job, 2);
    let text = |note: &ProgressReport| match note {
        ProgressReport::Iteration => "iteration".to_owned(),
        ProgressReport::Phases(times) => {
            assert!((0.0..=1.0).contains(&times.serial_share()), "{times:?}");
            "phases".to_owned()
        }
        ProgressReport::Progress { done, total, what } => format!("{done} of {total} {what}"),
        ProgressReport::Synchronous => "synchronous".to_owned(),
        ProgressReport::Say { text } => text.split(':').next().unwrap_or_default().to_owned(),
        ProgressReport::Artifact { name, bytes } => {
            assert!(!bytes.is_empty());
            name.clone()
        }
        ProgressReport::Preliminary { .. } => "preliminary outcome".to_owned(),
        ProgressReport::Output { .. } | ProgressReport::ClientMessage { .. } => "output".to_owned(),
        ProgressReport::Checkpoint(saved) => format!("checkpoint {}", saved.seq),
        ProgressReport::NeedNodes { more, .. } => format!("{more} more nodes"),
        ProgressReport::Release { nodes } => format!("{} nodes are not needed", nodes.len()),
    };
    let notes: Vec<_> = notes.iter().map(text).collect();
    let expected = [
        "0 of 3 steps",
        "snapshot-000000.csv",
        "density-000000.png",
        "frame-000000.png",
        "step 0",
        "step 1",
        "phases",
        "iteration",
        "1 of 3 steps",
        "snapshot-000002.csv",
        "frame-000001.png",
        "step 2",
        "phases",
        "iteration",
        "2 of 3 steps",
        "checkpoint 1",
        "density-000003.png",
        "step 3",
        "phases",
        "iteration",
        "3 of 3 steps",
    ];
    assert_eq!(notes, expected);
    let result = outcome.result;
    assert_eq!(result["bodies"], 1500);
    assert_eq!(result["steps"], 3);
    let error = result["energy_error"].as_f64().unwrap();
    assert!(error.abs() < 5e-3, "{error}");
    assert_eq!(result["momentum"].as_array().unwrap().len(), 3);
    assert_eq!(result["per_step"]["kinetic"].as_array().unwrap().len(), 4);
}

fn checkpoints(notes: &[ProgressReport]) -> Vec<(usize, SavedRoot)> {
    let saved = |(at, note): (usize, &ProgressReport)| match note {
        ProgressReport::Checkpoint(saved) => Some((at, saved.clone())),
        _ => None,
    };
    notes.iter().enumerate().filter_map(saved).collect()
}

/// Without the size of broadcasts: a resumed run starts with a whole one.
fn is_independent_of_resumption(note: &ProgressReport) -> bool {
    match note {
        ProgressReport::Say { text } => !text.starts_with("broadcast: "),
        ProgressReport::Phases(_) => false,
        _ => true,
    }
}

/// Runs the job without checkpoints, then with one every `every` steps, then from each of them.
/// Outcome, reports and artefacts must be those of the first run.
fn resumes_with_the_same_results(job: &BarnesHut, every: u64) {
    let body = |every| {
        let job = BarnesHut { checkpoint_every: every, ..job.clone() };
        encode_job(job).unwrap()
    };
    let (outcome, plain) = run_encoded(body(0), 1);
    assert!(checkpoints(&plain).is_empty());
    let (with, notes) = run_encoded(body(every), 2);
    assert_eq!(with, outcome);
    let all = checkpoints(&notes);
    // There is none after the last step, for the run is over.
    assert_eq!(all.len() as u64, (job.steps - 1) / every);
    let others = notes.iter().filter(|note| !matches!(note, ProgressReport::Checkpoint(_)));
    assert!(
        others
            .filter(|n| is_independent_of_resumption(n))
            .eq(plain.iter().filter(|n| is_independent_of_resumption(n)))
    );
    for (number, (at, saved)) in (1..).zip(&all) {
        // One child per step and one before the first.
        assert_eq!((saved.seq, u64::from(saved.next_child)), (number, number * every + 1));
        for threads in [1, 2] {
            let (again, rest) = run_from(body(every), threads, Some(saved.clone()));
            assert_eq!(again.as_ref(), Ok(&outcome), "from step {}", number * every);
            let rest = rest.iter().filter(|note| is_independent_of_resumption(note));
            let same =
                rest.eq(notes[at + 1..].iter().filter(|note| is_independent_of_resumption(note)));
            assert!(same, "from step {}, {threads} threads", number * every);
        }
    }
}

#[test]
fn block_steps_have_the_same_bits_for_any_split_and_from_any_checkpoint() {
    let job = BarnesHut {
        bodies: 1000,
        model: Model::Plummer,
        block_steps: Some(0.1),
        max_rung: 4,
        check_forces: 2,
        check_bodies: 30,
        dt: Some(0.05),
        steps: 4,
        checkpoint_every: 0,
        ..small()
    };
    let (outcome, notes) = run(job.clone(), 1);
    for (threads, grain) in [(2, 64), (3, 1), (1, 1 << 30)] {
        assert_eq!(run(BarnesHut { grain, ..job.clone() }, threads).0, outcome);
    }
    // There are substeps, with fewer than all bodies.
    let forces = outcome.result["per_step"]["forces"].as_array().unwrap();
    let forces: Vec<u64> = forces.iter().map(|f| f.as_u64().unwrap()).collect();
    assert_eq!(forces[0], 1000);
    assert!(forces[1..].iter().all(|f| *f > 2000 && *f < 16_000), "{forces:?}");
    assert_eq!(outcome.result["force_error"]["step"], serde_json::json!([0, 2, 4]));
    let messages = notes.iter().filter(
        |note| matches!(note, ProgressReport::Say { text } if text.contains(", forces off by ")),
    );
    assert_eq!(messages.count(), 3);
    let plain = BarnesHut { block_steps: None, ..job.clone() };
    assert_ne!(run(plain, 1).0.checksum, outcome.checksum);

    for every in [1, 2] {
        let body = encode_job(BarnesHut { checkpoint_every: every, ..job.clone() }).unwrap();
        let (with, notes) = run_encoded(body.clone(), 2);
        assert_eq!(with, outcome);
        let all = checkpoints(&notes);
        assert_eq!(all.len() as u64, 3 / every);
        for (_, saved) in all {
            assert_eq!(run_from(body.clone(), 2, Some(saved)).0.as_ref(), Ok(&outcome));
        }
    }
}

#[test]
fn a_checkpoint_with_other_rungs_is_refused() {
    let job = BarnesHut { bodies: 100, steps: 3, checkpoint_every: 1, ..small() };
    let blocks = BarnesHut { block_steps: Some(0.1), ..job.clone() };
    for (saves, goes_on) in [(&job, &blocks), (&blocks, &job)] {
        let (_, notes) = run(saves.clone(), 1);
        let (_, saved) = checkpoints(&notes).remove(0);
        let body = encode_job(goes_on.clone()).unwrap();
        let failure = run_from(body, 1, Some(saved)).0.unwrap_err();
        let expected = "the saved block time steps do not belong to this run; start it again";
        assert_eq!(failure.message, expected);
    }
}

#[test]
fn the_error_of_forces_is_what_theta_makes_it() {
    let error = |theta, order| {
        let job = BarnesHut { theta, order, model: Model::Plummer, steps: 0, ..small() };
        let result = run(BarnesHut { check_forces: 1, ..job }, 2).0.result;
        let value = |name: &str| result["force_error"][name][0].as_f64().unwrap();
        assert!(value("median") < value("rms") && value("rms") < value("p99"), "{result}");
        value("rms")
    };
    let exact = error(0.0, CellExpansion::Mono);
    assert!(exact < 1e-5, "{exact}");
    let (quad, mono) = (error(0.5, CellExpansion::Quad), error(0.7, CellExpansion::Mono));
    assert!(exact < quad && quad < 1e-3 && mono > 1e-3 && mono < 1e-2, "{quad} {mono}");
}

#[test]
fn a_run_from_any_checkpoint_has_the_same_outcome_and_artefacts() {
    for model in [Model::Galaxies, Model::Plummer] {
        for order in [CellExpansion::Mono, CellExpansion::Quad] {
            for every in [1, 2, 3] {
                let job = BarnesHut {
                    bodies: 400,
                    steps: 7,
                    model,
                    order,
                    snapshot_every: 2,
                    picture_every: 3,
                    picture_size: 48,
                    ..small()
                };
                resumes_with_the_same_results(&job, every);
            }
        }
    }
}

#[test]
fn bodies_of_a_file_are_resumed_too() {
    // Two populations, in units of their own.
    let loaded = Some(generate::galaxies(300, 5));
    resumes_with_the_same_results(&BarnesHut { loaded, steps: 4, picture_every: 2, ..small() }, 2);
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let job = BarnesHut { bodies: 100, steps: 6, checkpoint_every: 5, ..small() };
    let (_, notes) = run(job.clone(), 1);
    let (_, saved) = checkpoints(&notes).remove(0);
    let shorter = encode_job(BarnesHut { steps: 5, ..job.clone() }).unwrap();
    let failure = run_from(shorter, 1, Some(saved.clone())).0.unwrap_err();
    let expected = "the root's checkpoint is of step 6 of a run that has 5 steps";
    assert_eq!(failure.message, expected);
    let cut = SavedRoot { state: saved.state.slice(..saved.state.len() / 2), ..saved };
    let failure = run_from(encode_job(job).unwrap(), 1, Some(cut)).0.unwrap_err();
    assert!(failure.message.starts_with("the root's checkpoint cannot be read"), "{failure}");
}

#[test]
fn a_file_travels_inside_the_job() {
    let mut bodies = generate::plummer(200, 8);
    // Numbers that every format can represent.
    for column in [&mut bodies.position, &mut bodies.velocity] {
        column.iter_mut().flatten().for_each(|c| *c = f64::from(*c as f32));
    }
    let folder = tempfile::tempdir().unwrap();
    let mut sums = Vec::new();
    for (name, bytes) in [
        ("b.npy", write::npy(&bodies)),
        ("b.csv", write::csv(&bodies)),
        ("b.gadget", gadget::write(&bodies, 0.0).unwrap()),
        ("snapshot_000", gadget::write(&bodies, 0.0).unwrap()),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let job = BarnesHut { input: Some(path.clone()), steps: 0, ..small() };
        let body = encode_job(job).unwrap();
        // The node that runs the job has no such file.
        std::fs::remove_file(path).unwrap();
        let (outcome, _) = run_encoded(body, 1);
        assert_eq!(outcome.result["steps"], 0);
        assert_eq!(outcome.result["energy_error"], 0.0);
        sums.push(outcome.checksum);
    }
    assert_eq!(sums, [bodies.checksum(); 4]);
}

#[test]
fn the_benchmark_is_small_ready_to_run_and_the_same_for_all() {
    let job = BarnesHut {
        bodies: 1 << 30,
        theta: 1.1,
        order: CellExpansion::Mono,
        picture_every: 1,
        softening: Some(3.0),
        ..BarnesHut::default()
    };
    let small = job.benchmark().unwrap();
    assert_eq!(small.check(), Ok(()));
    let expected = BarnesHut {
        bodies: BENCHMARK_BODIES,
        steps: 0,
        picture_every: 0,
        checkpoint_every: 0,
        ..job.clone()
    };
    assert_eq!(small, expected);
    // Bodies of a file have units of their own.
    let loaded = BarnesHut { loaded: Some(generate::plummer(50, 1)), ..job };
    let small = loaded.benchmark().unwrap();
    assert_eq!((small.bodies, small.model, small.softening), (50, Model::Plummer, None));
    let (outcome, notes) = run(small, 2);
    assert_eq!((outcome.result["bodies"].as_u64(), notes.len()), (Some(50), 2));
}

#[test]
fn jobs_and_reports_of_earlier_versions_are_read() {
    let without = |value: serde_json::Value, names: &[&str]| {
        let serde_json::Value::Object(mut map) = value else { panic!("{value} is a map") };
        for name in names {
            assert!(map.remove(*name).is_some(), "{name}");
        }
        serde_json::Value::Object(map)
    };
    let job = BarnesHut { max_rung: 0, check_bodies: 0, ..small() };
    let earlier = without(serde_json::to_value(&job).unwrap(), NEW_OPTIONS);
    assert_eq!(serde_json::from_value::<BarnesHut>(earlier).unwrap(), job);
    let report = StepReport { step: 3, kinetic: 0.5, ..StepReport::default() };
    let new = ["angular_momentum", "angular_momentum_error", "forces", "force_error"];
    let earlier = without(serde_json::to_value(report).unwrap(), &new);
    assert_eq!(serde_json::from_value::<StepReport>(earlier).unwrap(), report);
}

/// Options that the first jobs did not have.
const NEW_OPTIONS: &[&str] = &[
    "cell_error",
    "render",
    "picture_width",
    "block_steps",
    "max_rung",
    "check_forces",
    "check_bodies",
];

#[test]
fn tasks_cost_their_bodies_once() {
    let version = Version::default();
    let task = |bodies, groups: u32| Forces {
        first_group: 3,
        last_group: 3 + groups,
        bodies,
        grain: 100,
        setup: version,
        positions: version,
    };
    assert_eq!(task(100, 9).cost(), Some(100.0));
    assert_eq!(task(101, 9).cost(), None);
    assert_eq!(task(500, 1).cost(), Some(500.0));
}

#[test]
fn mistakes_are_reported_before_the_start() {
    let job = BarnesHut { theta: -1.0, ..small() };
    let message = encode_job(job).unwrap_err().message;
    assert_eq!(message, "--theta is -1; it must lie within 0 (exact sum over all pairs) and 2");
    let job = BarnesHut { input: Some("no-such-file.csv".into()), ..small() };
    let message = encode_job(job).unwrap_err().message;
    assert!(message.starts_with("no-such-file.csv: cannot be read: "), "{message}");
}

#[test]
fn a_wanted_error_determines_order_and_cell_error_before_the_run() {
    let job = BarnesHut { force_error: Some(2e-3), model: Model::Plummer, ..small() };
    let mut prepared = job.clone();
    prepared.prepare().unwrap();
    assert_eq!(prepared.force_error, None);
    assert!(prepared.cell_error.is_some_and(|part| part > 1e-4 && part < 0.1), "{prepared:?}");
    let with = run(BarnesHut { steps: 1, ..job }, 2).0;
    assert_eq!(with, run(BarnesHut { steps: 1, ..prepared }, 1).0);
    let loaded = Some(generate::plummer(300, 1));
    let job = BarnesHut { loaded, force_error: Some(1e-5), softening: Some(0.0), ..small() };
    assert!(encode_job(job).is_ok());
}

/// Bodies that are difficult for a tree or an integrator, by name.
fn unusual() -> Vec<(&'static str, Bodies)> {
    let at = |positions: &[[f64; 3]], mass: f64| {
        let mut bodies = Bodies::default();
        for p in positions {
            bodies.push(*p, [0.0; 3], mass);
        }
        bodies
    };
    let scaled = |scale: f64| {
        let mut bodies = generate::plummer(300, 1);
        for column in [&mut bodies.position, &mut bodies.velocity] {
            column.iter_mut().flatten().for_each(|c| *c *= scale);
        }
        bodies
    };
    let mut range = generate::plummer(300, 1);
    for (i, p) in range.position.iter_mut().enumerate() {
        *p = p.map(|c| c * 10f64.powi(i as i32 / 3 - 50));
    }
    let mut heavy = generate::plummer(300, 1);
    heavy.mass[17] = 1e90;
    let pair = [[0.0; 3], [1.0, 0.0, 0.0]];
    vec![
        ("one", at(&pair[..1], 1.0)),
        ("two", at(&pair, 1.0)),
        ("two of no mass", at(&pair, 0.0)),
        ("two in one place", at(&[[1.0; 3]; 2], 1.0)),
        ("all in one place", at(&[[-3.0; 3]; 700], 1.0)),
        ("many in two places", at(&[&[[0.0; 3]; 400][..], &[[1.0; 3]; 300]].concat(), 0.01)),
        ("on a line", at(&(0..500).map(|i| [f64::from(i), 0.0, 0.0]).collect::<Vec<_>>(), 1.0)),
        ("large", scaled(1e90)),
        ("small", scaled(1e-90)),
        ("over a hundred orders", range),
        ("one of all the mass", heavy),
    ]
}

#[test]
fn unusual_bodies_run_to_an_end_or_a_clear_error() {
    for (name, bodies) in unusual() {
        for (softening, snapshot_format) in [
            (0.0, SnapshotFormat::Npy),
            (0.05, SnapshotFormat::Npy),
            (0.05, SnapshotFormat::Gadget),
        ] {
            for block_steps in [None, Some(0.1)] {
                let job = BarnesHut {
                    loaded: Some(bodies.clone()),
                    softening: Some(softening),
                    block_steps: block_steps.filter(|_| softening > 0.0),
                    max_rung: 3,
                    check_forces: 1,
                    picture_every: 2,
                    picture_size: 16,
                    snapshot_every: 2,
                    snapshot_format,
                    steps: 2,
                    checkpoint_every: 1,
                    ..small()
                };
                let run = |threads| run_from(encode_job(job.clone()).unwrap(), threads, None);
                let (outcome, _) = run(1);
                assert_eq!(run(2).0, outcome, "{name}");
                match outcome {
                    Ok(outcome) => assert_eq!(outcome.result["steps"], 2, "{name}"),
                    Err(failure) => {
                        let messages = [
                            "has left the range of numbers; a smaller --dt or a larger \
                             --softening may help",
                            "is too large for a Gadget snapshot; choose --snapshot-format npy or \
                             other units",
                        ];
                        let clear =
                            messages.iter().any(|messages| failure.message.ends_with(messages));
                        assert!(clear, "{name}: {failure}");
                    }
                }
            }
        }
    }
}

#[test]
fn bodies_without_forces_stay_at_rest() {
    for (name, bodies) in unusual() {
        if !["one", "two of no mass", "two in one place", "all in one place"].contains(&name) {
            continue;
        }
        for softening in [0.0, 0.05] {
            let job = BarnesHut {
                loaded: Some(bodies.clone()),
                softening: Some(softening),
                check_forces: 1,
                ..small()
            };
            let (outcome, _) = run(job, 2);
            assert_eq!(outcome.checksum, bodies.checksum(), "{name}");
            assert_eq!(outcome.result["energy_error"], 0.0, "{name}");
            // No body has a force, so there is no error.
            assert!(outcome.result["force_error"].is_null(), "{name}");
        }
    }
}

#[test]
fn invalid_bodies_are_refused() {
    let mut bodies = generate::plummer(5, 1);
    bodies.mass[3] = -1.0;
    let refused = |loaded| {
        let job = BarnesHut { loaded: Some(loaded), ..small() };
        encode_job(job).unwrap_err().message
    };
    assert!(refused(bodies).starts_with("body 3 has a position or velocity that is no number"));
    assert_eq!(refused(Bodies::default()), "--bodies is 0; at least one body is needed");
}

#[test]
fn one_and_two_bodies_run_through() {
    for bodies in [1, 2] {
        let models = <Model as clap::ValueEnum>::value_variants();
        for &model in models {
            let (outcome, _) = run(BarnesHut { bodies, model, ..small() }, 2);
            assert_eq!(outcome.result["bodies"], bodies);
            assert!(outcome.result["energy_error"].is_number(), "{}", outcome.result);
        }
    }
}
