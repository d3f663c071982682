//! Jobs whose input files are transferred before they start.

use std::time::Duration;

use super::*;
use crate::files::{FetchResult, FileEntry, FilesReport};
use crate::manager::{JobRequirements, Kind};
use crate::policy::malleability::PlacementPolicy;

pub(super) fn entry(name: &str, bytes: u64) -> FileEntry {
    FileEntry { name: name.to_owned(), bytes, sum: format!("{bytes:064}") }
}

/// A rigid job of `count` processors that reads these files.
pub(super) fn reads(count: u32, files: &[&str]) -> Submit {
    let mut need = JobRequirements::one(Kind::Rigid, count, count, count);
    need.placement = PlacementPolicy::CloseToFiles;
    need.components[0].files = files.iter().map(|&file| file.to_owned()).collect();
    Submit { need: Some(need), ..submit(None, OURS, None) }
}

impl CoreTestGrid {
    fn has(&mut self, cluster: &str, files: &[&FileEntry]) -> Vec<String> {
        let files = files.iter().map(|&file| file.clone()).collect();
        let (cluster, files) = (cluster.into(), Ok(files));
        self.put(SchedulerEvent::FilesReported(FilesReport { cluster, files }))
    }

    fn brought(&mut self, job: u64, ask: u64, answer: Result<FileEntry, &str>) -> Vec<String> {
        let (from, seconds) = (Some("del".into()), 2.0);
        let how = |file: FileEntry| {
            let bytes = file.bytes;
            (file, FetchResult { from, bytes, seconds })
        };
        let answer = answer.map(how).map_err(str::to_owned);
        self.put(SchedulerEvent::FileFetched { job: JobId(job), ask, answer })
    }

    fn history(&self, job: u64) -> String {
        let detail = self.core.detail(JobId(job), self.now).unwrap();
        detail.history.into_iter().map(|(_, line)| line + "\n").collect()
    }

    /// Another job has both nodes of del.
    fn del_is_taken(&mut self) {
        let output = self.submit(submit(Some(&[("del", 2)]), OURS, None));
        assert_eq!(output.len(), 2);
        self.accept(self.jobs, &["del-1", "del-2"]);
    }
}

#[test]
fn job_starts_where_its_file_is() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.has("del", &[&entry("bodies", 1 << 20)]);
    let out = grid.submit(reads(2, &["bodies"]));
    assert_eq!(out, ["assign job-1 del-1", "assign job-1 del-2"]);
}

#[test]
fn job_starts_once_its_files_are_transferred() {
    let mut grid = CoreTestGrid::of(2, OURS);
    let (bodies, stars) = (entry("bodies", 1 << 20), entry("stars", 1 << 21));
    grid.has("del", &[&bodies, &stars]);
    grid.has("bud", &[&stars]);
    grid.del_is_taken();
    let out = grid.submit(reads(2, &["bodies", "stars"]));
    let expected = [
        "bring bodies to ams for job-2 from del (1)",
        "bring stars to ams for job-2 from bud del (2)",
    ];
    assert_eq!(out, expected);
    assert_eq!(grid.brought(2, 2, Ok(stars)), [""; 0]);
    // An answer to no open fetch has no effect.
    assert_eq!(grid.brought(2, 7, Ok(bodies.clone())), [""; 0]);
    assert_eq!(grid.brought(9, 1, Ok(bodies.clone())), [""; 0]);
    let out = grid.brought(2, 1, Ok(bodies.clone()));
    assert_eq!(out, ["assign job-2 ams-1", "assign job-2 ams-2"]);
    grid.accept(2, &["ams-1", "ams-2"]);
    let history = grid.history(2);
    for line in [
        "files are moved first: bodies from del to ams, stars from bud to ams",
        "bodies was transferred from del to ams: 1048576 bytes in 2.00 s",
        "all its files are where it is placed",
    ] {
        assert!(history.contains(line), "{line}: {history}");
    }
    // The link's rate is known now, and the files are in both clusters.
    let planned = |grid: &CoreTestGrid, files: &[&str]| {
        let need = reads(1, files).need.unwrap();
        grid.core.plan(&need).map_err(|no| no.to_string())
    };
    grid.over(2);
    let placed = planned(&grid, &["bodies"]).unwrap();
    assert_eq!((placed.parts[0].cluster.as_str(), placed.transfers.len()), ("ams", 0));
    grid.has("del", &[&entry("dust", 1 << 22), &bodies]);
    let placed = planned(&grid, &["dust"]).unwrap();
    // The first rate is a mebibyte per second. The second is half of it, and weighs less than half.
    let rate = (1.0 - 0.3 * 0.5) * f64::from(1 << 20);
    assert_eq!(placed.transfers[0].seconds, f64::from(1 << 22) / rate);
}

