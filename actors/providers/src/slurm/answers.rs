//! What Slurm's commands answer, as values, and the names that a grid's stubs bear there.
//!
//! Pure: text in, values out. Must not know who asks, nor what is done about it. Versions from 20.02 on print what is
//! asked for here in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Capacity;

/// What `squeue` is asked to print of each job. The name comes first, for by it others' jobs are passed over before
/// anything else of theirs is read; the comment comes last, for it may hold what parts the others.
pub(super) const JOB_FORMAT: &str = "%j|%i|%t|%L|%C|%N|%r|%k";
/// What `sinfo` is asked to print of each machine and partition.
pub(super) const MACHINE_FORMAT: &str = "%N|%C|%T|%a|%P|%m";

/// Begins the name of each stub.
const PREFIX: &str = "springtide";
/// Begins the comment of each stub, with the version of what follows.
const COMMENT: &str = "springtide-1";
/// Slurm takes no longer comment, in bytes.
const COMMENT_MAX: usize = 1000;

/// A line that is not understood, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Misread {
    pub line: String,
    pub reason: String,
}

impl Misread {
    fn new(line: &str, reason: impl Into<String>) -> Self {
        Self { line: line.chars().take(300).collect(), reason: reason.into() }
    }
}

/// What a batch job is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlurmJobState {
    /// It has no processor yet, or not all that it needs to start.
    Pending,
    /// It has its processor.
    Running,
    /// It has its processor, but does not get to use it.
    Suspended,
    /// It is over, and its processor is not free yet.
    Completing,
    /// It is over: how, in words.
    Over(&'static str),
    /// A word of a later Slurm. Nothing is concluded from it.
    Unknown,
}

impl SlurmJobState {
    fn of(code: &str) -> Self {
        match code {
            "PD" | "CF" | "RQ" | "RF" | "RH" | "RD" | "RS" | "SE" | "PO" => Self::Pending,
            "R" | "SI" => Self::Running,
            "S" | "ST" => Self::Suspended,
            "CG" | "SO" => Self::Completing,
            "CD" => Self::Over("completed"),
            "CA" => Self::Over("cancelled"),
            "F" => Self::Over("failed"),
            "TO" => Self::Over("reached its time limit"),
            "NF" => Self::Over("lost its machine"),
            "PR" => Self::Over("preempted"),
            "OOM" => Self::Over("used more memory than it may"),
            "BF" => Self::Over("lost its machine, which did not boot"),
            "DL" => Self::Over("reached its deadline"),
            "RV" => Self::Over("revoked"),
            "LF" => Self::Over("failed to start"),
            _ => Self::Unknown,
        }
    }

    /// Whether it has processors of a machine.
    pub fn occupies(self) -> bool {
        matches!(self, Self::Running | Self::Suspended | Self::Completing)
    }
}

/// A stub in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueuedStub {
    pub id: u64,
    /// As its name says it.
    pub node: String,
    pub state: SlurmJobState,
    /// Until its time limit, where there is one.
    pub left: Option<Duration>,
    /// Of the machine; empty while it has none.
    pub machine: String,
    /// Why it waits, in Slurm's word.
    pub reason: String,
    pub about: StubComment,
}

/// What the comment of a stub says. A cluster's administrator may have forbidden comments: then nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StubComment {
    /// Which submission it comes from.
    pub token: Option<String>,
    /// What the names of the files begin with by which its script is told things.
    pub base: Option<PathBuf>,
    /// Where its program writes.
    pub log: Option<PathBuf>,
}

/// Whose stubs: those of one cluster of one grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StubOwner {
    pub grid: String,
    /// Tells apart grids of the same name: two of one user's would else take over and end each other's stubs.
    pub mark: String,
    pub cluster: String,
}

impl StubOwner {
    /// The name of a stub's job.
    pub fn job_name(&self, node: &str) -> String {
        let part = |text: &str| encode(text.as_bytes(), b"-_");
        let Self { grid, mark, cluster } = self;
        format!("{PREFIX}.{}.{}.{}.{}", part(grid), part(mark), part(cluster), part(node))
    }

    /// Which of these stubs a job is; none for all other jobs.
    fn node_of(&self, name: &str) -> Option<String> {
        let node = name.strip_prefix(&self.job_name(""))?;
        let node = String::from_utf8(decode(node)?).ok()?;
        // What is not written as it would be written here is somebody else's.
        (!node.is_empty() && self.job_name(&node) == name).then_some(node)
    }
}

