//! A machine's hardware, as far as it affects the speed of nodes.
//!
//! It ranks nodes without measurements, and identifies nodes of one kind. It is never used as a
//! speed. This module does not know the programs that run on it.

use serde::{Deserialize, Serialize};
use springtide_base::checksum::checksum;

/// A machine's processors. Unreadable values are empty or 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Hardware {
    /// Name of the processor model.
    pub model: String,
    /// Number of logical processors.
    pub threads: u32,
    /// Clock of the fastest processor in MHz. It may vary with the load.
    pub mhz: u32,
    /// Processors that the node's process may use.
    #[serde(skip_serializing_if = "UsableProcessors::is_unknown")]
    pub usable: UsableProcessors,
}

/// Processors that a process may use. Processes with the same `key` share the same processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct UsableProcessors {
    /// Name of the host.
    pub host: String,
    /// Identifies the host and, where a process is confined to a part of it, that part; 0: unknown.
    pub key: u64,
    /// Number of the processors.
    pub processors: u32,
}

impl UsableProcessors {
    /// Whether they are unknown.
    pub fn is_unknown(&self) -> bool {
        self.key == 0
    }

    /// Processors of this process; those of its host where the system does not report confinements.
    fn of_this_process() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let host: String = read(HOST_NAME).trim().chars().take(NAME_MAX).collect();
        let status = read("/proc/self/status");
        let allowed = status.lines().find(|line| line.starts_with("Cpus_allowed_list"));
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let parts = [
            read("/proc/sys/kernel/random/boot_id"),
            space.display().to_string(),
            read("/proc/self/cgroup"),
            allowed.unwrap_or_default().to_owned(),
        ];
        let processors = std::thread::available_parallelism().map_or(0, |count| count.get());
        let is_known = processors > 0 && !parts[0].is_empty();
        let key = if is_known { checksum(parts.join("\0").bytes()).max(1) } else { 0 };
        Self { host, key, processors: u32::try_from(processors).unwrap_or(u32::MAX) }
    }
}

impl Hardware {
    /// This machine's hardware; on systems without `/proc/cpuinfo`, only the standard library's
    /// data.
    pub fn of_this_machine() -> Self {
        // A machine without data ranks last, which is not an error.
        let mut hardware = Self::parse(&std::fs::read_to_string(CPUINFO).unwrap_or_default());
        if hardware.threads == 0 {
            let count = std::thread::available_parallelism().map_or(0, |count| count.get());
            hardware.threads = u32::try_from(count).unwrap_or(u32::MAX);
        }
        hardware.usable = UsableProcessors::of_this_process();
        hardware
    }

    /// Parses Linux's `/proc/cpuinfo`. Unknown lines are ignored; x86, ARM, POWER and RISC-V use
    /// different names.
    pub fn parse(cpuinfo: &str) -> Self {
        let mut hardware = Self::default();
        let mut parts = [""; 3];
        for line in cpuinfo.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let (key, value) = (key.trim(), value.trim());
            match key {
                // Other systems have a line `Processor` with the model's name.
                "processor" if value.parse::<u32>().is_ok() => hardware.threads += 1,
                "model name" | "cpu" | "uarch" if hardware.model.is_empty() => {
                    hardware.model = value.chars().take(NAME_MAX).collect();
                }
                "cpu MHz" | "clock" => {
                    let mhz = value.trim_end_matches("MHz").parse().unwrap_or(0.0);
                    hardware.mhz = hardware.mhz.max(whole(mhz));
                }
                "CPU implementer" => parts[0] = value,
                "CPU part" => parts[1] = value,
                "CPU variant" => parts[2] = value,
                _ => {}
            }
        }
        if hardware.model.is_empty() && !parts[0].is_empty() {
            let [implementer, part, variant] = parts;
            hardware.model = format!("ARM {implementer} {part} {variant}")
                .trim_end()
                .chars()
                .take(NAME_MAX)
                .collect();
        }
        hardware
    }
}

/// Paths of Linux's files.
const CPUINFO: &str = "/proc/cpuinfo";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// Maximum length of names: they are part of each registration.
const NAME_MAX: usize = 128;

/// Rounds to a whole number; NaN and negative values become 0.
fn whole(mhz: f64) -> u32 {
    // A float cast saturates, and NaN becomes 0.
    mhz.round() as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn processors_are_read_as_each_architecture_names_them() {
        let of = |model: &str, threads, mhz| Hardware {
            model: model.into(),
            threads,
            mhz,
            ..Hardware::default()
        };
        let x86 = "processor\t: 0\nmodel\t\t: 207\nmodel name\t: Intel(R) Xeon(R) Processor\n\
            cpu MHz\t\t: 2299.998\n\n\
            processor\t: 1\nmodel name\t: Intel(R) Xeon(R) Processor\ncpu MHz\t\t: 2600.5\n";
        let arm = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n\
            CPU variant\t: 0x3\nCPU part\t: 0xd0c\n";
        let power =
            "processor\t: 0\ncpu\t\t: POWER9, altivec supported\nclock\t\t: 2900.000000MHz\n";
        let cases = [
            (x86, of("Intel(R) Xeon(R) Processor", 2, 2601)),
            (arm, of("ARM 0x41 0xd0c 0x3", 1, 0)),
            (power, of("POWER9, altivec supported", 1, 2900)),
            ("", Hardware::default()),
            ("processor : 0\ncpu MHz : -3\ncpu MHz : NaN\nmodel name :", of("", 1, 0)),
            ("cpu MHz : inf", of("", 0, u32::MAX)),
        ];
        for (text, expected) in cases {
            assert_eq!(Hardware::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn this_machine_has_a_processor() {
        let hardware = Hardware::of_this_machine();
        assert!(hardware.threads > 0);
        assert_eq!(hardware.usable, Hardware::of_this_machine().usable);
        assert!(hardware.usable.is_unknown() || hardware.usable.processors > 0);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(
            text in "(processor|model name|cpu MHz|CPU part|x)?[ \t]*:?[ -~é]*\n{0,8}",
        ) {
            let hardware = Hardware::parse(&text);
            prop_assert!(hardware.model.chars().count() <= NAME_MAX);
        }
    }
}
