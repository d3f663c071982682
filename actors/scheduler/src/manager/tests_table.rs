//! State table of the malleability manager: each event in each state of a job.

use springtide_base::event_kinds;
use springtide_base::state_table::{EventEffect, check};

use super::accounts::ResizeStep;
use super::*;
use crate::policy::malleability::{FreeHost, HostCapacity};

const JOB: JobId = JobId(1);

event_kinds!(EventKind of ManagerEvent {
    SubmitAll(..), DependencyEnded {..},
    Polled {..}, HostsPolled {..}, Unreachable {..}, CapacityLimited {..}, Replicas {..},
    LinkMeasured {..},
    Submit {..}, Moved {..},
    MoveFailed {..}, Claimed {..}, Resumed {..}, ClaimFailed {..}, Answer {..}, Held {..},
    Enlarged {..}, NotHeld {..}, Grown {..}, Freed {..}, NotForced {..}, RootMoved {..},
    Unheld {..}, RevocationsPlanned {..}, EfficiencyMeasured {..}, GrowthRequested {..},
    MemoryRaised {..}, SizeLimited {..},
    Ended {..}, Withdraw {..}, Tick {..},
});

/// A state of a job, with the change that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobState {
    Unknown,
    Waiting,
    Placed,
    Claiming,
    Running,
    Offered,
    Acquiring,
    Recruiting,
    Asked,
    Releasing,
    Ending,
}

impl JobState {
    const ALL: [Self; 11] = [
        Self::Unknown,
        Self::Waiting,
        Self::Placed,
        Self::Claiming,
        Self::Running,
        Self::Offered,
        Self::Acquiring,
        Self::Recruiting,
        Self::Asked,
        Self::Releasing,
        Self::Ending,
    ];

    fn of(manager: &Manager) -> Self {
        let Some(job) = manager.jobs.get(&JOB) else { return Self::Unknown };
        match (&job.stage, job.change.as_ref().map(|change| change.step)) {
            (AllocationStage::Waiting, _) => Self::Waiting,
            (AllocationStage::Placed { .. }, _) => Self::Placed,
            (AllocationStage::Claiming, _) => Self::Claiming,
            (AllocationStage::Ending, _) => Self::Ending,
            (AllocationStage::Running, None) => Self::Running,
            (AllocationStage::Running, Some(ResizeStep::Offered(_))) => Self::Offered,
            (AllocationStage::Running, Some(ResizeStep::Acquiring { .. })) => Self::Acquiring,
            (AllocationStage::Running, Some(ResizeStep::Recruiting(_))) => Self::Recruiting,
            (AllocationStage::Running, Some(ResizeStep::Asked { .. })) => Self::Asked,
            (AllocationStage::Running, Some(ResizeStep::Releasing { .. })) => Self::Releasing,
        }
    }
}

/// A manager of clusters a and b whose job 1 is in a given state, and the time.
struct Scene {
    manager: Manager,
    now: Instant,
}

impl Scene {
    fn tell(&mut self, event: ManagerEvent) -> Vec<ManagerAction> {
        let out = self.manager.handle(event, self.now);
        self.manager.audit().unwrap();
        out
    }

    fn poll(&mut self, size: u32) -> Vec<ManagerAction> {
        let mut out = Vec::new();
        for name in ["a", "b"] {
            let cluster = ClusterId::from(name);
            out.extend(self.tell(ManagerEvent::Polled { cluster, size, others: 0, whole: 8 }));
        }
        out
    }

    /// Number of the change that is under way.
    fn change(&self) -> u64 {
        let job = self.manager.jobs.get(&JOB);
        job.and_then(|job| job.change.as_ref()).map_or(0, |change| change.number)
    }

