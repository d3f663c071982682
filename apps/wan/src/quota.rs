//! Shares of processors: control groups of version 1 or 2 with quotas, or files with shares for
//! nodes that limit themselves.
//!
//! All files and groups lie in folders named after this process. It removes them at its end, or the
//! next process does. This module does not depend on the computation.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The usual period of a quota, in microseconds. Linux gives at least a millisecond of processor
/// time per period, so the smallest shares need a longer one.
const PERIOD_US: u64 = 100_000;
/// The smallest quota that Linux accepts, in microseconds.
const QUOTA_MIN_US: u64 = 1_000;
/// The longest period that Linux accepts, in microseconds.
const PERIOD_MAX_US: u64 = 1_000_000;
/// Weight of the network threads, compared with compute threads.
const NET_WEIGHT: u64 = 131_072;
/// Weight of the compute threads.
const COMPUTE_WEIGHT: u64 = 16_384;
/// The file of a version 2 group that lists the controllers of its children.
const SUBTREE_CONTROL: &str = "cgroup.subtree_control";
/// The prefix of this program's folders.
const PREFIX: &str = "springtide-";

/// The mechanism that limits a thread to a share of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// The `cpu` controller of control groups, version 1.
    V1,
    /// The `cpu` controller of control groups, version 2, with threads.
    V2,
    /// Compute threads sleep by themselves; the share holds only while there are enough processors
    /// for all.
    Duty,
}

impl QuotaKind {
    /// A short description for users.
    pub fn word(self) -> &'static str {
        match self {
            Self::V1 => "control groups, version 1",
            Self::V2 => "control groups, version 2",
            Self::Duty => "compute threads that rest",
        }
    }
}

/// A place in the hierarchy of control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ControlGroup {
    kind: QuotaKind,
    /// The group in which new groups can be created.
    root: PathBuf,
    /// The group of this process.
    home: PathBuf,
}

/// The mounted hierarchies with quotas, from `/proc/self/mounts` and `/proc/self/cgroup`; the best
/// first.
///
/// Each has the path of this process's group, and the mount. Inside a container the path need not
/// exist below the mount; then the mount is used.
fn mounted(mounts: &str, own: &str) -> Vec<(QuotaKind, [PathBuf; 2])> {
    let mount = |line: &str| -> Option<(PathBuf, String, String)> {
        let mut words = line.split(' ').skip(1);
        let at = words.next()?.replace("\\040", " ");
        Some((at.into(), words.next()?.to_owned(), words.next()?.to_owned()))
    };
    let own = |controller: &str| {
        let line = own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let is = parts.next()?.split(',').any(|name| name == controller);
            if is { parts.next() } else { None }
        });
        line.unwrap_or("/").trim_start_matches('/').to_owned()
    };
    let mut found = Vec::new();
    for (at, kind, options) in mounts.lines().filter_map(mount) {
        if kind == "cgroup" && options.split(',').any(|option| option == "cpu") {
            found.insert(0, (QuotaKind::V1, [at.join(own("cpu")), at]));
        } else if kind == "cgroup2" {
            found.push((QuotaKind::V2, [at.join(own("")), at]));
        }
    }
    found
}

/// Places for new groups, the best first.
///
/// In version 2, only a group without processes can pass its controllers on, except the root. So
/// new groups lie next to this process's group or above it, where the user or root may create some.
fn places(mounts: &str, own: &str) -> Vec<ControlGroup> {
    let all = mounted(mounts, own).into_iter().flat_map(|(kind, [inside, at])| {
        let home = if inside.is_dir() { inside } else { at.clone() };
        let above = if kind == QuotaKind::V2 { usize::MAX } else { 1 };
        let roots = home.ancestors().take(above).take_while(|root| root.starts_with(&at));
        let place = |root: &Path| ControlGroup { kind, root: root.to_owned(), home: home.clone() };
        roots.map(place).collect::<Vec<_>>()
    });
    all.collect()
}

/// Candidates for the version 1 processor group of this process, from the same two files.
pub fn processor_groups(mounts: &str, own: &str) -> Vec<PathBuf> {
    let first = mounted(mounts, own).into_iter().find(|(kind, _)| *kind == QuotaKind::V1);
    first.map_or_else(Vec::new, |(_, places)| places.into())
}

/// The reason why control groups cannot limit processors.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// No hierarchy of control groups is mounted.
    #[error("no control groups are mounted")]
    None,
    /// The control groups have no `cpu` controller.
    #[error("{}: its controllers are \"{}\", without cpu", .0.display(), .1)]
    NoController(PathBuf, String),
    /// The group does not pass the controller on, and belongs to another owner.
    #[error("{} does not hand on cpu to the groups in it", .0.display())]
    NotPassedOn(PathBuf),
    /// The system refuses an operation.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file of the operation.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

