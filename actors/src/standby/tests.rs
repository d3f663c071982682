//! Members of a head on the network in memory, with virtual time: deaths and cuts, and the files of
//! both heads.

use std::sync::mpsc;

use springtide_runtime::id::{Incarnation, JobId, Peer};
use springtide_runtime::net::tls::{Ca, NODE_VALIDITY};
use springtide_runtime::net::{MemoryNet, Net, NetConfig};
use springtide_runtime::records::{Disk, Files};
use springtide_scheduler::standby::DurableState;

use super::*;
use crate::endpoint::Endpoint;
use crate::store::Store;

const NAMES: [&str; 3] = ["head-a", "head-b", "witness"];

struct Process {
    endpoint: Endpoint,
    member: Addr<StandbyMember>,
    status: watch::Receiver<MemberStatus>,
}

/// Three processes in clusters of their names, with directories that outlive them.
struct TestMembers {
    network: MemoryNet,
    dir: tempfile::TempDir,
    processes: BTreeMap<&'static str, Process>,
    incarnation: u64,
    /// Whether the heads have files.
    has_files: bool,
}

impl TestMembers {
    fn start(seed: u64) -> Self {
        Self::of(seed, false)
    }

    fn of(seed: u64, has_files: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let network = MemoryNet::new(seed);
        let processes = BTreeMap::new();
        let mut all = Self { network, dir, processes, incarnation: 0, has_files };
        NAMES.into_iter().for_each(|name| all.launch(name));
        all
    }

    /// The directory of a head.
    fn files_of(&self, name: &str) -> Option<PathBuf> {
        let is_head = self.has_files && name != NAMES[2];
        is_head.then(|| self.dir.path().join(format!("{name}.files")))
    }

    /// The files of a head.
    fn files(&self, name: &str) -> Vec<(String, Vec<u8>)> {
        let dir = self.files_of(name).unwrap();
        let read = |file: ListedFile| {
            let bytes = std::fs::read(dir.join(&file.path)).unwrap();
            (file.path, bytes)
        };
        replica::list(&dir).unwrap().into_iter().map(read).collect()
    }

    fn launch(&mut self, name: &'static str) {
        self.incarnation += 1;
        let incarnation = Incarnation(self.incarnation);
        let peer = Peer { node: name.into(), incarnation, cluster: name.into() };
        let endpoint = Endpoint::over(self.network.join(peer).unwrap());
        for other in self.processes.values() {
            endpoint.net.learn(other.endpoint.net.contact());
            other.endpoint.net.learn(endpoint.net.contact());
        }
        let [first, second, witness] = NAMES.map(NodeId::from);
        let members = Members { heads: [first, second], witness };
        let log = MemberLog::open(Arc::new(Disk), &self.dir.path().join(name)).unwrap();
        let (timing, dir) = (StandbyTiming::default(), self.files_of(name));
        let (member, status) = StandbyMember::publish(&endpoint.hub, members, timing, log, dir);
        endpoint.start();
        self.processes.insert(name, Process { endpoint, member, status });
    }

    fn kill(&mut self, name: &str) {
        self.network.kill(&name.into());
        self.processes.remove(name);
    }

    fn cut(&self, a: &str, b: &str, cut: bool) {
        self.network.partition(&a.into(), &b.into(), cut);
    }

