//! The environment of a command's processes: their ranks, variables and hostfile.
//!
//! Pure functions, in the manner of Slurm's `srun`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::spec::{CommandSpec, ProcessUnit};
use crate::id::{ClusterId, JobId, NodeId};
use crate::work::ArrayTask;

/// A node of an attempt and its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeProcesses {
    /// The node.
    pub(super) node: NodeId,
    /// Its cluster.
    pub(super) cluster: ClusterId,
    /// The name of its host.
    pub(super) host: String,
    /// Its processors.
    pub(super) processors: u32,
    /// The lowest rank of its processes.
    pub(super) first_rank: u32,
    /// The number of its processes; 0 for none.
    pub(super) processes: u32,
}

/// The processes of all nodes of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessLayout {
    /// The job.
    pub(super) job: JobId,
    /// The nodes in order of rank.
    pub(super) nodes: Vec<NodeProcesses>,
}

impl ProcessLayout {
    /// Gives the nodes their ranks. The nodes keep their order.
    pub(super) fn new(job: JobId, unit: ProcessUnit, mut nodes: Vec<NodeProcesses>) -> Self {
        let mut next = 0;
        for (index, node) in nodes.iter_mut().enumerate() {
            node.processes = match unit {
                ProcessUnit::Job => u32::from(index == 0),
                ProcessUnit::Node => 1,
                ProcessUnit::Processor => node.processors,
            };
            node.first_rank = next;
            next += node.processes;
        }
        Self { job, nodes }
    }

    /// The number of processes.
    pub(super) fn processes(&self) -> u32 {
        self.nodes.iter().map(|node| node.processes).sum()
    }

    /// The number of processors.
    pub(super) fn processors(&self) -> u32 {
        self.nodes.iter().map(|node| node.processors).sum()
    }

    /// The processes of a node; `None` if the command does not use the node.
    pub(super) fn of(&self, node: &NodeId) -> Option<&NodeProcesses> {
        self.nodes.iter().find(|one| one.node == *node)
    }

    /// The node of a rank.
    pub(super) fn node_of(&self, rank: u32) -> Option<&NodeProcesses> {
        self.nodes.iter().find(|one| {
            one.first_rank <= rank && rank < one.first_rank.saturating_add(one.processes)
        })
    }

    /// The hostfile, in the form that Open MPI and others read: each host once, with its processors
    /// of all nodes on it as slots.
    pub(super) fn hostfile(&self) -> String {
        let mut slots: BTreeMap<&str, u32> = BTreeMap::new();
        let mut hosts = Vec::new();
        for node in &self.nodes {
            let before = slots.entry(&node.host).or_default();
            if *before == 0 {
                hosts.push(&*node.host);
            }
            *before += node.processors;
        }
        let mut text = String::new();
        for host in hosts {
            let slots = slots.get(host).copied().unwrap_or_default();
            // Writing to a text does not fail.
            let _ = writeln!(text, "{host} slots={slots}");
        }
        text
    }
}

/// Beginnings of variables by which batch systems describe an allocation to programs in it.
const ALLOCATION: [&str; 7] = ["SLURM_", "PBS_", "LSB_", "FLUX_", "PMI_", "PMIX_", "PE_HOSTFILE"];
/// Variables with such a beginning that say where a batch system is.
const ALLOCATION_EXCEPT: [&str; 10] = [
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "SLURM_JWT",
    "SLURM_SACK_KEY",
    "PBS_CONF_FILE",
    "PBS_DEFAULT",
    "PBS_EXEC",
    "PBS_HOME",
    "PBS_SERVER",
    "FLUX_URI",
];

/// Variable of a node that names the devices of its host that it may use.
const DEVICES: &str = "SPRINGTIDE_DEVICES";

/// Whether the processes do not inherit this variable of their node.
///
/// Variables of the node itself could contain secrets, such as tokens. A node may be a batch job of
/// one task. A launcher of MPI programs that saw its allocation would refuse the other nodes.
fn is_withheld(name: &str) -> bool {
    let begins = |beginning: &&str| name.starts_with(*beginning);
    name.starts_with("SPRINGTIDE_") && name != DEVICES
        || ALLOCATION.iter().any(begins) && !ALLOCATION_EXCEPT.contains(&name)
}

/// Removes the variables from a command's environment that it does not inherit.
pub(crate) fn withhold_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if is_withheld(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
}

