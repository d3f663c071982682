use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::frame::*;
use super::session::{ProtocolViolation, RunnerRequest, Session};
use super::task::CancelledTasks;
use super::{RunnerSpec, check_runner};
use crate::share::Merged as _;

fn call(name: &str) -> FunctionCall {
    FunctionCall {
        function: FunctionName { object: Some(3), name: name.to_owned() },
        arguments: Bytes::from_static(b"\x01\x02"),
        buffers: vec![Bytes::from_static(b"buffer")],
        objects: vec![3, 4],
    }
}

fn outcome() -> CallOutcome {
    CallOutcome::Result { value: Bytes::from_static(b"7"), buffers: Vec::new() }
}

fn hello() -> RunnerFrame {
    RunnerFrame::Hello { version: PROTOCOL_VERSION, tasks: None }
}

fn hex(bytes: &[u8]) -> String {
    let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.chunks(32).map(|line| line.concat() + "\n").collect()
}

/// Compares a frame with its golden file, and reads the bytes of the file.
fn check_golden<F>(name: &str, frame: &F)
where
    F: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let home = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/runner");
    let file = format!("{home}/{name}.v{PROTOCOL_VERSION}.hex");
    let bytes = encode_frame(frame).expect("it encodes");
    if std::env::var_os("SPRINGTIDE_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&file, hex(&bytes)).expect("the file is written");
    }
    let golden = std::fs::read_to_string(&file).unwrap_or_else(|error| {
        panic!("{file}: {error}; for a new frame run the test with SPRINGTIDE_BLESS=1")
    });
    assert_eq!(golden, hex(&bytes), "{name}: runners of this version read the golden form");
    let mut buffer = FrameBuffer::default();
    for byte in &bytes {
        assert_eq!(buffer.next_frame::<F>(), Ok(None), "{name}");
        buffer.extend(&[*byte]);
    }
    assert_eq!(buffer.next_frame::<F>(), Ok(Some(clone(frame))), "{name}");
}

/// A copy by way of the wire, for types that need not be `Clone` otherwise.
fn clone<F: serde::Serialize + serde::de::DeserializeOwned>(frame: &F) -> F {
    let mut buffer = FrameBuffer::default();
    buffer.extend(&encode_frame(frame).expect("it encodes"));
    buffer.next_frame().expect("it decodes").expect("it is complete")
}

#[test]
fn frames_have_their_golden_form() {
    let failure = TaskFailure {
        kind: "ValueError".to_owned(),
        message: "no".to_owned(),
        traceback: "line 1".to_owned(),
        value: Some(Bytes::from_static(b"e")),
    };
    let (version, node) = (PROTOCOL_VERSION, "ams-0".to_owned());
    let welcome = NodeFrame::Welcome { version, node: node.clone(), cluster: "ams".to_owned() };
    check_golden("node.welcome", &welcome);
    check_golden("node.task", &NodeFrame::Task { task: 1, call: call("m:f") });
    check_golden("node.joined", &NodeFrame::Joined { task: 1, child: 0, outcome: outcome() });
    let failed = CallOutcome::Failure(failure.clone());
    check_golden("node.joined-failed", &NodeFrame::Joined { task: 1, child: 0, outcome: failed });
    let data = Some(Bytes::from_static(b"data"));
    check_golden("node.object", &NodeFrame::Object { task: 1, object: 3, data });
    check_golden("node.cancel", &NodeFrame::Cancel { task: 1 });
    check_golden("node.end", &NodeFrame::End {});
    let tasks = Some(vec!["m:f".to_owned()]);
    check_golden("runner.hello", &RunnerFrame::Hello { version, tasks });
    let (value, buffers) = (Bytes::from_static(b"7"), vec![Bytes::from_static(b"8")]);
    check_golden("runner.result", &RunnerFrame::Result { task: 1, value, buffers });
    check_golden("runner.failure", &RunnerFrame::Failure { task: 1, failure });
    check_golden("runner.spawn", &RunnerFrame::Spawn { task: 1, child: 0, call: call("m:g") });
    check_golden("runner.join", &RunnerFrame::Join { task: 1, child: 0 });
    check_golden("runner.get", &RunnerFrame::Get { task: 1, object: 3 });
    let (level, text) = ("info".to_owned(), "a line".to_owned());
    check_golden("runner.log", &RunnerFrame::Log { level, text });
    let progress = RunnerFrame::Progress { done: 1, total: 2, what: "files".to_owned() };
    check_golden("runner.progress", &progress);
    check_golden("client.put", &ClientFrame::Put { object: 3, data: Bytes::from_static(b"d") });
    check_golden("client.submit", &ClientFrame::Submit { task: 1, call: call("m:f") });
    check_golden("client.cancel", &ClientFrame::Cancel { task: 1 });
    check_golden("client.end", &ClientFrame::End {});
    check_golden("bridge.ready", &BridgeFrame::Ready { version, node, processors: 6 });
    check_golden("bridge.done", &BridgeFrame::Done { task: 1, outcome: outcome() });
    let (node, text) = ("ams-1".to_owned(), "a line".to_owned());
    check_golden("bridge.output", &BridgeFrame::Output { node: node.clone(), text: text.clone() });
    let level = "info".to_owned();
    check_golden("bridge.log", &BridgeFrame::Log { node: node.clone(), level, text });
    let (done, total, what) = (1, 2, "files".to_owned());
    let progress = BridgeFrame::Progress { node, task: 1, done, total, what };
    check_golden("bridge.progress", &progress);
    check_golden("bridge.processors", &BridgeFrame::Processors { processors: 7 });
    check_golden("bridge.closed", &BridgeFrame::Closed { reason: Some("lost".to_owned()) });
}

