//! Completed tasks of earlier runs: which need not run again.
//!
//! A task is completed if a journal or a record in a cluster has its key. It runs again if a file
//! that it wrote is needed and no cluster has it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use springtide_actors::files::RUN_FILES;
use springtide_actors::policy::provisioning::from_seconds;
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::outdir::{make_dir, write_file};
use springtide_runtime::id::ClusterId;

use super::Prepared;
use super::flow::{Flow, TaskTimes};
use super::journal::{Journal, JournalEntry, completed_tasks};
use super::spec::RunSpec;
use super::staging::{Staging, pack_directory, path_below};
use springtide_operations::inputs::summed;

/// Results that several runs share.
pub struct SharedCache {
    /// The text that begins all stored names.
    pub prefix: String,
    /// The journal of completed tasks.
    pub journal: Journal,
    /// Its entries so far.
    pub entries: Vec<JournalEntry>,
}

/// The description of a cache.
#[derive(Serialize, Deserialize)]
struct CacheManifest {
    id: String,
}

/// Opens a cache, or creates one with this id.
///
/// # Errors
/// A file cannot be read or written.
pub fn open_cache(dir: &Path, id: u64) -> Result<SharedCache, Failed> {
    make_dir(dir)?;
    let path = dir.join("cache.json");
    if !path.exists() {
        let manifest = CacheManifest { id: format!("{:08x}", id as u32) };
        let text = serde_json::to_vec(&manifest).map_err(|error| cannot("write", &path, &error))?;
        write_file(&path, &text)?;
    }
    let text = std::fs::read(&path).map_err(|error| cannot("read", &path, &error))?;
    let manifest: CacheManifest = serde_json::from_slice(&text)
        .map_err(|error| Failed::usage(format!("{}: {error}", path.display())))?;
    let (journal, entries) = Journal::open(&dir.join("journal.jsonl"))?;
    Ok(SharedCache { prefix: format!("{RUN_FILES}c{}", manifest.id), journal, entries })
}

/// Completed tasks that need not run again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The number of these tasks.
    pub count: usize,
    /// Those that only a record in a cluster shows, and the cluster. The process that ran them was
    /// killed before it knew.
    pub by_records: Vec<(usize, Option<ClusterId>)>,
}

/// Marks tasks as completed that need not run again.
///
/// # Errors
/// The grid does not say which files it has.
pub async fn restore(
    flow: &mut Flow,
    spec: &RunSpec,
    order: &[usize],
    entries: &[JournalEntry],
    staging: &Staging,
    prefix: &str,
    prepared: &Prepared,
) -> Result<Restored, Failed> {
    let stored = if spec.has_files { staging.stored(prefix).await? } else { BTreeMap::new() };
    let mut places: Vec<BTreeSet<ClusterId>> = vec![BTreeSet::new(); spec.stored.len()];
    for (file, name) in spec.stored.iter().enumerate() {
        let Some(clusters) = stored.get(name) else { continue };
        places[file] = clusters.keys().cloned().collect();
        for cluster in clusters.keys() {
            flow.add_location(file, cluster.clone());
        }
        if let Some(entry) = clusters.values().next() {
            staging.add_entry(entry.clone());
        }
    }
    let known = completed_tasks(entries);
    let done: Vec<bool> = spec
        .tasks
        .iter()
        .zip(&spec.steps)
        .map(|(task, step)| {
            known.get(&step.id).is_some_and(|known| known.key == task.key)
                || stored.contains_key(&task.record)
        })
        .collect();
    let is_result = |file: usize| {
        let name = &prepared.read.workflow.files[file].name;
        let wanted = prepared.args.fetch.is_some() || prepared.args.keep;
        wanted && spec.results.contains(&file) && !prepared.fetched.contains(name)
    };
    let runs = tasks_to_run(spec, order, &done, &|file| !places[file].is_empty(), &is_result);
    let mut restored = Restored::default();
    for &task in order {
        if runs[task] {
            continue;
        }
        restored.count += 1;
        let completed = known.get(&spec.steps[task].id);
        let completed = completed.filter(|known| known.key == spec.tasks[task].key);
        if completed.is_none() {
            let clusters = stored.get(&spec.tasks[task].record);
            let cluster = clusters.and_then(|clusters| clusters.keys().next()).cloned();
            restored.by_records.push((task, cluster));
        }
        let times = TaskTimes {
            cluster: completed.and_then(|completed| completed.cluster.clone()),
            start: completed.map(|completed| from_seconds(completed.start_s)),
            end: completed.map(|completed| from_seconds(completed.end_s)),
        };
        flow.restore(task, times);
    }
    Ok(restored)
}

/// Results in a directory that are equal to those in the clusters. `run` is the run's directory.
///
/// # Errors
/// A file cannot be read.
pub async fn copied_results(
    dir: &Path,
    run: &Path,
    spec: &RunSpec,
    prepared: &Prepared,
    staging: &Staging,
) -> Result<Vec<String>, Failed> {
    let mut copied = Vec::new();
    for &file in &spec.results {
        let name = &prepared.read.workflow.files[file].name;
        let path = path_below(dir, name);
        let Some(entry) = staging.known_entry(&spec.stored[file]) else { continue };
        let is_directory = prepared.read.workflow.files[file].is_directory();
        let compared = if is_directory && path.is_dir() {
            // Equal directories have equal archives.
            let archive = run.join("compared.tar");
            pack_directory(&path, &archive).await?;
            archive
        } else if !is_directory && path.is_file() {
            path.clone()
        } else {
            continue;
        };
        if summed(&compared, name).await?.sum == entry.sum {
            copied.push(name.clone());
        }
        if is_directory {
            // Only this comparison needs it.
            let _ = std::fs::remove_file(&compared);
        }
    }
    Ok(copied)
}

/// The tasks that must run: those that are not done, and those that wrote a missing file which a
/// task that runs needs, or a missing result.
fn tasks_to_run(
    spec: &RunSpec,
    order: &[usize],
    done: &[bool],
    exists: &dyn Fn(usize) -> bool,
    is_result: &dyn Fn(usize) -> bool,
) -> Vec<bool> {
    let mut needed = vec![false; spec.stored.len()];
    let mut runs = vec![false; spec.steps.len()];
    // Children come first: they say which files are needed.
    for &task in order.iter().rev() {
        let files = &spec.step_files[task];
        let lacks = |&file: &usize| (needed[file] || is_result(file)) && !exists(file);
        runs[task] = !done[task] || files.outputs.iter().any(lacks);
        if runs[task] {
            files.inputs.iter().for_each(|(file, _)| needed[*file] = true);
        }
    }
    runs
}

/// Continues the numbers of attempts, so that logs of earlier attempts remain.
pub fn restore_attempts(flow: &mut Flow, spec: &RunSpec, entries: &[JournalEntry]) {
    let mut attempts: BTreeMap<&str, u32> = BTreeMap::new();
    for entry in entries {
        if let JournalEntry::Started { task, attempt, .. } = entry {
            let last = attempts.entry(task).or_default();
            *last = (*last).max(*attempt);
        }
    }
    for (task, step) in spec.steps.iter().enumerate() {
        if let Some(&attempt) = attempts.get(step.id.as_str()) {
            flow.set_attempts(task, attempt);
        }
    }
}
