//! The travelling salesman: the shortest round trip through all cities, by branch and bound.
//!
//! New here: tasks share knowledge. The length of the best known tour is a [`Merged`] object: every
//! node has a copy, any task may lower it, and all copies soon become equal. `merge` must not
//! depend on order or repetition, and a minimum does not.
//!
//! An outdated copy costs only work: a task stops only where every tour is *longer* than a known
//! one. So the search finds all shortest tours, independent of steals. The first of them by city
//! numbers is the answer.

use std::sync::Arc;

use crate::cities::Map;
use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::share::Merged;
use springtide_runtime::work::{Context, InputError, Job, Outcome, Registry, Stop, Task};

/// The job: `springtide run tsp`.
#[derive(Args, Serialize, Deserialize, Clone, Debug)]
pub struct Tsp {
    /// Number of cities of the tour.
    #[arg(long, default_value_t = 22)]
    pub cities: u8,
    /// Random seed of their positions.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of remaining cities up to which a task spawns no further tasks: smaller tasks are not
    /// worth their cost.
    #[arg(long, default_value_t = 16)]
    pub grain: usize,
}

impl Job for Tsp {
    const NAME: &'static str = "tsp";
    const ABOUT: &'static str =
        "The shortest tour through all cities: branch and bound, shared bound";

    fn register(registry: &mut Registry) {
        registry.task::<Visit>().merged::<Best>();
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        InputError::check(
            "--cities",
            self.cities,
            3..=60,
            "an exact search for more takes too long",
        )
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let map = Arc::new(Map::random(self.cities, self.seed));
        let start = Visit { map, tour: vec![0], grain: self.grain };
        let (length, tour) = cx.call(start)?.ok_or_else(|| Stop::fail("no tour was found"))?;
        let checksum =
            springtide_runtime::work::checksum(length.to_le_bytes().iter().chain(&tour).copied());
        Ok(Outcome { checksum, result: serde_json::json!({ "length": length, "tour": tour }) })
    }

    /// A smaller map. Single tasks are no good sample, for their time depends on the best known
    /// tour.
    fn benchmark(&self) -> Option<Self> {
        let cities = self.cities.min(14);
        Some(Tsp { cities, seed: self.seed, grain: self.grain })
    }
}

/// The shared object: the length of the best tour so far.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct Best(u32);

impl Merged for Best {
    const NAME: &'static str = "tsp.best";

    fn merge(&mut self, other: &Self) {
        self.0 = self.0.min(other.0);
    }
}

/// The task: the best tour that starts with these cities, unless all are longer than a known one.
#[derive(Serialize, Deserialize)]
struct Visit {
    map: Arc<Map>,
    tour: Vec<u8>,
    grain: usize,
}

impl Task for Visit {
    type Output = Option<(u32, Vec<u8>)>;
    const NAME: &'static str = "tsp.visit";

    fn run(self, cx: &Context) -> Result<Self::Output, Stop> {
        cx.check()?;
        let Visit { map, tour, grain } = self;
        let open = map.open(&tour);
        let least = map.lower_bound(&tour, &open);
        if cx.merged::<Best>().is_some_and(|best| least > best.0) {
            return Ok(None);
        }
        if open.is_empty() {
            cx.merge(Best(least))?;
            return Ok(Some((least, tour)));
        }
        let visit = |&city| Visit { map: map.clone(), tour: [&tour[..], &[city]].concat(), grain };
        let next = open.iter().map(visit);
        let found = if open.len() > grain {
            cx.join_all(next)?
        } else {
            next.map(|visit| visit.run(cx)).collect::<Result<Vec<_>, Stop>>()?
        };
        Ok(found.into_iter().flatten().min())
    }
}
