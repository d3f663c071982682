//! Stores of a head and of sites, and a client, over the network in memory and on real directories.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use springtide_protocol::files::{FileError, FileSource, ReadChunk};
use springtide_protocol::receivers;
use springtide_runtime::id::{ClusterId, Incarnation, JobId, NodeId, Peer};
use springtide_runtime::net::{LinkProfile, MemoryNet};
use springtide_runtime::remote::Remote;
use tokio::time::{Instant, sleep};

use super::server::image_of;
use super::*;
use crate::endpoint::Endpoint;

/// Time limit of each wait.
const LONG: Duration = Duration::from_secs(60);
/// Fingerprint of the grid's own program, and of another one.
const OWN: u64 = 7;
const OTHER: u64 = 8;

struct ProgramWorld {
    network: MemoryNet,
    temp: tempfile::TempDir,
}

/// A process with a store.
struct StoreProcess {
    endpoint: Endpoint,
    access: ProgramAccess,
    dir: PathBuf,
}

impl ProgramWorld {
    fn new() -> Self {
        Self { network: MemoryNet::new(1), temp: tempfile::tempdir().unwrap() }
    }

    fn endpoint(&self, name: &str, incarnation: u64) -> Endpoint {
        let (node, cluster) = (NodeId::from(name), ClusterId::from(name));
        let peer = Peer { node, incarnation: Incarnation(incarnation), cluster };
        Endpoint::over(self.network.join(peer).unwrap())
    }

    fn store(&self, name: &str, incarnation: u64, limits: ProgramLimits) -> StoreProcess {
        let endpoint = self.endpoint(name, incarnation);
        let dir = self.temp.path().join(name);
        let own = (name == "head").then_some(OWN);
        let settings =
            ProgramStoreSettings { dir: dir.clone(), limits, foreign: true, own, audit_log: None };
        let access = ProgramStore::publish(settings, &endpoint.net, &endpoint.hub).unwrap();
        endpoint.start();
        StoreProcess { endpoint, access, dir }
    }

    /// An executable of this length, and its description. Nothing starts it.
    fn program(&self, name: &str, length: usize) -> (PathBuf, ProgramImage) {
        let path = self.temp.path().join(name);
        let mut bytes = fs::read(std::env::current_exe().unwrap()).unwrap();
        bytes.truncate(length.max(4096));
        bytes.resize(length, 7);
        bytes.extend(name.bytes());
        fs::write(&path, bytes).unwrap();
        let image = image_of(&path, name.to_owned()).unwrap();
        (path, image)
    }
}

impl StoreProcess {
    fn source(&self) -> FileSource {
        let address = self.endpoint.net.contact();
        FileSource { cluster: address.cluster.clone(), address }
    }

    async fn use_by(
        &self,
        node: &str,
        image: &ProgramImage,
        from: &[&StoreProcess],
    ) -> Result<StoredPath, ProgramError> {
        let sources = from.iter().map(|process| process.source()).collect();
        let program = ShippedProgram { image: image.clone(), path: None, sources };
        let user = ProgramUser::Node(node.into());
        self.access.store.send(UseProgram { user, program }).await.unwrap()
    }

    async fn release(&self, node: &str) {
        let user = ProgramUser::Node(node.into());
        self.access.store.send(ReleaseProgram { user }).await.unwrap();
    }

    fn file(&self, image: &ProgramImage) -> PathBuf {
        self.dir.join(image.digest.to_string())
    }

    /// Lengths of the incomplete programs.
    fn parts(&self) -> Vec<u64> {
        let all = fs::read_dir(&self.dir).unwrap().filter_map(Result::ok);
        let part = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with('.');
        all.filter(part).filter_map(|entry| Some(entry.metadata().ok()?.len())).collect()
    }

