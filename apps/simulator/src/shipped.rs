//! The scenarios that come with the program.

/// A scenario's file.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// Its name, by which it is asked for.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! shipped {
    ($folder:literal: $($name:literal)*) => {
        &[$(Shipped { name: $name, text: include_str!(concat!("../scenarios/", $folder, "/", $name, ".toml")) }),*]
    };
}

/// Those of *Self-adaptive applications on the grid*, section 5, at the paper's scale.
pub const PAPER: &[Shipped] = shipped!("paper": "0" "1a" "1b" "1c" "2" "3" "4" "5");

/// What the paper has none of.
pub const MORE: &[Shipped] = shipped!("more": "recovering-link" "faster-nodes" "changing-parallelism" "flapping-load"
    "too-large" "claim" "slow-sub-coordinator" "lost-coordinator" "hundred-clusters");

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Shipped> {
    PAPER.iter().chain(MORE)
}

/// One by its name.
pub fn find(name: &str) -> Option<&'static Shipped> {
    all().find(|shipped| shipped.name == name)
}
