//! The file of offers: sites, their slots and the links between them.
//!
//! `slots list --json` prints such a file, and `workflow plan --slots` reads one. This module must
//! not know how slots are reserved and used.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use springtide_actors::policy::provisioning::{Price, SiteLinks, Slot, Time, from_seconds};
use springtide_cli::exit::Failed;

/// Version of the file's format.
pub const SCHEMA: u32 = 1;

/// Latency in seconds and bytes per second between two sites without a [`Link`]: 20 ms of round
/// trip, the default of links in scenarios, and 10 MB/s.
pub const DEFAULT_LINK: (f64, f64) = (0.01, 1.0e7);

/// Maximum size of the file, in bytes.
const FILE_MAX: u64 = 64 << 20;
/// Maximum number of sites.
const SITES_MAX: usize = 1000;
/// Maximum number of slots of all sites: searches among more do not end in useful time.
const SLOTS_MAX: usize = 20_000;
/// Maximum number of processors of a site.
const PROCESSORS_MAX: u32 = 10_000_000;
/// Maximum time in seconds, about three hundred years.
const SECONDS_MAX: f64 = 1e10;
/// Maximum speed; the minimum is its inverse.
const SPEED_MAX: f64 = 1000.0;
/// Maximum price, of a slot or of a processor-second.
const PRICE_MAX: f64 = 1e12;

/// The offers of all sites at one moment.
///
/// ```json
/// {"schema":1,"origin_unix_s":1764061200.0,
///  "sites":[{"name":"vu","processors":64,"speed":1.0,"epoch":17,
///    "slots":[{"processors":2,"start_s":0.0,"end_s":3600.0,"rate":1.0,"fixed":0.0,
///              "divisible":false,"extensible":false}]}],
///  "links":[{"a":"vu","b":"uva","latency_s":0.01,"bytes_per_s":1.0e6}]}
/// ```
///
/// `speed`, `epoch`, `rate`, `fixed`, `slots` and `links` may be absent: 1, 0, 1, 0, none and none.
/// Unknown keys are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offers {
    /// Version of the format, [`SCHEMA`].
    pub schema: u32,
    /// Moment of the offers, in seconds since the Unix epoch. Times of slots count from it, and a
    /// workflow that is planned on them is submitted then.
    pub origin_unix_s: f64,
    /// Sites with their offers.
    pub sites: Vec<Site>,
    /// Links between them. All other pairs of sites have [`DEFAULT_LINK`].
    #[serde(default)]
    pub links: Vec<Link>,
}

/// A site with its offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Unique name of the site.
    pub name: String,
    /// Number of its processors, idle or not.
    pub processors: u32,
    /// Speed of each processor: work of one second at speed 1 takes `1 / speed` seconds.
    #[serde(default = "one")]
    pub speed: f64,
    /// Epoch of its offers, which grows with each change of the free processors. An allocation of
    /// an earlier epoch may be refused.
    #[serde(default)]
    pub epoch: u64,
    /// The offered slots. Those of one site have disjoint processors, so that all can be reserved
    /// together.
    #[serde(default)]
    pub slots: Vec<Offer>,
}

/// An offered slot: processors of a site for a time, at a price.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// Number of its processors.
    pub processors: u32,
    /// Start, in seconds after the origin.
    pub start_s: f64,
    /// End, in seconds after the origin.
    pub end_s: f64,
    /// Price of a processor-second.
    #[serde(default = "one")]
    pub rate: f64,
    /// Additional price of the slot, paid once if any part of it is reserved.
    #[serde(default)]
    pub fixed: f64,
    /// Whether a part of it can be reserved.
    pub divisible: bool,
    /// Whether it can be reserved beyond its end.
    pub extensible: bool,
}

/// A link between two sites, in both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Name of the one site.
    pub a: String,
    /// Name of the other site.
    pub b: String,
    /// One-way latency, in seconds.
    pub latency_s: f64,
    /// Bandwidth in bytes per second.
    pub bytes_per_s: f64,
}

