//! Programs of users at a site: obtained from the store of this process, started, and given up.
//!
//! A node's present process runs until its next program is here. A program whose processes end
//! before they register is not started again for the job that brought it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use actix::prelude::*;
use springtide_protocol::program::{
    ProgramDigest, ProgramError, ProgramImage, ProgramReport, ProgramState, ShippedProgram,
};
use springtide_protocol::scheduler::{StubLoss, StubLossKind};
use springtide_runtime::id::NodeId;

use super::{RESTARTS, Site};
use crate::programs::{
    GetReceived, ProgramArrival, ProgramUser, ReleaseProgram, StoredPath, UseProgram, own_target,
};
use crate::provider::{ProgramDelivery, ProviderError, ShippedFile};
use crate::supervise::RestartSchedule;

/// Interval of reports about a program that is being received.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Successive processes of a program that may end before they register.
const FAILURES_MAX: u32 = 3;

/// What follows once a node's program is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Its present process is replaced.
    Restart,
    /// A processor is held, and its process started.
    Start,
}

/// A node's wait for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgramWait {
    number: u64,
}

/// A program that nodes wait for.
#[derive(Debug)]
struct AwaitedProgram {
    /// Its length in bytes.
    bytes: u64,
    /// The last reported number of received bytes.
    reported: u64,
    /// The number of nodes that wait.
    waits: u32,
}

/// Programs that the site has reported.
#[derive(Debug, Default)]
pub(super) struct SentPrograms {
    last_wait: u64,
    /// Programs that nodes wait for.
    sending: BTreeMap<ProgramDigest, AwaitedProgram>,
    /// Whether reports are due at intervals.
    reports: bool,
    /// Successive processes that ended before they registered.
    failures: BTreeMap<ProgramDigest, u32>,
}

impl SentPrograms {
    /// Records that a node of a program has registered.
    pub(super) fn works(&mut self, digest: &ProgramDigest) {
        self.failures.remove(digest);
    }
}

fn ready(arrival: ProgramArrival) -> ProgramState {
    ProgramState::Ready { bytes: arrival.bytes, millis: arrival.millis }
}

impl Site {
    /// Whether nodes can be started with a program that this process receives.
    pub(super) fn receives_programs(&self) -> bool {
        self.programs.is_some() && self.provider.delivery() != ProgramDelivery::None
    }

    /// Whether nodes can be started with a program at a path that a submitter names.
    pub(super) fn starts_paths(&self) -> bool {
        self.provider.starts_programs() && self.programs.as_ref().is_none_or(|it| it.foreign)
    }

    /// The path of a submitter's program, if nodes may be started with it. A path of another host
    /// leads nowhere here.
    pub(super) fn path_of(&self, path: Option<&PathBuf>) -> Option<PathBuf> {
        let is_there = |path: &&PathBuf| path.components().count() == 1 || path.exists();
        path.filter(|_| self.starts_paths()).filter(is_there).cloned()
    }

    /// Obtains a program for nodes, and then continues with each of them.
    pub(super) fn obtain(
        &mut self,
        ctx: &mut Context<Self>,
        nodes: Vec<NodeId>,
        shipped: ShippedProgram,
        next: NextStep,
    ) {
        let Some(store) = self.programs.as_ref().map(|programs| programs.store.clone()) else {
            let reason = "its site keeps no programs of users".to_owned();
            let error = self.provider_error(&shipped.image, reason);
            return self.refuse(&nodes, &shipped.image, &error);
        };
        if let Err(error) = self.check_program(&shipped.image) {
            return self.refuse(&nodes, &shipped.image, &error);
        }
        for node in nodes {
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            self.sent.last_wait += 1;
            let wait = ProgramWait { number: self.sent.last_wait };
            slot.pending = Some(wait);
            let (digest, bytes) = (shipped.image.digest, shipped.image.bytes);
            let new = AwaitedProgram { bytes, reported: 0, waits: 0 };
            let awaited = self.sent.sending.entry(digest).or_insert(new);
            awaited.waits += 1;
            if awaited.waits == 1 {
                self.report_program(digest, ProgramState::Sending { received: 0, bytes });
            }
            let (user, program) = (ProgramUser::Node(node.clone()), shipped.clone());
            let asked = store.send(UseProgram { user, program: program.clone() });
            let name = shipped.image.name.clone();
            let asked = async move {
                // The store ends with this process.
                asked.await.unwrap_or(Err(ProgramError::Cancelled { name }))
            };
            let on_done = move |found, site: &mut Self, ctx: &mut Context<Self>| {
                site.obtained(ctx, (node, wait), program, next, found);
            };
            ctx.spawn(asked.into_actor(self).map(on_done));
        }
        if !std::mem::replace(&mut self.sent.reports, true) {
            ctx.run_later(REPORT_INTERVAL, Self::report_sending);
        }
    }

