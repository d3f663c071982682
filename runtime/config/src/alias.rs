//! Clusters of a grid whose nodes would be batch jobs for the same processors.
//!
//! Each such cluster would promise the processors of both, and jobs would start that never get
//! their nodes. Only batch systems that list machines are compared. Of others, the config itself
//! says how many nodes a cluster has. This module does not know how a batch system is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::Checker;
use super::batch::{BatchPreset, BatchSection, BatchTemplate};
use super::grid::{ClusterSection, GridConfig};
use super::units::{Provider, SitePlace};

/// Two clusters that may have the same processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterAlias {
    /// Index of the first cluster.
    pub first: usize,
    /// Index of the second cluster.
    pub second: usize,
    /// The queues that they may share.
    pub queue: SharedQueue,
}

/// The queue of two clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharedQueue {
    /// Both name this queue.
    Named(String),
    /// Neither names a queue, or one queue contains the other.
    All,
    /// One cluster names no queue. They share it if these contain the default queue, which only the
    /// batch system knows.
    IfDefault {
        /// Index of the cluster without a queue.
        unnamed: usize,
        /// The queues of the other cluster.
        queues: Vec<String>,
    },
}

/// A batch system, as far as a config identifies it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SystemKey {
    /// The command that lists machines.
    program: String,
    /// The directory of the commands, unless variables say where the system is.
    commands: Option<PathBuf>,
    /// Environment variables of the commands; paths are resolved.
    variables: BTreeMap<String, PathBuf>,
    /// Slurm's own name of the cluster.
    clusters: Option<String>,
}

/// A cluster of a batch system that lists machines.
struct BatchCluster {
    index: usize,
    system: SystemKey,
    section: BatchSection,
    template: BatchTemplate,
}

impl BatchCluster {
    fn new(
        index: usize,
        cluster: &ClusterSection,
        resolve: &dyn Fn(&Path) -> PathBuf,
    ) -> Option<Self> {
        if cluster.site == SitePlace::Own {
            return None; // its commands run on another host
        }
        let section = cluster.batch_system()?;
        let template = section.commands_template().ok()?;
        let list = template.list_machines.as_ref()?;
        let program = list.parts().first()?.words().first()?.to_string();
        let resolved = |(name, value): (&String, &String)| {
            let path = Path::new(value);
            (name.clone(), if path.is_absolute() { resolve(path) } else { path.to_owned() })
        };
        let variables: BTreeMap<_, _> = section.variables.iter().map(resolved).collect();
        let commands = section.commands.as_ref().filter(|_| variables.is_empty());
        let commands = commands.map(|commands| resolve(commands));
        let clusters = section.values.get("clusters").cloned();
        let system = SystemKey { program, commands, variables, clusters };
        Some(Self { index, system, section, template })
    }

    /// Whether values of both select different machines of one queue.
    fn selects_others_than(&self, other: &Self) -> bool {
        let value = |cluster: &Self, key: &str| cluster.section.values.get(key).cloned();
        let differ = |key: &str| {
            let (own, other) = (value(self, key), value(other, key));
            own.is_some() && other.is_some() && own != other
        };
        match self.section.preset {
            // The machines of a reservation take no other jobs.
            Some(BatchPreset::Slurm) => {
                differ("constraint") || value(self, "reservation") != value(other, "reservation")
            }
            Some(BatchPreset::GridEngine) => differ("resources"),
            _ => self.section.values.keys().any(|key| differ(key)),
        }
    }

    fn queues(&self) -> Option<BTreeSet<&str>> {
        let queue = self.section.queue.as_deref()?;
        Some(queue.split(',').map(str::trim).filter(|queue| !queue.is_empty()).collect())
    }

    /// The queue that both may use.
    fn shared_queue(&self, other: &Self) -> Option<SharedQueue> {
        let has_default = self.template.default_queue.is_some();
        let if_default = |unnamed: usize, queues: BTreeSet<&str>| {
            let queues = queues.into_iter().map(str::to_owned).collect();
            if has_default {
                SharedQueue::IfDefault { unnamed, queues }
            } else {
                SharedQueue::All // any queue takes a job that names none
            }
        };
        match (self.queues(), other.queues()) {
            (None, None) => Some(SharedQueue::All),
            (None, Some(queues)) => Some(if_default(self.index, queues)),
            (Some(queues), None) => Some(if_default(other.index, queues)),
            (Some(own), Some(others)) => {
                if let Some(both) = own.intersection(&others).next() {
                    return Some(SharedQueue::Named((*both).to_owned()));
                }
                // `all.q@host` is a part of `all.q`.
                let contains = |all: &&str, part: &&str| {
                    part.split_once('@').is_some_and(|(queue, _)| queue == *all)
                };
                let within = own.iter().any(|one| {
                    others.iter().any(|other| contains(one, other) || contains(other, one))
                });
                within.then_some(SharedQueue::All)
            }
        }
    }
}

