//! Reads abstract workflows of Pegasus 5 (schema wf-5.0), YAML.
//!
//! The schema has no runtimes: they are taken from the profile `pegasus: runtime` or from the
//! metadata `runtime`. Texts keep their spelling: `007` and `on` are names. The module
//! [`fields`](crate::fields) has all keys.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_saphyr::{Error, Location, Spanned};

use super::profiles::Profiles;
use super::{check_arguments, syntax, with_position};
use crate::arguments;
use crate::draft::{Draft, EdgeEnd, SizeSource, Stream};
use crate::error::{Cause, WorkflowProblem, shown};
use crate::format::Format;
use crate::model::{Command, Container, ContainerEngine, FileSource, Position, Task, local_path};
use crate::text::Text;
use crate::values::Scalar;

/// The maximum number of events of a document: a task with its files has about a hundred.
const EVENTS_MAX: usize = 100_000_000;

/// Declares a mapping at a place of the tables of fields: its known keys, and all keys that the
/// document has.
macro_rules! mapping {
    ($name:ident at $place:literal { $($field:ident: $kind:ty = $key:literal,)* }) => {
        #[derive(Default)]
        struct $name {
            $($field: Option<$kind>,)*
            keys: Vec<Spanned<String>>,
        }

        impl $name {
            /// Reports the keys to the tables of fields.
            fn report(&self, draft: &mut Draft, subject: &str) {
                for key in &self.keys {
                    let at = place(key.referenced);
                    draft.field(Format::Pegasus, $place, &key.value, subject, at);
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct MappingVisitor;

                impl<'de> Visitor<'de> for MappingVisitor {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("a mapping")
                    }

                    fn visit_map<A: MapAccess<'de>>(
                        self,
                        mut map: A,
                    ) -> Result<$name, A::Error> {
                        let mut mapping = $name::default();
                        while let Some(key) = map.next_key::<Spanned<String>>()? {
                            match key.value.as_str() {
                                $($key => mapping.$field = map.next_value()?,)*
                                _ => {
                                    map.next_value::<IgnoredAny>()?;
                                }
                            }
                            mapping.keys.push(key);
                        }
                        Ok(mapping)
                    }
                }

                deserializer.deserialize_map(MappingVisitor)
            }
        }

        #[cfg(test)]
        impl $name {
            /// The place and the known keys, sorted.
            fn known() -> (&'static str, Vec<&'static str>) {
                let mut keys = vec![$($key),*];
                keys.sort_unstable();
                ($place, keys)
            }
        }
    };
}

mapping!(Top at "" {
    name: String = "name",
    jobs: Vec<Spanned<PegasusJob>> = "jobs",
    job_dependencies: Vec<Dependency> = "jobDependencies",
    transformation_catalog: Catalog = "transformationCatalog",
    replica_catalog: ReplicaCatalog = "replicaCatalog",
    profiles: Namespaces = "profiles",
});

mapping!(ReplicaCatalog at "replicas" {
    replicas: Vec<Replica> = "replicas",
});

mapping!(Replica at "replica" {
    lfn: String = "lfn",
    pfns: Vec<Place> = "pfns",
});

mapping!(Place at "place" {
    pfn: String = "pfn",
});

mapping!(PegasusJob at "job" {
    id: Spanned<String> = "id",
    kind: String = "type",
    name: String = "name",
    namespace: String = "namespace",
    version: String = "version",
    arguments: Vec<Argument> = "arguments",
    stdin: Spanned<String> = "stdin",
    stdout: Spanned<String> = "stdout",
    stderr: Spanned<String> = "stderr",
    uses: Vec<Spanned<Use>> = "uses",
    profiles: Namespaces = "profiles",
    metadata: Metadata = "metadata",
    file: IgnoredAny = "file",
});

mapping!(Use at "uses" {
    lfn: String = "lfn",
    kind: String = "type",
    size: Spanned<String> = "size",
    metadata: Metadata = "metadata",
});

mapping!(Dependency at "dependency" {
    id: Spanned<String> = "id",
    children: Vec<Spanned<String>> = "children",
});

