//! Texts about emulated networks.

use std::time::Duration;

use springtide_cli::format::{many, plural};
use springtide_runtime::config::{ByteRate, LinkProperties, Share, Time, profiles};
use springtide_runtime::net::LinkProfile;
use springtide_wan::place::{BorderStatus, LineStatus, Status, StubStatus};
use springtide_wan::router::RouterCounts;

/// The maximum number of a network's shortcomings printed at its start.
const NOTES: usize = 3;

/// A network that is up, for the time `lasts`.
pub fn up_text(status: &Status, lasts: Duration) -> String {
    let name = &status.name;
    let first: Vec<String> =
        status.nodes.iter().take(4).map(|(node, address)| format!("{node} {address}")).collect();
    let more = if status.nodes.len() > first.len() { ", .." } else { "" };
    let mut text = format!(
        "network {name} is up: {} ({}{more}), for {}\n",
        many(status.nodes.len() as u64, "node"),
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

/// The state of a network, with its links and their traffic.
pub fn status_text(status: &Status) -> String {
    let mut text = format!(
        "network {}: {} by {}, ends in {:.0} s",
        status.name,
        many(status.nodes.len() as u64, "node"),
        status.network.word(),
        status.left_s,
    );
    text += &match (status.late_us, &status.table) {
        (Some([half, most, latest]), _) => {
            format!(
                "; packets are late by {half:.0} us (median), {most:.0} us (99th percentile), \
                {latest:.0} us (maximum)\n"
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
            "{} without a receiver, {} refused by Linux\n",
            many(status.unroutable, "packet"),
            status.refused
        );
    }
    text += &links_text(status);
    for border in &status.borders {
        let public = border.public.map(|address| format!(", public address {address}"));
        let public = public.unwrap_or_default();
        let BorderStatus { cluster, rules, flows, .. } = border;
        let word = plural(*flows as u64, "flow");
        text += &format!("border of {cluster}: {rules}{public}, {flows} open {word}\n");
    }
    text += &traffic_text(status);
    text
}

/// A table of the links and their properties, with the words of `wan set` for all others below.
fn links_text(status: &Status) -> String {
    let mut rows = vec![["link", "delay", "jitter", "loss", "rate", "state"].map(str::to_owned)];
    let mut more = vec![String::new()];
    let time = |us: u64| match us {
        0 => "0ms".to_owned(),
        us => Time::from(Duration::from_micros(us)).to_string(),
    };
    for line in &status.lines {
        let LinkProfile { delay_us, jitter_us, loss, up, .. } = line.profile;
        let rate = line.rate.clone().or_else(|| plain_rate(&line.profile));
        let state = match (line.cut, up) {
            (true, _) => "cut",
            (false, false) => "down",
            (false, true) => "up",
        };
        let loss = Share::from(loss).to_string();
        let rate = rate.unwrap_or_else(|| "-".to_owned());
        let name = line_name(line);
        rows.push([name, time(delay_us), time(jitter_us), loss, rate, state.to_owned()]);
        more.push(line.impairments.clone());
    }
    for stub in &status.stubs {
        let rate = stub.rate.clone().or_else(|| plain_rate(&stub.profile));
        let rate = rate.unwrap_or_else(|| "-".to_owned());
        let state = if stub.profile.up { "up" } else { "down" };
        let dash = || "-".to_owned();
        rows.push([stub_name(stub), dash(), dash(), dash(), rate, state.to_owned()]);
        more.push(stub.impairments.clone());
    }
    let lines = columns(&rows);
    let lines = lines.into_iter().zip(more).map(|(line, more)| {
        if more.is_empty() { format!("{line}\n") } else { format!("{line}\n    {more}\n") }
    });
    lines.collect()
}

/// A table of the traffic of all links that carried any, with lost packets by cause.
fn traffic_text(status: &Status) -> String {
    let head = ["traffic", "packets", "bytes", "queued", "lost"].map(str::to_owned);
    let (mut rows, mut more) = (vec![head], vec![String::new()]);
    for line in status.lines.iter().filter(|line| line.counts.packets > 0) {
        let RouterCounts { packets, bytes, lost, .. } = line.counts;
        let numbers = [packets, bytes, line.queued as u64, lost].map(|count| count.to_string());
        let [packets, bytes, queued, lost] = numbers;
        rows.push([line_name(line), packets, bytes, queued, lost]);
        more.push(causes_text(&line.counts));
    }
    if rows.len() == 1 {
        return "no packet was sent yet\n".to_owned();
    }
    let lines = columns(&rows).into_iter().zip(more);
    lines.map(|(line, more)| format!("{}\n", format!("{line}  {more}").trim_end())).collect()
}

/// The lost packets by cause, and those with impairments.
fn causes_text(counts: &RouterCounts) -> String {
    let RouterCounts { down, queue_full, random, burst, filtered, .. } = *counts;
    let causes = [
        ("down", down),
        ("queue full", queue_full),
        ("random", random),
        ("burst", burst),
        ("filtered", filtered),
    ];
    let others = [
        ("duplicated", counts.duplicated),
        ("corrupted", counts.corrupted),
        ("held back", counts.reordered),
    ];
    let text = |all: &[(&str, u64)]| {
        let some = all.iter().filter(|(_, count)| *count > 0);
        some.map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    };
    let (causes, others) = (text(&causes), text(&others));
    match (causes.is_empty(), others.is_empty()) {
        (true, true) => String::new(),
        (false, true) => format!("({causes})"),
        (true, false) => others,
        (false, false) => format!("({causes}); {others}"),
    }
}

fn line_name(line: &LineStatus) -> String {
    if line.from == line.to {
        format!("{} inside", line.from)
    } else {
        format!("{}>{}", line.from, line.to)
    }
}

fn stub_name(stub: &StubStatus) -> String {
    let way = if stub.up { "out of" } else { "into" };
    format!("{way} {}", stub.cluster)
}

fn plain_rate(profile: &LinkProfile) -> Option<String> {
    profile.rate.map(|rate| ByteRate::of_bytes(rate, false).to_string())
}

/// Rows with columns of equal width: the first to the left, the others to the right.
fn columns<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let (first, others) = row.split_at(1);
        let first = format!("{:1$}", first[0], widths[0]);
        let others =
            others.iter().zip(&widths[1..]).map(|(cell, width)| format!("  {cell:>width$}"));
        first + &others.collect::<String>()
    };
    rows.iter().map(line).collect()
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
