//! File servers with each other, over the network in memory and on real directories.

use std::path::{Path, PathBuf};
use std::time::Duration;

use springtide_runtime::id::{ClusterId, Incarnation, JobId, Peer};
use springtide_runtime::net::{LinkProfile, MemoryNet};
use springtide_runtime::remote::{Remote, RemoteError};
use tokio::time::{Instant, sleep};

use super::dir::Dir;
use super::*;
use crate::endpoint::Endpoint;
use crate::job::SCHEDULER;

/// Nothing takes this long.
const LONG: Duration = Duration::from_secs(60);
/// Longer than some chunks, and no multiple of one.
const LENGTH: usize = 3_000_001;

struct World {
    network: MemoryNet,
    head: Endpoint,
    temp: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let network = MemoryNet::new(1);
        let head = join(&network, "head", 1);
        head.start();
        Self { network, head, temp: tempfile::tempdir().unwrap() }
    }

    fn dir(&self, cluster: &str) -> PathBuf {
        self.temp.path().join(cluster)
    }

    /// A cluster's file server in a process of its own, which knows its files.
    async fn serve(&self, cluster: &str, life: u64, files: &[(&str, &[u8])]) -> Endpoint {
        let dir = self.dir(cluster);
        std::fs::create_dir_all(&dir).unwrap();
        for (name, content) in files {
            std::fs::write(dir.join(name), content).unwrap();
        }
        let endpoint = join(&self.network, cluster, life);
        let limits = Limits { poll: Duration::from_millis(50), ..Limits::default() };
        let keeping = Keeping { cluster: cluster.into(), dir: dir.clone(), limits };
        let scheduler = endpoint.hub.remote(&"head".into(), SCHEDULER);
        FileServer::publish(keeping, &endpoint.net, &endpoint.hub, scheduler);
        endpoint.start();
        self.head.net.learn(endpoint.net.contact());
        for (name, _) in files {
            let FileEntry { name, sum, .. } = entry_of(&dir.join(name), name).unwrap();
            let knows = || {
                self.server(cluster).send(ReadChunk {
                    name: name.clone(),
                    sum: sum.clone(),
                    at: 0,
                    len: 1,
                })
            };
            let since = Instant::now();
            while !matches!(knows().await, Ok(Ok(_))) {
                assert!(since.elapsed() < LONG, "{cluster} does not know {name}");
                sleep(Duration::from_millis(10)).await;
            }
        }
        endpoint
    }

    fn server(&self, cluster: &str) -> Remote<FileServer> {
        self.head.hub.remote(&cluster.into(), &files_name(&cluster.into()))
    }

    async fn bring(
        &self,
        job: u64,
        file: &FileEntry,
        from: &[&Endpoint],
    ) -> Result<Result<Brought, FileError>, RemoteError> {
        let source = |endpoint: &&Endpoint| {
            let at = endpoint.net.contact();
            Source { cluster: at.cluster.clone(), at }
        };
        let from = from.iter().map(source).collect();
        let order = BringFile { job: JobId(job), file: file.clone(), from };
        self.server("b").send(order).deadline(LONG).await
    }

    /// What came of files to b and is not whole.
    fn parts(&self) -> Vec<u64> {
        let all = std::fs::read_dir(self.dir("b")).unwrap().filter_map(Result::ok);
        let part = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with('.');
        all.filter(part).filter_map(|entry| Some(entry.metadata().ok()?.len())).collect()
    }

    /// Waits until some of a file has come to b.
    async fn some_has_come(&self) {
        let since = Instant::now();
        while !self.parts().iter().any(|length| *length > 0) {
            assert!(since.elapsed() < LONG, "nothing comes");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Node and cluster are called alike.
fn join(network: &MemoryNet, name: &str, life: u64) -> Endpoint {
    let cluster = ClusterId::from(name);
    Endpoint::over(
        network.join(Peer { node: name.into(), incarnation: Incarnation(life), cluster }).unwrap(),
    )
}

fn content() -> Vec<u8> {
    (0..LENGTH as u64).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[actix_rt::test]
async fn what_came_before_is_not_fetched_again() {
    let (world, content) = (World::new(), content());
    let a = world.serve("a", 1, &[("bodies", &content)]).await;
    let b = world.serve("b", 1, &[]).await;
    let file = entry_of(&world.dir("a").join("bodies"), "bodies").unwrap();
    let half = LENGTH / 2;
    let dir = Dir { cluster: "b".into(), path: world.dir("b"), largest: 1 << 30 };
    dir.begin(&file).unwrap().append(&content[..half]).unwrap();
    let brought = world.bring(1, &file, &[&a]).await.unwrap().unwrap();
    assert_eq!((brought.from, brought.bytes), (Some("a".into()), (LENGTH - half) as u64));
    assert_eq!(read(&world.dir("b").join("bodies")), content);
    assert!(world.parts().is_empty());
    // It is there, for whoever wants it.
    let brought = world.bring(2, &file, &[]).await.unwrap().unwrap();
    assert_eq!((brought.from, brought.bytes), (None, 0));
    // Another of its name is not.
    let other = FileEntry { sum: "0".repeat(64), ..file };
    let differs = world.bring(3, &other, &[&a]).await.unwrap();
    assert!(matches!(differs, Err(FileError::Differs { .. })), "{differs:?}");
    drop(b);
}

#[actix_rt::test]
async fn the_next_who_has_it_is_asked_when_one_has_not() {
    let (world, content) = (World::new(), content());
    let a = world.serve("a", 1, &[("bodies", &content)]).await;
    let c = world.serve("c", 1, &[("bodies", b"something else")]).await;
    let _b = world.serve("b", 1, &[]).await;
    let file = entry_of(&world.dir("a").join("bodies"), "bodies").unwrap();
    let none = world.bring(1, &file, &[&c]).await.unwrap().unwrap_err();
    assert!(none.to_string().contains("cluster c has another file named bodies"), "{none}");
    let brought = world.bring(1, &file, &[&c, &a]).await.unwrap().unwrap();
    assert_eq!(brought.from, Some("a".into()));
    assert_eq!(read(&world.dir("b").join("bodies")), content);
}

#[actix_rt::test]
async fn a_transfer_is_dropped_or_goes_on_with_another_life() {
    let (world, content) = (World::new(), content());
    let a = world.serve("a", 1, &[("bodies", &content)]).await;
    let _b = world.serve("b", 1, &[]).await;
    let file = entry_of(&world.dir("a").join("bodies"), "bodies").unwrap();
    let from = [&a];
    let slow = LinkProfile::default().rate(1_500_000);
    world.network.set_links(&"a".into(), &"b".into(), &slow);
    // Nobody wants it any more, and nothing of it is left.
    let dropped = async {
        world.some_has_come().await;
        world.server("b").do_send(DropFiles { job: JobId(1) }).unwrap();
    };
    let (answer, ()) = tokio::join!(world.bring(1, &file, &from), dropped);
    assert_eq!(answer.unwrap(), Err(FileError::Dropped { name: "bodies".to_owned() }));
    let since = Instant::now();
    while !world.parts().is_empty() {
        assert!(since.elapsed() < LONG, "parts are left");
        sleep(Duration::from_millis(5)).await;
    }
    // The one that has it dies, and is there again.
    let dies = async {
        world.some_has_come().await;
        world.network.kill(&"a".into());
    };
    let (answer, ()) = tokio::join!(world.bring(2, &file, &from), dies);
    let lost = answer.unwrap().unwrap_err();
    assert!(lost.to_string().contains("bodies was not to be had"), "{lost}");
    let came = world.parts()[0];
    assert!(came > 0 && came < LENGTH as u64, "{came}");
    let a = world.serve("a", 2, &[("bodies", &content)]).await;
    world.network.set_links(&"a".into(), &"b".into(), &LinkProfile::default());
    let brought = world.bring(2, &file, &[&a]).await.unwrap().unwrap();
    assert_eq!(brought.bytes, LENGTH as u64 - came);
    assert_eq!(read(&world.dir("b").join("bodies")), content);
}
