//! The directory of a run: manifest, configuration, events, node logs and result.
//!
//! It knows the names of the files, but not their contents, and writes each one atomically.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use springtide_base::atomic_file::{write_atomic, write_unsynced};

use super::log::{LogError, LogHeader, RunLog, SCHEMA};
use crate::id::NodeId;

/// The description of a run in `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format: [`SCHEMA`].
    pub schema: u32,
    /// Name of the run.
    pub run: String,
    /// Registered name of the job.
    pub job: String,
    /// Command line of the run.
    pub command: Vec<String>,
    /// Version of the program.
    pub version: String,
    /// Start time, in microseconds since the Unix epoch.
    pub started_unix_us: u64,
    /// Seed of all random numbers.
    pub seed: Option<u64>,
    /// Adaptation mode of the job's set of nodes, in one word; absent without a grid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// The reason why a run's directory or a file in it cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// The directory holds another run.
    #[error("{} holds another run already: give another --out, or remove it", dir.display())]
    Taken {
        /// Path of the directory.
        dir: PathBuf,
    },
    /// The directory holds no run.
    #[error("{} holds no run: give the directory that `run` was given as --out", dir.display())]
    NoRun {
        /// Path of the directory.
        dir: PathBuf,
    },
    /// The name of a node is not a valid file name.
    #[error("node name `{name}` cannot name a log file: use letters, digits and dashes")]
    Name {
        /// Name of the node.
        name: String,
    },
    /// A file operation failed.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The log cannot be created.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// The directory of a run: `manifest.json`, `config.toml`, `events.jsonl`, `nodes/NODE.log`,
/// `result.json`.
#[derive(Clone, Debug)]
pub struct RunDir {
    root: PathBuf,
    /// Whether files are on disk when they are written.
    is_synced: bool,
}

impl RunDir {
    /// Creates the directory and its parents. An existing directory may hold other files, but no
    /// run.
    ///
    /// # Errors
    /// [`RunDirError::Taken`], [`RunDirError::Io`].
    pub fn create(dir: &Path) -> Result<Self, RunDirError> {
        let run = Self { root: dir.to_owned(), is_synced: true };
        for path in [run.manifest(), run.events(), run.result()] {
            if path.try_exists().map_err(|source| RunDirError::Io { path, source })? {
                return Err(RunDirError::Taken { dir: dir.to_owned() });
            }
        }
        let nodes = dir.join("nodes");
        fs::create_dir_all(&nodes).map_err(|source| RunDirError::Io { path: nodes, source })?;
        Ok(run)
    }

    /// Opens the directory of an existing run, complete or not.
    ///
    /// # Errors
    /// [`RunDirError::NoRun`].
    pub fn open(dir: &Path) -> Result<Self, RunDirError> {
        let run = Self { root: dir.to_owned(), is_synced: true };
        if run.events().is_file() {
            Ok(run)
        } else {
            Err(RunDirError::NoRun { dir: dir.to_owned() })
        }
    }

