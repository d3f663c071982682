//! Slots of a running grid, reservations of them, and workflows on them or just in time.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

use crate::drains::Up;
use crate::jobs::{job, object, size, status};
use crate::support::{CommandOutput, RunningCommand, kill, program, run, text, until};

fn execute(up: &Up, line: &[&str]) -> CommandOutput {
    run(&[line, &["--config", up.file.to_str().unwrap()]].concat())
}

fn slots(up: &Up) -> Value {
    let listed = execute(up, &["slots", "list", "--json"]);
    assert_eq!(listed.code, Some(0), "{}", listed.err);
    object(&listed)
}

/// The processors that a cluster offers from now on.
fn now_free(up: &Up, cluster: &str) -> u64 {
    let slots = slots(up);
    let sites = slots["sites"].as_array().unwrap();
    let site = sites.iter().find(|site| site["name"] == cluster).unwrap();
    let now = |slot: &&Value| slot["start_s"].as_f64().unwrap() <= 0.0;
    let slots = site["slots"].as_array().unwrap().iter().filter(now);
    slots.filter_map(|slot| slot["processors"].as_u64()).sum()
}

fn is_reserved(up: &Up, number: u64) -> bool {
    execute(up, &["slots", "list"]).out.contains(&format!("reservation {number} ("))
}

