//! The types of config values: names, durations, sizes, rates, ports and choices.
//!
//! Each has one text form, which it reads and writes, and an error that names the valid form. This
//! module knows neither files nor keys.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::schema::Leaf;
use toml::Value;

/// A type written as a TOML string and read by its `FromStr`. The macro adds serde and the schema's
/// traits.
macro_rules! text_value {
    ($name:ident, $expects:literal $(, $choices:expr)?) => {
        impl Leaf for $name {
            $(const CHOICES: &'static [&'static str] = $choices;)?

            fn read(value: &Value) -> Result<Self, String> {
                match value {
                    Value::String(text) => text.parse(),
                    other => Err(format!("must be {}, found {other}", $expects)),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
    };
}

const NAME: &str = "1 to 32 of a-z, 0-9 and dash";

/// A name of a grid, a cluster or a node: 1 to 32 of `a-z`, `0-9` and `-`.
///
/// So it can be part of file names, certificates and command lines.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-');
        if (1..=32).contains(&text.len()) && text.chars().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("must be a name of {NAME}, found \"{}\"", text.escape_default()))
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_value!(Name, "a name in quotes");

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct BoundedInt<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> BoundedInt<MIN, MAX> {
    /// The number, or the nearest valid one.
    pub fn nearest(number: u32) -> Self {
        Self(number.clamp(MIN, MAX))
    }

    /// The number as an integer.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl<const MIN: u32, const MAX: u32> TryFrom<u32> for BoundedInt<MIN, MAX> {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        Self::read(&Value::Integer(number.into()))
    }
}

impl<const MIN: u32, const MAX: u32> From<BoundedInt<MIN, MAX>> for u32 {
    fn from(number: BoundedInt<MIN, MAX>) -> u32 {
        number.0
    }
}

impl<const MIN: u32, const MAX: u32> Leaf for BoundedInt<MIN, MAX> {
    fn read(value: &Value) -> Result<Self, String> {
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
        match number.filter(|number| (MIN..=MAX).contains(number)) {
            Some(number) => Ok(Self(number)),
            None => Err(format!("must be a whole number from {MIN} to {MAX}, found {value}")),
        }
    }
}

impl Leaf for u64 {
    fn read(value: &Value) -> Result<Self, String> {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        number.ok_or_else(|| format!("must be a whole number from 0 to 2^63-1, found {value}"))
    }
}

impl Leaf for f64 {
    fn read(value: &Value) -> Result<Self, String> {
        // TOML has infinities and NaN, which no key accepts.
        let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
        let number = number.filter(|number| number.is_finite());
        number.ok_or_else(|| format!("must be a number such as 0.5, found {value}"))
    }
}

impl Leaf for bool {
    fn read(value: &Value) -> Result<Self, String> {
        value.as_bool().ok_or_else(|| format!("must be true or false, found {value}"))
    }
}

impl Leaf for String {
    fn read(value: &Value) -> Result<Self, String> {
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| format!("must be text in quotes, found {value}"))
    }
}

impl Leaf for PathBuf {
    fn read(value: &Value) -> Result<Self, String> {
        match value.as_str() {
            Some(text) if !text.is_empty() && !text.contains('\0') => Ok(text.into()),
            _ => Err(format!("must be a path in quotes, found {value}")),
        }
    }
}

impl Leaf for SocketAddr {
    fn read(value: &Value) -> Result<Self, String> {
        let address = value.as_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| {
            format!("must be an address and a port such as \"127.0.0.1:0\", found {value}")
        })
    }
}

/// Digits with at most one point, as an exact decimal: (number without the point, digits after it).
fn decimal(text: &str) -> Option<(u128, u32)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let pointed = text.contains('.');
    if whole.is_empty() || !digits(whole) || !digits(part) || (pointed && part.is_empty()) {
        return None;
    }
    if whole.len() > 20 || part.len() > 9 {
        return None;
    }
    Some((format!("{whole}{part}").parse().ok()?, part.len() as u32))
}

/// A number with one of these units, in their common base. None if the result is not an integer or
/// exceeds `u64`.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = (&text[..at], text[at..].trim_start());
    let &(_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let (number, places) = decimal(number)?;
    let (scaled, ten) = (number.checked_mul(scale.into())?, 10u128.pow(places));
    if scaled % ten != 0 {
        return None;
    }
    u64::try_from(scaled / ten).ok()
}

