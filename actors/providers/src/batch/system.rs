//! A batch system as a table: its command lines, and patterns that read their output.
//!
//! Pure: no process is started here. The table is a [`BatchTemplate`] and the values of a site.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

use regex::Regex;
use springtide_config::{
    BatchSection, BatchTemplate, CommandPart, CommandTemplate, Pattern, StateMeaning, TextPiece,
    TextTemplate,
};

use super::capacity::BatchMachine;
use super::files::StubFiles;
use super::identity::{StubComment, StubName, StubOwner, slug};

/// The maximum number of jobs that one command names.
const IDS_MAX: usize = 500;
/// The longest identifier of a job, in bytes.
const ID_MAX: usize = 200;
/// The time of a warning, divided by the time before the limit of the batch system's own signal.
/// The signal is for nodes without a head, and must not precede a head's staggered warnings.
const SIGNAL_PART: u32 = 4;
/// The longest line that an error shows, in characters.
const SHOWN_MAX: usize = 300;

/// Output that the patterns do not read, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Misread {
    pub line: String,
    pub reason: String,
}

impl Misread {
    fn new(text: &str, reason: impl Into<String>) -> Self {
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        Self { line: line.chars().take(SHOWN_MAX).collect(), reason: reason.into() }
    }
}

/// The batch system's identifier of a job. It is safe as an argument of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchJobId(String);

impl BatchJobId {
    /// The identifier with this text; none if no batch system has such identifiers.
    pub fn new(text: &str) -> Option<Self> {
        let odd = |c: char| c.is_whitespace() || c.is_control();
        let sound = !text.is_empty() && text.len() <= ID_MAX && !text.starts_with('-');
        (sound && !text.contains(odd)).then(|| Self(text.to_owned()))
    }

    /// The identifier as the batch system writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BatchJobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Ord for BatchJobId {
    /// The order of numbers, for identifiers that are numbers: mostly that of submission.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.len(), &self.0).cmp(&(other.0.len(), &other.0))
    }
}

impl PartialOrd for BatchJobId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The state of a stub's batch job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum StubState {
    /// It has no processor yet.
    Pending,
    /// It has its processor.
    Running,
    /// It has its processor and does not run.
    Suspended,
    /// It ends, and its processor is not free yet.
    Ending,
    /// It has ended: how, in words.
    Ended(String),
    /// The template does not list the state. No conclusion is drawn from it.
    #[default]
    Unknown,
}

impl StubState {
    /// Whether it has processors of a machine.
    pub fn occupies(&self) -> bool {
        matches!(self, Self::Running | Self::Suspended | Self::Ending)
    }

    /// Whether its processors are free again.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_))
    }
}

/// A stub in the batch system's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueuedStub {
    pub id: BatchJobId,
    pub node: String,
    /// Identifier of its submission.
    pub token: String,
    pub state: StubState,
    /// Time until its time limit, if it is listed.
    pub left: Option<Duration>,
    /// The name of its machine; empty while it has none.
    pub host: String,
    /// Its number of processors, if it is listed.
    pub processors: Option<u32>,
    /// The reason of its wait, in the batch system's words.
    pub reason: String,
    pub comment: StubComment,
}

/// A command with its arguments and standard input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    pub input: Vec<u8>,
    /// Whether its environment becomes that of a job.
    pub is_submission: bool,
}

impl fmt::Display for CommandLine {
    /// The command as a user would type it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,:@%+".contains(c);
        for (i, word) in self.words.iter().enumerate() {
            let word = word.to_string_lossy();
            let space = if i == 0 { "" } else { " " };
            if !word.is_empty() && word.chars().all(plain) {
                write!(f, "{space}{word}")?;
            } else {
                write!(f, "{space}'{}'", word.replace('\'', "'\\''"))?;
            }
        }
        Ok(())
    }
}

/// A stub to be submitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct StubSubmission<'a> {
    pub owner: &'a StubOwner,
    pub name: &'a StubName,
    pub comment: &'a StubComment,
    pub files: &'a StubFiles,
    pub threads: u32,
    /// The log, to which the batch system's own messages go as well.
    pub log: &'a Path,
    pub script: &'a [u8],
}

/// Values of placeholders. Several values become several words, or are joined by commas.
type Values<'a> = BTreeMap<&'a str, Vec<OsString>>;

