//! Counts the ways to place n queens on an n by n board, none attacking another: a tree with many
//! branches.
//!
//! New here: a task with any number of children. [`Context::spawn`] queues a child and returns at
//! once, [`Context::sync`] waits for all of them, and `take` returns the output of one.
//!
//! Also new: the *grain*, the size of the smallest task. A steal within the cluster should return
//! at least 0.3 ms of work, and one over a wide-area link far more. The program need not choose for
//! each: thieves take the oldest queued task, which is nearest to the root and so the largest. Only
//! the smallest tasks must be worth their few nanoseconds.

use clap::Args;
use serde::{Deserialize, Serialize};
use springtide_runtime::work::{Context, InputError, Job, Outcome, Registry, Stop, Task};

/// The job: `springtide run queens`.
#[derive(Args, Serialize, Deserialize, Clone, Debug)]
pub struct Queens {
    /// Rows and columns of the board.
    #[arg(long, default_value_t = 15)]
    pub size: u32,
    /// Number of remaining rows up to which a task spawns no further tasks.
    #[arg(long, default_value_t = 11)]
    pub grain: u32,
}

impl Job for Queens {
    const NAME: &'static str = "queens";
    const ABOUT: &'static str = "Counts the ways to place n queens: many children a task";

    fn register(registry: &mut Registry) {
        registry.task::<Place>();
    }

    fn prepare(&mut self) -> Result<(), InputError> {
        InputError::check("--size", self.size, 1..=27, "no larger board has been counted yet")?;
        InputError::check("--grain", self.grain, 0..=27, "it is a number of rows")
    }

    fn run(self, cx: &Context) -> Result<Outcome, Stop> {
        let board = (1 << self.size) - 1;
        let empty = Place { board, columns: 0, left: 0, right: 0, grain: self.grain };
        let solutions = cx.call(empty)?;
        let result = serde_json::json!({ "size": self.size, "solutions": solutions });
        Ok(Outcome { checksum: solutions, result })
    }

    fn benchmark(&self) -> Option<Self> {
        // The same number of rows with tasks as in the job itself.
        let size = self.size.min(12);
        Some(Queens { size, grain: (size + self.grain).saturating_sub(self.size) })
    }
}

/// The task: counts the ways to fill the remaining rows. Sets of columns are bit masks.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Place {
    /// All columns of the board.
    board: u32,
    /// Columns with a queen, one for each completed row.
    columns: u32,
    /// Columns of the next row that are attacked along one diagonal, and along the other.
    left: u32,
    right: u32,
    grain: u32,
}

impl Place {
    /// The positions with a queen in each free column of the next row.
    fn next(self) -> impl Iterator<Item = Place> {
        let mut free = self.board & !(self.columns | self.left | self.right);
        std::iter::from_fn(move || {
            let queen = free & free.wrapping_neg();
            free ^= queen;
            let (left, right) = ((self.left | queen) << 1, (self.right | queen) >> 1);
            (queen != 0).then_some(Place { columns: self.columns | queen, left, right, ..self })
        })
    }

    fn count(self) -> u64 {
        if self.columns == self.board { 1 } else { self.next().map(Place::count).sum() }
    }
}

impl Task for Place {
    type Output = u64;
    const NAME: &'static str = "queens.place";

    fn run(self, cx: &Context) -> Result<u64, Stop> {
        if (self.board ^ self.columns).count_ones() <= self.grain {
            return Ok(self.count());
        }
        let children: Vec<_> = self.next().map(|place| cx.spawn(place)).collect();
        cx.sync()?;
        let mut solutions = 0;
        for child in children {
            solutions += child.take()?;
        }
        Ok(solutions)
    }
}
