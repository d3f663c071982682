//! Loads from samples and from captured files, and significant changes.

use std::path::Path;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A sample of two processors at 100 ticks per second, after these ticks of own, foreign and stolen
/// time.
fn sample(start: Instant, seconds: u64, own: u64, others: u64, stolen: u64) -> LoadSample {
    let at = start + seconds as u32 * SECOND;
    let idle = (200 * seconds).saturating_sub(own + others + stolen);
    let ticks = CpuTicks { busy: 1000 + own + others, idle: 5000 + idle, steal: 7 + stolen };
    LoadSample { cpus: Some((2, ticks)), own_ticks: Some(300 + own), ..LoadSample::unknown(at) }
}

#[test]
fn shares_are_of_all_processors() {
    let start = Instant::now();
    // In ten seconds of two processors: 10 s own, 5 s of others, 2 s stolen.
    let load = Load::between(&sample(start, 0, 0, 0, 0), &sample(start, 10, 1000, 500, 200));
    assert_eq!(load.own_cpu_share, Some(0.5));
    assert_eq!(load.foreign_cpu_share, Some(0.25));
    assert_eq!(load.steal_share, Some(0.1));
    assert_eq!((load.pressure, load.throttled_share, load.runnable_per_cpu), (None, None, None));
    assert!(load.is_known());
}

#[test]
fn waiting_is_a_mean_where_the_kernel_adds_it_up_and_two_instants_elsewhere() {
    let start = Instant::now();
    let (mut a, mut b) = (sample(start, 0, 0, 0, 0), sample(start, 10, 2000, 0, 0));
    (a.runnable, b.runnable) = (Some(1), Some(4));
    assert_eq!(Load::between(&a, &b).runnable_per_cpu, Some(1.25));
    (a.waited_ns, b.waited_ns) = (Some(5), Some(5 + 10_000_000_000));
    // Two threads ran and one waited all the time.
    assert_eq!(Load::between(&a, &b).runnable_per_cpu, Some(1.5));
    (a.pressure_us, b.pressure_us) = (Some(50), Some(50 + 2_500_000));
    assert_eq!(Load::between(&a, &b).pressure, Some(0.25));
}

#[test]
fn throttling_is_the_part_denied_of_what_was_wanted() {
    let start = Instant::now();
    let (mut a, mut b) = (sample(start, 0, 0, 0, 0), sample(start, 10, 500, 0, 0));
    let throttled = |microseconds| Some(Throttled { periods: 9, exhausted: 9, microseconds });
    (a.throttled, b.throttled) = (throttled(1_000_000), throttled(16_000_000));
    b.quota = Some(Quota { time: 50 * SECOND / 1000, period: SECOND / 10 });
    let load = Load::between(&a, &b);
    // 5 s used, 15 s denied.
    assert_eq!(load.throttled_share, Some(0.75));
    assert_eq!(load.quota_cpus, Some(0.5));
    b.own_ticks = a.own_ticks;
    b.throttled = a.throttled;
    assert_eq!(Load::between(&a, &b).throttled_share, Some(0.0));
}

#[test]
fn counters_that_run_back_and_changed_processors_do_no_harm() {
    let start = Instant::now();
    let (early, late) = (sample(start, 0, 0, 0, 0), sample(start, 10, 1000, 500, 200));
    let back =
        Load::between(&LoadSample { at: start, ..late }, &LoadSample { at: late.at, ..early });
    for value in [back.foreign_cpu_share, back.own_cpu_share, back.steal_share] {
        assert!(value.is_none_or(|value| (0.0..=1.0).contains(&value)), "{back:?}");
    }
    assert_eq!(Load::between(&late, &early), Load::default());
    // A processor was switched off: only the own share is known.
    let fewer = LoadSample { cpus: late.cpus.map(|(_, ticks)| (1, ticks)), ..late };
    let load = Load::between(&early, &fewer);
    assert_eq!((load.foreign_cpu_share, load.own_cpu_share), (None, Some(1.0)));
    let unknown = Load::between(&LoadSample::unknown(start), &LoadSample::unknown(start + SECOND));
    assert_eq!(unknown, Load::default());
    assert!(!unknown.is_known());
}