impl StubComment {
    /// The comment that says this; paths for which there is no room are left out.
    pub fn comment(&self) -> String {
        let mut comment = COMMENT.to_owned();
        let path = |path: &PathBuf| encode(path.as_os_str().as_bytes(), b"/.-_+@");
        let parts = [
            ("token", self.token.clone()),
            ("base", self.base.as_ref().map(path)),
            ("log", self.log.as_ref().map(path)),
        ];
        for (key, value) in parts {
            let Some(value) = value else { continue };
            let part = format!(" {key}={value}");
            if comment.len() + part.len() <= COMMENT_MAX {
                comment.push_str(&part);
            }
        }
        comment
    }

    fn of(comment: &str) -> Self {
        let mut about = Self::default();
        let mut words = comment.split_whitespace();
        if words.next() != Some(COMMENT) {
            return about;
        }
        let path = |value| Some(PathBuf::from(OsString::from_vec(decode(value)?)));
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "token" => about.token = Some(value.to_owned()),
                "base" => about.base = path(value),
                "log" => about.log = path(value),
                _ => {} // of a later version
            }
        }
        about
    }
}

/// Writes all but letters, digits and `plain` as `%XX`.
fn encode(bytes: &[u8], plain: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || plain.contains(byte) {
            text.push(char::from(*byte))
        } else {
            text.push_str(&format!("%{byte:02X}"))
        }
    }
    text
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, after @ ..] = rest else { return None };
        let digit = |digit: &u8| char::from(*digit).to_digit(16);
        bytes.push(u8::try_from(digit(high)? * 16 + digit(low)?).ok()?);
        rest = after;
    }
    Some(bytes)
}

/// The stubs of a grid and cluster among the jobs that `squeue` printed in [`JOB_FORMAT`].
///
/// What is no row is passed over beside rows: names and comments of others' jobs may hold line breaks. Alone it is an error: an answer
/// that is none must not be taken for an empty queue.
pub(super) fn jobs(text: &str, whose: &StubOwner) -> Result<Vec<QueuedStub>, Misread> {
    let mut jobs = Vec::new();
    let mut rows = 0;
    let mut odd = None;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match row(line) {
            Some(row) => {
                rows += 1;
                jobs.extend(job(line, &row, whose)?);
            }
            None if line.starts_with(&whose.job_name("")) => return Err(no_row(line)),
            None => odd = odd.or(Some(line)),
        }
    }
    match odd {
        Some(line) if rows == 0 => Err(no_row(line)),
        _ => Ok(jobs),
    }
}

fn no_row(line: &str) -> Misread {
    Misread::new(line, format!("it should be {JOB_FORMAT}"))
}

/// The parts of a line that looks as jobs are printed.
fn row(line: &str) -> Option<[&str; 8]> {
    let parts: Vec<&str> = line.splitn(8, '|').map(str::trim).collect();
    let parts = <[&str; 8]>::try_from(parts).ok()?;
    parts[1].starts_with(|digit: char| digit.is_ascii_digit()).then_some(parts)
}

fn job(line: &str, row: &[&str; 8], whose: &StubOwner) -> Result<Option<QueuedStub>, Misread> {
    let &[name, id, state, left, _cpus, machine, reason, comment] = row;
    let Some(node) = whose.node_of(name) else { return Ok(None) };
    let id = id.parse().map_err(|_| Misread::new(line, "the second part should be a number"))?;
    Ok(Some(QueuedStub {
        id,
        node,
        state: SlurmJobState::of(state),
        left: time_left(left),
        machine: machine.to_owned(),
        reason: reason.to_owned(),
        about: StubComment::of(comment),
    }))
}

/// `[DAYS-][[HOURS:]MINUTES:]SECONDS`; none for all words that say that there is no limit, or that it is not known.
fn time_left(text: &str) -> Option<Duration> {
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, text),
    };
    let mut seconds = 0u64;
    let mut parts = 0;
    for part in clock.split(':') {
        parts += 1;
        seconds = seconds.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    let days = days.checked_mul(24 * 60 * 60)?;
    (parts <= 3).then(|| days.checked_add(seconds).map(Duration::from_secs)).flatten()
}

/// The number of the job that `sbatch --parsable` has submitted. What a site's own wrapper says before it is passed over.
pub(super) fn submitted(text: &str) -> Result<u64, Misread> {
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    let Some(line) = line else {
        return Err(Misread::new("", "it should be the number of a job, and there is nothing"));
    };
    let id = line.trim().split(';').next().unwrap_or_default();
    id.parse().map_err(|_| Misread::new(line, "it should be the number of a job"))
}

