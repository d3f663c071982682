//! Batch systems in a grid's config: the values of a site, and templates of their commands.
//!
//! A template has the command lines of a batch system and the patterns that read their output. The
//! presets are templates in TOML. This module does not know how commands run.
// Doc lines of keys are also the template's comments, where `[work]` is a section's name, no link.
#![allow(rustdoc::broken_intra_doc_links)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use toml::Value;

use super::grid::{ClusterSection, SlurmSection};
use super::problem::nearest;
use super::schema::{
    Fallback::{Absent, Is, Optional},
    Leaf, section,
};
use super::units::{ArgumentList, Size, Time, choice, text_value};
use super::{Checker, Config, Sources, load};

/// The largest compiled pattern, in bytes. The presets need half of it.
const PATTERN_MAX: usize = 128 << 10;
/// Placeholders with a value in every submission.
const SUBMISSION: [&str; 13] = [
    "name",
    "slug",
    "token",
    "comment",
    "threads",
    "output",
    "script",
    "script_text",
    "script_json",
    "dir",
    "uid",
    "leave_ahead",
    "signal_ahead",
];
/// Placeholders with a value in orders to jobs.
const ORDER: [&str; 3] = ["id", "ids", "signal"];
/// Placeholders with a value if the site's section limits the time.
const TIMES: [&str; 3] = ["minutes", "seconds", "hms"];
/// Placeholders with a value if the site's section has one.
const SITE: [&str; 4] = ["queue", "account", "memory_mib", "extra"];

choice! {
    /// A template that is shipped with the program.
    BatchPreset {
        /// Slurm.
        Slurm = "slurm",
        /// Grid Engine: Sun's, Univa's, Son of Grid Engine.
        GridEngine = "gridengine",
        /// PBS Professional and OpenPBS.
        Pbs = "pbs",
        /// IBM Spectrum LSF.
        Lsf = "lsf",
        /// Flux.
        Flux = "flux",
        /// HTCondor.
        HtCondor = "htcondor",
        /// Kubernetes, by `kubectl`.
        Kubernetes = "kubernetes",
    }
}