    fn acting(&self) -> Vec<&'static str> {
        let acts = |process: &Process| process.status.borrow().may_act();
        self.processes.iter().filter(|(_, it)| acts(it)).map(|(name, _)| *name).collect()
    }

    /// Waits until this condition holds of the acting heads, of which there is never a second.
    async fn until(&self, seconds: u64, holds: impl Fn(&[&'static str]) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            let acting = self.acting();
            assert!(acting.len() < 2, "{acting:?}");
            if holds(&acting) {
                return;
            }
            assert!(Instant::now() < deadline, "{acting:?} after {seconds} s");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Appends a record at the acting head.
    async fn append(&self, text: &str) -> Result<u64, AppendError> {
        self.append_at(self.acting()[0], text.as_bytes().to_vec()).await
    }

    async fn append_at(&self, name: &str, value: Vec<u8>) -> Result<u64, AppendError> {
        let (sender, answer) = tokio::sync::oneshot::channel();
        let reply = Box::new(|result| {
            let _ = sender.send(result);
        });
        self.processes[name].member.do_send(AppendRecords { values: vec![value], reply });
        answer.await.unwrap_or(Err(AppendError::OutcomeUnknown))
    }

    /// The values on the disk of a member.
    fn values(&self, name: &str) -> Vec<String> {
        let log = MemberLog::open(Arc::new(Disk), &self.dir.path().join(name)).unwrap();
        let DurableState { entries, .. } = log.state();
        let values = entries.iter().filter_map(|entry| entry.value.clone());
        values.map(|value| String::from_utf8(value).unwrap()).collect()
    }
}

fn other(name: &str) -> &'static str {
    if name == NAMES[0] { NAMES[1] } else { NAMES[0] }
}

#[actix::test]
async fn the_other_head_takes_over_with_all_answered_records() {
    tokio::time::pause();
    for seed in 0..8 {
        let mut all = TestMembers::start(seed);
        let first = all.acting_head().await;
        let mut answered = Vec::new();
        for number in 0..30 {
            let text = format!("record {number}");
            all.append(&text).await.unwrap();
            answered.push(text);
        }
        all.kill(first);
        all.until(10, |acting| acting == [other(first)]).await;
        all.append("after").await.unwrap();
        answered.push("after".to_owned());
        assert_eq!(all.values(other(first)), answered, "seed {seed}");
        // The first head returns, and gets what it missed.
        all.launch(first);
        let is_whole = |acting: &[&str]| {
            assert_eq!(acting, [other(first)], "seed {seed}");
            all.values(first) == answered
        };
        all.until(30, is_whole).await;
        all.kill(other(first));
        all.until(10, |acting| acting == [first]).await;
    }
}

#[actix::test]
async fn two_heads_that_are_cut_apart_never_act_both() {
    tokio::time::pause();
    for seed in 0..20 {
        let all = TestMembers::start(seed);
        let first = all.acting_head().await;
        // Both live and reach the witness: the first one continues.
        all.cut(NAMES[0], NAMES[1], true);
        tokio::time::sleep(Duration::from_secs(20)).await;
        all.until(1, |acting| acting == [first]).await;
        all.append("alone").await.unwrap();
        all.cut(NAMES[0], NAMES[1], false);
        tokio::time::sleep(Duration::from_secs(10)).await;
        all.append("together").await.unwrap();
        // The first one reaches no member: the other one acts, after the first one has stopped.
        all.cut(NAMES[0], NAMES[1], true);
        all.cut(first, NAMES[2], true);
        all.until(15, |acting| acting == [other(first)]).await;
        assert_eq!(all.values(other(first)), ["alone", "together"], "seed {seed}");
        let refused = all.append_at(first, vec![1]).await;
        assert_eq!(refused, Err(AppendError::MayNotAct(MayNotAct)));
    }
}

/// A change of a file that both heads have.
fn change(number: usize, bytes: usize) -> Vec<u8> {
    let path = format!("jobs/{}", number % 7);
    let contents = bytes::Bytes::from(vec![number as u8; bytes]);
    let changes = vec![
        replica::FileChange::Create { path: path.clone() },
        replica::FileChange::Append { path, offset: 0, bytes: contents },
    ];
    replica::ChangeRecord { made_by: None, changes }.encode().unwrap()
}

#[actix::test]
async fn both_heads_have_the_same_files_after_deaths_and_copies() {
    tokio::time::pause();
    for seed in 0..2 {
        let mut all = TestMembers::of(seed, true);
        let (mut number, mut first) = (0, all.acting_head().await);
        for round in 0..3 {
            // Snapshots replace the records of some rounds, so that files are copied.
            let bytes = if round == 1 { 300_000 } else { 1000 };
            let returned = other(first);
            for _ in 0..40 {
                number += 1;
                all.append_at(first, change(number, bytes)).await.unwrap();
            }
            if round == 1 {
                // The other head misses the next records.
                all.kill(returned);
                for _ in 0..60 {
                    number += 1;
                    all.append_at(first, change(number, bytes)).await.unwrap();
                }
                all.launch(returned);
            }
            // Equal files are not enough: a copy counts once its snapshot is in the log.
            let last = |name: &str| all.processes[name].status.borrow().last;
            let is_whole = |_: &[&str]| {
                last(first) == last(returned) && all.files(first) == all.files(returned)
            };
            all.until(60, is_whole).await;
            assert!(!all.files(first).is_empty());
            all.kill(first);
            all.until(10, |acting| acting == [returned]).await;
            all.launch(first);
            first = returned;
        }
    }
}

/// A process dies without warning, with a disk that it does not lose.
#[actix::test]
async fn a_head_without_its_log_copies_the_files_again() {
    tokio::time::pause();
    let mut all = TestMembers::of(1, true);
    let first = all.acting_head().await;
    all.append_at(first, change(1, 10)).await.unwrap();
    all.until(10, |_| all.files(first) == all.files(other(first))).await;
    all.kill(first);
    all.until(10, |acting| acting == [other(first)]).await;
    std::fs::remove_dir_all(all.dir.path().join(first)).unwrap();
    let stray = all.files_of(first).unwrap().join("jobs/stray");
    std::fs::write(&stray, "not the other head's").unwrap();
    all.launch(first);
    all.until(30, |_| all.files(first) == all.files(other(first))).await;
    assert!(!stray.exists());
    assert_eq!(all.acting(), [other(first)]);
}

/// Runs the blocking work of a store on a thread, while the members of this one answer. Virtual
/// time then passes at most ten times as fast as real time: a head must not lose its right to act
/// because the thread waits for a disk.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, mut done) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || _ = sender.send(work()));
    let step = Duration::from_millis(1);
    loop {
        tokio::select! {
            biased;
            outcome = &mut done => return outcome.unwrap(),
            () = tokio::time::advance(step) => std::thread::sleep(step / 10),
        }
    }
}

