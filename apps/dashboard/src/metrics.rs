//! The grid's numbers in the format of Prometheus. Names end in their unit. No label names a node
//! or a job, so that the number of series is bounded.
//!
//! This module does not know the origin of the numbers.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use springtide_actors::scheduler::{JobState, NodeState};
use springtide_runtime::id::ClusterId;
use springtide_runtime::meter::{Counters, ThreadState, Times};

use crate::model::DashboardModel;

/// A value of a metric with its labels.
type MetricValue = (Vec<(&'static str, String)>, f64);

fn one(name: &'static str, value: &str) -> Vec<(&'static str, String)> {
    vec![(name, value.to_owned())]
}

/// Renders all metrics as text in the OpenMetrics format.
pub(super) fn render(
    model: &DashboardModel,
    dropped_records: u64,
    streams: u64,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricFamilies::of(model, dropped_records, streams)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
enum MetricKind {
    Gauge,
    Counter,
}

/// Families with their kinds, names, help texts and samples.
#[derive(Debug, Default)]
struct MetricFamilies(Vec<(MetricKind, &'static str, &'static str, Vec<MetricValue>)>);

/// The name of a state in labels.
fn state_name(state: NodeState) -> &'static str {
    match state {
        NodeState::Starting => "starting",
        NodeState::Idle => "idle",
        NodeState::Busy => "busy",
        NodeState::Measuring => "measuring",
        NodeState::Draining => "draining",
        NodeState::Drained => "drained",
        NodeState::Broken => "broken",
        NodeState::Off => "off",
        NodeState::Held => "held",
        NodeState::Closing => "closing",
    }
}

impl MetricFamilies {
    fn of(model: &DashboardModel, dropped_records: u64, streams: u64) -> Self {
        let mut numbers = Self::default();
        numbers.grid(model);
        numbers.jobs(model);
        numbers.own(model, dropped_records, streams);
        numbers
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, samples: Vec<MetricValue>) {
        self.0.push((MetricKind::Gauge, name, help, samples));
    }

    fn counter(&mut self, name: &'static str, help: &'static str, samples: Vec<MetricValue>) {
        self.0.push((MetricKind::Counter, name, help, samples));
    }

    fn grid(&mut self, model: &DashboardModel) {
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        self.gauge("springtide_build_info", "The head's version", vec![(version, 1.0)]);
        let status = model.status();
        let clusters = status.sites.len() as f64;
        self.gauge("springtide_clusters", "Clusters of the grid", vec![(vec![], clusters)]);
        let mut nodes: BTreeMap<(&ClusterId, &str), u32> = BTreeMap::new();
        for (cluster, site) in &status.sites {
            for node in &site.nodes {
                *nodes.entry((cluster, state_name(node.state))).or_default() += 1;
            }
        }
        let nodes = nodes.into_iter().map(|((cluster, state), count)| {
            (vec![("cluster", cluster.to_string()), ("state", state.to_owned())], f64::from(count))
        });
        self.gauge("springtide_nodes", "Nodes by cluster and state", nodes.collect());
        let states = [
            (JobState::Queued, "queued"),
            (JobState::Assigning, "assigning"),
            (JobState::Running, "running"),
            (JobState::Ending, "ending"),
        ];
        let jobs = states.map(|(state, name)| {
            let count = status.jobs.iter().filter(|job| job.state == state).count();
            (vec![("state", name.to_owned())], count as f64)
        });
        self.gauge("springtide_jobs", "Jobs that have not ended, by state", jobs.into());
    }

    /// Sums over running jobs. A sum falls when a job ends, which Prometheus treats as a restart.
    fn jobs(&mut self, model: &DashboardModel) {
        let mut times: BTreeMap<&ClusterId, Times> = BTreeMap::new();
        let mut counters = Counters::default();
        let mut latencies: BTreeMap<(&str, &'static str), f64> = BTreeMap::new();
        let mut efficiency: Option<f64> = None;
        let mut band = None;
        for look in model.looks() {
            for (cluster, sum) in &look.clusters {
                *times.entry(cluster).or_default() += sum.sums.times;
                counters.merge(&sum.sums.counters);
            }
            for (name, latency) in &look.latencies {
                for (quantile, us) in
                    [("0.5", latency.p50_us), ("0.9", latency.p90_us), ("0.99", latency.p99_us)]
                {
                    let most = latencies.entry((name, quantile)).or_insert(0.0);
                    *most = most.max(us as f64 / 1e6);
                }
            }
            if let Some((found, _)) = look.efficiency {
                // The minimum of several jobs, which is the value of interest.
                efficiency = Some(efficiency.map_or(found, |least| least.min(found)));
                band = Some(look.band);
            }
        }
        let of = |cluster: &ClusterId| ("cluster", cluster.to_string());
        let seconds = times.iter().flat_map(|(cluster, times)| {
            ThreadState::ALL.map(|state| {
                (vec![of(cluster), ("state", state.name().to_owned())], times.seconds(state))
            })
        });
        self.counter(
            "springtide_worker_time_seconds",
            "Time of compute threads of jobs that run, by state",
            seconds.collect(),
        );
        let shares = times
            .iter()
            .filter_map(|(cluster, times)| Some((vec![of(cluster)], times.working_share()?)));
        self.gauge(
            "springtide_working_ratio",
            "Part of the time of compute threads that is work, since their jobs' start",
            shares.collect(),
        );
        let least = efficiency.map(|efficiency| (vec![], efficiency));
        self.gauge(
            "springtide_weighted_efficiency_ratio",
            "Weighted average efficiency as last measured, the least of all jobs",
            least.into_iter().collect(),
        );
        let bounds = band.map(|(least, most)| [("min", least), ("max", most)]);
        let bounds = bounds.into_iter().flatten();
        self.gauge(
            "springtide_efficiency_threshold_ratio",
            "The band that efficiency is kept in",
            bounds.map(|(name, bound)| (vec![("bound", name.to_owned())], bound)).collect(),
        );
        let tasks = &counters.tasks;
        let kinds = [
            ("spawned", tasks.spawned),
            ("executed", tasks.executed),
            ("stolen_local", tasks.stolen_local),
            ("stolen_wide", tasks.stolen_wide),
            ("reclaimed", tasks.reclaimed),
            ("returned", tasks.returned),
            ("reused", tasks.reused),
        ];
        self.counter(
            "springtide_tasks",
            "Tasks of jobs that run",
            kinds.iter().map(|(kind, count)| (one("state", kind), *count as f64)).collect(),
        );
        let steals = [("local", counters.steals.local), ("wide", counters.steals.wide)];
        let results = steals.iter().flat_map(|(scope, steals)| {
            [("hit", steals.hits), ("empty", steals.empty), ("timeout", steals.timeouts)].map(
                |(result, count)| {
                    let labels =
                        vec![("scope", (*scope).to_owned()), ("result", result.to_owned())];
                    (labels, count as f64)
                },
            )
        });
        self.counter("springtide_steal_requests", "Answers to steal requests", results.collect());
        let bytes = [("local", counters.bytes.local), ("wide", counters.bytes.wide)];
        self.counter(
            "springtide_sent_bytes",
            "Stream payload sent",
            bytes.map(|(scope, count)| (one("scope", scope), count as f64)).into(),
        );
        self.counter(
            "springtide_results_duplicate",
            "Results dropped because another had come first",
            vec![(vec![], counters.results.duplicates as f64)],
        );
        let quantiles = latencies.into_iter().map(|((what, quantile), seconds)| {
            (vec![("what", what.to_owned()), ("quantile", quantile.to_owned())], seconds)
        });
        self.gauge(
            "springtide_latency_seconds",
            "Quantiles since the jobs' start, the greatest of all jobs",
            quantiles.collect(),
        );
    }

    fn own(&mut self, model: &DashboardModel, dropped_records: u64, streams: u64) {
        let counts = model.counts();
        let decisions = counts.decisions.iter();
        self.counter(
            "springtide_adapt_decisions",
            "Decisions that changed a job's set of nodes",
            decisions.map(|(action, count)| (one("action", action), *count as f64)).collect(),
        );
        let refused = counts.refused.iter();
        self.counter(
            "springtide_conn_refused",
            "Links that the head refused",
            refused.map(|(reason, count)| (one("reason", reason), *count as f64)).collect(),
        );
        let denied = counts.refused_messages.iter().map(|((message, reason), count)| {
            let labels = vec![("message", message.clone()), ("reason", reason.clone())];
            (labels, *count as f64)
        });
        self.counter(
            "springtide_messages_refused",
            "Messages that the head refused for what their sender is",
            denied.collect(),
        );
        self.gauge(
            "springtide_dashboard_streams",
            "Dashboards that are open",
            vec![(vec![], streams as f64)],
        );
        self.counter(
            "springtide_dashboard_records_dropped",
            "Records that the dashboard had no room for",
            vec![(vec![], dropped_records as f64)],
        );
    }
}

impl Collector for MetricFamilies {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (kind, name, help, samples) in &self.0 {
            let kind_of = match kind {
                MetricKind::Gauge => MetricType::Gauge,
                MetricKind::Counter => MetricType::Counter,
            };
            let mut family = encoder.encode_descriptor(name, help, None, kind_of)?;
            for (labels, value) in samples {
                let sample = family.encode_family(labels)?;
                match kind {
                    MetricKind::Gauge => ConstGauge::<f64>::new(*value).encode(sample)?,
                    MetricKind::Counter => ConstCounter::<f64>::new(*value).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}