section! {
    /// A batch system.
    ///
    /// Each node is a batch job. Its config, log and program must have the same paths on its hosts
    /// as on the head.
    BatchSection {
        /// Shipped template: "slurm", "gridengine", "pbs", "lsf", "flux", "htcondor" or
        /// "kubernetes"; default: none, so that [cluster.batch.template] has all keys.
        preset: Option<BatchPreset> = Absent("\"gridengine\"");
        /// Directory of the batch system's commands; default: the search path.
        commands: Option<PathBuf> = Absent("\"/opt/ge/bin/lx-amd64\"");
        /// Environment variables of these commands.
        variables: BTreeMap<String, String> = Absent("{ SGE_ROOT = \"/opt/ge\" }");
        /// Queue; default: that of the batch system.
        queue: Option<String> = Absent("\"all.q\"");
        /// Account to charge.
        account: Option<String> = Absent("\"physics\"");
        /// Maximum time of a node; default: that of the batch system.
        time: Option<Time> = Absent("\"8h\"");
        /// Memory of a node; default: that of the batch system.
        memory: Option<Size> = Absent("\"2GiB\"");
        /// Values of further placeholders of the template.
        values: BTreeMap<String, String> = Absent("{ parallel_environment = \"smp\" }");
        /// Further arguments of the submission.
        extra: Option<ArgumentList> = Absent("[\"-p\", \"-100\"]");
        /// Shell commands before the node's program. If one fails, the batch job ends.
        prologue: Option<ArgumentList> = Absent("[\". /etc/profile.d/modules.sh\", \
            \"module load cuda\"]");
        /// Time before its end at which a node is replaced; longer if the last nodes waited for
        /// over half of it in the queue.
        leave_ahead: Time = Is("\"60s\"");
        /// Interval at which the system is asked for free processors and the states of nodes.
        poll: Time = Is("\"2s\"");
        /// Time limit of a command.
        answer_timeout: Time = Is("\"10s\"");
        /// Time after which a running batch job that all answers lack counts as ended.
        missing_timeout: Time = Is("\"60s\"");
        /// Time for which an idle node is kept.
        keep: Time = Is("\"2s\"");
        /// Commands of the batch system, in place of those of the preset.
        template: Option<BatchTemplate> = Optional;
    }

    /// Commands of a batch system, and patterns that read their output.
    ///
    /// A command is a list of words. Words in a list within it are left out together if one of
    /// their placeholders has no value. A pattern is a regular expression; its first group counts.
    BatchTemplate {
        /// Batch system on which this template was tested; default: none.
        tested_on: Option<String> = Absent("\"Slurm 22.05\"");
        /// Command that submits a batch job of one node.
        submit: Option<CommandTemplate> = Absent("[\"qsub\", \"-N\", \"{name}\", [\"-q\", \
            \"{queue}\"]]");
        /// Standard input of `submit`; default: the script.
        input: Option<TextTemplate> = Absent("\"{script_text}\"");
        /// Pattern of the identifier of a submitted batch job. Its last match counts.
        submitted: Option<Pattern> = Absent("'^([0-9]+)$'");
        /// Command that lists batch jobs.
        list: Option<CommandTemplate> = Absent("[\"qstat\", \"-xml\"]");
        /// Pattern of the text of one batch job in the list; default: a line.
        row: Option<Pattern> = Absent("'(?s)<job_list.*?</job_list>'");
        /// Pattern of every complete list.
        frame: Option<Pattern> = Absent("'</job_info>\\s*$'");
        /// Pattern of a list without batch jobs, also in the error output of a failed command;
        /// default: blank.
        empty: Option<Pattern> = Absent("'No unfinished job found'");
        /// Pattern of the identifier in a row.
        id: Option<Pattern> = Absent("'<JB_job_number>(\\d+)<'");
        /// Pattern of the name in a row.
        name: Option<Pattern> = Absent("'<JB_name>([^<]*)<'");
        /// Pattern of the state in a row: a key of `state_meanings`.
        state: Option<Pattern> = Absent("'<state>([^<]*)<'");
        /// Pattern of the remaining time in a row: seconds, or days-hours:minutes:seconds.
        left: Option<Pattern> = Absent("'left=(\\S+)'");
        /// Pattern of the host in a row: a name that `machine_name` finds.
        host: Option<Pattern> = Absent("'<queue_name>([^<]+)<'");
        /// Pattern of the number of processors in a row.
        processors: Option<Pattern> = Absent("'<slots>(\\d+)<'");
        /// Pattern of the reason of a wait in a row.
        reason: Option<Pattern> = Absent("'reason=(\\S+)'");
        /// Pattern of the comment in a row.
        comment: Option<Pattern> = Absent("'comment=(.*)$'");
        /// Meanings of states: "pending", "running", "suspended", "ending", or "ended: " and how.
        /// Others change nothing.
        state_meanings: BTreeMap<String, String> = Absent("{ qw = \"pending\", r = \"running\", \
            Eqw = \"ended: failed to start\" }");
        /// Command that ends batch jobs at once.
        cancel: Option<CommandTemplate> = Absent("[\"qdel\", \"{ids}\"]");
        /// Command that sends a signal to the script alone; default: files tell it.
        signal: Option<CommandTemplate> = Absent("[\"scancel\", \"--batch\", \
            \"--signal={signal}\", \"{ids}\"]");
        /// Command that lists machines; default: the configured nodes are the capacity.
        list_machines: Option<CommandTemplate> = Absent("[\"qstat\", \"-f\"]");
        /// Pattern of the text of one machine in that list; default: a line.
        machine_row: Option<Pattern> = Absent("'(?m)^\\S+@\\S+ .*$'");
        /// Pattern of its name.
        machine_name: Option<Pattern> = Absent("'^(\\S+)'");
        /// Pattern of the number of its busy processors.
        machine_busy: Option<Pattern> = Absent("'/(\\d+)/'");
        /// Pattern of the number of its free processors.
        machine_free: Option<Pattern> = Absent("'free=(\\d+)'");
        /// Pattern of the number of all its processors, if not that of the free ones.
        machine_total: Option<Pattern> = Absent("'/(\\d+) '");
        /// Pattern of its memory in MiB.
        machine_memory: Option<Pattern> = Absent("'mem=(\\d+)'");
        /// Pattern of a machine that takes new batch jobs; default: all do.
        usable: Option<Pattern> = Absent("'amd64\\s*$'");
        /// Pattern of a machine of the default queue: the queue's name. Without `queue`, these
        /// alone count.
        default_queue: Option<Pattern> = Absent("'(\\S+)\\*$'");
        /// Environment variables of the commands; those of the site replace them.
        variables: BTreeMap<String, String> = Absent("{ FLUX_F58_FORCE_ASCII = \"1\" }");
        /// Prefixes of environment variables that the commands must not see.
        unset: Option<ArgumentList> = Absent("[\"SBATCH_\"]");
        /// Environment variables with such a prefix that they may see.
        unset_except: Option<ArgumentList> = Absent("[\"SLURM_CONF\"]");
    }
}

