//! The work of a benchmark, and the sample of real tasks that may serve as it.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::checksum;
use crate::id::TaskPath;
use crate::meter::SpecId;

/// A registered task or job with its encoded arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EncodedTask {
    /// The name under which it is registered.
    pub name: String,
    /// Its arguments in encoded form.
    pub body: Bytes,
}

/// The work of one repeat of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchmarkWork {
    /// The job's own small problem.
    Job(EncodedTask),
    /// Tasks of the job, each with its descendants, in sequence. They share no objects and run as
    /// if alone.
    Tasks(Vec<EncodedTask>),
}

/// A benchmark, the same for all nodes of a job. Encoded as a named map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchmarkSpec {
    /// The work of one repeat, on one thread.
    pub work: BenchmarkWork,
    /// The time of a repeat at speed 1 of a thread: about the time where the tasks were sampled. It
    /// is one second for a job's own problem, so its speed is repeats per second.
    pub reference_us: u64,
}

impl BenchmarkSpec {
    /// The benchmark that a job defines, encoded as a job to run.
    pub fn of_job(name: &str, body: Bytes) -> Self {
        let task = EncodedTask { name: name.to_owned(), body };
        Self { work: BenchmarkWork::Job(task), reference_us: 1_000_000 }
    }

    /// The identifier of a benchmark: equal for equal benchmarks. Speeds are comparable under one
    /// only.
    ///
    /// FNV-1a over all significant fields; never [`SpecId::DECLARED`].
    pub fn id(&self) -> SpecId {
        let mut hash = checksum::START;
        let mut add = |bytes: &[u8]| {
            // The length comes first, so distinct lists of parts have distinct encodings.
            hash = checksum::checksum_from(hash, (bytes.len() as u64).to_le_bytes());
            hash = checksum::checksum_from(hash, bytes.iter().copied());
        };
        let (kind, tasks) = match &self.work {
            BenchmarkWork::Job(job) => ("job", std::slice::from_ref(job)),
            BenchmarkWork::Tasks(tasks) => ("tasks", tasks.as_slice()),
        };
        add(kind.as_bytes());
        add(&self.reference_us.to_le_bytes());
        for task in tasks {
            add(task.name.as_bytes());
            add(&task.body);
        }
        if SpecId(hash) == SpecId::DECLARED { SpecId(1) } else { SpecId(hash) }
    }

    /// The work of one repeat in seconds of the reference.
    pub fn units(&self) -> f64 {
        Duration::from_micros(self.reference_us.max(1)).as_secs_f64()
    }
}

/// The criteria of sampled tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplerSettings {
    /// The size of the sample. Default: 8.
    pub size: usize,
    /// The minimum time of a task, for shorter ones are mostly noise. Default: 5 ms.
    pub shortest: Duration,
    /// The maximum time of a task, for longer ones would break the budget. Default: 50 ms.
    pub longest: Duration,
    /// The maximum size of arguments, for the sample is sent to every node. Default: 64 KiB.
    pub largest_body: usize,
}

impl Default for SamplerSettings {
    fn default() -> Self {
        Self {
            size: 8,
            shortest: Duration::from_millis(5),
            longest: Duration::from_millis(50),
            largest_body: 64 << 10,
        }
    }
}

/// A completed task, offered to the sampler.
#[derive(Clone, Debug)]
pub struct BenchmarkOffer<'a> {
    /// The name under which it is registered.
    pub name: &'a str,
    /// The path of the task in the job.
    pub path: &'a TaskPath,
    /// Its arguments in encoded form.
    pub body: &'a Bytes,
    /// Its running time, with its descendants.
    pub time: Duration,
    /// Whether it or its descendants read shared objects. Such tasks cannot run alone, and are not
    /// sampled.
    pub needs_objects: bool,
}

#[derive(Clone, Debug)]
struct SampledTask {
    task: EncodedTask,
    path: TaskPath,
    time: Duration,
}