fn one() -> f64 {
    1.0
}

/// A file of offers cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {cause}", file.display(), SourcePosition(*.at))]
pub struct OffersError {
    /// The file, as the user named it.
    pub file: PathBuf,
    /// Line and column, from 1, if they are known.
    pub at: Option<(usize, usize)>,
    /// The cause, and its remedy.
    pub cause: OffersCause,
}

/// A defect of a file of offers.
#[derive(Debug, thiserror::Error)]
pub enum OffersCause {
    /// The file cannot be opened or read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The file exceeds the maximum size.
    #[error("is larger than {} MiB, the maximum", FILE_MAX >> 20)]
    TooLarge,
    /// It is not JSON, or has other keys.
    #[error("{0}: offers are one JSON object, as `slots list --json` prints it")]
    Json(String),
    /// The version of the format is absent or another one.
    #[error(
        "the format of offers must have \"schema\": {SCHEMA}, found {0}: use the output of \
        `slots list --json` of this version"
    )]
    Schema(String),
    /// A value is out of range.
    #[error("{place}: {reason}")]
    Value {
        /// Its place: a site, a slot of a site by its number from 1, or a link.
        place: String,
        /// Description of the defect.
        reason: String,
    },
}

impl From<OffersError> for Failed {
    fn from(error: OffersError) -> Self {
        Self::usage(error)
    }
}

struct SourcePosition(Option<(usize, usize)>);

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some((line, column)) => write!(f, ":{line}:{column}"),
            None => Ok(()),
        }
    }
}

type Wrong = (Option<(usize, usize)>, OffersCause);

impl Offers {
    /// Reads a file; `-` is standard input.
    ///
    /// # Errors
    /// The file cannot be read, is larger than 64 MiB, or has another format; with the place of the
    /// defect, if there is one.
    pub fn read(file: &Path) -> Result<Self, OffersError> {
        let wrong = |cause| OffersError { file: file.to_owned(), at: None, cause };
        let mut text = Vec::new();
        let limit = FILE_MAX + 1;
        let length = if file == Path::new("-") {
            io::stdin().lock().take(limit).read_to_end(&mut text)
        } else {
            std::fs::File::open(file).and_then(|f| f.take(limit).read_to_end(&mut text))
        };
        match length.map_err(|error| wrong(OffersCause::Unreadable(error)))? as u64 {
            length if length > FILE_MAX => Err(wrong(OffersCause::TooLarge)),
            _ => Self::parse(file, &text),
        }
    }

    /// Reads a text; `file` names it in messages.
    ///
    /// # Errors
    /// The text has another format.
    pub fn parse(file: &Path, text: &[u8]) -> Result<Self, OffersError> {
        Self::of(text).map_err(|(at, cause)| OffersError { file: file.to_owned(), at, cause })
    }

    fn of(text: &[u8]) -> Result<Self, Wrong> {
        #[derive(Deserialize)]
        struct Head {
            schema: Option<serde_json::Value>,
        }
        let json = |error: serde_json::Error| {
            let at = (error.line() > 0).then(|| (error.line(), error.column()));
            let said = error.to_string();
            let end = format!(" at line {} column {}", error.line(), error.column());
            let said = said.strip_suffix(&end).unwrap_or(&said).to_owned();
            (at, OffersCause::Json(said))
        };
        // A file of another version must be refused for its version, not for its keys.
        let Head { schema } = serde_json::from_slice(text).map_err(json)?;
        if schema.as_ref().and_then(serde_json::Value::as_u64) != Some(u64::from(SCHEMA)) {
            let found = schema.map_or_else(|| "none".to_owned(), |found| found.to_string());
            return Err((None, OffersCause::Schema(found.chars().take(60).collect())));
        }
        let offers: Self = serde_json::from_slice(text).map_err(json)?;
        offers.check().map_err(|cause| (None, cause))?;
        Ok(offers)
    }

