//! Who is let in to an endpoint while others are under way: pure counts, for the links' endpoint and for the door.
//!
//! Whoever begins a handshake and never ends it holds a place for as long as it is given; so nobody who has not shown where it is gets
//! one of those who have, and no host gets all. Must not know sockets, nor what the callers want.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// How many callers may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// While there are so many, one more must show first that it is where it says.
    pub unshown: usize,
    /// Of one host.
    pub of_host: usize,
    /// In all.
    pub all: usize,
}

/// What is done with somebody who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// It is let in.
    Take,
    /// It must show first that it is where it says (QUIC's Retry): a spoofed packet costs one answer.
    Retry,
    /// There is no place.
    Refuse,
}

/// The callers under way, by host.
#[derive(Debug, Default)]
pub(super) struct Callers {
    hosts: BTreeMap<IpAddr, usize>,
    all: usize,
}

impl Callers {
    /// What is done with one more, from there; `shown`: it has shown that it is.
    pub fn entry(&self, places: Places, from: SocketAddr, shown: bool) -> Entry {
        match shown {
            false if self.all >= places.unshown => Entry::Retry,
            _ if self.all >= places.all || self.of_host(from) >= places.of_host => Entry::Refuse,
            _ => Entry::Take,
        }
    }

    /// One is let in.
    pub fn comes(&mut self, from: SocketAddr) {
        *self.hosts.entry(host(from)).or_default() += 1;
        self.all += 1;
    }

    /// One that was let in has come to its end.
    pub fn goes(&mut self, from: SocketAddr) {
        let host = host(from);
        let Some(count) = self.hosts.get_mut(&host) else { return };
        *count -= 1;
        self.all -= 1;
        if *count == 0 {
            self.hosts.remove(&host);
        }
    }

    /// How many there are.
    pub fn all(&self) -> usize {
        self.all
    }

    /// How many of them are of this one's host.
    pub fn of_host(&self, from: SocketAddr) -> usize {
        self.hosts.get(&host(from)).copied().unwrap_or(0)
    }
}

/// Whose places a caller takes: those of its address, or, where one host has many, of its network.
fn host(from: SocketAddr) -> IpAddr {
    match from.ip().to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX))),
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACES: Places = Places { unshown: 2, of_host: 4, all: 8 };

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 7000))
    }

    fn with(hosts: &[u8]) -> Callers {
        let mut callers = Callers::default();
        hosts.iter().for_each(|host| callers.comes(at(*host)));
        callers
    }

    #[test]
    fn who_has_not_shown_where_it_is_gets_no_place_of_those_who_have() {
        let unshown = |hosts: &[u8]| with(hosts).entry(PLACES, at(9), false);
        assert_eq!(unshown(&[]), Entry::Take);
        assert_eq!(unshown(&[1]), Entry::Take);
        assert_eq!(unshown(&[1, 2]), Entry::Retry);
        assert_eq!(unshown(&[1; 100]), Entry::Retry);
    }

    #[test]
    fn all_places_are_never_one_hosts() {
        let shown = |hosts: &[u8], from| with(hosts).entry(PLACES, at(from), true);
        assert_eq!(shown(&[1; 3], 1), Entry::Take);
        assert_eq!(shown(&[1; 4], 1), Entry::Refuse);
        assert_eq!(shown(&[1; 4], 2), Entry::Take);
        assert_eq!(shown(&[1, 1, 1, 1, 2, 2, 2], 2), Entry::Take);
        assert_eq!(shown(&[1, 1, 1, 1, 2, 2, 2, 2], 3), Entry::Refuse);
    }

    #[test]
    fn a_host_of_many_addresses_is_one() {
        let of = |text: &str| host(text.parse().unwrap());
        assert_eq!(of("[2001:db8:0:1::1]:5"), of("[2001:db8:0:1:ffff::2]:6"));
        assert_ne!(of("[2001:db8:0:1::1]:5"), of("[2001:db8:0:2::1]:5"));
        assert_eq!(of("[::ffff:10.0.0.1]:5"), of("10.0.0.1:9"));
        assert_ne!(of("10.0.0.1:5"), of("10.0.0.2:5"));
    }

    proptest! {
        /// Whoever comes is counted once until it goes, and nothing is left of those who have gone.
        #[test]
        fn counts_are_those_of_who_is_there(steps in prop::collection::vec((0u8..4, any::<bool>()), 0..100)) {
            let (mut callers, mut there) = (Callers::default(), Vec::new());
            for (host, comes) in steps {
                match there.iter().position(|other| *other == host) {
                    Some(found) if !comes => {
                        there.remove(found);
                        callers.goes(at(host));
                    }
                    _ => {
                        there.push(host);
                        callers.comes(at(host));
                    }
                }
                prop_assert_eq!(callers.all(), there.len());
                for one in 0..4 {
                    let count = there.iter().filter(|other| **other == one).count();
                    prop_assert_eq!(callers.of_host(at(one)), count);
                }
            }
            there.iter().for_each(|host| callers.goes(at(*host)));
            prop_assert_eq!(callers.hosts.len(), 0);
        }
    }
}