impl GridConfig {
    /// Pairs of clusters that may have the same processors. `resolve` gives the canonical form of
    /// an absolute path.
    ///
    /// Clusters with a site of their own are not compared, because their commands run elsewhere.
    /// Nor are different queues, although a batch system may give both the same machines: then the
    /// processors in use by one are processors of others to the other cluster.
    pub fn cluster_aliases(&self, resolve: &dyn Fn(&Path) -> PathBuf) -> Vec<ClusterAlias> {
        let clusters = self.cluster.iter().enumerate();
        let clusters = clusters.filter_map(|(i, one)| BatchCluster::new(i, one, resolve));
        let clusters: Vec<BatchCluster> = clusters.collect();
        let mut aliases = Vec::new();
        for (i, second) in clusters.iter().enumerate() {
            for first in &clusters[..i] {
                if first.system != second.system || first.selects_others_than(second) {
                    continue;
                }
                if let Some(queue) = first.shared_queue(second) {
                    aliases.push(ClusterAlias { first: first.index, second: second.index, queue });
                }
            }
        }
        aliases
    }

    /// The path of the key that names a cluster's queue, and the batch system's word for a queue.
    pub fn queue_key(&self, cluster: usize) -> (String, &'static str) {
        match self.cluster[cluster].provider {
            Provider::Slurm => (format!("cluster[{cluster}].slurm.partition"), "partition"),
            _ => (format!("cluster[{cluster}].batch.queue"), "queue"),
        }
    }
}

/// The reason for which two clusters cannot be in one grid. `place` is that of the first.
pub fn describe_alias(config: &GridConfig, alias: &ClusterAlias, place: &str) -> String {
    let (first, second) = (&config.cluster[alias.first].name, &config.cluster[alias.second].name);
    let (_, queue) = config.queue_key(alias.second);
    let shared = match &alias.queue {
        SharedQueue::Named(name) => {
            format!("both submit to {queue} \"{name}\" of one batch system")
        }
        SharedQueue::All => format!("both submit to one {queue} of one batch system"),
        SharedQueue::IfDefault { queues, .. } => format!(
            "both submit to {queue} \"{}\", which is the default, of one batch system",
            queues.join(",")
        ),
    };
    format!(
        "cluster \"{second}\" has the processors of cluster \"{first}\" {place}: {shared}; leave \
         one out, or let them name different {queue}s or select different machines"
    )
}

/// Reports clusters that have the same processors, as far as the config alone shows that.
pub(super) fn check_aliases(config: &GridConfig, checker: &mut Checker<'_>) {
    let certain = |alias: &ClusterAlias| !matches!(alias.queue, SharedQueue::IfDefault { .. });
    for alias in config.cluster_aliases(&normalized).into_iter().filter(certain) {
        let place = checker.describe_place(&format!("cluster[{}].name", alias.first));
        let reason = describe_alias(config, &alias, &place);
        let (queue, _) = config.queue_key(alias.second);
        checker.tell_at(&[&queue, &format!("cluster[{}].name", alias.second)], reason);
    }
}

