use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use springtide_base::memory::out_of_memory_kills;
use tokio::time::Instant;

use super::message::{
    PilotReport, PilotTask, TaskEnd, TaskFile, TaskProgram, TaskRecord, TaskUsage,
};
use super::tasks::TaskSet;
use crate::command::EnvironmentVariable;
use crate::work::OutputStream;

/// The time in which a test's tasks must end.
const PATIENCE: Duration = Duration::from_secs(60);

fn shell(number: u64, script: &str) -> PilotTask {
    let arguments = vec!["-c".to_owned(), script.to_owned()];
    PilotTask {
        number,
        program: TaskProgram::Command { program: "sh".to_owned(), arguments },
        environment: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        stdin: None,
        stdout: None,
        stderr: None,
        processors: 1,
        memory_bytes: None,
        time_limit: None,
        output_bytes_max: 1 << 20,
        record: None,
    }
}

fn file(stored: &str, name: &str) -> TaskFile {
    TaskFile { stored: stored.to_owned(), name: name.to_owned(), bytes: 0 }
}

fn task_set(processors: u32, stored: Option<&Path>) -> TaskSet {
    let stored = stored.map(Path::to_path_buf);
    TaskSet::new("test", processors, stored, Arc::new(|| ())).expect("a directory")
}

/// The kernel's counter of kills for memory is that of the host, so that tests of kills take turns.
static KILLS: Mutex<()> = Mutex::new(());

/// The ends of tasks and their standard output, after all have ended.
fn run_all(tasks: &mut TaskSet) -> Vec<(u64, TaskEnd, TaskUsage, String)> {
    let begun = Instant::now();
    let (mut ended, mut logs) = (Vec::new(), std::collections::BTreeMap::<u64, Vec<u8>>::new());
    while !tasks.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "tasks have not ended");
        tasks.step(Instant::now());
        for report in tasks.take_reports() {
            match report {
                PilotReport::Log { number, stream: OutputStream::Stdout, bytes } => {
                    tasks.acknowledge(bytes.len() as u64);
                    logs.entry(number).or_default().extend_from_slice(&bytes);
                }
                PilotReport::Log { bytes, .. } => tasks.acknowledge(bytes.len() as u64),
                PilotReport::Ended { number, end, usage } => {
                    let log = logs.remove(&number).unwrap_or_default();
                    ended.push((number, end, usage, String::from_utf8_lossy(&log).into_owned()));
                }
                PilotReport::Started { .. } | PilotReport::Ready { .. } => {}
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    ended.sort_by_key(|(number, ..)| *number);
    ended
}

fn ends(all: &[(u64, TaskEnd, TaskUsage, String)]) -> Vec<TaskEnd> {
    all.iter().map(|(_, end, ..)| end.clone()).collect()
}

#[test]
fn a_task_reads_inputs_and_its_outputs_and_record_are_stored() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("run-in"), "abc\n").expect("a file");
    let mut task = shell(1, "tr a-z A-Z < data/in > out; cat \"$SPRINGTIDE_INPUTS\"; echo $NAME");
    task.inputs = vec![file("run-in", "data/in")];
    task.outputs = vec![file("run-out", "out")];
    let record = TaskRecord { stored: "run-done".to_owned(), content: "{}".into() };
    task.record = Some(record);
    task.environment =
        vec![EnvironmentVariable { name: "NAME".to_owned(), value: "a task".to_owned() }];
    let mut redirected = shell(2, "cat; echo error >&2");
    redirected.inputs = vec![file("run-in", "in")];
    redirected.outputs = vec![file("run-both", "both")];
    redirected.stdin = Some("in".to_owned());
    (redirected.stdout, redirected.stderr) = (Some("both".to_owned()), Some("both".to_owned()));
    let mut tasks = task_set(2, Some(dir.path()));
    tasks.add(task);
    tasks.add(redirected);
    let all = run_all(&mut tasks);
    assert_eq!(ends(&all), [TaskEnd::Completed, TaskEnd::Completed]);
    assert_eq!(all[0].3, "data/in\na task\n");
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).expect("a file");
    assert_eq!((read("run-out").as_str(), read("run-done").as_str()), ("ABC\n", "{}"));
    assert_eq!(read("run-both"), "abc\nerror\n");
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 4);
}

#[test]
fn a_failed_task_has_a_reason_and_stores_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut missing = shell(1, "echo one > one");
    missing.outputs = vec![file("run-one", "one"), file("run-two", "two")];
    let mut large = shell(2, "echo 123456789 > out");
    large.outputs = vec![file("run-out", "out")];
    large.output_bytes_max = 9;
    let mut outside = shell(3, "true");
    outside.outputs = vec![file("run-x", "../x")];
    let mut absent = shell(4, "true");
    absent.program =
        TaskProgram::Command { program: "no-such-program".to_owned(), arguments: Vec::new() };
    let mut wide = shell(5, "true");
    wide.processors = 3;
    let mut tasks = task_set(2, Some(dir.path()));
    [missing, large, outside, absent, wide, shell(6, "exit 7"), shell(7, "kill -9 $$")]
        .into_iter()
        .for_each(|task| tasks.add(task));
    let turn = KILLS.lock().unwrap_or_else(PoisonError::into_inner);
    let all = run_all(&mut tasks);
    drop(turn);
    let reasons: Vec<(Option<u8>, String)> = all
        .iter()
        .map(|(_, end, ..)| match end {
            TaskEnd::Failed { exit, reason } => (*exit, reason.clone()),
            end => panic!("{end:?}"),
        })
        .collect();
    let has = |at: usize, exit: Option<u8>, text: &str| {
        assert_eq!(reasons[at].0, exit, "{:?}", reasons[at]);
        assert!(reasons[at].1.contains(text), "{:?}", reasons[at]);
    };
    has(0, None, "did not write its output two");
    has(1, None, "out has 10 bytes, and no file may have more than 9");
    has(2, None, "leads out of the task's directory");
    has(3, Some(127), "could not start no-such-program");
    has(4, None, "needs 3 processors of one node, and this node has 2");
    has(5, Some(7), "exited with code 7");
    has(6, Some(137), "was ended by signal 9");
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
}

