//! A process's life: an empty stub that says where it is, computes while it is recruited, and ends when nobody needs it.
//!
//! Must not know who decides that.

use serde::{Deserialize, Serialize};

use super::part::{Met, Part, Point};
use super::program::Program;
use crate::spmd::Station;
use crate::spmd::crew::seated;
use crate::spmd::message::{GroupId, Recruit};
use crate::spmd::seat::Order;
use crate::work::{Context, Stop, Task};

/// The task that is a process.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(super) struct Process<P: Program> {
    pub(super) group: GroupId,
    pub(super) number: u32,
    pub(super) program: P,
}

impl<P: Program> Task for Process<P> {
    type Output = ();
    const NAME: &'static str = P::NAME;
    const PROCESS: bool = true;

    fn run(self, cx: &Context) -> Result<(), Stop> {
        let Process { group, number, program } = self;
        seated(cx, group, number, |at| live(&program, at))
    }
}

fn live<P: Program>(program: &P, at: &Station<'_>) -> Result<(), Stop> {
    at.say_here();
    loop {
        // One that was here for a configuration that is over is a stub again, and says so.
        if at.is_torn() {
            at.seat(|seat| seat.rise());
            at.say_here();
        }
        let ready = || {
            let there = at.seat(|seat| seat.has_order() || seat.is_torn());
            there.unwrap_or(true)
        };
        at.wait(false, &ready)?;
        match at.seat(|seat| seat.order()) {
            Some(Some(Order::Recruit(recruit))) => compute(program, at, recruit)?,
            Some(None) => {}
            Some(Some(Order::Dismiss)) | None => return Ok(()),
        }
    }
}

/// Computes until the last step is done, this process is free, or the configuration is over.
fn compute<P: Program>(program: &P, at: &Station<'_>, recruit: Recruit) -> Result<(), Stop> {
    let Met::Done(mut part) = Part::enter(program, at.clone(), recruit)? else { return Ok(()) };
    loop {
        match part.arrive()? {
            Met::Done(Point::Saved(_) | Point::Changed) => continue,
            Met::Done(Point::Go) => {}
            Met::Done(Point::Free) | Met::Torn => return Ok(()),
        }
        if part.is_over() {
            return part.finish().map(drop);
        }
        if let Met::Torn = part.step()? {
            return Ok(());
        }
    }
}
