//! The border of a cluster: an address translator (NAT) and a stateful firewall between its nodes
//! and the other clusters.
//!
//! All functions are pure: callers pass the time. This module depends on neither the packets'
//! source nor their way.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Time without packets after which a flow is forgotten, by protocol: the least of RFC 4787 and RFC
/// 5382.
const UDP_TIMEOUT: Duration = Duration::from_secs(120);
const TCP_TIMEOUT: Duration = Duration::from_secs(7440);
const ICMP_TIMEOUT: Duration = Duration::from_secs(60);
/// The first port of a translator that needs another one than the node's.
const FIRST_PORT: u16 = 20_000;
/// The maximum number of flows of a border; further ones are blocked.
const FLOWS_MAX: usize = 1 << 16;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The choice of a node's port by an address translator (RFC 4787, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NatMapping {
    /// One port for all destinations: peers behind such translators can connect by hole punching.
    EndpointIndependent,
    /// Another port for each destination (a "symmetric" NAT): hole punching fails.
    EndpointDependent,
}

impl FromStr for NatMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "endpoint-independent" => Ok(Self::EndpointIndependent),
            "endpoint-dependent" => Ok(Self::EndpointDependent),
            _ => Err(format!(
                "must be endpoint-independent, endpoint-dependent or none, found {text:?}"
            )),
        }
    }
}

impl fmt::Display for NatMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EndpointIndependent => "endpoint-independent",
            Self::EndpointDependent => "endpoint-dependent",
        })
    }
}

/// The rules of a border. Without any, all packets pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BorderRules {
    /// The address translator. It lets in only answers, as a firewall does.
    pub nat: Option<NatMapping>,
    /// Whether a stateful firewall lets in only answers to packets that went out.
    pub firewall: bool,
}

impl BorderRules {
    /// Whether only answers may enter.
    pub fn filters(&self) -> bool {
        self.firewall || self.nat.is_some()
    }

    /// The words by which `wan set` sets these rules.
    pub fn words(&self) -> String {
        let nat = self.nat.map(|mapping| format!("nat={mapping}"));
        let firewall = self.firewall.then(|| "firewall=on".to_owned());
        nat.into_iter().chain(firewall).collect::<Vec<_>>().join(" ")
    }
}

/// An address with a port; ICMP echoes have their identifier as port.
type Endpoint = ([u8; 4], u16);

/// A flow as its inner node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FlowKey {
    protocol: u8,
    inner: Endpoint,
    outer: Endpoint,
}

/// What identifies a port of the translator: the outer end counts only if it depends on that.
type MappingKey = (u8, Endpoint, Option<Endpoint>);

/// A port of the translator, for the inner endpoint that has it.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    key: MappingKey,
    used: Duration,
}

/// The state of a cluster's border.
#[derive(Clone, Debug)]
pub struct Border {
    rules: BorderRules,
    /// The address of the translator.
    public: [u8; 4],
    /// The time of the last packet of each flow.
    flows: BTreeMap<FlowKey, Duration>,
    ports: BTreeMap<MappingKey, u16>,
    mappings: BTreeMap<(u8, u16), Mapping>,
    next_port: u16,
}

/// A packet may not pass the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocked;

fn timeout(protocol: u8) -> Duration {
    match protocol {
        TCP => TCP_TIMEOUT,
        UDP => UDP_TIMEOUT,
        _ => ICMP_TIMEOUT,
    }
}

/// The places of a packet's ports, if it has any.
struct TransportLayout {
    protocol: u8,
    /// The offset of the source port.
    source_at: usize,
    /// The offset of the destination port; that of the source for an ICMP echo.
    destination_at: usize,
    /// The offset of the checksum of the transport protocol.
    checksum_at: usize,
}

