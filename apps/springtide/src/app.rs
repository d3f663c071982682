//! The program: its jobs, and the path from its command line to its exit code.
//!
//! Independent of the commands' work.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use bytes::Bytes;
use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use springtide_runtime::config::{GridConfig, Level, nearest};
use springtide_runtime::guard::in_users_code;
use springtide_runtime::remote::Hub;
use springtide_runtime::work::{Job, Registry, encode_job};
use springtide_simulator::apps::Model;
use tracing_subscriber::EnvFilter;

use crate::args::{self, GlobalArgs, NetCommand, NodeCommand, OtherCommand, RunArgs};
use crate::dashboard;
use crate::exit::{Exit, Failed};
use crate::jobs::{FileArgs, NeedArgs};
use crate::site::SiteCommand;
use crate::top;
use crate::{
    drain, files, inputs, jobs, join, netcheck, node, nodes, run, sim, site, slots, talk, token,
    trace, up, why, workflow,
};

/// A program with its jobs. Its `main` calls [`App::main`].
pub struct App {
    pub(crate) name: &'static str,
    version: &'static str,
    pub(crate) registry: Registry,
    jobs: Vec<JobCommand>,
    actors: Option<springtide_actors::node::UserActors>,
}

struct JobCommand {
    name: &'static str,
    about: &'static str,
    augment: fn(Command) -> Command,
    encode: fn(&ArgMatches) -> Result<Bytes, Failed>,
    /// Whether the job is also a command of the program, besides one of `run`.
    is_command: bool,
}

impl App {
    /// Creates a program without jobs. Nodes of a program and version accept only each other.
    pub fn new(name: &'static str, version: &'static str) -> Self {
        let mut registry = Registry::new();
        registry.version(version);
        // Nodes of live scenarios run this job.
        registry.job::<Model>();
        // Tasks of workflows are jobs.
        registry.job::<workflow::run::WorkflowTask>();
        Self { name, version, registry, jobs: Vec::new(), actors: None }
    }

    /// Adds a job. Its fields are the options of `run NAME`.
    ///
    /// # Panics
    /// If another job, task or object has one of its names.
    pub fn job<J: Job + Args>(mut self) -> Self {
        self.registry.job::<J>();
        self.jobs.push(JobCommand {
            name: J::NAME,
            about: J::ABOUT,
            augment: J::augment_args,
            encode: |matches| {
                let job = J::from_arg_matches(matches)
                    .map_err(|error| Failed::usage(error.to_string().trim_end()))?;
                Ok(encode_job(job)?)
            },
            is_command: false,
        });
        self
    }

    /// Adds a job that is also a command: `NAME` does the same as `run NAME`. Its `--json` prints
    /// the job's own result, with the data of the run under `run`.
    ///
    /// # Panics
    /// As [`App::job`].
    pub fn command<J: Job + Args>(self) -> Self {
        let mut app = self.job::<J>();
        if let Some(job) = app.jobs.last_mut() {
            job.is_command = true;
        }
        app
    }

    /// Starts own actors on each node, on an arbiter apart from the runtime's. `start` runs there
    /// and publishes the actors at the hub, where tasks and other nodes find them.
    pub fn actors(mut self, start: impl Fn(&Arc<Hub>) + Send + Sync + 'static) -> Self {
        self.actors = Some(Arc::new(start));
        self
    }

    /// Executes the command line of this process.
    pub fn main(self) -> ExitCode {
        self.main_with(std::env::args_os())
    }

