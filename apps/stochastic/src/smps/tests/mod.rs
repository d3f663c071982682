//! Every form of every section, and every error and note with file, line and text. Texts of a small
//! program and helpers for the tests of each file.

mod core_files;
mod programs;
mod stoch_files;
mod time_files;

use super::*;
use crate::model::{MatrixBlock, RandomElement, Realisation};

const CORE: &str = "\
NAME          SMALL
ROWS
 N  COST
 L  A
 G  R1
 E  R2
COLUMNS
    X1        COST               1.0   A                  1.0
    X1        R1                 2.0
    X2        COST               2.0   A                  1.0
    X2        R2                -1.0
    Y1        COST               3.0   R1                 1.0
    Y2        COST               4.0   R2                 1.0
RHS
    RHS       A                 10.0   R1                 4.0
    RHS       R2                 5.0
ENDATA
";

const TIME: &str = "\
TIME          SMALL
PERIODS       LP
    X1        A                        T1
    Y1        R1                       T2
ENDATA
";

const STOCH: &str = "\
STOCH         SMALL
INDEP         DISCRETE
    RHS       R1                 4.0   T2                 0.5
    RHS       R1                 6.0   T2                 0.5
ENDATA
";

fn names() -> Files {
    Files::new("small.cor", "small.tim", "small.sto")
}

#[track_caller]
fn read_with_notes(core: &str, time: &str, stoch: &str) -> (TwoStage, Vec<String>) {
    let contents = [core, time, stoch].map(str::as_bytes);
    let (program, notes) = read_bytes(contents, &names()).unwrap_or_else(|error| panic!("{error}"));
    (program, notes.iter().map(ReadNote::to_string).collect())
}

#[track_caller]
fn read_clean(core: &str, time: &str, stoch: &str) -> TwoStage {
    let (program, notes) = read_with_notes(core, time, stoch);
    assert_eq!(notes, [""; 0]);
    program
}

#[track_caller]
fn assert_fails(core: &str, time: &str, stoch: &str, message: &str) {
    match read_bytes([core, time, stoch].map(str::as_bytes), &names()) {
        Ok((program, _)) => panic!("no error {message}, but {program:?}"),
        Err(error) => assert!(error.to_string().starts_with(message), "{error}\nnot\n{message}"),
    }
}

/// A text with its first occurrence of `from` replaced.
#[track_caller]
fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

/// The core file with lines added at its end. They begin at line 17.
fn append(more: &str) -> String {
    replace(CORE, "ENDATA", &format!("{more}\nENDATA"))
}

/// A stochastic file with these sections, which begin at line 2.
fn stoch_file(sections: &str) -> String {
    format!("STOCH\n{sections}\nENDATA\n")
}

fn read_blocks(sections: &str) -> Vec<MatrixBlock> {
    read_clean(CORE, TIME, &stoch_file(sections)).random
}

fn block(places: &[RandomElement], outcomes: &[(f64, &[f64])]) -> MatrixBlock {
    let outcomes = outcomes.iter().map(|(probability, values)| Realisation {
        probability: *probability,
        values: values.to_vec(),
    });
    MatrixBlock { places: places.to_vec(), outcomes: outcomes.collect() }
}
