//! Parsers of the kernel's files on processors (Linux), without their interpretation.
//!
//! Pure functions of text. An unknown or damaged file gives an absent number, never an error.
//! Formats: proc(5), the kernel's Documentation/scheduler/sched-stats.rst, accounting/psi.rst,
//! admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Processor time since boot, in clock ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// Time in which it ran something.
    pub busy: u64,
    /// Idle time, including waits for input and output.
    pub idle: u64,
    /// Time in which it was ready, but the hypervisor ran another virtual machine.
    pub steal: u64,
}

/// Parses `/proc/stat`: the number of processors for which `counts` holds, and the sum of their
/// times.
pub fn stat(text: &str, counts: impl Fn(u32) -> bool) -> Option<(u32, CpuTicks)> {
    let (mut cpus, mut sum) = (0, CpuTicks::default());
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some(name) = fields.next().and_then(|name| name.strip_prefix("cpu")) else { continue };
        // The line without a number is the sum of all.
        if !name.parse().is_ok_and(&counts) {
            continue;
        }
        // user nice system idle iowait irq softirq steal; user and nice include the time of guests.
        // Old kernels have fewer fields.
        let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
        let tick = |at: usize| ticks.get(at).copied().unwrap_or(0);
        if ticks.len() < 4 {
            return None;
        }
        cpus += 1;
        sum.busy = [0, 1, 2, 5, 6].iter().fold(sum.busy, |sum, &at| sum.saturating_add(tick(at)));
        sum.idle = sum.idle.saturating_add(tick(3)).saturating_add(tick(4));
        sum.steal = sum.steal.saturating_add(tick(7));
    }
    (cpus > 0).then_some((cpus, sum))
}

/// The processor time of all threads of a process in clock ticks, from its `/proc/PID/stat`.
pub fn process_ticks(text: &str) -> Option<u64> {
    // The second field is the program's name in brackets, which may contain blanks and brackets.
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user.saturating_add(system))
}

/// The inclusive ranges of processors that a process may use, from `Cpus_allowed_list` of its
/// `/proc/PID/status`.
pub fn allowed_cpus(text: &str) -> Option<Vec<(u32, u32)>> {
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    list.split(',').map(range).collect()
}

/// Running and ready threads on all processors at this time, from `/proc/loadavg`.
pub fn runnable(text: &str) -> Option<u32> {
    text.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// The total time in which threads waited for the processors for which `counts` holds, in
/// nanoseconds.
///
/// From `/proc/schedstat`, of which the field order is known for versions 15 to 17.
pub fn waited_ns(text: &str, counts: impl Fn(u32) -> bool) -> Option<u64> {
    let version: u32 = text.lines().next()?.strip_prefix("version ")?.trim().parse().ok()?;
    if !(15..=17).contains(&version) {
        return None;
    }
    let mut sum = None;
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let Some(name) = fields.next().and_then(|name| name.strip_prefix("cpu")) else { continue };
        if name.parse().is_ok_and(&counts) {
            let waited: u64 = fields.nth(7)?.parse().ok()?;
            sum = Some(sum.unwrap_or(0u64).saturating_add(waited));
        }
    }
    sum
}

/// The time in which at least one thread waited for a processor, in microseconds, from
/// `/proc/pressure/cpu`.
pub fn pressure_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_ascii_whitespace().find_map(|field| field.strip_prefix("total="))?.parse().ok()
}

/// The effects of a control group's quota so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Quota periods in which the group wanted to run.
    pub periods: u64,
    /// Of these, the periods in which it used up its quota.
    pub exhausted: u64,
    /// The time in which its threads were stopped, in microseconds, summed over processors.
    pub microseconds: u64,
}

/// Parses a group's `cpu.stat`, of either version of control groups.
pub fn throttled(text: &str) -> Option<Throttled> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    let microseconds = value("throttled_usec");
    let microseconds = microseconds.or_else(|| value("throttled_time").map(|ns| ns / 1000));
    Some(Throttled {
        periods: value("nr_periods")?,
        exhausted: value("nr_throttled")?,
        microseconds: microseconds?,
    })
}

/// A bound on processor time per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Processor time per period.
    pub time: Duration,
    /// The length of the period.
    pub period: Duration,
}

impl Quota {
    /// The quota as a number of processors.
    pub fn cpus(&self) -> f64 {
        self.time.as_nanos() as f64 / self.period.as_nanos() as f64
    }

    fn new(time_us: &str, period_us: &str) -> Option<Self> {
        let time = Duration::from_micros(time_us.trim().parse().ok()?);
        let period = Duration::from_micros(period_us.trim().parse().ok()?);
        (!time.is_zero() && !period.is_zero()).then_some(Self { time, period })
    }

