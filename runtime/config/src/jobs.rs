//! A file of jobs to submit together.
//!
//! It defines the format. Programs read their own arguments.
// Doc lines of keys are also the template's comments, where `[scheduling]` is a section's name, no
// link.
#![allow(rustdoc::broken_intra_doc_links)]

use std::collections::BTreeMap;

use super::schema::{
    Fallback::{Absent, Elements, Examples, Is, Required},
    section,
};
use super::units::{ArgumentList, BoundedInt, Name, Size, Time};
use super::{CONFIG_VERSION, Checker, Config, JobKind, PlacementPolicy};
use crate::files::check_name;

section! {
    /// Jobs that are submitted together.
    JobsConfig {
        /// Version of the file format.
        config_version: BoundedInt<1, CONFIG_VERSION> = Is("1");
        /// A job, or several equal ones. One table each.
        job: Vec<JobSection> = Elements(&[
            &[("program", "\"queens\""), ("args", "[\"--size\", \
                \"14\"]"), ("min", "2"), ("max", "8")],
            &[("program", "\"fib\""), ("kind", "\"rigid\""), ("min", "2")],
        ]);
    }

    /// A job, or several equal ones.
    JobSection {
        /// Program: one of those that `run --help` lists.
        program: Name = Required("\"queens\"");
        /// Options of the program, as on the command line.
        args: ArgumentList = Is("[]");
        /// Number of such jobs.
        count: BoundedInt<1, 10_000> = Is("1");
        /// Name by which jobs further down in this file can wait for these.
        name: Option<Name> = Absent("\"prepare\"");
        /// Indices of a job array, one job each, as with `job submit --array`; default: no array.
        array: Option<String> = Absent("\"0-99%10\"");
        /// Jobs that must succeed before these start: names of this file, or numbers of jobs.
        after: ArgumentList = Is("[]");
        /// Jobs that must end before these start, whether or not they succeed.
        after_any: ArgumentList = Is("[]");
        /// Whether its number of processors can change: "rigid", "moldable" or "malleable".
        kind: JobKind = Is("\"malleable\"");
        /// Choice of clusters; default: that of [scheduling] of the grid.
        placement: Option<PlacementPolicy> = Absent("\"worst-fit\"");
        /// Number of equal components, which may be in different clusters. The numbers of
        /// processors are those of each component. Use [[job.component]] tables for different ones.
        components: BoundedInt<1, 10_000> = Is("1");
        /// Minimum number of processors, and the number of a rigid job.
        min: BoundedInt<1, 10_000_000> = Is("1");
        /// Maximum number of processors at the start; default: the minimum, and for moldable jobs
        /// the maximum.
        start: Option<BoundedInt<1, 10_000_000>> = Absent("2");
        /// Maximum number of processors; default: that of the grid.
        max: Option<BoundedInt<1, 10_000_000>> = Absent("8");
        /// Clusters that it may use; empty: any.
        clusters: ArgumentList = Is("[]");
        /// Whether it may grow into further clusters.
        spreads: bool = Is("false");
        /// Time limit, after which it is ended; default: none.
        time: Option<Time> = Absent("\"30m\"");
        /// Expected run time, by which a queue with backfilling plans; default: `time`, or what
        /// earlier runs of the program took.
        expect: Option<Time> = Absent("\"20m\"");
        /// Least number of processors of each node: they share memory.
        node_processors: BoundedInt<1, 4096> = Is("1");
        /// Memory for each processor; default: its part of the host's.
        memory_per_processor: Option<Size> = Absent("\"2GiB\"");
        /// Devices of each node, by kind.
        devices: BTreeMap<String, String> = Absent("{ gpu = \"1\" }");
        /// Project whose share of the grid it uses.
        project: Option<Name> = Absent("\"climate\"");
        /// Names of input files in the clusters' directories. The job starts where they are, or
        /// after a transfer.
        files: ArgumentList = Is("[]");
        /// Different components, one table each, which run the same program as one job. Unset keys
        /// have the job's values.
        component: Vec<ComponentSection> = Examples(&[
            &[("min", "4"), ("clusters", "[\"ams\"]")],
            &[("min", "1"), ("max", "2"), ("clusters", "[\"del\"]")],
        ]);
    }

    /// A component of a job.
    ComponentSection {
        /// Minimum number of processors.
        min: Option<BoundedInt<1, 10_000_000>> = Absent("2");
        /// Maximum number of processors at the start.
        start: Option<BoundedInt<1, 10_000_000>> = Absent("4");
        /// Maximum number of processors.
        max: Option<BoundedInt<1, 10_000_000>> = Absent("8");
        /// Clusters that it may use; empty: any.
        clusters: Option<ArgumentList> = Absent("[\"ams\"]");
        /// Names of its input files.
        files: Option<ArgumentList> = Absent("[\"bodies.csv\"]");
    }
}