    /// Checks all values.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), OffersCause> {
        let wrong = |place: String, reason: String| Err(OffersCause::Value { place, reason });
        let offers = || "offers".to_owned();
        number(offers, "origin_unix_s", self.origin_unix_s, 0.0, SECONDS_MAX)?;
        if self.sites.len() > SITES_MAX {
            return wrong(offers(), format!("there are more than {SITES_MAX} sites"));
        }
        let slots: usize = self.sites.iter().map(|site| site.slots.len()).sum();
        if slots > SLOTS_MAX {
            return wrong(offers(), format!("there are {slots} slots, more than {SLOTS_MAX}"));
        }
        let mut names = BTreeMap::new();
        for (at, site) in self.sites.iter().enumerate() {
            let place = || format!("site {}", shown(&site.name));
            if site.name.trim().is_empty() {
                return wrong(format!("site {}", at + 1), "it needs a name".to_owned());
            }
            if let Some(first) = names.insert(site.name.as_str(), at) {
                let reason = format!("sites {} and {} have this name", first + 1, at + 1);
                return wrong(place(), reason);
            }
            if !(1..=PROCESSORS_MAX).contains(&site.processors) {
                let reason =
                    format!("processors must be 1 to {PROCESSORS_MAX}, found {}", site.processors);
                return wrong(place(), reason);
            }
            number(place, "speed", site.speed, 1.0 / SPEED_MAX, SPEED_MAX)?;
            for (at, slot) in site.slots.iter().enumerate() {
                slot.check(site, &|| format!("site {}, slot {}", shown(&site.name), at + 1))?;
            }
        }
        let mut pairs = std::collections::BTreeSet::new();
        for Link { a, b, latency_s, bytes_per_s } in &self.links {
            let place = || format!("link {} - {}", shown(a), shown(b));
            for name in [a, b] {
                if !names.contains_key(name.as_str()) {
                    return wrong(place(), format!("there is no site {}", shown(name)));
                }
            }
            if a == b {
                return wrong(place(), "a link is between two sites".to_owned());
            }
            if !pairs.insert((a.min(b), a.max(b))) {
                let reason = "there is another link between them: a link is for either way";
                return wrong(place(), reason.to_owned());
            }
            number(place, "latency_s", *latency_s, 0.0, SECONDS_MAX)?;
            number(place, "bytes_per_s", *bytes_per_s, 1e-3, 1e15)?;
        }
        Ok(())
    }

    /// Returns all slots, ordered by site, then by their order there.
    pub fn slots(&self) -> Vec<Slot> {
        let of = |(site, offers): (usize, &Site)| -> Vec<Slot> {
            offers.slots.iter().map(|slot| slot.of(site)).collect()
        };
        self.sites.iter().enumerate().flat_map(of).collect()
    }

    /// Returns the transfer times between sites.
    pub fn links(&self) -> SiteLinks {
        let index = |name: &str| self.sites.iter().position(|site| site.name == name);
        let mut pairs = BTreeMap::new();
        for link in &self.links {
            let (Some(a), Some(b)) = (index(&link.a), index(&link.b)) else { continue };
            let is = (from_seconds(link.latency_s), link.bytes_per_s);
            pairs.insert((a, b), is);
            pairs.insert((b, a), is);
        }
        let (latency_s, bytes_per_s) = DEFAULT_LINK;
        SiteLinks { pairs, other: Some((from_seconds(latency_s), bytes_per_s)) }
    }

    /// Whether a processor-second costs 1 everywhere and nothing else has a price, so that costs
    /// are processor-seconds.
    pub fn is_plainly_priced(&self) -> bool {
        let mut slots = self.sites.iter().flat_map(|site| &site.slots);
        slots.all(|slot| slot.rate == 1.0 && slot.fixed == 0.0)
    }
}

