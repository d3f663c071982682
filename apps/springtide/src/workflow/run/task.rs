//! A task of a workflow as a job: a command that runs on a node, with the files that it reads, and whose files others may read then.
//!
//! The command runs in a directory of its own, in which what it reads lies under the names that the workflow has for it (links: what it
//! reads it must not change). What it writes is moved to the cluster's directory of files. Must not know who waits for whom.

use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use springtide_cli::outdir::{create_file, make_dir};
use springtide_runtime::work::{Context, Job, Outcome, Registry, Stop};

/// Whether a command has ended is looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// So much of the end of what a command says is told.
const SAID_MAX: u64 = 2000;
/// Zeros are written in pieces of this size.
const PIECE: usize = 64 << 10;

/// A file of the workflow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAs {
    /// As it is called in clusters' directories.
    pub kept: String,
    /// As the workflow calls it.
    pub name: String,
    /// How long it is to be, where nothing writes it but a stand-in.
    pub bytes: u64,
}

/// What a task runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TaskCommand {
    /// This.
    Program {
        /// Its path, or a name that is looked for as commands are.
        program: String,
        /// What it is given.
        arguments: Vec<String>,
    },
    /// A stand-in, which takes so long and writes files of the right size.
    Pretend {
        /// How long.
        seconds: f64,
    },
}

/// A task of a workflow, as its node runs it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkflowTask {
    /// Name of the workflow.
    pub workflow: String,
    /// Name of the task.
    pub id: String,
    /// Command that it runs, or its stand-in.
    pub what: TaskCommand,
    /// Processors that it was given.
    pub processors: u32,
    /// Files that it reads.
    pub inputs: Vec<FileAs>,
    /// Files that it writes.
    pub outputs: Vec<FileAs>,
    /// Bytes that the grid lets a file have.
    pub largest: u64,
}

impl Job for WorkflowTask {
    const NAME: &'static str = "workflow-task";
    const ABOUT: &'static str = "a task of a workflow: what `workflow run` submits";

    fn register(_: &mut Registry) {}

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let room =
            Room::make().map_err(|error| self.failed(&format!("no directory for it: {error}")))?;
        for file in &self.inputs {
            let from = cx.input_file(&file.kept)?;
            room.link(&from, &file.name).map_err(|error| self.failed(&error))?;
        }
        let dir = if self.outputs.is_empty() { None } else { Some(cx.input_dir()?) };
        match &self.what {
            TaskCommand::Program { program, arguments } => {
                self.command(&room, program, arguments, cx)?
            }
            TaskCommand::Pretend { seconds } => self.pretend(&room, *seconds, cx)?,
        }
        if let Some(dir) = dir {
            room.keep(&self.outputs, self.largest, &dir).map_err(|error| self.failed(&error))?;
        }
        Ok(Outcome { checksum: 0, result: json!({ "task": self.id }) })
    }
}

impl WorkflowTask {
    fn failed(&self, why: &dyn std::fmt::Display) -> Stop {
        Stop::fail(format_args!("task {}: {why}", self.id))
    }

    fn command(
        &self,
        room: &Room,
        program: &str,
        arguments: &[String],
        cx: &Context,
    ) -> Result<(), Stop> {
        let said = room.path.join(".said");
        let file = create_file(&said).map_err(|failed| self.failed(&failed))?;
        let both = file.try_clone().map_err(|error| self.failed(&error))?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&room.path).process_group(0);
        command.env("SPRINGTIDE_WORKFLOW", &self.workflow).env("SPRINGTIDE_TASK", &self.id);
        command.env("SPRINGTIDE_PROCESSORS", self.processors.to_string());
        command.stdin(Stdio::null()).stdout(file).stderr(both);
        let child = command.spawn();
        let child =
            child.map_err(|error| self.failed(&format!("cannot start {program}: {error}")))?;
        let mut running =
            Running::guarded(child, &room.path).map_err(|error| self.failed(&error))?;
        let status = loop {
            cx.check()?;
            match running.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => std::thread::sleep(LOOK_EVERY),
                Err(error) => return Err(self.failed(&error)),
            }
        };
        if status.success() {
            Ok(())
        } else {
            Err(self.failed(&describe_failure(program, status, &said)))
        }
    }

    fn pretend(&self, room: &Room, seconds: f64, cx: &Context) -> Result<(), Stop> {
        let until = std::time::Instant::now() + Duration::from_secs_f64(seconds.max(0.0));
        while let Some(left) = until.checked_duration_since(std::time::Instant::now()) {
            cx.check()?;
            std::thread::sleep(left.min(LOOK_EVERY));
        }
        for file in &self.outputs {
            let made = || -> io::Result<()> {
                let path = room.inside(&file.name).map_err(io::Error::other)?;
                let mut out =
                    create_file(&path).map_err(|failed| io::Error::other(failed.message))?;
                let (zeros, mut left) = ([0; PIECE], file.bytes);
                while left > 0 {
                    let piece = left.min(PIECE as u64) as usize;
                    out.write_all(&zeros[..piece])?;
                    left -= piece as u64;
                }
                Ok(())
            };
            made().map_err(|error| self.failed(&format!("{}: {error}", file.name)))?;
        }
        Ok(())
    }
}