    fn obtained(
        &mut self,
        ctx: &mut Context<Self>,
        (node, wait): (NodeId, ProgramWait),
        shipped: ShippedProgram,
        next: NextStep,
        found: Result<StoredPath, ProgramError>,
    ) {
        let digest = shipped.image.digest;
        let waits = self.sent.sending.get_mut(&digest).map(|awaited| {
            awaited.waits -= 1;
            awaited.waits
        });
        let is_last = waits == Some(0);
        if is_last {
            self.sent.sending.remove(&digest);
        }
        let Some(slot) = self.slots.get_mut(&node) else { return };
        if slot.pending != Some(wait) {
            // A later order has another program, or none.
            if slot.pending.is_none() && slot.shipped.is_none() {
                self.release_program(&node);
            }
            if is_last {
                // Without this, the scheduler would go by the last report of the transfer.
                let state = match found {
                    Ok(StoredPath { arrival, .. }) => ready(arrival),
                    Err(error) => ProgramState::Failed { error },
                };
                self.report_program(digest, state);
            }
            return;
        }
        slot.pending = None;
        let stored = match found {
            Ok(stored) => stored,
            Err(error) => return self.refuse(&[node], &shipped.image, &error),
        };
        let image = &shipped.image;
        slot.request.program = stored.path;
        slot.request.shipped = Some(ShippedFile {
            digest: image.digest.to_string(),
            bytes: image.bytes,
            machine: image.target.machine_name().map(str::to_owned),
        });
        (slot.shipped, slot.proven) = (Some(shipped), false);
        if is_last {
            self.report_program(digest, ready(stored.arrival));
        }
        match next {
            NextStep::Start => self.start(ctx, &node, None),
            NextStep::Restart => {
                let Some(slot) = self.slots.get_mut(&node) else { return };
                // Failures of another program do not count.
                slot.restarts = RestartSchedule::new(RESTARTS);
                (slot.registered, slot.unreached) = (None, 0);
                self.replace_process(ctx, node);
            }
        }
    }

    /// Reports how much of each awaited program has arrived, and schedules the next report.
    fn report_sending(&mut self, ctx: &mut Context<Self>) {
        let (Some(programs), false) = (&self.programs, self.sent.sending.is_empty()) else {
            self.sent.reports = false;
            return;
        };
        for digest in self.sent.sending.keys().copied() {
            let asked = programs.store.send(GetReceived { digest });
            let on_done = move |found, site: &mut Self, _: &mut Context<Self>| {
                let Ok(Some(received)) = found else { return };
                let Some(awaited) = site.sent.sending.get_mut(&digest) else { return };
                let bytes = awaited.bytes;
                if std::mem::replace(&mut awaited.reported, received) != received {
                    site.report_program(digest, ProgramState::Sending { received, bytes });
                }
            };
            ctx.spawn(asked.into_actor(self).map(on_done));
        }
        ctx.run_later(REPORT_INTERVAL, Self::report_sending);
    }

    fn report_program(&self, digest: ProgramDigest, state: ProgramState) {
        self.report(ProgramReport { cluster: self.cluster.clone(), digest, state });
    }

    fn provider_error(&self, image: &ProgramImage, reason: String) -> ProgramError {
        let (name, cluster) = (image.name.clone(), self.cluster.clone());
        ProgramError::Provider { name, cluster, reason }
    }

    /// Checks that the hosts could start a program, as far as this host knows.
    fn check_program(&self, image: &ProgramImage) -> Result<(), Box<ProgramError>> {
        let (name, cluster) = (image.name.clone(), self.cluster.clone());
        match self.provider.delivery() {
            ProgramDelivery::None => {
                let reason = "its nodes are started elsewhere, with a program of their hosts";
                return Err(Box::new(self.provider_error(image, reason.to_owned())));
            }
            // Each host says what it runs.
            ProgramDelivery::Copies => return Ok(()),
            ProgramDelivery::SameFiles => {}
        }
        if let Some(own) = own_target().filter(|own| *own != image.target) {
            let (needs, has) = (image.target.to_string(), own.to_string());
            return Err(Box::new(ProgramError::Machine { name, needs, cluster, has }));
        }
        match &image.interpreter {
            Some(path) if !Path::new(path).exists() => {
                let interpreter = path.clone();
                Err(Box::new(ProgramError::Interpreter { name, interpreter, cluster }))
            }
            _ => Ok(()),
        }
    }

