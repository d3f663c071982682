//! Damaged files never make the reader panic or hang: random changes of bytes, words and lines. A
//! program that is read is written and read again.

use proptest::prelude::*;
use springtide_stochastic::export::sample_smps;
use springtide_stochastic::extensive::{extensive_form, scenarios};
use springtide_stochastic::model::{Columns, Stage, TwoStage};
use springtide_stochastic::sample::{Sampler, Sampling, Scenario};
use springtide_stochastic::smps::{Files, SmpsErrorKind, read_bytes};

/// Core, time and stochastic file of every program here.
const PROGRAMS: [[&str; 3]; 4] = [
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
    UNUSUAL,
];

/// Unusual forms: maximisation, several sets, repeated entries, an explicit time file, random costs
/// and recourse, repeated core values, both orders of period and probability.
const UNUSUAL: [&str; 3] = [
    "  NAME  GRÖSSE  FREE
OBJSENSE
    MAX
OBJECT BOUND
 LO BND 0
ROWS
 N Z
 N FREE
 L A
 G B
 E ÖL
COLUMNS
 X Z 1 A 1
 Y Z 2 B 1
 X B 1 ÖL -1
 Y ÖL 1
 X A 1
RHS  ONE
 ONE Z -5 A 9
 TWO A 1
 ONE B 1
RANGES
 R1 Z 1 A 3
 R2 B 1
BOUNDS  BND
 UP BND X -1
 UP Y 4
 MI BND Y
 FR B2 X
ENDATA
",
    "TIME GRÖSSE
PERIODS EXPLICIT
 T1
 T2
ROWS
 A T1
 B T2
 B T2
 ÖL T2
COLUMNS
 X T1
 Y T2
",
    "STOCH
BLOCKS DISCRETE ADD
 BL C T2 0.5
 Y Z 0.5
 Y B 1
 BL C 0.4995 T2
 Y Z 1
 B2 T2 1
 RIGHT B 3
 UP BND Y 0
INDEP DISCRETE
 X ÖL 1 0.5 T2
 X ÖL 2 T3 0.5
 X A 1 1
 UP BND X -1 1
",
];

/// A change of a text. Positions are fractions of its length.
#[derive(Clone, Debug)]
enum Damage {
    Flip(f64, u8),
    Insert(f64, Vec<u8>),
    Cut(f64),
    Delete(f64, usize),
    Twice(f64, usize, f64),
    Exchange(f64, f64),
    /// Replaces the word at the second position by that at the first.
    Word(f64, f64),
    DeleteLine(f64),
    TwiceLine(f64, f64),
}