/// The command lines of a batch system, and the readers of their output.
#[derive(Debug)]
pub(super) struct BatchSystem {
    template: BatchTemplate,
    /// Values that all commands have.
    site: BTreeMap<String, Vec<OsString>>,
    patterns: Patterns,
    meanings: BTreeMap<String, StubState>,
}

/// The compiled patterns of a template.
#[derive(Debug)]
struct Patterns {
    submitted: Regex,
    row: Option<Regex>,
    frame: Option<Regex>,
    empty: Option<Regex>,
    id: Regex,
    name: Regex,
    state: Regex,
    left: Option<Regex>,
    host: Option<Regex>,
    processors: Option<Regex>,
    reason: Option<Regex>,
    comment: Option<Regex>,
    machine_row: Option<Regex>,
    machine_name: Option<Regex>,
    machine_busy: Option<Regex>,
    machine_free: Option<Regex>,
    machine_total: Option<Regex>,
    machine_memory: Option<Regex>,
    usable: Option<Regex>,
    default_queue: Option<Regex>,
}

impl Patterns {
    fn new(template: &BatchTemplate) -> Result<Self, String> {
        let optional = |pattern: &Option<Pattern>| pattern.as_ref().map(|it| it.regex().clone());
        let required = |key: &str, pattern: &Option<Pattern>| {
            optional(pattern).ok_or_else(|| format!("the template lacks `{key}`"))
        };
        Ok(Self {
            submitted: required("submitted", &template.submitted)?,
            row: optional(&template.row),
            frame: optional(&template.frame),
            empty: optional(&template.empty),
            id: required("id", &template.id)?,
            name: required("name", &template.name)?,
            state: required("state", &template.state)?,
            left: optional(&template.left),
            host: optional(&template.host),
            processors: optional(&template.processors),
            reason: optional(&template.reason),
            comment: optional(&template.comment),
            machine_row: optional(&template.machine_row),
            machine_name: optional(&template.machine_name),
            machine_busy: optional(&template.machine_busy),
            machine_free: optional(&template.machine_free),
            machine_total: optional(&template.machine_total),
            machine_memory: optional(&template.machine_memory),
            usable: optional(&template.usable),
            default_queue: optional(&template.default_queue),
        })
    }
}

impl BatchSystem {
    /// The batch system of this section. `leave_ahead` is the time before its time limit at which a
    /// job is warned.
    ///
    /// # Errors
    /// The template lacks a key or a value: the reason, in words.
    pub fn new(section: &BatchSection, leave_ahead: Duration) -> Result<Self, String> {
        let template = section.commands_template()?;
        let patterns = Patterns::new(&template)?;
        let mut meanings = BTreeMap::new();
        for (word, meaning) in &template.state_meanings {
            let state = match meaning.parse()? {
                StateMeaning::Pending => StubState::Pending,
                StateMeaning::Running => StubState::Running,
                StateMeaning::Suspended => StubState::Suspended,
                StateMeaning::Ending => StubState::Ending,
                StateMeaning::Ended(how) => StubState::Ended(how),
            };
            meanings.insert(word.clone(), state);
        }
        let mut site = BTreeMap::new();
        let mut set = |key: &str, value: Option<String>| {
            site.extend(value.map(|value| (key.to_owned(), vec![OsString::from(value)])));
        };
        for (key, value) in &section.values {
            set(key, Some(value.clone()));
        }
        set("queue", section.queue.clone());
        set("account", section.account.clone());
        set("memory_mib", memory_mib(section).map(|mib| mib.to_string()));
        // Slurm takes at most this many seconds.
        let seconds = |time: Duration| Some(time.as_secs().clamp(1, 65_535).to_string());
        set("leave_ahead", seconds(leave_ahead));
        set("signal_ahead", seconds(leave_ahead / SIGNAL_PART));
        if let Some(time) = section.time {
            let seconds = time.get().as_millis().div_ceil(1000);
            set("seconds", Some(seconds.to_string()));
            set("minutes", Some(seconds.div_ceil(60).to_string()));
            let (minutes, rest) = (seconds / 60, seconds % 60);
            set("hms", Some(format!("{:02}:{:02}:{rest:02}", minutes / 60, minutes % 60)));
        }
        set("uid", uid().map(|uid| uid.to_string()));
        if let Some(extra) = section.extra.as_ref().filter(|extra| !extra.0.is_empty()) {
            site.insert("extra".to_owned(), extra.0.iter().map(OsString::from).collect());
        }
        Ok(Self { template, site, patterns, meanings })
    }

    /// Environment variables of the commands.
    pub fn variables(&self) -> &BTreeMap<String, String> {
        &self.template.variables
    }

