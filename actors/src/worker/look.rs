//! The worker's answers to inspection. Independent of the inspecting process.

use actix::prelude::*;
use springtide_protocol::look::{Glance, WorkerSums};

use super::Worker;

impl Handler<Glance> for Worker {
    type Result = MessageResult<Glance>;

    fn handle(&mut self, glance: Glance, _: &mut Context<Self>) -> Self::Result {
        let running = self.running.as_ref().filter(|running| running.spec.id == glance.job);
        MessageResult(running.map(|running| {
            let engine = &running.engine;
            WorkerSums::of(&engine.statistics(false), engine.stolen_from())
        }))
    }
}