/// How a job ended, of what `scontrol -o show job` prints: for example `exit status: 3`.
pub(super) fn exit_code(text: &str) -> Option<String> {
    let code = text.split_whitespace().find_map(|word| word.strip_prefix("ExitCode="))?;
    let (status, signal) = code.split_once(':')?;
    let (status, signal) = (status.parse::<u32>().ok()?, signal.parse::<u32>().ok()?);
    Some(match signal {
        0 => format!("exit status: {status}"),
        _ => format!("signal: {signal}"),
    })
}

/// A machine as `sinfo` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlurmMachine {
    pub name: String,
    /// Processors in use.
    pub busy: u32,
    /// Processors that are free.
    pub idle: u32,
    /// All but those that cannot be used.
    pub total: u32,
    /// MiB of memory that all its jobs together may have, where that is known.
    pub memory: Option<u64>,
    /// Whether it takes new jobs.
    pub usable: bool,
}

/// The machines of a partition, each once. Without a partition those of the cluster's default one, which takes the jobs
/// that name none; where there is no default, all.
pub(super) fn machines(text: &str, partition: Option<&str>) -> Result<Vec<SlurmMachine>, Misread> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let rows: Vec<(bool, SlurmMachine)> = lines.map(machine).collect::<Result<_, _>>()?;
    let only_default = partition.is_none() && rows.iter().any(|(default, _)| *default);
    let mut machines: BTreeMap<String, SlurmMachine> = BTreeMap::new();
    for (default, machine) in rows {
        if only_default && !default {
            continue;
        }
        let known = machines.entry(machine.name.clone()).or_insert_with(|| machine.clone());
        // Of several partitions one may be closed.
        known.usable |= machine.usable;
    }
    Ok(machines.into_values().collect())
}

fn machine(line: &str) -> Result<(bool, SlurmMachine), Misread> {
    let parts: Vec<&str> = line.split('|').map(str::trim).collect();
    let &[name, processors, state, open, partition, memory] = parts.as_slice() else {
        return Err(Misread::new(line, format!("it should be {MACHINE_FORMAT}")));
    };
    let counts: Option<Vec<u32>> = processors.split('/').map(|n| n.parse().ok()).collect();
    let Some(&[busy, idle, other, total]) = counts.as_deref() else {
        let reason = "the second part should be busy/idle/other/all processors";
        return Err(Misread::new(line, reason));
    };
    let usable = takes_jobs(state) && open == "up";
    let total = total.saturating_sub(other);
    let memory = memory.parse().ok().filter(|memory| *memory > 0);
    let machine = SlurmMachine { name: name.to_owned(), busy, idle, total, memory, usable };
    Ok((partition.ends_with('*'), machine))
}

/// Whether a machine in this state, in words and signs of `sinfo`, takes new jobs. A word that is not known is none that
/// does.
fn takes_jobs(state: &str) -> bool {
    // What comes after the word: powered down (~), powering up (#), planned for a large job (-), to be rebooted some day
    // (@), and + where some of its jobs are ending. The other signs say that it takes nothing now: * does not answer, $ is
    // under maintenance, ! and % are switched off, ^ reboots.
    let word = state.trim_end_matches(['~', '#', '-', '@', '+']);
    let usable = |word: &str| {
        matches!(
            word.to_ascii_lowercase().as_str(),
            "idle"
                | "mixed"
                | "mix"
                | "allocated"
                | "alloc"
                | "completing"
                | "comp"
                | "planned"
                | "plnd"
        ) || word.to_ascii_lowercase().starts_with("power")
            && !word.eq_ignore_ascii_case("powering_down")
    };
    word.split('+').all(usable)
}

