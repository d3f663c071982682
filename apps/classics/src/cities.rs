//! A map of cities for [`tsp`](crate::tsp): where they are, how far apart, and how long a way must at least be. Plain
//! arithmetic; knows nothing of tasks.

use serde::{Deserialize, Serialize};

/// Cities, numbered from 0, as the distances between them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Map {
    distances: Vec<Vec<u32>>,
}

impl Map {
    /// Cities at random places of a square of 1000 by 1000. Places and distances are whole numbers, so that lengths of
    /// tours are exact and equal on all machines.
    pub(crate) fn random(cities: u8, seed: u64) -> Self {
        let mut state = seed;
        let mut coordinate = || f64::from((splitmix(&mut state) % 1000) as u32);
        let places: Vec<_> = (0..cities).map(|_| (coordinate(), coordinate())).collect();
        let distance = |a: &(f64, f64), b: &(f64, f64)| {
            let (x, y) = (a.0 - b.0, a.1 - b.1);
            (x * x + y * y).sqrt().round() as u32
        };
        let row = |a| places.iter().map(|b| distance(a, b)).collect();
        Self { distances: places.iter().map(row).collect() }
    }

    fn distance(&self, a: u8, b: u8) -> u32 {
        self.distances[usize::from(a)][usize::from(b)]
    }

    /// The cities that a tour, so far, has not come to: the nearest to its end first.
    pub(crate) fn open(&self, tour: &[u8]) -> Vec<u8> {
        let cities = 0..self.distances.len() as u8;
        let mut open: Vec<u8> = cities.filter(|city| !tour.contains(city)).collect();
        open.sort_by_key(|&city| tour.last().map(|&last| self.distance(last, city)));
        open
    }

    /// A length that no round trip which begins with `tour` and goes on through `open` in any order is below; its very
    /// length if `open` is empty. It is the length so far and that of the minimum spanning tree (by Prim's algorithm) of
    /// the tour's end, `open` and the first city: every way from the one through `open` to the other is a spanning tree.
    pub(crate) fn at_least(&self, tour: &[u8], open: &[u8]) -> u32 {
        let mut length = tour.windows(2).map(|pair| self.distance(pair[0], pair[1])).sum();
        let (Some(&first), Some(&last)) = (tour.first(), tour.last()) else { return length };
        let cities = open.iter().chain([&first]);
        let mut outside: Vec<_> = cities.map(|&city| (self.distance(last, city), city)).collect();
        while let Some(nearest) = (0..outside.len()).min_by_key(|&at| outside[at]) {
            let (distance, city) = outside.swap_remove(nearest);
            length += distance;
            for (reach, other) in &mut outside {
                *reach = (*reach).min(self.distance(city, *other));
            }
        }
        length
    }
}

/// The splitmix64 generator (Steele, Lea, Flood 2014).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
