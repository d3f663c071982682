//! The registry of a program's tasks, shared objects and jobs, by name.

use std::any::TypeId;
use std::collections::BTreeMap;

use bytes::Bytes;

use super::checkpoint::Checkpoint;
use super::context::Context;
use super::core::remote_task::wire_name;
use super::outcome::{InputError, Outcome, Stop};
use super::task::{Batch, Job, Task};
use crate::checksum::checksum;
use crate::guard::call_user_code;
use crate::meter::BenchmarkSpec;
use crate::processors::Processors;
use crate::share::{Merged, ObjectTypes, Versioned};
use crate::wire::{self, WireError};

/// Runs an encoded task and returns its encoded output.
pub(crate) type RunEncoded = fn(&Bytes, &Context) -> Result<Bytes, Stop>;

/// Runs the root of an encoded job, from its start or from a checkpoint.
pub(crate) type RunJob = fn(&[u8], Option<Checkpoint>, &Context) -> Result<Outcome, Stop>;

#[derive(Clone, Copy)]
pub(crate) struct RegisteredTask {
    pub(crate) name: &'static str,
    /// The task's type, which distinguishes it from another one of the same name.
    of: TypeId,
    pub(crate) run: RunEncoded,
    /// See [`Task::PROCESS`].
    pub(crate) process: bool,
}

/// An entry of the registry for a job.
#[derive(Clone, Copy)]
pub struct JobEntry {
    /// The job's registered name.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    pub(crate) run: RunJob,
    pub(crate) benchmark: fn(&[u8]) -> Result<Option<Bytes>, WireError>,
    pub(crate) accept: fn(&[u8], Size) -> Result<Processors, WireError>,
}

/// A question to a job about its number of nodes: the current sizes, and the offered or requested
/// ones.
#[derive(Clone, Copy)]
pub(crate) enum Size {
    Growth(Processors, Processors),
    Shrink(Processors, Processors),
}

impl Size {
    /// The default answer: all that is offered or requested.
    pub(crate) fn as_asked(self) -> Processors {
        let (Self::Growth(_, asked) | Self::Shrink(_, asked)) = self;
        asked
    }
}

impl JobEntry {
    /// Calls the job's own code; returns `else_` if it panics.
    fn call<R>(&self, what: &str, else_: R, code: impl FnOnce() -> R) -> R {
        call_user_code(code).unwrap_or_else(|panic| {
            tracing::warn!(job = self.name, panic, "{what} panicked: its default answer applies");
            else_
        })
    }

    /// The benchmark of a job that was encoded by [`encode_job`], from [`Job::benchmark`]. `None`
    /// if that panics.
    ///
    /// # Errors
    /// If the job does not belong to this entry, or its benchmark cannot be encoded.
    pub fn benchmark(&self, job: &[u8]) -> Result<Option<BenchmarkSpec>, WireError> {
        let body = self.call("Job::benchmark", Ok(None), || (self.benchmark)(job))?;
        Ok(body.map(|body| BenchmarkSpec::of_job(self.name, body)))
    }

    /// The number of `offered` processors that an encoded job with `current` ones accepts:
    /// [`Job::accept_growth`]. All, if that panics.
    ///
    /// # Errors
    /// If the job does not belong to this entry.
    pub fn accept_growth(
        &self,
        job: &[u8],
        current: Processors,
        offered: Processors,
    ) -> Result<Processors, WireError> {
        let size = Size::Growth(current, offered);
        let says = || (self.accept)(job, size);
        Ok(self.call("Job::accept_growth", Ok(size.as_asked()), says)?.min(offered))
    }

    /// The number of processors that an encoded job releases when `asked` for some:
    /// [`Job::accept_shrink`], at most all it has. As many as requested, if that panics.
    ///
    /// # Errors
    /// If the job does not belong to this entry.
    pub fn accept_shrink(
        &self,
        job: &[u8],
        current: Processors,
        asked: Processors,
    ) -> Result<Processors, WireError> {
        let size = Size::Shrink(current, asked);
        let says = || (self.accept)(job, size);
        Ok(self.call("Job::accept_shrink", Ok(size.as_asked()), says)?.min(current))
    }
}

/// The tasks, shared objects and jobs of a program. Nodes of one job must have equal registries:
/// see [`Registry::fingerprint`].
#[derive(Default)]
pub struct Registry {
    tasks: BTreeMap<String, RegisteredTask>,
    jobs: BTreeMap<&'static str, JobEntry>,
    objects: ObjectTypes,
    object_names: Vec<&'static str>,
    version: String,
    is_strict: bool,
}