#[test]
fn a_reader_ignores_unknown_fields_and_refuses_long_frames() {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "kebab-case")]
    enum Later {
        Join { task: u64, child: u32, priority: u32 },
    }
    let mut buffer = FrameBuffer::default();
    let later = Later::Join { task: 1, child: 2, priority: 3 };
    buffer.extend(&encode_frame(&later).expect("it encodes"));
    assert_eq!(buffer.next_frame(), Ok(Some(RunnerFrame::Join { task: 1, child: 2 })));
    buffer.extend(&u32::MAX.to_be_bytes());
    let refused = buffer.next_frame::<RunnerFrame>();
    assert_eq!(refused, Err(FrameFault::TooLong(u32::MAX as usize)));
}

fn ready() -> Session {
    let mut session = Session::default();
    assert_eq!(session.receive(hello()), Ok(RunnerRequest::Welcome));
    session
}

fn result(task: u64) -> RunnerFrame {
    RunnerFrame::Result { task, value: Bytes::from_static(b"7"), buffers: Vec::new() }
}

fn spawn(task: u64, child: u32) -> RunnerFrame {
    RunnerFrame::Spawn { task, child, call: call("m:g") }
}

#[test]
fn a_task_runs_on_top_of_one_that_waits() {
    let mut session = ready();
    assert!(session.begin(call("m:f")).is_some());
    assert_eq!(session.begin(call("m:f")), None, "it computes");
    assert!(session.receive(spawn(1, 0)).is_ok());
    let join = RunnerFrame::Join { task: 1, child: 0 };
    assert_eq!(session.receive(join.clone()), Ok(RunnerRequest::Join { child: 0 }));
    let begun = session.begin(call("m:g"));
    assert_eq!(begun, Some(NodeFrame::Task { task: 2, call: call("m:g") }));
    assert_eq!(session.receive(result(1)), Err(ProtocolViolation::OtherTask(1)));
    assert_eq!(session.receive(result(2)), Ok(RunnerRequest::End { outcome: outcome() }));
    let joined = session.answer_join(outcome());
    assert_eq!(joined, Some(NodeFrame::Joined { task: 1, child: 0, outcome: outcome() }));
    let again = session.receive(join);
    assert_eq!(again, Err(ProtocolViolation::UnknownChild { task: 1, child: 0 }));
    assert!(session.receive(result(1)).is_ok());
    assert!(session.accepts_task() && session.depth() == 0);
}

#[test]
fn frames_out_of_place_are_violations() {
    let mut session = Session::default();
    assert_eq!(session.receive(result(1)), Err(ProtocolViolation::NoHello));
    let other = RunnerFrame::Hello { version: 9, tasks: None };
    assert_eq!(session.receive(other), Err(ProtocolViolation::Version(9)));
    let mut session = ready();
    assert_eq!(session.receive(hello()), Err(ProtocolViolation::SecondHello));
    assert_eq!(session.receive(result(1)), Err(ProtocolViolation::OtherTask(1)));
    session.begin(call("m:f"));
    let number = ProtocolViolation::ChildNumber { task: 1, child: 1, next: 0 };
    assert_eq!(session.receive(spawn(1, 1)), Err(number));
    let get = RunnerFrame::Get { task: 1, object: 3 };
    assert_eq!(session.receive(get.clone()), Ok(RunnerRequest::Get { object: 3 }));
    assert_eq!(session.receive(get), Err(ProtocolViolation::Waits(1)));
    assert!(!session.accepts_task(), "it waits for an object, and not for a child");
    assert_eq!(session.answer_join(outcome()), None);
    assert!(session.answer_get(None).is_some());
}

