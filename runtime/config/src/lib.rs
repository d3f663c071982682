//! Configuration in TOML, in layers. All problems are reported at once with their places, and each
//! value has an origin.
//!
//! The layers are defaults, the file, the environment (`SPRINGTIDE_SECTION__KEY`) and flags. This
//! crate does not know the uses of the values: no network, no actors.

mod alias;
mod batch;
mod grid;
mod jobs;
mod limits;
mod links;
mod node;
mod problem;
mod profile;
mod reference;
mod scenario;
mod schema;
mod show;
mod site;
mod ssh;
mod ssh_directives;
mod topology;
mod tree;
mod units;
mod workload;

#[cfg(test)]
mod tests;

use crate as config;
use springtide_base::files;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

pub use alias::{ClusterAlias, SharedQueue, describe_alias};
pub use batch::{
    BatchPreset, BatchSection, BatchTemplate, CommandPart, CommandTemplate, Pattern, StateMeaning,
    TextPiece, TextTemplate,
};
pub use grid::{
    AdaptationSection, ClusterSection, ClusterSlotsSection, DashboardSection, FilesSection,
    GridConfig, HeadSection, HostSize, JoinSection, LinkSection, LogSection, NetSection,
    ProgramsSection, RunSection, SlurmSection, StandbySection, StatsSection, TlsSection,
    WeightsSection, WorkSection,
};
pub use jobs::{ComponentSection, JobComponent, JobSection, JobSizes, JobsConfig};
pub use limits::{allowed_delay, allowed_share};
pub use links::{InsideSection, LinksConfig};
pub use node::{HeadContact, HostShareSection, IdentitySection, NodeConfig, NodeLogSection};
pub use problem::{ConfigError, ConfigProblem, SpellingWarning, ValueOrigin, nearest};
pub use profile::{LinkProperties, ProfileConfig, profile, profiles};
pub use reference::{KeyDescription, KeyFallback, describe};
pub use scenario::{
    AppSection, EventSection, LineSection, PaperSection, PlaceSection, ScenarioConfig,
    ScenarioJobSection, WideSection,
};
pub use site::SiteConfig;
pub use ssh::{SshHost, SshHostsError, SshSection};
pub use ssh_directives::{SSH_DIRECTIVES, SshDirective, SshTreatment, unattended_options};
pub use topology::{SiteSection, TopologyConfig};
pub use units::{
    App, ArgumentList, BoundedInt, ByteRate, Congestion, Format, Happening, HostPort, HostPorts,
    Level, Mode, Name, Pair, Ports, Provider, Role, Share, SitePlace, Size, Steal, Subnet,
    ThreadCounts, Time,
};

pub use workload::{
    ArrivalSection, CostsSection, JobKind, Malleability, PlacementPolicy, Points, Precedence,
    ProcessorsSection, ProgramCurve, ProgramSection, QueueDiscipline, SchedulingSection,
    ShareSection, TraceSection, Usable, WorkloadConfig,
};

use schema::ConfigSchema;
use tree::{ConfigTree, Findings, Layer};

/// The newest version of config files that this program reads.
pub const CONFIG_VERSION: u32 = 1;

/// The prefix of environment variables that override keys.
const ENV_PREFIX: &str = "SPRINGTIDE_";

/// The largest config file, in bytes. A grid of thousands of clusters needs far less.
const FILE_MAX: u64 = 4 << 20;

/// A kind of config.
#[allow(
    private_bounds,
    reason = "the schema is how a config is described, not for others to implement"
)]
pub trait Config: DeserializeOwned + schema::ConfigSection {
    /// The name of the kind, for messages.
    const WHAT: &'static str;

    /// Checks the consistency of several values. Single values are checked by their types.
    fn check(&self, checker: &mut Checker<'_>);

    /// Expands short forms, once there are no problems.
    fn expand(self) -> Self {
        self
    }
}

/// A key set by a flag of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The flag for messages, as `--clusters`.
    pub flag: String,
    /// The key: `net.gso`, `cluster.ams.nodes`, or a whole list: `cluster`.
    pub key: String,
    /// Its value; a whole list in TOML: `[{ name = "a", nodes = 2 }]`.
    pub value: String,
}

/// The sources of a config.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The path of the file, which must exist.
    pub file: Option<PathBuf>,
    /// The file's text, if it is not to be read from disk; `file` then only names it.
    pub text: Option<String>,
    /// Environment variables. Those that do not match `SPRINGTIDE_SECTION__KEY` are ignored.
    pub env: Vec<(String, String)>,
    /// The keys set by flags.
    pub overrides: Vec<Override>,
}

impl Sources {
    /// A file and the environment of this process.
    pub fn of_process(file: Option<&Path>) -> Self {
        let env = std::env::vars_os();
        let env = env
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
        Self { file: file.map(Path::to_owned), env: env.collect(), ..Self::default() }
    }