mapping!(Catalog at "catalog" {
    transformations: Vec<Transformation> = "transformations",
    containers: Vec<Image> = "containers",
});

mapping!(Transformation at "transformation" {
    name: String = "name",
    namespace: String = "namespace",
    version: String = "version",
    sites: Vec<Site> = "sites",
    profiles: Namespaces = "profiles",
});

mapping!(Site at "site" {
    pfn: String = "pfn",
    container: String = "container",
    profiles: Namespaces = "profiles",
});

mapping!(Image at "container" {
    name: String = "name",
    image: String = "image",
    kind: Spanned<String> = "type",
    profiles: Namespaces = "profiles",
});

/// Metadata, which people name as they like.
#[derive(Deserialize)]
struct Metadata {
    runtime: Option<Spanned<String>>,
    size: Option<Spanned<String>>,
}

/// Values by namespace and key.
type Namespaces = BTreeMap<String, BTreeMap<String, Option<Spanned<String>>>>;

/// An argument as it is spelt.
type Argument = Spanned<String>;

/// The namespace, the name and the version of a program.
type TransformationKey = (String, String, String);

/// A program of the catalog.
#[derive(Default)]
struct CatalogProgram {
    /// The path, if it is on this system.
    path: Option<String>,
    container: Option<Container>,
    profiles: Profiles,
}

pub(super) fn read(text: &Text<'_>) -> Result<Draft, WorkflowProblem> {
    let options = serde_saphyr::options! {
        // The budget depends on the file's own size alone, which is limited; aliases have a limit
        // of their own.
        budget: serde_saphyr::budget! {
            max_events: EVENTS_MAX,
            max_nodes: EVENTS_MAX,
            max_total_scalar_bytes: super::TEXT_MAX as usize,
            max_depth: 64,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 1_000_000 },
        with_snippet: false,
    };
    let top: Top = serde_saphyr::from_str_with_options(text.as_str(), options)
        .map_err(|error| wrong(&error, text))?;
    let mut draft = Draft::default();
    top.report(&mut draft, "");
    let Some(jobs) = top.jobs else {
        return Err(syntax(Format::Pegasus, "there is no key jobs", None));
    };
    draft.name = top.name.unwrap_or_default();
    let mut shared = Profiles::default();
    insert(&mut shared, top.profiles.unwrap_or_default());
    let programs = programs(&mut draft, top.transformation_catalog.unwrap_or_default())?;
    for job in jobs {
        let at = place(job.referenced);
        self::job(&mut draft, job.value, at, &shared, &programs)?;
    }
    for dependency in top.job_dependencies.unwrap_or_default() {
        dependency.report(&mut draft, "");
        let Some(id) = dependency.id else {
            let at = dependency.keys.first().and_then(|key| place(key.referenced));
            return Err(WorkflowProblem::value("a dependency has no id", at));
        };
        for child in dependency.children.unwrap_or_default() {
            let at = place(child.referenced);
            draft.edge(EdgeEnd::Id(id.value.clone()), EdgeEnd::Id(child.value), at);
        }
    }
    replicas(&mut draft, top.replica_catalog.unwrap_or_default());
    Ok(draft)
}

/// Reads the places of the files of tasks.
fn replicas(draft: &mut Draft, catalog: ReplicaCatalog) {
    catalog.report(draft, "");
    for replica in catalog.replicas.unwrap_or_default() {
        let name = replica.lfn.as_deref().unwrap_or_default();
        replica.report(draft, name);
        for place in replica.pfns.iter().flatten() {
            place.report(draft, name);
            let source = place.pfn.as_deref().and_then(FileSource::parse);
            if let (Some(file), Some(source)) = (draft.find_file(name), source) {
                draft.source(file, source);
            }
        }
    }
}

fn insert(profiles: &mut Profiles, namespaces: Namespaces) {
    for (namespace, values) in namespaces {
        for (key, value) in values {
            let Some(Spanned { value, referenced, .. }) = value else { continue };
            profiles.insert(&namespace, &key, &value, place(referenced));
        }
    }
}

