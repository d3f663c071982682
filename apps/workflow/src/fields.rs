//! The fields of each format, and what the readers do with them.
//!
//! Readers report the fields that they meet. A field that is in no table gives a warning.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::format::Format;

/// A field of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatField {
    /// The format that has the field.
    pub format: Format,
    /// The place of the field, such as `job`; empty for the outermost level. Elements of XML are
    /// in places that end with `/`, and attributes are in the others.
    pub place: &'static str,
    /// The name of the field. `*` stands for all names that have no entry of their own.
    pub name: &'static str,
    /// What the readers do with it.
    pub usage: FieldUsage,
    /// Its meaning, its unit, or the remedy if it has no effect.
    pub meaning: &'static str,
}

impl FormatField {
    /// The place and the name in one text, such as `job/uses`.
    pub fn path(&self) -> String {
        path(self.place, self.name)
    }
}

pub(crate) fn path(place: &str, name: &str) -> String {
    let slash = if place.is_empty() || place.ends_with('/') { "" } else { "/" };
    format!("{place}{slash}{name}")
}

/// What the readers do with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldUsage {
    /// The field defines the workflow.
    Used,
    /// The field describes the workflow or an earlier run. It does not change a run.
    Descriptive,
    /// The field has no effect, although it would change a run elsewhere. It gives a warning.
    Noted,
    /// A file with this field is refused.
    Refused,
}

impl FieldUsage {
    /// The word for it in tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Descriptive => "descriptive",
            Self::Noted => "noted",
            Self::Refused => "refused",
        }
    }
}

/// The fields of all formats, in the order of [`Format::ALL`].
pub fn fields() -> impl Iterator<Item = FormatField> {
    Format::ALL.into_iter().flat_map(|format| {
        entries(format).iter().flat_map(move |(place, usage, meaning, names)| {
            names.iter().map(move |name| FormatField {
                format,
                place,
                name,
                usage: *usage,
                meaning,
            })
        })
    })
}

/// The entry of a field: by its own name, or that of its namespace, of extensions or of all names.
pub(crate) fn find(format: Format, place: &'static str, name: &str) -> Option<FormatField> {
    type Key = (Format, &'static str);
    static TABLE: OnceLock<BTreeMap<Key, BTreeMap<&'static str, FormatField>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table = BTreeMap::<Key, BTreeMap<&'static str, FormatField>>::new();
        for field in fields() {
            table.entry((field.format, field.place)).or_default().insert(field.name, field);
        }
        table
    });
    let names = table.get(&(format, place))?;
    let namespace = || names.get(format!("{}.*", name.split_once('.')?.0).as_str());
    let extension = || name.starts_with("x-").then(|| names.get("x-*")).flatten();
    let others = || namespace().or_else(extension).or_else(|| names.get("*"));
    names.get(name).or_else(others).copied()
}

/// The place, the use, the meaning and the names of fields.
type Entry = (&'static str, FieldUsage, &'static str, &'static [&'static str]);

use FieldUsage::{Descriptive, Noted, Refused, Used};

fn entries(format: Format) -> &'static [Entry] {
    match format {
        Format::WfFormat => WFFORMAT,
        Format::Dax => DAX,
        Format::Pegasus => PEGASUS,
        Format::Dot => DOT,
        Format::Own => OWN,
    }
}

