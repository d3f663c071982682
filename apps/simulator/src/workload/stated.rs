//! Statements of the paper on its experiments, compared with our results, with the reason of each
//! difference.
//!
//! Source: Buisson et al., *Scheduling malleable applications in multicluster systems*, CLUSTER
//! 2007, sections 1, 7 and 8. Of its figures our copy has only the axes, which bound the values.
//! This module does not depend on the simulation of the outcomes.

use serde::Serialize;
use springtide_actors::policy::malleability::Policy;
use springtide_actors::scheduler::manager::Approach;

use super::{Workload, WorkloadSummary};

/// The result of one of the paper's workloads under one configuration.
#[derive(Clone, Debug)]
pub struct PolicyRun {
    /// The precedence of running or waiting jobs.
    pub approach: Approach,
    /// The policy that selects jobs to grow and shrink.
    pub policy: Policy,
    /// The share of malleable jobs: 1 for Wm and W'm, 0.5 for Wmr and W'mr, 0 for rigid jobs.
    pub malleable: f64,
    /// Means over the seeds.
    pub result: WorkloadSummary,
}

/// Clusters of the workloads with precedence to waiting jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PaperClusters {
    /// Two clusters with the processors that the paper's scheduler had of the testbed.
    Two,
    /// All five clusters of the testbed, each with a cap.
    Five,
}

/// A statement of the paper and our result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Statement {
    /// The clusters of our result.
    pub clusters: PaperClusters,
    /// The statement of the paper.
    pub paper: &'static str,
    /// Our result, in words.
    pub ours: String,
    /// Whether our result agrees with the statement.
    pub same: bool,
    /// The reason, if it does not agree.
    pub why: Option<&'static str>,
}

/// The reason why no job waits on five clusters.
const ALWAYS_IDLE: &str = "a cap limits growth and not placement: on the whole testbed, jobs of \
                           two processors always find idle ones, which other users had in the \
                           paper. So no job waits for others to shrink";

/// Compares figure 6 with the programs of a workload. Returns nothing without both programs.
pub fn figure_six(workload: &Workload) -> Option<Statement> {
    let times = |name: &str| {
        let job = workload.jobs.iter().find(|job| job.program.name == name)?;
        let at = |processors: u32| job.program.curve.seconds(processors);
        let best = (2..=job.program.max).map(at).fold(f64::INFINITY, f64::min);
        Some((at(2), best))
    };
    let (gadget, ft) = (times("gadget")?, times("ft")?);
    let near = |ours: f64, paper: f64| (ours / paper - 1.0).abs() < 0.05;
    let same =
        near(gadget.0, 600.0) && near(gadget.1, 240.0) && near(ft.0, 120.0) && near(ft.1, 60.0);
    Some(Statement {
        clusters: PaperClusters::Five,
        paper: "figure 6, in Delft: GADGET2 nearly 10 min on 2 processors and 4 min at best, FT \
                almost 2 min and 1 min",
        ours: format!(
            "curves a + b/n through these points: GADGET2 {:.0} s and {:.0} s, FT {:.0} s and \
             {:.0} s",
            gadget.0, gadget.1, ft.0, ft.1
        ),
        same,
        why: (!same).then_some("the workload's file has other curves"),
    })
}

