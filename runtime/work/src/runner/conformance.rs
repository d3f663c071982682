//! A test that any runner can be held against.
//!
//! The runner must have the functions of this test, whose arguments and values are plain bytes in
//! no encoding. It needs no grid.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::frame::{CallOutcome, FunctionCall, FunctionName};
use super::process::{RunnerFault, RunnerPlace, RunnerProcess};
use super::root::RunnerSpec;
use super::session::RunnerRequest;

/// Returns its arguments and buffers.
const ECHO: &str = "check:echo";
/// Fails with the type `Refused`, its arguments as the message, and any traceback.
const FAIL: &str = "check:fail";
/// Spawns two children that echo its arguments, joins the second one and then the first one, and
/// returns the value of the first one. The failure of a child is its own failure.
const SPAWN: &str = "check:spawn";
/// Returns the bytes of its first shared object.
const GET: &str = "check:get";
/// Prints its arguments and then returns them.
const PRINT: &str = "check:print";

/// The time in which a runner must answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The bytes of a large argument.
const LARGE: usize = 5 << 20;
/// The object of a task.
const OBJECT: u32 = 7;

/// The result of one part of the test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConformanceCheck {
    /// The requirement that this part checks.
    pub name: &'static str,
    /// The reason why the runner does not meet it; absent if it does.
    pub failure: Option<String>,
}