const WFFORMAT: &[Entry] = &[
    ("", Used, "the workflow's name", &["name"]),
    ("", Used, "the tasks and files", &["workflow"]),
    (
        "",
        Descriptive,
        "who wrote or ran it",
        &["description", "createdAt", "schemaVersion", "author", "wms", "runtimeSystem"],
    ),
    ("workflow", Used, "since 1.5", &["specification", "execution"]),
    ("workflow", Used, "up to 1.4", &["tasks", "jobs"]),
    (
        "workflow",
        Descriptive,
        "of an earlier run",
        &["makespan", "makespanInSeconds", "executedAt", "machines"],
    ),
    ("specification", Used, "since 1.5", &["tasks", "files"]),
    ("specification", Descriptive, "counts of tasks and files", &["metrics"]),
    ("execution", Used, "since 1.5", &["tasks"]),
    (
        "execution",
        Descriptive,
        "of an earlier run",
        &["makespanInSeconds", "executedAt", "machines", "metrics"],
    ),
    ("task", Used, "the id, and what edges refer to", &["id", "name"]),
    ("task", Used, "the name of its program or kind", &["category"]),
    ("task", Used, "a sub-workflow is refused", &["type"]),
    ("task", Used, "edges", &["parents", "children"]),
    ("task", Used, "files", &["inputFiles", "outputFiles", "files"]),
    ("task", Used, "the runtime in seconds", &["runtimeInSeconds", "runtime"]),
    ("task", Used, "processors", &["coreCount", "cores"]),
    ("task", Used, "memory in bytes", &["memoryInBytes"]),
    ("task", Used, "memory in units of 1,024 bytes, up to 1.3", &["memory"]),
    ("task", Used, "the program and its arguments, exactly as they are", &["command"]),
    (
        "task",
        Descriptive,
        "of an earlier run",
        &[
            "executedAt",
            "avgCPU",
            "readBytes",
            "bytesRead",
            "writtenBytes",
            "bytesWritten",
            "energy",
            "energyInKWh",
            "avgPower",
            "avgPowerInW",
            "machine",
            "machines",
            "metrics",
        ],
    ),
    ("task", Descriptive, "Springtide orders tasks by its own plan", &["priority"]),
    ("command", Used, "the path or name of the program", &["program"]),
    ("command", Used, "one argument each", &["arguments"]),
    ("file", Used, "the name", &["id", "name", "path"]),
    ("file", Used, "input or output", &["link"]),
    ("file", Used, "the size in bytes", &["sizeInBytes", "size"]),
];

/// The profiles of Pegasus, in DAX and in YAML.
macro_rules! with_profiles {
    ($($entry:expr,)*) => {
        &[
            $($entry,)*
            ("profile", Used, "the runtime in seconds", &["pegasus.runtime"]),
            (
                "profile",
                Used,
                "processors, the first of these that there is; ppn is a factor of nodes",
                &[
                    "pegasus.cores",
                    "pegasus.nodes",
                    "pegasus.ppn",
                    "condor.request_cpus",
                    "pegasus.pmc_request_cpus",
                    "globus.count",
                ],
            ),
            (
                "profile",
                Used,
                "memory in MiB, the first of these that there is",
                &[
                    "pegasus.memory",
                    "condor.request_memory",
                    "pegasus.pmc_request_memory",
                    "globus.maxmemory",
                ],
            ),
            (
                "profile",
                Used,
                "GPUs, the first of these that there is",
                &["pegasus.gpus", "condor.request_gpus"],
            ),
            (
                "profile",
                Used,
                "the walltime in minutes, the first of these that there is",
                &[
                    "pegasus.maxwalltime",
                    "pegasus.walltime",
                    "globus.maxwalltime",
                    "globus.maxtime",
                ],
            ),
            ("profile", Used, "the number of retries", &["dagman.retry"]),
            ("profile", Used, "a variable of the environment", &["env.*"]),
            (
                "profile",
                Descriptive,
                "how Pegasus groups jobs, moves files and chooses sites",
                &[
                    "pegasus.clusters.num",
                    "pegasus.clusters.size",
                    "pegasus.clusters.maxruntime",
                    "pegasus.label",
                    "pegasus.group",
                    "pegasus.job.aggregator",
                    "pegasus.style",
                    "pegasus.gridstart",
                    "pegasus.change.dir",
                    "pegasus.create.dir",
                    "hints.*",
                    "selector.*",
                    "stat.*",
                ],
            ),
            (
                "profile",
                Noted,
                "nothing here does what it asks of Pegasus, HTCondor or Globus",
                &["pegasus.*", "condor.*", "dagman.*", "globus.*", "*"],
            ),
        ]
    };
}