/// A component of a job, with all its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobComponent<'a> {
    /// The numbers of processors.
    pub sizes: JobSizes,
    /// The clusters that it may use; empty: any.
    pub clusters: &'a [String],
    /// The names of its input files.
    pub files: &'a [String],
    /// The index of its [[job.component]]; none where all components are equal.
    pub at: Option<usize>,
}

/// The numbers of processors of a component: minimum, maximum at the start, and maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSizes {
    /// The minimum number of processors.
    pub min: u32,
    /// The maximum number at the start.
    pub start: u32,
    /// The maximum number of processors.
    pub max: u32,
}

impl JobSizes {
    /// The numbers that follow from the given ones, on a grid of `all` processors; absent ones
    /// have defaults.
    ///
    /// # Errors
    /// They are inconsistent: the key and a description.
    pub fn of(
        kind: JobKind,
        min: u32,
        start: Option<u32>,
        max: Option<u32>,
        all: u32,
    ) -> Result<Self, (&'static str, String)> {
        let rigid = kind == JobKind::Rigid;
        for (key, value) in [("start", start), ("max", max)] {
            if let Some(value) = value.filter(|value| rigid && *value != min) {
                return Err((
                    key,
                    format!("a rigid job has its min of {min} processors, not {value}"),
                ));
            }
        }
        let most = max.unwrap_or(if rigid { min } else { all.max(min) });
        if min > most {
            return Err(("max", format!("min {min} is more than max {most}")));
        }
        let start = start.unwrap_or(if kind == JobKind::Moldable { most } else { min });
        if !(min..=most).contains(&start) {
            return Err(("start", format!("must lie within {min} and {most}, found {start}")));
        }
        Ok(Self { min, start, max: most })
    }
}

impl JobSection {
    /// The components of the job, on a grid of `all` processors.
    ///
    /// # Errors
    /// As for [`JobSizes::of`], with the key's path below the job.
    pub fn parts(&self, all: u32) -> Result<Vec<JobComponent<'_>>, (String, String)> {
        let (clusters, files) = (&*self.clusters.0, &*self.files.0);
        if self.component.is_empty() {
            let (start, max) = (self.start.map(BoundedInt::get), self.max.map(BoundedInt::get));
            let sizes = JobSizes::of(self.kind, self.min.get(), start, max, all);
            let sizes = sizes.map_err(|(key, reason)| (key.to_owned(), reason))?;
            let one = JobComponent { sizes, clusters, files, at: None };
            return Ok(vec![one; self.components.get() as usize]);
        }
        let part = |(at, one): (usize, &'_ ComponentSection)| {
            let min = one.min.unwrap_or(self.min).get();
            let start = one.start.or(self.start).map(BoundedInt::get);
            let max = one.max.or(self.max).map(BoundedInt::get);
            let sizes = JobSizes::of(self.kind, min, start, max, all)
                .map_err(|(key, reason)| (format!("component[{at}].{key}"), reason))?;
            Ok::<_, (String, String)>((at, sizes))
        };
        let sizes = self.component.iter().enumerate().map(part).collect::<Result<Vec<_>, _>>()?;
        let whole = |(at, sizes): (usize, JobSizes)| {
            let one = &self.component[at];
            let clusters = one.clusters.as_ref().map_or(clusters, |words| &*words.0);
            let files = one.files.as_ref().map_or(files, |words| &*words.0);
            JobComponent { sizes, clusters, files, at: Some(at) }
        };
        Ok(sizes.into_iter().map(whole).collect())
    }
}

