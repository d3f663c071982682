//! What a program can run: its tasks, shared objects and jobs, by name.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::batch::Batch;
use super::checkpoint::Checkpoint;
use super::context::Context;
use super::task::{InputError, Job, Outcome, Stop, Task};
use crate::meter::BenchmarkSpec;
use crate::share::{Merged, ObjectTypes, Versioned};
use crate::wire::{self, WireError};

/// Runs a task that came as bytes and gives its output as bytes.
pub(crate) type RunEncoded = fn(&Bytes, &Context) -> Result<Bytes, Stop>;

/// Runs the root of a job that came as bytes, from its start or from a checkpoint.
pub(crate) type RunJob = fn(&[u8], Option<Checkpoint>, &Context) -> Result<Outcome, Stop>;

#[derive(Clone, Copy)]
pub(crate) struct TaskEntry {
    pub(crate) name: &'static str,
    pub(crate) run: RunEncoded,
    /// See [`Task::PROCESS`].
    pub(crate) process: bool,
}

/// A registered job.
#[derive(Clone, Copy)]
pub struct JobEntry {
    /// Its name.
    pub name: &'static str,
    /// One line on it.
    pub about: &'static str,
    pub(crate) run: RunJob,
    pub(crate) benchmark: fn(&[u8]) -> Result<Option<Bytes>, WireError>,
    pub(crate) accept: fn(&[u8], Size) -> Result<u32, WireError>,
}

/// A job is asked about its number of nodes: the present one, and what is offered or asked for.
#[derive(Clone, Copy)]
pub(crate) enum Size {
    Growth(u32, u32),
    Shrink(u32, u32),
}

impl Size {
    /// The answer of whoever has nothing to say.
    pub(crate) fn as_asked(self) -> u32 {
        let (Self::Growth(_, asked) | Self::Shrink(_, asked)) = self;
        asked
    }
}

impl JobEntry {
    /// The benchmark that a job, encoded by [`encode_job`], brings along: [`Job::benchmark`].
    ///
    /// # Errors
    /// If the job is not one of this entry's, or its benchmark does not serialise.
    pub fn benchmark(&self, job: &[u8]) -> Result<Option<BenchmarkSpec>, WireError> {
        let body = (self.benchmark)(job)?;
        Ok(body.map(|body| BenchmarkSpec::of_job(self.name, body)))
    }

    /// How many of the `offered` nodes a job, encoded by [`encode_job`], takes that has `current`: [`Job::accept_growth`].
    ///
    /// # Errors
    /// If the job is not one of this entry's.
    pub fn accept_growth(&self, job: &[u8], current: u32, offered: u32) -> Result<u32, WireError> {
        Ok((self.accept)(job, Size::Growth(current, offered))?.min(offered))
    }

    /// How many nodes it gives up when `asked` for so many: [`Job::accept_shrink`], and no more than it has.
    ///
    /// # Errors
    /// If the job is not one of this entry's.
    pub fn accept_shrink(&self, job: &[u8], current: u32, asked: u32) -> Result<u32, WireError> {
        Ok((self.accept)(job, Size::Shrink(current, asked))?.min(current))
    }
}

/// The tasks, shared objects and jobs of a program. Nodes of one job must have equal registries: see
/// [`Registry::fingerprint`].
#[derive(Default)]
pub struct Registry {
    tasks: BTreeMap<String, TaskEntry>,
    jobs: BTreeMap<&'static str, JobEntry>,
    objects: ObjectTypes,
    object_names: Vec<&'static str>,
    version: String,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a task. Registering it again is harmless.
    ///
    /// # Panics
    /// If another task has the same name.
    pub fn task<T: Task>(&mut self) -> &mut Self {
        self.insert::<T>();
        self.insert::<Batch<T>>();
        self
    }

