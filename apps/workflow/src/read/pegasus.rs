//! Reads abstract workflows of Pegasus 5 (schema wf-5.0), YAML.
//!
//! The schema has no runtimes: they are taken from the profile `pegasus: runtime` or from the
//! metadata `runtime`. The number of processors is `pegasus: cores`, otherwise `nodes` times `ppn`.
//! Catalogs and hooks are ignored.

use serde::Deserialize;
use serde_saphyr::{Error, Location, Spanned};

use super::{syntax, with_position};
use crate::draft::{Draft, EdgeEnd, SizeSource};
use crate::error::{Cause, WorkflowProblem, shown};
use crate::format::Format;
use crate::model::{Command, Position, Task};
use crate::text::Text;
use crate::values::{ProcessorCount, Scalar};

/// The maximum number of events of a document: a task with its files has about a hundred.
const EVENTS_MAX: usize = 100_000_000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Top {
    name: Option<String>,
    jobs: Option<Vec<Spanned<PegasusJob>>>,
    job_dependencies: Option<Vec<Dependency>>,
}

#[derive(Deserialize)]
struct PegasusJob {
    id: Option<Spanned<String>>,
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
    arguments: Option<Vec<Spanned<Scalar>>>,
    stdin: Option<Spanned<String>>,
    stdout: Option<Spanned<String>>,
    stderr: Option<Spanned<String>>,
    uses: Option<Vec<Spanned<Use>>>,
    profiles: Option<Profiles>,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Use {
    lfn: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    size: Option<Spanned<Scalar>>,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    runtime: Option<Spanned<Scalar>>,
    size: Option<Spanned<Scalar>>,
}

#[derive(Deserialize)]
struct Profiles {
    pegasus: Option<PegasusProfile>,
}

#[derive(Deserialize)]
struct PegasusProfile {
    runtime: Option<Spanned<Scalar>>,
    cores: Option<Spanned<Scalar>>,
    nodes: Option<Spanned<Scalar>>,
    ppn: Option<Spanned<Scalar>>,
}

#[derive(Deserialize)]
struct Dependency {
    id: Spanned<String>,
    children: Option<Vec<Spanned<String>>>,
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
    let Some(jobs) = top.jobs else {
        return Err(syntax(Format::Pegasus, "there is no key jobs", None));
    };
    let mut draft = Draft::default();
    draft.name = top.name.unwrap_or_default();
    for job in jobs {
        let at = place(job.referenced);
        self::job(&mut draft, job.value, at)?;
    }
    for Dependency { id, children } in top.job_dependencies.unwrap_or_default() {
        for child in children.unwrap_or_default() {
            let at = place(child.referenced);
            draft.edge(EdgeEnd::Id(id.value.clone()), EdgeEnd::Id(child.value), at);
        }
    }
    Ok(draft)
}

fn job(draft: &mut Draft, job: PegasusJob, at: Option<Position>) -> Result<(), WorkflowProblem> {
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
    let arguments =
        job.arguments.unwrap_or_default().into_iter().map(|argument| match argument.value {
            Scalar::Text(text) => text,
            number => number.to_string(),
        });
    let command = Some(Command::Program { program: name.clone(), arguments: arguments.collect() });
    let task = draft.task(Task { name, command, at, ..Task::new(id) })?;
    for (file, reads) in [(job.stdin, true), (job.stdout, false), (job.stderr, false)] {
        let Some(name) = file else { continue };
        let file = draft.file(&name.value, place(name.referenced));
        if reads { draft.reads(task, file) } else { draft.writes(task, file) }
    }
    for used in job.uses.unwrap_or_default() {
        let at = place(used.referenced);
        uses(draft, task, used.value, at)?;
    }
    let profile = job.profiles.and_then(|profiles| profiles.pegasus);
    let (mut runtime, cores, nodes, ppn) = match profile {
        Some(PegasusProfile { runtime, cores, nodes, ppn }) => (runtime, cores, nodes, ppn),
        None => (None, None, None, None),
    };
    runtime = runtime.or_else(|| job.metadata.and_then(|metadata| metadata.runtime));
    if let Some(Spanned { value, referenced, .. }) = runtime {
        let at = place(referenced);
        let seconds = with_position(value.seconds_from_0(), at)?;
        draft.runtime(task, seconds, at);
    }
    let number = |number: &Spanned<Scalar>| {
        with_position(number.value.processors(), place(number.referenced))
    };
    if let Some(cores) = &cores {
        draft.processors(task, number(cores)?, place(cores.referenced));
    } else if let Some(nodes) = &nodes {
        let at = place(nodes.referenced);
        let nodes = number(nodes)?;
        let ppn = ppn.as_ref().map(number).transpose()?.unwrap_or(ProcessorCount::exact(1));
        let product = nodes.times(ppn);
        let product = product.ok_or_else(|| {
            WorkflowProblem::value("no machine has this number of processors", at)
        })?;
        draft.processors(task, product, at);
    }
    Ok(())
}

fn uses(
    draft: &mut Draft,
    task: usize,
    used: Use,
    at: Option<Position>,
) -> Result<(), WorkflowProblem> {
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
        let bytes = with_position(size.value.bytes(), at)?;
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