    async fn some_has_come(&self) {
        let since = Instant::now();
        while !self.parts().iter().any(|length| *length > 0) {
            assert!(since.elapsed() < LONG, "no bytes arrive");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Offers a program to the head as a client does.
async fn offer(
    client: &Endpoint,
    image: &ProgramImage,
    path: Option<&Path>,
) -> Result<(), ProgramError> {
    let head: Remote<receivers::ProgramStore> = client.hub.remote(&"head".into(), PROGRAMS);
    let offer = OfferProgram {
        image: image.clone(),
        path: path.map(Path::to_owned),
        client: client.net.contact(),
    };
    head.send(offer).deadline(LONG).await.unwrap()
}

#[actix_rt::test]
async fn a_program_goes_from_a_client_to_the_head_and_once_to_each_site() {
    let world = ProgramWorld::new();
    let head = world.store("head", 1, ProgramLimits::default());
    let site = world.store("ams", 1, ProgramLimits::default());
    let client = world.endpoint("client-1", 1);
    let (path, image) = world.program("own", 1_000_001);
    let sent = ProgramServer::publish_file(image.clone(), &path, &client.hub).unwrap();
    client.start();
    client.net.learn(head.endpoint.net.contact());
    let remote: Remote<receivers::ProgramStore> = client.hub.remote(&"head".into(), PROGRAMS);
    for (fingerprint, needed) in [(OWN, false), (OTHER, true)] {
        let terms = remote.send(GetProgramTerms { fingerprint }).deadline(LONG).await.unwrap();
        assert_eq!(terms, ProgramTerms { needed });
    }
    offer(&client, &image, None).await.unwrap();
    assert_eq!(sent.load(std::sync::atomic::Ordering::Relaxed), image.bytes);
    assert_eq!(fs::read(head.file(&image)).unwrap(), fs::read(&path).unwrap());
    let mode = fs::metadata(head.file(&image)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // The client may go now. Two nodes of a site share its file.
    fs::remove_file(&path).unwrap();
    client.net.close("submitted").await;
    let from = [&head];
    let both =
        tokio::join!(site.use_by("ams-1", &image, &from), site.use_by("ams-2", &image, &from));
    let [first, second] = [both.0.unwrap(), both.1.unwrap()];
    assert_eq!((&first, first.arrival.bytes), (&second, image.bytes));
    assert_eq!(first.path, site.file(&image));
    // A later process of the site finds it.
    let later = world.store("ams", 2, ProgramLimits::default());
    let found = later.use_by("ams-1", &image, &[]).await.unwrap();
    assert_eq!(found.arrival, ProgramArrival::default());
}

#[actix_rt::test]
async fn a_head_that_took_over_reads_programs_of_waiting_jobs_from_their_clients() {
    let world = ProgramWorld::new();
    let head = world.store("head", 1, ProgramLimits::default());
    let site = world.store("ams", 1, ProgramLimits::default());
    let client = world.endpoint("client-1", 1);
    let (path, image) = world.program("own", 1_000_001);
    ProgramServer::publish_file(image.clone(), &path, &client.hub).unwrap();
    client.start();
    let slow = LinkProfile::default().rate(1_500_000);
    world.network.set_links(&"client-1".into(), &"head".into(), &slow);
    let address = client.net.contact();
    let sources = vec![FileSource { cluster: address.cluster.clone(), address }];
    let program = ShippedProgram { image: image.clone(), path: None, sources };
    let user = ProgramUser::Job(JobId(1));
    head.access.store.send(KeepProgram { user, program }).await.unwrap();
    // A site that asks meanwhile waits for the rest.
    head.some_has_come().await;
    let stored = site.use_by("ams-1", &image, &[&head]).await.unwrap();
    assert_eq!(stored.arrival.bytes, image.bytes);
    assert_eq!(fs::read(stored.path).unwrap(), fs::read(&path).unwrap());
}

#[actix_rt::test]
async fn the_same_file_at_the_same_path_is_not_sent() {
    let world = ProgramWorld::new();
    let head = world.store("head", 1, ProgramLimits::default());
    let client = world.endpoint("client-1", 1);
    let (path, image) = world.program("own", 100_000);
    client.start();
    client.net.learn(head.endpoint.net.contact());
    // The client serves nothing.
    offer(&client, &image, Some(&path)).await.unwrap();
    assert_eq!(fs::read(head.file(&image)).unwrap(), fs::read(&path).unwrap());
    let (other, changed) = world.program("changed", 100_000);
    fs::write(&other, vec![1; usize::try_from(changed.bytes).unwrap()]).unwrap();
    let refused = offer(&client, &changed, Some(&other)).await.unwrap_err();
    assert!(refused.to_string().contains("changed on this host is not the program"), "{refused}");
    assert_eq!(head.parts(), [0], "none of its bytes");
}

#[actix_rt::test]
async fn a_killed_site_resumes_its_transfer() {
    let world = ProgramWorld::new();
    let head = world.store("head", 1, ProgramLimits::default());
    let site = world.store("ams", 1, ProgramLimits::default());
    let (path, image) = world.program("own", 3_000_001);
    let program = ShippedProgram { image: image.clone(), path: Some(path), sources: Vec::new() };
    let user = ProgramUser::Job(JobId(1));
    head.access.store.send(UseProgram { user, program }).await.unwrap().unwrap();
    let slow = LinkProfile::default().rate(1_500_000);
    world.network.set_links(&"ams".into(), &"head".into(), &slow);
    let killed = async {
        site.some_has_come().await;
        world.network.kill(&"ams".into());
    };
    let from = [&head];
    tokio::select! {
        _ = site.use_by("ams-1", &image, &from) => {}
        () = killed => {}
    }
    let stored = site.parts()[0];
    assert!(stored > 0 && stored < image.bytes, "{stored}");
    // Its actor may still write what has arrived.
    sleep(Duration::from_millis(100)).await;
    let stored = site.parts()[0];
    world.network.set_links(&"ams".into(), &"head".into(), &LinkProfile::default());
    let later = world.store("ams", 2, ProgramLimits::default());
    let resumed = later.use_by("ams-1", &image, &[&head]).await.unwrap();
    assert_eq!(resumed.arrival.bytes, image.bytes - stored);
    assert!(later.parts().is_empty());
}

#[actix_rt::test]
async fn an_unused_program_makes_room_and_a_used_one_does_not() {
    let world = ProgramWorld::new();
    let limits = ProgramLimits { size_max: 60_000, cache_bytes: 100_000, transfers_max: 2 };
    let head = world.store("head", 1, ProgramLimits::default());
    let site = world.store("ams", 1, limits);
    let mut images = Vec::new();
    for n in 1..=3 {
        let (path, image) = world.program(&format!("p{n}"), 40_000);
        let program = ShippedProgram { image: image.clone(), path: Some(path), sources: vec![] };
        let user = ProgramUser::Job(JobId(n));
        head.access.store.send(UseProgram { user, program }).await.unwrap().unwrap();
        images.push(image);
    }
    let [one, two, three] = &images[..] else { panic!("three programs") };
    site.use_by("ams-1", one, &[&head]).await.unwrap();
    site.use_by("ams-2", two, &[&head]).await.unwrap();
    let full = site.use_by("ams-3", three, &[&head]).await.unwrap_err();
    assert!(matches!(full, ProgramError::CacheFull { max: 100_000, .. }), "{full}");
    site.release("ams-1").await;
    assert!(site.file(one).exists(), "it stays as long as there is room");
    site.use_by("ams-3", three, &[&head]).await.unwrap();
    assert!(!site.file(one).exists() && site.file(two).exists() && site.file(three).exists());
    let (_, large) = world.program("large", 60_001);
    let refused = site.use_by("ams-1", &large, &[&head]).await.unwrap_err();
    assert!(matches!(refused, ProgramError::TooLarge { max: 60_000, .. }), "{refused}");
}

#[actix_rt::test]
async fn what_is_no_program_is_refused() {
    let world = ProgramWorld::new();
    let head = world.store("head", 1, ProgramLimits::default());
    let script = world.temp.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let refused = image_of(&script, "script".to_owned()).unwrap_err();
    assert!(refused.to_string().starts_with("script is not an executable"), "{refused}");
    // Its submitter describes it as a program all the same.
    let (_, image) = world.program("own", 10_000);
    let entry = crate::files::entry_of(&script, "script").unwrap();
    let digest = entry.sum.parse().unwrap();
    let lie = ProgramImage { digest, bytes: entry.bytes, ..image.clone() };
    let program = ShippedProgram { image: lie.clone(), path: Some(script), sources: Vec::new() };
    let user = ProgramUser::Job(JobId(1));
    let refused = head.access.store.send(UseProgram { user, program }).await.unwrap().unwrap_err();
    assert!(matches!(refused, ProgramError::NotExecutable { .. }), "{refused}");
    assert!(!head.file(&lie).exists());
    // A store says nothing of files that are not programs of it.
    let other: Remote<receivers::FileServer> = head.endpoint.hub.remote(&"head".into(), PROGRAMS);
    let name = "../head".to_owned();
    let read = other.send(ReadChunk { sum: name.clone(), name, at: 0, len: 10 });
    let read = read.deadline(LONG).await.unwrap();
    assert!(matches!(read, Err(FileError::Unknown { .. })), "{read:?}");
}

#[actix_rt::test]
async fn a_grid_of_its_own_programs_takes_no_other() {
    let world = ProgramWorld::new();
    let endpoint = world.endpoint("head", 1);
    let dir = world.temp.path().join("head");
    let limits = ProgramLimits::default();
    let settings =
        ProgramStoreSettings { dir, limits, foreign: false, own: Some(OWN), audit_log: None };
    let access = ProgramStore::publish(settings, &endpoint.net, &endpoint.hub).unwrap();
    endpoint.start();
    let client = world.endpoint("client-1", 1);
    client.start();
    client.net.learn(endpoint.net.contact());
    let (path, image) = world.program("own", 10_000);
    assert_eq!(offer(&client, &image, Some(&path)).await, Err(ProgramError::Forbidden));
    let program = ShippedProgram { image, path: Some(path), sources: Vec::new() };
    let user = ProgramUser::Node("ams-1".into());
    let refused = access.store.send(UseProgram { user, program }).await.unwrap();
    assert_eq!(refused, Err(ProgramError::Forbidden));
}