/// A regular expression of a template.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(Regex);

impl Pattern {
    /// The expression in its compiled form.
    pub fn regex(&self) -> &Regex {
        &self.0
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let regex = RegexBuilder::new(text).size_limit(PATTERN_MAX).build();
        regex.map(Self).map_err(|error| {
            let lines = error.to_string();
            let last = lines.lines().last().unwrap_or_default().trim();
            let last = last.trim_start_matches("error: ");
            format!("must be a regular expression, found {text:?}: {last}")
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

text_value!(Pattern, "a regular expression in quotes");

/// A piece of a text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextPiece {
    /// Literal text.
    Literal(String),
    /// A placeholder: the name of its value.
    Placeholder(String),
}

/// A text with placeholders: `{name}`. `{{` and `}}` are braces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TextTemplate {
    text: String,
    pieces: Vec<TextPiece>,
}

impl TextTemplate {
    /// The literal texts and placeholders in order.
    pub fn pieces(&self) -> &[TextPiece] {
        &self.pieces
    }

    /// The names of its placeholders.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            TextPiece::Placeholder(name) => Some(name.as_str()),
            TextPiece::Literal(_) => None,
        })
    }
}

impl FromStr for TextTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |reason: &str| Err(format!("{reason}, found {text:?}: write {{{{ for a brace"));
        if text.contains('\0') {
            return wrong("must not contain NUL");
        }
        let (mut pieces, mut literal, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            literal.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                literal.push_str(brace);
                rest = after;
                continue;
            }
            let Some((name, after)) = rest.split_once('}').filter(|_| brace == "{") else {
                return wrong("must have braces in pairs");
            };
            let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if name.is_empty() || !name.chars().all(known) {
                return wrong("must have placeholders of a-z, 0-9 and _ in braces");
            }
            if !literal.is_empty() {
                pieces.push(TextPiece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(TextPiece::Placeholder(name.to_owned()));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(TextPiece::Literal(literal));
        }
        Ok(Self { text: text.to_owned(), pieces })
    }
}

impl fmt::Display for TextTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

text_value!(TextTemplate, "text in quotes");

/// A word of a command, or words that are left out together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CommandPart {
    /// One word, which needs values for all its placeholders.
    Word(TextTemplate),
    /// Words that are left out if a placeholder of theirs has no value.
    Optional(Vec<TextTemplate>),
}

impl CommandPart {
    /// Its words in order.
    pub fn words(&self) -> &[TextTemplate] {
        match self {
            Self::Word(word) => std::slice::from_ref(word),
            Self::Optional(words) => words,
        }
    }
}

/// A command as a list of words with placeholders. The first is the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommandTemplate(Vec<CommandPart>);

impl CommandTemplate {
    /// The parts of the command in order.
    pub fn parts(&self) -> &[CommandPart] {
        &self.0
    }

    /// The names of its placeholders, with repetitions.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|part| part.words().iter().flat_map(TextTemplate::placeholders))
    }
}

impl Leaf for CommandTemplate {
    fn read(value: &Value) -> Result<Self, String> {
        const FORM: &str = "must be a list of words such as [\"qsub\", [\"-q\", \"{queue}\"]]";
        let form = || format!("{FORM}, found {value}");
        let mut parts = Vec::new();
        for part in value.as_array().ok_or_else(form)? {
            parts.push(match part {
                Value::String(word) => CommandPart::Word(word.parse()?),
                Value::Array(words) => {
                    let words = words.iter().map(|word| word.as_str().ok_or_else(form)?.parse());
                    CommandPart::Optional(words.collect::<Result<_, _>>()?)
                }
                _ => return Err(form()),
            });
        }
        match parts.first() {
            Some(CommandPart::Word(word))
                if word.placeholders().next().is_none() && !word.text.is_empty() =>
            {
                Ok(Self(parts))
            }
            _ => Err(format!("must begin with the name of a program, found {value}")),
        }
    }
}