    /// Executes a command line. Its first word is the program's name.
    pub fn main_with(
        self,
        line: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> ExitCode {
        let line: Vec<OsString> = line.into_iter().map(Into::into).collect();
        let matches = match self.command_line().try_get_matches_from(&line) {
            Ok(matches) => matches,
            Err(mut error) => {
                if let Some(message) = self.misplaced(&line, &error) {
                    talk::error(self.name, &message);
                    return Exit::Usage.into();
                }
                self.suggest(&line, &mut error);
                // Help and version are output and no failure.
                let exit = if error.use_stderr() { Exit::Usage } else { Exit::Ok };
                let _ = error.print();
                return exit.into();
            }
        };
        let name = self.name;
        match self.dispatch(&matches) {
            Ok(()) => Exit::Ok.into(),
            Err(failed) => {
                talk::error(name, &failed.message);
                failed.exit.into()
            }
        }
    }

    /// Adds a suggestion for a short word with two letters swapped, such as `fbi` for `fib`. clap's
    /// measure of similarity finds none.
    fn suggest(&self, line: &[OsString], error: &mut clap::Error) {
        let known = error.get(ContextKind::SuggestedSubcommand).is_some();
        let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
            return;
        };
        if known {
            return;
        }
        let before = || line.iter().take_while(|argument| *argument != word.as_str());
        let of_run = before().any(|w| w == "run" || w == "submit" || w == "plan");
        let command = self.command_line();
        let commands = command.get_subcommands().map(Command::get_name);
        let meant = match of_run {
            true => nearest(word, self.jobs.iter().map(|job| job.name)),
            false => nearest(word, commands),
        };
        if let Some(meant) = meant {
            let meant = ContextValue::Strings(vec![meant.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, meant);
        }
    }

    /// Explains options before the job, as in `job submit --config G queens`: those belong to a
    /// file of jobs. clap says only that the two exclude each other.
    fn misplaced(&self, line: &[OsString], error: &clap::Error) -> Option<String> {
        let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
            return None;
        };
        let words: Vec<&str> = line.iter().filter_map(|word| word.to_str()).collect();
        let at = words
            .windows(2)
            .position(|two| two[0] == "job" && matches!(two[1], "submit" | "plan"))?;
        let between = words.get(at + 2..)?.iter().take_while(|argument| *argument != word);
        if !between.clone().any(|argument| argument.starts_with('-')) {
            return None;
        }
        let names = || self.jobs.iter().map(|job| job.name);
        if names().all(|name| name != word) {
            let meant = nearest(word, names());
            let meant = meant.map_or_else(String::new, |meant| format!(": did you mean {meant}?"));
            return Some(format!("no job is named {word}{meant}"));
        }
        let options: Vec<&str> = between.copied().collect();
        let (name, what, options) = (self.name, words[at + 1], options.join(" "));
        Some(format!("options come after the job: {name} job {what} {word} {options}"))
    }

    /// The definition of the command line, for documentation and for checks that execute nothing.
    pub fn command_line(&self) -> Command {
        let jobs = self.jobs.iter().map(|job| args::job_command(job.name, job.about, job.augment));
        let need = |job: &JobCommand| args::requirement_command(job.name, job.about, job.augment);
        let needs = self.jobs.iter().map(need);
        let commands = self.jobs.iter().filter(|job| job.is_command);
        let commands = commands.map(|job| args::job_command(job.name, job.about, job.augment));
        args::command(self.name, self.version, jobs.collect(), needs.collect())
            .subcommands(commands)
    }

