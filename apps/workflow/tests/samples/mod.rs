//! One small workflow in every format and version, for the tests.

use springtide_workflow::Format;

/// The name, the format and the text of each sample.
#[allow(dead_code, reason = "not all tests compare formats")]
pub const SAMPLES: [(&str, Format, &str); 7] = [
    ("diamond-1.3.json", Format::WfFormat, include_str!("../data/diamond-1.3.json")),
    ("diamond-1.4.json", Format::WfFormat, include_str!("../data/diamond-1.4.json")),
    ("diamond-1.6.json", Format::WfFormat, include_str!("../data/diamond-1.6.json")),
    ("diamond-3.6.dax", Format::Dax, include_str!("../data/diamond-3.6.dax")),
    ("diamond-pegasus.yml", Format::Pegasus, include_str!("../data/diamond-pegasus.yml")),
    ("diamond.dot", Format::Dot, include_str!("../data/diamond.dot")),
    ("diamond.toml", Format::Own, include_str!("../data/diamond.toml")),
];

/// Workflows with resources, streams, catalogs and the graphs of other programs, for tests of
/// damage.
#[allow(dead_code, reason = "not all tests damage documents")]
pub const RICH: [(&str, Format, &str); 5] = [
    ("profiles.dax", Format::Dax, include_str!("../data/profiles.dax")),
    ("catalog.yml", Format::Pegasus, include_str!("../data/catalog.yml")),
    ("resources.toml", Format::Own, include_str!("../data/resources.toml")),
    ("nextflow.dot", Format::Dot, include_str!("../data/nextflow.dot")),
    ("snakemake.dot", Format::Dot, include_str!("../data/snakemake.dot")),
];
