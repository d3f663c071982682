//! The directories of a pilot's tasks: inputs, outputs and logs.
//!
//! All functions block. This module does not know processes, except that a guard ends those of a
//! node that has died.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::command::children::{create_private, provide_input};

use super::message::{PilotTask, TaskFile, TaskProgram, TaskRecord};
use super::packed::{is_directory_name, pack, unpack};

/// Waits until this node's process has ended, then kills the groups of processes that are named by
/// files, and removes the directory.
const GUARD: &str = r#"read -r _
for group in "$1"/groups/*; do
  [ -e "$group" ] && kill -s KILL -- "-${group##*/}" 2>/dev/null
done
rm -rf -- "$1""#;

/// The directory of all tasks of a node, which a guard removes if this process dies.
pub(super) struct NodeDirectory {
    path: PathBuf,
    /// The name of the pilot, which no other pilot of the grid has.
    name: String,
    guard: Child,
}

impl NodeDirectory {
    /// Creates the directory, which no other user may read.
    ///
    /// # Errors
    /// It cannot be created, or the guard does not start.
    pub(super) fn create(name: &str) -> io::Result<Self> {
        let path = create_private(&std::env::temp_dir(), &format!("springtide-pilot-{name}"))?;
        fs::create_dir(path.join("groups"))?;
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "sh"]).arg(&path);
        // In a group of its own, for the group of this node's process may be killed as a whole.
        guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let guard = guard.spawn()?;
        Ok(Self { path, name: name.to_owned(), guard })
    }

    /// The file that names a group of processes for the guard.
    pub(super) fn group_file(&self, group: u32) -> PathBuf {
        self.path.join("groups").join(group.to_string())
    }

    /// Creates the directory of a task.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn create_task(&self, number: u64) -> io::Result<TaskDirectory> {
        let path = self.path.join(format!("task-{number}"));
        fs::create_dir(&path)?;
        fs::create_dir(path.join(OWN))?;
        Ok(TaskDirectory { path, pilot: self.name.clone() })
    }
}

impl Drop for NodeDirectory {
    fn drop(&mut self) {
        // The guard's input ends; no group is left that it could kill.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// The directory in a task's directory for what is not the task's own.
const OWN: &str = ".springtide";

/// The directory in which a task runs.
#[derive(Debug)]
pub(super) struct TaskDirectory {
    path: PathBuf,
    /// The name of the task's pilot.
    pilot: String,
}

impl TaskDirectory {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file that belongs to the pilot.
    pub(super) fn own(&self, name: &str) -> PathBuf {
        self.path.join(OWN).join(name)
    }

    /// The path of a task's file, whose parent exists then. It cannot lead out of the directory.
    ///
    /// # Errors
    /// The name does lead out, names no file, or the parent cannot be created.
    pub(super) fn inside(&self, name: &str) -> Result<PathBuf, String> {
        let mut path = self.path.clone();
        for part in Path::new(name).components() {
            match part {
                Component::Normal(part) => path.push(part),
                Component::CurDir | Component::RootDir => {}
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(format!("{name:?} leads out of the task's directory"));
                }
            }
        }
        if path == self.path {
            return Err(format!("{name:?} is no name of a file"));
        }
        if let Some(parent) = path.parent().filter(|parent| *parent != self.path) {
            fs::create_dir_all(parent).map_err(|error| format!("{name}: {error}"))?;
        }
        Ok(path)
    }

    /// Provides the inputs of a task, and the lists of its files.
    ///
    /// # Errors
    /// An input is missing, or a file cannot be created.
    pub(super) fn provide(&self, task: &PilotTask, stored: Option<&Path>) -> Result<(), String> {
        for input in &task.inputs {
            let Some(stored) = stored else {
                return Err("this node has no directory for files".to_owned());
            };
            let from = stored.join(&input.stored);
            if !from.is_file() {
                return Err(format!("its input {} is not in {}", input.name, stored.display()));
            }
            let to = self.inside(&input.name)?;
            let provided = if is_directory_name(&input.name) {
                unpack(&from, &to)
            } else {
                provide_input(&from, &to, is_program_of(task, &input.name))
            };
            provided.map_err(|error| format!("{}: {error}", input.name))?;
        }
        for output in &task.outputs {
            self.inside(&output.name)?; // so that its parent exists
        }
        if matches!(task.program, TaskProgram::Placeholder { .. }) {
            return Ok(());
        }
        self.list(INPUTS, &task.inputs)?;
        self.list(OUTPUTS, &task.outputs)
    }

    /// Writes the names of files, a line each.
    fn list(&self, name: &str, files: &[TaskFile]) -> Result<(), String> {
        let lines: String = files.iter().map(|file| format!("{}\n", file.name)).collect();
        fs::write(self.own(name), lines).map_err(|error| format!("{name}: {error}"))
    }

    /// Moves the outputs to the cluster's directory: all of them, each complete, or none. The
    /// record follows.
    ///
    /// # Errors
    /// An output is missing or too large, or a file cannot be written.
    pub(super) fn store(&self, task: &PilotTask, stored: Option<&Path>) -> Result<(), String> {
        if task.outputs.is_empty() && task.record.is_none() {
            return Ok(());
        }
        let Some(stored) = stored else {
            let first = task.outputs.first();
            return first.map_or(Ok(()), |output| {
                let name = &output.name;
                Err(format!("its output {name} has no place: this node has no directory for files"))
            });
        };
        let mut parts = PartFiles::default();
        for output in &task.outputs {
            let part = parts.add(stored, &output.stored, &self.pilot);
            self.store_output(output, task.output_bytes_max, &part)?;
        }
        if let Some(TaskRecord { stored: name, content }) = &task.record {
            let part = parts.add(stored, name, &self.pilot);
            fs::write(&part, content).map_err(|error| format!("{}: {error}", part.display()))?;
        }
        parts.complete()
    }
}

impl TaskDirectory {
    /// Moves an output to its part in the cluster's directory.
    ///
    /// # Errors
    /// The output is missing or too large, or the part cannot be written.
    fn store_output(&self, output: &TaskFile, bytes_max: u64, part: &Path) -> Result<(), String> {
        let (from, name) = (self.inside(&output.name)?, &output.name);
        let found = fs::metadata(&from).ok();
        let too_large = |bytes: &dyn std::fmt::Display| {
            format!(
                "its output {name} has {bytes} bytes, and no file may have more than {bytes_max}: \
                 see `files.size_max` of the grid's config"
            )
        };
        match (found, is_directory_name(name)) {
            (Some(found), true) if found.is_dir() => match pack(&from, part, bytes_max) {
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                    Err(too_large(&format_args!("more than {bytes_max}")))
                }
                packed => packed.map_err(|error| format!("{name}: {error}")),
            },
            (Some(found), false) if found.is_file() => {
                if found.len() > bytes_max {
                    return Err(too_large(&found.len()));
                }
                move_file(&from, part).map_err(|error| format!("{name}: {error}"))
            }
            (Some(found), false) if found.is_dir() => Err(format!(
                "its output {name} is a directory: a workflow's name of one ends with a slash"
            )),
            _ => Err(format!("it did not write its output {name}")),
        }
    }
}