    fn dispatch(self, matches: &ArgMatches) -> Result<(), Failed> {
        let global = args::global(matches);
        if let Some(("run", matches)) = matches.subcommand() {
            let Some((name, matches)) = matches.subcommand() else {
                return Err(Failed::usage("no job is given: see `run --help`"));
            };
            let global = args::global(matches);
            log_to_stderr(own_level(&global), false);
            return self.run(name, matches, global, false);
        }
        if let Some((name, matches)) = matches.subcommand()
            && self.jobs.iter().any(|job| job.is_command && job.name == name)
        {
            let global = args::global(matches);
            log_to_stderr(own_level(&global), false);
            return self.run(name, matches, global, true);
        }
        if let Some(("job", matches)) = matches.subcommand() {
            let global = args::global(matches);
            log_to_stderr(own_level(&global), false);
            return self.job_command(matches, &global);
        }
        let other = OtherCommand::from_arg_matches(matches)
            .map_err(|error| Failed::usage(error.to_string().trim_end()))?;
        match other {
            OtherCommand::Up { config } => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(up::up(&config, self.version, &global))
            }
            OtherCommand::Dev { clusters, dir } => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(up::dev(clusters, dir, self.version, &global))
            }
            OtherCommand::Node(NodeCommand::Run { config, with_parent }) => {
                let config = node::config(&config)?;
                let json = config.log.format == springtide_runtime::config::Format::Json;
                log_to_stderr(global.log_level.unwrap_or(config.log.level), json);
                let registry = Arc::new(self.registry);
                on_arbiter(node::run(config, with_parent, registry, self.actors))
            }
            OtherCommand::Node(NodeCommand::Join(args)) => {
                // Before logging starts: the node's config sets the log level.
                let Some(config) = on_runtime(join::run(&args))? else { return Ok(()) };
                let config = node::config(&config)?;
                let json = config.log.format == springtide_runtime::config::Format::Json;
                log_to_stderr(global.log_level.unwrap_or(config.log.level), json);
                let registry = Arc::new(self.registry);
                on_arbiter(node::run(config, false, registry, self.actors))
            }
            OtherCommand::Node(NodeCommand::List { config, json }) => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(nodes::list(&config, json))
            }
            OtherCommand::Node(NodeCommand::Status { node, config, json, .. }) => {
                log_to_stderr(own_level(&global), false);
                match node {
                    Some(node) => on_arbiter(nodes::status(&node, &config, json)),
                    None => nodes::status_of_self(&config, json),
                }
            }
            OtherCommand::Node(NodeCommand::Revoke { node, config, reason }) => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(nodes::revoke(&node, &config, &reason))
            }
            OtherCommand::Token(command) => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(token::token(command))
            }
            OtherCommand::Node(NodeCommand::Drain { nodes, config, deadline, reason, json }) => {
                log_to_stderr(own_level(&global), false);
                let reason = reason.as_deref();
                let order =
                    drain::DrainRequest { nodes: &nodes, file: &config, deadline, reason, json };
                on_arbiter(drain::drain(order, &global))
            }
            OtherCommand::Node(NodeCommand::Undrain { nodes, config }) => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(drain::undrain(&nodes, &config))
            }
            OtherCommand::Files(command) => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(inputs::files(command, &global))
            }
            OtherCommand::Slots(command) => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(slots::list(command))
            }
            OtherCommand::Reserve(args) => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(slots::reserve(args))
            }
            OtherCommand::Release(args) => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(slots::release(args))
            }
            OtherCommand::Site(SiteCommand::Run { config }) => {
                let (site, grid) = site::config(&config)?;
                let json = site.log.format == springtide_runtime::config::Format::Json;
                log_to_stderr(global.log_level.unwrap_or(site.log.level), json);
                on_arbiter(site::run(&config, &site, &grid, &global))
            }
            OtherCommand::Why { run, at, node, json } => {
                why::why(&why::Question { run: &run, at, node: node.as_deref(), json })
            }
            OtherCommand::Replay { run } => why::replay(&run),
            OtherCommand::Top { url, config, token_file, once } => {
                let at = top::DashboardArgs {
                    url: url.as_deref(),
                    config: config.as_deref(),
                    token_file: token_file.as_deref(),
                };
                top::top(&at, once)
            }
            OtherCommand::Report { runs, compare, out } => dashboard::report(&runs, compare, out),
            OtherCommand::Trace { run, out } => trace::trace(&run, out),
            OtherCommand::Sim(command) => {
                log_to_stderr(own_level(&global), false);
                sim::sim(command, self.version)
            }
            OtherCommand::Workflow(command) => {
                log_to_stderr(own_level(&global), false);
                let fingerprint = self.registry.fingerprint();
                let encode = |name: &str, options: &[String]| self.encode(name, options);
                let programs = workflow::run::Programs { fingerprint, encode: &encode };
                workflow::workflow(&command, &programs, &global)
            }
            #[cfg(target_os = "linux")]
            OtherCommand::Wan(command) => {
                log_to_stderr(own_level(&global), false);
                crate::wan::wan(command, Arc::new(self.registry), self.version, &global)
            }
            OtherCommand::Config(command) => files::config(&command),
            OtherCommand::Ca(command) => files::ca(&command),
            OtherCommand::Net(NetCommand::Check { config, all_pairs, json }) => {
                log_to_stderr(own_level(&global), false);
                on_arbiter(netcheck::check(&config, all_pairs, json))
            }
            OtherCommand::Completions { shell } => {
                let mut out = Vec::new();
                clap_complete::generate(shell, &mut self.command_line(), self.name, &mut out);
                run::print(&String::from_utf8_lossy(&out))
            }
            OtherCommand::Man { dir } => files::man(&self.command_line(), &dir),
            OtherCommand::Version { json } => run::print(&self.version_text(json)),
        }
    }

    fn version_text(&self, json: bool) -> String {
        let fingerprint = format!("{:016x}", self.registry.fingerprint());
        if json {
            let object = serde_json::json!({
                "schema": crate::report::SCHEMA,
                "name": self.name,
                "version": self.version,
                "registry": fingerprint,
            });
            format!("{object}\n")
        } else {
            format!("{} {} (registry {fingerprint})\n", self.name, self.version)
        }
    }

    /// Encodes a job from its name and options. Fails with [`Exit::NotPlaced`] if the name is
    /// wrong, and lists the names.
    fn encode(&self, name: &str, options: &[String]) -> Result<(&'static str, Bytes), Failed> {
        let Some(job) = self.jobs.iter().find(|job| job.name == name) else {
            let names = || self.jobs.iter().map(|job| job.name);
            let hint = match nearest(name, names()) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("there are {}", names().collect::<Vec<_>>().join(", ")),
            };
            return Err(Failed::new(Exit::NotPlaced, format!("no job is named {name}: {hint}")));
        };
        let command = (job.augment)(Command::new(job.name)).no_binary_name(true);
        let matches = command.try_get_matches_from(options).map_err(|error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first);
            Failed::usage(format!("{name}: {first}; see `run {name} --help`"))
        })?;
        Ok((job.name, (job.encode)(&matches)?))
    }

    fn job_command(self, matches: &ArgMatches, global: &GlobalArgs) -> Result<(), Failed> {
        let wrong = |error: clap::Error| Failed::usage(error.to_string().trim_end());
        let (dry, matches) = match matches.subcommand() {
            Some(("submit", matches)) => (false, matches),
            Some(("plan", matches)) => (true, matches),
            _ => {
                let command = jobs::JobCommand::from_arg_matches(matches).map_err(wrong)?;
                return on_arbiter(jobs::job(command, global));
            }
        };
        let fingerprint = self.registry.fingerprint();
        let (grid, all) = match matches.subcommand() {
            Some((name, matches)) => {
                let args = NeedArgs::from_arg_matches(matches).map_err(wrong)?;
                (args.grid.clone(), self.wanted(name, matches, &args))
            }
            None => {
                let args = FileArgs::from_arg_matches(matches).map_err(wrong)?;
                let encode = |name: &str, options: &[String]| self.encode(name, options);
                let all = jobs::grid_config(&args.grid.config).and_then(|config| {
                    let all = jobs::of_file(&args.file, &config, encode)?;
                    Ok((config, all))
                });
                (args.grid, all)
            }
        };
        let (config, all) = match all {
            Ok(all) => all,
            Err(failed) => return jobs::told_early(grid.json, None, failed),
        };
        let order = jobs::SubmitOrder { file: grid.config, json: grid.json, dry, fingerprint };
        on_arbiter(jobs::submit(order, &config, all, global))
    }

    /// One job of the command line, and the config of its grid.
    fn wanted(
        &self,
        name: &str,
        matches: &ArgMatches,
        args: &NeedArgs,
    ) -> Result<(GridConfig, Vec<jobs::JobRequest>), Failed> {
        let config = jobs::grid_config(&args.grid.config)?;
        let need = jobs::need(args, &config)?;
        let Some(job) = self.jobs.iter().find(|job| job.name == name) else {
            return Err(Failed::usage(format!("no job is named {name}: see `run --help`")));
        };
        let (body, line) = ((job.encode)(matches)?, args::job_line(job.augment, name, matches));
        Ok((config, vec![jobs::JobRequest { name: job.name, body, line, need }]))
    }

    fn run(
        self,
        name: &str,
        matches: &ArgMatches,
        global: GlobalArgs,
        result_first: bool,
    ) -> Result<(), Failed> {
        let Some(job) = self.jobs.iter().find(|job| job.name == name) else {
            return Err(Failed::usage(format!("no job is named {name}: see `run --help`")));
        };
        let args = RunArgs::from_arg_matches(matches)
            .map_err(|error| Failed::usage(error.to_string().trim_end()))?;
        let body = match (job.encode)(matches) {
            Ok(body) => body,
            Err(failed) => return run::print_early_failure(job.name, args.json, failed),
        };
        let registry = Arc::new(self.registry);
        let version = self.version;
        let job = job.name;
        // A job without this option has no checkpoint.
        let checkpoint = matches.try_get_one::<PathBuf>("checkpoint").ok().flatten().cloned();
        on_arbiter(run::run(run::RunRequest {
            checkpoint,
            job,
            body,
            registry,
            version,
            args,
            global,
            result_first,
        }))
    }
}

