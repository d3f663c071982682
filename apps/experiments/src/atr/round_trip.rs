//! Round trips of messages over a simulated link, for Figure 8: real QUIC endpoints on the
//! simulation's clock.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use springtide_cli::exit::Failed;
use springtide_runtime::id::{Incarnation, Peer};
use springtide_runtime::net::memory::{LinkUnit, MemoryConfig, MemoryNet};
use springtide_runtime::net::{Class, LinkProfile, Net, NetworkHandler};
use springtide_runtime::wire::Kind;
use springtide_simulator::simulate;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The size of an answer, bytes.
const ANSWER: usize = 64;
/// The time after which an answer counts as lost.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Answers each message with a small one.
#[derive(Default)]
struct Answering(OnceLock<Net>);

impl NetworkHandler for Answering {
    fn frame(&self, from: &Peer, kind: Kind, _: Bytes) {
        if let Some(net) = self.0.get() {
            // A refused answer shows as a round trip that does not end.
            let _ = net.send(&from.node, Class::Control, kind, vec![0; ANSWER]);
        }
    }
}

/// Waits for one answer.
#[derive(Default)]
struct PendingAnswer(Mutex<Option<oneshot::Sender<()>>>);

impl NetworkHandler for PendingAnswer {
    fn frame(&self, _: &Peer, _: Kind, _: Bytes) {
        let waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = waiting.map(|waiting| waiting.send(()));
    }
}

/// The seconds of a round trip of each size in bytes over a link.
///
/// # Errors
/// A message is refused, or its answer does not come.
pub(super) fn round_trips(link: &LinkProfile, sizes: &[usize]) -> Result<Vec<f64>, Failed> {
    simulate(|| async {
        let config = MemoryConfig { wire: LinkUnit::quic(), ..MemoryConfig::default() };
        let network = MemoryNet::with(1, config);
        let peer = |name: &str| Peer {
            node: name.into(),
            incarnation: Incarnation(1),
            cluster: name.into(),
        };
        network.set_links(&"master".into(), &"worker".into(), link);
        let master = network.join(peer("master")).map_err(Failed::failure)?;
        let worker = network.join(peer("worker")).map_err(Failed::failure)?;
        master.learn(worker.contact());
        worker.learn(master.contact());
        let (asking, answering) =
            (Arc::new(PendingAnswer::default()), Arc::new(Answering::default()));
        let _ = answering.0.set(worker.clone());
        master.start(asking.clone());
        worker.start(answering);
        let mut times = Vec::new();
        // The first message waits until the link is up, and is not counted.
        for size in [&sizes[..1], sizes].concat() {
            let (sender, answer) = oneshot::channel();
            *asking.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
            let began = Instant::now();
            master
                .send(&"worker".into(), Class::Control, Kind::TELL, vec![0; size])
                .map_err(Failed::failure)?;
            let answered = tokio::time::timeout(TIMEOUT, answer).await;
            if !matches!(answered, Ok(Ok(()))) {
                return Err(Failed::failure("a message over the simulated link had no answer"));
            }
            times.push(began.elapsed().as_secs_f64());
        }
        Ok(times.split_off(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_takes_both_delays_and_the_time_of_its_bytes() {
        let link = LinkProfile::default().delay(Duration::from_millis(50)).rate(100_000);
        let times = round_trips(&link, &[100, 10_000]).unwrap();
        assert!((0.1..0.13).contains(&times[0]), "{times:?}");
        assert!((0.2..0.35).contains(&times[1]), "{times:?}");
    }
}
