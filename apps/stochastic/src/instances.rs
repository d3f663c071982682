//! Programs of the literature, with what is known of them, for tests. Their files are not part of this repository, but may lie beside it.

use std::path::PathBuf;

use crate::model::{Place, Stage, TwoStage};
use crate::sample::{SampleError, Sampler, Sampling, Scenario};
use crate::smps::{Files, read};

/// The directory of the instances, or none with a word on it.
pub fn instances() -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/smps");
    if !beside.is_dir() {
        println!("skipped: ../shared/data/smps is not here");
        return None;
    }
    Some(beside)
}

/// A program of them.
pub fn instance(name: &str) -> Option<TwoStage> {
    let files = Files::find(&instances()?.join(name)).unwrap_or_else(|error| panic!("{error}"));
    let (program, notes) = read(&files).unwrap_or_else(|error| panic!("{error}"));
    assert!(notes.is_empty(), "{notes:?}");
    Some(program)
}

/// The best first-stage decision that was published for it.
pub fn published(name: &str) -> Option<Vec<f64>> {
    let mut files =
        std::fs::read_dir(instances()?.join(name)).unwrap().map(|file| file.unwrap().path());
    let file = files.find(|path| path.extension().is_some_and(|end| end == "sol")).unwrap();
    let text = std::fs::read_to_string(file).unwrap();
    // The first word counts those that follow.
    Some(text.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect())
}

/// m1 x n1, m2 x n2, entries of W, random elements, and scenarios.
#[test]
fn instances_have_their_sizes() {
    for (name, first, second, recourse, random, scenarios) in [
        ("lands", (2, 4), (7, 12), 24, 3, 1e6),
        ("gbd", (4, 17), (5, 10), 10, 5, 646_425.0),
        ("20term", (3, 63), (124, 764), 4404, 40, 1.1e12),
        ("ssn", (1, 89), (175, 706), 2284, 86, 1.02e70),
        ("storm", (185, 121), (528, 1259), 3220, 117, 6.02e81),
    ] {
        let Some(program) = instance(name) else { return };
        let size = |stage: &Stage| (stage.rows.len(), stage.columns.len());
        assert_eq!((size(&program.first), size(&program.second)), (first, second), "{name}");
        assert_eq!(program.second.matrix.entries(), recourse, "{name}");
        assert_eq!(program.random.len(), random, "{name}");
        assert!(program.random.iter().all(|block| matches!(block.places[..], [Place::Rhs(_)])));
        let log10: f64 =
            program.random.iter().map(|block| (block.outcomes.len() as f64).log10()).sum();
        assert!((log10 - f64::log10(scenarios)).abs() < 5e-3, "{name}: 10^{log10}");
        let bounds = [&program.first, &program.second];
        assert!(bounds.iter().all(|stage| stage.lower.iter().all(|lower| *lower == 0.0)), "{name}");
        assert!(bounds.iter().all(|stage| stage.upper.iter().all(|upper| *upper == f64::INFINITY)));
    }
}

/// Scenarios of the large ones are sampled, and of the small ones all are taken: their probabilities add up to 1.
#[test]
fn instances_have_scenarios() {
    for (name, count) in [("lands", 1_000_000), ("gbd", 646_425)] {
        let Some(program) = instance(name) else { return };
        let all = Sampler::new(&program, Sampling::All, 0, 0).unwrap();
        assert_eq!(all.count(), count);
        let (mut total, mut scenario) = (0.0, Scenario::default());
        for index in 0..count {
            all.scenario(index, &mut scenario);
            total += scenario.probability;
        }
        assert!((total - 1.0).abs() < 1e-9, "{name}: {total}");
    }
    for name in ["20term", "ssn", "storm"] {
        let Some(program) = instance(name) else { return };
        let all = Sampler::new(&program, Sampling::All, 0, 0);
        // 20term has 2^40 scenarios, which is the most.
        assert_eq!(matches!(all, Err(SampleError::TooManyInAll { .. })), name != "20term");
        // The mean of each right-hand side over a Latin hypercube is near its expectation.
        let sampler = Sampler::new(&program, Sampling::LatinHypercube, 1, 1000).unwrap();
        let rows = program.second.rows.len();
        let (mut mean, mut rhs, mut scenario) =
            (vec![0.0; rows], vec![0.0; rows], Scenario::default());
        for index in 0..sampler.count() {
            sampler.scenario(index, &mut scenario);
            scenario.rhs(&program, &mut rhs);
            mean.iter_mut().zip(&rhs).for_each(|(mean, rhs)| *mean += rhs * scenario.probability);
        }
        for block in &program.random {
            let Place::Rhs(row) = block.places[0] else { panic!("{name}: {:?}", block.places) };
            let outcomes = || block.outcomes.iter().map(|o| (o.probability, o.values[0]));
            let expected: f64 = outcomes().map(|(p, value)| p * value).sum();
            let most = outcomes().map(|(_, value)| value.abs()).fold(0.0, f64::max);
            assert!(
                (mean[row] - expected).abs() <= 2e-3 * most,
                "{name}: {} of {expected}",
                mean[row]
            );
        }
    }
}