const DAX: &[Entry] = with_profiles![
    ("adag", Used, "the workflow's name", &["name"]),
    ("adag", Used, "since 3, a job without arguments runs its program", &["version"]),
    (
        "adag",
        Descriptive,
        "counts, and parts of a set",
        &["count", "index", "jobCount", "fileCount", "childCount"],
    ),
    ("adag/", Used, "tasks and edges", &["job", "child"]),
    ("adag/", Used, "the path of a program, and its profiles", &["executable"]),
    ("adag/", Refused, "a sub-workflow: put its tasks in its place", &["dag", "dax", "adag"]),
    ("adag/", Descriptive, "texts about the workflow", &["metadata"]),
    ("adag/", Descriptive, "files of jobs, up to 2.1", &["filename"]),
    ("adag/", Used, "the place of a file", &["file"]),
    ("file", Used, "the name", &["name"]),
    ("file/", Used, "a URL with file, http or https", &["pfn"]),
    ("file/", Descriptive, "texts about the file", &["metadata"]),
    ("file/", Noted, "it has no effect on a file", &["profile"]),
    ("adag/", Noted, "files that a program needs; list them as inputs", &["transformation"]),
    ("adag/", Noted, "notifications; nothing is called", &["invoke"]),
    ("job", Used, "the id", &["id"]),
    ("job", Used, "the program", &["name", "namespace", "version"]),
    ("job", Used, "the runtime in seconds, in galleries of workflows", &["runtime"]),
    (
        "job",
        Descriptive,
        "labels",
        &["node-label", "level", "compound", "dv-namespace", "dv-name", "dv-version"],
    ),
    ("job/", Used, "text, quotes and names of files", &["argument"]),
    ("job/", Used, "a file in the place of the stream", &["stdin", "stdout", "stderr"]),
    ("job/", Used, "a file that it reads or writes", &["uses"]),
    ("job/", Used, "a profile; see below", &["profile"]),
    ("job/", Used, "runtime: the runtime in seconds; others describe", &["metadata"]),
    ("job/", Noted, "notifications; nothing is called", &["invoke"]),
    ("uses", Used, "the file", &["name", "file"]),
    ("uses", Used, "input, output, inout; none and checkpoint are left out", &["link"]),
    ("uses", Used, "the size in bytes", &["size"]),
    (
        "uses",
        Descriptive,
        "results are the files that no task reads",
        &["register", "transfer", "dontRegister", "dontTransfer", "type", "temporaryHint"],
    ),
    ("uses", Descriptive, "of executables", &["namespace", "version", "executable"]),
    ("uses", Noted, "a task must write each of its outputs", &["optional"]),
    ("uses/", Used, "size: the size in bytes; others describe", &["metadata"]),
    ("uses/", Used, "a URL with file, http or https", &["pfn"]),
    ("uses/", Noted, "it has no effect on a file", &["profile"]),
    ("argument/", Used, "the name of a file", &["file", "filename"]),
    ("executable", Used, "the program that it describes", &["name", "namespace", "version"]),
    (
        "executable",
        Descriptive,
        "the system of a site",
        &["arch", "os", "osrelease", "osversion", "glibc", "installed"],
    ),
    ("executable/", Used, "the path, if it is a file: URL", &["pfn"]),
    ("executable/", Used, "a profile; see below", &["profile"]),
    ("executable/", Descriptive, "texts about the program", &["metadata"]),
    ("executable/", Noted, "notifications; nothing is called", &["invoke"]),
    ("child", Used, "an edge", &["ref"]),
    ("child/", Used, "an edge", &["parent"]),
    ("parent", Used, "an edge", &["ref"]),
    ("parent", Descriptive, "labels", &["edge-label"]),
];