/// The programs of a catalog, with their containers.
fn programs(
    draft: &mut Draft,
    catalog: Catalog,
) -> Result<BTreeMap<TransformationKey, CatalogProgram>, WorkflowProblem> {
    catalog.report(draft, "");
    let mut containers = BTreeMap::new();
    for image in catalog.containers.unwrap_or_default() {
        image.report(draft, image.name.as_deref().unwrap_or_default());
        let (Some(name), Some(reference)) = (image.name, image.image) else { continue };
        let engine = image.kind.map(engine).transpose()?;
        let mut profiles = Profiles::default();
        insert(&mut profiles, image.profiles.unwrap_or_default());
        containers.insert(name, (Container { image: reference, engine }, profiles));
    }
    let mut programs = BTreeMap::new();
    for transformation in catalog.transformations.unwrap_or_default() {
        let name = transformation.name.as_deref().unwrap_or_default();
        transformation.report(draft, name);
        let mut program = CatalogProgram::default();
        insert(&mut program.profiles, transformation.profiles.unwrap_or_default());
        let mut sites = transformation.sites.unwrap_or_default().into_iter();
        if let Some(site) = sites.next() {
            site.report(draft, name);
            program.path = site.pfn.as_deref().and_then(local_path);
            if let Some((container, profiles)) =
                site.container.and_then(|name| containers.get(&name))
            {
                program.container = Some(container.clone());
                program.profiles.replace_by(profiles);
            }
            insert(&mut program.profiles, site.profiles.unwrap_or_default());
        }
        let Transformation { name, namespace, version, .. } = transformation;
        programs.insert(key(namespace, name, version), program);
    }
    Ok(programs)
}

fn engine(word: Spanned<String>) -> Result<ContainerEngine, WorkflowProblem> {
    let engine = ContainerEngine::ALL.into_iter().find(|engine| engine.word() == word.value);
    engine.ok_or_else(|| {
        let found = shown(&word.value);
        let reason =
            format!("a container's type must be docker, singularity or shifter, found {found}");
        WorkflowProblem::value(reason, place(word.referenced))
    })
}

fn key(
    namespace: Option<String>,
    name: Option<String>,
    version: Option<String>,
) -> TransformationKey {
    (namespace.unwrap_or_default(), name.unwrap_or_default(), version.unwrap_or_default())
}

fn job(
    draft: &mut Draft,
    job: PegasusJob,
    at: Option<Position>,
    shared: &Profiles,
    programs: &BTreeMap<TransformationKey, CatalogProgram>,
) -> Result<(), WorkflowProblem> {
    job.report(draft, job.id.as_ref().map_or("", |id| &id.value));
    let Some(Spanned { value: id, .. }) = job.id else {
        return Err(WorkflowProblem::value("a job has no id", at));
    };
    if let Some(kind) = job.kind.filter(|kind| kind != "job") {
        return Err(match kind.as_str() {
            "dag" | "dax" | "pegasusWorkflow" | "condorWorkflow" => {
                Cause::SubWorkflow { task: id, kind }.at(at)
            }
            _ => WorkflowProblem::value(
                format!("a job's type must be job, found {}", shown(&kind)),
                at,
            ),
        });
    }
    let Some(name) = job.name else {
        return Err(WorkflowProblem::value(format!("job {} has no name", shown(&id)), at));
    };
    let place_of_arguments = job.arguments.iter().flatten().next();
    let arguments_at = place_of_arguments.and_then(|first| place(first.referenced)).or(at);
    // Pegasus makes one line of the list.
    let words: Vec<_> = job.arguments.into_iter().flatten().map(|word| word.value).collect();
    let arguments = arguments::split(&words.join(" "))
        .map_err(|mistake| WorkflowProblem::value(mistake.reason(), arguments_at))?;
    check_arguments(draft, &arguments, &id, arguments_at);
    let described = programs.get(&key(job.namespace, Some(name.clone()), job.version));
    let path = described.and_then(|program| program.path.clone());
    let command = Some(Command::Program { program: path.unwrap_or(name.clone()), arguments });
    let container = described.and_then(|program| program.container.clone());
    let task = draft.task(Task { name, command, container, at, ..Task::new(id) })?;
    for (file, stream) in
        [(job.stdin, Stream::Stdin), (job.stdout, Stream::Stdout), (job.stderr, Stream::Stderr)]
    {
        let Some(name) = file else { continue };
        let file = draft.file(&name.value, place(name.referenced));
        draft.redirect(task, stream, file);
    }
    for used in job.uses.unwrap_or_default() {
        let at = place(used.referenced);
        uses(draft, task, used.value, at)?;
    }
    let mut profiles = shared.clone();
    let mut own = Profiles::default();
    insert(&mut own, job.profiles.unwrap_or_default());
    profiles.replace_by(&own);
    if let Some(program) = described {
        profiles.replace_by(&program.profiles);
    }
    let metadata = || {
        let runtime = job.metadata.and_then(|metadata| metadata.runtime)?;
        Some((number(&runtime.value), place(runtime.referenced)))
    };
    if let Some((value, at)) = profiles.runtime().or_else(metadata) {
        let seconds = with_position(value.seconds(), at)?;
        draft.runtime(task, seconds, at);
    }
    profiles.apply(draft, task, Format::Pegasus)
}

