//! A run as an RO-Crate 1.1: the workflow, and an action for the run and for each attempt.
//!
//! It follows the profiles Process, Workflow and Provenance Run Crate 0.5, and Workflow RO-Crate
//! 1.0. The crate is the run's directory. Files of the grid are not in it and have no path.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use springtide_cli::exit::Failed;
use springtide_runtime::work::OutputStream;
use springtide_workflow::Format;

use super::super::spec::external_input_files;
use super::attempts::{AttemptEnd, RunHistory, TaskAttempt};
use super::markup::{encode_path, relative_url};
use super::timestamp;
use crate::Read;

const CONTEXT: [&str; 2] =
    ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"];
const WORKFLOW_CRATE: &str = "https://w3id.org/workflowhub/workflow-ro-crate/1.0";
/// The profiles with their names and versions.
const PROFILES: [(&str, &str, &str); 4] = [
    ("https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/provenance/0.5", "Provenance Run Crate", "0.5"),
    (WORKFLOW_CRATE, "Workflow RO-Crate", "1.0"),
];
/// Files of a run's directory, with their media types and meanings.
const PARTS: [(&str, &str, &str); 4] = [
    ("journal.jsonl", "application/jsonl", "Events of the run"),
    ("result.json", "application/json", "Result of the run"),
    ("tasks.csv", "text/csv", "Tasks with their times and places"),
    ("report.html", "text/html", "Report of the run"),
];

/// The name of the workflow's file in the crate.
pub fn workflow_name(history: &RunHistory) -> String {
    let extension = history.manifest.file.extension();
    let extension = extension.map(|text| encode_path(&text.to_string_lossy()));
    format!("workflow.{}", extension.unwrap_or_else(|| "txt".to_owned()))
}

/// The text of `ro-crate-metadata.json`.
///
/// # Errors
/// The workflow is unknown.
pub fn metadata(history: &RunHistory) -> Result<Value, Failed> {
    let read = history.known_workflow()?;
    let fetched: BTreeMap<&str, &Path> =
        history.fetched.iter().map(|(name, path)| (name.as_str(), path.as_path())).collect();
    let files = read.workflow.files.iter().map(|file| file_id(&file.name, &fetched)).collect();
    let mut graph = Graph {
        history,
        read,
        files,
        entities: Vec::new(),
        parts: Vec::new(),
        actions: Vec::new(),
    };
    let workflow = workflow_name(history);
    graph.add_files();
    graph.add_logs();
    graph.add_workflow(&workflow);
    graph.add_run(&workflow);
    for at in 0..history.attempts.len() {
        graph.add_attempt(at);
    }
    let mut entities = vec![
        json!({
            "@id": "ro-crate-metadata.json",
            "@type": "CreativeWork",
            "about": id("./"),
            "conformsTo": [id("https://w3id.org/ro/crate/1.1"), id(WORKFLOW_CRATE)],
        }),
        json!({
            "@id": "./",
            "@type": "Dataset",
            "name": format!("Run {} of the workflow {}", history.manifest.id, read.name()),
            "description": format!(
                "A workflow run of Springtide {}: {}.", env!("CARGO_PKG_VERSION"), history.state
            ),
            "datePublished": timestamp(history.last_s()),
            "license": "The owner of the workflow and its files has stated no license.",
            "conformsTo": PROFILES.map(|(profile, ..)| id(profile)),
            "mainEntity": id(&workflow),
            "mentions": graph.actions.iter().map(|action| id(action)).collect::<Vec<_>>(),
            "hasPart": graph.parts.iter().map(|part| id(part)).collect::<Vec<_>>(),
        }),
    ];
    entities.extend(PROFILES.map(|(profile, name, version)| {
        json!({ "@id": profile, "@type": "CreativeWork", "name": name, "version": version })
    }));
    entities.append(&mut graph.entities);
    Ok(json!({ "@context": CONTEXT, "@graph": entities }))
}

/// A reference to an entity.
fn id(of: &str) -> Value {
    json!({ "@id": of })
}

/// The entities of the crate besides its root.
struct Graph<'a> {
    history: &'a RunHistory,
    read: &'a Read,
    /// Ids of the workflow's files.
    files: Vec<String>,
    entities: Vec<Value>,
    /// Ids of the files in the crate.
    parts: Vec<String>,
    /// Ids of the actions.
    actions: Vec<String>,
}