impl BatchPreset {
    /// The text of the template, in TOML.
    pub fn text(self) -> &'static str {
        match self {
            Self::Slurm => include_str!("../presets/slurm.toml"),
            Self::GridEngine => include_str!("../presets/gridengine.toml"),
            Self::Pbs => include_str!("../presets/pbs.toml"),
            Self::Lsf => include_str!("../presets/lsf.toml"),
            Self::Flux => include_str!("../presets/flux.toml"),
            Self::HtCondor => include_str!("../presets/htcondor.toml"),
            Self::Kubernetes => include_str!("../presets/kubernetes.toml"),
        }
    }

    /// The template of this preset.
    ///
    /// # Errors
    /// The preset has an error, which a test of this crate excludes.
    pub fn template(self) -> Result<&'static BatchTemplate, String> {
        static TEMPLATES: OnceLock<BTreeMap<BatchPreset, Result<BatchTemplate, String>>> =
            OnceLock::new();
        let read = |preset: &Self| {
            let sources = Sources::of_text(&format!("preset {preset}"), preset.text());
            let loaded = load::<BatchTemplate>(&sources);
            (*preset, loaded.map(|loaded| loaded.value).map_err(|error| error.to_string()))
        };
        let all = TEMPLATES.get_or_init(|| Self::ALL.iter().map(read).collect());
        match all.get(&self) {
            Some(template) => template.as_ref().map_err(String::clone),
            None => Err(format!("there is no preset {self}")),
        }
    }
}

impl Config for BatchTemplate {
    const WHAT: &'static str = "batch template";

    fn check(&self, checker: &mut Checker<'_>) {
        self.check_at("", checker);
    }
}

impl BatchTemplate {
    /// This template with the keys of another one in place of its own.
    fn overlaid(&self, other: &Self) -> Result<Self, String> {
        let table = |template: &Self| toml::Table::try_from(template).map_err(|e| e.to_string());
        let (mut all, own) = (table(self)?, table(other)?);
        for (key, value) in own {
            match (all.get_mut(&key), value) {
                (Some(Value::Table(texts)), Value::Table(others)) => texts.extend(others),
                (_, value) => drop(all.insert(key, value)),
            }
        }
        Value::Table(all).try_into().map_err(|error: toml::de::Error| error.to_string())
    }

    /// The names of placeholders in its submission and lists.
    fn placeholders(&self) -> BTreeSet<&str> {
        let commands = [&self.submit, &self.list, &self.cancel, &self.signal, &self.list_machines];
        let words = commands.into_iter().flatten().flat_map(CommandTemplate::placeholders);
        words.chain(self.input.iter().flat_map(TextTemplate::placeholders)).collect()
    }

    /// Names of values that only a site's `values` can give.
    fn free_placeholders(&self) -> Vec<&str> {
        let known = [&SUBMISSION[..], &ORDER, &TIMES, &SITE].concat();
        self.placeholders().into_iter().filter(|name| !known.contains(name)).collect()
    }

