//! The state of a grid as text and as a JSON object.

use serde_json::json;
use springtide_cli::format::{SCHEMA, many};

use crate::operations::life::{GridLife, GridState};

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

fn sentence(state: GridState) -> &'static str {
    match state {
        GridState::Up => "up",
        GridState::Starting => "starting: nodes have not registered yet",
        GridState::Partial => "up, without a part of its nodes",
        GridState::Silent => "the head's process runs, and does not answer",
        GridState::Down => "down: no head runs",
    }
}

/// The state of a grid for programs.
pub fn life_object(life: &GridLife) -> String {
    let head = life.head.as_ref().map(|head| {
        json!({ "pid": head.pid, "host": head.host, "address": head.address, "join": head.join })
    });
    let (waiting, running) = life.jobs();
    let jobs = life.status.as_ref().map(|_| json!({ "waiting": waiting, "running": running }));
    let object = json!({
        "schema": SCHEMA,
        "grid": life.grid,
        "state": life.state.word(),
        "head": head,
        "dashboard": life.dashboard,
        "clusters": life.status.as_ref().map(|_| life.nodes()),
        "jobs": jobs,
        "reason": life.reason,
    });
    format!("{object}\n")
}
