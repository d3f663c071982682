//! The clock of simulated endpoints: no two readings are equal.
//!
//! Under a paused clock a moment lasts until nothing is left to do in it. Quinn's pacer waits in proportion to the round trip, which on
//! links without delay is some nanoseconds; a wait that rounds to none is over at once, and as no time passed it begins anew, for ever.
//! So reading this clock takes a nanosecond, as it takes some on every machine.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};

/// What a reading takes, where tokio's clock stands still.
const TICK: Duration = Duration::from_nanos(1);

/// Tokio's runtime with such a clock.
#[derive(Debug, Default)]
pub(super) struct Ticking {
    last: Mutex<Option<std::time::Instant>>,
}

impl Runtime for Ticking {
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
    async fn time_passes_from_reading_to_reading() {
        let clock = Ticking::default();
        let first = clock.now();
        assert_eq!([clock.now(), clock.now()], [first + TICK, first + 2 * TICK]);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(clock.now(), first + Duration::from_millis(1));
    }
}
