//! `why`: explains why a run's nodes were added, removed or kept.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_dashboard::why::{Question, why};

/// The options of the command `why`.
#[derive(Args, Clone, Debug)]
pub struct WhyArgs {
    /// Directory of the run: the --out of `run`
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    run: PathBuf,
    /// Show only the decision at this time, with all its reasons: seconds since the job's start
    #[arg(long, value_name = "SECONDS", value_parser = parse_moment)]
    at: Option<f64>,
    /// Show only decisions about this node
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_moment(text: &str) -> Result<f64, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).trim_end().parse::<f64>().ok();
    seconds
        .filter(|s| s.is_finite() && *s >= 0.0)
        .ok_or_else(|| "must be seconds since the job's start, such as 42.5".to_owned())
}

/// Executes `why`.
///
/// # Errors
/// As [`why`].
pub fn execute(args: &WhyArgs) -> Result<(), Failed> {
    let WhyArgs { run, at, node, json } = args;
    why(&Question { run, at: *at, node: node.as_deref(), json: *json })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_seconds_since_the_start() {
        assert_eq!((parse_moment("42.5"), parse_moment("7 s")), (Ok(42.5), Ok(7.0)));
        for wrong in ["-1", "inf", "x"] {
            assert!(parse_moment(wrong).is_err(), "{wrong}");
        }
    }
}