impl Graph<'_> {
    fn add_files(&mut self) {
        let dir = &self.history.dir;
        for (name, media_type, meaning) in PARTS {
            if !dir.join(name).exists() {
                continue;
            }
            self.parts.push(name.to_owned());
            self.entities.push(json!({
                "@id": name,
                "@type": "File",
                "name": meaning,
                "encodingFormat": media_type,
            }));
        }
        let sizes = self.history.file_sizes();
        for (file, reference) in self.read.workflow.files.iter().zip(&self.files) {
            let size = sizes.get(file.name.as_str()).copied().unwrap_or(file.bytes);
            let is_file = reference.starts_with("file:");
            let mut entity = json!({
                "@id": reference,
                "@type": if is_file { "File" } else { "CreativeWork" },
                "name": file.name,
            });
            if size > 0 {
                entity["contentSize"] = size.to_string().into();
            }
            if is_file {
                self.parts.push(reference.clone());
            }
            self.entities.push(entity);
        }
    }

    fn file_ids(&self, files: &[usize]) -> Vec<Value> {
        files.iter().map(|&file| id(&self.files[file])).collect()
    }

    fn add_logs(&mut self) {
        if self.history.dir.join("logs").is_dir() {
            self.parts.push("logs/".to_owned());
            let name = "Standard output and standard error of tasks";
            self.entities.push(json!({ "@id": "logs/", "@type": "Dataset", "name": name }));
        }
    }

    fn add_workflow(&mut self, workflow: &str) {
        let kinds: BTreeSet<&str> =
            self.history.tasks.iter().map(|task| task.kind.as_str()).collect();
        let programs: BTreeMap<String, &str> =
            kinds.into_iter().map(|kind| (program_id(kind), kind)).collect();
        let (language, name, url) = language(self.read.format);
        self.parts.push(workflow.to_owned());
        let mut entity = json!({
            "@id": workflow,
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            "name": self.read.name(),
            "programmingLanguage": id(language),
            "runtimePlatform": format!("Springtide {}", env!("CARGO_PKG_VERSION")),
            "hasPart": programs.keys().map(|program| id(program)).collect::<Vec<_>>(),
        });
        if let Some(source) = &self.history.source {
            entity["sha256"] = source.digest.as_str().into();
        }
        self.entities.push(entity);
        let mut language = json!({ "@id": language, "@type": "ComputerLanguage", "name": name });
        if let Some(url) = url {
            language["url"] = url.into();
        }
        self.entities.push(language);
        for (program, kind) in programs {
            let software = json!({ "@id": program, "@type": "SoftwareApplication", "name": kind });
            self.entities.push(software);
        }
    }

    fn add_run(&mut self, workflow: &str) {
        let history = self.history;
        let run = format!("#run-{}", history.manifest.id);
        let status = match history.state {
            "completed" => "CompletedActionStatus",
            "running" => "ActiveActionStatus",
            _ => "FailedActionStatus",
        };
        let mut read_files = vec![false; self.read.workflow.files.len()];
        let tasks = &self.read.workflow.tasks;
        tasks.iter().flat_map(|task| &task.inputs).for_each(|&file| read_files[file] = true);
        let results = tasks.iter().enumerate().filter(|(at, _)| history.completion(*at).is_some());
        let results = results.flat_map(|(_, task)| &task.outputs).copied();
        let results: Vec<usize> = results.filter(|&file| !read_files[file]).collect();
        let mut action = json!({
            "@id": run,
            "@type": "CreateAction",
            "name": format!("Run of the workflow {}", self.read.name()),
            "description": format!("The run of {} tasks is {}.", history.total, history.state),
            "instrument": id(workflow),
            "startTime": timestamp(history.begun_s()),
            "actionStatus": format!("http://schema.org/{status}"),
            "object": self.file_ids(&external_input_files(self.read)),
            "result": self.file_ids(&results),
        });
        if status != "ActiveActionStatus" {
            action["endTime"] = timestamp(history.last_s()).into();
        }
        if let Some(error) = &history.error {
            action["error"] = error.as_str().into();
        }
        self.actions.push(run);
        self.entities.push(action);
    }

    fn add_attempt(&mut self, at: usize) {
        let attempt = &self.history.attempts[at];
        let task = &self.history.tasks[attempt.task];
        let (inputs, outputs) = match self.read.workflow.tasks.get(attempt.task) {
            Some(task) => (self.file_ids(&task.inputs), self.file_ids(&task.outputs)),
            None => (Vec::new(), Vec::new()),
        };
        let (status, error) = match &attempt.end {
            AttemptEnd::Completed { .. } => ("CompletedActionStatus", None),
            AttemptEnd::Running => ("ActiveActionStatus", None),
            AttemptEnd::Failed { reason, .. } => ("FailedActionStatus", Some(reason.as_str())),
            AttemptEnd::Lost => ("FailedActionStatus", Some("the process of the run ended")),
        };
        let place = match (&attempt.node, attempt.start_s) {
            (Some(node), _) => format!("It ran on the node {node}."),
            (None, Some(_)) => "It ran on an unknown node.".to_owned(),
            (None, None) => "It did not start.".to_owned(),
        };
        let reference = format!("#task/{}/{}", encode_path(&task.id), at);
        let mut action = json!({
            "@id": reference,
            "@type": "CreateAction",
            "description": place,
            "name": format!("{}, attempt {}", task.id, attempt.number),
            "instrument": id(&program_id(&task.kind)),
            "actionStatus": format!("http://schema.org/{status}"),
            "object": inputs,
        });
        if let Some(start_s) = attempt.start_s {
            action["startTime"] = timestamp(start_s).into();
        }
        if attempt.end != AttemptEnd::Running {
            action["endTime"] = timestamp(attempt.end_s).into();
        }
        if attempt.is_completed() {
            action["result"] = outputs.into();
        }
        if let Some(error) = error {
            action["error"] = error.into();
            let logs = self.log_ids(attempt);
            if !logs.is_empty() {
                action["subjectOf"] = logs.iter().map(|log| id(log)).collect();
            }
        }
        self.actions.push(reference);
        self.entities.push(action);
    }

    /// The ids of an attempt's logs, which are added to the crate.
    fn log_ids(&mut self, attempt: &TaskAttempt) -> Vec<String> {
        let dir: &Path = &self.history.dir;
        let task = &self.history.tasks[attempt.task].id;
        let streams = [(OutputStream::Stdout, "output"), (OutputStream::Stderr, "error")];
        let mut ids = Vec::new();
        for (stream, name) in streams {
            let Some(path) = self.history.log(attempt, stream) else { continue };
            let log = relative_url(dir, &path);
            let name = format!("Standard {name} of {task}, attempt {}", attempt.number);
            let media_type = "text/plain";
            self.entities.push(json!({
                "@id": log, "@type": "File", "name": name, "encodingFormat": media_type,
            }));
            self.parts.push(log.clone());
            ids.push(log);
        }
        ids
    }
}