/// Draws a uniform sample of a run's suitable tasks, in one pass and little memory.
///
/// Source: algorithm R in J. S. Vitter, Random sampling with a reservoir, ACM Trans. Math. Softw.
/// 11, 37 (1985).
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: SamplerSettings,
    /// The state of splitmix64 (Steele, Lea, Flood 2014).
    random: u64,
    suitable: u64,
    sampled: Vec<SampledTask>,
}

impl Sampler {
    /// Creates a sampler with this seed.
    pub fn new(settings: SamplerSettings, seed: u64) -> Self {
        Self { settings, random: seed, suitable: 0, sampled: Vec::new() }
    }

    /// Offers a completed task. Returns whether it was sampled, perhaps in place of another. A
    /// repeated task is not drawn twice.
    pub fn offer(&mut self, offer: &BenchmarkOffer) -> bool {
        let SamplerSettings { size: keep, shortest, longest, largest_body } = self.settings;
        if offer.needs_objects
            || !(shortest..=longest).contains(&offer.time)
            || offer.body.len() > largest_body
            || self.sampled.iter().any(|sampled| sampled.path == *offer.path)
        {
            return false;
        }
        self.suitable = self.suitable.saturating_add(1);
        let index = if self.sampled.len() < keep {
            self.sampled.len()
        } else {
            // The high bits of the product are uniform enough: the bias is below 2^-40 for 10^12
            // tasks.
            let index = (u128::from(self.next()) * u128::from(self.suitable)) >> 64;
            match usize::try_from(index) {
                Ok(index) if index < keep => index,
                _ => return false,
            }
        };
        let task = EncodedTask { name: offer.name.to_owned(), body: offer.body.clone() };
        let sampled = SampledTask { task, path: offer.path.clone(), time: offer.time };
        match self.sampled.get_mut(index) {
            Some(old) => *old = sampled,
            None => self.sampled.push(sampled),
        }
        true
    }

    /// The number of suitable tasks offered.
    pub fn suitable(&self) -> u64 {
        self.suitable
    }

