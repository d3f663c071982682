//! `reserve`: reserves processors of a running grid.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use springtide_cli::exit::Failed;
use springtide_cli::format::SCHEMA;
use springtide_cli::options::time;
use springtide_cli::print::print;

use crate::output::slots::line;
use springtide_cli::print::print_early_failure;
use springtide_operations::agree::now;
use springtide_operations::attach::wait_for_grid;
use springtide_operations::options::{GlobalArgs, GridArgs};
use springtide_operations::process::{on_arbiter, start_log};
use springtide_operations::slots::{ReserveRequest, reserve};

/// The exit codes in the help.
pub const EXIT_CODES: &str = "\
Exit codes: 0 reserved; 1 no grid is up; 3 the processors are \
not available, or no such cluster exists.";

/// The options of `reserve`.
#[derive(Args, Clone, Debug)]
pub struct ReserveArgs {
    #[command(flatten)]
    pub grid: GridArgs,
    /// Cluster to reserve in
    #[arg(long, value_name = "CLUSTER")]
    pub on: String,
    /// Number of processors to reserve
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub processors: u32,
    /// Earliest start from now, for example 10m; the reservation begins as soon as processors are
    /// free then [default: 0s]
    #[arg(long = "in", value_name = "TIME", value_parser = time)]
    pub ahead: Option<Duration>,
    /// Duration of the reservation
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub duration: Duration,
    /// Fail unless the reservation can begin at the earliest start
    #[arg(long)]
    pub exactly: bool,
    /// Maximum price [default: no limit]
    #[arg(long, value_name = "COST")]
    pub budget: Option<f64>,
    /// Name of the reservation in lists
    #[arg(long, value_name = "NAME", default_value = "by hand")]
    pub name: String,
}

/// Executes `reserve`.
///
/// # Errors
/// As [`reserve`].
pub fn execute(args: &ReserveArgs, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    let request = ReserveRequest {
        cluster: &args.on,
        processors: args.processors,
        ahead: args.ahead,
        duration: args.duration,
        exactly: args.exactly,
        budget: args.budget,
        name: &args.name,
    };
    on_arbiter(async {
        let reserved = async {
            wait_for_grid(&args.grid.config, args.grid.wait_grid).await?;
            reserve(&args.grid.config, &request).await
        };
        match reserved.await {
            Ok(one) if args.grid.json => {
                let object = json!({ "schema": SCHEMA, "ok": true, "reservation": one });
                print(&format!("{object}\n"))
            }
            Ok(one) => print(&format!("{}\n", line(&one, now()))),
            Err(failed) => print_early_failure(args.grid.json, None, failed),
        }
    })
}