    /// Prefixes of environment variables that commands must not see, and the exceptions.
    pub fn unset(&self) -> UnsetVariables {
        let words = |list: &Option<springtide_config::ArgumentList>| {
            list.as_ref().map(|list| list.0.clone()).unwrap_or_default()
        };
        UnsetVariables {
            prefixes: words(&self.template.unset),
            except: words(&self.template.unset_except),
        }
    }

    /// Whether the script receives signals by a command. Otherwise it receives them by a file.
    pub fn sends_signals(&self) -> bool {
        self.template.signal.is_some()
    }

    /// Whether the submission needs the script in a file.
    pub fn needs_script_file(&self) -> bool {
        let submit = self.template.submit.iter().flat_map(CommandTemplate::placeholders);
        let input = self.template.input.iter().flat_map(TextTemplate::placeholders);
        submit.chain(input).any(|name| name == "script")
    }

    /// The command that submits a stub.
    ///
    /// # Errors
    /// The template has a placeholder without a value, or requests too few processors.
    pub fn submission(&self, stub: &StubSubmission<'_>) -> Result<CommandLine, String> {
        let job = stub.owner.job_name(stub.name);
        let output = if is_plain(stub.log) { stub.log } else { Path::new("/dev/null") };
        let mut own: Values<'_> = BTreeMap::new();
        let mut set = |key, value: &OsStr| drop(own.insert(key, vec![value.to_owned()]));
        set("slug", slug(&job).as_ref());
        set("name", job.as_ref());
        set("token", stub.name.token.as_ref());
        set("comment", stub.comment.text().as_ref());
        set("threads", stub.threads.max(1).to_string().as_ref());
        set("output", output.as_os_str());
        set("script", stub.files.script().as_os_str());
        set("dir", stub.files.base.parent().unwrap_or(Path::new("/")).as_os_str());
        set("script_text", OsStr::from_bytes(stub.script));
        if let Ok(text) = std::str::from_utf8(stub.script) {
            set("script_json", json_string(text).as_ref());
        }
        let mut used = BTreeSet::new();
        let submit = self.template.submit.as_ref();
        let mut command = self.command("submit", submit, &own, &mut used)?;
        command.input = match &self.template.input {
            Some(input) => {
                let text = self.text(input, &own, &mut used);
                text.map_err(|name| needs_value("input", &name))?.into_vec()
            }
            None => stub.script.to_vec(),
        };
        if stub.threads > 1 && !used.contains("threads") {
            return Err(format!(
                "`submit` does not request the {} processors of a node: {}",
                stub.threads,
                self.optional_with("threads"),
            ));
        }
        command.is_submission = true;
        Ok(command)
    }

    /// Advice on how a placeholder comes into effect.
    fn optional_with(&self, name: &str) -> String {
        let parts = self.template.submit.iter().flat_map(CommandTemplate::parts);
        let optional = parts.filter(|part| matches!(part, CommandPart::Optional(_)));
        let names = |part: &CommandPart| -> Vec<String> {
            let words = part.words().iter().flat_map(TextTemplate::placeholders);
            words.map(str::to_owned).collect()
        };
        let with = optional.map(names).find(|names| names.iter().any(|other| other == name));
        let other = with.and_then(|names| names.into_iter().find(|other| other != name));
        match other {
            Some(other) => format!("give `values` a `{other}`"),
            None => format!("add {{{name}}} to it"),
        }
    }

    /// The identifier in the output of a submission.
    pub fn submitted(&self, text: &str) -> Result<BatchJobId, Misread> {
        let last = self.patterns.submitted.captures_iter(text).last();
        let id = last.and_then(|found| BatchJobId::new(found.get(1)?.as_str()));
        let reason =
            || format!("`submitted` {:?} does not match", self.patterns.submitted.as_str());
        id.ok_or_else(|| Misread::new(text, reason()))
    }

    /// The command that lists jobs.
    ///
    /// # Errors
    /// The template has a placeholder without a value.
    pub fn list(&self) -> Result<CommandLine, String> {
        self.command("list", self.template.list.as_ref(), &BTreeMap::new(), &mut BTreeSet::new())
    }

    /// Whether the error output of a failed list says that there are no jobs.
    pub fn is_empty_list(&self, text: &str) -> bool {
        self.patterns.empty.as_ref().is_some_and(|empty| empty.is_match(text))
    }