#[test]
fn a_runner_that_lists_its_functions_gets_no_other_one() {
    let mut session = Session::default();
    let hello = RunnerFrame::Hello { version: PROTOCOL_VERSION, tasks: Some(vec!["f".to_owned()]) };
    assert!(session.receive(hello).is_ok());
    let named = |name: &str, object| FunctionName { object, name: name.to_owned() };
    assert_eq!(session.refusal(&named("f", None)), None);
    let refused = session.refusal(&named("g", None)).expect("it is refused");
    assert_eq!(refused.kind, "springtide.UnknownFunction");
    assert_eq!(session.refusal(&named("g", Some(1))), None, "its code is in an object");
}

/// Nodes receive cancellations in any order and more than once.
#[test]
fn cancelled_tasks_merge_in_any_order_and_are_forgotten_after_their_end() {
    let cancelled =
        |first, tasks: &[u64]| CancelledTasks { first, tasks: tasks.iter().copied().collect() };
    let parts = [cancelled(1, &[2, 5]), cancelled(4, &[9]), cancelled(1, &[3])];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut merged = CancelledTasks::default();
        for at in order {
            merged.merge(&parts[at]);
            merged.merge(&parts[at]);
        }
        assert_eq!(merged, cancelled(4, &[5, 9]), "{order:?}");
    }
}

fn any_frame() -> impl Strategy<Value = RunnerFrame> {
    let (task, child) = (0u64..4, 0u32..3);
    prop_oneof![
        Just(hello()),
        task.clone().prop_map(result),
        (task.clone(), child.clone()).prop_map(|(task, child)| spawn(task, child)),
        (task.clone(), child.clone()).prop_map(|(task, child)| RunnerFrame::Join { task, child }),
        (task, child).prop_map(|(task, object)| RunnerFrame::Get { task, object }),
    ]
}

proptest! {
    /// Any order of frames, tasks and answers keeps the order of a stack.
    #[test]
    fn a_session_keeps_its_stack(steps in prop::collection::vec((any_frame(), 0u8..4), 1..60)) {
        let mut session = ready();
        for (frame, action) in steps {
            let depth = session.depth();
            match action {
                0 => {
                    let accepts = session.accepts_task();
                    prop_assert_eq!(session.begin(call("m:f")).is_some(), accepts);
                    prop_assert_eq!(session.depth(), depth + usize::from(accepts));
                }
                1 => drop(session.answer_join(outcome())),
                2 => drop(session.answer_get(None)),
                _ => match session.receive(frame) {
                    Ok(RunnerRequest::End { .. }) => prop_assert_eq!(session.depth(), depth - 1),
                    Ok(_) | Err(_) => prop_assert_eq!(session.depth(), depth),
                },
            }
        }
    }
}

fn spec(command: &[&str]) -> RunnerSpec {
    RunnerSpec {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        environment: Vec::new(),
        directory: None,
        start_timeout: Duration::from_secs(10),
        is_malleable: false,
    }
}

#[test]
fn a_program_that_is_no_runner_has_a_reason() {
    let checks = check_runner(&spec(&["no-such-program"]));
    let failure = checks[0].failure.as_deref().unwrap_or_default();
    assert!(failure.contains("could not be started (no-such-program)"), "{failure}");
    let checks = check_runner(&spec(&["sh", "-c", "echo no >&2; exit 3"]));
    let failure = checks[0].failure.as_deref().unwrap_or_default();
    assert!(failure.contains("exited with code 3") && failure.contains("log: no"), "{failure}");
    let checks = check_runner(&spec(&["echo", "a long line of text that is no frame"]));
    let failure = checks[0].failure.as_deref().unwrap_or_default();
    assert!(failure.contains("violated the protocol"), "{failure}");
    let late = RunnerSpec { start_timeout: Duration::from_millis(100), ..spec(&["sleep", "60"]) };
    let failure = check_runner(&late)[0].failure.clone().unwrap_or_default();
    assert!(failure.contains("sent no hello within 100ms"), "{failure}");
}