/// Writes the number with the largest unit that divides it.
fn write_unit(f: &mut fmt::Formatter<'_>, number: u64, units: &[(&str, u64)]) -> fmt::Result {
    let fitting = units.iter().filter(|(_, scale)| number.is_multiple_of(*scale));
    match fitting.max_by_key(|(_, scale)| if number == 0 { u64::MAX - scale } else { *scale }) {
        Some((unit, scale)) => write!(f, "{}{unit}", number / scale),
        None => write!(f, "{number}"),
    }
}

const DURATIONS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A length of time, written `"150ms"`, `"10s"`, `"1.5h"`; units `ns us ms s m h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Time(u64);

impl Time {
    /// The time reduced by `by`, at least zero.
    pub fn saturating_sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time as a [`Duration`].
    pub fn get(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Time {
    /// Durations beyond 584 years become the maximum.
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, DURATIONS).map(Self).ok_or_else(|| {
            format!(
                "must be a duration such as \"150ms\" (units ns, us, ms, s, m, h), found \"{}\"",
                text.escape_default()
            )
        })
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_unit(f, self.0, DURATIONS)
    }
}

text_value!(Time, "a duration in quotes such as \"150ms\"");

const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
];

/// A number of bytes, written `"64MiB"` or `"1MB"`; units `B kB MB GB KiB MiB GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Size(u64);

impl Size {
    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        with_unit(text, SIZES).map(Self).ok_or_else(|| {
            format!(
                "must be a size such as \"64MiB\" (units B, kB, MB, GB, KiB, MiB, GiB), found \
                 \"{}\"",
                text.escape_default()
            )
        })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_unit(f, self.0, SIZES)
    }
}

text_value!(Size, "a size in quotes such as \"64MiB\"");

/// In bits per second, as networks are often described.
const RATES: &[(&str, u64)] = &[
    ("bit/s", 1),
    ("B/s", 8),
    ("kbit/s", 1_000),
    ("kB/s", 8_000),
    ("Mbit/s", 1_000_000),
    ("MB/s", 8_000_000),
    ("MiB/s", 8 << 20),
    ("Gbit/s", 1_000_000_000),
    ("GB/s", 8_000_000_000),
];

/// A bandwidth, written `"10MB/s"` or `"100Mbit/s"`; units `bit/s kbit/s Mbit/s Gbit/s B/s kB/s
/// MB/s GB/s MiB/s`.
///
/// A rate that is given in bits is written in bits. Two rates are equal if they are as fast.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteRate {
    bits_per_second: u64,
    in_bits: bool,
}

impl PartialEq for ByteRate {
    fn eq(&self, other: &Self) -> bool {
        self.bits_per_second == other.bits_per_second
    }
}
impl Eq for ByteRate {}
impl PartialOrd for ByteRate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for ByteRate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.bits_per_second.cmp(&other.bits_per_second)
    }
}

impl ByteRate {
    /// The rate of this number of bytes per second, to be written in bits or in bytes.
    pub fn of_bytes(bytes_per_second: u64, in_bits: bool) -> Self {
        Self { bits_per_second: bytes_per_second.saturating_mul(8), in_bits }
    }

    /// The rate in bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.bits_per_second as f64 / 8.0
    }

    /// Whether the rate is written in bits per second.
    pub fn is_in_bits(self) -> bool {
        self.in_bits
    }

    /// Whether a link of this rate carries data: links count whole bytes per second.
    pub fn carries(self) -> bool {
        self.bytes_per_second() >= 1.0
    }
}

impl FromStr for ByteRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = |bits_per_second| Self { bits_per_second, in_bits: text.ends_with("bit/s") };
        with_unit(text, RATES).map(rate).ok_or_else(|| {
            format!(
                "must be a rate such as \"10MB/s\" or \"100Mbit/s\", found \"{}\"",
                text.escape_default()
            )
        })
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Less than a byte has no other unit than bits.
        let in_bits = self.in_bits || !self.bits_per_second.is_multiple_of(8);
        let is_kept = |(unit, _): &&(&str, u64)| unit.ends_with("bit/s") == in_bits;
        let units: Vec<(&str, u64)> = RATES.iter().filter(is_kept).copied().collect();
        write_unit(f, self.bits_per_second, &units)
    }
}

text_value!(ByteRate, "a rate in quotes such as \"10MB/s\"");

/// A share of a whole, written as a number such as `0.02` or as `"2%"`.
///
/// It may lie outside of 0 and 1; the checks of a config report that.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "WrittenShare", into = "f64")]
pub struct Share(f64);

