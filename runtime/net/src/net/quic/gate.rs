//! A socket that sends only while its process may act in its role.
//!
//! A process that was stopped for a while continues in the middle of its work. It must not send
//! what another process of the same role may have contradicted meanwhile. So the question is asked
//! before each datagram. A closed gate loses datagrams, as a network does.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

/// Whether a socket may send now.
pub type GateCondition = Arc<dyn Fn() -> bool + Send + Sync>;

/// A socket behind a condition.
struct Gate {
    inner: Arc<dyn AsyncUdpSocket>,
    is_open: GateCondition,
}

/// Wraps a socket, which loses its outgoing datagrams while the condition does not hold.
pub fn gated(inner: Arc<dyn AsyncUdpSocket>, is_open: GateCondition) -> Arc<dyn AsyncUdpSocket> {
    Arc::new(Gate { inner, is_open })
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl AsyncUdpSocket for Gate {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if (self.is_open)() { self.inner.try_send(transmit) } else { Ok(()) }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::UdpSocket;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::net::quic::plain_socket;

    #[tokio::test]
    async fn a_closed_gate_loses_what_is_sent() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = plain_socket(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        let open = Arc::new(AtomicBool::new(false));
        let is_open = Arc::clone(&open);
        let gate = gated(sender, Arc::new(move || is_open.load(Ordering::Relaxed)));
        let destination = receiver.local_addr().unwrap();
        for contents in [&b"closed"[..], b"open"] {
            let transmit =
                Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None };
            // The runtime may not know yet that the socket is writable.
            while let Err(error) = gate.try_send(&transmit) {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                let mut poller = Arc::clone(&gate).create_io_poller();
                poll_fn(|cx| poller.as_mut().poll_writable(cx)).await.unwrap();
            }
            open.store(true, Ordering::Relaxed);
        }
        let mut bytes = [0; 16];
        let length = receiver.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"open");
    }
}