/// Describes the end of a failed command, with the last part of its output.
fn describe_failure(program: &str, status: ExitStatus, said: &Path) -> String {
    let end = || -> io::Result<Vec<u8>> {
        let mut file = File::open(said)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SAID_MAX)))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        Ok(end)
    };
    let end = end().unwrap_or_default();
    let plain = |c: &char| !c.is_control() || *c == '\n';
    let text: String = String::from_utf8_lossy(&end).chars().filter(plain).collect();
    match text.trim() {
        "" => format!("{program} ended with {status}, and said nothing"),
        text => format!("{program} ended with {status}; the end of what it said:\n{text}"),
    }
}

/// Reads until this process writes a line or is gone, and then ends a group of processes; if it is gone, the directory goes as well.
const GUARD: &str = r#"read -r _ && told=1; kill -s KILL -- "-$1"; [ "$told" ] || rm -rf -- "$2""#;

/// A command, which outlives neither the task nor this process, however that ends; nor does what it has started.
struct Running {
    child: Child,
    guard: Option<Child>,
}

impl Running {
    /// With who ends it and removes its directory when this process cannot any more.
    fn guarded(child: Child, room: &Path) -> Result<Self, String> {
        let group = child.id().to_string();
        let mut running = Self { child, guard: None };
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "sh", &group]).arg(room);
        // In a group of its own, for this process's group may be killed as a whole.
        guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        running.guard = Some(guard.spawn().map_err(|error| format!("cannot start sh: {error}"))?);
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Also what it has left running when it ended by itself.
        if let Some(guard) = &mut self.guard {
            let told = guard.stdin.take().map(|mut end| end.write_all(b"\n"));
            if matches!(told, Some(Ok(()))) {
                let _ = guard.wait();
            }
        }
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The directory in which a command runs.
struct Room {
    path: PathBuf,
}

impl Room {
    fn make() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("springtide-task-{:x}", random()));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    /// A place in it for a file of the workflow, which may not lead out of it.
    fn inside(&self, name: &str) -> Result<PathBuf, String> {
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
        if let Some(parent) = path.parent() {
            make_dir(parent).map_err(|failed| format!("{name}: {failed}"))?;
        }
        Ok(path)
    }

    fn link(&self, from: &Path, name: &str) -> Result<(), String> {
        let to = self.inside(name)?;
        std::os::unix::fs::symlink(from, to).map_err(|error| format!("{name}: {error}"))
    }

    /// Moves what was written to where others find it: all of it, each file whole, or nothing.
    fn keep(&self, files: &[FileAs], largest: u64, dir: &Path) -> Result<(), String> {
        let mut parts = Parts { all: Vec::new() };
        for file in files {
            let from = self.inside(&file.name)?;
            if !from.is_file() {
                return Err(format!(
                    "it has not written {}, as the workflow says it does",
                    file.name
                ));
            }
            let bytes = from.metadata().map_or(0, |about| about.len());
            if bytes > largest {
                // No other cluster could have it.
                return Err(format!(
                    "{} has {bytes} bytes, and no file may have more than {largest}: see `files.size_max` of the grid's config",
                    file.name
                ));
            }
            // Machines share the directory: no two name a part alike.
            let part = dir.join(format!(".{:x}.part", random()));
            parts.all.push((part.clone(), dir.join(&file.kept)));
            fs::copy(&from, &part).map_err(|error| format!("{}: {error}", file.name))?;
        }
        for (part, kept) in std::mem::take(&mut parts.all) {
            fs::rename(&part, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        }
        Ok(())
    }
}

/// Files that are not whole, or of which others are not: removed, if nothing comes of them.
struct Parts {
    /// Each with the name that it is to have.
    all: Vec<(PathBuf, PathBuf)>,
}

impl Drop for Parts {
    fn drop(&mut self) {
        for (part, _) in &self.all {
            let _ = fs::remove_file(part);
        }
    }
}

/// A number that nobody else has drawn.
fn random() -> u64 {
    // The standard library's maps are seeded by the system.
    RandomState::new().build_hasher().finish()
}

impl Drop for Room {
    fn drop(&mut self) {
        // What cannot be removed is in a directory for such things.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_of_a_tasks_directory() {
        let room = Room::make().unwrap();
        let path = room.path.clone();
        for bad in ["", ".", "/", "..", "a/../../b", "../x"] {
            room.inside(bad).expect_err(bad);
        }
        assert_eq!(room.inside("/data/a.fits").unwrap(), path.join("data/a.fits"));
        assert!(path.join("data").is_dir());
        drop(room);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_task_writes_is_kept_as_a_whole_or_not_at_all() {
        let (room, dir) = (Room::make().unwrap(), tempfile::tempdir().unwrap());
        let file = FileAs { kept: "run.a".to_owned(), name: "out/a".to_owned(), bytes: 0 };
        let files = [FileAs { kept: "run.b".to_owned(), name: "b".to_owned(), bytes: 0 }, file];
        fs::write(room.inside("b").unwrap(), "one of two").unwrap();
        let missing = room.keep(&files, 10, dir.path()).unwrap_err();
        assert!(missing.contains("has not written out/a"), "{missing}");
        fs::write(room.inside("out/a").unwrap(), "text").unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let large = room.keep(&files, 9, dir.path()).unwrap_err();
        assert!(large.contains("b has 10 bytes"), "{large}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        room.keep(&files, 10, dir.path()).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("run.a")).unwrap(), "text");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