/// The two forms of a share in files.
#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenShare {
    Number(f64),
    Text(String),
}

impl TryFrom<WrittenShare> for Share {
    type Error = String;

    fn try_from(written: WrittenShare) -> Result<Self, String> {
        match written {
            WrittenShare::Number(share) => Ok(Self(share)),
            WrittenShare::Text(text) => text.parse(),
        }
    }
}

impl From<Share> for f64 {
    fn from(share: Share) -> f64 {
        share.0
    }
}

impl Share {
    /// The share as a number: 1 is the whole.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl From<f64> for Share {
    fn from(share: f64) -> Self {
        Self(share)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, scale) = match text.strip_suffix('%') {
            Some(percent) => (percent.trim_end(), 100.0),
            None => (text, 1.0),
        };
        let number = number.parse::<f64>().ok().filter(|number| number.is_finite());
        number.map(|number| Self(number / scale)).ok_or_else(|| {
            format!("must be a share such as 0.02 or \"2%\", found \"{}\"", text.escape_default())
        })
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Six digits of a percent hide the error of binary fractions.
        write!(f, "{}%", (self.0 * 1e8).round() / 1e6)
    }
}

impl Leaf for Share {
    fn read(value: &Value) -> Result<Self, String> {
        match value {
            Value::String(text) => text.parse(),
            other => f64::read(other).map(Self),
        }
    }
}

/// The addresses of an emulated network, written `"10.77.0.0/16"`.
///
/// They are 65536 of a private range, or of loopback if only sockets are emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet([u8; 2]);

impl Subnet {
    /// The first two numbers of its addresses.
    pub fn prefix(self) -> [u8; 2] {
        self.0
    }

    /// The address that ends in these two numbers.
    pub fn address(self, third: u8, fourth: u8) -> Ipv4Addr {
        let [first, second] = self.0;
        Ipv4Addr::new(first, second, third, fourth)
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.strip_suffix("/16").and_then(|text| text.parse::<Ipv4Addr>().ok());
        let is_right = |address: &Ipv4Addr| {
            let [_, _, third, fourth] = address.octets();
            (address.is_private() || address.is_loopback()) && (third, fourth) == (0, 0)
        };
        match address.filter(is_right).map(|address| address.octets()) {
            Some([first, second, ..]) => Ok(Self([first, second])),
            None => Err(format!(
                "must be a private network of 65536 addresses such as \"10.77.0.0/16\", \
                 or one of loopback such as \"127.77.0.0/16\", found \"{}\"",
                text.escape_default()
            )),
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/16", self.address(0, 0))
    }
}

text_value!(Subnet, "a private network in quotes such as \"10.77.0.0/16\"");

/// A range of ports, both ends included, written `"47000-47100"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ports {
    /// The first port, at least 1.
    pub first: u16,
    /// The last port, at least the first.
    pub last: u16,
}

impl Ports {
    /// The number of ports.
    pub fn count(self) -> u32 {
        u32::from(self.last) - u32::from(self.first) + 1
    }

    /// Whether this port is in the range.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ends = text.split_once('-').and_then(|(first, last)| {
            Some(Self { first: first.parse().ok()?, last: last.parse().ok()? })
        });
        ends.filter(|ports| 0 < ports.first && ports.first <= ports.last).ok_or_else(|| {
            let found = text.escape_default();
            format!("must be a range of ports such as \"47000-47100\", found \"{found}\"")
        })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

text_value!(Ports, "a range of ports in quotes such as \"47000-47100\"");

/// A host and a port, written `"head.example.org:47000"`, `"10.0.0.1:47000"` or `"[::1]:47000"`.
///
/// The connecting process resolves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port, at least 1.
    pub port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (host, port) = text.rsplit_once(':')?;
            let port = port.parse().ok().filter(|port| *port > 0)?;
            let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let valid = match bracketed {
                Some(host) => is_ipv6(host),
                None => {
                    let plain =
                        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
                    (1..=253).contains(&host.len()) && host.bytes().all(plain)
                }
            };
            valid.then(|| Self { host: bracketed.unwrap_or(host).to_owned(), port })
        };
        parse().ok_or_else(|| {
            let found = text.escape_default();
            format!("must be a host and a port such as \"10.0.0.1:47000\", found \"{found}\"")
        })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Whether a text is an IPv6 address, which may end with the zone of a link: `fe80::1%eth0`.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "lo"));
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    address.parse::<std::net::Ipv6Addr>().is_ok()
        && (1..=15).contains(&zone.len())
        && zone.bytes().all(plain)
}

