//! The state of a grid as text and as a JSON object.

use serde_json::{Value, json};
use springtide_actors::scheduler::{HeadMember, HeadRole};
use springtide_cli::format::{SCHEMA, many};

use springtide_operations::life::{GridLife, GridState};

/// The state of a grid for people.
pub fn life_text(life: &GridLife) -> String {
    let mut text = format!("grid        {}\n", life.grid);
    text += &format!("state       {}\n", sentence(life.state));
    if let Some(head) = &life.head {
        let host = head.host.as_deref().map_or_else(String::new, |host| format!(" on {host}"));
        text += &format!("head        process {}{host}, at {}\n", head.pid, head.address);
        if let Some(join) = head.join {
            text += &format!("nodes join  at {join}\n");
        }
    }
    for member in members(life) {
        text += &format!("member      {}\n", describe_member(member, acting_records(life)));
    }
    if let Some(url) = &life.dashboard {
        text += &format!("dashboard   {url}\n");
    }
    if life.status.is_some() {
        let (waiting, others) = life.jobs();
        let waiting = many(waiting as u64, "job");
        text += &format!("jobs        {waiting} waiting, {others} running\n");
    }
    life.clusters().iter().for_each(|line| text += &format!("{line}\n"));
    if let Some(reason) = &life.reason {
        text += &format!("{reason}\n");
    }
    text
}

/// The members of the head, if it has a second one.
fn members(life: &GridLife) -> &[HeadMember] {
    life.status.as_ref().map_or(&[], |status| &status.members)
}

/// Index of the last record of the head that acts.
fn acting_records(life: &GridLife) -> u64 {
    let acting = members(life).iter().find(|member| member.role == HeadRole::Acts);
    acting.and_then(|member| member.records).unwrap_or_default()
}

fn describe_member(member: &HeadMember, last: u64) -> String {
    let HeadMember { node, role, answers, records } = member;
    let silence = if *answers { "" } else { ", and does not answer" };
    match (role, records) {
        (HeadRole::Acts, _) => format!("{node} acts, with {}", many(last, "record")),
        (HeadRole::Waits, Some(records)) => {
            let lag = last.saturating_sub(*records);
            format!("{node} waits, {} behind{silence}", many(lag, "record"))
        }
        (HeadRole::Waits, None) => format!("{node} waits{silence}"),
        (HeadRole::Witness, _) => format!("{node} is the witness{silence}"),
    }
}

fn sentence(state: GridState) -> &'static str {
    match state {
        GridState::Up => "up",
        GridState::Starting => "starting: nodes have not registered yet",
        GridState::Partial => "up, without a part of its nodes",
        GridState::Waiting => "waiting: a head waits here until it may act",
        GridState::Silent => "the head's process runs, and does not answer",
        GridState::Down => "down: no head runs",
    }
}

/// The state of a grid for programs.
pub fn life_object(life: &GridLife) -> String {
    let head = life.head.as_ref().map(|head| {
        json!({ "pid": head.pid, "host": head.host, "address": head.address, "join": head.join })
    });
    let last = acting_records(life);
    let member = |member: &HeadMember| {
        let behind = member.records.map(|records| last.saturating_sub(records));
        json!({
            "node": member.node,
            "role": member.role,
            "answers": member.answers,
            "records": member.records,
            "behind": behind,
        })
    };
    let members: Vec<Value> = members(life).iter().map(member).collect();
    let (waiting, running) = life.jobs();
    let jobs = life.status.as_ref().map(|_| json!({ "waiting": waiting, "running": running }));
    let object = json!({
        "schema": SCHEMA,
        "grid": life.grid,
        "state": life.state.word(),
        "head": head,
        "members": members,
        "dashboard": life.dashboard,
        "clusters": life.status.as_ref().map(|_| life.nodes()),
        "jobs": jobs,
        "reason": life.reason,
    });
    format!("{object}\n")
}