impl TransportLayout {
    /// The layout of an IPv4 packet; none for other protocols and later fragments.
    fn of(packet: &[u8]) -> Option<Self> {
        let header = usize::from(packet.first()? & 15) * 4;
        if header < 20 {
            return None;
        }
        let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1fff;
        if fragment != 0 {
            return None;
        }
        let protocol = *packet.get(9)?;
        let (source, destination, checksum) = match protocol {
            TCP => (0, 2, 16),
            UDP => (0, 2, 6),
            // Echo and its reply have an identifier.
            ICMP if matches!(packet.get(header)?, 0 | 8) => (4, 4, 2),
            _ => return None,
        };
        let least = header + (checksum + 2).max(destination + 2);
        (packet.len() >= least).then_some(Self {
            protocol,
            source_at: header + source,
            destination_at: header + destination,
            checksum_at: header + checksum,
        })
    }
}

fn address(packet: &[u8], at: usize) -> [u8; 4] {
    [packet[at], packet[at + 1], packet[at + 2], packet[at + 3]]
}

/// The far end of a packet. An echo has one identifier, which belongs to the near end.
fn outer_end(
    packet: &[u8],
    layout: &TransportLayout,
    address_at: usize,
    port_at: usize,
) -> Endpoint {
    let number = if layout.protocol == ICMP { 0 } else { port(packet, port_at) };
    (address(packet, address_at), number)
}