text_value!(HostPort, "a host and a port in quotes such as \"10.0.0.1:47000\"");

/// Addresses of one process, such as those on two networks: a text, or a list of texts. Others use
/// the first one that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "OneOrMore", into = "OneOrMore")]
pub struct HostPorts(Vec<HostPort>);

/// How [`HostPorts`] are written.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(HostPort),
    More(Vec<HostPort>),
}

/// The maximum number of addresses of a process.
const ADDRESSES_MAX: usize = 8;

impl HostPorts {
    /// The first address, which the process itself announces.
    pub fn first(&self) -> &HostPort {
        &self.0[0]
    }

    /// All addresses, in the order of the config.
    pub fn all(&self) -> &[HostPort] {
        &self.0
    }
}

impl TryFrom<OneOrMore> for HostPorts {
    type Error = String;

    fn try_from(from: OneOrMore) -> Result<Self, String> {
        match from {
            OneOrMore::One(one) => Ok(Self(vec![one])),
            OneOrMore::More(more) if (1..=ADDRESSES_MAX).contains(&more.len()) => Ok(Self(more)),
            OneOrMore::More(more) => {
                Err(format!("must be 1 to {ADDRESSES_MAX} addresses, found {}", more.len()))
            }
        }
    }
}

impl From<HostPorts> for OneOrMore {
    fn from(HostPorts(mut all): HostPorts) -> Self {
        if all.len() == 1 { Self::One(all.remove(0)) } else { Self::More(all) }
    }
}

impl Leaf for HostPorts {
    fn read(value: &Value) -> Result<Self, String> {
        match value {
            Value::Array(values) => {
                let all: Result<Vec<_>, _> = values.iter().map(HostPort::read).collect();
                Self::try_from(OneOrMore::More(all?))
            }
            other => Ok(Self(vec![HostPort::read(other)?])),
        }
    }
}

/// Two different names, written `["ams", "del"]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Pair(pub Name, pub Name);

impl Pair {
    /// Whether it is these two names, in either order.
    pub fn is_of(&self, a: &str, b: &str) -> bool {
        let Self(x, y) = self;
        (x.as_str() == a && y.as_str() == b) || (x.as_str() == b && y.as_str() == a)
    }
}

impl Leaf for Pair {
    fn read(value: &Value) -> Result<Self, String> {
        match value.as_array().map(Vec::as_slice) {
            Some([a, b]) => Ok(Self(Name::read(a)?, Name::read(b)?)),
            _ => Err(format!("must be two names such as [\"ams\", \"del\"], found {value}")),
        }
    }
}

/// The maximum number of threads of a node.
const THREADS_MAX: u32 = 4096;

/// Numbers of threads of a cluster's nodes, in turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u32>", into = "Vec<u32>")]
pub struct ThreadCounts(Vec<u32>);

impl ThreadCounts {
    /// The number of threads of the node with this index, from 0.
    pub fn of(&self, index: u32) -> u32 {
        self.0[index as usize % self.0.len()]
    }
}

impl TryFrom<Vec<u32>> for ThreadCounts {
    type Error = String;

    fn try_from(counts: Vec<u32>) -> Result<Self, String> {
        let fits = |count: &u32| (1..=THREADS_MAX).contains(count);
        if !counts.is_empty() && counts.iter().all(fits) {
            Ok(Self(counts))
        } else {
            Err(format!("must be numbers from 1 to {THREADS_MAX} such as [1, 64]"))
        }
    }
}

impl From<ThreadCounts> for Vec<u32> {
    fn from(counts: ThreadCounts) -> Self {
        counts.0
    }
}

impl Leaf for ThreadCounts {
    fn read(value: &Value) -> Result<Self, String> {
        let counts = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let count = |value: &Value| value.as_integer().and_then(|count| u32::try_from(count).ok());
        let counts = counts.iter().map(count).collect::<Option<Vec<_>>>();
        Self::try_from(counts.unwrap_or_default())
            .map_err(|reason| format!("{reason}, found {value}"))
    }
}

/// A list of words, written `["--size", "12"]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgumentList(pub Vec<String>);

impl Leaf for ArgumentList {
    fn read(value: &Value) -> Result<Self, String> {
        let word = |word: &Value| word.as_str().filter(|w| !w.contains('\0')).map(str::to_owned);
        let words = value.as_array().and_then(|all| all.iter().map(word).collect());
        words.map(Self).ok_or_else(|| {
            format!("must be texts in a list such as [\"--size\", \"12\"], found {value}")
        })
    }
}