/// A number, in which YAML allows underscores.
fn number(text: &str) -> Scalar {
    Scalar::text(&text.replace('_', ""))
}

fn uses(
    draft: &mut Draft,
    task: usize,
    used: Use,
    at: Option<Position>,
) -> Result<(), WorkflowProblem> {
    used.report(draft, used.lfn.as_deref().unwrap_or_default());
    let Some(name) = used.lfn else {
        return Err(WorkflowProblem::value("a use of a file has no lfn", at));
    };
    let (reads, writes) = match used.kind.as_deref() {
        Some("input") => (true, false),
        Some("output") => (false, true),
        Some("inout") => (true, true),
        Some("none" | "checkpoint") => return Ok(()),
        other => {
            let found = other.map_or("nothing".to_owned(), shown);
            let reason = format!(
                "a use's type must be input, output, inout, checkpoint or none, found {found}"
            );
            return Err(WorkflowProblem::value(reason, at));
        }
    };
    let file = draft.file(&name, at);
    if reads {
        draft.reads(task, file);
    }
    if writes {
        draft.writes(task, file);
    }
    if let Some(size) = used.size.or_else(|| used.metadata.and_then(|metadata| metadata.size)) {
        let at = place(size.referenced);
        let bytes = with_position(number(&size.value).bytes_unless_negative(), at)?;
        draft.size(file, if writes { SizeSource::Writer } else { SizeSource::Reader }, bytes, at);
    }
    Ok(())
}

fn place(location: Location) -> Option<Position> {
    let from_1 = |number: u64| u32::try_from(number).ok().filter(|number| *number > 0);
    Some(Position { line: from_1(location.line())?, column: from_1(location.column())? })
}

fn wrong(error: &Error, text: &Text<'_>) -> WorkflowProblem {
    let error = error.without_snippet();
    let said = error.to_string();
    // The place is part of the error already.
    let places = [" at line ", " (defined at line ", " (used at line "];
    let end = places.iter().filter_map(|place| said.find(place)).min().unwrap_or(said.len());
    let reason = &said[..end];
    let at = error.location().and_then(place);
    match error {
        Error::Eof { .. } => {
            syntax(Format::Pegasus, format!("{reason}: was the file cut off?"), text.end())
        }
        _ if reason.contains("budget breached") || reason.contains("limit exceeded") => {
            let reason =
                format!("it is nested too deep, or aliases make too much of it ({reason})");
            syntax(Format::Pegasus, reason, at)
        }
        _ => syntax(Format::Pegasus, reason, at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields;

    #[test]
    fn the_tables_have_the_keys_that_are_used() {
        for (place, keys) in [
            Top::known(),
            PegasusJob::known(),
            Use::known(),
            Dependency::known(),
            Catalog::known(),
            Transformation::known(),
            Site::known(),
            Image::known(),
            ReplicaCatalog::known(),
            Replica::known(),
            Place::known(),
        ] {
            assert_eq!(fields::used(Format::Pegasus, place), keys, "{place}");
        }
    }
}