impl JobsConfig {
    /// A commented example with every key. It loads without error.
    pub fn template() -> String {
        super::template::<Self>(
            "# Jobs that are submitted together. Every key is here with its default; what is \
             commented out is not set by default.\n\
             # Submit them with: springtide job submit --file FILE --config GRID\n\n",
        )
    }
}

impl Config for JobsConfig {
    const WHAT: &'static str = "jobs";

    fn check(&self, checker: &mut Checker<'_>) {
        if self.job.is_empty() {
            checker.report("job", "there are no jobs: add a [[job]] with its program");
        }
        for (i, job) in self.job.iter().enumerate() {
            let path = |key: &str| format!("job[{i}].{key}");
            if !job.component.is_empty() && job.components.get() > 1 {
                let reason = "`job.components` is of parts that are alike: leave it out, or each \
                              [[job.component]]";
                checker.report(&path("components"), reason);
            }
            match job.parts(u32::MAX) {
                Ok(parts) => {
                    let mins = parts.iter().map(|part| part.sizes.min);
                    if mins.into_iter().try_fold(0u32, u32::checked_add).is_none() {
                        let reason =
                            "all components together need more processors than can be counted";
                        checker.tell_at(&[&path("components"), &path("program")], reason);
                    }
                    if job.spreads && parts.iter().any(|part| !part.files.is_empty()) {
                        let reason = "it needs files, so it cannot grow into clusters that do not \
                            have \
                                      them: leave out `spreads`";
                        checker.report(&path("spreads"), reason);
                    }
                }
                Err((key, reason)) => {
                    // The error may be in the job's own number, which the component inherits.
                    let own = key.rsplit('.').next().unwrap_or_default();
                    let part = key.split('.').next().unwrap_or_default();
                    checker.tell_at(&[&path(&key), &path(own), &path(part)], reason);
                }
            }
            let own = std::iter::once(("files".to_owned(), Some(&job.files)));
            let parts = job.component.iter().enumerate();
            let parts =
                parts.map(|(at, one)| (format!("component[{at}].files"), one.files.as_ref()));
            for (key, words) in own.chain(parts) {
                let names = words.iter().flat_map(|words| &words.0);
                for error in names.filter_map(|name| check_name(name).err()) {
                    checker.report(&path(&key), error.to_string());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sources, load};
    use super::*;

    fn report(text: &str) -> String {
        let read = load::<JobsConfig>(&Sources::of_text("jobs.toml", text));
        read.map(|loaded| format!("{:?}", loaded.value.job)).unwrap_or_else(|e| e.to_string())
    }

    #[test]
    fn the_template_loads() {
        load::<JobsConfig>(&Sources::of_text("jobs.toml", &JobsConfig::template())).unwrap();
    }

    #[test]
    fn errors_have_their_lines() {
        let text = r#"
[[job]]
program = "queens"
size = 12
[[job]]
program = "fib"
args = [30]
min = 0
[[job]]
program = "fib"
kind = "soft"
components = 0
"#;
        let golden = r#"jobs.toml:4:1: unknown key `size` in [job]
jobs.toml:7:8: `job.args` must be texts in a list such as ["--size", "12"], found [30]
jobs.toml:8:7: `job.min` must be a whole number from 1 to 10000000, found 0
jobs.toml:11:8: `job.kind` must be "rigid" or "moldable" or "malleable", found "soft"
jobs.toml:12:14: `job.components` must be a whole number from 1 to 10000, found 0"#;
        assert_eq!(report(text), golden);
        let text = r#"
[[job]]
program = "queens"
min = 5
max = 4
[[job]]
program = "queens"
kind = "rigid"
min = 2
max = 4
[[job]]
program = "queens"
start = 7
max = 6
[[job]]
program = "queens"
components = 1000
min = 9000000
"#;
        let golden = r#"jobs.toml:5:1: min 5 is more than max 4
jobs.toml:10:1: a rigid job has its min of 2 processors, not 4
jobs.toml:13:1: must lie within 1 and 6, found 7
jobs.toml:17:1: all components together need more processors than can be counted"#;
        assert_eq!(report(text), golden);
        assert!(report("").contains("there are no jobs"), "{}", report(""));
    }

    #[test]
    fn different_components_inherit_from_the_job() {
        let text = r#"
[[job]]
program = "queens"
min = 2
max = 8
clusters = ["ams"]
[[job.component]]
[[job.component]]
min = 4
start = 5
clusters = ["del", "bud"]
files = ["bodies.csv"]
[[job]]
program = "fib"
components = 3
"#;
        let loaded = load::<JobsConfig>(&Sources::of_text("jobs.toml", text)).unwrap();
        let parts = |job: usize| {
            let parts = loaded.value.job[job].parts(20).unwrap().into_iter();
            let shown = |part: JobComponent<'_>| {
                let JobSizes { min, start, max: most } = part.sizes;
                (min, start, most, part.clusters.join(" "), part.files.join(" "), part.at)
            };
            parts.map(shown).collect::<Vec<_>>()
        };
        let part = |min, start, most, clusters: &str, files: &str, at| {
            (min, start, most, clusters.to_owned(), files.to_owned(), at)
        };
        let expected =
            [part(2, 2, 8, "ams", "", Some(0)), part(4, 5, 8, "del bud", "bodies.csv", Some(1))];
        assert_eq!(parts(0), expected);
        assert_eq!(parts(1), vec![part(1, 1, 20, "", "", None); 3]);
        let again = loaded.show(false);
        assert_eq!(load::<JobsConfig>(&Sources::of_text("a", &again)).unwrap().value, loaded.value);
    }

    #[test]
    fn errors_of_components_have_their_lines() {
        let text = r#"
[[job]]
program = "queens"
components = 2
min = 3
spreads = true
[[job.component]]
max = 2
[[job]]
program = "queens"
max = 2
[[job.component]]
[[job.component]]
min = 3
sise = 2
[[job]]
program = "queens"
spreads = true
files = ["bodies.csv"]
[[job]]
program = "queens"
[[job.component]]
min = 4000000
files = ["/etc/passwd"]
"#;
        let golden =
            "jobs.toml:4:1: `job.components` is of parts that are alike: leave it out, or \
            each [[job.component]]
jobs.toml:8:1: min 3 is more than max 2
jobs.toml:11:1: min 3 is more than max 2
jobs.toml:15:1: unknown key `sise` in [job.component]
jobs.toml:18:1: it needs files, so it cannot grow into clusters that do not have them: leave out \
`spreads`
jobs.toml:24:1: ";
        let report = report(text);
        assert!(report.starts_with(golden), "{report}");
    }

    #[test]
    fn the_template_loads_with_its_components_switched_on() {
        let template = JobsConfig::template();
        assert!(template.contains("# [[job.component]]"), "{template}");
        let on = |line: &str| {
            let rest = line.strip_prefix("# ").unwrap_or(line);
            let is = rest.starts_with("[[job.component]]")
                || rest
                    .split_once(" = ")
                    .is_some_and(|(key, _)| ["min", "start", "max", "clusters"].contains(&key));
            if is { rest.to_owned() } else { line.to_owned() }
        };
        let text: String = template.lines().map(|line| on(line) + "\n").collect();
        let config = load::<JobsConfig>(&Sources::of_text("jobs.toml", &text)).unwrap().value;
        assert_eq!(config.job[0].component.len(), 2);
        assert!(template.lines().all(|line| line.len() <= 130), "{template}");
    }

    #[test]
    fn sizes_follow_from_what_is_given() {
        let sizes = |kind, (min, start, max)| {
            JobSizes::of(kind, min, start, max, 20).map(|sizes| (sizes.min, sizes.start, sizes.max))
        };
        assert_eq!(sizes(JobKind::Malleable, (2, None, None)), Ok((2, 2, 20)));
        assert_eq!(sizes(JobKind::Moldable, (2, None, Some(8))), Ok((2, 8, 8)));
        assert_eq!(sizes(JobKind::Rigid, (4, None, None)), Ok((4, 4, 4)));
        assert_eq!(sizes(JobKind::Rigid, (4, Some(4), Some(4))), Ok((4, 4, 4)));
        assert_eq!(sizes(JobKind::Malleable, (30, None, None)), Ok((30, 30, 30)));
        assert_eq!(sizes(JobKind::Malleable, (2, Some(9), Some(8))).unwrap_err().0, "start");
    }
}