    /// The sample as a benchmark, once it has `least` tasks.
    ///
    /// Its reference is their time on this node. Tasks are in the order of their paths, so equal
    /// samples have equal ids.
    pub fn spec(&self, least: usize) -> Option<BenchmarkSpec> {
        if self.sampled.len() < least.max(1) {
            return None;
        }
        let mut sampled: Vec<&SampledTask> = self.sampled.iter().collect();
        sampled.sort_by(|a, b| (&a.path, &a.task).cmp(&(&b.path, &b.task)));
        let time: Duration = sampled.iter().map(|sampled| sampled.time).sum();
        let tasks = sampled.into_iter().map(|sampled| sampled.task.clone()).collect();
        Some(BenchmarkSpec {
            work: BenchmarkWork::Tasks(tasks),
            reference_us: u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1),
        })
    }

    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn offer(sampler: &mut Sampler, number: u32, time: Duration) -> bool {
        let body = Bytes::from(number.to_le_bytes().to_vec());
        let path = TaskPath(vec![number]);
        let (path, body) = (&path, &body);
        sampler.offer(&BenchmarkOffer { name: "t", path, body, time, needs_objects: false })
    }

    fn numbers(spec: &BenchmarkSpec) -> Vec<u32> {
        let BenchmarkWork::Tasks(tasks) = &spec.work else { panic!("{spec:?}") };
        tasks.iter().map(|t| u32::from_le_bytes(t.body[..].try_into().unwrap())).collect()
    }

    #[test]
    fn only_suitable_tasks_are_drawn() {
        let mut sampler = Sampler::new(SamplerSettings::default(), 1);
        let (path, small, large) =
            (TaskPath(vec![9]), Bytes::from_static(b"x"), Bytes::from(vec![0; 65 << 10]));
        let good = BenchmarkOffer {
            name: "t",
            path: &path,
            body: &small,
            time: 20 * MS,
            needs_objects: false,
        };
        for bad in [
            BenchmarkOffer { time: 4 * MS, ..good.clone() },
            BenchmarkOffer { time: 51 * MS, ..good.clone() },
            BenchmarkOffer { body: &large, ..good.clone() },
            BenchmarkOffer { needs_objects: true, ..good.clone() },
        ] {
            assert!(!sampler.offer(&bad), "{bad:?}");
        }
        assert_eq!((sampler.suitable(), sampler.spec(1)), (0, None));
        assert!(sampler.offer(&good));
        assert!(!sampler.offer(&good), "it was run again");
        assert_eq!(sampler.spec(2), None);
        assert_eq!(sampler.spec(1).unwrap().reference_us, 20_000);
    }

    #[test]
    fn every_task_is_drawn_as_often_as_any_other() {
        let mut drawn = [0u32; 40];
        let runs = 4000;
        for seed in 0..runs {
            let mut sampler = Sampler::new(SamplerSettings::default(), seed);
            for number in 0..40 {
                offer(&mut sampler, number, 10 * MS);
            }
            for number in numbers(&sampler.spec(8).unwrap()) {
                drawn[number as usize] += 1;
            }
        }
        // Each with probability 8/40; five standard deviations are about 127.
        let expected = runs as f64 / 5.0;
        for (number, &count) in drawn.iter().enumerate() {
            assert!(
                (f64::from(count) - expected).abs() < 130.0,
                "{number} was drawn {count} times"
            );
        }
    }

    #[test]
    fn ids_differ_exactly_for_different_benchmarks() {
        let task =
            |name: &str, body: &'static str| EncodedTask { name: name.into(), body: body.into() };
        let tasks = |tasks: &[EncodedTask]| BenchmarkSpec {
            work: BenchmarkWork::Tasks(tasks.to_vec()),
            reference_us: 10,
        };
        let one = tasks(&[task("a", "bc")]);
        let specs = [
            one.clone(),
            tasks(&[task("ab", "c")]),
            tasks(&[task("a", "b"), task("", "c")]),
            tasks(&[]),
            BenchmarkSpec { reference_us: 11, ..one.clone() },
            BenchmarkSpec { work: BenchmarkWork::Job(task("a", "bc")), reference_us: 10 },
            BenchmarkSpec::of_job("a", "bc".into()),
        ];
        let ids: BTreeSet<SpecId> = specs.iter().map(BenchmarkSpec::id).collect();
        assert_eq!(ids.len(), specs.len());
        // The id is sent and stored, so it must never change.
        assert_eq!(one.id().to_string(), "c2f137f3d1fc88e9");
        assert_eq!(one.units(), 1e-5);
    }

    proptest! {
        #[test]
        fn a_sample_is_the_same_for_a_seed_and_small(
            seed in any::<u64>(),
            times in prop::collection::vec(0u64..80, 0..200),
            keep in 0usize..10,
        ) {
            let settings = SamplerSettings { size: keep, ..SamplerSettings::default() };
            let draw = || {
                let mut sampler = Sampler::new(settings, seed);
                for (number, &millis) in times.iter().enumerate() {
                    offer(&mut sampler, number as u32, millis as u32 * MS);
                }
                sampler
            };
            let sampler = draw();
            let suitable = times.iter().filter(|&&millis| (5..=50).contains(&millis)).count();
            prop_assert_eq!(sampler.suitable(), suitable as u64);
            prop_assert_eq!(sampler.spec(1), draw().spec(1));
            match sampler.spec(1) {
                Some(spec) => {
                    let numbers = numbers(&spec);
                    prop_assert_eq!(numbers.len(), suitable.min(keep));
                    prop_assert!(numbers.is_sorted());
                    let time: u64 = numbers.iter().map(|&number| times[number as usize]).sum();
                    prop_assert_eq!(spec.reference_us, 1000 * time);
                    let bytes = rmp_serde::to_vec_named(&spec).unwrap();
                    let decoded: BenchmarkSpec = rmp_serde::from_slice(&bytes).unwrap();
                    prop_assert_eq!(decoded.id(), spec.id());
                    prop_assert_eq!(decoded, spec);
                }
                None => prop_assert_eq!(suitable.min(keep), 0),
            }
        }
    }
}