    /// A text instead of a file; `name` stands for it in messages.
    pub fn of_text(name: &str, text: &str) -> Self {
        Self { file: Some(name.into()), text: Some(text.to_owned()), ..Self::default() }
    }

    /// Adds a key set by a flag.
    pub fn with_flag(mut self, flag: &str, key: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        self.overrides.push(Override { flag: flag.to_owned(), key: key.to_owned(), value });
        self
    }
}

/// A loaded config, with the origin of each value.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The values of the config.
    pub value: T,
    /// The keys that the sources give in an earlier spelling, in order of place.
    pub warnings: Vec<SpellingWarning>,
    tree: ConfigTree,
}

impl<T: Config> Loaded<T> {
    /// The effective config as TOML. It loads again, except for redacted secrets.
    ///
    /// With `origins`, each value has its origin as a comment.
    pub fn show(&self, origins: bool) -> String {
        show::effective(&T::SCHEMA, &self.tree, origins)
    }

    /// The origin of a key's value, as in `net.gso` or `cluster[0].nodes`. None for keys without a
    /// value.
    pub fn origin(&self, key: &str) -> Option<ValueOrigin> {
        tree::origin(&self.tree, key)
    }
}

/// Collects inconsistencies of a config.
pub struct Checker<'a> {
    tree: &'a ConfigTree,
    /// The origin of problems that belong to no value.
    fallback: ValueOrigin,
    findings: &'a mut Findings,
}

impl Checker<'_> {
    /// Reports a problem of the value at this path.
    pub fn report(&mut self, path: &str, reason: impl Into<String>) {
        self.report_with_suggestion(path, reason, None);
    }

    /// Like [`Checker::report`], with the likely intended word.
    pub fn report_with_suggestion(
        &mut self,
        path: &str,
        reason: impl Into<String>,
        meant: Option<&str>,
    ) {
        // A problem of this value, or of its name, is already reported, and a default is in its
        // place.
        if self.findings.excused.iter().any(|excused| excused == path) {
            return;
        }
        let at = match tree::origin(self.tree, path) {
            None | Some(ValueOrigin::Default) => self.fallback.clone(),
            Some(at) => at,
        };
        let meant = meant.map(str::to_owned);
        self.findings.problems.push(ConfigProblem { at, reason: reason.into(), meant });
    }

    /// Whether a source other than the defaults gives the value at this path.
    fn is_given(&self, path: &str) -> bool {
        !matches!(tree::origin(self.tree, path), None | Some(ValueOrigin::Default))
    }

    /// Like [`Checker::report`], at the first of these paths that has a given value.
    fn tell_at(&mut self, paths: &[&str], reason: impl Into<String>) {
        let path = paths.iter().find(|path| self.is_given(path)).or(paths.first());
        self.report(path.copied().unwrap_or_default(), reason);
    }

    /// Reports a cluster whose name another cluster, at `first`, already has.
    fn tell_taken(&mut self, path: &str, first: &str, name: &str) {
        let first = self.describe_place(first);
        self.report(path, format!("there are two clusters named \"{name}\"; the other is {first}"));
    }

    /// Describes the place of the value at this path.
    pub fn describe_place(&self, path: &str) -> String {
        match tree::origin(self.tree, path) {
            Some(ValueOrigin::File { line, .. }) => format!("on line {line}"),
            Some(origin) => format!("from {origin}"),
            None => "elsewhere".to_owned(),
        }
    }
}

/// Loads a config from its sources.
///
/// # Errors
/// The file cannot be read, or the config has problems: all of them, in order of place.
pub fn load<T: Config>(sources: &Sources) -> Result<Loaded<T>, ConfigError> {
    let root = root::<T>();
    let mut tree = tree::defaults(root);
    let mut findings = Findings::default();
    let (mut whole, mut fallback) = (true, ValueOrigin::Default);

    if let Some((file, bytes)) = text_of(sources)? {
        fallback = ValueOrigin::File { file: file.clone(), line: 1, column: 1 };
        whole = from_file(root, &file, &bytes, &mut tree, &mut findings)?;
    }
    let mut set = |origin: ValueOrigin, key: &str, value: &str| {
        let place = |_| origin.clone();
        let mut layer = Layer { place: &place, root, whole: true, findings: &mut findings };
        layer.set(&mut tree, key, value);
    };
    let mut env: Vec<_> = sources.env.iter().collect();
    env.sort();
    for (name, value) in env {
        if let Some(key) = key_of(name) {
            set(ValueOrigin::Env(name.clone()), &key, value);
        }
    }
    for Override { flag, key, value } in &sources.overrides {
        set(ValueOrigin::Flag(flag.clone()), key, value);
    }
    Layer { place: &|_| fallback.clone(), root, whole, findings: &mut findings }
        .missing_in_sections(&tree, &fallback);

    match T::deserialize(toml::Value::Table(tree::plain(&tree))) {
        Ok(value) => {
            if whole {
                value.check(&mut Checker { tree: &tree, fallback, findings: &mut findings });
            }
            if findings.problems.is_empty() {
                let mut warnings = findings.warnings;
                warnings.sort();
                return Ok(Loaded { value: value.expand(), warnings, tree });
            }
        }
        // A missing required key is already reported. Otherwise schema and types would differ, and
        // this reports that to the user.
        Err(error) if findings.problems.is_empty() => {
            let reason = format!("not a {} config: {}", T::WHAT, error.message());
            findings.problems.push(ConfigProblem { at: fallback, reason, meant: None });
        }
        Err(_) => {}
    }
    let mut problems = findings.problems;
    problems.sort();
    problems.dedup();
    Err(ConfigError::Problems(problems))
}