impl TestMembers {
    /// Waits until one head acts, and returns its name.
    async fn acting_head(&self) -> &'static str {
        self.until(10, |acting| acting.len() == 1).await;
        self.acting()[0]
    }

    /// The log of a head's changes, and its directory.
    fn changes_of(&self, name: &str) -> (Arc<ChangeLog>, PathBuf) {
        let dir = self.files_of(name).unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        let member = self.processes[name].member.clone();
        (ChangeLog::new(&dir, name.into(), member), dir)
    }
}

#[actix::test]
async fn the_next_head_continues_with_the_store_of_a_dead_one() {
    tokio::time::pause();
    for seed in 0..3 {
        let mut all = TestMembers::of(seed, true);
        let first = all.acting_head().await;
        let (log, dir) = all.changes_of(first);
        let kept = Arc::clone(&log);
        let (last, store) = on_thread(move || {
            let files = Arc::new(ReplicatedFiles(kept));
            let mut store = Store::open_with(&dir, files).unwrap();
            store.set_drained(&"ams-1".into(), Some("by hand")).unwrap();
            let last = (0..30).map(|_| store.new_job().unwrap().0).last().unwrap();
            (last, store)
        })
        .await;
        assert_eq!(last, JobId(30));
        // The head loses its right to act before it dies: its store refuses.
        all.cut(first, NAMES[2], true);
        all.cut(first, other(first), true);
        all.until(15, |acting| acting == [other(first)]).await;
        let error = on_thread(move || {
            let mut store = store;
            store.new_job().unwrap_err().to_string()
        })
        .await;
        assert!(error.contains("may not act"), "{error}");
        all.kill(first);
        let (log, dir) = all.changes_of(other(first));
        let (drained, next) = on_thread(move || {
            let mut store = Store::open_with(&dir, Arc::new(ReplicatedFiles(log))).unwrap();
            (store.drained_nodes().clone(), store.new_job().unwrap().0)
        })
        .await;
        assert_eq!((drained.len(), next), (1, JobId(31)), "seed {seed}");
    }
}

/// The record log of a store writes a file under a temporary name, renames it and appends to it.
#[actix::test]
async fn a_file_stays_open_when_it_is_renamed() {
    tokio::time::pause();
    let all = TestMembers::of(0, true);
    let first = all.acting_head().await;
    let (log, dir) = all.changes_of(first);
    let (temporary, path) = (dir.join("jobs/a.tmp"), dir.join("jobs/a"));
    on_thread(move || {
        let files = ReplicatedFiles(log);
        let mut file = files.create(&temporary).unwrap();
        file.write(0, b"one, ").unwrap();
        file.sync().unwrap();
        files.rename(&temporary, &path).unwrap();
        let mut later = files.create(&temporary).unwrap();
        later.write(0, b"another file").unwrap();
        file.write(5, b"two, three").unwrap();
        file.truncate(8).unwrap();
        file.sync().unwrap();
    })
    .await;
    let there = all.files_of(other(first)).unwrap();
    let texts = |dir: &PathBuf| {
        let text = |name: &str| std::fs::read_to_string(dir.join("jobs").join(name));
        Some((text("a").ok()?, text("a.tmp").ok()?))
    };
    let expected = Some(("one, two".to_owned(), "another file".to_owned()));
    assert_eq!(texts(&all.files_of(first).unwrap()), expected);
    all.until(10, |_| texts(&there) == expected).await;
}

