//! Programs that jobs bring, in the scheduler's actor: their sources for sites, and their users in
//! the head's store.
//!
//! This module must not depend on why a program is needed: the core decides.

use std::path::PathBuf;

use actix::prelude::*;
use springtide_protocol::files::FileSource;
use springtide_protocol::program::{ProgramImage, ProgramReport, ProgramState, ShippedProgram};
use springtide_runtime::event::Event as GridEvent;
use springtide_runtime::id::{ClusterId, JobId, NodeId};

use super::core::SchedulerEvent;
use super::{Scheduler, Submit};
use crate::programs::{KeepProgram, ProgramUser, ReleaseProgram};

/// The program that a submission brings, with its client as the source.
fn brought_program(submit: &Submit) -> Option<ShippedProgram> {
    let image = submit.image.clone()?;
    let (cluster, address) = (submit.client.cluster.clone(), submit.client.clone());
    let (path, sources) = (submit.program.clone(), vec![FileSource { cluster, address }]);
    Some(ShippedProgram { image, path, sources })
}

impl Scheduler {
    /// A program of an order to a cluster's site, with the processes that have its file: this one,
    /// and the sites that have received it.
    pub(super) fn shipped(
        &self,
        to: &ClusterId,
        image: Option<ProgramImage>,
        path: Option<&PathBuf>,
    ) -> Option<ShippedProgram> {
        let image = image?;
        let here = self.net.contact();
        let others = self.core.clusters_with(image.digest).into_iter();
        let others = others.filter(|cluster| cluster != to);
        let others = others.filter_map(|cluster| {
            let address = self.places.get(&cluster)?.clone();
            Some(FileSource { cluster, address })
        });
        let own = FileSource { cluster: here.cluster.clone(), address: here };
        let sources = std::iter::once(own).chain(others).collect();
        Some(ShippedProgram { image, path: path.cloned(), sources })
    }

    /// Keeps a job's program in the head's store until the job has ended. A head that took over
    /// lacks it, and reads it from the client.
    pub(super) fn keep_program(&mut self, job: JobId, submit: &Submit) {
        if let Some(program) = brought_program(submit) {
            self.keep(job, program);
        }
    }

    /// As [`Scheduler::keep_program`], for all jobs of a client whose link is up again.
    pub(super) fn keep_programs_of(&mut self, client: &NodeId) {
        let brought = self.core.jobs_that_bring(client);
        let brought = brought.filter_map(|(job, submit)| Some((job, brought_program(submit)?)));
        for (job, program) in brought.collect::<Vec<_>>() {
            self.keep(job, program);
        }
    }

    fn keep(&mut self, job: JobId, program: ShippedProgram) {
        if let Some(programs) = &self.programs {
            self.program_jobs.insert(job);
            programs.store.do_send(KeepProgram { user: ProgramUser::Job(job), program });
        }
    }

    /// Releases the programs of jobs that have ended.
    pub(super) fn release_programs(&mut self) {
        let Some(programs) = self.programs.clone().filter(|_| !self.program_jobs.is_empty()) else {
            return;
        };
        let known = self.core.known();
        self.program_jobs.retain(|job| {
            let exists = known.contains(job);
            if !exists {
                programs.store.do_send(ReleaseProgram { user: ProgramUser::Job(*job) });
            }
            exists
        });
    }
}

impl Handler<ProgramReport> for Scheduler {
    type Result = ();

    fn handle(&mut self, report: ProgramReport, ctx: &mut Self::Context) {
        if let ProgramState::Failed { error } = &report.state {
            let part = format!("site {}", report.cluster);
            self.recorder.record(GridEvent::Fault { part, what: error.to_string() });
        }
        self.feed(ctx, SchedulerEvent::ProgramReported(report));
    }
}
