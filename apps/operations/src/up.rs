//! `up` and `dev`: start a grid that stays.
//!
//! Independent of jobs.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use springtide_actors::head::Head;
use springtide_actors::scheduler::{GetSlots, GridStatus, NodeState};
use springtide_cli::config::load;
use springtide_cli::exit::{Failed, cannot};
use springtide_cli::format::many;
use springtide_cli::outdir::write_file;
use springtide_cli::talk::Talk;
use springtide_runtime::config::{ClusterSection, GridConfig, Loaded, SitePlace, Sources};
use springtide_runtime::net::tls::{RotationStep, calendar};
use springtide_runtime::records::{Disk, Files};
use tokio::time::interval;

use crate::aliases;
use crate::desk::{ArchiveSettings, Retention};
use crate::grid::{self, ActingRole, HeadCertificate};
use crate::grid_files;
use crate::grid_files::LaunchPlan;
use crate::gridlog::{GridLog, LogLimits};
use crate::locate::hint;
use crate::netconf;
use crate::notify::Notifier;
use crate::options::GlobalArgs;
use crate::program::ProgramVersion;
use crate::shape::GridShape;
use crate::signals::{Signals, word};
use crate::site_files;
use crate::slots;
use crate::standby::{self, StandbyOptions};
use springtide_dashboard::PreparedDashboard;
use springtide_dashboard::changes::{changes_between, describe_on_demand, held_and_requested};

/// The first line of a config that `dev` wrote and may overwrite.
const DEV_HEADER: &str = "# Written by `dev`, which overwrites it at each start.";
/// Interval between comparisons of the grid's state.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Starts the grid of a config and keeps running. A grid with a second head runs it on another
/// machine; `is_second` says that this process is the one whose files were copied there.
///
/// # Errors
/// The grid cannot be started, or all its nodes are broken.
pub async fn up(
    file: &Path,
    is_second: bool,
    about: ProgramVersion,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    let config = checked(file).await?;
    let role = if is_second || config.value.standby.is_some() {
        let dir = grid_files::dir_of(file, &config.value);
        let options = StandbyOptions { is_second, log_level: global.log_level };
        let talk = Talk::new(global.quiet);
        let say = |line: &str| talk.say(line);
        let role = standby::wait_for_role(file, &config.value, &dir, options, &say).await?;
        // A signal has ended the wait.
        let Some(role) = role else { return Ok(()) };
        Some(role)
    } else {
        None
    };
    stay(file, &config, about, global, &|| Ok(()), role.as_ref()).await
}

/// The config of a grid that can be started.
///
/// # Errors
/// The config is missing, cannot be read, is wrong, or its values contradict each other.
pub async fn checked(file: &Path) -> Result<Loaded<GridConfig>, Failed> {
    if let Some(hint) = hint(file) {
        return Err(Failed::usage(hint));
    }
    let config = load::<GridConfig>(&Sources::of_process(Some(file)))?;
    netconf::check_adaptation(&config.value, &netconf::job_params(&config.value))?;
    aliases::check(&config).await?;
    Ok(config)
}

/// Writes the config of an ad-hoc grid of this shape into `dir` and starts the grid.
///
/// # Errors
/// As [`up`].
pub async fn dev(
    shape: GridShape,
    dir: PathBuf,
    about: ProgramVersion,
    global: &GlobalArgs,
) -> Result<(), Failed> {
    grid_files::make_private_dir(&dir)?;
    let file = dir.join("grid.toml");
    // An absolute path, because tasks of workflows pass files.
    let here = std::path::absolute(&dir).map_err(|error| cannot("use", &dir, &error))?;
    let config = grid_files::ad_hoc(shape, |sources| {
        shape.names().fold(sources, |sources, name| {
            let key = format!("cluster.{name}.files");
            match here.join("files").join(&name).to_str() {
                Some(files) => sources.with_flag("--dir", &key, files),
                None => sources,
            }
        })
    })?;
    netconf::check_adaptation(&config.value, &netconf::job_params(&config.value))?;
    // Written once no head runs here: clients of a running grid read this file.
    let text = format!("{DEV_HEADER}\n{}", config.show(false));
    let write = || {
        check_dev_header(&file)?;
        write_file(&file, text.as_bytes())
    };
    check_dev_header(&file)?;
    stay(&file, &config, about, global, &write, None).await
}