/// Compares all statements that these runs suffice for.
pub fn statements(runs: &[PolicyRun], clusters: PaperClusters) -> Vec<Statement> {
    let of = |approach: Approach, policy: Policy, malleable: f64| {
        let found = runs
            .iter()
            .find(|run| (run.approach, run.policy, run.malleable) == (approach, policy, malleable));
        found.map(|run| &run.result)
    };
    let rigid = |approach: Approach| {
        let found = runs.iter().find(|run| run.approach == approach && run.malleable == 0.0);
        found.map(|run| &run.result)
    };
    let mut all = Vec::new();
    let mut say = |paper, ours: Option<(String, bool)>, why| {
        if let Some((ours, same)) = ours {
            let why = (!same).then_some(why).filter(|why: &&str| !why.is_empty());
            all.push(Statement { clusters, paper, ours, same, why });
        }
    };
    let (running, waiting) = (Approach::Running, Approach::Waiting);
    let paper_policies = [Policy::Fpsma, Policy::Egs];
    let four = |approach: Approach| -> Option<[&WorkloadSummary; 4]> {
        let [fpsma, egs] = paper_policies;
        Some([
            of(approach, fpsma, 1.0)?,
            of(approach, fpsma, 0.5)?,
            of(approach, egs, 1.0)?,
            of(approach, egs, 0.5)?,
        ])
    };
    say(
        "a higher utilisation and shorter execution times can be achieved when malleability is \
         used",
        four(running).zip(rigid(running)).map(|(four, rigid)| {
            let shorter = four.iter().all(|one| one.execution_s < rigid.execution_s);
            let more = four.iter().all(|one| one.used > rigid.used);
            let ours = format!(
                "execution {} s, rigid {:.0} s; processors in use {}, rigid {:.1}",
                list(&four, |one| one.execution_s, 0),
                rigid.execution_s,
                list(&four, |one| one.used, 1),
                rigid.used
            );
            (ours, shorter && more)
        }),
        "",
    );
    say(
        "with precedence to running jobs no job shrinks",
        four(running).map(|four| {
            (
                format!("shrinks {}", list(&four, |one| one.shrinks as f64, 0)),
                four.iter().all(|one| one.shrinks == 0),
            )
        }),
        "",
    );
    say(
        "with precedence to waiting jobs they grow and shrink",
        four(waiting).map(|four| {
            let both = four.iter().all(|one| one.offers > 0 && one.shrinks > 0);
            (format!("shrinks {}", list(&four, |one| one.shrinks as f64, 0)), both)
        }),
        match clusters {
            PaperClusters::Two => {
                "rigid jobs of two processors nearly always find them idle, so no job has to shrink"
            }
            PaperClusters::Five => ALWAYS_IDLE,
        },
    );
    say(
        "under load the execution times of all four are almost the same",
        four(waiting).map(|four| {
            let times = four.map(|one| one.execution_s);
            let least = times.iter().copied().fold(f64::INFINITY, f64::min);
            let most = times.iter().copied().fold(0.0, f64::max);
            let ours = format!(
                "{} s, the longest {:.2} of the shortest",
                list(&four, |one| one.execution_s, 0),
                most / least
            );
            (ours, most <= 1.1 * least)
        }),
        "egs gives some to each job at every poll, so only a few stay at their minimum; the \
         paper does \
         not state the cost of a change in its applications, which is 4 s here",
    );
    say(
        "under load the response time is far worse for egs with all jobs malleable, for they wait \
         longer",
        four(waiting).map(|four| {
            let [fpsma, _, egs, _] = four;
            let ours = format!(
                "response {} s, of which they wait {} s",
                list(&four, |one| one.response_s, 0),
                list(&four, |one| one.wait_s, 1)
            );
            (ours, egs.response_s > 1.1 * fpsma.response_s)
        }),
        match clusters {
            PaperClusters::Two => {
                "jobs start on two processors, and precedence to waiting jobs makes room for these \
                 within seconds: egs's wait is longer than fpsma's, and both are short. The \
                 paper's waits depend on times that it does not state: how often the queue is \
                 scanned, and how long a cluster's own scheduler takes"
            }
            PaperClusters::Five => ALWAYS_IDLE,
        },
    );
    let axis = |approach, ends: [f64; 5]| {
        four(approach).map(|four| {
            let most = |of: fn(&WorkloadSummary) -> f64| {
                four.iter().map(|one| of(one)).fold(0.0, f64::max)
            };
            let ours = [
                most(|one| one.processors),
                most(|one| one.execution_s),
                most(|one| one.response_s),
                most(|one| one.used),
                most(|one| one.operations as f64),
            ];
            let text = format!(
                "means up to {:.0} processors a job, {:.0} s, {:.0} s, {:.0} processors in use, \
                 {:.0} operations",
                ours[0], ours[1], ours[2], ours[3], ours[4]
            );
            (text, ours.iter().zip(ends).all(|(ours, end)| *ours <= end))
        })
    };
    let outside = "the paper's clusters had other users, whose load it does not state: without a \
                   cap ours get more, and with one egs changes more jobs a poll";
    say(
        "axes with precedence to running jobs: 30 processors a job, 1200 s, 1200 s, 120 in use, \
         800 operations",
        axis(running, [30.0, 1200.0, 1200.0, 120.0, 800.0]),
        outside,
    );
    say(
        "axes with precedence to waiting jobs: 40 processors a job, 1000 s, 1000 s, 100 in use, \
         500 operations",
        axis(waiting, [40.0, 1000.0, 1000.0, 100.0, 500.0]),
        outside,
    );
    all
}

fn list(all: &[&WorkloadSummary; 4], of: fn(&WorkloadSummary) -> f64, digits: usize) -> String {
    let [a, b, c, d] = all.map(of);
    format!(
        "fpsma {a:.digits$} and {b:.digits$} (half of them rigid), egs {c:.digits$} and \
         {d:.digits$}"
    )
}