#[test]
fn a_change_is_told_with_its_reason() {
    let quiet = Load {
        foreign_cpu_share: Some(0.02),
        own_cpu_share: Some(0.9),
        steal_share: Some(0.0),
        throttled_share: Some(0.0),
        quota_cpus: Some(2.0),
        runnable_per_cpu: Some(1.0),
        pressure: Some(0.05),
    };
    let t = LoadThresholds::default();
    let table: [(Load, Option<&str>); 12] = [
        (quiet, None),
        (Load { foreign_cpu_share: Some(0.11), ..quiet }, None),
        (
            Load { foreign_cpu_share: Some(0.5), own_cpu_share: Some(0.5), ..quiet },
            Some("the share of processor time that others use went from 2 % to 50 %"),
        ),
        (
            Load { steal_share: Some(0.3), ..quiet },
            Some("the share of processor time stolen by the hypervisor went from 0 % to 30 %"),
        ),
        (
            Load { throttled_share: Some(0.5), ..quiet },
            Some("the share of processor time denied by the quota went from 0 % to 50 %"),
        ),
        (Load { quota_cpus: Some(1.9), ..quiet }, None),
        (
            Load { quota_cpus: Some(0.5), ..quiet },
            Some("the quota in processors went from 2.00 to 0.50"),
        ),
        (
            Load { pressure: Some(0.6), ..quiet },
            Some("the share of time with a thread waiting went from 5 % to 60 %"),
        ),
        // The process works less itself, so the changed pressure shows nothing.
        (Load { pressure: Some(0.6), own_cpu_share: Some(0.3), ..quiet }, None),
        (Load { runnable_per_cpu: Some(3.0), ..quiet }, None),
        (
            Load { runnable_per_cpu: Some(3.0), pressure: None, ..quiet },
            Some("the number of threads a processor went from 1.00 to 3.00"),
        ),
        (Load::default(), None),
    ];
    for (load, expected) in table {
        let change = load.changed_from(&quiet, &t).map(|change| change.to_string());
        assert_eq!(change.as_deref(), expected, "{load:?}");
    }
}

fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}

/// Files of a machine with control groups of version 2. The process may use two of four processors,
/// and its grandparent group has half a processor.
const MACHINE: &[(&str, &str)] = &[
    (
        "/proc/stat",
        "cpu  900 0 90 4000 10 0 0 40 0 0\ncpu0 100 0 10 1000 1 0 0 10 0 0\n\
         cpu1 200 0 20 1000 2 0 0 10 0 0\ncpu2 300 0 30 1000 3 0 0 10 0 0\n\
         cpu3 300 0 30 1000 4 0 0 10 0 0\nctxt 1\n",
    ),
    ("/proc/self/stat", "7 (a node) S 1 7 7 0 -1 4194304 1 0 0 0 50 25 0 0 20 0 9 0 3 4 5\n"),
    ("/proc/self/status", "Name:\ta node\nCpus_allowed_list:\t1-2\n"),
    ("/proc/self/cgroup", "0::/site/jobs/node\n"),
    ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
    ("/proc/loadavg", "3.00 2.89 2.25 3/109 709\n"),
    ("/proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n"),
    ("/sys/fs/cgroup/site/jobs/node/cpu.max", "max 100000\n"),
    ("/sys/fs/cgroup/site/jobs/node/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n"),
    ("/sys/fs/cgroup/site/jobs/cpu.max", "150000 100000\n"),
    ("/sys/fs/cgroup/site/cpu.max", "20000 40000\n"),
    ("/sys/fs/cgroup/site/cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_usec 3000\n"),
    ("/sys/fs/cgroup/cpu.stat", "usage_usec 5\n"),
];

