//! The worker's answers to inspection. This module does not know the inspecting process.

use actix::prelude::*;
use springtide_protocol::look::{HeldTask, QueryWorker, RUNNING_TASKS_MAX, WorkerTotals};

use super::Worker;

impl Handler<QueryWorker> for Worker {
    type Result = MessageResult<QueryWorker>;

    fn handle(&mut self, glance: QueryWorker, _: &mut Context<Self>) -> Self::Result {
        let running = self.running.as_ref().filter(|running| running.spec.id == glance.job);
        MessageResult(running.map(|running| {
            let engine = &running.engine;
            let stolen = engine.stolen_tasks(RUNNING_TASKS_MAX).into_iter();
            let running = stolen.map(|(name, path, from)| HeldTask { name, path, from });
            WorkerTotals {
                running: running.collect(),
                ..WorkerTotals::of(&engine.statistics(false), engine.stolen_from())
            }
        }))
    }
}
