//! A list of tasks of one type that splits in halves, so that a thief gets half of the rest and not
//! one task.

use serde::{Deserialize, Serialize};

use super::context::Context;
use super::task::{Stop, Task};
use crate::share::ObjectNeed;

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Batch<T>(pub(crate) Vec<T>);

impl<T: Task> Task for Batch<T> {
    type Output = Vec<T::Output>;
    const NAME: &'static str = T::NAME;
    const BATCH: bool = true;

    fn run(mut self, cx: &Context) -> Result<Self::Output, Stop> {
        match self.0.len() {
            0 => Ok(Vec::new()),
            1 => Ok(vec![cx.call(self.0.remove(0))?]),
            2 => {
                let right = self.0.remove(1);
                let (left, right) = cx.join(self.0.remove(0), right)?;
                Ok(vec![left, right])
            }
            len => {
                let right = self.0.split_off(len / 2);
                let (mut left, right) = cx.join(self, Batch(right))?;
                left.extend(right);
                Ok(left)
            }
        }
    }

    fn needs(&self) -> Vec<ObjectNeed> {
        let mut needs: Vec<ObjectNeed> = self.0.iter().flat_map(Task::needs).collect();
        needs.sort();
        needs.dedup();
        needs
    }
}
