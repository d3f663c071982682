//! Changes of a grid's state, as lines for people.

use std::collections::{BTreeMap, BTreeSet};

use springtide_actors::scheduler::{
    GridStatus, JobState, JobStatus, NodeState, NodeStatus, SiteStatus,
};
use springtide_cli::format::{many, plural};
use springtide_runtime::id::{ClusterId, JobId, NodeId};

/// The subject of a line about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeSubject {
    /// A job has changed.
    Job,
    /// Nodes or clusters that joined, left or changed.
    Capacity,
    /// A failure was detected.
    Failure,
}

/// The changes between two states of the grid, with their subjects.
pub fn changes_between(before: &GridStatus, now: &GridStatus) -> Vec<(ChangeSubject, String)> {
    let mut lines = Vec::new();
    // Thousands of jobs may wait.
    let former: BTreeMap<JobId, &JobStatus> =
        before.jobs.iter().map(|known| (known.job, known)).collect();
    let present: BTreeSet<JobId> = now.jobs.iter().map(|job| job.job).collect();
    for job in &now.jobs {
        let known = former.get(&job.job);
        if known.is_none_or(|known| known.state != job.state) {
            match job.state {
                JobState::Queued => {
                    let what = job.waits_for.as_deref().unwrap_or_default();
                    lines.push((
                        ChangeSubject::Job,
                        format!("{} ({}) waits for {what}", job.job, job.name),
                    ));
                }
                JobState::Running => {
                    lines.push((
                        ChangeSubject::Job,
                        format!(
                            "{} ({}) runs on {}",
                            job.job,
                            job.name,
                            many(job.processors().into(), "processor")
                        ),
                    ));
                }
                JobState::Assigning | JobState::Ending => {}
            }
        }
    }
    for job in &before.jobs {
        if !present.contains(&job.job) {
            lines.push((ChangeSubject::Job, format!("{} ({}) is over", job.job, job.name)));
        }
    }
    let nodes = |status: &GridStatus| -> BTreeMap<NodeId, (NodeStatus, (bool, bool))> {
        let with = |site: &SiteStatus| {
            let kind = (site.on_demand, site.joins);
            site.nodes.clone().into_iter().map(move |node| (node.node.clone(), (node, kind)))
        };
        status.sites.values().flat_map(with).collect()
    };
    for (cluster, site) in &now.sites {
        let former = before.sites.get(cluster);
        let (was, is) = (former.map_or((0, 0), held_and_requested), held_and_requested(site));
        if former.is_none() && site.on_demand {
            lines.push((ChangeSubject::Capacity, describe_on_demand(cluster, site)));
        }
        // A site reports its state some time after its start.
        let failed = former.and_then(|site| site.failing.as_ref());
        match &site.failing {
            now if former.is_none() || now.as_ref() == failed => {}
            Some(reason) => lines.push((
                ChangeSubject::Failure,
                format!(
                    "cluster {cluster} cannot be used: \
                    {reason}"
                ),
            )),
            None => lines.push((ChangeSubject::Capacity, format!("cluster {cluster} can be used"))),
        }
        if is != was && site.on_demand {
            let (there, coming) = is;
            let held = match there {
                1 => "1 node is held".to_owned(),
                _ => format!("{there} nodes are held"),
            };
            let line = match coming {
                0 => format!("cluster {cluster}: {held}"),
                _ => format!("cluster {cluster}: {held}, {coming} asked for"),
            };
            lines.push((ChangeSubject::Capacity, line));
        }
    }
    let before = nodes(before);
    for (id, (new, (on_demand, joins))) in nodes(now) {
        let Some((old, _)) = before.get(&id).filter(|(old, _)| old.state != new.state) else {
            continue;
        };
        let reason = new.reason.as_deref().unwrap_or("by order");
        match new.state {
            NodeState::Broken => {
                lines.push((
                    ChangeSubject::Failure,
                    format!("node {} is broken: {reason}", new.node),
                ));
            }
            NodeState::Starting | NodeState::Idle if on_demand => {} // reported as a number
            NodeState::Starting => {
                lines.push((
                    ChangeSubject::Capacity,
                    format!("node {} is restarted: {reason}", new.node),
                ));
            }
            NodeState::Idle if old.state == NodeState::Off || is_first_start(old) => {
                let threads = new.threads.unwrap_or(0);
                let word = plural(threads.into(), "thread");
                lines.push((
                    ChangeSubject::Capacity,
                    format!("node {} has joined, with {threads} {word}", new.node),
                ));
            }
            NodeState::Idle if old.state == NodeState::Starting => {
                lines.push((ChangeSubject::Capacity, format!("node {} is back", new.node)));
            }
            NodeState::Drained => lines
                .push((ChangeSubject::Capacity, format!("node {} is drained: {reason}", new.node))),
            NodeState::Idle if old.state == NodeState::Drained => {
                lines.push((
                    ChangeSubject::Capacity,
                    format!("node {} is in service again", new.node),
                ));
            }
            NodeState::Off if joins && new.reason.is_some() => {
                lines.push((
                    ChangeSubject::Capacity,
                    format!("node {} is gone: {reason}", new.node),
                ));
            }
            NodeState::Off if new.reason.is_some() && old.state != NodeState::Closing => {
                lines.push((
                    ChangeSubject::Capacity,
                    format!("node {} has ended: {reason}", new.node),
                ));
            }
            NodeState::Idle
            | NodeState::Busy
            | NodeState::Measuring
            | NodeState::Draining
            | NodeState::Held
            | NodeState::Off
            | NodeState::Closing => {}
        }
    }
    lines
}

/// Whether a node starts for the first time: it was neither registered nor lost before.
fn is_first_start(node: &NodeStatus) -> bool {
    node.state == NodeState::Starting && node.incarnation.is_none() && node.reason.is_none()
}

/// The number of held nodes of a cluster, and of those requested.
pub fn held_and_requested(site: &SiteStatus) -> (usize, usize) {
    let coming = site.nodes.iter().filter(|node| node.state == NodeState::Starting).count();
    let away = |state| matches!(state, NodeState::Off | NodeState::Broken | NodeState::Starting);
    (site.nodes.iter().filter(|node| !away(node.state)).count(), coming)
}

/// Describes what a cluster has whose nodes start while jobs need them.
pub fn describe_on_demand(cluster: &ClusterId, site: &SiteStatus) -> String {
    let most = site.nodes.len();
    match site.hosts.len() {
        0 => {
            format!("cluster {cluster}: up to {}, while jobs need them", many(most as u64, "node"))
        }
        hosts => {
            let processors: u32 = site.hosts.iter().map(|host| host.processors).sum();
            format!(
                "cluster {cluster}: {} of {}, in nodes that start while jobs need them",
                many(processors.into(), "processor"),
                many(hosts as u64, "host")
            )
        }
    }
}