/// The variables of one process. Those of [`CommandSpec::environment`] come last, and win.
pub(super) fn variables(
    spec: &CommandSpec,
    layout: &ProcessLayout,
    array: Option<&ArrayTask>,
    of: &NodeProcesses,
    rank: u32,
    attempt: u32,
) -> Vec<(String, String)> {
    let names: Vec<&str> = layout.nodes.iter().map(|node| node.node.as_str()).collect();
    let local = (of.processors / of.processes.max(1)).max(1);
    let mut all: Vec<(&str, String)> = vec![
        ("SPRINGTIDE_JOB_ID", layout.job.0.to_string()),
        ("SPRINGTIDE_TRY", attempt.to_string()),
        ("SPRINGTIDE_NODES", layout.nodes.len().to_string()),
        ("SPRINGTIDE_NODE_LIST", names.join(",")),
        ("SPRINGTIDE_PROCESSORS", layout.processors().to_string()),
        ("SPRINGTIDE_PROCESSES", layout.processes().to_string()),
        ("SPRINGTIDE_RANK", rank.to_string()),
        ("SPRINGTIDE_LOCAL_RANK", rank.saturating_sub(of.first_rank).to_string()),
        ("SPRINGTIDE_LOCAL_PROCESSES", of.processes.to_string()),
        ("SPRINGTIDE_LOCAL_PROCESSORS", of.processors.to_string()),
        ("SPRINGTIDE_NODE", of.node.to_string()),
        ("SPRINGTIDE_CLUSTER", of.cluster.to_string()),
        ("OMP_NUM_THREADS", local.to_string()),
    ];
    if let Some(dir) = &spec.submit_directory {
        all.push(("SPRINGTIDE_SUBMIT_DIR", dir.to_string_lossy().into_owned()));
    }
    if let Some(array) = array {
        all.push(("SPRINGTIDE_ARRAY_INDEX", array.index.to_string()));
        all.push(("SPRINGTIDE_ARRAY_FIRST", array.first.to_string()));
        all.push(("SPRINGTIDE_ARRAY_LAST", array.last.to_string()));
        all.push(("SPRINGTIDE_ARRAY_COUNT", array.count.to_string()));
    }
    let own = all.into_iter().map(|(name, value)| (name.to_owned(), value));
    let given = spec.environment.iter().map(|one| (one.name.clone(), one.value.clone()));
    own.chain(given).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, host: &str, processors: u32) -> NodeProcesses {
        NodeProcesses {
            node: name.into(),
            cluster: "ams".into(),
            host: host.to_owned(),
            processors,
            first_rank: 0,
            processes: 0,
        }
    }

    fn layout(unit: ProcessUnit) -> ProcessLayout {
        let nodes = vec![node("a-0", "one", 2), node("a-1", "two", 1), node("a-2", "one", 3)];
        ProcessLayout::new(JobId(7), unit, nodes)
    }

    #[test]
    fn ranks_follow_the_order_of_nodes() {
        let ranks = |unit| {
            let nodes = layout(unit).nodes;
            nodes.iter().map(|one| (one.first_rank, one.processes)).collect::<Vec<_>>()
        };
        assert_eq!(ranks(ProcessUnit::Job), [(0, 1), (1, 0), (1, 0)]);
        assert_eq!(ranks(ProcessUnit::Node), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(ranks(ProcessUnit::Processor), [(0, 2), (2, 1), (3, 3)]);
        let layout = layout(ProcessUnit::Processor);
        let names = (0..7).map(|rank| layout.node_of(rank).map(|one| one.node.to_string()));
        let names: Vec<_> = names.flatten().collect();
        assert_eq!(names, ["a-0", "a-0", "a-1", "a-2", "a-2", "a-2"]);
    }

    #[test]
    fn a_host_of_two_nodes_stands_once_in_the_hostfile() {
        assert_eq!(layout(ProcessUnit::Job).hostfile(), "one slots=5\ntwo slots=1\n");
    }

    #[test]
    fn given_variables_win() {
        let spec = CommandSpec {
            program: "true".to_owned(),
            arguments: Vec::new(),
            environment: vec![super::super::spec::EnvironmentVariable {
                name: "OMP_NUM_THREADS".to_owned(),
                value: "9".to_owned(),
            }],
            directory: None,
            submit_directory: None,
            stdin: None,
            inputs: Vec::new(),
            unit: ProcessUnit::Processor,
            restarts: 0,
            grace: std::time::Duration::ZERO,
        };
        let layout = layout(ProcessUnit::Processor);
        let array = ArrayTask { id: 1, index: 4, first: 0, last: 9, count: 10, limit: None };
        let all = variables(&spec, &layout, Some(&array), &layout.nodes[2], 4, 2);
        let value = |name: &str| {
            let found = all.iter().rev().find(|(known, _)| known == name);
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        assert_eq!(value("SPRINGTIDE_JOB_ID"), "7");
        assert_eq!(value("SPRINGTIDE_PROCESSORS"), "6");
        assert_eq!(value("SPRINGTIDE_RANK"), "4");
        assert_eq!(value("SPRINGTIDE_LOCAL_RANK"), "1");
        assert_eq!(value("SPRINGTIDE_TRY"), "2");
        assert_eq!(value("SPRINGTIDE_ARRAY_INDEX"), "4");
        assert_eq!(value("SPRINGTIDE_NODE_LIST"), "a-0,a-1,a-2");
        assert_eq!(value("OMP_NUM_THREADS"), "9");
    }

    #[test]
    fn the_allocation_of_the_node_is_withheld() {
        for name in ["SPRINGTIDE_TOKEN", "SLURM_JOB_ID", "PBS_JOBID", "PE_HOSTFILE", "PMI_RANK"] {
            assert!(is_withheld(name), "{name}");
        }
        for name in
            [DEVICES, "PATH", "SLURM_CONF", "PBS_SERVER", "CUDA_VISIBLE_DEVICES", "SGE_ROOT"]
        {
            assert!(!is_withheld(name), "{name}");
        }
    }
}