/// What there is, in stubs of so many `threads` and MiB of memory, if they ask for any. What memory others have been given is not
/// known: a stub that finds too little waits. `held` are the stubs that this provider holds, with their machines: all
/// other use is others'.
///
/// `held` must have been asked for before the machines: a stub that started in between then counts as others', and nothing is
/// promised twice.
pub(super) fn capacity<'a>(
    machines: &[SlurmMachine],
    held: impl IntoIterator<Item = &'a QueuedStub>,
    (threads, memory): (u32, Option<u64>),
) -> Capacity {
    let threads = threads.max(1);
    let fits = |machine: &SlurmMachine| {
        let fits = machine.memory? / memory.filter(|memory| *memory > 0)?;
        Some(u32::try_from(fits).unwrap_or(u32::MAX))
    };
    let mut ours: BTreeMap<&str, u32> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for job in held {
        if job.state.occupies() && seen.insert(job.id) {
            *ours.entry(job.machine.as_str()).or_default() += 1;
        }
    }
    let mut capacity = Capacity::default();
    for machine in machines {
        let ours = ours.get(machine.name.as_str()).copied().unwrap_or(0);
        // Stubs go on on a machine that takes no new ones: they are all that it has.
        let most = fits(machine).unwrap_or(u32::MAX);
        let (size, free) = if machine.usable {
            (
                (machine.total / threads).min(most).max(ours),
                (machine.idle / threads).min(most.saturating_sub(ours)),
            )
        } else {
            (ours, 0)
        };
        capacity.size = capacity.size.saturating_add(size);
        let others = size.saturating_sub(ours).saturating_sub(free);
        capacity.others = capacity.others.saturating_add(others);
    }
    capacity
}

/// The file that gives the script of a job its `n`th further program, or that reports its start.
pub(super) fn program_file(base: &Path, what: &str, job: u64, n: u32) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push(format!(".{what}-{job}-{n}"));
    name.into()
}

