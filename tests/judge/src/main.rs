//! `cargo run -p springtide-judge -- DIR... [--checksum HEX] [--settled]` judges the logs of runs
//! and grids.
//!
//! DIR is what `run` got as `--out`, or a grid's directory. `--checksum` is the expected checksum
//! of the job; by default that of `result.json`. `--settled` says that all jobs were over when the
//! log ended, so that a node that is still held is forgotten. The output has the number of subjects
//! of each rule, and each fault with the lines that show it. The exit code is 1 if there is a
//! fault, and 2 if a log cannot be read.

use std::path::PathBuf;
use std::process::ExitCode;

use springtide_judge::{Expectation, Verdict, judge_dir};

fn main() -> ExitCode {
    let (mut dirs, mut expected) = (Vec::new(), Expectation::default());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--checksum" => expected.checksum = args.next(),
            "--settled" => expected.settled = true,
            _ => dirs.push(PathBuf::from(arg)),
        }
    }
    let mut all = Verdict::default();
    for dir in &dirs {
        match judge_dir(dir, &expected) {
            Ok(verdict) => all.merge(verdict),
            Err(error) => {
                eprintln!("Error: {error}");
                return ExitCode::from(2);
            }
        }
    }
    print!("{all}");
    ExitCode::from(u8::from(!all.faults.is_empty()))
}