/// Runs a command on this process's main arbiter, which owns its endpoint and the runtime's actors.
pub(crate) fn on_arbiter<T>(command: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    abort_on_panic();
    actix::System::new().block_on(command)
}

/// Runs a command that needs no arbiter, before any arbiter exists.
fn on_runtime<T>(command: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = |error| Failed::failure(format!("cannot start the asynchronous runtime: {error}"));
    runtime.map_err(failed)?.block_on(command)
}

/// Aborts the process on a panic of the runtime's own actors, which leaves it in an undefined
/// state; its site then restarts it. These actors live on the main thread. The pool catches panics
/// of tasks, and the caller catches panics of users' code in those actors. Panics of users' actors
/// affect only these. All panics are logged.
fn abort_on_panic() {
    let main = std::thread::current().id();
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().id() == main && !in_users_code() {
            usual(info);
            std::process::abort();
        }
        let thread = std::thread::current();
        tracing::warn!("thread {}: {info}", thread.name().unwrap_or("unnamed"));
    }));
}

fn own_level(global: &GlobalArgs) -> Level {
    global.log_level.unwrap_or(match (global.quiet, global.verbose) {
        (true, _) => Level::Error,
        (false, 0 | 1) => Level::Warn,
        (false, 2) => Level::Info,
        (false, _) => Level::Debug,
    })
}

/// Writes log lines of this level to standard error.
fn log_to_stderr(level: Level, json: bool) {
    use std::io::IsTerminal;
    // quinn and rustls log every packet from `debug` on.
    let filter = EnvFilter::new(format!(
        "warn,springtide={level},springtide_actors={level},springtide_runtime={level}"
    ));
    let colours = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    // Later calls in one process, as in tests, keep the first subscriber.
    let _ = if json { lines.json().try_init() } else { lines.try_init() };
}
