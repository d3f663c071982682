//! Texts about emulated networks.

use std::time::Duration;

use springtide_runtime::config::{ByteRate, LinkProperties, Time, profiles};
use springtide_runtime::net::LinkProfile;
use springtide_wan::place::Status;

/// The maximum number of a network's shortcomings printed at its start.
const NOTES: usize = 3;

/// A network that is up, for the time `lasts`.
pub fn up_text(status: &Status, lasts: Duration) -> String {
    let name = &status.name;
    let first: Vec<String> =
        status.nodes.iter().take(4).map(|(node, address)| format!("{node} {address}")).collect();
    let more = if status.nodes.len() > first.len() { ", .." } else { "" };
    let mut text = format!(
        "network {name} is up: {} nodes ({}{more}), for {}\n",
        status.nodes.len(),
        first.join(", "),
        Time::from(lasts)
    );
    if let Some(table) = &status.table {
        text += &format!(
            "programs of Springtide use it with `wan exec NODE springtide ...`, or with this line \
            in a grid's config\n    net.shape = {}\n",
            toml::Value::from(table.display().to_string())
        );
    }
    for note in status.notes.iter().take(NOTES) {
        text += &format!("{note}\n");
    }
    match status.notes.len().saturating_sub(NOTES) {
        0 => {}
        more => text += &format!("and {more} more: see `wan status {name}`\n"),
    }
    text
}

fn rate(rate: Option<u64>) -> String {
    rate.map_or("-".to_owned(), |rate| format!("{} kB/s", rate as f64 / 1e3))
}

/// The state of a network, with its links and their traffic.
pub fn status_text(status: &Status) -> String {
    let mut text = format!(
        "network {}: {} nodes by {}, ends in {:.0} s",
        status.name,
        status.nodes.len(),
        status.network.word(),
        status.left_s,
    );
    text += &match (status.late_us, &status.table) {
        (Some([half, most, latest]), _) => {
            format!(
                "; late by {half:.0} us (half), {most:.0} us (99 of 100), {latest:.0} us \
                (maximum)\n"
            )
        }
        (None, Some(table)) => {
            format!("; net.shape = {}\n", toml::Value::from(table.display().to_string()))
        }
        (None, None) => "\n".to_owned(),
    };
    for note in &status.notes {
        text += &format!("{note}\n");
    }
    if status.unroutable + status.refused > 0 {
        text += &format!(
            "{} packets without a receiver, {} refused by Linux\n",
            status.unroutable, status.refused
        );
    }
    text += &format!(
        "{:24} {:>10} {:>9} {:>7} {:>12} {:>10} {:>12} {:>8}\n",
        "link", "delay", "jitter", "loss", "rate", "packets", "bytes", "lost"
    );
    for line in &status.lines {
        let LinkProfile { delay_us, jitter_us, loss, rate: limit, up, .. } = &line.profile;
        let name = if line.from == line.to {
            format!("{} inside", line.from)
        } else {
            format!("{}>{}", line.from, line.to)
        };
        let (ms, percent) = (|us: &u64| format!("{} ms", *us as f64 / 1e3), loss * 100.0);
        let state = if line.cut || !up { "  down" } else { "" };
        text += &format!(
            "{name:24} {:>10} {:>9} {percent:>5.2} % {:>12} {:>10} {:>12} {:>8}{state}\n",
            ms(delay_us),
            ms(jitter_us),
            rate(*limit),
            line.counts.packets,
            line.counts.bytes,
            line.counts.lost
        );
    }
    for stub in &status.stubs {
        let way = if stub.up { "out of" } else { "into" };
        text += &format!("{way} {}: {}\n", stub.cluster, rate(stub.profile.rate));
    }
    text
}

/// The built-in link profiles as a table.
pub fn profiles_text() -> String {
    let rate = |rate: Option<ByteRate>| rate.map_or("-".to_owned(), |rate| rate.to_string());
    let row = |[name, rtt, jitter, loss, out, back]: [&str; 6]| {
        format!("{name:25} {rtt:>7} {jitter:>7} {loss:>8} {out:>12} {back:>12}\n")
    };
    let mut text = row(["profile", "rtt", "jitter", "loss", "bandwidth", "back"]);
    for profile in profiles() {
        let line = LinkProperties::from(profile);
        let time = |time: Duration| Time::from(time).to_string();
        let loss = format!("{} %", (line.loss * 1e4).round() / 100.0);
        let (out, back) = (rate(line.bandwidth), rate(line.bandwidth_back));
        let (rtt, jitter) = (time(line.rtt), time(line.jitter));
        text += &row([&profile.name, &rtt, &jitter, &loss, &out, &back]);
        text += &format!("    {}\n", profile.why);
    }
    text
}
