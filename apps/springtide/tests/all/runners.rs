//! Runners: the conformance of two of them, a client without a package, and the package for Python.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use springtide_runtime::runner::{
    BridgeFrame, CallOutcome, ClientFrame, FrameBuffer, FunctionCall, FunctionName, encode_frame,
};

use super::support::{finish, program, run};

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");
const PERL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/runner.pl");

/// Whether a program runs with this argument. Prints why a test is skipped otherwise.
fn has(name: &str, argument: &str) -> bool {
    let ended = Command::new(name).args(["-c", argument]).stdin(Stdio::null()).status();
    let has = ended.is_ok_and(|status| status.success());
    if !has {
        eprintln!("skipped: there is no {name} that runs `{argument}`");
    }
    has
}

fn has_python() -> bool {
    has("python3", "import sys; sys.exit(sys.version_info < (3, 9))")
}

#[test]
fn two_runners_conform_and_a_program_that_is_none_does_not() {
    if has("perl", PERL) {
        let checked = run(&["runner", "check", "--", "perl", PERL]);
        assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
        assert_eq!(checked.out.matches(": ok\n").count(), 9, "{}", checked.out);
    }
    if has_python() {
        let path = format!("PYTHONPATH={PACKAGE}");
        let line = ["runner", "check", "--env", &path, "--", "python3", "-B", "-m"];
        let checked = run(&[&line[..], &["springtide.runner"]].concat());
        assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
        assert_eq!(checked.out.matches(": ok\n").count(), 9, "{}", checked.out);
    }
    let checked = run(&["runner", "check", "--", "sh", "-c", "echo none >&2"]);
    assert_eq!(checked.code, Some(1));
    assert!(
        checked.out.contains("exited with code 0; the end of its log: none"),
        "{}",
        checked.out
    );
}

#[test]
fn a_variable_without_a_value_must_be_in_the_environment() {
    let missing = "NO_SUCH_VARIABLE_OF_THE_TEST";
    let checked = run(&["runner", "check", "--env", missing, "--", "true"]);
    assert_eq!(checked.code, Some(2));
    let expected = format!("the value of \"{missing}\" is not known");
    assert!(checked.err.contains(&expected), "{}", checked.err);
}

fn call(name: &str, arguments: &str) -> FunctionCall {
    FunctionCall {
        function: FunctionName { object: None, name: name.to_owned() },
        arguments: arguments.to_owned().into(),
        buffers: Vec::new(),
        objects: Vec::new(),
    }
}

/// A client of the bridge: commands by the runner in Perl, children on other nodes.
#[test]
fn a_runner_of_commands_serves_a_client_on_two_nodes() {
    if !has("perl", PERL) {
        return;
    }
    let mut command = program(&["-q", "runner", "client", "--clusters", "2x1", "--", "perl", PERL]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut input = child.stdin.take().expect("it is piped");
    let calls = [
        call("sh", "echo $((6 * 7))"),
        call("sh", "exit 5"),
        call("check:spawn", "text"),
        call("none", ""),
    ];
    let output = child.stdout.take().expect("it is piped");
    for (at, call) in calls.into_iter().enumerate() {
        let frame = ClientFrame::Submit { task: at as u64, call };
        input.write_all(&encode_frame(&frame).expect("it encodes")).expect("it reads");
    }
    let mut frames = FrameReader { output, buffer: FrameBuffer::default() };
    assert!(matches!(frames.next(), Some(BridgeFrame::Ready { version: 1, processors: 2, .. })));
    let mut ends = std::collections::BTreeMap::new();
    while ends.len() < 4 {
        match frames.next() {
            Some(BridgeFrame::Done { task, outcome }) => drop(ends.insert(task, outcome)),
            frame => panic!("{frame:?}"),
        }
    }
    let value =
        |text: &str| CallOutcome::Result { value: text.to_owned().into(), buffers: Vec::new() };
    let failure = |task| match &ends[&task] {
        CallOutcome::Failure(failure) => (failure.kind.as_str(), failure.message.as_str()),
        outcome => panic!("{outcome:?}"),
    };
    assert_eq!((&ends[&0], &ends[&2]), (&value("42\n"), &value("text")));
    assert_eq!(failure(1), ("Exit", "exited with code 5"));
    assert_eq!(failure(3).0, "springtide.UnknownFunction");
    drop(input);
    assert!(matches!(frames.next(), Some(BridgeFrame::Closed { reason: None })));
    let ended = child.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

struct FrameReader<R> {
    output: R,
    buffer: FrameBuffer,
}

impl<R: std::io::Read> FrameReader<R> {
    fn next(&mut self) -> Option<BridgeFrame> {
        loop {
            if let Some(frame) = self.buffer.next_frame().expect("a frame") {
                return Some(frame);
            }
            let mut piece = [0; 4096];
            match self.output.read(&mut piece).expect("it is readable") {
                0 => return None,
                count => self.buffer.extend(&piece[..count]),
            }
        }
    }
}

#[test]
fn a_client_that_sends_no_frames_gets_a_reason() {
    let mut command = program(&["-q", "runner", "client", "--clusters", "1x1", "--", "true"]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "this is no frame").expect("a file");
    command.stdin(std::fs::File::open(file.path()).expect("a file"));
    let ended = command.output().expect("the program starts");
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{err}");
    assert!(err.contains("standard input has no frames of a client"), "{err}");
}

/// The package's own tests, with the machine's interpreter and no other package.
#[test]
fn the_package_for_python_passes_its_tests() {
    if !has_python() {
        return;
    }
    let tests = Path::new(PACKAGE).join("tests");
    let mut command = Command::new("python3");
    command
        .args(["-B", "-m", "unittest", "-v", "test_springtide", "test_examples"])
        .current_dir(&tests);
    command.env("PYTHONPATH", format!("{PACKAGE}:{}", tests.display()));
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("SPRINGTIDE_BINARY", env!("CARGO_BIN_EXE_springtide")).stdin(Stdio::null());
    let ended = finish(command);
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    for line in ended.err.lines().filter(|line| line.contains("skipped")) {
        eprintln!("{line}");
    }
}
