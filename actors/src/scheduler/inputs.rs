//! Input files, as the scheduler's actor carries them out: whom it tells to bring what, and who asks which there are.
//!
//! Must not know why a file is wanted where: the core decides that.

use std::time::Duration;

use actix::prelude::*;
use springtide_runtime::event::Event as Told;
use springtide_runtime::id::{ClusterId, JobId};
use springtide_runtime::net::Contact;
use springtide_runtime::remote::{Remote, RemoteError};

use super::core::Event;
use super::{GetFiles, GridFiles, Scheduler, Submit, SubmitError};
use crate::files::{
    BringFile, DropFiles, FileEntry, FileError, FileServer, FilesHere, Source, files_name,
};

/// A file that is not there after this time never comes: its chunks have bounds of their own.
const BRING_WITHIN: Duration = Duration::from_secs(30 * 24 * 3600);

impl Scheduler {
    /// The process that a cluster's site and file server are in.
    pub(super) fn place_of(&self, cluster: &ClusterId) -> Contact {
        self.places.get(cluster).cloned().unwrap_or_else(|| self.net.contact())
    }

    /// Tells a cluster's file server to bring a file.
    pub(super) fn bring(
        &mut self,
        ctx: &mut Context<Self>,
        (job, ask): (JobId, u64),
        file: FileEntry,
        from: Vec<ClusterId>,
        to: &ClusterId,
    ) {
        let names: Vec<&str> = from.iter().map(ClusterId::as_str).collect();
        self.recorder.record(Told::Decision {
            decision: format!("bring {} to {to} for {job}", file.name),
            why: format!("{to} is where {job} is to read it, and {} has it", names.join(", ")),
            inputs: serde_json::json!({ "bytes": file.bytes, "sum": file.sum, "from": names }),
        });
        let source = |cluster: ClusterId| Source { at: self.place_of(&cluster), cluster };
        let from = from.into_iter().map(source).collect();
        let at = self.place_of(to);
        let server: Remote<FileServer> = self.hub.remote(&at.node, &files_name(to));
        let order = BringFile { job, file: file.clone(), from };
        let call = server.send(order).deadline(BRING_WITHIN).start();
        let then = move |answer: Result<Result<_, FileError>, RemoteError>,
                         act: &mut Self,
                         ctx: &mut Context<Self>| {
            let answer = match answer {
                Ok(Ok(brought)) => Ok((file, brought)),
                Ok(Err(error)) => Err(error.to_string()),
                Err(error) => Err(format!("its site was not asked: {error}")),
            };
            act.feed(ctx, Event::Brought { job, ask, answer });
        };
        ctx.spawn(call.into_actor(self).map(then));
    }

    /// Whether a job's files are known.
    pub(super) fn check_files(&self, submit: &Submit) -> Result<(), SubmitError> {
        let need = submit.need.as_ref();
        let known = need.map_or(Ok(()), |need| self.core.check_files(need));
        known.map_err(|reason| SubmitError::NotPlaced { reason })
    }

    /// Tells a cluster's file server that a job needs nothing any more.
    pub(super) fn drop_files(&self, job: JobId, cluster: &ClusterId) {
        let at = self.place_of(cluster);
        let server: Remote<FileServer> = self.hub.remote(&at.node, &files_name(cluster));
        if let Err(error) = server.do_send(DropFiles { job }) {
            // Then what it brings is there for the next.
            tracing::info!("the file server of {cluster} was not told: {error}");
        }
    }
}

impl Handler<GetFiles> for Scheduler {
    type Result = MessageResult<GetFiles>;

    fn handle(&mut self, _: GetFiles, _: &mut Self::Context) -> Self::Result {
        let keepers = self.core.keepers();
        let servers = keepers.map(|cluster| (cluster.clone(), self.place_of(cluster))).collect();
        MessageResult(GridFiles { files: self.core.file_statuses(), servers })
    }
}

impl Handler<FilesHere> for Scheduler {
    type Result = ();

    fn handle(&mut self, here: FilesHere, ctx: &mut Self::Context) {
        if let Err(reason) = &here.files {
            let part = format!("file server {}", here.cluster);
            self.recorder.record(Told::Fault { part, what: reason.clone() });
        }
        self.feed(ctx, Event::FilesHere(here));
    }
}