/// The file that is there while the script of a job listens.
pub(super) fn listening(base: &Path, job: u64) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push(format!(".up-{job}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use springtide_base::fuzz::{Target, run};

    use super::*;

    fn whose(grid: &str, cluster: &str) -> StubOwner {
        StubOwner { grid: grid.into(), mark: "m1".into(), cluster: cluster.into() }
    }

    fn home() -> StubOwner {
        whose("home", "vu")
    }

    fn only(text: &str) -> Vec<QueuedStub> {
        jobs(text, &home()).unwrap()
    }

    #[test]
    fn stubs_are_told_from_all_other_jobs() {
        let about = StubComment {
            token: Some("17-3".into()),
            base: Some("/home/me/a b|c%/vu-1.toml".into()),
            log: Some("/l/vu-1.log".into()),
        };
        let text = format!(
            "springtide.home.m1.vu.vu-1|12|R|1-02:03:04|4|n7|None|{}\n\
             springtide.home.m1.vu.vu-2|13|PD|UNLIMITED|4||Resources|(null)\n\
             springtide.home.m1.vux.vux-1|14|R|5:00|4|n7|None|\n\
             springtide.home.m2.vu.vu-1|20|R|5:00|4|n7|None|\n\
             springtide.home.vu.vu-1|21|R|5:00|4|n7|None|\n\
             springtide.homevu.vu-1|15|R|5:00|4|n7|None|\n\
             springtide.home.m1.vu.|16|R|5:00|4|n7|None|\n\
             two|19|R|5:00|4|n7|None|two\nlines\n\
             a name\nof two|22|R|5:00|4|n7|None|\n\
             spring|tide|17_[1-9]|R|5:00|4|n[1-3]|None|odd|name\n\
             wrap|18_4|S|INVALID|4|n7|None|hello\n\n",
            about.comment()
        );
        let found = only(&text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].id, found[0].node.as_str()), (12, "vu-1"));
        assert_eq!(found[0].left, Some(Duration::from_secs(86_400 + 2 * 3600 + 3 * 60 + 4)));
        assert_eq!((found[0].machine.as_str(), found[0].state), ("n7", SlurmJobState::Running));
        assert_eq!(found[0].about, about);
        assert_eq!((found[1].state, found[1].left), (SlurmJobState::Pending, None));
        assert_eq!(
            (found[1].reason.as_str(), &found[1].about),
            ("Resources", &StubComment::default())
        );
    }

    #[test]
    fn what_is_no_table_is_said() {
        for text in
            ["Please read the new rules", "a|b|c", "springtide.home.m1.vu.vu-1|x|R|1|1|n|None|"]
        {
            let misread = jobs(text, &home()).unwrap_err();
            assert_eq!(misread.line, text);
        }
        // One of ours that is cut off would be taken for gone.
        let cut = "other|7|R|1|1|n|None|\nspringtide.home.m1.vu.vu-1|8|R";
        assert!(jobs(cut, &home()).unwrap_err().line.starts_with("springtide.home"));
        assert_eq!(only(""), []);
    }

    #[test]
    fn times_left() {
        let seconds = |text| time_left(text).map(|left| left.as_secs());
        assert_eq!(seconds("0:59"), Some(59));
        assert_eq!(seconds("1:59:00"), Some(7140));
        assert_eq!(seconds("12"), Some(12));
        assert_eq!(seconds("365-00:00:01"), Some(365 * 86_400 + 1));
        for word in ["UNLIMITED", "INVALID", "NOT_SET", "N/A", "", "-", "1:2:3:4", "-1:00"] {
            assert_eq!(seconds(word), None, "{word}");
        }
    }

    #[test]
    fn numbers_of_submitted_jobs() {
        assert_eq!(submitted("12\n"), Ok(12));
        assert_eq!(submitted("Welcome to us!\n\n12;vu\n"), Ok(12));
        assert!(submitted("\n").is_err());
        assert!(submitted("Submitted batch job 12").is_err());
    }

    #[test]
    fn exit_codes() {
        let told = "JobId=3 JobName=x Requeue=1 ExitCode=3:0 RunTime=0 DerivedExitCode=1:0";
        assert_eq!(exit_code(told).as_deref(), Some("exit status: 3"));
        assert_eq!(exit_code("ExitCode=0:15").as_deref(), Some("signal: 15"));
        assert_eq!(exit_code("JobId=3"), None);
    }

    #[test]
    fn machines_that_take_jobs() {
        let taking =
            ["idle", "mixed", "allocated", "allocated+", "completing", "idle~", "mixed-", "idle#"];
        let taking = taking.into_iter().chain(["planned", "mix", "IDLE+POWERED_DOWN", "idle@"]);
        for state in taking {
            assert!(takes_jobs(state), "{state}");
        }
        let not =
            ["down", "down*", "drained", "draining", "drng", "drain*", "idle*", "maint", "resv"];
        let not = not.into_iter().chain([
            "reserved",
            "idle$",
            "idle%",
            "IDLE+DRAIN",
            "",
            "fail",
            "newword",
        ]);
        for state in not {
            assert!(!takes_jobs(state), "{state}");
        }
    }

    #[test]
    fn each_machine_is_counted_once_and_in_the_right_partition() {
        let text = "n1|2/6/0/8|mixed|up|batch*|4096\n\
                    n1|2/6/0/8|mixed|up|long|4096\n\
                    n2|0/0/8/8|drained|up|batch*|4096\n\
                    n3|0/8/0/8|idle|up|long|4096\n\
                    n4|0/8/0/8|idle|down|batch*|N/A\n";
        let names = |partition| -> Vec<String> {
            machines(text, partition).unwrap().into_iter().map(|machine| machine.name).collect()
        };
        // Which partition is printed is sinfo's business, where one is named.
        assert_eq!(names(Some("batch,long")), ["n1", "n2", "n3", "n4"]);
        assert_eq!(names(None), ["n1", "n2", "n4"]);
        let found = machines(text, None).unwrap();
        assert_eq!(capacity(&found, [], (1, None)), Capacity { size: 8, others: 2 });
        assert_eq!(capacity(&found, [], (3, None)), Capacity { size: 2, others: 0 });
        // Three of them have all of its memory, of which nothing is known to be others'.
        let memory = Some(1300);
        assert_eq!(capacity(&found, [], (1, memory)), Capacity { size: 3, others: 0 });
        let one = [stub(1, "n1")];
        assert_eq!(capacity(&found, &one, (1, memory)), Capacity { size: 3, others: 0 });
        assert_eq!(capacity(&found, [], (1, Some(5000))), Capacity::default());
        assert!(machines("n1|2/6/8|idle|up|batch*|1", None).is_err());
        assert!(machines("no nodes", None).is_err());
    }

    fn stub(id: u64, machine: &str) -> QueuedStub {
        let text = format!("springtide.home.m1.vu.vu-{id}|{id}|R|1:00|2|{machine}|None|");
        only(&text).remove(0)
    }

    #[test]
    fn what_is_in_use_and_not_held_is_others() {
        let machine = |name: &str, busy, idle, usable| SlurmMachine {
            name: name.into(),
            busy,
            idle,
            total: 8,
            memory: None,
            usable,
        };
        let both = [machine("n1", 5, 3, true), machine("n2", 8, 0, true)];
        let held = [stub(1, "n1"), stub(1, "n1"), stub(2, "n2")];
        // n1: two of its eight are ours, three are others', and one more stub of two finds room.
        assert_eq!(capacity(&both, &held, (2, None)), Capacity { size: 8, others: 5 });
        // It takes no new jobs, but the stub goes on.
        let closed = [machine("n1", 5, 0, false)];
        assert_eq!(capacity(&closed, &held, (2, None)), Capacity { size: 1, others: 0 });
        // Its core has two threads, and a job of one takes both.
        let cores = [machine("n1", 8, 0, true)];
        let held: Vec<QueuedStub> = (1..=4).map(|id| stub(id, "n1")).collect();
        assert_eq!(capacity(&cores, &held, (1, None)), Capacity { size: 8, others: 4 });
    }

    /// All readers of answers, each of which gets every text.
    fn read(bytes: &[u8]) -> Result<(), String> {
        let text = String::from_utf8_lossy(bytes);
        let _ = (submitted(&text), exit_code(&text), time_left(&text));
        let found = jobs(&text, &home());
        let held = found.as_deref().unwrap_or_default();
        for job in held {
            assert_eq!(home().node_of(&home().job_name(&job.node)).as_ref(), Some(&job.node));
        }
        for partition in [None, Some("short")] {
            let Ok(machines) = machines(&text, partition) else { continue };
            for stub in [(0, Some(0)), (2, Some(7)), (1, None)] {
                let found = capacity(&machines, held, stub);
                assert!(found.size >= found.others);
            }
        }
        found.map(drop).map_err(|misread| misread.reason)
    }

    #[test]
    fn fuzz() {
        let name = home().job_name("vu-1");
        let about = StubComment { token: Some("1-1".into()), base: Some("/t/a".into()), log: None };
        let queue = format!(
            "{name}|17|R|1-02:03:04|2|n1|None|{}\nother|3|PD|UNLIMITED|1|||x\n",
            about.comment()
        );
        let machines = "n1|1/3/0/4|mixed|up|short*|2000\nn2|0/0/4/4|down*|up|long|0\n";
        let job = "JobId=3 JobName=x ExitCode=3:0 RunTime=0 DerivedExitCode=1:0\n";
        let seeds = [&*queue, machines, job, "17;cluster\n"].map(|text| text.as_bytes().to_vec());
        let target = Target {
            name: "answers of Slurm",
            test: "-p springtide-actors --lib slurm::answers::tests::fuzz",
            words: &[
                "|",
                ":",
                "/",
                "-",
                "\n",
                "%",
                "%FF",
                ".",
                "*",
                "ExitCode=",
                "springtide-1 ",
                "base=",
                "springtide.",
                "PD",
                "CG",
                "idle",
                "up",
                "~",
                "+",
                ";",
                " ",
            ],
            max_len: 8 << 10,
            found: &[],
            read,
            allocated: None,
        };
        run(target, seeds.to_vec());
    }

    proptest! {
        #[test]
        fn names_and_paths_come_back(
            node in "\\PC{1,20}", grid in "\\PC{1,8}", path in prop::collection::vec(1u8.., 1..100)
        ) {
            let name = whose(&grid, "vu").job_name(&node);
            prop_assert_eq!(whose(&grid, "vu").node_of(&name), Some(node.clone()));
            prop_assert!(!name.contains(['|', '\n', ' ']));
            prop_assert_eq!(whose(&grid, "v").node_of(&name), None);
            let other = StubOwner { mark: "m2".into(), ..whose(&grid, "vu") };
            prop_assert_eq!(other.node_of(&name), None);
            let path = PathBuf::from(OsString::from_vec(path));
            let about = StubComment { token: Some("1-1".into()), base: Some(path), log: None };
            prop_assert_eq!(StubComment::of(&about.comment()), about);
        }

        #[test]
        fn more_is_never_promised_than_is_free(
            seen in prop::collection::vec((0u32..20, 0u32..20, 0u32..4, any::<bool>()), 0..5),
            on in prop::collection::vec(0usize..5, 0..20), threads in 1u32..4
        ) {
            let name = |i: usize| format!("n{i}");
            let machines: Vec<SlurmMachine> = seen.iter().enumerate().map(|(i, &(busy, idle, _, usable))| {
                SlurmMachine { name: name(i), busy, idle, total: busy + idle, memory: Some(10), usable }
            }).collect();
            let held: Vec<QueuedStub> = on.iter().enumerate().map(|(id, &i)| stub(id as u64, &name(i))).collect();
            let found = capacity(&machines, &held, (threads, Some(u64::from(threads))));
            let there = held.iter().filter(|job| machines.iter().any(|m| m.name == job.machine)).count() as u32;
            let idle: u32 = machines.iter().filter(|m| m.usable).map(|m| m.idle / threads).sum();
            prop_assert!(found.size >= found.others);
            prop_assert!((found.size - found.others).saturating_sub(there) <= idle);
        }
    }
}