/// Makes a choice of words: the enum, its words and its parser.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident {
        $($(#[$variant_about:meta])* $variant:ident = $text:literal,)*
    }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        $(#[$about])*
        #[serde(try_from = "String", into = "String")]
        pub enum $name {
            $($(#[$variant_about])* $variant,)*
        }

        impl $name {
            /// All variants of the choice.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];
            /// The words of all variants.
            pub const WORDS: &'static [&'static str] = &[$($text),*];
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => {
                        let words = Self::CHOICES.iter().map(|word| format!("\"{word}\""));
                        let words: Vec<_> = words.collect();
                        let found = text.escape_default();
                        Err(format!("must be {}, found \"{found}\"", words.join(" or ")))
                    }
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text,)* })
            }
        }

        $crate::config::units::text_value!($name, "a word in quotes", &[$($text),*]);
    };
}

// Users of `choice` need `fmt`, `FromStr`, `Leaf`, `Value` and serde's derives in scope.
pub(super) use {choice, text_value};

choice! {
    /// The selection of victims by an idle node.
    Steal {
        /// Within the cluster, with one request to another cluster under way.
        ClusterAware = "cluster-aware",
        /// Any node, one at a time: the baseline.
        Random = "random",
    }
}

choice! {
    /// The extent of adaptation of a job's nodes.
    Mode {
        /// No measurements and no changes.
        Static = "static",
        /// Measurements and decisions without changes.
        Monitor = "monitor",
        /// Measurements, decisions and changes.
        Adaptive = "adaptive",
    }
}

choice! {
    /// The model of a scenario's job.
    App {
        /// A balanced tree over bodies, whose positions all nodes need.
        BarnesHut = "barnes-hut",
        /// An irregular tree without data.
        Search = "search",
        /// A master that distributes tasks and continues from their results.
        MasterWorker = "master-worker",
        /// Processes that take the same steps, each on its part of a state.
        Spmd = "spmd",
    }
}

choice! {
    /// The kind of an event in a scenario.
    Happening {
        /// Nodes become slower.
        Load = "load",
        /// A cluster's uplink changes its bandwidth.
        Uplink = "uplink",
        /// A link between two clusters changes.
        Link = "link",
        /// Two clusters lose their connection.
        Cut = "cut",
        /// Processes of nodes are killed.
        Kill = "kill",
        /// Hosts are switched off.
        Crash = "crash",
        /// Nodes are reclaimed for other uses.
        Claim = "claim",
        /// Nodes become available again.
        Free = "free",
    }
}

choice! {
    /// A role of a node in a job.
    Role {
        /// The node runs the job's root and its coordinator.
        Root = "root",
        /// The node runs its cluster's sub-coordinator.
        ClusterCoordinator = "cluster-coordinator",
    }
}

choice! {
    /// The part that starts a cluster's nodes.
    Provider {
        /// The head, as processes on its own host.
        Local = "local",
        /// A Slurm cluster, as batch jobs of one processor each, while jobs need them.
        Slurm = "slurm",
        /// Another batch system, as batch jobs, while jobs need them.
        Batch = "batch",
        /// The head, on other hosts by ssh.
        Ssh = "ssh",
        /// None: nodes join by themselves, with a token.
        Join = "join",
    }
}

choice! {
    /// The process of a cluster's site.
    SitePlace {
        /// The head's process.
        Head = "head",
        /// A process of its own.
        Own = "own",
    }
}

choice! {
    /// Congestion control of a link.
    Congestion {
        /// Suits links without random losses.
        Cubic = "cubic",
        /// Suits links with random losses.
        Bbr = "bbr",
        /// The plain algorithm without extensions.
        NewReno = "newreno",
        /// Cubic that distinguishes losses of the line from those of a full queue by the round
        /// trip, for all links.
        Measured = "measured",
    }
}

choice! {
    /// The least severity of log lines.
    Level {
        /// Failures that stop an operation.
        Error = "error",
        /// Conditions that may stop an operation.
        Warn = "warn",
        /// Information for operators.
        Info = "info",
        /// Information for developers.
        Debug = "debug",
        /// All log lines.
        Trace = "trace",
    }
}

