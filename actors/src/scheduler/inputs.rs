//! Input files in the scheduler's actor: orders to file servers, and questions about files.
//!
//! This module must not depend on why a file is needed: the core decides.

use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::files::{
    CancelFetches, FetchFile, FileEntry, FileError, FileSource, FilesReport,
};
use springtide_protocol::names::files_name;
use springtide_protocol::receivers::FileServer;
use springtide_runtime::event::Event as GridEvent;
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::{Remote, RemoteError};

use super::core::SchedulerEvent;
use super::{GetFiles, GridFiles, Scheduler, Submit, SubmitError};

/// Time limit of a transfer, as a last resort. Its chunks have time limits of their own.
const BRING_TIMEOUT: Duration = Duration::from_secs(30 * 24 * 3600);

impl Scheduler {
    /// The process of a cluster's site and file server.
    pub(super) fn process_of(&self, cluster: &ClusterId) -> Contact {
        self.places.get(cluster).cloned().unwrap_or_else(|| self.net.contact())
    }

    /// Orders a cluster's file server to fetch a file.
    pub(super) fn fetch_file(
        &mut self,
        ctx: &mut Context<Self>,
        (job, ask): (JobId, u64),
        file: FileEntry,
        from: Vec<ClusterId>,
        to: &ClusterId,
    ) {
        let names: Vec<&str> = from.iter().map(ClusterId::as_str).collect();
        self.recorder.record(GridEvent::Decision {
            decision: format!("bring {} to {to} for {job}", file.name),
            why: format!("{job} reads it in {to}, and {} has it", names.join(", ")),
            inputs: serde_json::json!({ "bytes": file.bytes, "sum": file.sum, "from": names }),
        });
        let source =
            |cluster: ClusterId| FileSource { address: self.process_of(&cluster), cluster };
        let from = from.into_iter().map(source).collect();
        let at = self.process_of(to);
        let server: Remote<FileServer> = self.hub.remote(&at.node, &files_name(to));
        let order = FetchFile { job, file: file.clone(), from };
        let call = server.send(order).deadline(BRING_TIMEOUT).start();
        let then = move |answer: Result<Result<_, FileError>, RemoteError>,
                         act: &mut Self,
                         ctx: &mut Context<Self>| {
            let answer = match answer {
                Ok(Ok(brought)) => Ok((file, brought)),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(format!("its site did not answer: {error}")),
            };
            act.feed(ctx, SchedulerEvent::FileFetched { job, ask, answer });
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    /// Checks that the grid has a submission's input files, and that its submitter may use its
    /// reservation.
    pub(super) fn check_submission(&self, submit: &Submit) -> Result<(), SubmitError> {
        let Some(need) = &submit.need else { return Ok(()) };
        let not_placed = |reason| SubmitError::NotPlaced { reason };
        self.core.check_files(need).map_err(not_placed)?;
        match need.reservation.and_then(|id| self.core.reservations().get(&id)) {
            Some(reservation) => reservation
                .admit(submit.principal.as_ref())
                .map_err(|refusal| not_placed(refusal.to_string())),
            None => Ok(()),
        }
    }

    /// Notifies a cluster's file server that a job needs no more files.
    pub(super) fn cancel_fetches(&self, job: JobId, cluster: &ClusterId) {
        let at = self.process_of(cluster);
        let server: Remote<FileServer> = self.hub.remote(&at.node, &files_name(cluster));
        if let Err(error) = server.do_send(CancelFetches { job }) {
            // The fetched file then serves later jobs.
            tracing::info!("the file server of {cluster} did not receive an order: {error}");
        }
    }
}

impl Handler<GetFiles> for Scheduler {
    type Result = MessageResult<GetFiles>;

    fn handle(&mut self, _: GetFiles, _: &mut Self::Context) -> Self::Result {
        let keepers = self.core.keepers();
        let servers = keepers.map(|cluster| (cluster.clone(), self.process_of(cluster))).collect();
        MessageResult(GridFiles { files: self.core.file_statuses(), servers })
    }
}

impl Handler<FilesReport> for Scheduler {
    type Result = ();

    fn handle(&mut self, here: FilesReport, ctx: &mut Self::Context) {
        if let Err(reason) = &here.files {
            let part = format!("file server {}", here.cluster);
            self.recorder.record(GridEvent::Fault { part, what: reason.clone() });
        }
        self.feed(ctx, SchedulerEvent::FilesReported(here));
    }
}