fn port(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

/// Replaces two bytes, and updates the checksums at these offsets (RFC 1624).
fn replace(packet: &mut [u8], at: usize, new: [u8; 2], checksums: &[usize]) {
    let old = port(packet, at);
    packet[at..at + 2].copy_from_slice(&new);
    for place in checksums {
        let mut sum = u32::from(!port(packet, *place));
        sum += u32::from(!old) + u32::from(u16::from_be_bytes(new));
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        // At most 16 bits are left.
        packet[*place..place + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    }
}

/// The offsets of an IPv4 header's source, destination and checksum.
const SOURCE: usize = 12;
const DESTINATION: usize = 16;
const HEADER_CHECKSUM: usize = 10;

/// Replaces an end of a packet.
fn readdress(
    packet: &mut [u8],
    layout: &TransportLayout,
    address_at: usize,
    (to, number): Endpoint,
) {
    let port_at = if address_at == SOURCE { layout.source_at } else { layout.destination_at };
    let is_checked = !(layout.protocol == UDP && port(packet, layout.checksum_at) == 0);
    // The checksum of ICMP does not cover addresses.
    let covers_addresses = is_checked && layout.protocol != ICMP;
    let both = [HEADER_CHECKSUM, layout.checksum_at];
    let checksums = if covers_addresses { &both[..] } else { &both[..1] };
    replace(packet, address_at, [to[0], to[1]], checksums);
    replace(packet, address_at + 2, [to[2], to[3]], checksums);
    let checksums = if is_checked { &both[1..] } else { &[] };
    replace(packet, port_at, number.to_be_bytes(), checksums);
}

impl Border {
    /// A border that lets all packets pass. `public` is the address of its translator.
    pub fn new(public: [u8; 4]) -> Self {
        Self {
            rules: BorderRules::default(),
            public,
            flows: BTreeMap::new(),
            ports: BTreeMap::new(),
            mappings: BTreeMap::new(),
            next_port: FIRST_PORT,
        }
    }

    /// The rules of the border.
    pub fn rules(&self) -> BorderRules {
        self.rules
    }

    /// The address of the translator.
    pub fn public(&self) -> [u8; 4] {
        self.public
    }

    /// Sets the rules. The border forgets all flows, as a device that restarts.
    pub fn set_rules(&mut self, rules: BorderRules) {
        *self = Self { rules, ..Self::new(self.public) };
    }

    /// The number of flows that may receive answers.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Lets an IPv4 packet out, with the translator's address if there is one.
    ///
    /// # Errors
    /// The translator has no port left, or does not know the packet's protocol.
    pub fn outgoing(&mut self, packet: &mut [u8], now: Duration) -> Result<(), Blocked> {
        if !self.rules.filters() {
            return Ok(());
        }
        let Some(layout) = TransportLayout::of(packet) else {
            return self.other(packet, (SOURCE, DESTINATION), true, now);
        };
        let inner = (address(packet, SOURCE), port(packet, layout.source_at));
        let outer = outer_end(packet, &layout, DESTINATION, layout.destination_at);
        let key = FlowKey { protocol: layout.protocol, inner, outer };
        self.admit(key, now)?;
        if let Some(nat) = self.rules.nat {
            let number = self.port_for(nat, key, now)?;
            readdress(packet, &layout, SOURCE, (self.public, number));
        }
        Ok(())
    }

    /// Lets an IPv4 packet in, with the node's address if there is a translator.
    ///
    /// # Errors
    /// It is not an answer to a packet that went out.
    pub fn incoming(&mut self, packet: &mut [u8], now: Duration) -> Result<(), Blocked> {
        if !self.rules.filters() {
            return Ok(());
        }
        let Some(layout) = TransportLayout::of(packet) else {
            return self.other(packet, (DESTINATION, SOURCE), false, now);
        };
        let outer = outer_end(packet, &layout, SOURCE, layout.source_at);
        let to = (address(packet, DESTINATION), port(packet, layout.destination_at));
        let inner = match self.rules.nat {
            None => to,
            Some(_) if to.0 != self.public => return Err(Blocked),
            Some(_) => {
                let mapping = self.mappings.get(&(layout.protocol, to.1)).ok_or(Blocked)?;
                let (_, inner, only) = mapping.key;
                if only.is_some_and(|only| only != outer) {
                    return Err(Blocked);
                }
                inner
            }
        };
        let key = FlowKey { protocol: layout.protocol, inner, outer };
        let last = self.flows.get_mut(&key).ok_or(Blocked)?;
        if now.saturating_sub(*last) > timeout(layout.protocol) {
            return Err(Blocked);
        }
        *last = now.max(*last);
        if self.rules.nat.is_some() {
            readdress(packet, &layout, DESTINATION, inner);
        }
        Ok(())
    }

    /// Judges a packet without ports by its addresses. A translator cannot pass it on.
    fn other(
        &mut self,
        packet: &[u8],
        (inner_at, outer_at): (usize, usize),
        is_out: bool,
        now: Duration,
    ) -> Result<(), Blocked> {
        if self.rules.nat.is_some() || packet.len() < DESTINATION + 4 {
            return Err(Blocked);
        }
        let [inner, outer] = [inner_at, outer_at].map(|at| address(packet, at));
        if is_out {
            let key = FlowKey { protocol: 0, inner: (inner, 0), outer: (outer, 0) };
            return self.admit(key, now);
        }
        let is_known = self.flows.iter().any(|(key, last)| {
            (key.inner.0, key.outer.0) == (inner, outer)
                && now.saturating_sub(*last) <= timeout(key.protocol)
        });
        if is_known { Ok(()) } else { Err(Blocked) }
    }

    fn admit(&mut self, key: FlowKey, now: Duration) -> Result<(), Blocked> {
        if !self.flows.contains_key(&key) && self.flows.len() >= FLOWS_MAX {
            self.forget(now);
            if self.flows.len() >= FLOWS_MAX {
                return Err(Blocked);
            }
        }
        self.flows.insert(key, now);
        Ok(())
    }

    /// Forgets flows and ports without recent packets.
    fn forget(&mut self, now: Duration) {
        self.flows.retain(|key, last| now.saturating_sub(*last) <= timeout(key.protocol));
        self.mappings.retain(|(protocol, _), mapping| {
            now.saturating_sub(mapping.used) <= timeout(*protocol)
        });
        let mappings = &self.mappings;
        self.ports.retain(|(protocol, ..), number| mappings.contains_key(&(*protocol, *number)));
    }

    /// The translator's port for a flow.
    fn port_for(&mut self, nat: NatMapping, key: FlowKey, now: Duration) -> Result<u16, Blocked> {
        let FlowKey { protocol, inner, outer } = key;
        let outer = (nat == NatMapping::EndpointDependent).then_some(outer);
        let mapping_key = (protocol, inner, outer);
        if let Some(number) = self.ports.get(&mapping_key) {
            if let Some(mapping) = self.mappings.get_mut(&(protocol, *number)) {
                mapping.used = now;
            }
            return Ok(*number);
        }
        // The node's own port if it is free and serves all destinations, else the next free one.
        let is_kept = nat == NatMapping::EndpointIndependent
            && !self.mappings.contains_key(&(protocol, inner.1));
        let number = if is_kept { inner.1 } else { self.free_port(protocol, now)? };
        self.ports.insert(mapping_key, number);
        self.mappings.insert((protocol, number), Mapping { key: mapping_key, used: now });
        Ok(number)
    }

    fn free_port(&mut self, protocol: u8, now: Duration) -> Result<u16, Blocked> {
        self.forget(now);
        for _ in FIRST_PORT..=u16::MAX {
            let number = self.next_port;
            self.next_port = number.checked_add(1).unwrap_or(FIRST_PORT);
            if !self.mappings.contains_key(&(protocol, number)) {
                return Ok(number);
            }
        }
        Err(Blocked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: [u8; 4] = [10, 77, 1, 253];
    const A: [u8; 4] = [10, 77, 1, 1];
    const B: [u8; 4] = [10, 77, 2, 1];
    const C: [u8; 4] = [10, 77, 3, 1];
    const START: Duration = Duration::ZERO;

    fn sum(bytes: &[u8]) -> u32 {
        bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
            .sum()
    }

    fn folded(mut sum: u32) -> u16 {
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    /// The sum over the pseudo header and the datagram.
    fn transport_sum(packet: &[u8]) -> u16 {
        let len = packet.len() as u32 - 20;
        folded(sum(&packet[12..20]) + u32::from(packet[9]) + len + sum(&packet[20..]))
    }

    /// A packet of UDP or TCP with valid checksums.
    fn packet(protocol: u8, from: Endpoint, to: Endpoint) -> Vec<u8> {
        let mut packet = vec![0; 20 + 24];
        packet[0] = 0x45;
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&from.0);
        packet[16..20].copy_from_slice(&to.0);
        packet[20..22].copy_from_slice(&from.1.to_be_bytes());
        packet[22..24].copy_from_slice(&to.1.to_be_bytes());
        packet[43] = 7;
        let checksum_at = if protocol == TCP { 36 } else { 26 };
        let transport = !transport_sum(&packet);
        packet[checksum_at..checksum_at + 2].copy_from_slice(&transport.to_be_bytes());
        let header = !folded(sum(&packet[..20]));
        packet[10..12].copy_from_slice(&header.to_be_bytes());
        packet
    }

    fn ends(packet: &[u8]) -> (Endpoint, Endpoint) {
        ((address(packet, 12), port(packet, 20)), (address(packet, 16), port(packet, 22)))
    }

    fn is_valid(packet: &[u8]) -> bool {
        folded(sum(&packet[..20])) == 0xffff && transport_sum(packet) == 0xffff
    }

    #[test]
    fn a_firewall_lets_only_answers_in() {
        let mut border = Border::new(PUBLIC);
        let mut inbound = packet(UDP, (B, 9), (A, 4000));
        assert_eq!(border.incoming(&mut inbound, START), Ok(()));
        border.set_rules(BorderRules { nat: None, firewall: true });
        assert_eq!(border.incoming(&mut inbound, START), Err(Blocked));
        let mut out = packet(UDP, (A, 4000), (B, 9));
        let before = out.clone();
        assert_eq!(border.outgoing(&mut out, START), Ok(()));
        assert_eq!(out, before);
        assert_eq!(border.incoming(&mut inbound, START), Ok(()));
        // Neither another port nor another host may answer, nor may anyone after the timeout.
        for (from, to) in [((B, 10), (A, 4000)), ((C, 9), (A, 4000)), ((B, 9), (A, 4001))] {
            assert_eq!(border.incoming(&mut packet(UDP, from, to), START), Err(Blocked));
        }
        assert_eq!(border.incoming(&mut packet(TCP, (B, 9), (A, 4000)), START), Err(Blocked));
        let late = Duration::from_secs(121);
        assert_eq!(border.incoming(&mut inbound, late), Err(Blocked));
        assert_eq!(border.flows(), 1);
    }

    #[test]
    fn a_translator_replaces_ends_and_keeps_checksums() {
        for (mapping, keeps) in
            [(NatMapping::EndpointIndependent, true), (NatMapping::EndpointDependent, false)]
        {
            for protocol in [UDP, TCP] {
                let mut border = Border::new(PUBLIC);
                border.set_rules(BorderRules { nat: Some(mapping), firewall: false });
                let mut seen = Vec::new();
                for to in [(B, 9), (C, 9), (B, 9)] {
                    let mut out = packet(protocol, (A, 4000), to);
                    border.outgoing(&mut out, START).expect("it passes");
                    assert!(is_valid(&out));
                    let (from, there) = ends(&out);
                    assert_eq!((from.0, there), (PUBLIC, to));
                    seen.push(from.1);
                    // The answer reaches the node.
                    let mut answer = packet(protocol, to, from);
                    border.incoming(&mut answer, START).expect("it is an answer");
                    assert_eq!(ends(&answer), (to, (A, 4000)));
                    assert!(is_valid(&answer));
                }
                assert_eq!(seen[0] == seen[1], keeps, "{mapping}: {seen:?}");
                assert_eq!(seen[0], seen[2]);
                // Hole punching: a peer that was sent to may use the port that another one sees.
                let mut hole = packet(protocol, (C, 9), (PUBLIC, seen[0]));
                assert_eq!(border.incoming(&mut hole, START).is_ok(), keeps, "{mapping}");
                let mut direct = packet(protocol, (B, 9), (A, 4000));
                assert_eq!(border.incoming(&mut direct, START), Err(Blocked));
            }
        }
    }

    #[test]
    fn echoes_pass_a_translator_and_their_replies_come_back() {
        let mut border = Border::new(PUBLIC);
        let nat = Some(NatMapping::EndpointDependent);
        border.set_rules(BorderRules { nat, firewall: false });
        let echo = |kind: u8, from: [u8; 4], to: [u8; 4], number: u16| {
            let mut packet = vec![0; 28];
            (packet[0], packet[9], packet[20]) = (0x45, ICMP, kind);
            packet[12..16].copy_from_slice(&from);
            packet[16..20].copy_from_slice(&to);
            packet[24..26].copy_from_slice(&number.to_be_bytes());
            let checksum = !folded(sum(&packet[20..]));
            packet[22..24].copy_from_slice(&checksum.to_be_bytes());
            packet
        };
        let mut out = echo(8, A, B, 77);
        border.outgoing(&mut out, START).expect("it passes");
        assert_eq!((address(&out, 12), folded(sum(&out[20..]))), (PUBLIC, 0xffff));
        let mut reply = echo(0, B, PUBLIC, port(&out, 24));
        border.incoming(&mut reply, START).expect("it is a reply");
        assert_eq!((address(&reply, 16), port(&reply, 24)), (A, 77));
        assert_eq!(folded(sum(&reply[20..])), 0xffff);
    }

    #[test]
    fn two_nodes_with_one_port_get_two_ports() {
        let mut border = Border::new(PUBLIC);
        let nat = Some(NatMapping::EndpointIndependent);
        border.set_rules(BorderRules { nat, firewall: false });
        let ports = [1, 2].map(|node| {
            let mut out = packet(UDP, ([10, 77, 1, node], 4000), (B, 9));
            border.outgoing(&mut out, START).expect("it passes");
            ends(&out).0.1
        });
        assert_eq!(ports, [4000, FIRST_PORT]);
    }

    #[test]
    fn packets_without_ports_do_not_panic_and_need_a_flow() {
        let mut border = Border::new(PUBLIC);
        border.set_rules(BorderRules { nat: None, firewall: true });
        let mut fragment = packet(UDP, (B, 9), (A, 4000));
        fragment[7] = 9;
        assert_eq!(border.incoming(&mut fragment, START), Err(Blocked));
        let mut out = packet(UDP, (A, 4000), (B, 9));
        border.outgoing(&mut out, START).expect("it passes");
        assert_eq!(border.incoming(&mut fragment, START), Ok(()));
        for len in 0..fragment.len() {
            let _ = border.incoming(&mut fragment[..len].to_vec(), START);
            let _ = border.outgoing(&mut fragment[..len].to_vec(), START);
        }
    }
}