    /// Writes further files without waits for the disk: they are copies of what is stored
    /// elsewhere.
    pub fn unsynced(self) -> Self {
        Self { is_synced: false, ..self }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Path of the manifest.
    pub fn manifest(&self) -> PathBuf {
        self.root.join("manifest.json")
    }

    /// Path of the effective configuration.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// Path of the run log.
    pub fn events(&self) -> PathBuf {
        self.root.join("events.jsonl")
    }

    /// Path of the result.
    pub fn result(&self) -> PathBuf {
        self.root.join("result.json")
    }

    /// Path of a node's log.
    ///
    /// # Errors
    /// [`RunDirError::Name`]: names come from other hosts and must not lead out of the directory.
    pub fn node_log(&self, node: &NodeId) -> Result<PathBuf, RunDirError> {
        let name = node.as_str();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name.len() > 128 || !name.chars().all(plain) {
            return Err(RunDirError::Name { name: name.chars().take(64).collect() });
        }
        Ok(self.root.join("nodes").join(format!("{name}.log")))
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// [`RunDirError::Io`].
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<(), RunDirError> {
        self.write_json(&self.manifest(), manifest)
    }

    /// Writes the effective configuration.
    ///
    /// # Errors
    /// [`RunDirError::Io`].
    pub fn write_config(&self, toml: &str) -> Result<(), RunDirError> {
        self.write(&self.config(), toml.as_bytes())
    }

    /// Writes the result, the last file of a run. Its presence marks the run as complete.
    ///
    /// # Errors
    /// [`RunDirError::Io`].
    pub fn write_result(&self, result: &serde_json::Value) -> Result<(), RunDirError> {
        self.write_json(&self.result(), result)
    }

    /// Creates the run log. Facts are written until it reaches `max_bytes`.
    ///
    /// # Errors
    /// [`RunDirError::Taken`] if another run has created its log here; [`RunDirError::Log`].
    pub fn begin_log(&self, manifest: &Manifest, max_bytes: u64) -> Result<RunLog, RunDirError> {
        let header = LogHeader {
            schema: SCHEMA,
            run: manifest.run.clone(),
            started_unix_us: manifest.started_unix_us,
            version: manifest.version.clone(),
        };
        RunLog::create(&self.events(), &header, max_bytes).map_err(|error| match error {
            LogError::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                RunDirError::Taken { dir: self.root.clone() }
            }
            error => error.into(),
        })
    }

    /// Resumes the run log of a run whose writer has died.
    ///
    /// # Errors
    /// [`RunDirError::Log`].
    pub fn resume_log(&self, max_bytes: u64) -> Result<RunLog, RunDirError> {
        Ok(RunLog::resume(&self.events(), max_bytes)?)
    }

    fn write_json(&self, path: &Path, value: &impl Serialize) -> Result<(), RunDirError> {
        let mut bytes = serde_json::to_vec_pretty(value)
            .map_err(|error| RunDirError::Io { path: path.to_owned(), source: error.into() })?;
        bytes.push(b'\n');
        self.write(path, &bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), RunDirError> {
        let written =
            if self.is_synced { write_atomic(path, bytes) } else { write_unsynced(path, bytes) };
        written.map_err(|source| RunDirError::Io { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::record::tests::{fact, record};
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            schema: SCHEMA,
            run: "r1".into(),
            job: "fib".into(),
            command: vec!["springtide".into(), "run".into(), "fib".into()],
            version: "0.1.0".into(),
            started_unix_us: 5,
            seed: Some(3),
            mode: Some("static".into()),
        }
    }

    #[test]
    fn a_run_writes_exactly_its_files() {
        let temp = tempfile::tempdir().unwrap();
        let run = RunDir::create(&temp.path().join("a/b")).unwrap();
        run.write_manifest(&manifest()).unwrap();
        run.write_config("grid = \"g\"\n").unwrap();
        let mut log = run.begin_log(&manifest(), u64::MAX).unwrap();
        log.append(&[record("a", 1, fact(1))]).unwrap();
        log.finish().unwrap();
        run.write_result(&json!({ "ok": true })).unwrap();
        let mut names: Vec<_> = fs::read_dir(run.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["config.toml", "events.jsonl", "manifest.json", "nodes", "result.json"]);
        let read: Manifest = serde_json::from_slice(&fs::read(run.manifest()).unwrap()).unwrap();
        assert_eq!(read, manifest());
        let opened = RunDir::open(run.path()).unwrap();
        assert_eq!(crate::event::read(&opened.events()).unwrap().header.run, "r1");
        let error = RunDir::open(temp.path()).unwrap_err().to_string();
        assert!(error.contains("holds no run"), "{error}");
    }

    #[test]
    fn a_directory_holds_one_run() {
        let temp = tempfile::tempdir().unwrap();
        RunDir::create(temp.path()).unwrap().write_manifest(&manifest()).unwrap();
        let error = RunDir::create(temp.path()).unwrap_err();
        assert!(matches!(error, RunDirError::Taken { .. }), "{error}");
    }

    #[test]
    fn node_names_cannot_lead_out_of_the_directory() {
        let temp = tempfile::tempdir().unwrap();
        let run = RunDir::create(temp.path()).unwrap();
        assert_eq!(run.node_log(&"ams-1".into()).unwrap(), temp.path().join("nodes/ams-1.log"));
        for name in ["", "..", "../x", "a/b", "a\\b", "a\0", "\u{e9}", &"x".repeat(129)] {
            assert!(run.node_log(&name.into()).is_err(), "{name:?}");
        }
    }
}