/// Checks that a file is `dev`'s own or does not exist.
fn check_dev_header(file: &Path) -> Result<(), Failed> {
    match std::fs::read(file) {
        Ok(bytes) if bytes.split(|byte| *byte == b'\n').next() == Some(DEV_HEADER.as_bytes()) => {
            Ok(())
        }
        Ok(_) => Err(Failed::usage(format!(
            "{0} was not written by `dev`, which would replace it: start its grid by `up {0}`, or \
            choose another --dir",
            file.display()
        ))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(cannot("read", file, &error)),
    }
}

async fn stay(
    file: &Path,
    config: &Loaded<GridConfig>,
    about: ProgramVersion,
    global: &GlobalArgs,
    alone: &grid::Alone<'_>,
    role: Option<&ActingRole>,
) -> Result<(), Failed> {
    let ProgramVersion { version, fingerprint } = about;
    let mut signals = Signals::take()?;
    let mut talk = Talk::new(global.quiet);
    let dir = grid_files::dir_of(file, &config.value);
    let program = grid_files::this_program()?;
    let authority = grid_files::kept_authority(&config.value, &dir)?;
    let plan = LaunchPlan {
        config: &config.value,
        dir: &dir,
        authority: &authority,
        program: &program,
        files: None,
        log_level: global.log_level,
    };
    let log_max = config.value.run.log_size.bytes();
    let kept = &config.value.retention;
    let retention = Retention { jobs: kept.jobs.get() as usize, age: kept.jobs_age.get() };
    let config_text = config.show(true);
    let files = role.map_or_else(|| Arc::new(Disk) as Arc<dyn Files>, |role| role.files.clone());
    let setting = ArchiveSettings {
        dir: dir.clone(),
        files,
        config: config_text,
        version,
        log_max,
        retention,
    };
    let board = PreparedDashboard::of(config.value.grid.as_str(), &config.value.dashboard)?;
    // The lease decides whether another head runs, for all hosts that share this directory.
    let (head, archive) = grid::start_again(&plan, setting, fingerprint, alone, role).await?;
    let board = match board.map(|board| board.start(&head, &dir)).transpose() {
        Ok(board) => board,
        Err(failed) => {
            end(head, &dir, false).await;
            return Err(failed);
        }
    };
    let limits = LogLimits {
        bytes: kept.log_size.bytes(),
        count: kept.logs.get(),
        age: kept.logs_age.get(),
    };
    let mut log = Some(GridLog::open(&dir, version, limits).map_err(Failed::failure)?);
    talk.wait_for("starting nodes");
    let settled = {
        let mut settled = pin!(head.wait_for_nodes(|_, _| {}));
        let mut missing = grid::MissingNodes::of(&dir);
        loop {
            tokio::select! {
                biased;
                exit = signals.next() => {
                    break Err(Failed::new(exit, format!("ended by {}", word(exit))));
                }
                status = &mut settled => break Ok(status),
                () = missing.wait() => {
                    missing.lines(&head.status().await).iter().for_each(|line| talk.say(line));
                }
            }
        }
    };
    // The other head continues, so that this one leaves it what it can.
    let mut superseded = role.is_some();
    let ended = match settled {
        Err(failed) => Err(failed),
        // Clusters whose nodes exist only while jobs need them may have none at the start.
        Ok(status) if status.nodes() > 0 && status.count(NodeState::Broken) == status.nodes() => {
            grid::check_whole(&status)
        }
        Ok(status) => {
            talk.done();
            for line in overview(&status) {
                talk.say(&line);
            }
            for line in own_sites(&config.value, &dir) {
                talk.say(&line);
            }
            if let Some(bound) = head.join_address() {
                let advertise = config.value.join.advertise.as_ref();
                let at = advertise.map_or_else(|| bound.to_string(), ToString::to_string);
                talk.say(&format!(
                    "nodes join at {at}: {} token create --cluster NAME --config {} prints how",
                    grid_files::program_name(),
                    file.display()
                ));
            }
            if let Some(board) = &board {
                talk.say(&format!("the dashboard is at {}", board.url()));
            }
            let notifier = Notifier::of_env();
            notifier.ready(&format!("{} nodes", status.nodes()));
            notifier.keep_alive();
            talk.say(&format!("logs are in {}", dir.join("nodes").display()));
            talk.say(&format!("decisions are in {}", GridLog::path(&dir).display()));
            talk.say(&format!(
                "run jobs with: run JOB --config {0}, or job submit JOB --config {0}; Ctrl-C ends \
                the grid",
                file.display()
            ));
            for host in &status.crowded {
                talk.say(&format!("warning: {host}"));
            }
            let mut looks = interval(POLL_INTERVAL);
            let mut advertisements =
                interval(config.value.slots.advertise_interval.get().max(POLL_INTERVAL));
            let slots_file = dir.join("slots.json");
            // This process issues the head's own certificate and renews it while it runs.
            let ca = grid_files::ca_dir(&config.value, &dir);
            let mut certificate = HeadCertificate::new(ca, config.value.tls.validity.get());
            let today = calendar();
            let mut last = status;
            loop {
                tokio::select! {
                    biased;
                    // A signal ends the grid without failure.
                    exit = signals.next() => {
                        notifier.stopping();
                        talk.say(&format!(
                            "{}: ending {}",
                            word(exit),
                            many(last.nodes() as u64, "node")
                        ));
                        break Ok(());
                    }
                    _ = advertisements.tick() => {
                        // The loop ends when the scheduler has ended.
                        let found = head.scheduler.send(GetSlots {}).await;
                        let written = found.ok().map(|found| slots::advertise(&found, &slots_file));
                        if let Some(Err(failed)) = written {
                            tracing::warn!("slots are not advertised: {}", failed.message);
                        }
                    }
                    _ = looks.tick() => {
                        match certificate.renew_if_due(&head, today()) {
                            Ok(None) => {}
                            Ok(Some(step)) => talk.say(rotation_line(step)),
                            Err(failed) => talk.say(&format!(
                                "the head's certificate is not renewed: {}",
                                failed.message
                            )),
                        }
                        let records = head.endpoint.recorder.drain();
                        if let Some(board) = &board {
                            board.records(&records);
                        }
                        for record in &records {
                            tracing::info!(event = ?record.event, "{}", record.node);
                        }
                        if let Some(Err(error)) = log.as_mut().map(|log| log.append(&records)) {
                            talk.say(&format!("decisions are no longer written to the log: \
                            {error}"));
                            log = None;
                        }
                        let status = head.status().await;
                        if status.superseded {
                            let message = "another head of this grid has taken over: this one ends";
                            superseded = true;
                            break Err(Failed::failure(message));
                        }
                        for line in changes(&last, &status) {
                            talk.say(&line);
                        }
                        last = status;
                    }
                }
            }
        }
    };
    drop(board);
    tokio::select! {
        biased;
        _ = signals.next() => {}
        () = end(head, &dir, superseded) => {}
    }
    // No messages arrive after the head's end.
    drop(archive);
    ended
}

/// A step of the authority's rotation as one line.
fn rotation_line(step: RotationStep) -> &'static str {
    match step {
        RotationStep::Announced => {
            "the next authority is trusted from now on, and will issue certificates"
        }
        RotationStep::Issuing => "the next authority issues certificates from now on",
        RotationStep::Ended => "the rotation has ended: the old authority is not trusted",
    }
}

