//! The travelling salesman: the shortest round trip through all cities, by branch and bound.
//!
//! New here: tasks share knowledge. The map is a [`Versioned`] object, which each node receives
//! once and tasks name by its version. The length of the best known tour is a [`Merged`] object:
//! every node has a copy, any task may lower it, and all copies soon become equal. `merge` must not
//! depend on order or repetition, and a minimum does not.
//!
//! An outdated copy costs only work: a task stops only where every tour is *longer* than a known
//! one. So the search finds all shortest tours, independent of steals. The first of them by city
//! numbers is the answer.

use crate::cities::Map;
use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::share::{Merged, ObjectNeed, Version, Versioned};
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
        registry.task::<Visit>().versioned::<Map>().merged::<Best>();
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
        let map = cx.put(0, Map::random(self.cities, self.seed))?;
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

impl Versioned for Map {
    const NAME: &'static str = "tsp.map";
    type Delta = ();

    fn apply(&self, (): ()) -> Self {
        self.clone()
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
    map: Version,
    tour: Vec<u8>,
    grain: usize,
}

/// The length of a tour and its cities.
type Tour = (u32, Vec<u8>);

impl Task for Visit {
    type Output = Option<Tour>;
    const NAME: &'static str = "tsp.visit";

    fn run(self, cx: &Context) -> Result<Self::Output, Stop> {
        let Visit { map, mut tour, grain } = self;
        let cities = cx.get::<Map>(0, map)?;
        let open = cities.open(&tour);
        if open.len() <= grain {
            return search(&cities, &mut tour, cx);
        }
        if is_hopeless(cities.lower_bound(&tour, &open), cx) {
            return Ok(None);
        }
        let visit = |&city| Visit { map, tour: [&tour[..], &[city]].concat(), grain };
        Ok(cx.join_all(open.iter().map(visit))?.into_iter().flatten().min())
    }

    fn needs(&self) -> Vec<ObjectNeed> {
        vec![ObjectNeed::of::<Map>(0, self.map)]
    }
}

/// Whether all tours of at least this length are longer than a known one.
fn is_hopeless(least: u32, cx: &Context) -> bool {
    cx.merged::<Best>().is_some_and(|best| least > best.0)
}

/// As the task, by depth-first search in this thread.
fn search(cities: &Map, tour: &mut Vec<u8>, cx: &Context) -> Result<Option<Tour>, Stop> {
    cx.check()?;
    let open = cities.open(tour);
    let least = cities.lower_bound(tour, &open);
    if is_hopeless(least, cx) {
        return Ok(None);
    }
    if open.is_empty() {
        cx.merge(Best(least))?;
        return Ok(Some((least, tour.clone())));
    }
    let mut best = None;
    for city in open {
        tour.push(city);
        let found = search(cities, tour, cx)?;
        tour.pop();
        best = best.into_iter().chain(found).min();
    }
    Ok(best)
}