    fn with(state: JobState) -> Self {
        let now = Instant::now();
        let manager =
            Manager::new(ManagerSettings::default(), ["a", "b"].map(ClusterId::from), now);
        let mut scene = Self { manager, now };
        let mut need = JobRequirements::one(Kind::Malleable, 2, 2, 8);
        if state == JobState::Placed {
            need.components[0].files = vec!["data".to_owned()];
            need.components[0].clusters = ["a".into()].into();
            let (file, bytes) = ("data".to_owned(), 1 << 30);
            let clusters = ["b".into()].into();
            scene.tell(ManagerEvent::Replicas { file, bytes, clusters, differs: None });
            let (from, to) = ("b".into(), "a".into());
            scene.tell(ManagerEvent::LinkMeasured { from, to, rate: 1e6 });
        }
        need.components[0].clusters = ["a".into()].into();
        let submit = ManagerEvent::Submit { job: JOB, need: Box::new(need) };
        let size = if state == JobState::Waiting { 1 } else { 8 };
        scene.poll(size);
        let steps = JobState::ALL.iter().position(|one| *one == state).unwrap();
        let reaches = |one| steps >= JobState::ALL.iter().position(|other| *other == one).unwrap();
        if state != JobState::Unknown {
            scene.tell(submit);
        }
        if reaches(JobState::Running) {
            scene.tell(ManagerEvent::Claimed { job: JOB, got: [("a".into(), 2)].into() });
        }
        let asks = matches!(state, JobState::Asked | JobState::Releasing);
        if reaches(JobState::Offered) && state != JobState::Ending {
            scene.poll(8);
        }
        let change = scene.change();
        if reaches(JobState::Acquiring) && state != JobState::Ending {
            scene.tell(ManagerEvent::Answer { job: JOB, change, count: Some(4) });
        }
        if reaches(JobState::Recruiting) && state != JobState::Ending {
            scene.tell(ManagerEvent::Held { job: JOB, change, count: 4 });
        }
        if asks {
            scene.tell(ManagerEvent::Grown { job: JOB, change, count: 4 });
            scene.tell(ManagerEvent::SizeLimited { job: JOB, most: Some(3) });
        }
        if state == JobState::Releasing {
            let change = scene.change();
            scene.tell(ManagerEvent::Answer { job: JOB, change, count: Some(3) });
        }
        if state == JobState::Ending {
            scene.tell(ManagerEvent::Ended { job: JOB });
        }
        scene.tell(ManagerEvent::Tick);
        assert_eq!(JobState::of(&scene.manager), state);
        scene
    }

    /// An event of a kind about job 1 and its change.
    fn sample(&self, kind: EventKind) -> ManagerEvent {
        let (job, change, reason) = (JOB, self.change(), "test".to_owned());
        let a = || ClusterId::from("a");
        match kind {
            EventKind::Polled => {
                ManagerEvent::Polled { cluster: a(), size: 8, others: 1, whole: 8 }
            }
            EventKind::HostsPolled => {
                let host = FreeHost::whole(HostCapacity { processors: 8, ..Default::default() });
                let (free, whole) = (vec![host.clone()], vec![host]);
                ManagerEvent::HostsPolled { cluster: a(), free, whole }
            }
            EventKind::Unreachable => ManagerEvent::Unreachable { cluster: a(), reason },
            EventKind::CapacityLimited => {
                ManagerEvent::CapacityLimited { cluster: a(), reason: Some(reason) }
            }
            EventKind::Replicas => {
                let (file, bytes, clusters) = ("more".to_owned(), 1, [a()].into());
                ManagerEvent::Replicas { file, bytes, clusters, differs: None }
            }
            EventKind::LinkMeasured => {
                ManagerEvent::LinkMeasured { from: a(), to: "b".into(), rate: 2e6 }
            }
            EventKind::SubmitAll => {
                let need = Box::new(JobRequirements::one(Kind::Malleable, 2, 2, 8));
                ManagerEvent::SubmitAll(vec![JobSubmission { job, need }])
            }
            EventKind::DependencyEnded => {
                ManagerEvent::DependencyEnded { job: JobId(99), ok: true }
            }
            EventKind::Submit => {
                let need = Box::new(JobRequirements::one(Kind::Malleable, 2, 2, 8));
                ManagerEvent::Submit { job, need }
            }
            EventKind::Moved => ManagerEvent::Moved { job },
            EventKind::MoveFailed => ManagerEvent::MoveFailed { job, reason },
            EventKind::Claimed => ManagerEvent::Claimed { job, got: [(a(), 2)].into() },
            EventKind::Resumed => {
                let need = Box::new(JobRequirements::one(Kind::Malleable, 2, 2, 8));
                let part = crate::policy::malleability::PlacedPart {
                    component: 0,
                    cluster: a(),
                    count: 2,
                };
                let (parts, transfers, why) = (vec![part], Vec::new(), reason);
                let placed = PlacementPlan { parts, transfers, why };
                let sizes = Box::new([(a(), 2)].into());
                ManagerEvent::Resumed { job, need, placed, since: None, sizes }
            }
            EventKind::ClaimFailed => {
                let without = Default::default();
                ManagerEvent::ClaimFailed { job, reason, without }
            }
            EventKind::Answer => ManagerEvent::Answer { job, change, count: Some(1) },
            EventKind::Held => ManagerEvent::Held { job, change, count: 1 },
            EventKind::Enlarged => {
                let change = (change > 0).then_some(change);
                ManagerEvent::Enlarged { job, change, cluster: a(), count: 1 }
            }
            EventKind::NotHeld => ManagerEvent::NotHeld { job, change, count: 1, reason },
            EventKind::Grown => ManagerEvent::Grown { job, change, count: 1 },
            EventKind::Freed => {
                ManagerEvent::Freed { job, cluster: a(), count: 1, voluntary: false }
            }
            EventKind::NotForced => ManagerEvent::NotForced { job, cluster: a(), count: 1 },
            EventKind::RootMoved => ManagerEvent::RootMoved { job, cluster: Some(a()) },
            EventKind::Unheld => ManagerEvent::Unheld { job, cluster: a(), count: 1 },
            EventKind::RevocationsPlanned => {
                let cluster = a();
                ManagerEvent::RevocationsPlanned { job, cluster, count: 1, unreplaced: 1 }
            }
            EventKind::EfficiencyMeasured => {
                ManagerEvent::EfficiencyMeasured { job, efficiency: 0.5, processors: 2 }
            }
            EventKind::GrowthRequested => {
                let (clusters, but) = Default::default();
                let want =
                    GrowthRequest { count: 1, timeout: None, clusters, excluded_clusters: but };
                ManagerEvent::GrowthRequested { job, want }
            }
            EventKind::MemoryRaised => ManagerEvent::MemoryRaised { job, memory: 1 << 30 },
            EventKind::SizeLimited => ManagerEvent::SizeLimited { job, most: Some(7) },
            EventKind::Ended => ManagerEvent::Ended { job },
            EventKind::Withdraw => ManagerEvent::Withdraw { job },
            EventKind::Tick => ManagerEvent::Tick,
        }
    }