/// Ends a grid. If another head has taken over, the nodes and the file with the head's address
/// belong to that head.
async fn end(head: Head, dir: &Path, superseded: bool) {
    if superseded {
        head.hand_over(grid::NODE_GRACE, "another head has taken over").await
    } else {
        grid::stop(head, dir, "the grid ends").await
    }
}

/// The commands that start the sites on other hosts.
pub fn own_sites(config: &GridConfig, dir: &Path) -> Vec<String> {
    let own = config.cluster.iter().filter(|cluster| cluster.site == SitePlace::Own);
    let line = |cluster: &ClusterSection| {
        let file = site_files::file_of(dir, cluster.name.as_str());
        format!(
            "cluster {} has a site of its own: on its machine, site run --config {}",
            cluster.name,
            file.display()
        )
    };
    own.map(line).collect()
}

/// The state of the grid in a few lines.
pub fn overview(status: &GridStatus) -> Vec<String> {
    let mut lines = Vec::new();
    for (cluster, site) in &status.sites {
        if site.on_demand {
            lines.push(describe_on_demand(cluster, site));
            continue;
        }
        if site.joins {
            let (most, there) = (site.nodes.len(), held_and_requested(site).0);
            lines.push(format!("cluster {cluster}: {there} of up to {most} nodes have joined"));
            continue;
        }
        let idle = site.nodes.iter().filter(|node| node.state != NodeState::Broken).count();
        let threads: u32 = site.nodes.iter().filter_map(|node| node.threads).sum();
        lines.push(format!(
            "cluster {cluster}: {idle} of {}, {}",
            many(site.nodes.len() as u64, "node"),
            many(threads.into(), "thread")
        ));
        for node in site.nodes.iter().filter(|node| node.state == NodeState::Broken) {
            let reason = node.reason.as_deref().unwrap_or("no reason is known");
            lines.push(format!("node {} is broken: {reason}", node.node));
        }
    }
    lines
}

