//! Several jobs at once over a grid in virtual time, with all actors: the malleability manager
//! distributes the nodes.

use std::rc::Rc;
use std::time::Duration;

use springtide_actors::policy::Mode;
use springtide_actors::scheduler::manager::{JobRequirements, Kind};
use springtide_actors::scheduler::{GetStatus, JobState, NodeState};
use springtide_runtime::id::JobId;
use springtide_simulator::apps::ModelledJob;
use springtide_simulator::{SimulatedGrid, simulate};
use tokio::time::sleep;

use crate::simulated::{TREE, layout, params, registry};

/// Nodes of a job, and whether it waits; none if it does not exist.
async fn nodes(grid: &Rc<SimulatedGrid>, job: JobId) -> Option<(u32, bool)> {
    let status = grid.scheduler().send(GetStatus {}).await.expect("a status");
    let job = status.jobs.into_iter().find(|known| known.job == job)?;
    Some((job.processors(), job.state == JobState::Queued))
}

/// A malleable job grows into free processors. A rigid one gets the other cluster; for a second one
/// the first shrinks, and grows again after it. All answers are right.
#[test]
fn a_job_grows_shrinks_for_another_and_grows_again() {
    for (seed, mode) in [(1, Mode::Static), (2, Mode::Adaptive)] {
        let layout = layout(&[4, 4], seed);
        let params = |seed| {
            let mut params = params(seed);
            params.mode = mode;
            params.set_period(Duration::from_secs(2));
            params
        };
        simulate(|| async move {
            let grid = SimulatedGrid::start(&layout, registry()).await;

            let malleable = JobRequirements::one(Kind::Malleable, 2, 2, 8);
            let first = grid
                .submitter()
                .submit_needing(ModelledJob { rounds: 24, ..TREE }, params(seed), malleable)
                .await
                .expect("it is taken");
            let id = first.granted().job;
            assert_eq!(first.granted().view.members.len(), 2);
            let others = {
                let (grid, id) = (grid.clone(), id);
                let rigid = move |n| JobRequirements::one(Kind::Rigid, n, n, n);
                let params = params(seed);
                actix_rt::spawn(async move {
                    sleep(Duration::from_secs(20)).await;
                    assert_eq!(nodes(&grid, id).await, Some((4, false)), "{mode:?}: it has grown");
                    let second = grid
                        .submitter()
                        .submit_needing(
                            ModelledJob { rounds: 60, ..TREE },
                            params.clone(),
                            rigid(4),
                        )
                        .await
                        .expect("it is taken");
                    let clusters: std::collections::BTreeSet<_> = second
                        .granted()
                        .view
                        .members
                        .values()
                        .map(|member| member.cluster.clone())
                        .collect();
                    assert_eq!(clusters.len(), 1);
                    let third = grid
                        .submitter()
                        .submit_needing(ModelledJob { rounds: 4, ..TREE }, params, rigid(2))
                        .await
                        .expect("it is taken");
                    let (second, third) = (second.granted().job, third.granted().job);
                    assert_eq!(
                        nodes(&grid, id).await.map(|(n, _)| n),
                        Some(2),
                        "{mode:?}: it has shrunk"
                    );
                    while nodes(&grid, third).await.is_some() {
                        sleep(Duration::from_secs(1)).await;
                    }
                    sleep(Duration::from_secs(20)).await;
                    assert_eq!(
                        nodes(&grid, id).await.map(|(n, _)| n),
                        Some(4),
                        "{mode:?}: it has grown again"
                    );
                    (second, third)
                })
            };
            let ended = first.ended(Duration::from_secs(3600)).await.expect("it ends");
            let outcome = ended.ended.outcome.as_ref().expect("no failure");
            assert_eq!(outcome.checksum, ModelledJob { rounds: 24, ..TREE }.answer());
            let (second, _) = others.await.expect("nothing failed");
            while nodes(&grid, second).await.is_some() {
                sleep(Duration::from_secs(1)).await;
            }
            let status = grid.scheduler().send(GetStatus {}).await.expect("a status");
            assert_eq!(status.count(NodeState::Idle), 8);
        });
    }
}
