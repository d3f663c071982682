//! Consumers that read nothing: the memory of their senders, and their own.

use std::sync::Arc;
use std::time::Duration;

use quinn::Endpoint;
use springtide_runtime::id::Incarnation;
use springtide_runtime::net::tls::{ALPN, Ca, EPHEMERAL_VALIDITY};
use springtide_runtime::net::{Address, Contact, Net, NetConfig};
use springtide_runtime::remote::{Hub, Remote, RemoteError};
use tokio::time::{Instant, sleep};

use super::helper::{Helper, LoadMessage, MeasuredProcess, NAME, ProcessKind, SlowActor};
use super::odd::{Hello, client, say_hello};
use super::{MIB, loopback};

/// The result of a stall.
pub struct Stalled {
    pub what: &'static str,
    pub links: usize,
    pub base_kib: u64,
    /// Pairs of seconds since the start of the flood, and KiB.
    pub seen: Vec<(f64, u64)>,
    /// The state of the measured process at the end.
    pub last: MeasuredProcess,
    /// Sends that the senders' side refused with an error.
    pub refused: u64,
}

impl Stalled {
    pub fn above_mib(&self) -> f64 {
        let most = self.seen.iter().map(|(_, kib)| *kib).max().unwrap_or(self.base_kib);
        most.saturating_sub(self.base_kib) as f64 / MIB
    }

    /// MiB a minute, by least squares over the second half, when all bounded memory is in use.
    pub fn slope_mib(&self) -> f64 {
        let half = &self.seen[self.seen.len() / 2..];
        let n = half.len() as f64;
        let mean = |of: &dyn Fn(&(f64, u64)) -> f64| half.iter().map(of).sum::<f64>() / n;
        let (t, m) = (mean(&|(t, _)| *t), mean(&|(_, kib)| *kib as f64));
        let over: f64 = half.iter().map(|(at, kib)| (at - t) * (*kib as f64 - m)).sum();
        let under: f64 = half.iter().map(|(at, _)| (at - t).powi(2)).sum();
        over / under * 60.0 / MIB
    }

    pub fn row(&self) -> String {
        format!(
            "| {} | {} | {:.1} MiB | +{:.1} MiB | {:+.2} MiB/min | {} refused with a typed error |",
            self.what,
            self.links,
            self.base_kib as f64 / MIB,
            self.above_mib(),
            self.slope_mib(),
            self.refused,
        )
    }
}

fn on_one_thread<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

/// An endpoint sends in every class at full speed, to peers that have sent a hello and read
/// nothing.
pub fn stalled_peers(peers: usize, stall: Duration) -> Stalled {
    on_one_thread(async {
        let ca = Ca::ephemeral("bars").unwrap();
        let mut helper = Helper::start(&ca, ProcessKind::Sender);
        let endpoint = Endpoint::client(loopback()).unwrap();
        let (mut links, mut names) = (Vec::new(), Vec::new());
        for n in 0..peers {
            let name = format!("stalls-{n}");
            let identity =
                ca.issue(&name.as_str().into(), &"bars".into(), "node", EPHEMERAL_VALIDITY);
            let config = client(&identity.unwrap(), &[ALPN]);
            let odd = say_hello(&endpoint, config, helper.at, &Hello::of(&name)).await.unwrap();
            links.push(odd);
            names.push(name);
        }
        while helper.look().up < peers {
            sleep(Duration::from_millis(10)).await;
        }
        let base_kib = helper.look().resident_kib;
        helper.tell(&format!("flood {}", names.join(" ")));
        let seen = watch(&mut helper, stall).await;
        let last = helper.tell("stop");
        assert_eq!(last.up, peers, "a link did not last: {last:?}");
        assert!(links.iter().all(|odd| odd.conn.close_reason().is_none()));
        endpoint.close(0u32.into(), b"");
        let (what, refused) = ("peers that read nothing; measured: who sends to them", last.full);
        Stalled { what, links: peers, base_kib, seen, last, refused }
    })
}