/// The names of the lists of a task's files.
pub(super) const INPUTS: &str = "inputs";
pub(super) const OUTPUTS: &str = "outputs";

fn is_program_of(task: &PilotTask, name: &str) -> bool {
    let TaskProgram::Command { program, .. } = &task.program else { return false };
    program.strip_prefix("./") == Some(name)
}

/// Moves a file, also to another file system. A link is replaced by a copy of what it names.
fn move_file(from: &Path, to: &Path) -> io::Result<()> {
    if !from.is_symlink() && fs::rename(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to).map(drop)
}

impl Drop for TaskDirectory {
    fn drop(&mut self) {
        // What cannot be removed stays in the system's directory of temporary files.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Files that are not complete. They are removed if they do not become complete.
#[derive(Default)]
struct PartFiles {
    /// Each with its final path, the record last.
    files: Vec<(PathBuf, PathBuf)>,
}

impl PartFiles {
    /// Adds a file. Other pilots may write to the directory, so the part has the pilot's name.
    fn add(&mut self, dir: &Path, name: &str, pilot: &str) -> PathBuf {
        let part = dir.join(format!(".{name}.{pilot}.part"));
        self.files.push((part.clone(), dir.join(name)));
        part
    }

    fn complete(mut self) -> Result<(), String> {
        for (part, path) in std::mem::take(&mut self.files) {
            fs::rename(&part, &path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}

impl Drop for PartFiles {
    fn drop(&mut self) {
        for (part, _) in &self.files {
            let _ = fs::remove_file(part);
        }
    }
}

/// Creates a file of zeros, or a directory with one.
///
/// # Errors
/// The operating system's.
pub(super) fn create_zeros(path: &Path, output: &TaskFile) -> io::Result<()> {
    let bytes = output.bytes;
    if is_directory_name(&output.name) {
        fs::create_dir_all(path)?;
        return File::create(path.join("zeros"))?.set_len(bytes);
    }
    // The file has no blocks, and its reader sees zeros.
    File::create(path)?.set_len(bytes)
}