fn write(path: &Path, text: &str) -> Result<(), QuotaError> {
    fs::write(path, text).map_err(|source| QuotaError::Io { path: path.to_owned(), source })
}

fn make(path: &Path) -> Result<(), QuotaError> {
    match fs::create_dir(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(QuotaError::Io { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// The quota and its period in microseconds, for a share of a core.
fn quota(share: f64) -> (u64, u64) {
    let share = share.max(QUOTA_MIN_US as f64 / PERIOD_MAX_US as f64);
    let least = (QUOTA_MIN_US as f64 / share).ceil() as u64;
    let period = PERIOD_US.max(least).min(PERIOD_MAX_US);
    (((period as f64 * share).round() as u64).max(QUOTA_MIN_US), period)
}

/// Lets a thread carry unused quota over to the next period.
///
/// Threads that often wait otherwise lose up to half of their quota, for Linux leaves it on the
/// core where they slept. The limit may never exceed the quota, so it is cleared before the quota
/// shrinks. Kernels before 5.14 have no such file.
fn carry_over(file: &Path, quota: u64) {
    let _ = fs::write(file, quota.to_string());
}

/// The control groups or share files of this process.
#[derive(Debug)]
pub struct Quotas {
    kind: QuotaKind,
    /// The folder of all groups or share files.
    root: PathBuf,
    /// The original group of this process.
    home: PathBuf,
}

impl Quotas {
    /// Limits threads by control groups.
    ///
    /// # Errors
    /// There are none, or this user may not use them; nothing is left.
    pub fn by_groups() -> Result<Self, QuotaError> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let places = places(&read("/proc/self/mounts"), &read("/proc/self/cgroup"));
        // The reason of the best place is reported.
        let mut reason = None;
        for place in places {
            sweep(&place.root);
            match Self::at(&place) {
                Ok(quotas) => return Ok(quotas),
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        Err(reason.unwrap_or(QuotaError::None))
    }

    fn at(place: &ControlGroup) -> Result<Self, QuotaError> {
        let ControlGroup { kind, root, home } = place;
        if *kind == QuotaKind::V2 {
            let controllers = |file: &str| {
                let path = root.join(file);
                let found = fs::read_to_string(&path);
                found.map_err(|source| QuotaError::Io { path, source })
            };
            let has_cpu = |found: &str| found.split_whitespace().any(|name| name == "cpu");
            let found = controllers("cgroup.controllers")?;
            if !has_cpu(&found) {
                return Err(QuotaError::NoController(root.clone(), found.trim().to_owned()));
            }
            if !has_cpu(&controllers(SUBTREE_CONTROL)?) {
                if root != home {
                    return Err(QuotaError::NotPassedOn(root.clone()));
                }
                write(&root.join(SUBTREE_CONTROL), "+cpu")?;
            }
        }
        let own = root.join(format!("{PREFIX}{}", std::process::id()));
        make(&own)?;
        let quotas = Self { kind: *kind, root: own, home: home.clone() };
        quotas.prepare()?;
        Ok(quotas)
    }

    /// Prepares groups in which network threads have precedence over compute threads.
    fn prepare(&self) -> Result<(), QuotaError> {
        let (net, nodes) = (self.root.join("net"), self.root.join("nodes"));
        match self.kind {
            QuotaKind::V1 => {
                write(&self.root.join("cpu.shares"), &NET_WEIGHT.to_string())?;
                for (group, weight) in [(&net, NET_WEIGHT), (&nodes, COMPUTE_WEIGHT)] {
                    make(group)?;
                    write(&group.join("cpu.shares"), &weight.to_string())?;
                }
            }
            QuotaKind::V2 => {
                // In version 2, a process can have threads in several groups only below one domain.
                let pass_on = |group: &Path| write(&group.join(SUBTREE_CONTROL), "+cpu");
                let last = self.root.join("last");
                for group in [&net, &nodes, &last] {
                    make(group)?;
                    write(&group.join("cgroup.type"), "threaded")?;
                }
                pass_on(&self.root)?;
                write(&last.join("cpu.weight"), "1")?;
                write(&net.join("cpu.weight"), "10000")?;
                write(&nodes.join("cpu.weight"), "1000")?;
                pass_on(&nodes)?;
            }
            QuotaKind::Duty => {}
        }
        Ok(())
    }

    /// Limits threads by files with shares, in this folder.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn by_share_files(folder: &Path) -> Result<Self, QuotaError> {
        let root = folder.join("shares");
        make(&root)?;
        Ok(Self { kind: QuotaKind::Duty, root, home: folder.to_owned() })
    }

    /// The mechanism of the limits.
    pub fn kind(&self) -> QuotaKind {
        self.kind
    }

    /// Moves a process, and the processes that it starts, to the group of network threads.
    ///
    /// # Errors
    /// The system does not allow it.
    pub fn move_process(&self, pid: u32) -> Result<(), QuotaError> {
        match self.kind {
            QuotaKind::V1 => write(&self.root.join("net/cgroup.procs"), &pid.to_string()),
            QuotaKind::V2 => {
                write(&self.root.join("cgroup.procs"), &pid.to_string())?;
                let tasks = fs::read_dir(format!("/proc/{pid}/task"));
                for task in tasks.into_iter().flatten().flatten() {
                    let name = task.file_name();
                    write(&self.root.join("net/cgroup.threads"), &name.to_string_lossy())?;
                }
                Ok(())
            }
            QuotaKind::Duty => Ok(()),
        }
    }

    /// The group of threads with the lowest priority.
    pub fn idle_group(&self) -> IdleGroup {
        IdleGroup(match self.kind {
            QuotaKind::V1 => Some(self.home.join("tasks")),
            QuotaKind::V2 => Some(self.root.join("last/cgroup.threads")),
            QuotaKind::Duty => None,
        })
    }

    /// Limits each of a node's compute threads to a share of a core.
    ///
    /// Returns the key of their configuration's `[work]` section that makes them use the limit, and
    /// its value.
    ///
    /// # Errors
    /// The system does not allow it.
    pub fn set(
        &self,
        node: &str,
        share: f64,
        threads: u32,
    ) -> Result<(&'static str, PathBuf), QuotaError> {
        // The quota of a group holds for all its threads; with share files each thread limits
        // itself.
        let (quota, period) = quota(share * f64::from(threads));
        match self.kind {
            QuotaKind::V1 => {
                let group = self.root.join("nodes").join(node);
                make(&group)?;
                carry_over(&group.join("cpu.cfs_burst_us"), 0);
                // A quota must not exceed the parent's in the same period; these parents have none.
                write(&group.join("cpu.cfs_period_us"), &period.to_string())?;
                write(&group.join("cpu.cfs_quota_us"), &quota.to_string())?;
                carry_over(&group.join("cpu.cfs_burst_us"), quota);
                Ok(("cgroup", group))
            }
            QuotaKind::V2 => {
                let group = self.root.join("nodes").join(node);
                let is_new = !group.exists();
                make(&group)?;
                if is_new {
                    write(&group.join("cgroup.type"), "threaded")?;
                }
                carry_over(&group.join("cpu.max.burst"), 0);
                write(&group.join("cpu.max"), &format!("{quota} {period}"))?;
                carry_over(&group.join("cpu.max.burst"), quota);
                Ok(("cgroup", group))
            }
            QuotaKind::Duty => {
                let (file, new) = (self.root.join(node), self.root.join(format!("{node}.new")));
                write(&new, &format!("{share}\n"))?;
                fs::rename(&new, &file)
                    .map_err(|source| QuotaError::Io { path: file.clone(), source })?;
                Ok(("share_file", file))
            }
        }
    }

    /// The groups that are left if this process is killed.
    pub fn groups(&self) -> Vec<PathBuf> {
        if self.kind == QuotaKind::Duty { Vec::new() } else { vec![self.root.clone()] }
    }
}

/// The group for threads with the lowest priority; it lies outside of this process's groups, which
/// precede others.
#[derive(Clone, Debug)]
pub struct IdleGroup(Option<PathBuf>);

impl IdleGroup {
    /// Moves the calling thread to the group.
    ///
    /// # Errors
    /// The system does not allow it.
    pub fn step(&self) -> io::Result<()> {
        // 0 stands for the calling thread.
        self.0.as_ref().map_or(Ok(()), |file| fs::write(file, "0"))
    }
}

impl Drop for Quotas {
    fn drop(&mut self) {
        match self.kind {
            QuotaKind::Duty => drop(fs::remove_dir_all(&self.root)),
            QuotaKind::V1 | QuotaKind::V2 => {
                // This process may be in the group.
                let _ = fs::write(self.home.join("cgroup.procs"), std::process::id().to_string());
                remove(&self.root);
            }
        }
    }
}

/// Removes a group of this program with its children. Groups with running processes stay.
pub fn remove(group: &Path) {
    let is_ours = |path: &Path| {
        path.components().any(|part| part.as_os_str().to_string_lossy().starts_with(PREFIX))
    };
    if !is_ours(group) {
        return;
    }
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}

/// Removes the groups of processes that have ended.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_within_the_limits_of_linux() {
        assert_eq!(quota(0.04), (4_000, 100_000));
        assert_eq!(quota(1.0), (100_000, 100_000));
        assert_eq!(quota(2.5), (250_000, 100_000));
        // Below the minimum within 100 ms.
        assert_eq!(quota(0.008), (1_000, 125_000));
        assert_eq!(quota(0.0), (1_000, 1_000_000));
    }

    #[test]
    fn groups_are_found_where_they_are_mounted() {
        let mounts = "proc /proc proc rw 0 0\n\
            cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nosuid 0 0\n\
            cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
            cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n";
        let found = places(mounts, "4:cpu,cpuacct:/no/such/group\n0::/\n");
        let at = |kind, root: &str, home: &str| ControlGroup {
            kind,
            root: root.into(),
            home: home.into(),
        };
        let (first, second) = ("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified/");
        assert_eq!(found, [at(QuotaKind::V1, first, first), at(QuotaKind::V2, second, second)]);
        assert_eq!(places("proc /proc proc rw 0 0\n", ""), []);
        // In version 2, also the ancestors of the process's group.
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().to_str().unwrap();
        let [slice, scope] = ["user.slice", "user.slice/x.scope"].map(|at| format!("{top}/{at}"));
        fs::create_dir_all(&scope).unwrap();
        let found = places(&format!("cgroup2 {top} cgroup2 rw 0 0\n"), "0::/user.slice/x.scope\n");
        assert_eq!(found, [&scope, &slice, top].map(|root| at(QuotaKind::V2, root, &scope)));
    }

    /// Only the owner of a version 2 group may change whether it passes controllers on.
    #[test]
    fn ancestor_groups_are_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let (top, home) = (dir.path().to_owned(), dir.path().join("x.scope"));
        fs::create_dir(&home).unwrap();
        fs::write(top.join("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::write(top.join(SUBTREE_CONTROL), "memory\n").unwrap();
        let place = ControlGroup { kind: QuotaKind::V2, root: top.clone(), home };
        assert!(matches!(Quotas::at(&place), Err(QuotaError::NotPassedOn(root)) if root == top));
        assert_eq!(fs::read_to_string(top.join(SUBTREE_CONTROL)).unwrap(), "memory\n");
        fs::write(top.join("cgroup.controllers"), "memory\n").unwrap();
        assert!(
            matches!(Quotas::at(&place), Err(QuotaError::NoController(root, _)) if root == top)
        );
    }

    #[test]
    fn share_files_replace_missing_groups() {
        let dir = tempfile::tempdir().unwrap();
        let quotas = Quotas::by_share_files(dir.path()).unwrap();
        assert_eq!(quotas.kind(), QuotaKind::Duty);
        let (key, file) = quotas.set("ams-1", 0.04, 1).unwrap();
        assert_eq!(key, "share_file");
        assert_eq!(fs::read_to_string(&file).unwrap(), "0.04\n");
        quotas.set("ams-1", 0.01, 1).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "0.01\n");
        assert!(quotas.groups().is_empty());
        drop(quotas);
        assert!(!file.exists());
    }

    /// Where control groups are available, a quota holds for the threads of a group alone, and the
    /// group is removed at the end.
    #[test]
    fn a_thread_joins_a_group_that_is_removed_afterwards() {
        let quotas = match Quotas::by_groups() {
            Ok(quotas) => quotas,
            Err(error) => return eprintln!("skipped: no quota by control groups: {error}"),
        };
        let (key, group) = quotas.set("n-1", 0.25, 2).unwrap();
        assert_eq!(key, "cgroup");
        let joined = std::thread::spawn({
            let group = group.clone();
            move || {
                let files = ["cgroup.threads", "tasks"].map(|file| group.join(file));
                let file = files.iter().find(|file| file.exists()).unwrap();
                fs::write(file, "0").unwrap();
                fs::read_to_string(file).unwrap().lines().count()
            }
        });
        assert_eq!(joined.join().unwrap(), 1);
        quotas.set("n-1", 0.25, 1).unwrap();
        let left = quotas.groups();
        assert_eq!(left.len(), 1);
        drop(quotas);
        assert!(!left[0].exists(), "{}", left[0].display());
    }
}