    /// The stubs of this owner in the output of the list.
    ///
    /// Text that is not a row is skipped between rows, for names of others' jobs may hold line
    /// breaks. Alone it is an error: a message must not pass as an empty list.
    pub fn jobs(&self, text: &str, owner: &StubOwner) -> Result<Vec<QueuedStub>, Misread> {
        let patterns = &self.patterns;
        if let Some(frame) = &patterns.frame
            && !frame.is_match(text)
        {
            let reason =
                format!("`frame` {:?} does not match: it is no whole list", frame.as_str());
            return Err(Misread::new(text, reason));
        }
        let prefix = owner.prefix();
        let no_row = |row: &str| {
            let reason = format!("`name` {:?} does not match", patterns.name.as_str());
            Misread::new(row, reason)
        };
        let (mut jobs, mut rows, mut odd) = (Vec::new(), 0, None);
        let mut other = |piece: &str| {
            if piece.contains(&prefix) {
                // A stub whose row is cut off would count as missing.
                return Err(no_row(piece));
            }
            if !piece.trim().is_empty() {
                odd.get_or_insert_with(|| piece.to_owned());
            }
            Ok(())
        };
        for piece in pieces(text, patterns.row.as_ref()) {
            let name = piece.is_row.then(|| value(&patterns.name, piece.text)).flatten();
            match name {
                Some(name) => {
                    rows += 1;
                    if let Some(name) = owner.parse(name) {
                        jobs.push(self.job(piece.text, name)?);
                    }
                }
                None => other(piece.text)?,
            }
        }
        match odd {
            Some(odd) if rows == 0 && patterns.frame.is_none() && !self.is_empty_list(text) => {
                Err(no_row(&odd))
            }
            _ => Ok(jobs),
        }
    }

    /// Reads the row of a stub.
    fn job(&self, row: &str, name: StubName) -> Result<QueuedStub, Misread> {
        let patterns = &self.patterns;
        let optional = |pattern: &Option<Regex>| value(pattern.as_ref()?, row).map(str::trim);
        let wrong = |key: &str| Misread::new(row, format!("`{key}` does not match"));
        let id = value(&patterns.id, row).and_then(|id| BatchJobId::new(id.trim()));
        let state = value(&patterns.state, row).ok_or_else(|| wrong("state"))?.trim();
        let reason = optional(&patterns.reason).filter(|it| !["None", "(null)"].contains(it));
        Ok(QueuedStub {
            id: id.ok_or_else(|| wrong("id"))?,
            node: name.node,
            token: name.token,
            state: self.meanings.get(state).cloned().unwrap_or_default(),
            left: optional(&patterns.left).and_then(time_left),
            host: optional(&patterns.host).unwrap_or_default().to_owned(),
            processors: optional(&patterns.processors).and_then(|count| count.parse().ok()),
            reason: reason.unwrap_or_default().to_owned(),
            comment: StubComment::parse(optional(&patterns.comment).unwrap_or_default()),
        })
    }

    /// The fewest commands that cancel these jobs.
    pub fn cancel(&self, ids: &[BatchJobId]) -> Vec<CommandLine> {
        self.for_ids("cancel", self.template.cancel.as_ref(), ids, None)
    }

    /// The fewest commands that send a signal to the scripts of these jobs. None if a file does
    /// that.
    pub fn signal(&self, signal: &str, ids: &[BatchJobId]) -> Vec<CommandLine> {
        self.for_ids("signal", self.template.signal.as_ref(), ids, Some(signal))
    }

    fn for_ids(
        &self,
        key: &str,
        template: Option<&CommandTemplate>,
        ids: &[BatchJobId],
        signal: Option<&str>,
    ) -> Vec<CommandLine> {
        let Some(command) = template else { return Vec::new() };
        let several = command.placeholders().any(|name| name == "ids");
        let chunks = ids.chunks(if several { IDS_MAX } else { 1 });
        let line = |ids: &[BatchJobId]| {
            let ids: Vec<OsString> = ids.iter().map(|id| id.as_str().into()).collect();
            let mut own: Values<'_> = BTreeMap::new();
            own.extend(signal.map(|signal| ("signal", vec![OsString::from(signal)])));
            own.insert("id", ids.first().cloned().into_iter().collect());
            own.insert("ids", ids);
            let line = self.command(key, template, &own, &mut BTreeSet::new());
            line.inspect_err(|reason| tracing::warn!("{reason}")).ok()
        };
        chunks.filter_map(line).collect()
    }