    /// Parses `cpu.max` of control groups version 2. None if there is no limit.
    pub fn from_max(text: &str) -> Option<Self> {
        let (time, period) = text.trim().split_once(' ')?;
        Self::new(time, period)
    }

    /// Parses `cpu.cfs_quota_us` and `cpu.cfs_period_us` of version 1. None if there is no limit
    /// (-1).
    pub fn from_cfs(quota_us: &str, period_us: &str) -> Option<Self> {
        Self::new(quota_us, period_us)
    }
}

/// The control groups that limit a process's processor time: its own and its visible ancestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Whether the groups are of version 1.
    pub first_version: bool,
    /// The directories of the groups, innermost first.
    pub directories: Vec<PathBuf>,
}

impl Groups {
    /// Finds the groups from a process's `/proc/PID/cgroup` and `/proc/PID/mountinfo`.
    pub fn find(cgroup: &str, mountinfo: &str) -> Option<Self> {
        let mut second = None;
        for line in cgroup.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(id), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if controllers.split(',').any(|name| name == "cpu") {
                let is_cpu = |kind: &str, options: &str| {
                    kind == "cgroup" && options.split(',').any(|option| option == "cpu")
                };
                if let Some(directories) = directories(mountinfo, is_cpu, path) {
                    return Some(Self { first_version: true, directories });
                }
            } else if id == "0" && controllers.is_empty() {
                second = Some(path);
            }
        }
        let directories = directories(mountinfo, |kind, _| kind == "cgroup2", second?)?;
        Some(Self { first_version: false, directories })
    }
}

