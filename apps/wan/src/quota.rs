//! Shares of processors: control groups of version 1 or 2 with a quota each, or a file with the share for nodes that rest by themselves.
//!
//! What is made here lies under folders named after this process, and is removed with it, or by the next one. Must not know what is
//! computed in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Quotas hold within this time, in microseconds. Less than a millisecond of processor time in it cannot be given, which the smallest
/// shares need a longer one for.
const PERIOD_US: u64 = 100_000;
/// The least quota that Linux takes, in microseconds.
const QUOTA_LEAST_US: u64 = 1_000;
/// The longest period that Linux takes, in microseconds.
const PERIOD_MOST_US: u64 = 1_000_000;
/// Against the network threads of nodes that compute.
const NET_WEIGHT: u64 = 131_072;
/// And these.
const COMPUTE_WEIGHT: u64 = 16_384;
/// The controllers that a group of version 2 has its own have.
const HANDS_ON: &str = "cgroup.subtree_control";
/// Our folders begin with this.
const OURS: &str = "springtide-";

/// What gives threads a share of a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `cpu` of control groups, version 1.
    V1,
    /// `cpu` of control groups, version 2, with threads.
    V2,
    /// Compute threads rest by themselves: what they use follows only while there is enough for all.
    Duty,
}

impl Kind {
    /// In a few words.
    pub fn word(self) -> &'static str {
        match self {
            Self::V1 => "control groups, version 1",
            Self::V2 => "control groups, version 2",
            Self::Duty => "compute threads that rest",
        }
    }
}

/// Where control groups are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    kind: Kind,
    /// Where ours may be made.
    root: PathBuf,
    /// The group that this process is in.
    home: PathBuf,
}

/// What `/proc/self/mounts` and `/proc/self/cgroup` say of groups that have quotas; the best first. Where this process's own may be: seen
/// from inside a container its path need not exist below the mount, which then is the place.
fn mounted(mounts: &str, own: &str) -> Vec<(Kind, [PathBuf; 2])> {
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
            found.insert(0, (Kind::V1, [at.join(own("cpu")), at]));
        } else if kind == "cgroup2" {
            found.push((Kind::V2, [at.join(own("")), at]));
        }
    }
    found
}

/// In version 2 a group that hands its processors on to others has no processes itself but at the top, so that ours come beside this
/// process's group or above that: where a user may make some, or root.
fn places(mounts: &str, own: &str) -> Vec<Place> {
    let all = mounted(mounts, own).into_iter().flat_map(|(kind, [inside, at])| {
        let home = if inside.is_dir() { inside } else { at.clone() };
        let above = if kind == Kind::V2 { usize::MAX } else { 1 };
        let roots = home.ancestors().take(above).take_while(|root| root.starts_with(&at));
        let place = |root: &Path| Place { kind, root: root.to_owned(), home: home.clone() };
        roots.map(place).collect::<Vec<_>>()
    });
    all.collect()
}

/// Where the group of this process for processors may be, in version 1, from the same two files.
pub fn processor_groups(mounts: &str, own: &str) -> Vec<PathBuf> {
    let first = mounted(mounts, own).into_iter().find(|(kind, _)| *kind == Kind::V1);
    first.map_or_else(Vec::new, |(_, places)| places.into())
}

/// Why there is no quota by control groups.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// None is mounted.
    #[error("no control groups are mounted")]
    None,
    /// There are some, but without processors.
    #[error("{}: its controllers are \"{}\", without cpu", .0.display(), .1)]
    NoController(PathBuf, String),
    /// It is somebody else's to decide what this group hands on.
    #[error("{} does not hand on cpu to the groups in it", .0.display())]
    NotHandedOn(PathBuf),
    /// Not for this user, or not here.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was tried.
        path: PathBuf,
        /// What Linux said.
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

/// A quota and its period in microseconds, for a share of a core.
fn quota(share: f64) -> (u64, u64) {
    let share = share.max(QUOTA_LEAST_US as f64 / PERIOD_MOST_US as f64);
    let least = (QUOTA_LEAST_US as f64 / share).ceil() as u64;
    let period = PERIOD_US.max(least).min(PERIOD_MOST_US);
    (((period as f64 * share).round() as u64).max(QUOTA_LEAST_US), period)
}

/// Lets a thread that slept through a period have what it did not use in the next. Threads that wait often lose up to half of their
/// quota otherwise, which Linux leaves behind on the core they slept on. It may never be more than the quota: nothing, then, before that
/// becomes less. Kernels before 5.14 have no such file.
fn carry_over(file: &Path, quota: u64) {
    let _ = fs::write(file, quota.to_string());
}