    /// The first key without which no template works.
    fn lacking(&self) -> Option<&'static str> {
        let keys = [
            ("submit", self.submit.is_some()),
            ("submitted", self.submitted.is_some()),
            ("list", self.list.is_some()),
            ("id", self.id.is_some()),
            ("name", self.name.is_some()),
            ("state", self.state.is_some()),
            ("state_meanings", !self.state_meanings.is_empty()),
            ("cancel", self.cancel.is_some()),
            ("machine_name", self.list_machines.is_none() || self.machine_name.is_some()),
            ("machine_busy", self.list_machines.is_none() || self.machine_busy.is_some()),
            (
                "machine_free",
                self.list_machines.is_none()
                    || self.machine_free.is_some()
                    || self.machine_total.is_some(),
            ),
        ];
        keys.into_iter().find(|(_, given)| !given).map(|(key, _)| key)
    }

    /// The key and the name of a placeholder without a value, outside of optional words.
    fn without_value(&self, section: &BatchSection) -> Option<(&'static str, String)> {
        let site = |name: &str| match name {
            "uid" | "leave_ahead" => true,
            "queue" => section.queue.is_some(),
            "account" => section.account.is_some(),
            "memory_mib" => section.memory.is_some(),
            "extra" => section.extra.is_some(),
            name if TIMES.contains(&name) => section.time.is_some(),
            _ => section.values.contains_key(name),
        };
        let lacking = |text: &TextTemplate, own: &[&str]| {
            let mut names = text.placeholders();
            names.find(|name| !own.contains(name) && !site(name)).map(str::to_owned)
        };
        let commands = [
            ("submit", &self.submit, &SUBMISSION[..]),
            ("list", &self.list, &[]),
            ("list_machines", &self.list_machines, &[]),
            ("cancel", &self.cancel, &ORDER),
            ("signal", &self.signal, &ORDER),
        ];
        for (key, command, own) in commands {
            for part in command.iter().flat_map(CommandTemplate::parts) {
                let CommandPart::Word(word) = part else { continue };
                if let Some(name) = lacking(word, own) {
                    return Some((key, name));
                }
            }
        }
        let name = self.input.as_ref().and_then(|input| lacking(input, &SUBMISSION));
        name.map(|name| ("input", name))
    }

    /// Checks what single keys do not show.
    fn check_at(&self, path: &str, checker: &mut Checker<'_>) {
        let at = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        for (word, meaning) in &self.state_meanings {
            if let Err(reason) = meaning.parse::<StateMeaning>() {
                checker
                    .report(&at(&format!("state_meanings.{word}")), format!("`{word}` {reason}"));
            }
        }
        let groups = [
            ("submitted", &self.submitted),
            ("id", &self.id),
            ("name", &self.name),
            ("state", &self.state),
            ("left", &self.left),
            ("host", &self.host),
            ("processors", &self.processors),
            ("reason", &self.reason),
            ("comment", &self.comment),
            ("machine_name", &self.machine_name),
            ("machine_busy", &self.machine_busy),
            ("machine_free", &self.machine_free),
            ("machine_total", &self.machine_total),
            ("machine_memory", &self.machine_memory),
        ];
        for (key, pattern) in groups {
            if pattern.as_ref().is_some_and(|pattern| pattern.regex().captures_len() < 2) {
                let reason = format!("`{key}` must have a group in parentheses: the value");
                checker.report(&at(key), reason);
            }
        }
        for (key, command) in [("cancel", &self.cancel), ("signal", &self.signal)] {
            let Some(command) = command else { continue };
            if !command.placeholders().any(|name| name == "id" || name == "ids") {
                checker.report(&at(key), format!("`{key}` must have {{id}} or {{ids}}"));
            }
        }
        let signal = self.signal.as_ref();
        if signal.is_some_and(|signal| !signal.placeholders().any(|name| name == "signal")) {
            checker.report(&at("signal"), "`signal` must have {signal}");
        }
    }
}

/// The meaning of a batch system's word for a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateMeaning {
    /// The job has no processor yet.
    Pending,
    /// The job has its processor.
    Running,
    /// The job has its processor and does not run.
    Suspended,
    /// The job ends, and its processor is not free yet.
    Ending,
    /// The job has ended: how, in words.
    Ended(String),
}

impl FromStr for StateMeaning {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("ended:").map(str::trim)) {
            ("pending", _) => Ok(Self::Pending),
            ("running", _) => Ok(Self::Running),
            ("suspended", _) => Ok(Self::Suspended),
            ("ending", _) => Ok(Self::Ending),
            (_, Some(how)) if !how.is_empty() => Ok(Self::Ended(how.to_owned())),
            _ => Err(format!(
                "must be \"pending\", \"running\", \"suspended\", \"ending\" or \"ended: HOW\", \
                 found {text:?}"
            )),
        }
    }
}

impl BatchSection {
    /// The commands of the batch system: those of the template, and others of the preset.
    ///
    /// # Errors
    /// The template and the preset lack a key, or contradict each other: the reason, in words.
    pub fn commands_template(&self) -> Result<BatchTemplate, String> {
        let template = match (self.preset, &self.template) {
            (Some(preset), None) => preset.template()?.clone(),
            (Some(preset), Some(own)) => preset.template()?.overlaid(own)?,
            (None, Some(own)) => own.clone(),
            (None, None) => {
                let presets = BatchPreset::WORDS.join(", ");
                return Err(format!(
                    "name a `preset` ({presets}), or add [cluster.batch.template]"
                ));
            }
        };
        match template.lacking() {
            Some(key) => Err(format!("`batch.template` lacks `{key}`, and no preset has it")),
            None => Ok(template),
        }
    }
}

