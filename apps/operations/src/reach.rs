//! Whether a head's address answers, and why not.
//!
//! A probe is a QUIC packet of a reserved version: an endpoint answers it with its own
//! versions, without a certificate. It has the minimum size of a QUIC Initial packet.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdSocket};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Bytes of a probe: the minimum size of a QUIC Initial packet.
const PROBE_BYTES: usize = 1200;
/// A version of QUIC that is reserved for such probes.
const RESERVED_VERSION: [u8; 4] = [0x1a, 0x2a, 0x3a, 0x4a];
/// Interval between the probes of an address.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// The number of probes of an address.
const PROBES: u32 = 4;
/// Delay between the first probes of two addresses, as between the attempts of RFC 8305.
const STAGGER: Duration = Duration::from_millis(250);

/// The wildcard address of the kind of another address.
fn wildcard(of: SocketAddr) -> IpAddr {
    if of.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// The address of this host from which datagrams to another address leave, if there is a route.
pub fn local_towards(to: SocketAddr) -> Option<IpAddr> {
    let socket = StdSocket::bind((wildcard(to), 0)).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether the loopback interface of this host is down.
pub fn is_loopback_down() -> bool {
    StdSocket::bind("127.0.0.1:0").is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
        || local_towards(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9)).is_none()
}

/// Probes an address, from an address of this host or from any.
async fn probe(from: Option<IpAddr>, to: SocketAddr) -> Result<(), Error> {
    let from = from.filter(|from| from.is_ipv6() == to.is_ipv6());
    let socket = UdpSocket::bind((from.unwrap_or_else(|| wildcard(to)), 0)).await?;
    socket.connect(to).await?;
    let mut packet = vec![0; PROBE_BYTES];
    packet[0] = 0xc0;
    packet[1..5].copy_from_slice(&RESERVED_VERSION);
    // The identifiers of both ends: their lengths, and any bytes.
    (packet[5], packet[14]) = (8, 8);
    let mut answer = [0; PROBE_BYTES];
    for _ in 0..PROBES {
        socket.send(&packet).await?;
        if let Ok(received) = timeout(PROBE_INTERVAL, socket.recv(&mut answer)).await {
            return received.map(drop);
        }
    }
    Err(ErrorKind::TimedOut.into())
}

/// Whether an address answers.
pub async fn answers(address: SocketAddr) -> bool {
    probe(None, address).await.is_ok()
}

/// The first of these addresses that answers; none if none does.
pub async fn first_answering(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let mut probes = JoinSet::new();
    for (address, place) in addresses.iter().copied().zip(0..) {
        probes.spawn(async move {
            sleep(STAGGER * place).await;
            answers(address).await.then_some(address)
        });
    }
    while let Some(ended) = probes.join_next().await {
        if let Ok(Some(answered)) = ended {
            return Some(answered);
        }
    }
    None
}

/// The first of these addresses that answers; if none does, the first one.
pub async fn first_answering_or_first(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    // Without a choice, nothing is asked.
    let answering = if addresses.len() > 1 { first_answering(addresses).await } else { None };
    answering.or_else(|| addresses.first().copied())
}

/// Why a process that listens at `bind` does not reach the head. None if the head's address
/// answers, so that the network is not the reason.
pub async fn diagnose(bind: IpAddr, head: SocketAddr) -> Option<String> {
    let kind = |is_ipv6| if is_ipv6 { "IPv6" } else { "IPv4" };
    let reaches_both = bind.is_ipv6() && bind.is_unspecified();
    if !reaches_both && bind.is_ipv6() != head.is_ipv6() {
        return Some(format!(
            "this process listens at {bind} ({}) and does not reach the head at {head} ({}): give \
            `net.bind` and `head.bind` addresses of one kind",
            kind(bind.is_ipv6()),
            kind(head.is_ipv6())
        ));
    }
    let from = Some(bind).filter(|bind| !bind.is_unspecified());
    let error = probe(from, head).await.err()?;
    Some(match error.kind() {
        ErrorKind::ConnectionRefused => format!(
            "nothing listens at {head}, the address of the head: the head has ended, or \
            `head.bind` or `head.advertise` is another one"
        ),
        ErrorKind::TimedOut => format!(
            "the head at {head} does not answer: a firewall drops UDP, its host is off, or the \
            network path carries no datagrams of {PROBE_BYTES} bytes (MTU)"
        ),
        ErrorKind::PermissionDenied => {
            format!("a firewall of this host forbids datagrams to the head at {head}")
        }
        _ if head.ip().is_loopback() && is_loopback_down() => format!(
            "the loopback interface of this host is down, and the head is at {head}: start it \
            with `ip link set lo up`"
        ),
        ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
            format!("this host has no route to the head at {head}: {error}")
        }
        ErrorKind::InvalidInput | ErrorKind::AddrNotAvailable => format!(
            "a process that listens at {bind} cannot send to the head at {head} ({error}): set \
            `net.bind` to an address of this host on that network"
        ),
        _ if error.raw_os_error() == Some(libc::EMSGSIZE) => format!(
            "the network path to the head at {head} carries no datagrams of {PROBE_BYTES} bytes: \
            raise the MTU of the interface"
        ),
        _ => format!("the head at {head} cannot be reached: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// An address of loopback at which nothing listens.
    fn free() -> SocketAddr {
        StdSocket::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap()
    }

    #[tokio::test]
    async fn an_unreachable_head_is_diagnosed() {
        let refused = diagnose(LOOPBACK, free()).await.unwrap();
        assert!(refused.contains("nothing listens at 127.0.0.1"), "{refused}");
        // It is bound, and answers nothing.
        let silent = StdSocket::bind((LOOPBACK, 0)).unwrap();
        let message = diagnose(LOOPBACK, silent.local_addr().unwrap()).await.unwrap();
        assert!(message.contains("firewall") && message.contains("MTU"), "{message}");
        let six: SocketAddr = "[::1]:47000".parse().unwrap();
        let message = diagnose(LOOPBACK, six).await.unwrap();
        assert!(message.contains("127.0.0.1 (IPv4)") && message.contains("[::1]:47000 (IPv6)"));
        let four = diagnose(Ipv6Addr::LOCALHOST.into(), free()).await.unwrap();
        assert!(four.contains("addresses of one kind"), "{four}");
        assert_eq!(local_towards(free()), Some(LOOPBACK));
    }

    #[tokio::test]
    async fn the_first_address_that_answers_is_used() {
        let silent = StdSocket::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
        let open = UdpSocket::bind((LOOPBACK, 0)).await.unwrap();
        let address = open.local_addr().unwrap();
        let answer = tokio::spawn(async move {
            let mut packet = [0; 2000];
            let (bytes, from) = open.recv_from(&mut packet).await.unwrap();
            assert_eq!(bytes, PROBE_BYTES);
            open.send_to(&packet[..20], from).await.unwrap();
            open
        });
        assert_eq!(first_answering_or_first(&[silent, address]).await, Some(address));
        let open = answer.await.unwrap();
        drop(open);
        // None answers, or there is no choice.
        assert_eq!(first_answering_or_first(&[silent, address]).await, Some(silent));
        assert_eq!(first_answering_or_first(&[address]).await, Some(address));
        assert_eq!(first_answering_or_first(&[]).await, None);
    }
}
