//! Small programs for tests; their files are in `tests/data`.

use std::path::Path;

use crate::model::TwoStage;
use crate::smps;

fn read(name: &str) -> TwoStage {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let files = smps::Files::find(&directory).unwrap_or_else(|error| panic!("{error}"));
    smps::read(&files).unwrap_or_else(|error| panic!("{error}")).0
}

/// 2 x 3 and 6 x 9, three random right-hand sides, 27 scenarios: capacities for demands.
pub fn plants() -> TwoStage {
    read("plants")
}

/// 1 x 3 and 3 x 6, two blocks, one of them in the technology matrix, 6 scenarios: land for crops.
pub fn farm() -> TwoStage {
    read("farm")
}

/// 1 x 2 and 3 x 3, right-hand sides and technology together, 4 scenarios: water for today and
/// tomorrow.
pub fn reservoir() -> TwoStage {
    read("reservoir")
}