impl Offer {
    fn check(&self, site: &Site, place: &dyn Fn() -> String) -> Result<(), OffersCause> {
        let wrong = |reason| Err(OffersCause::Value { place: place(), reason });
        if !(1..=site.processors).contains(&self.processors) {
            return wrong(format!(
                "processors must be 1 to {}, those of the site, found {}",
                site.processors, self.processors
            ));
        }
        for (name, value, most) in [
            ("start_s", self.start_s, SECONDS_MAX),
            ("end_s", self.end_s, SECONDS_MAX),
            ("rate", self.rate, PRICE_MAX),
            ("fixed", self.fixed, PRICE_MAX),
        ] {
            number(place, name, value, 0.0, most)?;
        }
        let Slot { start, end, .. } = self.of(0);
        if start >= end {
            let (start_s, end_s) = (self.start_s, self.end_s);
            return wrong(format!(
                "it ends at {end_s} s, which is not after its start, {start_s} s"
            ));
        }
        Ok(())
    }

    fn of(&self, site: usize) -> Slot {
        let time = |seconds: f64| -> Time { from_seconds(seconds) };
        Slot {
            site,
            processors: self.processors,
            start: time(self.start_s),
            end: time(self.end_s),
            price: Price { rate: self.rate, fixed: self.fixed },
            divisible: self.divisible,
            extensible: self.extensible,
        }
    }
}

fn number(
    place: impl Fn() -> String,
    name: &str,
    value: f64,
    least: f64,
    most: f64,
) -> Result<(), OffersCause> {
    if value >= least && value <= most {
        return Ok(());
    }
    let reason = format!("{name} must be {least} to {most}, found {value}");
    Err(OffersCause::Value { place: place(), reason })
}

/// Shortens and escapes a name for a message.
fn shown(name: &str) -> String {
    let start: String = name.chars().take(60).collect();
    format!("{}{}", start.escape_debug(), if start.len() < name.len() { "..." } else { "" })
}

#[cfg(test)]
mod tests {
    use springtide_actors::policy::provisioning::SECOND;
    use springtide_runtime::fuzz::{Target, run};

    use super::*;