    /// The command that lists machines, if the template has one.
    ///
    /// # Errors
    /// The template has a placeholder without a value.
    pub fn list_machines(&self) -> Result<Option<CommandLine>, String> {
        let Some(command) = &self.template.list_machines else { return Ok(None) };
        let none = BTreeMap::new();
        self.command("list_machines", Some(command), &none, &mut BTreeSet::new()).map(Some)
    }

    /// The machines in the output of their list, each once. Without a queue those of the default
    /// queue, which takes the jobs that name none. If there is no default, all.
    pub fn machines(&self, text: &str) -> Result<Vec<BatchMachine>, Misread> {
        let patterns = &self.patterns;
        let is_default = |row: &str| {
            patterns.default_queue.as_ref().is_some_and(|pattern| pattern.is_match(row))
        };
        let mut rows = Vec::new();
        let mut odd = None;
        for piece in pieces(text, patterns.machine_row.as_ref()) {
            if piece.is_row && !piece.text.trim().is_empty() {
                rows.push((is_default(piece.text), self.machine(piece.text)?));
            } else if !piece.text.trim().is_empty() {
                odd = odd.or(Some(piece.text));
            }
        }
        if let (Some(odd), true) = (odd, rows.is_empty()) {
            return Err(Misread::new(odd, "`machine_row` does not match"));
        }
        let only_default =
            !self.site.contains_key("queue") && rows.iter().any(|(default, _)| *default);
        let mut machines: BTreeMap<String, BatchMachine> = BTreeMap::new();
        for (_, machine) in rows.into_iter().filter(|(default, _)| *default || !only_default) {
            let known = machines.entry(machine.name.clone()).or_insert_with(|| machine.clone());
            // Of several queues one may be closed.
            known.usable |= machine.usable;
        }
        Ok(machines.into_values().collect())
    }

    /// The name of the default queue in the output of the list of machines, if the template shows
    /// it.
    pub fn default_queue<'t>(&self, text: &'t str) -> Option<&'t str> {
        let pattern = self.patterns.default_queue.as_ref()?;
        let pieces = pieces(text, self.patterns.machine_row.as_ref());
        let rows = pieces.into_iter().filter(|piece| piece.is_row);
        let name = rows.into_iter().find_map(|row| pattern.captures(row.text)?.get(1));
        name.map(|name| name.as_str().trim()).filter(|name| !name.is_empty())
    }

    fn machine(&self, row: &str) -> Result<BatchMachine, Misread> {
        let patterns = &self.patterns;
        let text = |key: &str, pattern: &Option<Regex>| {
            let found = pattern.as_ref().and_then(|pattern| value(pattern, row));
            found.ok_or_else(|| Misread::new(row, format!("`{key}` does not match")))
        };
        let number = |key: &str, pattern: &Option<Regex>| {
            let found = text(key, pattern)?.parse::<u32>();
            found.map_err(|_| Misread::new(row, format!("`{key}` does not find a number")))
        };
        let name = text("machine_name", &patterns.machine_name)?.trim().to_owned();
        let busy = number("machine_busy", &patterns.machine_busy)?;
        let free = match &patterns.machine_free {
            Some(_) => number("machine_free", &patterns.machine_free)?,
            None => number("machine_total", &patterns.machine_total)?.saturating_sub(busy),
        };
        let memory = patterns.machine_memory.as_ref().and_then(|pattern| value(pattern, row));
        Ok(BatchMachine {
            name,
            busy,
            free,
            memory: memory.and_then(|memory| memory.parse().ok()),
            usable: patterns.usable.as_ref().is_none_or(|usable| usable.is_match(row)),
        })
    }

    /// Fills in a command. Records the placeholders that were filled in.
    fn command(
        &self,
        key: &str,
        template: Option<&CommandTemplate>,
        own: &Values<'_>,
        used: &mut BTreeSet<String>,
    ) -> Result<CommandLine, String> {
        let Some(template) = template else { return Err(format!("the template lacks `{key}`")) };
        let mut words = Vec::new();
        for part in template.parts() {
            match part {
                CommandPart::Word(word) => {
                    let found = self.words(word, own, used);
                    words.extend(found.map_err(|name| needs_value(key, &name))?);
                }
                CommandPart::Optional(group) => {
                    let mut filled = used.clone();
                    let found: Result<Vec<_>, _> =
                        group.iter().map(|word| self.words(word, own, &mut filled)).collect();
                    if let Ok(found) = found {
                        *used = filled;
                        words.extend(found.into_iter().flatten());
                    }
                }
            }
        }
        Ok(CommandLine { words, ..CommandLine::default() })
    }

    fn value<'a>(&'a self, name: &str, own: &'a Values<'_>) -> Option<&'a [OsString]> {
        own.get(name).or_else(|| self.site.get(name)).map(Vec::as_slice)
    }

    /// A word with its placeholders filled in. A placeholder alone may become several words.
    fn words(
        &self,
        word: &TextTemplate,
        own: &Values<'_>,
        used: &mut BTreeSet<String>,
    ) -> Result<Vec<OsString>, String> {
        if let [TextPiece::Placeholder(name)] = word.pieces() {
            let values = self.value(name, own).ok_or_else(|| name.clone())?;
            used.insert(name.clone());
            return Ok(values.to_vec());
        }
        Ok(vec![self.text(word, own, used)?])
    }

    /// A text with its placeholders filled in. The error is the name of one without a value.
    fn text(
        &self,
        text: &TextTemplate,
        own: &Values<'_>,
        used: &mut BTreeSet<String>,
    ) -> Result<OsString, String> {
        let mut filled = OsString::new();
        for piece in text.pieces() {
            match piece {
                TextPiece::Literal(literal) => filled.push(literal),
                TextPiece::Placeholder(name) => {
                    let values = self.value(name, own).ok_or_else(|| name.clone())?;
                    filled.push(values.join(OsStr::new(",")));
                    used.insert(name.clone());
                }
            }
        }
        Ok(filled)
    }
}