#[test]
fn a_probe_reads_a_machine() {
    let root = machine(MACHINE);
    let probe = LoadReader::at(root.path(), 250);
    let now = Instant::now();
    let expected = LoadSample {
        cpus: Some((2, CpuTicks { busy: 550, idle: 2005, steal: 20 })),
        own_ticks: Some(75),
        ticks_per_second: 250,
        waited_ns: None,
        runnable: Some(3),
        pressure_us: Some(1000),
        throttled: Some(Throttled { periods: 9, exhausted: 4, microseconds: 3000 }),
        quota: Some(Quota { time: SECOND / 50, period: SECOND / 25 }),
        ..LoadSample::unknown(now)
    };
    assert_eq!(probe.sample(now), expected);
}

#[test]
fn whatever_files_are_missing_the_rest_is_read() {
    let now = Instant::now();
    let whole = LoadReader::at(machine(MACHINE).path(), 100);
    assert_eq!(whole.sample(now).cpus, None, "its files are gone");
    for missing in 0..MACHINE.len() {
        let mut files = MACHINE.to_vec();
        let (name, _) = files.remove(missing);
        let root = machine(&files);
        let sample = LoadReader::at(root.path(), 100).sample(now);
        assert_eq!(sample.cpus.is_none(), name == "/proc/stat", "without {name}");
        assert_eq!(sample.own_ticks.is_none(), name == "/proc/self/stat", "without {name}");
        assert_eq!(sample.runnable.is_none(), name == "/proc/loadavg", "without {name}");
    }
    let nothing = LoadReader::at(Path::new("/nowhere/at/all"), 100);
    assert_eq!(nothing.sample(now), LoadSample::unknown(now));
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_tells_something() {
    let probe = LoadReader::new();
    let sample = probe.sample(Instant::now());
    let (cpus, ticks) = sample.cpus.unwrap();
    assert!(cpus > 0 && ticks.busy > 0, "{sample:?}");
    assert!(sample.own_ticks.is_some() && sample.ticks_per_second > 0, "{sample:?}");
}

proptest! {
    /// Any two samples give shares, and loads from the network become shares.
    #[test]
    fn shares_are_shares(
        a in any::<[u64; 7]>(), b in any::<[u64; 7]>(), cpus in 0u32..9, millis in 0u64..100_000,
        wire in any::<[f64; 7]>(),
    ) {
        let start = Instant::now();
        let sample = |n: [u64; 7], at| LoadSample {
            at,
            cpus: Some((cpus, CpuTicks { busy: n[0], idle: n[1], steal: n[2] })),
            own_ticks: Some(n[3]),
            ticks_per_second: 100,
            waited_ns: Some(n[4]),
            runnable: Some(n[5] as u32),
            pressure_us: Some(n[5]),
            throttled: Some(Throttled { periods: 0, exhausted: 0, microseconds: n[6] }),
            quota: None,
        };
        let end = start + Duration::from_millis(millis);
        let load = Load::between(&sample(a, start), &sample(b, end));
        let [foreign, own, steal, throttled, quota, runnable, pressure] = wire.map(Some);
        let wire = Load {
            foreign_cpu_share: foreign, own_cpu_share: own, steal_share: steal,
            throttled_share: throttled, quota_cpus: quota, runnable_per_cpu: runnable, pressure,
        };
        for load in [load, wire.checked()] {
            let shares = [load.foreign_cpu_share, load.own_cpu_share, load.steal_share,
                load.throttled_share, load.pressure];
            for share in shares.into_iter().flatten() {
                prop_assert!((0.0..=1.0).contains(&share), "{load:?}");
            }
            for value in [load.runnable_per_cpu, load.quota_cpus].into_iter().flatten() {
                prop_assert!(value.is_finite() && value >= 0.0, "{load:?}");
            }
            prop_assert_eq!(load.changed_from(&load, &LoadThresholds::default()), None);
            let bytes = rmp_serde::to_vec_named(&load).unwrap();
            prop_assert_eq!(rmp_serde::from_slice::<Load>(&bytes).unwrap(), load);
        }
    }
}
