//! File servers with each other, over the network in memory and on real directories.

use std::path::{Path, PathBuf};
use std::time::Duration;

use springtide_runtime::id::{ClusterId, Incarnation, JobId, Peer};
use springtide_runtime::net::{LinkProfile, MemoryNet};
use springtide_runtime::remote::{Remote, RemoteError};
use tokio::time::{Instant, sleep};

use super::dir::{Dir, FILE_MODE};
use super::*;
use crate::endpoint::Endpoint;
use crate::job::SCHEDULER;

/// Time limit of each wait.
const LONG: Duration = Duration::from_secs(60);
/// Length of a file: several chunks, and not a multiple of one.
const LENGTH: usize = 3_000_001;

struct FilesWorld {
    network: MemoryNet,
    head: Endpoint,
    temp: tempfile::TempDir,
}

impl FilesWorld {
    fn new() -> Self {
        let network = MemoryNet::new(1);
        let head = join(&network, "head", 1);
        head.start();
        Self { network, head, temp: tempfile::tempdir().unwrap() }
    }

    fn dir(&self, cluster: &str) -> PathBuf {
        self.temp.path().join(cluster)
    }

    /// Starts a cluster's file server in its own process, and waits until it knows its files.
    async fn serve(&self, cluster: &str, incarnation: u64, files: &[(&str, &[u8])]) -> Endpoint {
        let dir = self.dir(cluster);
        std::fs::create_dir_all(&dir).unwrap();
        for (name, content) in files {
            std::fs::write(dir.join(name), content).unwrap();
        }
        let endpoint = join(&self.network, cluster, incarnation);
        let limits =
            FileLimits { scan_interval: Duration::from_millis(50), ..FileLimits::default() };
        let keeping = FileServerSettings { cluster: cluster.into(), dir: dir.clone(), limits };
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
                assert!(since.elapsed() < LONG, "{cluster} does not list {name}");
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
    ) -> Result<Result<FetchResult, FileError>, RemoteError> {
        let source = |endpoint: &&Endpoint| {
            let at = endpoint.net.contact();
            FileSource { cluster: at.cluster.clone(), address: at }
        };
        let from = from.iter().map(source).collect();
        let order = FetchFile { job: JobId(job), file: file.clone(), from };
        self.server("b").send(order).deadline(LONG).await
    }

    /// Lengths of the incomplete files at b.
    fn parts(&self) -> Vec<u64> {
        let all = std::fs::read_dir(self.dir("b")).unwrap().filter_map(Result::ok);
        let part = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with('.');
        all.filter(part).filter_map(|entry| Some(entry.metadata().ok()?.len())).collect()
    }

    /// Waits until part of a file has arrived at b.
    async fn some_has_come(&self) {
        let since = Instant::now();
        while !self.parts().iter().any(|length| *length > 0) {
            assert!(since.elapsed() < LONG, "no bytes arrive");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Node and cluster have the same name.
fn join(network: &MemoryNet, name: &str, incarnation: u64) -> Endpoint {
    let cluster = ClusterId::from(name);
    Endpoint::over(
        network
            .join(Peer { node: name.into(), incarnation: Incarnation(incarnation), cluster })
            .unwrap(),
    )
}

fn content() -> Vec<u8> {
    (0..LENGTH as u64).map(|n| (n.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[actix_rt::test]
async fn stored_bytes_are_not_fetched_again() {
    let (world, content) = (FilesWorld::new(), content());
    let a = world.serve("a", 1, &[("bodies", &content)]).await;
    let b = world.serve("b", 1, &[]).await;
    let file = entry_of(&world.dir("a").join("bodies"), "bodies").unwrap();
    let half = LENGTH / 2;
    let dir = Dir { cluster: "b".into(), path: world.dir("b"), largest: 1 << 30, mode: FILE_MODE };
    dir.open_part(&file).unwrap().append(&content[..half]).unwrap();
    let brought = world.bring(1, &file, &[&a]).await.unwrap().unwrap();
    assert_eq!((brought.from, brought.bytes), (Some("a".into()), (LENGTH - half) as u64));
    assert_eq!(read(&world.dir("b").join("bodies")), content);
    assert!(world.parts().is_empty());
    // The file is there for any later job.
    let brought = world.bring(2, &file, &[]).await.unwrap().unwrap();
    assert_eq!((brought.from, brought.bytes), (None, 0));
    // Another file of this name is refused.
    let other = FileEntry { sum: "0".repeat(64), ..file };
    let differs = world.bring(3, &other, &[&a]).await.unwrap();
    assert!(matches!(differs, Err(FileError::Conflict { .. })), "{differs:?}");
    drop(b);
}

#[actix_rt::test]
async fn next_source_is_tried_after_a_failure() {
    let (world, content) = (FilesWorld::new(), content());
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
async fn transfer_is_cancelled_or_resumes_with_another_incarnation() {
    let (world, content) = (FilesWorld::new(), content());
    let a = world.serve("a", 1, &[("bodies", &content)]).await;
    let _b = world.serve("b", 1, &[]).await;
    let file = entry_of(&world.dir("a").join("bodies"), "bodies").unwrap();
    let from = [&a];
    let slow = LinkProfile::default().rate(1_500_000);
    world.network.set_links(&"a".into(), &"b".into(), &slow);
    // No job needs the file any longer, and its part is removed.
    let dropped = async {
        world.some_has_come().await;
        world.server("b").do_send(CancelFetches { job: JobId(1) }).unwrap();
    };
    let (answer, ()) = tokio::join!(world.bring(1, &file, &from), dropped);
    assert_eq!(answer.unwrap(), Err(FileError::Cancelled { name: "bodies".to_owned() }));
    let since = Instant::now();
    while !world.parts().is_empty() {
        assert!(since.elapsed() < LONG, "parts are left");
        sleep(Duration::from_millis(5)).await;
    }
    // The source dies, and returns.
    let dies = async {
        world.some_has_come().await;
        world.network.kill(&"a".into());
    };
    let (answer, ()) = tokio::join!(world.bring(2, &file, &from), dies);
    let lost = answer.unwrap().unwrap_err();
    assert!(lost.to_string().contains("bodies could not be fetched"), "{lost}");
    let stored = world.parts()[0];
    assert!(stored > 0 && stored < LENGTH as u64, "{stored}");
    let a = world.serve("a", 2, &[("bodies", &content)]).await;
    world.network.set_links(&"a".into(), &"b".into(), &LinkProfile::default());
    let brought = world.bring(2, &file, &[&a]).await.unwrap().unwrap();
    assert_eq!(brought.bytes, LENGTH as u64 - stored);
    assert_eq!(read(&world.dir("b").join("bodies")), content);
}