/// A place for groups, of this process.
#[derive(Debug)]
pub struct Quotas {
    kind: Kind,
    /// The folder of all groups, or of the files with the shares.
    root: PathBuf,
    /// The group that this process came from.
    home: PathBuf,
}

impl Quotas {
    /// By control groups.
    ///
    /// # Errors
    /// There are none here, or not for this user; nothing is left.
    pub fn by_groups() -> Result<Self, QuotaError> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let places = places(&read("/proc/self/mounts"), &read("/proc/self/cgroup"));
        // The best place that there is has the reason that counts.
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

    fn at(place: &Place) -> Result<Self, QuotaError> {
        let Place { kind, root, home } = place;
        if *kind == Kind::V2 {
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
            if !has_cpu(&controllers(HANDS_ON)?) {
                if root != home {
                    return Err(QuotaError::NotHandedOn(root.clone()));
                }
                write(&root.join(HANDS_ON), "+cpu")?;
            }
        }
        let own = root.join(format!("{OURS}{}", std::process::id()));
        make(&own)?;
        let quotas = Self { kind: *kind, root: own, home: home.clone() };
        quotas.prepare()?;
        Ok(quotas)
    }

    /// Threads of nodes that do not compute run before those that do.
    fn prepare(&self) -> Result<(), QuotaError> {
        let (net, nodes) = (self.root.join("net"), self.root.join("nodes"));
        match self.kind {
            Kind::V1 => {
                write(&self.root.join("cpu.shares"), &NET_WEIGHT.to_string())?;
                for (group, weight) in [(&net, NET_WEIGHT), (&nodes, COMPUTE_WEIGHT)] {
                    make(group)?;
                    write(&group.join("cpu.shares"), &weight.to_string())?;
                }
            }
            Kind::V2 => {
                // A process has its threads in several groups only below one domain.
                let hand_on = |group: &Path| write(&group.join(HANDS_ON), "+cpu");
                let last = self.root.join("last");
                for group in [&net, &nodes, &last] {
                    make(group)?;
                    write(&group.join("cgroup.type"), "threaded")?;
                }
                hand_on(&self.root)?;
                write(&last.join("cpu.weight"), "1")?;
                write(&net.join("cpu.weight"), "10000")?;
                write(&nodes.join("cpu.weight"), "1000")?;
                hand_on(&nodes)?;
            }
            Kind::Duty => {}
        }
        Ok(())
    }

    /// By files that hold the shares, in this folder.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn by_duty(folder: &Path) -> Result<Self, QuotaError> {
        let root = folder.join("shares");
        make(&root)?;
        Ok(Self { kind: Kind::Duty, root, home: folder.to_owned() })
    }

    /// What gives the shares.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Takes a process, and what it starts, to where threads are that do not compute.
    ///
    /// # Errors
    /// Not allowed.
    pub fn take_in(&self, pid: u32) -> Result<(), QuotaError> {
        match self.kind {
            Kind::V1 => write(&self.root.join("net/cgroup.procs"), &pid.to_string()),
            Kind::V2 => {
                write(&self.root.join("cgroup.procs"), &pid.to_string())?;
                let tasks = fs::read_dir(format!("/proc/{pid}/task"));
                for task in tasks.into_iter().flatten().flatten() {
                    let name = task.file_name();
                    write(&self.root.join("net/cgroup.threads"), &name.to_string_lossy())?;
                }
                Ok(())
            }
            Kind::Duty => Ok(()),
        }
    }

    /// Where threads go that only fill time that nobody wants.
    pub fn aside(&self) -> Aside {
        Aside(match self.kind {
            Kind::V1 => Some(self.home.join("tasks")),
            Kind::V2 => Some(self.root.join("last/cgroup.threads")),
            Kind::Duty => None,
        })
    }

    /// Gives each of a node's compute threads, of which there are so many, a share of a core, from now on. What they are to be told to
    /// use it: the name of a key of their config's `[work]`, and its value.
    ///
    /// # Errors
    /// Not allowed.
    pub fn set(
        &self,
        node: &str,
        share: f64,
        threads: u32,
    ) -> Result<(&'static str, PathBuf), QuotaError> {
        // A group's quota is of all its threads; a thread that rests knows its own.
        let (quota, period) = quota(share * f64::from(threads));
        match self.kind {
            Kind::V1 => {
                let group = self.root.join("nodes").join(node);
                make(&group)?;
                carry_over(&group.join("cpu.cfs_burst_us"), 0);
                // A quota must never exceed what its parent has in the same period; no parent of ours has one.
                write(&group.join("cpu.cfs_period_us"), &period.to_string())?;
                write(&group.join("cpu.cfs_quota_us"), &quota.to_string())?;
                carry_over(&group.join("cpu.cfs_burst_us"), quota);
                Ok(("cgroup", group))
            }
            Kind::V2 => {
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
            Kind::Duty => {
                let (file, new) = (self.root.join(node), self.root.join(format!("{node}.new")));
                write(&new, &format!("{share}\n"))?;
                fs::rename(&new, &file)
                    .map_err(|source| QuotaError::Io { path: file.clone(), source })?;
                Ok(("share_file", file))
            }
        }
    }

    /// The folders of groups that are left when this process is killed.
    pub fn groups(&self) -> Vec<PathBuf> {
        if self.kind == Kind::Duty { Vec::new() } else { vec![self.root.clone()] }
    }
}