/// Environment variables that the commands must not see.
#[derive(Clone, Debug, Default)]
pub(super) struct UnsetVariables {
    /// Prefixes of their names.
    pub prefixes: Vec<String>,
    /// Names with such a prefix that the commands see.
    pub except: Vec<String>,
}

/// Memory of a stub in MiB, if the section requests any.
pub(super) fn memory_mib(section: &BatchSection) -> Option<u64> {
    section.memory.map(|size| size.bytes().div_ceil(1 << 20).max(1))
}

fn needs_value(key: &str, name: &str) -> String {
    format!("`{key}` needs a value for {{{name}}}: add `{name}` to `values`")
}

/// The user of this process, whose jobs are listed.
fn uid() -> Option<u32> {
    use std::os::unix::fs::MetadataExt;

    std::fs::metadata("/proc/self").ok().map(|process| process.uid())
}

/// Whether no batch system sees a pattern, a variable or a host in this path.
fn is_plain(path: &Path) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._+-".contains(byte);
    path.as_os_str().as_bytes().iter().all(plain)
}

/// A text as a JSON string, which is also a YAML scalar.
fn json_string(text: &str) -> String {
    let mut json = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            '\n' => json.push_str("\\n"),
            c if c.is_control() => json.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => json.push(c),
        }
    }
    json.push('"');
    json
}

/// The first group of a match.
fn value<'a>(pattern: &Regex, text: &'a str) -> Option<&'a str> {
    pattern.captures(text)?.get(1).map(|found| found.as_str())
}

/// A piece of output: a row, or text between rows.
struct OutputPiece<'a> {
    text: &'a str,
    is_row: bool,
}

/// The rows of a text, and the text between them. Without a pattern, each line is a row.
fn pieces<'a>(text: &'a str, row: Option<&Regex>) -> Vec<OutputPiece<'a>> {
    let Some(row) = row else {
        return text.lines().map(|text| OutputPiece { text, is_row: true }).collect();
    };
    let mut found = Vec::new();
    let mut end = 0;
    for Range { start, end: after } in row.find_iter(text).map(|row| row.range()) {
        found.push(OutputPiece { text: &text[end..start], is_row: false });
        found.push(OutputPiece { text: &text[start..after], is_row: true });
        end = after;
    }
    found.push(OutputPiece { text: &text[end..], is_row: false });
    found
}

/// Parses `[DAYS-][[HOURS:]MINUTES:]SECONDS[.FRACTION]`. None for words that say that there is no
/// limit, or that it is unknown.
fn time_left(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let clock = clock.split_once('.').map_or(clock, |(whole, _)| whole);
    let (mut seconds, mut parts) = (0u64, 0);
    for part in clock.split(':') {
        parts += 1;
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    let days = days.checked_mul(24 * 60 * 60)?;
    (parts <= 3).then(|| days.checked_add(seconds).map(Duration::from_secs)).flatten()
}

#[cfg(test)]
mod tests;