impl Registry {
    /// Creates an empty registry.
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
        let (of, process) = (TypeId::of::<T>(), T::PROCESS);
        let entry = RegisteredTask { name: T::NAME, of, run: run_encoded::<T>, process };
        if let Some(old) = self.tasks.insert(name, entry) {
            assert!(old.of == of, "two tasks are named {}: give one of them another NAME", T::NAME);
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

    /// Sets the program's own version, which is part of the fingerprint. Raise it when tasks change
    /// their fields or meaning under the same name.
    pub fn version(&mut self, version: &str) -> &mut Self {
        self.version = version.to_owned();
        self
    }

    /// Makes debug builds fail where a task of an unregistered type is created. Otherwise such a
    /// task fails only if another node steals it.
    pub fn strict(&mut self) -> &mut Self {
        self.is_strict = true;
        self
    }

    /// Checks that a task of this type may be created: see [`Registry::strict`].
    pub(crate) fn check_created<T: Task>(&self) -> Result<(), Stop> {
        let is_registered = || self.tasks.get(T::NAME).is_some_and(|e| e.of == TypeId::of::<T>());
        if !self.is_strict || is_registered() {
            return Ok(());
        }
        Err(Stop::fail(format_args!(
            "task {} is not registered: add its type to the tasks of this program",
            T::NAME
        )))
    }

    /// A hash (FNV-1a) of the names of tasks, objects and jobs, and the version. The nodes of one
    /// job must agree on it.
    pub fn fingerprint(&self) -> u64 {
        let mut objects = self.object_names.clone();
        objects.sort_unstable();
        objects.dedup();
        let tasks = self.tasks.keys().map(String::as_str);
        let parts = [self.version.as_str(), "tasks"].into_iter();
        let parts = parts.chain(tasks).chain(["objects"]).chain(objects).chain(["jobs"]);
        let parts = parts.chain(self.jobs.keys().copied());
        checksum(parts.flat_map(|part| part.bytes().chain([0])))
    }

    /// The jobs, by name.
    pub fn jobs(&self) -> impl Iterator<Item = &JobEntry> {
        self.jobs.values()
    }

    /// The job of this name.
    pub fn find_job(&self, name: &str) -> Option<&JobEntry> {
        self.jobs.get(name)
    }

    /// Whether the task of this name is a process of an SPMD program, which runs as long as the
    /// job.
    pub fn is_process(&self, name: &str) -> bool {
        self.tasks.get(name).is_some_and(|task| task.process)
    }

    pub(crate) fn find_task(&self, name: &str) -> Option<RegisteredTask> {
        self.tasks.get(name).copied()
    }

    /// The types of the shared objects.
    pub fn objects(&self) -> &ObjectTypes {
        &self.objects
    }
}

/// Prepares a job and encodes it for the grid.
///
/// # Errors
/// If the job's options or files are wrong, or it cannot be encoded.
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

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct One;

    #[derive(Serialize, Deserialize)]
    struct Other;

    impl Task for One {
        type Output = ();
        const NAME: &'static str = "one";

        fn run(self, _: &Context) -> Result<(), Stop> {
            Ok(())
        }
    }

    impl Task for Other {
        type Output = ();
        const NAME: &'static str = "one";

        fn run(self, _: &Context) -> Result<(), Stop> {
            Ok(())
        }
    }

    #[test]
    fn a_strict_registry_knows_tasks_by_their_type() {
        let mut registry = Registry::new();
        registry.task::<One>();
        assert!(registry.check_created::<Other>().is_ok());
        registry.strict();
        assert!(registry.check_created::<One>().is_ok());
        let error = registry.check_created::<Other>().unwrap_err();
        assert!(format!("{error:?}").contains("task one is not registered"), "{error:?}");
    }

    #[test]
    #[should_panic = "two tasks are named one: give one of them another NAME"]
    fn two_tasks_of_one_name_are_refused() {
        let mut registry = Registry::new();
        // A second registration is harmless.
        registry.task::<One>().task::<One>();
        registry.task::<Other>();
    }

    /// A job whose own code panics when its coordinator calls it.
    #[derive(Serialize, Deserialize)]
    struct Panics {
        when: u32,
    }

    impl Job for Panics {
        const NAME: &'static str = "panics";
        const ABOUT: &'static str = "for tests";
        const NEGOTIATES: bool = true;

        fn register(_: &mut Registry) {}

        fn accept_growth(&self, _: Processors, offered: Processors) -> Processors {
            assert!(self.when != 1, "no growth");
            Processors(offered.get() / 2)
        }

        fn accept_shrink(&self, _: Processors, asked: Processors) -> Processors {
            assert!(self.when != 2, "no shrink");
            asked.saturating_mul(2)
        }

        fn benchmark(&self) -> Option<Self> {
            assert!(self.when != 3, "no benchmark");
            Some(Self { when: 0 })
        }

        fn run(self, _: &Context) -> Result<Outcome, Stop> {
            Err(Stop::fail("not run"))
        }
    }

    #[test]
    fn a_job_that_panics_gives_the_default_answer() {
        let mut registry = Registry::new();
        registry.job::<Panics>();
        let entry = registry.find_job("panics").expect("it is there");
        for when in 0..4 {
            let body = encode_job(Panics { when }).expect("it encodes");
            let growth =
                entry.accept_growth(&body, Processors(2), Processors(4)).expect("it is one");
            let shrink =
                entry.accept_shrink(&body, Processors(9), Processors(4)).expect("it is one");
            let benchmark = entry.benchmark(&body).expect("it is one");
            let expected =
                (if when == 1 { 4 } else { 2 }, if when == 2 { 4 } else { 8 }, when != 3);
            assert_eq!((growth.get(), shrink.get(), benchmark.is_some()), expected, "{when}");
        }
    }
}