/// The changes between two states of the grid, one line each.
fn changes(before: &GridStatus, now: &GridStatus) -> Vec<String> {
    changes_between(before, now).into_iter().map(|(_, line)| line).collect()
}

#[cfg(test)]
mod tests {
    use springtide_actors::scheduler::{JobState, JobStatus, NodeStatus, SiteStatus};
    use springtide_runtime::id::{Incarnation, JobId};

    use super::*;

    fn status(nodes: &[(&str, NodeState)], jobs: &[(u64, JobState)]) -> GridStatus {
        let node = |&(name, state): &(&str, NodeState)| NodeStatus {
            node: name.into(),
            state,
            job: None,
            threads: Some(2),
            pid: None,
            incarnation: (state != NodeState::Off).then_some(Incarnation(1)),
            address: None,
            reason: (state == NodeState::Broken).then(|| "it died".to_owned()),
            next_try_ms: None,
        };
        let job = |&(id, state): &(u64, JobState)| JobStatus {
            job: JobId(id),
            name: "fib".into(),
            state,
            sizes: [("ams".into(), 2)].into(),
            waits_for: Some("nodes".into()),
            coordinator: None,
            principal: None,
        };
        let nodes = nodes.iter().map(node).collect();
        let site = SiteStatus { nodes, ..SiteStatus::default() };
        GridStatus {
            sites: [("ams".into(), site)].into(),
            jobs: jobs.iter().map(job).collect(),
            ..GridStatus::default()
        }
    }

    #[test]
    fn changes_are_reported_once() {
        let idle = status(&[("ams-1", NodeState::Idle), ("ams-2", NodeState::Idle)], &[]);
        assert_eq!(overview(&idle), ["cluster ams: 2 of 2 nodes, 4 threads"]);
        assert_eq!(changes(&idle, &idle), [""; 0]);
        let busy = status(
            &[("ams-1", NodeState::Busy), ("ams-2", NodeState::Broken)],
            &[(1, JobState::Running), (2, JobState::Queued)],
        );
        let expected = [
            "job-1 (fib) runs on 2 processors",
            "job-2 (fib) waits for nodes",
            "node ams-2 is broken: it died",
        ];
        assert_eq!(changes(&idle, &busy), expected);
        let back = status(&[("ams-1", NodeState::Starting), ("ams-2", NodeState::Idle)], &[]);
        let expected =
            ["job-1 (fib) is over", "job-2 (fib) is over", "node ams-1 is restarted: by order"];
        assert_eq!(changes(&busy, &back), expected);
        assert_eq!(changes(&back, &idle), ["node ams-1 is back"]);
    }

    #[test]
    fn nodes_on_demand_are_reported_as_numbers() {
        let on_demand = |nodes: &[(&str, NodeState)], failing: Option<&str>| {
            let mut status = status(nodes, &[]);
            for site in status.sites.values_mut() {
                (site.on_demand, site.failing) = (true, failing.map(str::to_owned));
            }
            status
        };
        let off = on_demand(&[("vu-1", NodeState::Off), ("vu-2", NodeState::Off)], None);
        assert_eq!(overview(&off), ["cluster ams: up to 2 nodes, while jobs need them"]);
        let coming = on_demand(&[("vu-1", NodeState::Held), ("vu-2", NodeState::Starting)], None);
        let expected = ["cluster ams: 1 node is held, 1 asked for"];
        assert_eq!(changes(&off, &coming), expected);
        let held = on_demand(&[("vu-1", NodeState::Busy), ("vu-2", NodeState::Idle)], None);
        assert_eq!(changes(&coming, &held), ["cluster ams: 2 nodes are held"]);
        let ill = on_demand(&[("vu-1", NodeState::Busy), ("vu-2", NodeState::Idle)], Some("no"));
        assert_eq!(changes(&held, &ill), ["cluster ams cannot be used: no"]);
        assert_eq!(
            changes(&ill, &off),
            ["cluster ams can be used", "cluster ams: 0 nodes are held"]
        );
    }
}