impl SlurmSection {
    /// The section as that of a batch system with the preset for Slurm.
    pub fn as_batch(&self) -> BatchSection {
        let mib = |size: Size| format!("{}M", size.bytes().div_ceil(1 << 20).max(1));
        let values = [
            ("qos", self.qos.clone()),
            ("gres", self.gres.clone()),
            ("constraint", self.constraint.clone()),
            ("reservation", self.reservation.clone()),
            ("mem_per_cpu", self.mem_per_cpu.map(mib)),
            ("clusters", self.clusters.clone()),
        ];
        let given = |(key, value): (&str, Option<String>)| Some((key.to_owned(), value?));
        let conf = self.conf.as_ref().map(|conf| conf.display().to_string());
        BatchSection {
            preset: Some(BatchPreset::Slurm),
            commands: self.commands.clone(),
            variables: conf.map(|conf| ("SLURM_CONF".to_owned(), conf)).into_iter().collect(),
            queue: self.partition.clone(),
            account: self.account.clone(),
            time: self.time,
            memory: self.memory,
            values: values.into_iter().filter_map(given).collect(),
            extra: self.extra.clone(),
            prologue: self.prologue.clone(),
            leave_ahead: self.leave_ahead,
            poll: self.poll,
            answer_timeout: self.answer_timeout,
            missing_timeout: self.missing_timeout,
            keep: self.keep,
            template: None,
        }
    }
}

impl ClusterSection {
    /// The section of the cluster's batch system, if it has one.
    pub fn batch_system(&self) -> Option<BatchSection> {
        match self.provider {
            super::Provider::Slurm => self.slurm.as_ref().map(SlurmSection::as_batch),
            super::Provider::Batch => self.batch.clone(),
            _ => None,
        }
    }
}

/// Checks a cluster of a batch system: its template, intervals that it can bear, and time and
/// memory for nodes.
pub(super) fn check_batch(cluster: &ClusterSection, path: &str, checker: &mut Checker<'_>) {
    let (provider, queue) = match cluster.provider {
        super::Provider::Slurm => ("slurm", "partition"),
        _ => ("batch", "queue"),
    };
    let Some(batch) = cluster.batch_system() else {
        let more = if provider == "slurm" { "empty or not" } else { "with a `preset`" };
        let reason = format!("provider \"{provider}\" needs [cluster.{provider}]: add it, {more}");
        return checker.report(&format!("{path}.provider"), reason);
    };
    let section = format!("{path}.{provider}");
    let mut wrong = |key: &str, reason: String| checker.report(&format!("{section}.{key}"), reason);
    for (key, time, least, shown) in [
        ("poll", batch.poll, Duration::from_millis(100), "100ms"),
        ("answer_timeout", batch.answer_timeout, Duration::from_secs(1), "1s"),
        // Batch systems count this in seconds.
        ("leave_ahead", batch.leave_ahead, Duration::from_secs(1), "1s"),
        ("missing_timeout", batch.missing_timeout, Duration::from_secs(2), "2s"),
    ] {
        if time.get() < least {
            wrong(
                key,
                format!("`{provider}.{key}` must be at least \"{shown}\", found \"{time}\""),
            );
        }
    }
    if let Some(time) = batch.time {
        if time.get().is_zero() {
            // Slurm reads zero as no limit.
            let reason = format!("`{provider}.time` must be longer than nothing, found \"{time}\"");
            wrong("time", reason);
        } else if batch.leave_ahead.get() >= time.get() {
            let reason = format!(
                "`{provider}.leave_ahead` \"{}\" leaves nothing of a node's `time` \"{time}\": \
                 make it shorter",
                batch.leave_ahead
            );
            wrong("time", reason);
        }
    }
    let mem_per_cpu = cluster.slurm.as_ref().and_then(|slurm| slurm.mem_per_cpu);
    for (key, size) in [("memory", batch.memory), ("mem_per_cpu", mem_per_cpu)] {
        if let Some(size) = size.filter(|size| size.bytes() < 1 << 20) {
            let reason = format!("`{provider}.{key}` must be at least \"1MiB\", found \"{size}\"");
            wrong(key, reason);
        }
    }
    if provider == "slurm" && batch.memory.is_some() && mem_per_cpu.is_some() {
        let reason = "`slurm.memory` and `slurm.mem_per_cpu` exclude each other: leave one out";
        wrong("mem_per_cpu", reason.to_owned());
    }
    let named = [(queue, batch.queue.as_ref()), ("account", batch.account.as_ref())];
    let values = batch.values.iter().map(|(key, value)| match provider {
        "slurm" => (key.clone(), Some(value)),
        _ => (format!("values.{key}"), Some(value)),
    });
    for (key, text) in named.map(|(key, text)| (key.to_owned(), text)).into_iter().chain(values) {
        // A leading dash would make an option of the command.
        let unsound = |text: &&String| {
            let blank = |c: char| c.is_whitespace() || c.is_control();
            text.is_empty() || text.starts_with('-') || text.chars().any(blank)
        };
        if let Some(text) = text.filter(unsound) {
            wrong(
                &key,
                format!("`{provider}.{key}` must be a name without blanks, found {text:?}"),
            );
        }
    }
    for name in batch.variables.keys() {
        if name.is_empty() || name.contains(['=', '\0']) {
            let reason = format!("no environment has a variable named {name:?}");
            wrong(&format!("variables.{name}"), reason);
        }
    }
    match batch.commands_template() {
        Ok(template) => check_values(&batch, &template, &section, checker),
        Err(reason) => checker.report(&format!("{path}.provider"), reason),
    }
    if let Some(template) = &batch.template {
        template.check_at(&format!("{section}.template"), checker);
    }
}

