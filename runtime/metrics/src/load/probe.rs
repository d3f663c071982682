//! The probe: the only code that reads the kernel's files.

use std::path::{Path, PathBuf};

use tokio::time::Instant;

use super::LoadSample;
use super::kernel::{self, Groups, Quota, Throttled};

/// Reads samples. It finds its control groups and allowed processors once, at creation.
#[derive(Clone, Debug)]
pub struct LoadReader {
    root: PathBuf,
    ticks_per_second: u64,
    groups: Option<Groups>,
    /// Inclusive ranges of allowed processors; none: all.
    allowed: Option<Vec<(u32, u32)>>,
}

impl LoadReader {
    /// A probe of this machine and this process.
    pub fn new() -> Self {
        Self::at(Path::new("/"), ticks_per_second())
    }

    /// A probe that reads `proc` and the control groups' mount points below `root`; for tests.
    pub fn at(root: &Path, ticks_per_second: u64) -> Self {
        let mut probe =
            Self { root: root.to_owned(), ticks_per_second, groups: None, allowed: None };
        let groups = (probe.read("/proc/self/cgroup"), probe.read("/proc/self/mountinfo"));
        if let (Some(cgroup), Some(mountinfo)) = groups {
            probe.groups = Groups::find(&cgroup, &mountinfo);
        }
        probe.allowed =
            probe.read("/proc/self/status").and_then(|text| kernel::allowed_cpus(&text));
        probe
    }

    /// Takes a sample. It blocks for some tens of microseconds, for it reads a few small files.
    pub fn sample(&self, now: Instant) -> LoadSample {
        let counts = |cpu: u32| match &self.allowed {
            Some(ranges) => ranges.iter().any(|(first, last)| (*first..=*last).contains(&cpu)),
            None => true,
        };
        let text = |path: &str| self.read(path);
        let (throttled, quota) = self.quota();
        LoadSample {
            at: now,
            cpus: text("/proc/stat").and_then(|text| kernel::stat(&text, counts)),
            own_ticks: text("/proc/self/stat").and_then(|text| kernel::process_ticks(&text)),
            ticks_per_second: self.ticks_per_second,
            waited_ns: text("/proc/schedstat").and_then(|text| kernel::waited_ns(&text, counts)),
            runnable: text("/proc/loadavg").and_then(|text| kernel::runnable(&text)),
            pressure_us: text("/proc/pressure/cpu").and_then(|text| kernel::pressure_us(&text)),
            throttled,
            quota,
        }
    }

    /// The throttling summed over the groups, and the tightest quota. A stopped group is not
    /// stopped again by its parent, so the sum counts no time twice.
    fn quota(&self) -> (Option<Throttled>, Option<Quota>) {
        let Some(groups) = &self.groups else { return (None, None) };
        let (mut sum, mut tightest) = (None::<Throttled>, None::<Quota>);
        for directory in &groups.directories {
            let text = |name: &str| self.read_path(&directory.join(name));
            if let Some(one) = text("cpu.stat").and_then(|text| kernel::throttled(&text)) {
                let sum = sum.get_or_insert_default();
                sum.periods = sum.periods.saturating_add(one.periods);
                sum.exhausted = sum.exhausted.saturating_add(one.exhausted);
                sum.microseconds = sum.microseconds.saturating_add(one.microseconds);
            }
            let quota = if groups.first_version {
                let files = (text("cpu.cfs_quota_us"), text("cpu.cfs_period_us"));
                files.0.zip(files.1).and_then(|(quota, period)| Quota::from_cfs(&quota, &period))
            } else {
                text("cpu.max").and_then(|text| Quota::from_max(&text))
            };
            if let Some(quota) = quota
                && tightest.is_none_or(|tightest| quota.cpus() < tightest.cpus())
            {
                tightest = Some(quota);
            }
        }
        (sum, tightest)
    }

    fn read(&self, path: &str) -> Option<String> {
        self.read_path(Path::new(path))
    }

    /// A file of the machine, below the root.
    fn read_path(&self, path: &Path) -> Option<String> {
        let below = path.strip_prefix("/").unwrap_or(path);
        std::fs::read_to_string(self.root.join(below)).ok()
    }
}

impl Default for LoadReader {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn ticks_per_second() -> u64 {
    // SAFETY: sysconf takes an integer, keeps no reference, and returns -1 if the value is unknown.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|&ticks| ticks > 0).unwrap_or(100)
}

#[cfg(not(target_os = "linux"))]
fn ticks_per_second() -> u64 {
    100
}
