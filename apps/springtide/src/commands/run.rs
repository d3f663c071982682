//! `run`: runs a job on a grid of its own or on a running grid, and prints the result.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use springtide_cli::exit::{EXIT_CODES, Failed};
use springtide_cli::print::print;
use springtide_cli::run_end::RunEnd;

use springtide_operations::options::{self, RunArgs, with_options};
use springtide_operations::process::{on_arbiter, start_log};
use springtide_operations::program::Program;
use springtide_operations::run;
use springtide_operations::watch::RunRequest;

/// The command `run` with these subcommands.
pub fn command(name: &'static str, jobs: Vec<Command>) -> Command {
    Command::new("run")
        .about("Run a job and print its result")
        .long_about(
            "Runs a job and prints its result. Without --config it starts a grid of its own: node \
            processes on this machine, in three clusters of two nodes, which end with it.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand_value_name("JOB")
        .subcommand_help_heading("Jobs")
        .disable_help_subcommand(true)
        .override_usage(format!("{name} run JOB [OPTIONS]"))
        .after_help(format!(
            "`{name} run JOB --help` lists the options of a job and of the run.\n\n{EXIT_CODES}"
        ))
        .subcommands(jobs)
}

/// The subcommand of a job, with its own options and those of the run. If both have an option of
/// the same name, the run's is called `--run-NAME`.
pub fn job_command(
    name: &'static str,
    about: &'static str,
    augment: fn(Command) -> Command,
) -> Command {
    with_options(name, about, augment, "run", RunArgs::augment_args(Command::new("run")))
}

/// Runs the job of a name.
///
/// With `result_first`, `--json` prints the job's result with the run in it.
///
/// # Errors
/// No job has this name, its options are wrong, or it has no outcome.
pub fn execute(
    program: Program,
    name: &str,
    matches: &ArgMatches,
    result_first: bool,
) -> Result<(), Failed> {
    let global = options::global(matches);
    start_log(&global);
    let definition = program.job(name)?;
    let args = RunArgs::from_arg_matches(matches)
        .map_err(|error| Failed::usage(error.to_string().trim_end()))?;
    let (job, json) = (definition.name, args.json);
    let encoded = match (definition.encode)(matches) {
        Ok(encoded) => encoded,
        Err(failed) => return print_early_failure(job, json, failed),
    };
    if !encoded.uploads.is_empty() {
        let text = "--input: files are copied by `job submit` alone; `run` has --files DIR";
        return print_early_failure(job, json, Failed::usage(text));
    }
    let request = RunRequest {
        job,
        body: encoded.body,
        is_fixed: definition.is_fixed,
        registry: Arc::new(program.registry),
        version: program.version,
        args,
        global,
        // A job without this option has no checkpoint.
        checkpoint: matches.try_get_one::<PathBuf>("checkpoint").ok().flatten().cloned(),
    };
    // The arbiter ends after the result is printed.
    on_arbiter(async move {
        let (ended, exit) = match run::run(request).await {
            Ok(ended) => ended,
            Err(failed) => return print_early_failure(job, json, failed),
        };
        let object = || if result_first { ended.result_first() } else { ended.json() };
        print(&if json { format!("{}\n", object()) } else { ended.summary() })?;
        ended.error().map_or(Ok(()), |error| Err(Failed::new(exit, error)))
    })
}

/// Prints a run that failed before it began.
///
/// # Errors
/// Always the failure itself.
pub fn print_early_failure(job: &str, json: bool, failed: Failed) -> Result<(), Failed> {
    if json {
        print(&format!("{}\n", RunEnd::early(job, &failed.message).json()))?;
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use springtide_runtime::config::Sources;

    use super::*;
    use springtide_operations::shape::GridShape;

    #[test]
    fn options_of_adaptation_override_the_config() {
        let run = |line: &[&str]| {
            let matches = job_command("job", "A job", |command| command)
                .try_get_matches_from([&["job"], line].concat())
                .map_err(|error| error.to_string())?;
            Ok::<_, String>(RunArgs::from_arg_matches(&matches).unwrap())
        };
        let line = [
            "--start",
            "1x2",
            "--mode",
            "monitor",
            "--min",
            "2",
            "--max-nodes",
            "4",
            "--poison",
            "0",
            "--keep-results",
            "0B",
            "--checkpoint-rate",
            "1MiB",
        ];
        let set = ["--set", "e_min=0.4", "--set", "weights.alpha = 2"];
        let args = run(&[&line[..], &set].concat()).unwrap();
        assert_eq!(args.start, Some(GridShape { clusters: 1, nodes: 2, threads: 1 }));
        let over = args.apply_to(Sources::default()).overrides;
        let keys: Vec<_> =
            over.iter().map(|o| (o.flag.as_str(), o.key.as_str(), o.value.as_str())).collect();
        let expected = [
            ("--set", "adaptation.e_min", "0.4"),
            ("--set", "adaptation.weights.alpha", "2"),
            ("--mode", "adaptation.mode", "monitor"),
            ("--min", "adaptation.min_processors", "2"),
            ("--max", "adaptation.max_processors", "4"),
            ("--poison", "work.poison", "0"),
            ("--keep-results", "work.results", "0B"),
            ("--checkpoint-rate", "work.checkpoints", "1MiB"),
        ];
        assert_eq!(keys, expected);
        for (bad, expected) in [
            (&["--start", "1x2@4"][..], "clusters x nodes such as 1x2"),
            (&["--start", "1x2", "--config", "a"], "cannot be used with"),
            (&["--mode", "adaptve"], "'adaptive'"),
            (&["--set", "e_min"], "NAME=VALUE"),
            (&["--set", "period_s=3"], "--period"),
            (&["--min-nodes", "few"], "--min <N>"),
        ] {
            let error = run(bad).unwrap_err();
            assert!(error.contains(expected), "{bad:?}: {error}");
        }
    }

    #[derive(Args)]
    struct SeedOption {
        /// Random seed
        #[arg(long, default_value_t = 7)]
        seed: u64,
    }

    #[test]
    fn an_option_of_a_job_renames_the_runs_option_of_the_same_name() {
        let command = || job_command("job", "A job", SeedOption::augment_args);
        command().debug_assert();
        let matches = command()
            .try_get_matches_from(["job", "--seed", "3", "--run-seed", "4", "--timeout", "2m"])
            .unwrap();
        assert_eq!(SeedOption::from_arg_matches(&matches).unwrap().seed, 3);
        let run = RunArgs::from_arg_matches(&matches).unwrap();
        assert_eq!((run.seed, run.timeout), (Some(4), Some(Duration::from_secs(120))));
        assert!(!run.json && !run.sequential);
        let plain = job_command("job", "A job", |command| command);
        let matches = plain.try_get_matches_from(["job", "--seed", "4"]).unwrap();
        assert_eq!(RunArgs::from_arg_matches(&matches).unwrap().seed, Some(4));
    }
}