    const EXAMPLE: &str = r#"{"schema":1,"origin_unix_s":1764061200.0,"sites":[
        {"name":"vu","processors":64,"speed":1.0,"epoch":17,"slots":[
          {"processors":2,"start_s":0.0,"end_s":3600.0,"rate":1.0,"fixed":0.0,
           "divisible":false,"extensible":false}]},
        {"name":"uva","processors":8,"slots":[
          {"processors":8,"start_s":10.5,"end_s":86400,"rate":2,
           "divisible":true,"extensible":true}]}],
        "links":[{"a":"vu","b":"uva","latency_s":0.01,"bytes_per_s":1.0e6}]}"#;

    fn parse(text: &str) -> Result<Offers, String> {
        Offers::parse(Path::new("o.json"), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn fuzz() {
        let read = |bytes: &[u8]| {
            let offers = Offers::parse(Path::new("o.json"), bytes);
            let offers = offers.map_err(|error| error.to_string())?;
            let again = parse(&serde_json::to_string(&offers).unwrap());
            assert_eq!(again.as_ref(), Ok(&offers));
            let (slots, links) = (offers.slots(), offers.links());
            if slots.iter().any(|slot| slot.site > 0) {
                links.transfer(1_000_000, 0, 1);
            }
            Ok(())
        };
        let target = Target {
            name: "offers of sites",
            test: "-p springtide-operations --lib offers::tests::fuzz",
            words: &["{", "}", "[", "]", ":", ",", "\"", "null", "1e308", "-1", "true"],
            max_len: 8 << 10,
            found: &[],
            read,
            allocated: None,
        };
        run(target, vec![EXAMPLE.as_bytes().to_vec()]);
    }

    #[test]
    fn offers_are_what_they_were_when_read_again() {
        let offers = parse(EXAMPLE).unwrap();
        let again = parse(&serde_json::to_string(&offers).unwrap()).unwrap();
        assert_eq!(again, offers);
        let (uva, slots) = (&offers.sites[1], offers.slots());
        assert_eq!((uva.speed, uva.epoch, uva.slots[0].fixed), (1.0, 0, 0.0));
        assert_eq!((slots.len(), slots[1].site, slots[1].start), (2, 1, 10 * SECOND + SECOND / 2));
        let links = offers.links();
        assert_eq!(links.transfer(1_000_000, 0, 1), SECOND + SECOND / 100);
        assert_eq!(links.transfer(1_000_000, 1, 0), links.transfer(1_000_000, 0, 1));
        assert!(!offers.is_plainly_priced());
        let bare = parse(r#"{"schema":1,"origin_unix_s":0,"sites":[]}"#).unwrap();
        assert_eq!((bare.slots().len(), bare.links().transfer(0, 0, 1)), (0, SECOND / 100));
    }

    #[test]
    fn errors_of_offers_name_their_place() {
        let with = |from: &str, to: &str| {
            assert!(EXAMPLE.contains(from), "{from}");
            EXAMPLE.replacen(from, to, 1)
        };
        let deep = format!("{{\"schema\":1,\"sites\":{}", "[".repeat(100_000));
        for (text, expected) in [
            (String::new(), "o.json:1:0: EOF while parsing"),
            ("[1]".to_owned(), "o.json:1:"),
            ("{}".to_owned(), "o.json: the format of offers must have \"schema\": 1, found none"),
            (
                with("\"schema\":1", "\"schema\":2"),
                "o.json: the format of offers must have \"schema\": 1, found 2",
            ),
            (deep, "o.json:1:"),
            (
                with("\"speed\"", "\"sped\""),
                "o.json:2:43: unknown field `sped`, expected one of `name`",
            ),
            (with("\"divisible\":false,", ""), "o.json:4:"),
            (with("3600.0", "1e999"), "o.json:3:"),
            (with("3600.0", "NaN"), "o.json:3:"),
            (
                with("3600.0", "1e11"),
                "o.json: site vu, slot 1: end_s must be 0 to 10000000000, found 100000000000",
            ),
            (
                with("3600.0", "0"),
                "o.json: site vu, slot 1: it ends at 0 s, which is not after its start",
            ),
            (
                with("\"start_s\":0.0", "\"start_s\":-1"),
                "o.json: site vu, slot 1: start_s must be 0 to",
            ),
            (with("\"rate\":1.0", "\"rate\":-1.0"), "o.json: site vu, slot 1: rate must be"),
            (
                with("\"processors\":2", "\"processors\":65"),
                "o.json: site vu, slot 1: processors must be 1 to 64, those of the site, found 65",
            ),
            (with("\"processors\":2", "\"processors\":-2"), "o.json:3:"),
            (with("\"processors\":64", "\"processors\":0"), "o.json: site vu: processors must be"),
            (with("\"speed\":1.0", "\"speed\":0"), "o.json: site vu: speed must be"),
            (
                with("\"name\":\"uva\"", "\"name\":\"vu\""),
                "o.json: site vu: sites 1 and 2 have this name",
            ),
            (with("\"name\":\"uva\"", "\"name\":\" \""), "o.json: site 2: it needs a name"),
            (with("\"b\":\"uva\"", "\"b\":\"uvb\""), "o.json: link vu - uvb: there is no site uvb"),
            (with("\"b\":\"uva\"", "\"b\":\"vu\""), "o.json: link vu - vu: a link is between two"),
            (with("1.0e6", "0"), "o.json: link vu - uva: bytes_per_s must be"),
            (
                with(
                    "\"links\":[",
                    "\"links\":[{\"a\":\"uva\",\"b\":\"vu\",\"latency_s\":0,\"bytes_per_s\":1},",
                ),
                "o.json: link vu - uva: there is another link",
            ),
            (format!("{EXAMPLE} x"), "o.json:8:"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.starts_with(expected), "{error}\nis not\n{expected}");
            assert!(error.len() < 400, "{error}");
        }
        let error = Offers::read(Path::new("/nowhere/o.json")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/o.json: cannot be read: "), "{error}");
    }
}
