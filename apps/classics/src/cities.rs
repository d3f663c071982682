//! A map of cities for [`tsp`](crate::tsp): positions, distances, and a lower bound of tour
//! lengths. Plain arithmetic, independent of tasks.

use serde::{Deserialize, Serialize};

/// Cities, numbered from 0, as a matrix of distances.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Map {
    distances: Vec<Vec<u32>>,
}

impl Map {
    /// Cities at random positions in a square of 1000 by 1000. Positions and distances are
    /// integers, so tour lengths are exact and equal on all machines.
    pub(crate) fn random(cities: u8, seed: u64) -> Self {
        let mut state = seed;
        let mut coordinate = || f64::from((splitmix(&mut state) % 1000) as u32);
        let positions: Vec<_> = (0..cities).map(|_| (coordinate(), coordinate())).collect();
        let distance = |a: &(f64, f64), b: &(f64, f64)| {
            let (x, y) = (a.0 - b.0, a.1 - b.1);
            (x * x + y * y).sqrt().round() as u32
        };
        let row = |a| positions.iter().map(|b| distance(a, b)).collect();
        Self { distances: positions.iter().map(row).collect() }
    }

    fn distance(&self, a: u8, b: u8) -> u32 {
        self.distances[usize::from(a)][usize::from(b)]
    }

    /// The cities that a partial tour has not visited, the nearest to its end first.
    pub(crate) fn open(&self, tour: &[u8]) -> Vec<u8> {
        let cities = 0..self.distances.len() as u8;
        let mut open: Vec<u8> = cities.filter(|city| !tour.contains(city)).collect();
        open.sort_by_key(|&city| tour.last().map(|&last| self.distance(last, city)));
        open
    }

    /// A lower bound of the length of any round trip that starts with `tour` and visits `open` in
    /// any order. Exact if `open` is empty.
    ///
    /// It is the length so far plus that of a minimum spanning tree (by Prim's algorithm) of the
    /// tour's end, `open` and the first city. Each path from the end through `open` to the first
    /// city is a spanning tree.
    pub(crate) fn lower_bound(&self, tour: &[u8], open: &[u8]) -> u32 {
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
