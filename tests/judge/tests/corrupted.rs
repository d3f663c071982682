//! The judge accepts a good log, and names each fault of a corrupted one.

use springtide_judge::{Expectation, Rule, Verdict, judge};

/// A grid of two nodes. Job 1 runs, moves to another coordinator, and ends; the head restarts
/// meanwhile. Job 2 gets a node afterwards.
const GOOD: &str = include_str!("good.jsonl");

fn expected() -> Expectation {
    Expectation { checksum: Some("00000000000000ff".to_owned()), settled: true }
}

fn judged(log: &str) -> Verdict {
    judge(log.lines(), &expected()).expect("the log has JSON lines")
}

#[test]
fn a_good_log_has_no_fault_and_each_rule_has_subjects() {
    let verdict = judged(GOOD);
    assert!(verdict.faults.is_empty(), "{verdict}");
    for what in [
        "acts of coordinators",
        "agreed reservations",
        "ended and refused reservations",
        "ends of jobs",
        "ends of stolen tasks",
        "epochs of the scheduler",
        "grants of nodes",
        "leased tasks of complete owners",
        "leases",
        "published versions",
        "restarts of the head",
    ] {
        assert!(verdict.judged.get(what) > Some(&0), "{what}: {verdict}");
    }
}

/// Replaces the only occurrence of a text.
fn replaced(from: &str, to: &str) -> String {
    assert_eq!(GOOD.matches(from).count(), 1, "{from}");
    GOOD.replace(from, to)
}

/// Inserts a line behind the only line that contains a text.
fn inserted(behind: &str, line: &str) -> String {
    let of = GOOD.lines().find(|line| line.contains(behind)).expect(behind);
    replaced(of, &format!("{of}\n{line}"))
}

/// Removes the only line that contains a text.
fn removed(text: &str) -> String {
    let of = GOOD.lines().find(|line| line.contains(text)).expect(text);
    replaced(&format!("{of}\n"), "")
}

fn record(recorder: &str, seq: u64, event: &str) -> String {
    let (node, incarnation) = recorder.split_once('/').expect("node and incarnation");
    format!(
        r#"{{"node":"{node}","incarnation":{incarnation},"seq":{seq},"t_us":0,"event":{event}}}"#
    )
}

#[test]
fn each_corruption_is_named() {
    let all = [
        (
            "two grants of one node",
            Rule::NodeGrantedTwice,
            inserted(
                "\"job\":1,\"epoch\":1,\"nodes\"",
                &record(
                    "head/1",
                    1_000,
                    r#"{"kind":"nodes_granted","job":9,"epoch":1,"nodes":["a-1"],"resumed":false}"#,
                ),
            ),
        ),
        (
            "a second head grants what the first has granted",
            Rule::NodeGrantedTwice,
            replaced(
                r#""epoch":2,"nodes":["a-1","b-1"],"resumed":true"#,
                r#""epoch":2,"nodes":["a-1","b-1"],"resumed":false"#,
            ),
        ),
        ("a forgotten node", Rule::NodeForgotten, removed("\"why\":\"the job is over\"")),
        (
            "an epoch that is issued twice",
            Rule::EpochWentBack,
            replaced(
                r#""kind":"epoch_issued","job":1,"epoch":2"#,
                r#""kind":"epoch_issued","job":1,"epoch":1"#,
            ),
        ),
        (
            "a view that goes back",
            Rule::EpochWentBack,
            replaced(r#""epoch":2,"version":2"#, r#""epoch":1,"version":2"#),
        ),
        (
            "a second coordinator of an epoch",
            Rule::TwoCoordinators,
            inserted(
                "\"epoch\":1,\"version\":1",
                &record(
                    "b-1/6",
                    1_000,
                    r#"{"kind":"view_changed","job":1,"epoch":1,"version":9,"members":2}"#,
                ),
            ),
        ),
        (
            "an epoch that was not issued",
            Rule::UnissuedEpoch,
            replaced(r#""epoch":2,"version":2"#, r#""epoch":7,"version":2"#),
        ),
        (
            "a lease with two holders",
            Rule::LeaseHeldTwice,
            inserted(
                "\"path\":[0,1],\"task\":\"fib\"",
                &record(
                    "c-1/8",
                    1,
                    concat!(
                        r#"{"kind":"task_stolen","job":1,"path":[0,1],"task":"fib","#,
                        r#""from":"a-1","to":"c-1","scope":"wide","task_bytes":9,"#,
                        r#""lease":[0,77],"from_incarnation":5}"#,
                    ),
                ),
            ),
        ),
        ("a task that is leased again without its return", Rule::TaskLeasedTwice, {
            let returned = GOOD.lines().find(|line| line.contains("lease_returned"));
            let returned = returned.expect("a returned lease");
            // The number stays, so that the recorder is complete.
            let other = returned.replace("lease_returned", "link_down");
            replaced(returned, &other)
        }),
        (
            "a stolen task with two results",
            Rule::TwoResults,
            replaced(
                r#"{"kind":"job_started","job":1,"name":"fib","epoch":2}"#,
                concat!(
                    r#"{"kind":"task_ended","job":1,"path":[0,1],"from":"a-1","#,
                    r#""to":"b-1","outcome":"done"}"#,
                ),
            ),
        ),
        (
            "a job with two results",
            Rule::TwoResults,
            inserted(
                "\"kind\":\"job_ended\"",
                &record(
                    "b-1/6",
                    1_000,
                    concat!(
                        r#"{"kind":"job_ended","job":1,"ok":true,"wall_us":1,"#,
                        r#""checksum":"00000000000000ff","error":null}"#,
                    ),
                ),
            ),
        ),
        (
            "a wrong result",
            Rule::WrongResult,
            replaced("\"checksum\":\"00000000000000ff\"", "\"checksum\":\"00000000000000fe\""),
        ),
        (
            "an overbooked reservation",
            Rule::Overbooked,
            inserted(
                "\"kind\":\"reservation_agreed\"",
                &record(
                    "head/1",
                    1_001,
                    concat!(
                        r#"{"kind":"reservation_agreed","reservation":4,"#,
                        r#""bookings":[{"cluster":"a","processors":2,"start_us":50,"#,
                        r#""end_us":60}],"capacity":{"a":2}}"#,
                    ),
                ),
            ),
        ),
        ("a refusal without a reason", Rule::BookingNotKept, replaced("only 1 is free", "")),
        (
            "a number with two records",
            Rule::ConflictingRecords,
            inserted(
                "\"kind\":\"job_ended\"",
                &record("b-1/6", 1, r#"{"kind":"dropped","facts":1}"#),
            ),
        ),
    ];
    for (what, rule, log) in all {
        let verdict = judged(&log);
        assert!(verdict.names(rule), "{what}: {rule:?} is not named:\n{verdict}");
        let fault = verdict.faults.iter().find(|fault| fault.rule == rule);
        assert!(fault.is_some_and(|fault| !fault.excerpt.is_empty()), "{what}:\n{verdict}");
    }
}
