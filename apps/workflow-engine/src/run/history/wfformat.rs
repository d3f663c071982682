//! A run as an instance of WfFormat 1.5: the workflow's tasks and files, and their execution.
//!
//! Facts of the format are those of `wfcommons-schema.json` of the WfCommons project.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use springtide_cli::exit::Failed;
use springtide_workflow::{Command, RUNTIME_MIN_S, Task};

use super::attempts::{AttemptEnd, RunHistory, TaskOutcome};
use super::timestamp;

/// The instance.
///
/// # Errors
/// The workflow is unknown, or its table of commands cannot be read.
pub fn instance(history: &RunHistory) -> Result<Value, Failed> {
    let read = history.known_workflow()?;
    let commands = history.commands()?;
    let (tasks, files) = (&read.workflow.tasks, &read.workflow.files);
    let task_ids = Ids::new(tasks.iter().map(|task| task.id.as_str()));
    let file_ids = Ids::new(files.iter().map(|file| file.name.as_str()));
    let mut children: Vec<Vec<&str>> = vec![Vec::new(); tasks.len()];
    for (child, task) in tasks.iter().enumerate() {
        for &parent in &task.parents {
            children[parent].push(&task_ids.ids[child]);
        }
    }
    let named = |ids: &Ids, indices: &[usize]| -> Vec<String> {
        indices.iter().map(|&at| ids.ids[at].clone()).collect()
    };
    let specified = tasks.iter().enumerate().map(|(at, task)| {
        json!({
            "name": if task.name.is_empty() { &task_ids.ids[at] } else { &task.name },
            "id": task_ids.ids[at],
            "parents": named(&task_ids, &task.parents),
            "children": children[at],
            "inputFiles": named(&file_ids, &task.inputs),
            "outputFiles": named(&file_ids, &task.outputs),
        })
    });
    let sizes = history.file_sizes();
    let listed = files.iter().zip(&file_ids.ids).map(|(file, id)| {
        let size = sizes.get(file.name.as_str()).copied().unwrap_or(file.bytes);
        json!({ "id": id, "sizeInBytes": size })
    });
    let mut machines = BTreeSet::new();
    let mut executed = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        let Some(mut entry) = execution(history, at) else { continue };
        entry.insert("id".to_owned(), task_ids.ids[at].as_str().into());
        if let Some(machine) = entry.get("machine").and_then(Value::as_str) {
            machines.insert(machine.to_owned());
        }
        if let Some(command) = command(history, task, &commands) {
            entry.insert("command".to_owned(), command);
        }
        executed.push(Value::Object(entry));
    }
    let specification = json!({
        "tasks": specified.collect::<Vec<_>>(),
        "files": listed.collect::<Vec<_>>(),
    });
    let mut workflow = json!({ "specification": specification });
    if !executed.is_empty() {
        let mut execution = json!({
            "makespanInSeconds": history.last_s() - history.begun_s(),
            "executedAt": timestamp(history.begun_s()),
            "tasks": executed,
        });
        if !machines.is_empty() {
            let machines = machines.iter().map(|name| json!({ "nodeName": name }));
            execution["machines"] = machines.collect();
        }
        workflow["execution"] = execution;
    }
    Ok(json!({
        "name": read.name(),
        "description": description(history, task_ids.changed + file_ids.changed),
        "createdAt": timestamp(history.last_s()),
        "schemaVersion": "1.5",
        "runtimeSystem": {
            "name": "Springtide",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "workflow": workflow,
    }))
}

/// The execution of a completed task, without its id and command.
fn execution(history: &RunHistory, task: usize) -> Option<Map<String, Value>> {
    let attempt = history.completion(task)?;
    let AttemptEnd::Completed { wall_s, cpu_s, memory_bytes } = attempt.end else { return None };
    let wall_s = if wall_s > 0.0 { wall_s } else { attempt.duration_s() }.max(RUNTIME_MIN_S);
    let mut entry = Map::new();
    let mut add = |name: &str, value: Value| drop(entry.insert(name.to_owned(), value));
    add("runtimeInSeconds", wall_s.into());
    add("coreCount", history.tasks[task].processors.into());
    if cpu_s > 0.0 {
        add("avgCPU", (100.0 * cpu_s / wall_s).into());
    }
    if memory_bytes > 0 {
        add("memoryInBytes", memory_bytes.into());
    }
    if let Some(node) = &attempt.node {
        add("machine", node.as_str().into());
    }
    Some(entry)
}

/// The command of a task, if it ran a program and the format can have its arguments.
fn command(
    history: &RunHistory,
    task: &Task,
    commands: &BTreeMap<String, String>,
) -> Option<Value> {
    if history.source.as_ref().is_some_and(|source| source.pretend.is_some()) {
        return None;
    }
    let own = match &task.command {
        Some(Command::Program { program, arguments }) => Some((program, arguments)),
        _ => None,
    };
    let names = [Some(&task.id), Some(&task.name), own.map(|(program, _)| program)];
    if let Some(command) = names.into_iter().flatten().find_map(|name| commands.get(name)) {
        return Some(json!({ "program": "sh", "arguments": ["-c", command] }));
    }
    let (program, arguments) = own?;
    // An argument has at least one character.
    let is_valid = !program.is_empty() && arguments.iter().all(|argument| !argument.is_empty());
    is_valid.then(|| json!({ "program": program, "arguments": arguments }))
}

fn description(history: &RunHistory, changed: usize) -> String {
    let state = history.state;
    let mut text = format!("The run {} of Springtide, {state}.", history.manifest.id);
    let failed = history.count(TaskOutcome::Failed);
    if failed > 0 {
        text.push_str(&format!(" Tasks that failed: {failed}."));
    }
    let without = (0..history.tasks.len()).filter(|&at| history.completion(at).is_none()).count();
    if without > 0 {
        text.push_str(&format!(" Tasks without an execution: {without}."));
    }
    if changed > 0 {
        text.push_str(&format!(" Ids with characters that the format forbids: {changed}."));
    }
    text
}

/// Ids with the characters that the format allows: letters, digits, `-`, `_` and `.`.
struct Ids {
    ids: Vec<String>,
    /// Number of ids that differ from the names.
    changed: usize,
}

impl Ids {
    fn new<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_plain = |name: &str| !name.is_empty() && name.chars().all(plain);
        let mut taken: BTreeSet<String> =
            names.clone().filter(|name| is_plain(name)).map(str::to_owned).collect();
        let (mut ids, mut changed) = (Vec::new(), 0);
        for name in names {
            if is_plain(name) {
                ids.push(name.to_owned());
                continue;
            }
            changed += 1;
            let bare: String = name.chars().map(|c| if plain(c) { c } else { '_' }).collect();
            let mut id = if bare.is_empty() { "_".to_owned() } else { bare.clone() };
            let mut number = 2_u32;
            while !taken.insert(id.clone()) {
                id = format!("{bare}-{number}");
                number += 1;
            }
            ids.push(id);
        }
        Self { ids, changed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_unique() {
        let ids = Ids::new(["a_b", "a/b", "a b", "", "c.d-1"].into_iter());
        assert_eq!(ids.ids, ["a_b", "a_b-2", "a_b-3", "_", "c.d-1"]);
        assert_eq!(ids.changed, 3);
    }
}