/// Adds the layer of the file. Returns whether all of it could be parsed.
fn from_file(
    root: &'static ConfigSchema,
    file: &str,
    bytes: &[u8],
    tree: &mut ConfigTree,
    findings: &mut Findings,
) -> Result<bool, ConfigError> {
    let at = |text: &str, byte| {
        let (line, column) = position(text, byte);
        ValueOrigin::File { file: file.to_owned(), line, column }
    };
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let reason = "not TOML: the file is not UTF-8 from here on".to_owned();
            findings.problems.push(ConfigProblem {
                at: at(&before, before.len()),
                reason,
                meant: None,
            });
            return Ok(false);
        }
    };
    let place = |span: Range<usize>| at(text, span.start);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let reason = format!("not TOML: {}", error.message().replace('\n', ", "));
        let at = place(error.span().unwrap_or(0..0));
        findings.problems.push(ConfigProblem { at, reason, meant: None });
    }
    if let Some(problem) = newer(table.get_ref(), &place) {
        // Other unknown keys may be valid in the newer version.
        return Err(ConfigError::Problems(vec![problem]));
    }
    let whole = errors.is_empty();
    Layer { place: &place, root, whole, findings }.table(root, table.get_ref(), tree, "");
    Ok(whole)
}

fn root<T: Config>() -> &'static ConfigSchema {
    &T::SCHEMA
}

fn template<T: Config>(head: &str) -> String {
    show::template(root::<T>(), head)
}

/// The name and contents of the file.
fn text_of(sources: &Sources) -> Result<Option<(String, Vec<u8>)>, ConfigError> {
    let Some(file) = &sources.file else { return Ok(None) };
    let name = file.display().to_string();
    if let Some(text) = &sources.text {
        return Ok(Some((name, text.clone().into_bytes())));
    }
    let failed = |source| ConfigError::File { file: file.clone(), source };
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(failed)?;
    opened.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        let reason = format!("the file is larger than {FILE_MAX} bytes: it is no config");
        return Err(failed(std::io::Error::other(reason)));
    }
    Ok(Some((name, bytes)))
}

/// Refuses a file of a newer version.
fn newer(
    table: &DeTable<'_>,
    place: &dyn Fn(Range<usize>) -> ValueOrigin,
) -> Option<ConfigProblem> {
    let value = table.get("config_version")?;
    let DeValue::Integer(digits) = value.get_ref() else { return None };
    let version = u64::from_str_radix(digits.as_str(), digits.radix()).ok()?;
    let reason = format!(
        "the file has config_version {version}, this program reads up to {CONFIG_VERSION}: use a \
         newer springtide"
    );
    (version > u64::from(CONFIG_VERSION)).then(|| ConfigProblem {
        at: place(value.span()),
        reason,
        meant: None,
    })
}

/// The dotted key that a variable overrides, if any: `SPRINGTIDE_NET__GSO` is `net.gso`. A single
/// underscore remains, as in `CLOSE_GRACE`. Variables without a section have other uses.
fn key_of(variable: &str) -> Option<String> {
    let rest = variable.strip_prefix(ENV_PREFIX)?;
    let (section, _) = rest.split_once("__")?;
    if section.is_empty() {
        return None;
    }
    let mut segments: Vec<_> = rest.split("__").map(str::to_lowercase).collect();
    // Names of the user's own variables keep their case.
    if let ["cluster", _, "env", ..] = segments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        segments.truncate(3);
        segments.extend(rest.splitn(4, "__").nth(3).map(str::to_owned));
    }
    Some(segments.join("."))
}

/// The line and column of a byte, both from 1. Columns count characters.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    let before = &text[..byte];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.bytes().filter(|&b| b == b'\n').count() + 1;
    (line, before[line_start..].chars().count() + 1)
}
