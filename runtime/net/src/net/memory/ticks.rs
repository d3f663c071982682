//! The clock of simulated endpoints, whose readings all differ.
//!
//! Under a paused clock an instant lasts until no task is ready. Quinn's pacer waits in proportion
//! to the round trip, which is some nanoseconds on links without delay. A wait that rounds to zero
//! ends immediately, and without progress of time it would repeat forever. Each reading of this
//! clock therefore takes a nanosecond.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};

/// Duration of a reading while tokio's clock stands still.
const TICK: Duration = Duration::from_nanos(1);

/// Tokio's runtime with this clock.
#[derive(Debug, Default)]
pub(super) struct TickingRuntime {
    last: Mutex<Option<std::time::Instant>>,
}

impl Runtime for TickingRuntime {
    fn new_timer(&self, at: std::time::Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> std::time::Instant {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = TokioRuntime.now();
        let now = last.map_or(now, |last| now.max(last + TICK));
        *last = Some(now);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_reading_advances_the_time() {
        let clock = TickingRuntime::default();
        let first = clock.now();
        assert_eq!([clock.now(), clock.now()], [first + TICK, first + 2 * TICK]);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(clock.now(), first + Duration::from_millis(1));
    }
}