/// Holds a runner against the protocol. Starts it once, and again after a failed part.
/// Stops at a failed start.
pub fn check_runner(spec: &RunnerSpec) -> Vec<ConformanceCheck> {
    let parts: [(&'static str, CheckPart); 9] = [
        ("it starts and answers with hello", |_| Ok(())),
        ("it returns arguments and buffers as they are", echo),
        ("it returns a large value", large),
        ("it reports a failure and continues", fail),
        ("it spawns and joins children", spawn),
        ("it passes on the failure of a child", spawn_failing),
        ("it runs a task on top of one that waits", nested),
        ("it reads a shared object", get),
        ("what it prints does not reach the protocol", print),
    ];
    let (mut checks, mut conversation) = (Vec::new(), None);
    for (name, part) in parts {
        let mut talks = match conversation.take().map_or_else(|| Conversation::start(spec), Ok) {
            Ok(talks) => talks,
            Err(failure) => {
                checks.push(ConformanceCheck { name, failure: Some(failure) });
                break;
            }
        };
        let failure = part(&mut talks).err();
        if failure.is_none() {
            conversation = Some(talks);
        }
        checks.push(ConformanceCheck { name, failure });
    }
    checks
}

/// A part of the test: the reason of its failure.
type CheckPart = fn(&mut Conversation) -> Result<(), String>;

struct Conversation {
    runner: RunnerProcess,
}

fn call(name: &str, arguments: &Bytes) -> FunctionCall {
    FunctionCall {
        function: FunctionName { object: None, name: name.to_owned() },
        arguments: arguments.clone(),
        buffers: Vec::new(),
        objects: Vec::new(),
    }
}

fn text_of(fault: RunnerFault) -> String {
    match fault {
        RunnerFault::Halted(_) => "the runner was halted".to_owned(),
        RunnerFault::Cancelled => "the task was cancelled".to_owned(),
        RunnerFault::Died(reason) => format!("the runner {reason}"),
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: &T,
    expected: &T,
) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let short = |value: &T| format!("{value:?}").chars().take(200).collect::<String>();
    Err(format!("{what}: {} in place of {}", short(found), short(expected)))
}

impl Conversation {
    fn start(spec: &RunnerSpec) -> Result<Self, String> {
        let place = RunnerPlace { node: "check", cluster: "check" };
        let runner = RunnerProcess::start(spec, place, None, None).map_err(text_of)?;
        Ok(Self { runner })
    }

    fn begin(&mut self, call: FunctionCall) -> Result<(), String> {
        let frame = self.runner.session.begin(call).ok_or("it accepts no task now")?;
        self.runner.send(&frame, None).map_err(text_of)
    }

    /// The next request that asks for something.
    fn request(&mut self) -> Result<RunnerRequest, String> {
        loop {
            let until = Instant::now() + ANSWER_TIMEOUT;
            match self.runner.receive(Some(until), None).map_err(text_of)? {
                Some(RunnerRequest::Log { .. } | RunnerRequest::Progress { .. }) => {}
                Some(request) => return Ok(request),
                None => return Err(format!("it did not answer within {ANSWER_TIMEOUT:?}")),
            }
        }
    }

    fn end(&mut self) -> Result<CallOutcome, String> {
        match self.request()? {
            RunnerRequest::End { outcome } => Ok(outcome),
            request => Err(format!("{request:?} in place of a result")),
        }
    }

    fn value(&mut self) -> Result<(Bytes, Vec<Bytes>), String> {
        match self.end()? {
            CallOutcome::Result { value, buffers } => Ok((value, buffers)),
            CallOutcome::Failure(failure) => {
                Err(format!("it failed with {}: {}", failure.kind, failure.message))
            }
        }
    }

    fn run(&mut self, call: FunctionCall) -> Result<(Bytes, Vec<Bytes>), String> {
        self.begin(call)?;
        self.value()
    }

    /// Expects a spawned child, and returns its call.
    fn spawned(&mut self, number: u32) -> Result<FunctionCall, String> {
        match self.request()? {
            RunnerRequest::Spawn { child, call } => {
                equal("the number of a child", &child, &number)?;
                Ok(call)
            }
            request => Err(format!("{request:?} in place of a spawn")),
        }
    }

    fn joined(&mut self, number: u32) -> Result<(), String> {
        match self.request()? {
            RunnerRequest::Join { child } => equal("the joined child", &child, &number),
            request => Err(format!("{request:?} in place of a join")),
        }
    }

    fn answer(&mut self, outcome: CallOutcome) -> Result<(), String> {
        let frame = self.runner.session.answer_join(outcome).ok_or("it does not wait")?;
        self.runner.send(&frame, None).map_err(text_of)
    }
}

fn result(bytes: &Bytes) -> CallOutcome {
    CallOutcome::Result { value: bytes.clone(), buffers: Vec::new() }
}

fn echo(talks: &mut Conversation) -> Result<(), String> {
    for arguments in [Bytes::new(), Bytes::from_static(b"\x00\xff text")] {
        let buffers = vec![Bytes::from_static(b"first"), Bytes::new()];
        let call = FunctionCall { buffers: buffers.clone(), ..call(ECHO, &arguments) };
        equal("the value", &talks.run(call)?, &(arguments, buffers))?;
    }
    Ok(())
}

fn large(talks: &mut Conversation) -> Result<(), String> {
    let bytes = Bytes::from((0..LARGE).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    let (value, _) = talks.run(call(ECHO, &bytes))?;
    if value == bytes { Ok(()) } else { Err("the value differs".to_owned()) }
}

fn fail(talks: &mut Conversation) -> Result<(), String> {
    talks.begin(call(FAIL, &Bytes::from_static(b"a reason")))?;
    match talks.end()? {
        CallOutcome::Failure(failure) => {
            let found = (failure.kind.as_str(), failure.message.as_str());
            equal("type and message", &found, &("Refused", "a reason"))?;
        }
        CallOutcome::Result { .. } => return Err("it returned a value".to_owned()),
    }
    echo(talks)
}

fn spawn(talks: &mut Conversation) -> Result<(), String> {
    let bytes = Bytes::from_static(b"parent");
    talks.begin(call(SPAWN, &bytes))?;
    for number in 0..2 {
        let child = talks.spawned(number)?;
        equal("the function of a child", &child.function.name, &ECHO.to_owned())?;
        equal("the arguments of a child", &child.arguments, &bytes)?;
    }
    talks.joined(1)?;
    talks.answer(result(&Bytes::from_static(b"second")))?;
    talks.joined(0)?;
    talks.answer(result(&Bytes::from_static(b"first")))?;
    equal("the value", &talks.value()?.0, &Bytes::from_static(b"first"))
}

fn spawn_failing(talks: &mut Conversation) -> Result<(), String> {
    talks.begin(call(SPAWN, &Bytes::new()))?;
    talks.spawned(0)?;
    talks.spawned(1)?;
    talks.joined(1)?;
    let failure = super::TaskFailure {
        kind: "Refused".to_owned(),
        message: "a child".to_owned(),
        ..super::TaskFailure::default()
    };
    talks.answer(CallOutcome::Failure(failure))?;
    match talks.end()? {
        CallOutcome::Failure(failure) => {
            equal("the message", &failure.message.contains("a child"), &true)
        }
        CallOutcome::Result { .. } => Err("it returned a value".to_owned()),
    }
}

fn nested(talks: &mut Conversation) -> Result<(), String> {
    let bytes = Bytes::from_static(b"below");
    talks.begin(call(SPAWN, &bytes))?;
    let child = talks.spawned(0)?;
    talks.spawned(1)?;
    talks.joined(1)?;
    let (value, buffers) = talks.run(child)?;
    equal("the value of the child", &value, &bytes)?;
    talks.answer(CallOutcome::Result { value: value.clone(), buffers })?;
    talks.joined(0)?;
    let (above, _) = talks.run(call(ECHO, &Bytes::from_static(b"unrelated")))?;
    equal("the value of an unrelated task", &above, &Bytes::from_static(b"unrelated"))?;
    talks.answer(result(&value))?;
    equal("the value", &talks.value()?.0, &bytes)
}

fn get(talks: &mut Conversation) -> Result<(), String> {
    talks.begin(FunctionCall { objects: vec![OBJECT], ..call(GET, &Bytes::new()) })?;
    match talks.request()? {
        RunnerRequest::Get { object } => equal("the object", &object, &OBJECT)?,
        request => return Err(format!("{request:?} in place of a get")),
    }
    let bytes = Bytes::from_static(b"shared");
    let frame = talks.runner.session.answer_get(Some(bytes.clone())).ok_or("it does not wait")?;
    talks.runner.send(&frame, None).map_err(text_of)?;
    equal("the value", &talks.value()?.0, &bytes)
}

fn print(talks: &mut Conversation) -> Result<(), String> {
    let bytes = Bytes::from_static(b"printed by a task");
    equal("the value", &talks.run(call(PRINT, &bytes))?.0, &bytes)
}