choice! {
    /// The format of log lines.
    Format {
        /// Text for people.
        Pretty = "pretty",
        /// One JSON object per line.
        Json = "json",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_exact() {
        let time = |text: &str| text.parse::<Time>().map(Time::get);
        assert_eq!(time("150ms"), Ok(Duration::from_millis(150)));
        assert_eq!(time("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(time("0.1 s"), Ok(Duration::from_millis(100)));
        assert_eq!("64MiB".parse::<Size>().map(Size::bytes), Ok(64 << 20));
        assert_eq!("1MB".parse::<Size>().map(Size::bytes), Ok(1_000_000));
        let rate = |text: &str| text.parse::<ByteRate>().map(ByteRate::bytes_per_second);
        assert_eq!(rate("10MB/s"), Ok(1e7));
        assert_eq!(rate("100Mbit/s"), Ok(1.25e7));
        let carries = |text: &str| text.parse::<ByteRate>().map(ByteRate::carries);
        assert_eq!(
            (carries("8bit/s"), carries("7bit/s"), carries("0B/s")),
            (Ok(true), Ok(false), Ok(false))
        );
        for bad in [
            "",
            "10",
            "s",
            "-1s",
            "1,5s",
            "1.s",
            ".5s",
            "1s ",
            "1 day",
            "0.5ns",
            "1.2.3s",
            "99999999999h",
        ] {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert!("1mb".parse::<Size>().is_err());
        let written = |text: &str| text.parse::<ByteRate>().map(|rate| rate.to_string());
        for text in ["8Mbit/s", "1MB/s", "1500kB/s", "9bit/s"] {
            assert_eq!(written(text), Ok(text.to_owned()));
        }
        let share = |text: &str| text.parse::<Share>().map(Share::get);
        assert_eq!((share("2%"), share("0.02"), share("0.5 %")), (Ok(0.02), Ok(0.02), Ok(0.005)));
        for bad in ["", "%", "2 percent", "NaN", "inf%", "-"] {
            assert!(share(bad).unwrap_err().contains("\"2%\""), "{bad}");
        }
        for (number, text) in [(0.02, "2%"), (0.0, "0%"), (0.000_1, "0.01%"), (1.0, "100%")] {
            assert_eq!(Share::from(number).to_string(), text);
        }
    }

    #[test]
    fn emulated_networks_are_private_or_loopback() {
        for text in ["10.77.0.0/16", "192.168.0.0/16", "127.77.0.0/16"] {
            assert_eq!(text.parse::<Subnet>().map(|net| net.to_string()), Ok(text.to_owned()));
        }
        for text in ["8.8.0.0/16", "10.77.1.0/16", "127.77.0.1/16", "127.0.0.0/8", "128.0.0.0/16"] {
            assert!(text.parse::<Subnet>().unwrap_err().contains("loopback"), "{text}");
        }
    }

    #[test]
    fn hosts_and_ports() {
        for good in ["10.0.0.1:47000", "head.example.org:1", "[::1]:65535", "[fe80::1%eth0]:5"] {
            assert_eq!(good.parse::<HostPort>().unwrap().to_string(), good);
        }
        for bad in ["", "x", ":1", "a:0", "a:65536", "::1:5", "a b:5", "[zz]:5", "[fe80::1%]:5"] {
            assert!(bad.parse::<HostPort>().is_err(), "{bad}");
        }
        assert_eq!("47000-47100".parse::<Ports>().unwrap().count(), 101);
        for bad in ["47000", "9-8", "0-5", "1-65536", "1-2-3"] {
            assert!(bad.parse::<Ports>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn written_values_parse_to_themselves(
            number in prop_oneof![any::<u64>(), 0u64..100_000],
            scale in 0u32..40,
        ) {
            let number = number >> scale;
            prop_assert_eq!(Time(number).to_string().parse::<Time>(), Ok(Time(number)));
            prop_assert_eq!(Size(number).to_string().parse::<Size>(), Ok(Size(number)));
            for in_bits in [true, false] {
                let rate = ByteRate { bits_per_second: number, in_bits };
                prop_assert_eq!(rate.to_string().parse::<ByteRate>(), Ok(rate));
            }
        }

        #[test]
        fn no_text_panics(text in any::<String>(), short in "[0-9.]{0,25}[a-zA-Z/]{0,6}") {
            for text in [&text, &short] {
                let _ = (text.parse::<Time>(), text.parse::<Size>(), text.parse::<ByteRate>());
                let _ = (text.parse::<Name>(), text.parse::<Ports>(), text.parse::<HostPort>());
            }
        }
    }
}