/// Callers send at full speed to a published actor that handles nothing, with short deadlines and
/// without any.
pub fn slow_actor(callers: usize, stall: Duration) -> Stalled {
    on_one_thread(async {
        let ca = Ca::ephemeral("bars").unwrap();
        let mut helper = Helper::start(&ca, ProcessKind::Slow);
        let measured = Contact {
            node: NAME.into(),
            cluster: "bars".into(),
            address: Address::Socket(helper.at),
        };
        let hubs: Vec<Arc<Hub>> = (0..callers)
            .map(|n| {
                let name = format!("calls-{n}");
                let identity =
                    ca.issue(&name.as_str().into(), &"bars".into(), "node", EPHEMERAL_VALIDITY);
                let net =
                    Net::quic(NetConfig::default(), &identity.unwrap(), Incarnation(1)).unwrap();
                let hub = Hub::new(net.clone());
                net.start(hub.clone());
                net.learn(measured.clone());
                hub
            })
            .collect();
        let up = async |helper: &mut Helper| {
            while helper.look().up < callers {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let remotes: Vec<Remote<SlowActor>> =
            hubs.iter().map(|hub| hub.remote(&NAME.into(), "slow")).collect();
        remotes.iter().for_each(|remote| remote.do_send(LoadMessage { bytes: vec![1] }).unwrap());
        up(&mut helper).await;
        let base_kib = helper.look().resident_kib;
        let refused = std::rc::Rc::new(std::cell::Cell::new(0u64));
        let tasks = tokio::task::LocalSet::new();
        let seen = tasks
            .run_until(async {
                for remote in remotes {
                    for (len, deadline) in [(40_000, 1000), (100, 1000), (4000, 200)] {
                        let (remote, refused) = (remote.clone(), refused.clone());
                        tokio::task::spawn_local(keep_calling(remote, len, deadline, refused));
                    }
                }
                watch(&mut helper, stall).await
            })
            .await;
        let last = helper.tell("free");
        drop(tasks);
        let what = "an actor that handles nothing; measured: its own process";
        for hub in &hubs {
            hub.net().close("done").await;
        }
        Stalled { what, links: callers, base_kib, seen, last, refused: refused.get() }
    })
}

/// Keeps a hundred calls of this length under way.
async fn keep_calling(
    remote: Remote<SlowActor>,
    len: usize,
    deadline_ms: u64,
    refused: std::rc::Rc<std::cell::Cell<u64>>,
) {
    const UNDER_WAY: usize = 100;
    let lanes = (0..UNDER_WAY).map(|_| {
        let (remote, refused) = (remote.clone(), refused.clone());
        tokio::task::spawn_local(async move {
            loop {
                let call = remote.send(LoadMessage { bytes: vec![1; len] });
                match call.deadline(Duration::from_millis(deadline_ms)).await {
                    Ok(()) => {}
                    Err(RemoteError::Refused { .. } | RemoteError::Full(_)) => {
                        refused.set(refused.get() + 1);
                        sleep(Duration::from_millis(10)).await;
                    }
                    // Its deadline has passed: it continues, as impatient callers do.
                    Err(_) => sleep(Duration::from_millis(1)).await,
                }
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        let _ = lane.await;
    }
}

async fn watch(helper: &mut Helper, stall: Duration) -> Vec<(f64, u64)> {
    let began = Instant::now();
    let mut seen = Vec::new();
    while began.elapsed() < stall {
        sleep(Duration::from_millis(100)).await;
        seen.push((began.elapsed().as_secs_f64(), helper.look().resident_kib));
    }
    seen
}

/// Sends to peers that read nothing are refused with an error, and the sender holds its queues and
/// no more.
#[test]
fn peers_that_read_nothing_are_not_sent_into_memory() {
    let stalled = stalled_peers(2, Duration::from_secs(4));
    println!("{} {:?}", stalled.row(), stalled.last);
    assert!(stalled.last.full > 0, "{}", stalled.row());
    assert!(stalled.above_mib() < 2.0 * 16.0 + 16.0, "{}", stalled.row());
}

/// An actor that handles nothing has a bounded queue, for any deadlines of its callers, and they
/// get errors.
#[test]
fn an_actor_that_handles_nothing_is_protected_and_its_callers_get_errors() {
    let stalled = slow_actor(2, Duration::from_secs(5));
    println!("{} {:?}", stalled.row(), stalled.last);
    assert!(stalled.refused > 0, "{}", stalled.row());
    assert!(stalled.above_mib() < 2.0 * 16.0 + 16.0, "{}", stalled.row());
}