#[test]
fn processors_are_claimed_ahead_and_wait_for_the_files() {
    let mut grid = CoreTestGrid::of(2, OURS);
    let bodies = entry("bodies", 1 << 20);
    grid.has("del", &[&bodies]);
    grid.del_is_taken();
    grid.submit(reads(1, &["bodies"]));
    grid.brought(2, 1, Ok(bodies));
    grid.accept(2, &["ams-1"]);
    grid.over(2);
    // At half a megabyte per second, the transfer ends soon.
    let dust = entry("dust", 1 << 20);
    grid.has("del", &[&dust]);
    assert_eq!(grid.submit(reads(2, &["dust"])), ["bring dust to ams for job-3 from del (2)"]);
    assert_eq!(grid.state("ams-1"), NodeState::Held);
    // The transfer takes longer than the time limit for nodes.
    assert_eq!(grid.after(2 * ManagerSettings::default().hold_timeout), [""; 0]);
    assert_eq!(grid.state("ams-2"), NodeState::Held);
    // A node is lost, and returns.
    let reason = "it crashed".to_owned();
    let out = grid.put(SchedulerEvent::NodeLost { node: "ams-2".into(), reason, returns: true });
    assert_eq!(out, [""; 0]);
    grid.register("ams-2", 2, OURS);
    // The file does not arrive: all nodes are released.
    for ask in 2..6 {
        grid.after(Duration::from_secs(4));
        assert_eq!(grid.state("ams-1"), NodeState::Held);
        assert_eq!(grid.brought(3, ask, Err("the link is down")), [""; 0]);
    }
    assert_eq!((grid.state("ams-1"), grid.state("ams-2")), (NodeState::Idle, NodeState::Idle));
    assert_eq!(grid.core.detail(JobId(3), grid.now).unwrap().view.unwrap().tries, 1);
    let out = grid.after(ManagerSettings::default().scan_interval);
    assert_eq!(out, ["bring dust to ams for job-3 from del (6)"]);
    assert_eq!(grid.brought(3, 5, Ok(dust.clone())), [""; 0], "the fetch is outdated");
    assert_eq!(grid.brought(3, 6, Ok(dust)), ["assign job-3 ams-1", "assign job-3 ams-2"]);
}

#[test]
fn failed_transfers_are_repeated_and_then_the_job_waits() {
    let mut grid = CoreTestGrid::of(2, OURS);
    let bodies = entry("bodies", 1 << 20);
    grid.has("del", &[&bodies]);
    grid.del_is_taken();
    assert_eq!(grid.submit(reads(1, &["bodies"])), ["bring bodies to ams for job-2 from del (1)"]);
    let mut waits = Vec::new();
    for ask in 1..4 {
        assert_eq!(grid.brought(2, ask, Err("the disk is full")), [""; 0]);
        let before = grid.now;
        let due = grid.core.files.due().unwrap();
        let out = grid.after(due - before);
        assert_eq!(out, [format!("bring bodies to ams for job-2 from del ({})", ask + 1)]);
        waits.push((due - before).as_secs());
    }
    assert_eq!(waits, [1, 2, 4]);
    assert_eq!(grid.brought(2, 4, Err("the disk is full")), [""; 0]);
    assert_eq!(grid.core.files.due(), None);
    let view = grid.core.detail(JobId(2), grid.now).unwrap().view.unwrap();
    assert_eq!(view.tries, 1);
    let history = grid.history(2);
    assert!(
        history.contains("bodies did not get to ams in 4 tries: the disk is full"),
        "{history}"
    );
    // The next scan places it again.
    let out = grid.after(ManagerSettings::default().scan_interval);
    assert_eq!(out, ["bring bodies to ams for job-2 from del (5)"]);
    // A cancelled job needs no files.
    let out = grid.put(SchedulerEvent::Cancel { job: JobId(2), reason: "enough".to_owned() });
    assert_eq!(out, ["drop files of job-2 in ams", "refuse job-2: the job was cancelled: enough"]);
    assert_eq!(grid.brought(2, 5, Ok(bodies)), [""; 0]);
    assert_eq!(grid.core.files.due(), None);
}

#[test]
fn job_waits_for_a_removed_file() {
    let mut grid = CoreTestGrid::of(2, OURS);
    grid.has("ams", &[]);
    grid.has("del", &[&entry("bodies", 1 << 20)]);
    let need = |files: &[&str]| reads(1, files).need.unwrap();
    assert_eq!(grid.core.check_files(&need(&["bodies"])), Ok(()));
    let output = grid.core.check_files(&need(&["bodeis"])).unwrap_err();
    assert_eq!(output, "no cluster has a file bodeis: there are bodies");
    grid.del_is_taken();
    assert_eq!(grid.submit(reads(1, &["bodies"])), ["bring bodies to ams for job-2 from del (1)"]);
    // The file is removed during the transfer. After the last attempt, the job waits, and states
    // why.
    grid.has("del", &[]);
    grid.brought(2, 1, Err("cluster del has no file bodies"));
    for _ in 0..3 {
        assert_eq!(grid.after(Duration::from_secs(4)), [""; 0]);
    }
    assert_eq!(grid.after(ManagerSettings::default().scan_interval), [""; 0]);
    let why =
        |grid: &CoreTestGrid| grid.core.detail(JobId(2), grid.now).unwrap().view.unwrap().reason;
    assert!(why(&grid).contains("ams no cluster has the file bodies"), "{}", why(&grid));
    // Another file of that name is accepted: the job states only a name.
    assert_eq!(grid.has("ams", &[&entry("bodies", 7)]), ["assign job-2 ams-1"]);
}