    /// Reports that nodes are not started with a program. Their present processes stay.
    fn refuse(&mut self, nodes: &[NodeId], image: &ProgramImage, error: &ProgramError) {
        tracing::warn!("{}: {error}", self.cluster);
        self.report_program(image.digest, ProgramState::Failed { error: error.clone() });
        for node in nodes {
            self.release_program(node);
            if self.provider.on_demand() {
                let kind = StubLossKind::NoProgram;
                let Some(slot) = self.slots.get(node) else { continue };
                if slot.keeper.is_none() {
                    self.stub_lost(node.clone(), error.to_string(), kind);
                    continue;
                }
            }
            // For the scheduler, its process was being replaced.
            let Some(slot) = self.slots.get(node).filter(|slot| slot.registered.is_some()) else {
                continue;
            };
            if let Some(registration) = slot.registration.clone() {
                self.report(registration);
            }
        }
    }

    /// Counts a process that ended before it registered. Returns whether its program, which a user
    /// brought, is given up for that.
    pub(super) fn start_failed(&mut self, node: &NodeId, reason: &str) -> bool {
        let Some(slot) = self.slots.get(node).filter(|slot| !slot.proven) else { return false };
        let Some(image) = slot.shipped.as_ref().map(|shipped| shipped.image.clone()) else {
            return false;
        };
        let failures = self.sent.failures.entry(image.digest).or_default();
        *failures += 1;
        if *failures < FAILURES_MAX {
            return false;
        }
        let (name, cluster) = (image.name.clone(), self.cluster.clone());
        let (node, reason) = (node.clone(), reason.to_owned());
        self.give_up(&image, &ProgramError::CannotRun { name, cluster, node, reason });
        true
    }

    /// As [`Site::start_failed`], for a process that the provider did not start.
    pub(super) fn start_refused(&mut self, node: &NodeId, error: &ProviderError) -> bool {
        let ProviderError::OtherMachine { has, needs, .. } = error else {
            return self.start_failed(node, &error.to_string());
        };
        let slot = self.slots.get(node);
        let Some(image) = slot.and_then(|slot| Some(slot.shipped.as_ref()?.image.clone())) else {
            return false;
        };
        let (name, cluster) = (image.name.clone(), self.cluster.clone());
        let (needs, has) = (needs.clone(), has.clone());
        self.give_up(&image, &ProgramError::Machine { name, needs, cluster, has });
        true
    }

    /// Returns the nodes of a program that have not registered to the site's own program.
    fn give_up(&mut self, image: &ProgramImage, error: &ProgramError) {
        self.sent.failures.remove(&image.digest);
        tracing::warn!("{}: {error}", self.cluster);
        self.report_program(image.digest, ProgramState::Failed { error: error.clone() });
        let uses = |slot: &super::NodeLifecycle| {
            let shipped = slot.shipped.as_ref();
            shipped.is_some_and(|shipped| shipped.image.digest == image.digest) && !slot.proven
        };
        let nodes = self.slots.iter().filter(|(_, slot)| uses(slot)).map(|(node, _)| node.clone());
        for node in nodes.collect::<Vec<_>>() {
            self.drop_program(&node);
            let Some(slot) = self.slots.get_mut(&node) else { continue };
            slot.request.program = slot.program.clone();
            slot.restarts = RestartSchedule::new(RESTARTS);
        }
    }

    /// Makes the next process of a node no program that a user brought.
    pub(super) fn drop_program(&mut self, node: &NodeId) {
        let Some(slot) = self.slots.get_mut(node) else { return };
        slot.pending = None;
        slot.request.shipped = None;
        if slot.shipped.take().is_some() {
            self.release_program(node);
        }
    }

    fn release_program(&self, node: &NodeId) {
        if let Some(programs) = &self.programs {
            programs.store.do_send(ReleaseProgram { user: ProgramUser::Node(node.clone()) });
        }
    }

    /// Reports that a node on demand has no processor any longer. It needs no program.
    pub(super) fn stub_lost(&mut self, node: NodeId, reason: String, kind: StubLossKind) {
        self.drop_program(&node);
        self.release_program(&node);
        self.report(StubLoss { node, reason, kind });
    }
}