#[test]
fn limits_of_time_and_memory_end_a_task_and_its_children() {
    let mut slow = shell(1, "sleep 600 & sleep 600");
    slow.time_limit = Some(Duration::from_millis(300));
    let mut large = shell(2, "x=$(head -c 64000000 /dev/zero | tr '\\0' x); sleep 600");
    large.memory_bytes = Some(32 << 20);
    let mut tasks = task_set(2, None);
    tasks.add(slow);
    tasks.add(large);
    let all = run_all(&mut tasks);
    assert_eq!(all[0].1, TaskEnd::TimeLimit);
    assert!(all[0].2.wall_s < 30.0, "{:?}", all[0].2);
    assert!(matches!(all[1].1, TaskEnd::MemoryLimit { used } if used > 32 << 20), "{:?}", all[1]);
    assert!(all[1].2.memory_bytes > 32 << 20, "{:?}", all[1].2);
}

/// A control group with a limit of memory, in version 1 or 2 of the kernel's interface.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Creates one, if this process may.
    fn of(bytes: u64) -> Option<Self> {
        let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(PathBuf::from);
        let group = Self(roots.into_iter().find_map(|root| {
            let group = root.join(format!("springtide-test-{}", std::process::id()));
            fs::create_dir(&group).ok()?;
            Some(group)
        })?);
        let limits = ["memory.limit_in_bytes", "memory.max"];
        let mut limits = limits.into_iter().filter(|name| group.0.join(name).exists());
        let set = fs::write(group.0.join(limits.next()?), bytes.to_string());
        set.is_ok().then_some(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Its processes have ended.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_task_that_the_kernel_ends_for_memory_is_told_from_one_that_is_killed() {
    let (Some(group), Some(_)) = (MemoryGroup::of(32 << 20), out_of_memory_kills()) else {
        println!("skipped: no control group for memory can be made");
        return;
    };
    let join = format!("echo $$ > {}/cgroup.procs", group.0.display());
    let hold = "head -c 200000000 /dev/zero | tail -c 150000000";
    let mut tasks = task_set(2, None);
    let turn = KILLS.lock().unwrap_or_else(PoisonError::into_inner);
    tasks.add(shell(1, &format!("{join}; {hold} > /dev/null")));
    let all = run_all(&mut tasks);
    drop(turn);
    assert!(matches!(all[0].1, TaskEnd::MemoryLimit { .. }), "{:?}", all[0]);
}

#[test]
fn tasks_wait_for_processors_in_order_and_can_be_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("order");
    let script = |name: &str| format!("echo {name} >> {}", log.display());
    let mut wide = shell(2, &script("wide"));
    wide.processors = 2;
    let mut tasks = task_set(2, None);
    tasks.add(shell(1, &format!("sleep 0.2; {}", script("first"))));
    tasks.add(wide);
    tasks.add(shell(3, &script("last")));
    tasks.add(shell(4, "sleep 600"));
    tasks.add(shell(5, "true"));
    tasks.end(5, Instant::now());
    let begun = Instant::now();
    let mut started = false;
    let mut ended = Vec::new();
    while !tasks.is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        tasks.step(Instant::now());
        for report in tasks.take_reports() {
            match report {
                PilotReport::Started { number: 4 } => started = true,
                PilotReport::Ended { number, end, .. } => ended.push((number, end)),
                _ => {}
            }
        }
        if started {
            tasks.end(4, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(fs::read_to_string(&log).expect("a file"), "first\nwide\nlast\n");
    assert!(ended.contains(&(5, TaskEnd::Cancelled)) && ended.contains(&(4, TaskEnd::Cancelled)));
    assert_eq!(ended.len(), 5);
}

#[test]
fn a_placeholder_writes_outputs_of_its_sizes_and_the_whole_log_is_sent() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut pretend = shell(1, "");
    pretend.program = TaskProgram::Placeholder { seconds: 0.05 };
    pretend.outputs = vec![TaskFile { bytes: 12_345, ..file("run-out", "out") }];
    // More than the pilot sends without acknowledgements.
    let loud = shell(2, "head -c 20000000 /dev/zero");
    let mut tasks = task_set(2, Some(dir.path()));
    tasks.add(pretend);
    tasks.add(loud);
    let all = run_all(&mut tasks);
    assert_eq!(ends(&all), [TaskEnd::Completed, TaskEnd::Completed]);
    assert!(all[0].2.wall_s >= 0.05);
    assert_eq!(fs::metadata(dir.path().join("run-out")).expect("a file").len(), 12_345);
    assert_eq!(all[1].3.len(), 20_000_000);
}

#[test]
fn an_interrupted_pilot_ends_all_tasks() {
    let mut tasks = task_set(1, None);
    tasks.add(shell(1, "trap '' TERM; sleep 600 & wait"));
    tasks.add(shell(2, "true"));
    tasks.step(Instant::now());
    std::thread::sleep(Duration::from_millis(100));
    tasks.interrupt();
    let mut ended = Vec::new();
    for report in tasks.take_reports() {
        if let PilotReport::Ended { number, end, .. } = report {
            ended.push((number, end));
        }
    }
    ended.sort_by_key(|(number, _)| *number);
    assert_eq!(ended, [(1, TaskEnd::Interrupted), (2, TaskEnd::Interrupted)]);
}