/// A place outside the group that all others go after: to be last in that one is to be before the rest of the machine.
#[derive(Clone, Debug)]
pub struct Aside(Option<PathBuf>);

impl Aside {
    /// Takes the calling thread there.
    ///
    /// # Errors
    /// Not allowed.
    pub fn step(&self) -> io::Result<()> {
        // 0 is whoever writes it.
        self.0.as_ref().map_or(Ok(()), |file| fs::write(file, "0"))
    }
}

impl Drop for Quotas {
    fn drop(&mut self) {
        match self.kind {
            Kind::Duty => drop(fs::remove_dir_all(&self.root)),
            Kind::V1 | Kind::V2 => {
                // This process may be in it.
                let _ = fs::write(self.home.join("cgroup.procs"), std::process::id().to_string());
                remove(&self.root);
            }
        }
    }
}

/// Removes a group of ours with those below it. One in which something still runs stays.
pub fn remove(group: &Path) {
    let is_ours = |path: &Path| {
        path.components().any(|part| part.as_os_str().to_string_lossy().starts_with(OURS))
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

/// Removes what processes that are gone left behind.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(OURS)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_what_linux_takes() {
        assert_eq!(quota(0.04), (4_000, 100_000));
        assert_eq!(quota(1.0), (100_000, 100_000));
        assert_eq!(quota(2.5), (250_000, 100_000));
        // Too little for 100 ms.
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
        let at =
            |kind, root: &str, home: &str| Place { kind, root: root.into(), home: home.into() };
        let (first, second) = ("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/unified/");
        assert_eq!(found, [at(Kind::V1, first, first), at(Kind::V2, second, second)]);
        assert_eq!(places("proc /proc proc rw 0 0\n", ""), []);
        // Version 2: above the own one, too, as far as groups go.
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().to_str().unwrap();
        let [slice, scope] = ["user.slice", "user.slice/x.scope"].map(|at| format!("{top}/{at}"));
        fs::create_dir_all(&scope).unwrap();
        let found = places(&format!("cgroup2 {top} cgroup2 rw 0 0\n"), "0::/user.slice/x.scope\n");
        assert_eq!(found, [&scope, &slice, top].map(|root| at(Kind::V2, root, &scope)));
    }

    /// Whether a group of version 2 hands processors on is only its owner's to change.
    #[test]
    fn groups_above_are_taken_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let (top, home) = (dir.path().to_owned(), dir.path().join("x.scope"));
        fs::create_dir(&home).unwrap();
        fs::write(top.join("cgroup.controllers"), "cpu memory\n").unwrap();
        fs::write(top.join(HANDS_ON), "memory\n").unwrap();
        let place = Place { kind: Kind::V2, root: top.clone(), home };
        assert!(matches!(Quotas::at(&place), Err(QuotaError::NotHandedOn(root)) if root == top));
        assert_eq!(fs::read_to_string(top.join(HANDS_ON)).unwrap(), "memory\n");
        fs::write(top.join("cgroup.controllers"), "memory\n").unwrap();
        assert!(
            matches!(Quotas::at(&place), Err(QuotaError::NoController(root, _)) if root == top)
        );
    }

    #[test]
    fn files_hold_the_shares_where_there_are_no_groups() {
        let dir = tempfile::tempdir().unwrap();
        let quotas = Quotas::by_duty(dir.path()).unwrap();
        assert_eq!(quotas.kind(), Kind::Duty);
        let (key, file) = quotas.set("ams-1", 0.04, 1).unwrap();
        assert_eq!(key, "share_file");
        assert_eq!(fs::read_to_string(&file).unwrap(), "0.04\n");
        quotas.set("ams-1", 0.01, 1).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "0.01\n");
        assert!(quotas.groups().is_empty());
        drop(quotas);
        assert!(!file.exists());
    }

    /// Where control groups are to be had: threads, and no others, are under the quota, and nothing stays.
    #[test]
    fn a_thread_joins_a_group_that_is_gone_afterwards() {
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
