//! The scenario and workload files that are part of the program.

/// A file that is part of the program.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// The name by which users ask for the file.
    pub name: &'static str,
    /// The text of the file.
    pub text: &'static str,
}

macro_rules! shipped {
    ($folder:literal: $($name:literal)*) => {
        &[$(Shipped {
            name: $name,
            text: include_str!(concat!("../scenarios/", $folder, "/", $name, ".toml")),
        }),*]
    };
}

/// The scenarios of *Self-adaptive applications on the grid*, section 5, at the paper's scale.
pub const PAPER: &[Shipped] = shipped!("paper": "0" "1a" "1b" "1c" "2" "3" "4" "5");

/// Scenarios that the paper does not have.
pub const MORE: &[Shipped] = shipped!("more":
    "recovering-link" "faster-nodes" "changing-parallelism" "flapping-load"
    "too-large" "claim" "slow-sub-coordinator" "lost-coordinator" "hundred-clusters");

/// The workloads of *Scheduling malleable applications in multicluster systems*, section 6.
pub const WORKLOADS: &[Shipped] = &[
    Shipped { name: "wm", text: include_str!("../workloads/wm.toml") },
    Shipped { name: "wmr", text: include_str!("../workloads/wmr.toml") },
    Shipped { name: "wm-dense", text: include_str!("../workloads/wm-dense.toml") },
    Shipped { name: "wmr-dense", text: include_str!("../workloads/wmr-dense.toml") },
];

/// Finds a workload by its name.
pub fn workload(name: &str) -> Option<&'static Shipped> {
    WORKLOADS.iter().find(|shipped| shipped.name == name)
}

/// All scenarios: the paper's, then the others.
pub fn all() -> impl Iterator<Item = &'static Shipped> {
    PAPER.iter().chain(MORE)
}

/// Finds a scenario by its name.
pub fn find(name: &str) -> Option<&'static Shipped> {
    all().find(|shipped| shipped.name == name)
}
