//! `up` and `dev`: a grid that keeps running.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use springtide_cli::exit::Failed;
use springtide_cli::options::time;

use springtide_operations::locate::default_config;
use springtide_operations::options::GlobalArgs;
use springtide_operations::process::{on_arbiter, start_log};
use springtide_operations::program::ProgramVersion;
use springtide_operations::shape::GridShape;
use springtide_operations::{life, unit, up};

/// The exit codes in the help.
pub const EXIT_CODES: &str = "\
Exit codes: 0 the grid has ended by a signal (with --detach: it is up); 1 it cannot be started, or \
is up already; 2 the config is wrong; 3 nodes do not start (with --detach: the grid is up without \
them); 4 with --detach: nodes are still starting after --timeout.";

/// The options of the command `up`.
#[derive(Args, Clone, Debug)]
pub struct UpArgs {
    /// Config of the grid [default: the nearest grid.toml]
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath,
          default_value_os_t = default_config(), hide_default_value = true)]
    config: PathBuf,
    /// Be the second head of the grid: take over when the first one is lost. The config is in the
    /// directory `standby` that the first head writes, copied to this machine
    #[arg(long)]
    standby: bool,
    /// Return when the grid is up, or this head waits, in the background: `down` ends it
    #[arg(long)]
    detach: bool,
    /// With --detach: maximum time to wait until all nodes have registered
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = time)]
    timeout: Duration,
    /// Start nothing; write a unit of systemd for the user, which starts the grid
    #[arg(long, conflicts_with = "detach")]
    install_unit: bool,
    /// Leave the session of the terminal
    #[arg(long, hide = true, conflicts_with_all = ["detach", "install_unit"])]
    new_session: bool,
}

/// The options of the command `dev`.
#[derive(Args, Clone, Debug)]
pub struct DevArgs {
    /// Shape: clusters x nodes, and threads per node
    #[arg(long, value_name = "CxN[@T]", default_value = "3x2")]
    clusters: GridShape,
    /// Directory for its config, certificates and logs
    #[arg(
        long,
        value_name = "DIR",
        default_value = ".springtide-dev",
        value_hint = ValueHint::DirPath,
    )]
    dir: PathBuf,
}

/// Executes `up`.
///
/// # Errors
/// As [`up::up`], [`life::detach`] and [`unit::install`].
pub fn execute(args: &UpArgs, about: ProgramVersion, global: &GlobalArgs) -> Result<(), Failed> {
    start_log(global);
    if args.install_unit {
        return on_arbiter(unit::install(&args.config, args.standby)).map(|how| eprintln!("{how}"));
    }
    if args.detach {
        return on_arbiter(life::detach(&args.config, args.standby, args.timeout, global));
    }
    if args.new_session {
        life::leave_session()?;
    }
    on_arbiter(up::up(&args.config, args.standby, about, global))
}

/// Executes `dev`.
///
/// # Errors
/// As [`up::dev`].
pub fn execute_dev(
    args: DevArgs,
    about: ProgramVersion,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    start_log(global);
    on_arbiter(up::dev(args.clusters, args.dir, about, global))
}