#[test]
fn malleable_jobs_release_reserved_processors_in_time_and_a_new_head_knows_reservations() {
    let lines = "[scheduling]\npoll = \"300ms\"\nscan_interval = \"300ms\"\n\
    answer_timeout = \"2s\"\nrelease_timeout = \"5s\"\n\
    [slots]\nrate = 2.0\nadvertise_interval = \"300ms\"\n";
    let mut up = Up::with(&[("ams", 3), ("del", 1)], lines);
    assert_eq!(now_free(&up, "ams"), 3);
    // Offers are also in a file.
    let advertised = up.dir.join("slots.json");
    until("slots are advertised", || text(&advertised).contains("\"name\":\"ams\""));
    let on = ["--on", "ams", "--processors", "2"];
    let reserve = |more: &[&str]| execute(&up, &[&["reserve"], &on[..], more].concat());
    // A malleable job uses processors until their reservation begins.
    let submitted = job(&up, &["submit", "queens", "--size", "18", "--on", "ams"]);
    assert_eq!(submitted.out, "job-1\n", "{}", submitted.err);
    until("it has grown", || size(&up, "1") == 3);
    assert_eq!(now_free(&up, "ams"), 2, "what it can give back is offered");
    let made = reserve(&["--in", "14s", "--for", "10m", "--json"]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let one = &object(&made)["reservation"];
    assert_eq!((one["id"].as_u64(), one["cost"].as_f64()), (Some(1), Some(2400.0)));
    let refused = reserve(&["--for", "1m", "--exactly"]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    let dear = reserve(&["--in", "20m", "--for", "1m", "--budget", "100"]);
    assert_eq!(dear.code, Some(3), "{}", dear.err);
    assert!(dear.err.contains("the cost is 240.00"), "{}", dear.err);
    let nowhere = execute(&up, &["reserve", "--on", "bud", "--processors", "1", "--for", "1m"]);
    assert_eq!(nowhere.code, Some(3), "{}", nowhere.err);
    assert!(nowhere.err.contains("no cluster bud"), "{}", nowhere.err);
    // The job of the reservation waits for its time, and for no other's.
    let own = ["submit", "fib", "--n", "20", "--kind", "rigid", "--min", "2", "--reservation", "1"];
    assert_eq!(job(&up, &own).out, "job-2\n");
    until("it has shrunk", || size(&up, "1") == 1);
    let why = job(&up, &["why", "1"]).out;
    assert!(why.contains("makes room for reservation 1"), "{why}");
    let done = job(&up, &["result", "2", "--wait", "--timeout", "2m"]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    // A job that would collide with it has no place there.
    let other = ["plan", "fib", "--kind", "rigid", "--min", "2", "--on", "ams"];
    assert_eq!(job(&up, &other).code, Some(3));
    // The next head knows the reservations.
    up.kill_head();
    up.start_head();
    assert!(is_reserved(&up, 1));
    until("nodes are there", || now_free(&up, "del") == 1);
    let released = execute(&up, &["release", "1"]);
    assert_eq!(released.code, Some(0), "{}", released.err);
    assert!(!is_reserved(&up, 1));
    assert_eq!(execute(&up, &["release", "1"]).code, Some(2));
    let never = ["submit", "fib", "--kind", "rigid", "--reservation", "1"];
    let submitted = job(&up, &never);
    assert_eq!(submitted.code, Some(0), "{}", submitted.err);
    let failed = job(&up, &["result", "3", "--wait", "--timeout", "1m"]);
    assert_eq!(failed.code, Some(3), "{}", failed.err);
    assert_eq!(status(&up, "1")["state"], "running");
    up.end();
}

fn config(dir: &Path) -> String {
    let mut config = "[scheduling]\npoll = \"300ms\"\nscan_interval = \"300ms\"\n".to_owned();
    for (name, nodes) in [("ams", 2), ("bud", 1), ("del", 2)] {
        let files = dir.join("files").join(name);
        config += &format!(
            "[[cluster]]\nname = \"{name}\"\nnodes = {nodes}\nfiles = \"{}\"\n",
            files.display()
        );
    }
    config
}

/// A workflow: numbers are generated, sorted in two parallel halves, and merged; then a registered
/// job runs. `sort` fails once for `once`, and always for `never`.
fn write(dir: &Path, fails: &str) -> PathBuf {
    let once = dir.join("tried");
    let sort = |of: &str| {
        let fails = match fails {
            "once" => format!(
                "test -e {0} || {{ touch {0}; echo not yet >&2; exit 3; }}; ",
                once.display()
            ),
            "never" => "echo it never will >&2; exit 7; ".to_owned(),
            _ => String::new(),
        };
        format!(
            "[[task]]\nid = \"sort-{of}\"\nruntime = 0.2\ninputs = [\"{of}\"]\n\
            outputs = [\"{of}.sorted\"]\n\
            command = [\"sh\", \"-c\", \"{fails}sort -n {of} > {of}.sorted\"]\n"
        )
    };
    let mut all =
        "name = \"sorting\"\n[[task]]\nid = \"make\"\nruntime = 0.2\noutputs = [\"a\", \"b\"]\n\
        command = [\"sh\", \"-c\", \"seq 50 -1 1 > a; seq 51 100 > b; echo $SPRINGTIDE_TASK\"]\n"
            .to_owned();
    all += &(sort("a") + &sort("b"));
    all += "[[task]]\nid = \"merge\"\nruntime = 0.2\ninputs = [\"a.sorted\", \"b.sorted\"]\n\
    outputs = [\"all\"]\n\
    command = [\"sh\", \"-c\", \"cat a.sorted b.sorted > all\"]\n\
    [[task]]\nid = \"queens\"\nruntime = 1\nprocessors = 2\nafter = [\"merge\"]\njob = \"queens\"\n\
    arguments = [\"--size\", \"8\"]\n";
    for name in ["a", "b", "a.sorted", "b.sorted", "all"] {
        all += &format!("[[file]]\nname = \"{name}\"\nsize = 300\n");
    }
    let file = dir.join(format!("sorting-{fails}.toml"));
    fs::write(&file, all).unwrap();
    file
}

/// Files of workflows in clusters' directories.
fn left(up: &Up) -> Vec<PathBuf> {
    let clusters = fs::read_dir(up.temp.path().join("files")).unwrap();
    let files = clusters.flat_map(|cluster| fs::read_dir(cluster.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn a_workflow_is_run_on_reserved_slots_and_just_in_time_and_leaves_nothing() {
    let up = Up::written(config);
    let once = write(up.temp.path(), "once");
    for (how, more) in [("reserved", &[][..]), ("best-effort", &["--best-effort"][..])] {
        let _ = fs::remove_file(up.temp.path().join("tried"));
        let (out, got) = (up.temp.path().join(how), up.temp.path().join(format!("{how}-got")));
        let line =
            ["workflow", "run", once.to_str().unwrap(), "--json", "--out", out.to_str().unwrap()];
        let fetch = ["--fetch", got.to_str().unwrap()];
        let ran = execute(&up, &[&line[..], &fetch, more].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let sorted: String = (1..=100).map(|n| format!("{n}\n")).collect();
        assert_eq!(text(&got.join("all")), sorted);
        let object = object(&ran);
        let tasks = object["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), 5);
        assert!(tasks.iter().all(|task| task["end_s"].is_f64()), "{object}");
        let attempts: u64 = tasks.iter().filter_map(|task| task["attempts"].as_u64()).sum();
        // Both may have started before the first left its mark.
        assert!((6..=7).contains(&attempts), "{object}");
        // Existing files are reported before anything runs.
        let again = execute(&up, &[&line[..], &fetch, more].concat());
        assert_eq!(again.code, Some(2), "{}", again.err);
        let reserved = object["reservations"].as_array().unwrap().len();
        assert_eq!(reserved == 0, how == "best-effort", "{object}");
        assert_eq!(text(&out.join("tasks.csv")).lines().count(), 6);
        assert_eq!(left(&up), [""; 0].map(PathBuf::from));
        assert!(!execute(&up, &["slots", "list"]).out.contains("reservation"));
    }
    // A task that always fails is aborted, with the reason. What depends on it is named.
    let never = write(up.temp.path(), "never");
    let line = ["workflow", "run", never.to_str().unwrap(), "--retries", "1"];
    let failed = execute(&up, &line);
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    for text in
        ["exited with code 7", "it never will", "merge and queens depend on these and did not run"]
    {
        assert!(failed.err.contains(text), "{text}: {}", failed.err);
    }
    assert!(failed.out.contains("1 of 5 tasks"), "{}", failed.out);
    let runs = up.dir.join("workflows");
    let never_run = runs.join("sorting-never");
    let log =
        run(&["workflow", "logs", "sort-a", "--stderr", "--run", never_run.to_str().unwrap()]);
    assert_eq!(log.out, "it never will\n", "{}", log.err);
    // After a repair, the same command continues: completed tasks do not run again.
    let repaired = fs::read_to_string(&never).unwrap().replace("exit 7; ", "");
    fs::write(&never, repaired).unwrap();
    let continued = execute(&up, &line);
    assert_eq!(continued.code, Some(0), "{}", continued.err);
    assert!(continued.out.contains("1 were completed before"), "{}", continued.out);
    assert_eq!(left(&up), [""; 0].map(PathBuf::from));
    // Stand-ins, a plan for the grid's offers, and errors of a request.
    let file = once.to_str().unwrap();
    let narrow = diamonds(up.temp.path(), 1, 0.5);
    let pretended =
        execute(&up, &["workflow", "run", narrow.to_str().unwrap(), "--pretend", "0.5"]);
    assert_eq!(pretended.code, Some(0), "{}", pretended.err);
    // A placeholder writes files, and reads none that no task writes.
    let given = up.temp.path().join("given.toml");
    let given_text = "[[task]]\nid = \"a\"\nruntime = 0.1\ninputs = [\"given\"]\n\
                      outputs = [\"made\", \"also/\"]\n";
    fs::write(&given, given_text).unwrap();
    let pretended = execute(&up, &["workflow", "run", given.to_str().unwrap(), "--pretend", "0.5"]);
    assert_eq!(pretended.code, Some(0), "{}", pretended.err);
    assert_eq!(left(&up), [""; 0].map(PathBuf::from));
    // No node has the processors of a placeholder for a job on two nodes.
    let wide = execute(&up, &["workflow", "run", file, "--pretend", "0.5"]);
    assert_eq!(wide.code, Some(1), "{}", wide.err);
    assert!(wide.err.contains("task queens cannot run"), "{}", wide.err);
    let run_dir = runs.join("sorting-once");
    assert_eq!(run(&["workflow", "remove", run_dir.to_str().unwrap()]).code, Some(0));
    let planned = execute(&up, &["workflow", "plan", file, "--json"]);
    assert_eq!(planned.code, Some(0), "{}", planned.err);
    let late = execute(&up, &["workflow", "run", file, "--deadline", "1s"]);
    assert_eq!(late.code, Some(3), "{}", late.err);
    assert!(late.err.contains("the fastest takes"), "{}", late.err);
    // An interrupted run leaves nothing either.
    let pid = up.temp.path().join("pid");
    let sleeps = format!("echo $$ >{0}.new; mv {0}.new {0}; sleep 60; sort -n a ", pid.display());
    let text_of = fs::read_to_string(&once).unwrap().replace("sort -n a ", &sleeps);
    let long = up.temp.path().join("long.toml");
    fs::write(&long, text_of).unwrap();
    let dir = up.temp.path().join("client");
    fs::create_dir_all(&dir).unwrap();
    let mut command = program(&["workflow", "run", long.to_str().unwrap(), "--config"]);
    command.arg(&up.file);
    let mut client = RunningCommand::start(command, &dir);
    until("a task has begun", || !left(&up).is_empty());
    assert!(execute(&up, &["slots", "list"]).out.contains("(sorting)"));
    // A killed run ends its command and removes its directory.
    until("a command runs", || pid.exists());
    let command: u32 = text(&pid).trim().parse().unwrap();
    let of = |what: &str| Path::new("/proc").join(command.to_string()).join(what);
    let room = fs::read_link(of("cwd")).unwrap();
    let stat = text(&of("stat"));
    let parent = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap();
    kill(parent.parse().unwrap(), "KILL");
    until("the command is gone", || !of("stat").exists() && !room.exists());
    client.signal("INT");
    assert_eq!(client.wait().code(), Some(130));
    assert!(!execute(&up, &["slots", "list"]).out.contains("reservation"));
    // Its files are kept for a continuation, until it is removed.
    assert!(!left(&up).is_empty());
    let removed = run(&["workflow", "remove", runs.join("long").to_str().unwrap()]);
    assert_eq!(removed.code, Some(0), "{}", removed.err);
    assert_eq!(left(&up), [""; 0].map(PathBuf::from));
    assert!(!runs.join("long").exists());
    up.end();
}

/// A workflow of a diamond for each number: `split` makes a file, two tasks change it, `join`
/// joins them. Each task appends its name to `runs`, then waits.
fn diamonds(dir: &Path, count: usize, wait_s: f64) -> PathBuf {
    let runs = dir.join("runs");
    let mut all = "name = \"diamonds\"\n".to_owned();
    for number in 0..count {
        let mut add = |id: &str, inputs: &[&str], output: &str, script: &str| {
            let name = |file: &&str| format!("\"{file}-{number}\"");
            let inputs: Vec<String> = inputs.iter().map(name).collect();
            let (inputs, runs) = (inputs.join(", "), runs.display());
            all += &format!(
                "[[task]]\nid = \"{id}-{number}\"\nruntime = {wait_s}\ninputs = [{inputs}]\n\
                 outputs = [\"{output}-{number}\"]\ncommand = [\"sh\", \"-c\", \
                 \"sleep {wait_s}; {script}; echo {id}-{number} >> {runs}\"]\n"
            );
        };
        let n = number;
        add("split", &[], "text", &format!("seq {n} 100 > text-{n}"));
        add("left", &["text"], "left", &format!("sort -n text-{n} > left-{n}"));
        add("right", &["text"], "right", &format!("sort -rn text-{n} > right-{n}"));
        add("join", &["left", "right"], "out", &format!("cat left-{n} right-{n} > out-{n}"));
    }
    for number in 0..count {
        for name in ["text", "left", "right", "out"] {
            all += &format!("[[file]]\nname = \"{name}-{number}\"\nsize = 300\n");
        }
    }
    let file = dir.join("diamonds.toml");
    fs::write(&file, all).unwrap();
    file
}

#[test]
fn a_run_continues_after_kills_of_its_process_and_of_the_head() {
    let mut up = Up::written(config);
    let (count, seed) = (4, std::env::var("SPRINGTIDE_SEED").ok());
    let seed = seed.and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("replay with SPRINGTIDE_SEED={seed}");
    let mut random = springtide_runtime::random::SplitMix(seed);
    let file = diamonds(up.temp.path(), count, 0.5);
    let got = up.temp.path().join("got");
    let dir = up.temp.path().join("client");
    fs::create_dir_all(&dir).unwrap();
    let command = |up: &Up| {
        let line = ["workflow", "run", file.to_str().unwrap(), "--best-effort", "--fetch"];
        let mut command = program(&line);
        command.arg(&got).arg("--config").arg(&up.file);
        command
    };
    for kill in 0..3 {
        let client = RunningCommand::start(command(&up), &dir);
        std::thread::sleep(Duration::from_millis(400 + random.next() % 900));
        if kill == 1 {
            up.kill_head();
            up.start_head();
        }
        client.signal("KILL");
        drop(client);
    }
    let mut client = RunningCommand::start(command(&up), &dir);
    // Before that, the client does not wait for a head.
    until("the run begins", || text(&dir.join("stderr.log")).contains("the run's directory is"));
    std::thread::sleep(Duration::from_millis(random.next() % 500));
    // The run continues with the new head.
    up.kill_head();
    up.start_head();
    let ended = client.wait();
    assert_eq!(ended.code(), Some(0), "{}", text(&dir.join("stderr.log")));
    for number in 0..count {
        let sorted = (number..=100).chain((number..=100).rev());
        let expected: String = sorted.map(|n| format!("{n}\n")).collect();
        assert_eq!(text(&got.join(format!("out-{number}"))), expected);
    }
    // The journal has each task once. One that a kill interrupted may have begun twice.
    let runs = text(&up.dir.join("workflows/diamonds/journal.jsonl"));
    let mut completed: Vec<&str> =
        runs.lines().filter(|line| line.contains("\"completed\"")).collect();
    completed.sort_unstable();
    completed.dedup();
    assert!(completed.len() <= 4 * count, "{runs}");
    assert_eq!(left(&up), [""; 0].map(PathBuf::from));
    up.end();
}

/// A server of HTTP on loopback with one file, whose requests it reports by their path and whether
/// they are conditional. The first request fails.
fn file_server(content: &'static str) -> (String, mpsc::Receiver<(String, bool)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/data", listener.local_addr().unwrap());
    let (requests, received) = mpsc::channel();
    // It ends with the test's process.
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let lines: Vec<String> = BufReader::new(&stream)
                .lines()
                .map_while(|line| line.ok().filter(|line| !line.is_empty()))
                .collect();
            let path = lines[0].split(' ').nth(1).unwrap().to_owned();
            let known = lines.iter().any(|line| line.to_lowercase() == "if-none-match: \"v1\"");
            let answer = match (number, path.as_str(), known) {
                (0, ..) => "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n".to_owned(),
                (_, "/data/numbers", true) => "HTTP/1.1 304 Not Modified\r\n".to_owned(),
                (_, "/data/numbers", false) => {
                    let bytes = content.len();
                    format!("HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: {bytes}\r\n")
                }
                _ => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n".to_owned(),
            };
            let body = if answer.contains("200 OK") { content } else { "" };
            // A client may have gone.
            let _ = write!(stream, "{answer}Connection: close\r\n\r\n{body}");
            if requests.send((path, known)).is_err() {
                return;
            }
        }
    });
    (base, received)
}

/// Directories are inputs, pass between tasks, and are results. Inputs come from URLs.
fn directories_and_urls(up: &Up) {
    let (base, requests) = file_server("3\n1\n2\n");
    let dir = up.temp.path().join("directories");
    fs::create_dir_all(dir.join("in/texts/deep")).unwrap();
    fs::write(dir.join("in/texts/deep/a"), "a").unwrap();
    fs::write(dir.join("in/texts/b"), "b").unwrap();
    let text = format!(
        "[[task]]\nid = \"gather\"\ninputs = [\"texts/\", \"numbers\"]\noutputs = [\"all/\"]\n\
         command = [\"sh\", \"-c\", \"mkdir -p all/x && sort numbers > all/x/sorted && \
         cat texts/deep/a texts/b > all/joined\"]\n\
         [[task]]\nid = \"count\"\ninputs = [\"all/\"]\noutputs = [\"counts/\"]\n\
         command = [\"sh\", \"-c\", \"mkdir counts && cat all/joined all/x/sorted > counts/c\"]\n\
         [[file]]\nname = \"texts/\"\nsize = 2\n[[file]]\nname = \"numbers\"\n\
         source = \"{base}/numbers\"\n[[file]]\nname = \"all/\"\nsize = 9\n\
         [[file]]\nname = \"counts/\"\nsize = 9\n"
    );
    let file = dir.join("gather.toml");
    fs::write(&file, &text).unwrap();
    let (inputs, got) = (dir.join("in"), dir.join("got"));
    let options = ["--best-effort", "--inputs", inputs.to_str().unwrap(), "--fetch"];
    let line = ["workflow", "run", file.to_str().unwrap(), "--keep"];
    let run_it = |more: &[&str]| {
        execute(up, &[&line[..], &options, &[got.to_str().unwrap()], more].concat())
    };
    let ran = run_it(&[]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(fs::read_to_string(got.join("counts/c")).unwrap(), "ab1\n2\n3\n");
    let numbers = || ("/data/numbers".to_owned(), false);
    let seen: Vec<_> = requests.try_iter().collect();
    assert_eq!(seen, [numbers(), numbers()], "the first request failed");
    // A continued run asks whether the file has changed, and runs nothing.
    let again = run_it(&["--resume"]);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.out.contains("2 were completed before"), "{}", again.out);
    assert_eq!(requests.try_iter().collect::<Vec<_>>(), [("/data/numbers".to_owned(), true)]);
    // A changed input, a missing file of a server, and names that mean the other kind.
    fs::write(dir.join("in/texts/b"), "B").unwrap();
    fs::remove_dir_all(&got).unwrap();
    let changed = run_it(&["--resume"]);
    assert_eq!(changed.code, Some(0), "{}", changed.err);
    assert_eq!(fs::read_to_string(got.join("counts/c")).unwrap(), "aB1\n2\n3\n");
    for (from, to, says) in [
        ("/numbers\"", "/none\"", "the server answers 404"),
        ("texts/\"", "texts\"", "a workflow's name of one ends with a slash"),
    ] {
        fs::write(&file, text.replace(from, to)).unwrap();
        let wrong = run_it(&["--fresh"]);
        assert!(wrong.code != Some(0) && wrong.err.contains(says), "{says}: {}", wrong.err);
    }
}

#[test]
fn a_submitted_run_is_watched_and_cancelled_and_shares_a_cache() {
    let up = Up::written(config);
    let file = diamonds(up.temp.path(), 2, 0.1);
    let (file, runs) = (file.to_str().unwrap(), up.dir.join("workflows/diamonds"));
    let cache = up.temp.path().join("cache");
    let options = ["--best-effort", "--cache", cache.to_str().unwrap()];
    let submitted = execute(&up, &[&["workflow", "submit", file][..], &options].concat());
    assert_eq!(submitted.code, Some(0), "{}", submitted.err);
    assert_eq!(Path::new(submitted.out.trim()), runs);
    let watched = run(&["workflow", "watch", runs.to_str().unwrap()]);
    assert_eq!(watched.code, Some(0), "{}", watched.err);
    assert!(watched.out.contains("8 completed of 8"), "{}", watched.out);
    // Another run with the cache runs nothing, and one with a changed task what depends on it.
    let again = execute(&up, &[&["workflow", "run", file][..], &options].concat());
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.out.contains("8 were completed before"), "{}", again.out);
    let changed = fs::read_to_string(file).unwrap().replace("sort -rn text-1", "sort -n text-1");
    fs::write(file, changed).unwrap();
    let changed = execute(&up, &[&["workflow", "run", file][..], &options].concat());
    assert!(changed.out.contains("6 were completed before"), "{}", changed.out);
    directories_and_urls(&up);
    // A run that is cancelled can be continued.
    let slow = fs::read_to_string(file).unwrap().replace("sleep 0.1", "sleep 60");
    fs::write(file, slow).unwrap();
    let submitted = execute(&up, &["workflow", "submit", file, "--best-effort"]);
    assert_eq!(submitted.code, Some(0), "{}", submitted.err);
    let twice = execute(&up, &["workflow", "run", file, "--best-effort"]);
    assert_eq!(twice.code, Some(1), "{}", twice.err);
    assert!(twice.err.contains("see `workflow watch"), "{}", twice.err);
    let cancelled = run(&["workflow", "cancel", runs.to_str().unwrap()]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    assert!(cancelled.out.contains("): interrupted\n"), "{}", cancelled.out);
    // Runs are found next to the config of their grid, also from a directory below it.
    let below = up.temp.path().join("below");
    fs::create_dir_all(&below).unwrap();
    let status = program(&["workflow", "status", "diamonds"])
        .env("SPRINGTIDE_CONFIG", &up.file)
        .current_dir(&below)
        .output()
        .unwrap();
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("): interrupted\n"), "{status}");
    up.end();
}