/// The directory of group `path` and its ancestors, up to the mount point of the first file system
/// that `fits` by its type and options.
fn directories(
    mountinfo: &str,
    fits: impl Fn(&str, &str) -> bool,
    path: &str,
) -> Option<Vec<PathBuf>> {
    let (root, point) = mountinfo.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        let mut place = place.split(' ').skip(3);
        fits(kind, options).then_some((place.next()?, place.next()?))
    })?;
    // In a container the mount may show only a part of the tree. The nearest visible ancestor of a
    // group outside that part is the mount's root.
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    let below = if below.starts_with("..") { Path::new("") } else { below };
    let innermost = Path::new(point).join(below);
    let depth = below.components().count();
    Some(innermost.ancestors().take(depth + 1).map(Path::to_path_buf).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: &str = "cpu  383110 5 31231 352108 1561 7 3478 424 9 9\n\
        cpu0 187357 2 13917 182295 499 3 1643 193 0 0\n\
        cpu1 195752 3 17313 169813 1062 4 1834 231 0 0\n\
        intr 1 2 3\nctxt 12\nbtime 1\nprocesses 5\n";

    #[test]
    fn times_of_processors_add_up_over_those_allowed() {
        let both = CpuTicks {
            busy: 187357 + 2 + 13917 + 3 + 1643 + 195752 + 3 + 17313 + 4 + 1834,
            idle: 182295 + 499 + 169813 + 1062,
            steal: 424,
        };
        assert_eq!(stat(STAT, |_| true), Some((2, both)));
        let one = stat(STAT, |cpu| cpu == 1).unwrap();
        assert_eq!((one.0, one.1.steal, one.1.idle), (1, 231, 169813 + 1062));
        assert_eq!(stat(STAT, |_| false), None);
        // A kernel before 2.6 had four columns.
        let old = stat("cpu0 1 2 3 4\n", |_| true);
        assert_eq!(old, Some((1, CpuTicks { busy: 6, idle: 4, steal: 0 })));
        for bad in ["", "cpu0 1 x 3 4", "cpu0", "nothing", "cpu 1 2 3 4"] {
            assert_eq!(stat(bad, |_| true), None, "{bad:?}");
        }
    }

    #[test]
    fn a_process_with_brackets_in_its_name_is_read() {
        let rest = "R 705 705 31992 0 -1 4194304 102 0 0 0 70 30 5 6 20 0 1 0 388752 3133440 362";
        for name in ["cat", "a b", "x) R 9 9", "(("] {
            assert_eq!(process_ticks(&format!("709 ({name}) {rest}")), Some(100), "{name}");
        }
        for bad in ["", "709 (cat)", "709 (cat) R 1 2", "709 (cat) R 1 2 3 4 5 6 7 8 9 10 x y"] {
            assert_eq!(process_ticks(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn lists_of_processors_are_read() {
        let status = |list: &str| {
            format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{list}\nMems:\t1\n")
        };
        assert_eq!(allowed_cpus(&status("0-1")), Some(vec![(0, 1)]));
        assert_eq!(allowed_cpus(&status("0-3,8,10-11")), Some(vec![(0, 3), (8, 8), (10, 11)]));
        for bad in ["", "a", "1-", "1,,2"] {
            assert_eq!(allowed_cpus(&status(bad)), None, "{bad:?}");
        }
        assert_eq!(allowed_cpus("Name:\tx\n"), None);
    }

    #[test]
    fn the_run_queue_and_waiting_are_read() {
        assert_eq!(runnable("3.00 2.89 2.25 3/109 709\n"), Some(3));
        assert_eq!(runnable("3.00 2.89"), None);
        let text = "version 15\ntimestamp 4295\ncpu0 0 0 0 0 0 0 1100 500 7\ndomain0 3 1 2\n\
            cpu1 0 0 0 0 0 0 1200 40 7\n";
        assert_eq!(waited_ns(text, |_| true), Some(540));
        assert_eq!(waited_ns(text, |cpu| cpu == 1), Some(40));
        assert_eq!(waited_ns(&text.replace("15", "14"), |_| true), None);
        assert_eq!(waited_ns("version 16\ncpu0 1 2\n", |_| true), None);
        let psi = "some avg10=20.11 avg60=43.50 avg300=45.02 total=462960456\n\
            full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(pressure_us(psi), Some(462_960_456));
        assert_eq!(pressure_us("full avg10=0.00 total=0\n"), None);
    }

    #[test]
    fn throttling_and_quotas_of_both_versions_are_read() {
        let second = "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 100\nnr_throttled 40\n\
            throttled_usec 2000000\nnr_bursts 0\nburst_usec 0\n";
        let first = "nr_periods 100\nnr_throttled 40\nthrottled_time 2000000000\n";
        let expected = Throttled { periods: 100, exhausted: 40, microseconds: 2_000_000 };
        assert_eq!(throttled(second), Some(expected));
        assert_eq!(throttled(first), Some(expected));
        // The root group of version 2 has no quota.
        assert_eq!(throttled("usage_usec 9\nuser_usec 5\nsystem_usec 4\n"), None);

        let quota = Quota::from_max("50000 100000\n").unwrap();
        assert_eq!((quota.cpus(), quota.period), (0.5, Duration::from_millis(100)));
        assert_eq!(Quota::from_cfs("150000\n", "100000\n").unwrap().cpus(), 1.5);
        for none in ["max 100000", "", "0 100000", "100000 0", "-1 5"] {
            assert_eq!(Quota::from_max(none), None, "{none:?}");
        }
        assert_eq!(Quota::from_cfs("-1\n", "100000\n"), None);
    }

    #[test]
    fn control_groups_are_found_in_every_layout() {
        let second =
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let first = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
            33 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
            34 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let contained = "31 23 0:29 /box/a /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n";
        // Control group and mounts; then version and directories.
        let table: [(&str, &str, bool, &[&str]); 7] = [
            ("0::/\n", second, false, &["/sys/fs/cgroup"]),
            (
                "0::/user.slice/a.scope\n",
                second,
                false,
                &[
                    "/sys/fs/cgroup/user.slice/a.scope",
                    "/sys/fs/cgroup/user.slice",
                    "/sys/fs/cgroup",
                ],
            ),
            (
                "8:pids:/x\n4:cpu,cpuacct:/jobs\n0::/\n",
                first,
                true,
                &["/sys/fs/cgroup/cpu,cpuacct/jobs", "/sys/fs/cgroup/cpu,cpuacct"],
            ),
            ("4:cpu,cpuacct:/box/a\n", contained, true, &["/sys/fs/cgroup/cpu"]),
            (
                "4:cpu,cpuacct:/box/a/b\n",
                contained,
                true,
                &["/sys/fs/cgroup/cpu/b", "/sys/fs/cgroup/cpu"],
            ),
            ("4:cpu,cpuacct:/other\n", contained, true, &["/sys/fs/cgroup/cpu"]),
            ("0::/../..\n", second, false, &["/sys/fs/cgroup"]),
        ];
        for (cgroup, mounts, first_version, directories) in table {
            let directories = directories.iter().map(PathBuf::from).collect();
            let expected = Groups { first_version, directories };
            assert_eq!(Groups::find(cgroup, mounts), Some(expected), "{cgroup}");
        }
        assert_eq!(Groups::find("0::/\n", ""), None);
        assert_eq!(Groups::find("", second), None);
    }

    proptest! {
        /// Any text parses to numbers or to none.
        #[test]
        fn no_text_breaks_a_parser(text in "([a-z0-9 :,/()=._-]|\n){0,200}", other in ".{0,80}") {
            stat(&text, |_| true);
            process_ticks(&text);
            allowed_cpus(&format!("Cpus_allowed_list:{text}"));
            runnable(&text);
            waited_ns(&format!("version 15\n{text}"), |_| true);
            pressure_us(&format!("some {text}"));
            throttled(&text);
            Quota::from_max(&text);
            Groups::find(&text, &other);
        }
    }
}
