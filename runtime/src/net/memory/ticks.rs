//! Timers of simulated endpoints: none goes off in the moment in which it is set.
//!
//! Under a paused clock a moment lasts until nothing is left to do in it. Quinn's pacer waits in proportion to the round trip, which on
//! links without delay is some nanoseconds; a wait that rounds to none is set anew at once, and the moment would never end.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use tokio::time::Instant;

/// What a timer lasts at least.
const LEAST: Duration = Duration::from_micros(1);

/// Tokio's runtime with such timers.
#[derive(Debug)]
pub(super) struct Ticking;

fn not_now(at: std::time::Instant) -> std::time::Instant {
    at.max((Instant::now() + LEAST).into_std())
}

impl Runtime for Ticking {
    fn new_timer(&self, at: std::time::Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Tick(TokioRuntime.new_timer(not_now(at))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> std::time::Instant {
        TokioRuntime.now()
    }
}

#[derive(Debug)]
struct Tick(Pin<Box<dyn AsyncTimer>>);

impl AsyncTimer for Tick {
    fn reset(mut self: Pin<&mut Self>, at: std::time::Instant) {
        self.0.as_mut().reset(not_now(at));
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_timer_for_now_goes_off_later() {
        let start = Instant::now();
        let mut timer = Ticking.new_timer(start.into_std());
        for _ in 0..3 {
            let before = Instant::now();
            std::future::poll_fn(|context| timer.as_mut().poll(context)).await;
            assert!(Instant::now() > before);
            timer.as_mut().reset(start.into_std());
        }
    }
}