/// The id of a workflow's file: its URL if it was copied to a place, otherwise a name.
fn file_id(name: &str, fetched: &BTreeMap<&str, &Path>) -> String {
    match fetched.get(name).and_then(|path| std::path::absolute(path).ok()) {
        Some(path) => format!("file://{}", encode_path(&path.to_string_lossy())),
        None => format!("#file/{}", encode_path(name)),
    }
}

/// The id of the program of a kind of tasks.
fn program_id(kind: &str) -> String {
    format!("#program/{}", encode_path(kind))
}

/// The id, name and address of a format as a language of workflows.
fn language(format: Option<Format>) -> (&'static str, &'static str, Option<&'static str>) {
    match format {
        Some(Format::WfFormat) => ("#wfformat", "WfFormat", Some("https://wfcommons.org/format")),
        Some(Format::Dax) => ("#dax", "Pegasus DAX", Some("https://pegasus.isi.edu/")),
        Some(Format::Pegasus) => {
            ("#pegasus", "Pegasus 5 workflow", Some("https://pegasus.isi.edu/"))
        }
        Some(Format::Dot) => ("#dot", "DOT", Some("https://graphviz.org/doc/info/lang.html")),
        Some(Format::Own) | None => ("#springtide", "Springtide workflow", None),
    }
}