const PEGASUS: &[Entry] = with_profiles![
    ("", Used, "the workflow's name", &["name"]),
    ("", Used, "tasks and edges", &["jobs", "jobDependencies"]),
    ("", Used, "programs and containers", &["transformationCatalog"]),
    ("", Used, "profiles of all jobs", &["profiles"]),
    ("", Descriptive, "versions and texts", &["pegasus", "x-*", "version", "metadata"]),
    ("", Used, "places of files", &["replicaCatalog"]),
    ("replicas", Used, "the places of a file", &["replicas"]),
    ("replicas", Descriptive, "versions", &["pegasus", "x-*"]),
    ("replica", Used, "the file, and its first place that can be read", &["lfn", "pfns"]),
    ("replica", Noted, "it names one file", &["regex"]),
    ("replica", Descriptive, "texts about the file", &["checksum", "metadata", "x-*"]),
    ("place", Used, "an absolute path, or a URL with file, http or https", &["pfn"]),
    ("place", Descriptive, "the site of the place", &["site", "x-*"]),
    ("", Noted, "sites of Pegasus; the grid's config has those of a run", &["siteCatalog"]),
    ("", Noted, "notifications; nothing is called", &["hooks"]),
    ("job", Used, "the id", &["id"]),
    ("job", Used, "job; a sub-workflow is refused", &["type"]),
    ("job", Used, "the program", &["name", "namespace", "version"]),
    ("job", Used, "joined by spaces, then split by spaces and quotes", &["arguments"]),
    ("job", Used, "a file in the place of the stream", &["stdin", "stdout", "stderr"]),
    ("job", Used, "files that it reads or writes", &["uses"]),
    ("job", Used, "see profile", &["profiles"]),
    ("job", Used, "runtime: the runtime in seconds; others describe", &["metadata"]),
    ("job", Used, "the file of a sub-workflow, which is refused", &["file"]),
    ("job", Descriptive, "labels", &["nodeLabel"]),
    ("job", Noted, "notifications; nothing is called", &["hooks"]),
    ("uses", Used, "the file", &["lfn"]),
    ("uses", Used, "input, output, inout; none and checkpoint are left out", &["type"]),
    ("uses", Used, "the size in bytes", &["size"]),
    ("uses", Used, "size: the size in bytes; others describe", &["metadata"]),
    (
        "uses",
        Descriptive,
        "results are the files that no task reads",
        &["stageOut", "registerReplica", "bypass", "namespace", "version", "executable"],
    ),
    ("uses", Noted, "a task must write each of its outputs", &["optional"]),
    ("dependency", Used, "edges", &["id", "children"]),
    ("catalog", Used, "programs and containers", &["transformations", "containers"]),
    ("catalog", Descriptive, "versions", &["pegasus", "x-*"]),
    ("transformation", Used, "the program", &["name", "namespace", "version"]),
    ("transformation", Used, "its first site, and profiles", &["sites", "profiles"]),
    ("transformation", Descriptive, "texts about it", &["metadata", "x-*"]),
    ("transformation", Noted, "files that it needs; list them as inputs", &["requires"]),
    ("transformation", Noted, "notifications; nothing is called", &["hooks"]),
    ("site", Used, "the path of the program, unless it is a remote URL", &["pfn"]),
    ("site", Used, "the name of a container", &["container"]),
    ("site", Used, "see profile", &["profiles"]),
    (
        "site",
        Descriptive,
        "the system of a site",
        &["name", "type", "arch", "os.type", "os.release", "os.version", "glibc", "bypass", "x-*"],
    ),
    ("container", Used, "the image", &["name", "image"]),
    ("container", Used, "docker, singularity or shifter", &["type"]),
    ("container", Used, "see profile", &["profiles"]),
    ("container", Descriptive, "how Pegasus moves it", &["image.site", "imageSite", "bypass"]),
    ("container", Descriptive, "texts about it", &["metadata", "checksum", "x-*"]),
    ("container", Noted, "a task sees its own directory", &["mounts", "mount"]),
];