    fn outcome(&mut self, event: ManagerEvent) -> EventEffect {
        let before = format!("{:?}", self.manager);
        let actions = self.tell(event);
        EventEffect::seen(!actions.is_empty() || format!("{:?}", self.manager) != before)
    }
}

/// Expected outcomes, by the states in [`JobState::ALL`].
fn row(kind: EventKind) -> [EventEffect; JobState::ALL.len()] {
    use EventEffect::{Handled as H, Ignored as I};
    let u = I("the job has ended, and its accounts are closed");
    // Handled in one state alone.
    let only = |state: JobState, why| {
        let mut row = [I(why); JobState::ALL.len()];
        row[JobState::ALL.iter().position(|one| *one == state).unwrap()] = H;
        row
    };
    let known = [u, H, H, H, H, H, H, H, H, H, H];
    match kind {
        EventKind::Polled
        | EventKind::HostsPolled
        | EventKind::Unreachable
        | EventKind::CapacityLimited
        | EventKind::Replicas
        | EventKind::LinkMeasured => [H; 11],
        // A known number is reported as a violation.
        EventKind::Submit | EventKind::SubmitAll => [H; 11],
        EventKind::DependencyEnded => [I("no job waits for the ended one"); 11],
        EventKind::Moved | EventKind::MoveFailed => {
            only(JobState::Placed, "the move was cancelled: the job has another place, or none")
        }
        EventKind::Claimed | EventKind::ClaimFailed => only(
            JobState::Claiming,
            "the claim was cancelled, and its nodes are reported one by one",
        ),
        EventKind::Resumed => only(JobState::Unknown, "the job is known, with its processors"),
        EventKind::Answer => {
            let a = I("the question was answered, or has expired");
            [a, a, a, a, a, H, a, a, H, a, a]
        }
        EventKind::Enlarged => {
            let e = I("the change holds no processors");
            [u, e, e, H, e, e, H, e, e, e, e]
        }
        EventKind::Held | EventKind::NotHeld => {
            only(JobState::Acquiring, "the change is over, and its hold is released")
        }
        EventKind::Grown => {
            only(JobState::Recruiting, "the change is over, and its processors are released")
        }
        EventKind::NotForced => only(JobState::Releasing, "no release is due"),
        // Processors that are in no account are reported as a violation.
        EventKind::Freed | EventKind::Unheld => known,
        EventKind::RevocationsPlanned => {
            let n = I("the job has no processors");
            [u, n, n, H, H, H, H, H, H, H, H]
        }
        EventKind::RootMoved
        | EventKind::EfficiencyMeasured
        | EventKind::GrowthRequested
        | EventKind::MemoryRaised
        | EventKind::SizeLimited => known,
        EventKind::Ended => {
            let e = I("the job is already ending: its processors become free one by one");
            [u, H, H, H, H, H, H, H, H, H, e]
        }
        EventKind::Withdraw => {
            let b = I("the job has started: its end is reported separately");
            [u, H, H, b, b, b, b, b, b, b, b]
        }
        EventKind::Tick => [I("no time has passed"); 11],
    }
}

#[test]
fn each_event_in_each_job_state_is_handled_or_ignored() {
    check(EventKind::ALL.iter().copied(), JobState::ALL, row, |kind, state| {
        let mut scene = Scene::with(state);
        let event = scene.sample(kind);
        assert_eq!(EventKind::of(&event), kind);
        scene.outcome(event)
    });
}