/// Checks that the template uses each value of the site.
fn check_values(
    batch: &BatchSection,
    template: &BatchTemplate,
    section: &str,
    checker: &mut Checker<'_>,
) {
    let free = template.free_placeholders();
    for key in batch.values.keys().filter(|key| !free.contains(&key.as_str())) {
        let all = if free.is_empty() { "none".to_owned() } else { free.join(", ") };
        let reason = format!("the template has no placeholder `{key}`; it has: {all}");
        let meant = nearest(key, free.iter().copied());
        checker.report_with_suggestion(&format!("{section}.values.{key}"), reason, meant);
    }
    if let Some((key, name)) = template.without_value(batch) {
        let reason = format!("`{key}` needs a value for {{{name}}}: add `{name}` to `values`");
        let path = format!("{section}.template.{key}");
        checker.tell_at(&[&path, &format!("{section}.preset")], reason);
    }
    let used = template.placeholders();
    let given = [
        ("queue", batch.queue.is_some(), &["queue"][..]),
        ("account", batch.account.is_some(), &["account"]),
        ("memory", batch.memory.is_some(), &["memory_mib"]),
        ("time", batch.time.is_some(), &TIMES),
        ("extra", batch.extra.is_some(), &["extra"]),
    ];
    for (key, given, names) in given {
        if given && !names.iter().any(|name| used.contains(name)) {
            let reason = format!("the template has no placeholder for `{key}`: leave it out");
            checker.report(&format!("{section}.{key}"), reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_complete() {
        for preset in BatchPreset::ALL {
            let template = preset.template().unwrap();
            assert_eq!(template.lacking(), None, "{preset}");
            let again = template.overlaid(template).unwrap();
            assert_eq!(again, *template, "{preset}");
        }
        let tested = |preset: BatchPreset| preset.template().unwrap().tested_on.is_some();
        let tested: Vec<_> = BatchPreset::ALL.iter().filter(|preset| tested(**preset)).collect();
        assert_eq!(tested, [&BatchPreset::Slurm, &BatchPreset::GridEngine]);
    }

    #[test]
    fn texts_have_placeholders_and_braces() {
        let text: TextTemplate = "a{b}{{c}}{d_1}".parse().unwrap();
        assert_eq!(text.placeholders().collect::<Vec<_>>(), ["b", "d_1"]);
        assert_eq!(text.pieces()[2], TextPiece::Literal("{c}".to_owned()));
        for wrong in ["{", "}", "{}", "{A}", "{a", "a}b", "{a b}", "\0"] {
            assert!(wrong.parse::<TextTemplate>().is_err(), "{wrong}");
        }
    }
}