impl Damage {
    fn apply(&self, text: &mut Vec<u8>) {
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
            4 => prop::sample::select(b" \t\r\n*'.-+eED0159ABCLNGSX\xd6".to_vec()),
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
    Files::new("fuzz.cor", "fuzz.tim", "fuzz.sto")
}

/// Reads files. An error names one of them and, where there is one, a line of it; a program can be
/// sampled.
fn check(contents: [&[u8]; 3]) {
    let names = names();
    match read_bytes(contents, &names) {
        Err(error) => {
            let files = [names.core, names.time, names.stoch];
            let file = files.iter().position(|file| *file == error.file).unwrap();
            let lines = contents[file].split(|byte| *byte == b'\n').count();
            let is_known = match error.line {
                Some(line) => (1..=lines).contains(&line),
                None => matches!(
                    *error.cause,
                    SmpsErrorKind::Empty { .. }
                        | SmpsErrorKind::NoObjective
                        | SmpsErrorKind::Periods { .. }
                        | SmpsErrorKind::NoPeriod { .. }
                        | SmpsErrorKind::EmptyStage { .. }
                ),
            };
            assert!(is_known, "{error}");
        }
        Ok((program, _)) => {
            for block in &program.random {
                let sum: f64 = block.outcomes.iter().map(|outcome| outcome.probability).sum();
                assert!((sum - 1.0).abs() < 1e-9, "{sum}");
                let values = block.outcomes.iter().map(|outcome| outcome.values.len());
                assert!(values.into_iter().all(|count| count == block.places.len()));
            }
            let sampler = Sampler::new(&program, Sampling::LatinHypercube, 1, 10).unwrap();
            let mut scenario = Scenario::default();
            sampler.scenario(9, &mut scenario);
            let second = &program.second;
            let (mut rhs, mut cost) = (vec![0.0; second.rhs.len()], vec![0.0; second.cost.len()]);
            scenario.rhs(&program, &mut rhs);
            scenario.cost(&program, &mut cost);
            assert!(rhs.iter().chain(&cost).all(|value| value.is_finite()));
            let in_matrix = |matrix: &Columns, (row, column, value): (usize, usize, f64)| {
                row < matrix.rows() && column < matrix.columns() && value.is_finite()
            };
            let mut technology = scenario.technology_changes(&program);
            assert!(technology.all(|entry| in_matrix(&program.technology, entry)));
            let mut recourse = scenario.recourse_changes(&program);
            assert!(recourse.all(|entry| in_matrix(&second.matrix, entry)));
            check_written(&program);
        }
    }
}

/// Writes a sample of a program, and reads it back as the same program.
fn check_written(program: &TwoStage) {
    let sampling = match program.scenarios() {
        Some(..=30) => Sampling::All,
        _ => Sampling::MonteCarlo,
    };
    let sampler = Sampler::new(program, sampling, 1, 10).unwrap();
    let written = sample_smps(program, scenarios(program, &sampler));
    let text = || written.concat();
    let contents = [0, 1, 2].map(|file| written[file].as_bytes());
    let (back, notes) =
        read_bytes(contents, &names()).unwrap_or_else(|error| panic!("{error}\n{}", text()));
    let known = ["is maximised", "is not random", "nothing is random", "not as infinity"];
    let is_known = |text: &str| known.iter().any(|known| text.contains(known));
    assert!(notes.iter().all(|note| is_known(&note.text)), "{notes:?}\n{}", text());
    assert_eq!((back.offset, back.maximise), (program.offset, program.maximise));
    let all = Sampler::new(&back, Sampling::All, 1, 1).unwrap();
    let one = extensive_form(program, scenarios(program, &sampler));
    let other = extensive_form(&back, scenarios(&back, &all));
    let size = |stage: &Stage| (stage.rows.len(), stage.columns.len());
    assert_eq!(size(&program.first), size(&back.first));
    assert_eq!(size(&program.second), size(&back.second));
    // Without random elements all scenarios are one.
    if program.random.is_empty() || back.random.is_empty() {
        return;
    }
    let near = |one: f64, other: f64, size: f64| {
        one == other || (one - other).abs() <= 1e-12 * size.max(one.abs())
    };
    assert_eq!((one.rows(), one.columns()), (other.rows(), other.columns()), "{}", text());
    for row in 0..one.rows() {
        let ((low, high), (other_low, other_high)) = (one.row_bounds(row), other.row_bounds(row));
        let is_finite = |bound: &f64| bound.is_finite();
        let size = [low, high].map(f64::abs).into_iter().filter(is_finite).fold(0.0, f64::max);
        assert!(near(low, other_low, size), "row {row}: {low} {other_low}\n{}", text());
        assert!(near(high, other_high, size), "row {row}: {high} {other_high}\n{}", text());
        let rows = (one.row(row).collect::<Vec<_>>(), other.row(row).collect::<Vec<_>>());
        assert_eq!(rows.0, rows.1, "row {row}\n{}", text());
    }
    for column in 0..one.columns() {
        assert!(near(one.cost(column), other.cost(column), 0.0), "column {column}\n{}", text());
        assert_eq!(one.bounds(column), other.bounds(column), "column {column}\n{}", text());
    }
}

fn latin_1(text: &str) -> Vec<u8> {
    text.chars().map(|character| character as u8).collect()
}

#[test]
fn unusual_forms_are_read() {
    for encode in [latin_1, |text: &str| text.as_bytes().to_vec()] {
        let [core, time, stoch] = UNUSUAL.map(encode);
        let (program, notes) = read_bytes([&core, &time, &stoch], &names()).unwrap();
        assert!(program.maximise);
        assert_eq!(program.name, "GRÖSSE");
        let places: Vec<usize> = program.random.iter().map(|block| block.places.len()).collect();
        assert_eq!(places, [2, 1, 1]);
        assert!(notes.len() > 10, "{notes:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_files(
        program in 0..PROGRAMS.len(),
        is_latin_1 in any::<bool>(),
        damages in prop::collection::vec((0..3_usize, damage()), 1..4),
    ) {
        let encode = |text: &str| if is_latin_1 { latin_1(text) } else { text.as_bytes().to_vec() };
        let mut contents = PROGRAMS[program].map(encode);
        for (file, damage) in &damages {
            damage.apply(&mut contents[*file]);
        }
        check([&contents[0], &contents[1], &contents[2]]);
    }

    #[test]
    fn files_of_different_programs(
        core in 0..PROGRAMS.len(),
        time in 0..PROGRAMS.len(),
        stoch in 0..PROGRAMS.len(),
    ) {
        let texts = [PROGRAMS[core][0], PROGRAMS[time][1], PROGRAMS[stoch][2]];
        check(texts.map(str::as_bytes));
    }
}
