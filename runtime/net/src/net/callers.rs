//! Admission of callers to an endpoint while their handshakes are under way: plain counts, for
//! links and for the join endpoint.
//!
//! A caller that never completes its handshake holds a slot until its timeout. Callers without a
//! validated address therefore cannot take the last slots, and no host can take all. This module
//! knows neither sockets nor the callers' purpose.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Maximum numbers of callers under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdmissionLimits {
    /// From this total on, a further caller must validate its address first.
    pub unvalidated: usize,
    /// Maximum number of callers of one host.
    pub of_host: usize,
    /// Maximum number of callers in total.
    pub all: usize,
}

/// The decision about a new caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The caller is admitted.
    Accept,
    /// The caller must validate its address first (QUIC's Retry), so that a spoofed packet costs
    /// one reply.
    Retry,
    /// The caller is refused, because no slot is free.
    Refuse,
}

/// The callers under way, counted by host.
#[derive(Debug, Default)]
pub(super) struct Callers {
    hosts: BTreeMap<IpAddr, usize>,
    all: usize,
}

impl Callers {
    /// Decides about a new caller. `validated` states whether QUIC has validated its address.
    pub fn decide(&self, limits: AdmissionLimits, from: SocketAddr, validated: bool) -> Admission {
        match validated {
            false if self.all >= limits.unvalidated => Admission::Retry,
            _ if self.all >= limits.all || self.of_host(from) >= limits.of_host => {
                Admission::Refuse
            }
            _ => Admission::Accept,
        }
    }

    /// Counts an admitted caller.
    pub fn add(&mut self, from: SocketAddr) {
        *self.hosts.entry(host(from)).or_default() += 1;
        self.all += 1;
    }

    /// Removes an admitted caller whose handshake has ended.
    pub fn remove(&mut self, from: SocketAddr) {
        let host = host(from);
        let Some(count) = self.hosts.get_mut(&host) else { return };
        *count -= 1;
        self.all -= 1;
        if *count == 0 {
            self.hosts.remove(&host);
        }
    }

    /// Number of callers under way.
    pub fn all(&self) -> usize {
        self.all
    }

    /// Number of callers under way from the host of this address.
    pub fn of_host(&self, from: SocketAddr) -> usize {
        self.hosts.get(&host(from)).copied().unwrap_or(0)
    }
}

/// The key under which a caller is counted: its address, or its /64 network, of which one IPv6 host
/// has many addresses.
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

    const LIMITS: AdmissionLimits = AdmissionLimits { unvalidated: 2, of_host: 4, all: 8 };

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 7000))
    }

    fn with(hosts: &[u8]) -> Callers {
        let mut callers = Callers::default();
        hosts.iter().for_each(|host| callers.add(at(*host)));
        callers
    }

    #[test]
    fn unvalidated_callers_cannot_take_the_slots_of_validated_ones() {
        let unvalidated = |hosts: &[u8]| with(hosts).decide(LIMITS, at(9), false);
        assert_eq!(unvalidated(&[]), Admission::Accept);
        assert_eq!(unvalidated(&[1]), Admission::Accept);
        assert_eq!(unvalidated(&[1, 2]), Admission::Retry);
        assert_eq!(unvalidated(&[1; 100]), Admission::Retry);
    }

    #[test]
    fn one_host_cannot_take_all_slots() {
        let validated = |hosts: &[u8], from| with(hosts).decide(LIMITS, at(from), true);
        assert_eq!(validated(&[1; 3], 1), Admission::Accept);
        assert_eq!(validated(&[1; 4], 1), Admission::Refuse);
        assert_eq!(validated(&[1; 4], 2), Admission::Accept);
        assert_eq!(validated(&[1, 1, 1, 1, 2, 2, 2], 2), Admission::Accept);
        assert_eq!(validated(&[1, 1, 1, 1, 2, 2, 2, 2], 3), Admission::Refuse);
    }

    #[test]
    fn a_host_with_many_addresses_counts_once() {
        let of = |text: &str| host(text.parse().unwrap());
        assert_eq!(of("[2001:db8:0:1::1]:5"), of("[2001:db8:0:1:ffff::2]:6"));
        assert_ne!(of("[2001:db8:0:1::1]:5"), of("[2001:db8:0:2::1]:5"));
        assert_eq!(of("[::ffff:10.0.0.1]:5"), of("10.0.0.1:9"));
        assert_ne!(of("10.0.0.1:5"), of("10.0.0.2:5"));
    }

    proptest! {
        /// Each caller is counted until its removal, and removed hosts leave no entry.
        #[test]
        fn counts_match_the_callers_under_way(
            steps in prop::collection::vec((0u8..4, any::<bool>()), 0..100)
        ) {
            let (mut callers, mut present) = (Callers::default(), Vec::new());
            for (host, add) in steps {
                match present.iter().position(|other| *other == host) {
                    Some(found) if !add => {
                        present.remove(found);
                        callers.remove(at(host));
                    }
                    _ => {
                        present.push(host);
                        callers.add(at(host));
                    }
                }
                prop_assert_eq!(callers.all(), present.len());
                for one in 0..4 {
                    let count = present.iter().filter(|other| **other == one).count();
                    prop_assert_eq!(callers.of_host(at(one)), count);
                }
            }
            present.iter().for_each(|host| callers.remove(at(*host)));
            prop_assert_eq!(callers.hosts.len(), 0);
        }
    }
}