const DOT: &[Entry] = &[
    ("node", Used, "the name: the first line, without markup", &["label"]),
    ("node", Used, "the runtime in seconds", &["runtime", "weight"]),
    ("node", Used, "processors", &["procs", "processors", "cores"]),
    ("node", Used, "memory in bytes or with a unit", &["memory"]),
    ("node", Used, "GPUs", &["gpus"]),
    ("node", Used, "the walltime in seconds", &["walltime"]),
    ("node", Used, "work in floating-point operations, as daggen has it", &["size"]),
    ("node", Used, "point and circle: an operator of Nextflow; record: fields", &["shape"]),
    ("node", Used, "the name of an operator of Nextflow", &["xlabel"]),
    ("node", Descriptive, "the parallel part of the work, of daggen", &["alpha"]),
    ("node", Descriptive, "drawing", NODE_DRAWING),
    ("edge", Used, "the name of the file", &["label"]),
    ("edge", Used, "bytes from one task to the other", &["size", "bytes", "weight"]),
    ("edge", Descriptive, "drawing", EDGE_DRAWING),
    ("graph", Descriptive, "drawing", &["*"]),
];

/// Attributes with which Graphviz draws nodes.
const NODE_DRAWING: &[&str] = &[
    "_background",
    "area",
    "class",
    "color",
    "colorscheme",
    "comment",
    "distortion",
    "fillcolor",
    "fixedsize",
    "fontcolor",
    "fontname",
    "fontsize",
    "gradientangle",
    "group",
    "height",
    "href",
    "id",
    "image",
    "imagepos",
    "imagescale",
    "labelloc",
    "layer",
    "margin",
    "nojustify",
    "ordering",
    "orientation",
    "penwidth",
    "peripheries",
    "pin",
    "pos",
    "rects",
    "regular",
    "root",
    "samplepoints",
    "shapefile",
    "showboxes",
    "sides",
    "skew",
    "sortv",
    "style",
    "target",
    "tooltip",
    "url",
    "vertices",
    "width",
    "xlp",
    "z",
];

/// Attributes with which Graphviz draws edges.
const EDGE_DRAWING: &[&str] = &[
    "arrowhead",
    "arrowsize",
    "arrowtail",
    "class",
    "color",
    "colorscheme",
    "comment",
    "constraint",
    "decorate",
    "dir",
    "edgehref",
    "edgetarget",
    "edgetooltip",
    "edgeurl",
    "fillcolor",
    "fontcolor",
    "fontname",
    "fontsize",
    "head_lp",
    "headclip",
    "headhref",
    "headlabel",
    "headport",
    "headtarget",
    "headtooltip",
    "headurl",
    "href",
    "id",
    "key",
    "labelangle",
    "labeldistance",
    "labelfloat",
    "labelfontcolor",
    "labelfontname",
    "labelfontsize",
    "labelhref",
    "labeltarget",
    "labeltooltip",
    "labelurl",
    "layer",
    "len",
    "lhead",
    "lp",
    "ltail",
    "minlen",
    "nojustify",
    "penwidth",
    "pos",
    "samehead",
    "sametail",
    "showboxes",
    "style",
    "tail_lp",
    "tailclip",
    "tailhref",
    "taillabel",
    "tailport",
    "tailtarget",
    "tailtooltip",
    "tailurl",
    "target",
    "tooltip",
    "url",
    "xlabel",
    "xlp",
];

