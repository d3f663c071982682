//! No input makes the reader panic: files that have been damaged, byte by byte and line by line.

use std::path::PathBuf;

use proptest::prelude::*;
use springtide_stochastic::sample::{Sampler, Sampling, Scenario};
use springtide_stochastic::smps::{Files, read_texts};

/// Core, time and stochastic file of every program here.
const PROGRAMS: [[&str; 3]; 3] = [
    [
        include_str!("data/plants/plants.cor"),
        include_str!("data/plants/plants.tim"),
        include_str!("data/plants/plants.sto"),
    ],
    [
        include_str!("data/farm/farm.cor"),
        include_str!("data/farm/farm.tim"),
        include_str!("data/farm/farm.sto"),
    ],
    [
        include_str!("data/reservoir/reservoir.core"),
        include_str!("data/reservoir/reservoir.time"),
        include_str!("data/reservoir/reservoir.stoch"),
    ],
];

/// A way in which a text is damaged, at places of it from 0 to 1.
#[derive(Clone, Debug)]
enum Damage {
    Flip(f64, u8),
    Insert(f64, Vec<u8>),
    Cut(f64),
    Delete(f64, usize),
    Twice(f64, usize, f64),
    Exchange(f64, f64),
    /// A word of one place instead of that of another.
    Word(f64, f64),
    DeleteLine(f64),
    TwiceLine(f64, f64),
}

impl Damage {
    fn to(&self, text: &mut Vec<u8>) {
        let at =
            |place: f64| ((text.len() as f64 * place) as usize).min(text.len().saturating_sub(1));
        let to = |from: usize, length: usize| (from + length).min(text.len());
        if text.is_empty() {
            return;
        }
        match *self {
            Self::Flip(place, bits) => {
                let at = at(place);
                text[at] ^= bits;
            }
            Self::Insert(place, ref bytes) => {
                let at = at(place);
                text.splice(at..at, bytes.iter().copied());
            }
            Self::Cut(place) => text.truncate(at(place)),
            Self::Delete(from, length) => {
                let from = at(from);
                text.drain(from..to(from, length));
            }
            Self::Twice(from, length, place) => {
                let (from, place) = (at(from), at(place));
                let piece = text[from..to(from, length)].to_vec();
                text.splice(place..place, piece);
            }
            Self::Exchange(one, two) => {
                let (one, two) = (at(one), at(two));
                text.swap(one, two);
            }
            Self::Word(from, place) => {
                let word = |at: usize| {
                    let blank = |byte: &u8| byte.is_ascii_whitespace();
                    let start = text[..at].iter().rposition(blank).map_or(0, |at| at + 1);
                    let end = text[at..].iter().position(blank).map_or(text.len(), |end| at + end);
                    start..end.max(start)
                };
                let (from, place) = (word(at(from)), word(at(place)));
                let piece = text[from].to_vec();
                text.splice(place, piece);
            }
            Self::DeleteLine(place) => {
                let mut lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
                lines.remove((lines.len() as f64 * place) as usize);
                *text = lines.concat();
            }
            Self::TwiceLine(from, place) => {
                let mut lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
                let at = |place: f64| (lines.len() as f64 * place) as usize;
                let (from, place) = (at(from), at(place));
                lines.insert(place, lines[from]);
                *text = lines.concat();
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || 0.0..1.0;
    let bytes = prop::collection::vec(
        prop_oneof![
            4 => prop::sample::select(b" \t\r\n*'.-+eED0159ABCLNGSX".to_vec()),
            1 => any::<u8>()
        ],
        0..8,
    );
    prop_oneof![
        (place(), 1_u8..).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        (place(), bytes).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        place().prop_map(Damage::Cut),
        (place(), 1_usize..40).prop_map(|(from, length)| Damage::Delete(from, length)),
        (place(), 1_usize..40, place())
            .prop_map(|(from, length, to)| Damage::Twice(from, length, to)),
        (place(), place()).prop_map(|(one, two)| Damage::Exchange(one, two)),
        (place(), place()).prop_map(|(from, to)| Damage::Word(from, to)),
        place().prop_map(Damage::DeleteLine),
        (place(), place()).prop_map(|(from, to)| Damage::TwiceLine(from, to)),
    ]
}

fn names() -> Files {
    let file = |ending: &str| PathBuf::from(format!("fuzz.{ending}"));
    Files { core: file("cor"), time: file("tim"), stoch: file("sto") }
}

/// Reads texts; what can be read must be a program that can be sampled.
fn survives(texts: &[String; 3]) {
    match read_texts(&texts[0], &texts[1], &texts[2], &names()) {
        Err(error) => {
            let names = names();
            let files = [names.core, names.time, names.stoch];
            let file = files.iter().position(|file| *file == error.file).unwrap();
            let lines = texts[file].lines().count();
            assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error}");
        }
        Ok((program, _)) => {
            for block in &program.random {
                let sum: f64 = block.outcomes.iter().map(|outcome| outcome.probability).sum();
                assert!((sum - 1.0).abs() < 1e-9, "{sum}");
                assert!(
                    block.outcomes.iter().all(|outcome| outcome.values.len() == block.places.len())
                );
            }
            let sampler = Sampler::new(&program, Sampling::LatinHypercube, 1, 10).unwrap();
            let mut scenario = Scenario::default();
            sampler.scenario(9, &mut scenario);
            let mut rhs = vec![0.0; program.second.rows.len()];
            scenario.rhs(&program, &mut rhs);
            assert!(rhs.iter().all(|value| value.is_finite()));
            for (row, column, value) in scenario.technology_changes(&program) {
                assert!(row < program.technology.rows() && column < program.technology.columns());
                assert!(value.is_finite());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files(
        program in 0..PROGRAMS.len(),
        damages in prop::collection::vec((0..3_usize, damage()), 1..4),
    ) {
        let mut texts = PROGRAMS[program].map(|text| text.as_bytes().to_vec());
        for (file, damage) in &damages {
            damage.to(&mut texts[*file]);
        }
        // What is not UTF-8 does not come so far.
        survives(&texts.map(|text| String::from_utf8_lossy(&text).into_owned()));
    }

    #[test]
    fn files_of_different_programs(core in 0..3_usize, time in 0..3_usize, stoch in 0..3_usize) {
        survives(&[PROGRAMS[core][0], PROGRAMS[time][1], PROGRAMS[stoch][2]].map(str::to_owned));
    }
}