#[actix::test]
async fn files_of_other_commands_are_mirrored() {
    tokio::time::pause();
    let all = TestMembers::of(0, true);
    let first = all.acting_head().await;
    let (log, dir) = all.changes_of(first);
    let write = move |path: &str, text: &str| {
        let path = dir.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("ca/ca.pem", "one");
    write("jobs/job-1/log.txt", "first\n");
    write("jobs/job-2/log.txt", "other\n");
    write("head.json", "not mirrored");
    let mirror = Arc::new(Mirror::new(log).unwrap());
    let flush = || {
        let mirror = Arc::clone(&mirror);
        on_thread(move || mirror.flush().unwrap())
    };
    let mirrored =
        |path: &str| std::fs::read_to_string(all.files_of(other(first)).unwrap().join(path));
    flush().await;
    // Files that have not changed since the head acts are at the other one already.
    write("jobs/job-1/log.txt", "first\nsecond\n");
    write("ca/ca.pem", "two");
    flush().await;
    write("jobs/job-1/log.txt", "first\nsecond\nthird\n");
    std::fs::remove_file(all.files_of(first).unwrap().join("jobs/job-2/log.txt")).unwrap();
    write("incarnation", "7");
    flush().await;
    let is_there = |_: &[&str]| mirrored("incarnation").is_ok_and(|text| text == "7");
    all.until(10, is_there).await;
    assert_eq!(mirrored("ca/ca.pem").unwrap(), "two");
    assert_eq!(mirrored("jobs/job-1/log.txt").unwrap(), "first\nsecond\nthird\n");
    assert!(mirrored("jobs/job-2/log.txt").is_err() && mirrored("head.json").is_err());
    // The head's own files are as the other commands have written them.
    let own = all.files_of(first).unwrap().join("jobs/job-1/log.txt");
    assert_eq!(std::fs::read_to_string(own).unwrap(), "first\nsecond\nthird\n");
}

/// A member over QUIC on loopback, on an arbiter of its own as in a process.
fn quic_member(
    authority: &Ca,
    name: &'static str,
    dir: PathBuf,
) -> (Net, Addr<StandbyMember>, watch::Receiver<MemberStatus>) {
    let role = if name == NAMES[2] { "site" } else { "head" };
    let identity = authority.issue(&name.into(), &name.into(), role, NODE_VALIDITY).unwrap();
    let (sender, started) = mpsc::channel();
    actix::Arbiter::new().spawn_fn(move || {
        let endpoint = Endpoint::quic(NetConfig::default(), &identity, Incarnation(1)).unwrap();
        let [first, second, witness] = NAMES.map(NodeId::from);
        let members = Members { heads: [first, second], witness };
        let log = MemberLog::open(Arc::new(Disk), &dir.join(name)).unwrap();
        let files = (name != NAMES[2]).then(|| dir.join(format!("{name}.files")));
        let (member, status) =
            StandbyMember::publish(&endpoint.hub, members, StandbyTiming::default(), log, files);
        endpoint.start();
        sender.send((endpoint.net.clone(), member, status)).unwrap();
        actix::spawn(async move {
            let _endpoint = endpoint;
            std::future::pending::<()>().await;
        });
    });
    started.recv().unwrap()
}

/// The number of commits of the scheduler's store per second, one after another.
fn commit_rate(mut store: Store) -> f64 {
    let begin = std::time::Instant::now();
    let mut commits = 0_u32;
    while begin.elapsed() < Duration::from_secs(5) {
        store.new_job().unwrap();
        commits += 1;
    }
    f64::from(commits) / begin.elapsed().as_secs_f64()
}

/// Prints the rates of commits with one head and with two.
#[actix::test]
#[ignore = "a measurement of ten seconds"]
async fn rates_of_commits() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().to_owned();
    let authority = Ca::ephemeral("pair").unwrap();
    let members = NAMES.map(|name| quic_member(&authority, name, dir.clone()));
    for (net, ..) in &members {
        members.iter().for_each(|(other, ..)| net.learn(other.contact()));
    }
    let (name, member) = loop {
        let acts =
            |(_, _, status): &&(_, _, watch::Receiver<MemberStatus>)| status.borrow().may_act();
        if let Some((net, member, _)) = members.iter().find(acts) {
            break (net.me().node.clone(), member.clone());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let (own, alone) = (dir.join(format!("{name}.files")), dir.join("alone"));
    [&own, &alone].iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let log = ChangeLog::new(&own, name, member);
    let files = Arc::new(ReplicatedFiles(log));
    let two = on_thread(move || commit_rate(Store::open_with(&own, files).unwrap())).await;
    let one =
        on_thread(move || commit_rate(Store::open_with(&alone, Arc::new(Disk)).unwrap())).await;
    println!("commits per second: {one:.0} with one head, {two:.0} with a second one");
}