const OWN: &[Entry] = &[
    ("", Used, "the workflow's name", &["name"]),
    ("", Used, "tasks and files", &["task", "file"]),
    ("task", Used, "the id", &["id"]),
    ("task", Used, "the name of its kind; by default that of its program", &["name"]),
    ("task", Used, "a program and its arguments", &["command"]),
    ("task", Used, "a job of Springtide and its options", &["job", "arguments"]),
    ("task", Used, "a number of seconds, or a text as \"30 s\"", &["runtime", "walltime"]),
    ("task", Used, "numbers of processors and GPUs", &["processors", "gpus"]),
    ("task", Used, "a number of bytes, or a text as \"2 GiB\"", &["memory"]),
    ("task", Used, "names of files", &["inputs", "outputs"]),
    ("task", Used, "a file in the place of the stream", &["stdin", "stdout", "stderr"]),
    ("task", Used, "an image, or a table with image and engine", &["container"]),
    ("task", Used, "a table of variables", &["environment"]),
    ("task", Used, "how often it runs again if it fails", &["retries"]),
    ("task", Used, "ids of tasks that it waits for", &["after"]),
    ("container", Used, "a path, a URL or a name in a registry", &["image"]),
    ("container", Used, "docker, singularity or shifter", &["engine"]),
    ("file", Used, "the name", &["name"]),
    ("file", Used, "a number of bytes, or a text as \"10 MB\"", &["size"]),
    ("file", Used, "an absolute path, or a URL with file, http or https", &["source"]),
    ("", Refused, "an unknown key", &["*"]),
    ("task", Refused, "an unknown key", &["*"]),
    ("container", Refused, "an unknown key", &["*"]),
    ("file", Refused, "an unknown key", &["*"]),
];

/// The names of the fields of a place that the readers use.
#[cfg(test)]
pub(crate) fn used(format: Format, place: &str) -> Vec<&'static str> {
    let used = |field: &FormatField| {
        field.format == format && field.place == place && field.usage == FieldUsage::Used
    };
    let mut names: Vec<_> = fields().filter(used).map(|field| field.name).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_one_entry() {
        let mut seen = std::collections::BTreeSet::new();
        for field in fields() {
            let FormatField { format, place, name, meaning, .. } = field;
            assert!(seen.insert((format, place, name)), "{field:?}");
            assert!(!meaning.is_empty() && !meaning.contains('|'), "{field:?}");
            assert_eq!(find(format, place, name), Some(field));
        }
    }

    #[test]
    fn readers_name_the_fields_that_are_used() {
        let dax = [include_str!("read/dax.rs"), include_str!("read/profiles.rs")].concat();
        let wfformat = include_str!("read/wfformat.rs");
        for field in fields().filter(|field| field.usage == Used) {
            let name = field.name;
            let is_named = match field.format {
                Format::Dax if name == "env.*" => dax.contains("\"env.\""),
                // All elements in an argument are names of files.
                Format::Dax if field.place == "argument/" => true,
                Format::Dax => dax.contains(&format!("\"{name}\"")),
                Format::WfFormat => {
                    let member = name.replace("InBytes", "_in_bytes");
                    let snake = |c: char| {
                        let lower = c.to_ascii_lowercase();
                        if c == lower { vec![c] } else { vec!['_', lower] }
                    };
                    let member: String = match member.as_str() {
                        "type" => "kind".to_owned(),
                        other => other.chars().flat_map(snake).collect(),
                    };
                    wfformat.contains(&format!("    {member}: "))
                }
                // Their own modules compare the names.
                Format::Pegasus | Format::Dot | Format::Own => true,
            };
            assert!(is_named, "{field:?}");
        }
    }

    #[test]
    fn namespaces_and_places_have_entries_for_all_names() {
        let usage = |name| find(Format::Dax, "profile", name).map(|field| field.usage);
        assert_eq!(usage("pegasus.cores"), Some(Used));
        assert_eq!(usage("env.PATH"), Some(Used));
        assert_eq!(usage("condor.+MaxIdle"), Some(Noted));
        assert_eq!(usage("selector.execution.site"), Some(Descriptive));
        let extension = find(Format::Pegasus, "site", "x-mine").map(|field| field.usage);
        assert_eq!(extension, Some(Descriptive));
        assert_eq!(find(Format::Dax, "job", "colour"), None);
        assert_eq!(find(Format::Dax, "nowhere", "id"), None);
    }
}