/// A path without `.` and `..`, by its text alone.
fn normalized(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::{Sources, load};
    use super::*;

    fn grid(clusters: &[(&str, &str)]) -> String {
        let section = |(i, (provider, keys)): (usize, &(&str, &str))| {
            format!(
                "[[cluster]]\nname = \"c{i}\"\nprovider = \"{provider}\"\n\
                 [cluster.{provider}]\n{keys}\n"
            )
        };
        clusters.iter().enumerate().map(section).collect()
    }

    /// The problems of a config of these clusters.
    fn problems(clusters: &[(&str, &str)]) -> String {
        let loaded = load::<GridConfig>(&Sources::of_text("grid.toml", &grid(clusters)));
        loaded.map_or_else(|error| error.to_string(), |_| String::new())
    }

    fn slurm(first: &str, second: &str) -> String {
        problems(&[("slurm", first), ("slurm", second)])
    }

    #[test]
    fn two_clusters_on_one_partition_are_refused() {
        let text = slurm("partition = \"batch\"", "partition = \"batch\"");
        assert_eq!(
            text,
            "grid.toml:10:1: cluster \"c1\" has the processors of cluster \"c0\" on line 2: both \
             submit to partition \"batch\" of one batch system; leave one out, or let them name \
             different partitions or select different machines"
        );
        assert!(slurm("", "").starts_with("grid.toml:7:1: cluster \"c1\""), "{}", slurm("", ""));
        for (first, second) in [
            ("partition = \"a,b\"", "partition = \"b\""),
            ("partition = \"a\"\nconf = \"/s/x/../c\"", "partition = \"a\"\nconf = \"/s/./c\""),
            ("conf = \"/c\"\ncommands = \"/a\"", "conf = \"/c\"\ncommands = \"/b\""),
            // These do not select machines.
            ("qos = \"a\"", "qos = \"b\""),
            ("gres = \"gpu:1\"", "account = \"a\""),
            ("constraint = \"haswell\"", ""),
            ("clusters = \"das5\"", "clusters = \"das5\""),
        ] {
            assert_ne!(slurm(first, second), "", "{first} {second}");
        }
    }

    #[test]
    fn different_processors_are_allowed() {
        for (first, second) in [
            ("partition = \"a\"", "partition = \"b\""),
            ("conf = \"/a\"", "conf = \"/b\""),
            ("commands = \"/a\"", "commands = \"/b\""),
            ("clusters = \"a\"", "clusters = \"b\""),
            ("constraint = \"haswell\"", "constraint = \"skylake\""),
            ("reservation = \"course\"", ""),
            // Only Slurm knows its default.
            ("partition = \"a\"", ""),
        ] {
            assert_eq!(slurm(first, second), "", "{first} {second}");
        }
        // Its commands run on another host.
        let text = grid(&[("slurm", ""), ("slurm", "")]);
        let own = text.replace("\"c1\"", "\"c1\"\nsite = \"own\"");
        assert!(load::<GridConfig>(&Sources::of_text("grid.toml", &own)).is_ok());
        // It lists no machines: the config says how many nodes there are.
        let pbs = "preset = \"pbs\"\nqueue = \"q\"";
        assert_eq!(problems(&[("batch", pbs), ("batch", pbs)]), "");
    }

    #[test]
    fn queues_of_grid_engine_are_compared() {
        let text = |first: &str, second: &str| {
            let keys = |more: &str| format!("preset = \"gridengine\"\n{more}");
            problems(&[("batch", &keys(first)), ("batch", &keys(second))])
        };
        let all = "queue = \"all.q\"";
        assert!(text(all, all).contains("queue \"all.q\" of one batch system"));
        // A job that names no queue may run in any.
        assert!(text(all, "").starts_with("grid.toml:8:1: "), "{}", text(all, ""));
        assert_ne!(text(all, "queue = \"all.q@host\""), "");
        assert_eq!(text("queue = \"all.q@host1\"", "queue = \"all.q@host2\""), "");
        assert_eq!(text(all, "queue = \"long.q\""), "");
        let cell = |cell: &str| format!("variables = {{ SGE_CELL = \"{cell}\" }}");
        assert_eq!(text(&cell("a"), &cell("b")), "");
        let hosts = |hosts: &str| format!("values = {{ resources = \"hostname={hosts}\" }}");
        assert_eq!(text(&hosts("a*"), &hosts("b*")), "");
    }

    #[test]
    fn the_default_partition_is_asked_for() {
        let text = grid(&[("slurm", "partition = \"a\""), ("slurm", "")]);
        let config = load::<GridConfig>(&Sources::of_text("grid.toml", &text)).unwrap().value;
        let queue = SharedQueue::IfDefault { unnamed: 1, queues: vec!["a".to_owned()] };
        let alias = ClusterAlias { first: 0, second: 1, queue };
        assert_eq!(config.cluster_aliases(&normalized), [alias]);
        // Links may show that two files are one.
        let text = grid(&[("slurm", "conf = \"/a\""), ("slurm", "conf = \"/b\"")]);
        let config = load::<GridConfig>(&Sources::of_text("grid.toml", &text)).unwrap().value;
        assert_eq!(config.cluster_aliases(&|_| PathBuf::from("/c")).len(), 1);
    }
}