    fn insert<T: Task>(&mut self) {
        let name = wire_name(T::NAME, T::BATCH);
        let entry = TaskEntry { name: T::NAME, run: run_encoded::<T>, process: T::PROCESS };
        if let Some(old) = self.tasks.insert(name, entry) {
            assert!(
                std::ptr::eq(old.name, T::NAME) || old.name == T::NAME,
                "two tasks are named {}",
                T::NAME
            );
        }
    }

    /// Registers a versioned shared object.
    pub fn versioned<V: Versioned>(&mut self) -> &mut Self {
        self.objects.versioned::<V>();
        self.object_names.push(V::NAME);
        self
    }

    /// Registers a merged shared object.
    pub fn merged<M: Merged>(&mut self) -> &mut Self {
        self.objects.merged::<M>();
        self.object_names.push(M::NAME);
        self
    }

    /// Registers a job with all that it uses.
    ///
    /// # Panics
    /// If another job has the same name.
    pub fn job<J: Job>(&mut self) -> &mut Self {
        J::register(self);
        let entry = JobEntry {
            name: J::NAME,
            about: J::ABOUT,
            run: |body, resume, cx| {
                let job = wire::decode_payload::<J>(body)?;
                match resume {
                    Some(state) => job.resume(state, cx),
                    None => job.run(cx),
                }
            },
            benchmark: |body| {
                let small = wire::decode_payload::<J>(body)?.benchmark();
                small.map(|small| wire::encode_payload(&small)).transpose()
            },
            accept: |body, size| {
                if !J::NEGOTIATES {
                    return Ok(size.as_asked());
                }
                let job = wire::decode_payload::<J>(body)?;
                Ok(match size {
                    Size::Growth(current, offered) => job.accept_growth(current, offered),
                    Size::Shrink(current, asked) => job.accept_shrink(current, asked),
                })
            },
        };
        let old = self.jobs.insert(J::NAME, entry);
        assert!(old.is_none(), "two jobs are named {}", J::NAME);
        self
    }

    /// Sets the program's own version, which takes part in the fingerprint: raise it when tasks of equal names change
    /// their fields or meaning.
    pub fn version(&mut self, version: &str) -> &mut Self {
        self.version = version.to_owned();
        self
    }

    /// Equal for programs whose tasks, objects, jobs and version are named equally: nodes of one job must have one. FNV-1a.
    pub fn fingerprint(&self) -> u64 {
        let mut objects = self.object_names.clone();
        objects.sort_unstable();
        objects.dedup();
        let tasks = self.tasks.keys().map(String::as_str);
        let parts = [self.version.as_str(), "tasks"].into_iter();
        let parts = parts.chain(tasks).chain(["objects"]).chain(objects).chain(["jobs"]);
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for part in parts.chain(self.jobs.keys().copied()) {
            for byte in part.bytes().chain([0]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        hash
    }

    /// The jobs, by name.
    pub fn jobs(&self) -> impl Iterator<Item = &JobEntry> {
        self.jobs.values()
    }

    /// The job of this name.
    pub fn find_job(&self, name: &str) -> Option<&JobEntry> {
        self.jobs.get(name)
    }

    pub(crate) fn find_task(&self, name: &str) -> Option<TaskEntry> {
        self.tasks.get(name).copied()
    }

    /// The types of the shared objects.
    pub fn objects(&self) -> &ObjectTypes {
        &self.objects
    }
}

/// A job as it is handed to the grid.
///
/// # Errors
/// If the job's options or files are wrong, or it does not serialise.
pub fn encode_job<J: Job>(mut job: J) -> Result<Bytes, InputError> {
    job.prepare()?;
    wire::encode_payload(&job)
        .map_err(|error| InputError::new(format!("job {} does not serialise: {error}", J::NAME)))
}

fn run_encoded<T: Task>(body: &Bytes, cx: &Context) -> Result<Bytes, Stop> {
    let task = wire::decode_payload::<T>(body)?;
    let output = cx.run_task(task)?;
    Ok(wire::encode_payload(&output)?)
}

/// The name a task travels under.
pub(crate) fn wire_name(name: &str, batch: bool) -> String {
    if batch { format!("{name}*") } else { name.to_owned() }
}
