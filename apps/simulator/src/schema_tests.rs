//! Every key of a scenario has an effect or is refused. The schema is enumerated, so a new key
//! without an entry here fails the test.

use std::collections::BTreeMap;

use springtide_actors::policy::Mode;
use springtide_runtime::config::{KeyDescription, ScenarioConfig, Sources, describe, load};

use crate::scenario::{SimulationParams, params, simulate};

/// A small grid of three clusters, and a job of about half a minute.
const GRID: &[(&str, &[(&str, &str)])] = &[
    ("", &[("name", "\"schema\"")]),
    ("app", &[("iterations", "6"), ("work", "\"12s\""), ("leaves", "32"), ("bodies", "2000")]),
    ("job", &[("period", "\"1s\"")]),
    ("wide", &[]),
    ("adaptation", &[("mode", "\"static\"")]),
    ("cluster", &[("name", "\"a\""), ("nodes", "3"), ("start", "2"), ("later", "1")]),
    ("cluster", &[("name", "\"b\""), ("nodes", "2"), ("start", "2")]),
    ("cluster", &[("name", "\"c\""), ("nodes", "2"), ("start", "1")]),
    ("link", &[("between", "[\"a\", \"c\"]")]),
];

type SchemaTable = (String, Vec<(String, String)>);

fn grid() -> Vec<SchemaTable> {
    let owned = |keys: &[(&str, &str)]| {
        keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    GRID.iter().map(|(table, keys)| ((*table).to_owned(), owned(keys))).collect()
}

/// Sets a key of the last table of this name, or removes it.
fn set(tables: &mut [SchemaTable], table: &str, key: &str, value: Option<&str>) {
    let found = tables.iter_mut().rfind(|(name, _)| name == table);
    let (_, keys) = found.unwrap_or_else(|| panic!("the grid has no [{table}]"));
    keys.retain(|(known, _)| known != key);
    keys.extend(value.map(|value| (key.to_owned(), value.to_owned())));
}

fn text(tables: &[SchemaTable]) -> String {
    let mut out = String::new();
    for (table, keys) in tables {
        match table.as_str() {
            "" => {}
            "cluster" | "link" | "event" => out += &format!("[[{table}]]\n"),
            _ => out += &format!("[{table}]\n"),
        }
        keys.iter().for_each(|(key, value)| out += &format!("{key} = {value}\n"));
    }
    out
}

/// The observable behaviour of a scenario, or the reason of its refusal.
fn observed(text: &str) -> Result<String, String> {
    let config = load::<ScenarioConfig>(&Sources::of_text("x.toml", text));
    let config = config.map_err(|error| error.to_string())?.value;
    let mode: Mode = config.adaptation.mode.into();
    Ok(match simulate(&config, &SimulationParams { mode, period: None, seed: 1 }) {
        Ok(played) => format!("{:x} {:?} {:?}", played.digest, played.wall, played.events),
        Err(error) => error.to_string(),
    })
}

fn is_refused_with_its_place(error: &str) {
    let is_place = |line: &str| {
        let mut parts = line.splitn(4, ':');
        parts.next() == Some("x.toml")
            && parts.next().is_some_and(|line| line.parse::<u32>().is_ok())
            && parts.next().is_some_and(|column| column.parse::<u32>().is_ok())
            && parts.next().is_some_and(|reason| reason.len() > 10)
    };
    assert!(error.lines().all(is_place), "a refusal without file, line and reason: {error}");
}

/// Two values of an event's key.
fn values_of_event(key: &str) -> [&'static str; 2] {
    match key {
        "at" => ["\"3s\"", "\"5s\""],
        "iteration" => ["2", "4"],
        "duration" => ["\"1s\"", "\"2s\""],
        "interval" => ["\"2s\"", "\"4s\""],
        "cluster" => ["\"b\"", "\"c\""],
        "nodes" => ["1", "2"],
        "role" => ["\"root\"", "\"cluster-coordinator\""],
        "between" => ["[\"a\", \"b\"]", "[\"b\", \"c\"]"],
        "share" => ["0.3", "0.6"],
        "bandwidth" => ["\"20kB/s\"", "\"1kB/s\""],
        "rtt" => ["\"300ms\"", "\"90ms\""],
        "loss" => ["0.5", "0.2"],
        "deadline" => ["\"1ms\"", "\"60s\""],
        key => panic!("event.{key} is new: give it two values here"),
    }
}

/// The smallest events of a kind with which a key is tested: keys of time with each form of time,
/// others with each place.
fn least_events(what: &str, key: &str) -> Vec<Vec<(&'static str, &'static str)>> {
    let places: &[&[(&str, &str)]] = match what {
        "load" => &[
            &[("cluster", "\"b\""), ("share", "0.5")],
            &[("role", "\"root\""), ("share", "0.5")],
            &[("cluster", "\"b\""), ("role", "\"cluster-coordinator\""), ("share", "0.5")],
        ],
        "uplink" => &[&[("cluster", "\"b\""), ("bandwidth", "\"5kB/s\"")]],
        "link" => &[&[("between", "[\"a\", \"b\"]"), ("rtt", "\"200ms\"")]],
        "cut" => &[&[("between", "[\"a\", \"b\"]")]],
        "kill" | "crash" => &[
            &[("cluster", "\"b\"")],
            &[("role", "\"root\"")],
            &[("cluster", "\"b\""), ("role", "\"cluster-coordinator\"")],
        ],
        "claim" => &[&[("cluster", "\"b\"")]],
        "free" => &[&[("cluster", "\"a\"")]],
        what => panic!("events \"{what}\" are new: say here what they need"),
    };
    let times: [&[(&str, &str)]; 4] = [
        &[("at", "\"2s\"")],
        &[("iteration", "3")],
        &[("at", "\"2s\""), ("duration", "\"1500ms\"")],
        &[("at", "\"2s\""), ("duration", "\"1500ms\""), ("interval", "\"3s\"")],
    ];
    match key {
        "at" | "iteration" | "duration" | "interval" => {
            times.iter().map(|time| [places[0], *time].concat()).collect()
        }
        _ => places.iter().map(|place| [*place, times[0]].concat()).collect(),
    }
}

#[test]
fn every_key_of_every_kind_of_event_acts_or_is_refused() {
    let keys: Vec<KeyDescription> = describe::<ScenarioConfig>();
    let keys: Vec<KeyDescription> = keys.into_iter().filter(|key| key.table == "event").collect();
    let kinds = keys.iter().find(|key| key.key == "what").expect("events have a kind").choices;
    let mut known: BTreeMap<String, Result<String, String>> = BTreeMap::new();
    let mut acts: Vec<String> = Vec::new();
    for kind in kinds {
        for key in keys.iter().map(|key| key.key).filter(|key| *key != "what") {
            let (mut accepted, mut compared) = (false, false);
            for event in least_events(kind, key) {
                let with = |value: Option<&str>| {
                    let mut tables = grid();
                    tables.push(("event".to_owned(), Vec::new()));
                    set(&mut tables, "event", "what", Some(&format!("\"{kind}\"")));
                    event.iter().for_each(|(key, value)| {
                        set(&mut tables, "event", key, Some(value));
                    });
                    set(&mut tables, "event", key, value);
                    text(&tables)
                };
                let [one, other] = values_of_event(key);
                let mut observations = Vec::new();
                for text in [with(Some(one)), with(Some(other)), with(None)] {
                    let found = known.entry(text.clone()).or_insert_with(|| observed(&text));
                    match found {
                        Ok(what) => observations.push(what.clone()),
                        Err(error) => is_refused_with_its_place(error),
                    }
                }
                let is_given = |value| known[&with(Some(value))].is_ok();
                if !is_given(one) && !is_given(other) {
                    continue;
                }
                accepted = true;
                // If the event needs this value, there is nothing to compare it with.
                if observations.len() < 2 {
                    continue;
                }
                compared = true;
                let differs = observations.iter().any(|what| *what != observations[0]);
                assert!(differs, "{key} of a \"{kind}\" is accepted and does nothing: {event:?}");
            }
            assert_eq!(accepted, compared, "{key} of a \"{kind}\" was compared with nothing");
            acts.extend(accepted.then(|| format!("{kind}.{key}")));
        }
    }
    // Keys that all kinds of events have.
    for key in ["at", "iteration", "interval"] {
        kinds
            .iter()
            .for_each(|kind| assert!(acts.contains(&format!("{kind}.{key}")), "{kind}.{key}"));
    }
}

/// Two values of a key outside of events, and other keys that must be set with them.
type SchemaValues = ([&'static str; 2], &'static [(&'static str, &'static str, &'static str)]);

fn values(table: &str, key: &str) -> SchemaValues {
    const THEN: &[(&str, &str, &str)] = &[("app", "then_from", "3"), ("app", "then_leaves", "4")];
    const NARROW: &[(&str, &str, &str)] =
        &[("wide", "bandwidth", "\"40kB/s\""), ("link", "bandwidth", "\"40kB/s\"")];
    const JITTER: &[(&str, &str, &str)] = &[
        ("wide", "jitter", "\"300ms\""),
        ("link", "jitter", "\"300ms\""),
        ("link", "rtt", "\"600ms\""),
        ("link", "between", "[\"a\", \"b\"]"),
    ];
    match (table, key) {
        ("app", "kind") => (["\"barnes-hut\"", "\"search\""], &[]),
        ("app", "iterations") => (["6", "7"], &[]),
        ("app", "work") => (["\"24s\"", "\"20s\""], &[]),
        ("app", "serial" | "each") => (["\"0s\"", "\"1s\""], &[]),
        ("app", "leaves") => (["32", "16"], &[]),
        ("app", "spread") => (["0.5", "0.1"], &[]),
        ("app", "bodies") => (["20000", "0"], &[]),
        ("app", "declared") => (["true", "false"], &[("adaptation", "mode", "\"adaptive\"")]),
        ("app", "then_from") => (["3", "5"], &[("app", "then_leaves", "4")]),
        ("app", "then_leaves") => (["4", "2"], &[("app", "then_from", "3")]),
        ("app", "then_until") => (["4", "5"], THEN),
        ("job", "period") => (["\"2s\"", "\"5s\""], &[]),
        ("job", "limit") => (["\"100h\"", "\"10s\""], &[]),
        ("job", "threads") => (["1", "2"], &[]),
        ("job", "steal") => (["\"cluster-aware\"", "\"random\""], &[]),
        ("cluster", "name") => (["\"c\"", "\"d\""], &[("link", "between", "[\"a\", \"b\"]")]),
        ("cluster", "times") => (["1", "2"], &[("link", "between", "[\"a\", \"b\"]")]),
        ("cluster", "nodes") => (["2", "3"], &[]),
        ("cluster", "start") => (["1", "2"], &[]),
        ("cluster", "later") => (["0", "1"], &[("adaptation", "mode", "\"adaptive\"")]),
        ("cluster", "speed") => (["1.0", "0.5"], &[]),
        ("cluster", "threads") => (["1", "2"], &[]),
        ("cluster", "unequal_threads") => (["[1]", "[2, 1]"], &[]),
        ("cluster", "delay") => (["\"50us\"", "\"5ms\""], &[("cluster", "start", "2")]),
        ("cluster", "uplink") => (["\"1MB/s\"", "\"20kB/s\""], &[]),
        ("link", "between") => {
            (["[\"a\", \"c\"]", "[\"a\", \"b\"]"], &[("link", "rtt", "\"90ms\"")])
        }
        ("wide" | "link", "profile") => (["\"wan-50\"", "\"lan\""], &[]),
        ("wide" | "link", "rtt") => (["\"20ms\"", "\"90ms\""], &[]),
        ("wide" | "link", "jitter") => (["\"0ms\"", "\"9ms\""], &[]),
        ("wide" | "link", "loss") => (["0.0", "0.3"], &[]),
        ("wide" | "link", "bandwidth") => (["\"1MB/s\"", "\"20kB/s\""], &[]),
        ("wide" | "link", "bandwidth_back") => (["\"1MB/s\"", "\"20kB/s\""], NARROW),
        ("wide" | "link", "queue") => (["100000", "3000"], NARROW),
        ("wide" | "link", "reorder") => (["false", "true"], JITTER),
        (table, key) => panic!("{table}.{key} is new: give it two values here"),
    }
}

#[test]
fn every_key_of_the_grid_and_the_job_acts() {
    for KeyDescription { table, key, unset, .. } in describe::<ScenarioConfig>() {
        match table.as_str() {
            // Names and the paper's results have no effect on a simulation.
            "" | "paper" | "event" => continue,
            table if unset.is_table() || table.starts_with("adaptation") => continue,
            _ => {}
        }
        let (values, companions) = values(&table, key);
        let observations = values.map(|value| {
            let mut tables = grid();
            companions
                .iter()
                .for_each(|(table, key, value)| set(&mut tables, table, key, Some(value)));
            set(&mut tables, &table, key, Some(value));
            let text = text(&tables);
            observed(&text).unwrap_or_else(|error| panic!("{table}.{key}: {error}\n{text}"))
        });
        assert!(observations[0] != observations[1], "{table}.{key} is accepted and does nothing");
    }
}

/// The policy's tests check the effect on decisions. Here each key only has to reach the policy.
#[test]
fn every_key_of_adaptation_reaches_the_policy() {
    for KeyDescription { table, key, type_name: of, choices, unset, .. } in
        describe::<ScenarioConfig>()
    {
        if !table.starts_with("adaptation") || unset.is_table() {
            continue;
        }
        let values = match (choices, of.as_str()) {
            ([one, other, ..], _) => [format!("\"{one}\""), format!("\"{other}\"")],
            ([], "bool") => ["true".to_owned(), "false".to_owned()],
            ([], "f64") => ["0.41".to_owned(), "0.42".to_owned()],
            // The grid's own minimum is a small number.
            ([], _) => ["2".to_owned(), "3".to_owned()],
            _ => panic!("{table}.{key} has one choice"),
        };
        let observations = values.map(|value| {
            let mut tables = grid();
            if table != "adaptation" {
                let place = tables.iter().position(|(name, _)| name == "cluster").unwrap_or(0);
                tables.insert(place, (table.clone(), Vec::new()));
            }
            set(&mut tables, &table, key, Some(&value));
            let text = text(&tables);
            let config = load::<ScenarioConfig>(&Sources::of_text("x.toml", &text));
            let config = config.unwrap_or_else(|error| panic!("{table}.{key}: {error}")).value;
            let mode = config.adaptation.mode.into();
            format!("{:?}", params(&config, &SimulationParams { mode, period: None, seed: 1 }))
        });
        assert!(observations[0] != observations[1], "{table}.{key} reaches nothing");
    }
}
