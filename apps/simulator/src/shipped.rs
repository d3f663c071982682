//! The scenario and workload files that are part of the program.

/// A file that is part of the program.
#[derive(Clone, Copy, Debug)]
pub struct BuiltinFile {
    /// The name by which users ask for the file.
    pub name: &'static str,
    /// The text of the file.
    pub text: &'static str,
}

macro_rules! shipped {
    ($folder:literal: $($name:literal)*) => {
        &[$(BuiltinFile {
            name: $name,
            text: include_str!(concat!("../scenarios/", $folder, "/", $name, ".toml")),
        }),*]
    };
}

/// The scenarios of *Self-adaptive applications on the grid*, section 5, at the paper's scale.
pub const PAPER: &[BuiltinFile] = shipped!("paper": "0" "1a" "1b" "1c" "2" "3" "4" "5");

/// Scenarios that the paper does not have.
pub const MORE: &[BuiltinFile] = shipped!("more":
    "recovering-link" "faster-nodes" "changing-parallelism" "flapping-load"
    "too-large" "claim" "slow-sub-coordinator" "lost-coordinator" "hundred-clusters"
    "unequal-hosts" "unequal-growth");

/// The workloads of *Scheduling malleable applications in multicluster systems*, section 6.
pub const WORKLOADS: &[BuiltinFile] = &[
    BuiltinFile { name: "wm", text: include_str!("../workloads/wm.toml") },
    BuiltinFile { name: "wmr", text: include_str!("../workloads/wmr.toml") },
    BuiltinFile { name: "wm-dense", text: include_str!("../workloads/wm-dense.toml") },
    BuiltinFile { name: "wmr-dense", text: include_str!("../workloads/wmr-dense.toml") },
    BuiltinFile { name: "wm-five", text: include_str!("../workloads/wm-five.toml") },
    BuiltinFile { name: "wmr-five", text: include_str!("../workloads/wmr-five.toml") },
];

/// Finds a workload by its name.
pub fn workload(name: &str) -> Option<&'static BuiltinFile> {
    WORKLOADS.iter().find(|shipped| shipped.name == name)
}

/// All scenarios: the paper's, then the others.
pub fn all() -> impl Iterator<Item = &'static BuiltinFile> {
    PAPER.iter().chain(MORE)
}

/// Finds a scenario by its name.
pub fn find(name: &str) -> Option<&'static BuiltinFile> {
    all().find(|shipped| shipped.name == name)
}
