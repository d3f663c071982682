//! Runs a page's commands in a directory of their own and compares their output with the page.
//!
//! This module does not know the program's output.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::page::{Page, PageBlock, PageCommand};

/// Longer than any command of the book takes on a working host.
const LIMIT: Duration = Duration::from_secs(60);

/// A command in the background, whose process group ends with this value.
struct BackgroundCommand(Child);

impl BackgroundCommand {
    fn start(line: &str, dir: &Path, out: &Path) -> std::io::Result<Self> {
        let program = Path::new(env!("CARGO_BIN_EXE_springtide"));
        let bin = program.parent().expect("a program lies in a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        let file = File::create(out)?;
        let mut command = Command::new("sh");
        for (key, _) in std::env::vars().filter(|(key, _)| key.starts_with("SPRINGTIDE_")) {
            command.env_remove(key);
        }
        command
            .args(["-c", line])
            .current_dir(dir)
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("NO_COLOR", "1")
            .env("COLUMNS", "100")
            // As if the package for Python were installed.
            .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/../python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0);
        command.spawn().map(Self)
    }

    fn signal(&self, signal: &str, group: bool) {
        let id = self.0.id();
        let target = if group { format!("-{id}") } else { id.to_string() };
        let page_command = ["-s", signal, "--", &target];
        let _ = Command::new("kill").args(page_command).stderr(Stdio::null()).status();
    }

    /// Waits for its end and returns its exit code.
    fn wait(&mut self, limit: Duration) -> Option<i32> {
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Some(status.code().unwrap_or(-1));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

impl Drop for BackgroundCommand {
    fn drop(&mut self) {
        // A process that ends in order leaves nothing. Others are killed with their process group.
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.signal("TERM", false);
            self.wait(Duration::from_secs(30));
        }
        self.signal("KILL", true);
        let _ = self.0.wait();
    }
}

/// Runs the commands of a page.
pub fn page(page: &Page) -> Result<(), String> {
    let runs = |part: &PageBlock| matches!(part, PageBlock::Console { run: true, .. });
    if !page.parts.iter().any(runs) {
        return Ok(());
    }
    let dir = tempfile::tempdir().expect("a directory");
    let logs = tempfile::tempdir().expect("a directory");
    // Ended in reverse order of their starts.
    let mut meanwhile: Vec<BackgroundCommand> = Vec::new();
    // Configs of grids without a terminal, which outlive their command.
    let mut detached: Vec<&str> = Vec::new();
    let mut done = Ok(());
    'page: for part in &page.parts {
        match part {
            PageBlock::File { name: Some(name), text, .. } => {
                let file = dir.path().join(name);
                std::fs::create_dir_all(file.parent().expect("a file has a directory"))
                    .expect("a directory");
                std::fs::write(file, text).expect("a file");
            }
            PageBlock::Console { run: true, commands, .. } => {
                for page_command in commands {
                    if page_command.line.contains(" --detach") {
                        let mut words = page_command.line.split(' ');
                        let config = words.find(|word| word.ends_with(".toml"));
                        detached.push(config.unwrap_or("grid.toml"));
                    }
                    let out = logs.path().join(format!("{}.log", page_command.at));
                    done = command(page_command, dir.path(), &out, &mut meanwhile);
                    if let Err(error) = &mut done {
                        *error = format!(
                            "{}:{}: $ {}\n{error}",
                            page.name(),
                            page_command.at,
                            page_command.line
                        );
                        break 'page;
                    }
                }
            }
            _ => {}
        }
    }
    while meanwhile.pop().is_some() {}
    for config in detached {
        let line = format!("springtide down --force --config {config}");
        let ended = BackgroundCommand::start(&line, dir.path(), &logs.path().join("down"));
        ended.expect("sh starts").wait(LIMIT);
    }
    done
}

fn command(
    page_command: &PageCommand,
    dir: &Path,
    out: &Path,
    meanwhile: &mut Vec<BackgroundCommand>,
) -> Result<(), String> {
    let output = || std::fs::read_to_string(out).unwrap_or_default();
    let failed = |why: &str| Err(format!("{why}; it printed:\n{}", output()));
    let start = |line: &str| BackgroundCommand::start(line, dir, out).expect("sh starts");
    if let Some(line) = page_command.line.strip_suffix('&') {
        // Waits for the output that the page shows.
        let mut expected = page_command.expected.clone();
        expected.push("...".to_owned());
        let mut running = start(&format!("exec {line}"));
        let began = Instant::now();
        while !matches(&expected, &output()) {
            if running.wait(Duration::from_millis(20)).is_some() {
                return failed("it has ended");
            }
            if began.elapsed() > LIMIT {
                return failed("it does not print what the page shows");
            }
        }
        meanwhile.push(running);
        return Ok(());
    }
    let mut expected = page_command.expected.clone();
    let exit = expected.last().and_then(|line| line.strip_prefix("(exit ")?.strip_suffix(')'));
    let code = exit.map_or(Ok(0), str::parse);
    if exit.is_some() {
        expected.pop();
    }
    let Some(ended) = start(&page_command.line).wait(LIMIT) else {
        return failed("it does not end");
    };
    if Ok(ended) != code {
        return failed(&format!("exit code {ended}"));
    }
    if matches(&expected, &output()) { Ok(()) } else { failed("its output differs from the page") }
}

/// Whether text matches: `...` is any text, alone on a line any lines.
fn matches(expected: &[String], text: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    fits(
        expected,
        &lines,
        |line| line == "...",
        |line, found| {
            let pieces: Vec<&str> = line.split("...").collect();
            glob(&pieces, found)
        },
    )
}

/// Whether a pattern matches, some of whose elements stand for any number of others.
fn fits<P, T>(
    pattern: &[P],
    found: &[T],
    any: impl Fn(&P) -> bool + Copy,
    one: impl Fn(&P, &T) -> bool + Copy,
) -> bool {
    let mut reach = vec![false; found.len() + 1];
    reach[0] = true;
    for element in pattern {
        if any(element) {
            let first = reach.iter().position(|&here| here).unwrap_or(reach.len());
            reach[first..].fill(true);
        } else {
            for at in (0..found.len()).rev() {
                reach[at + 1] = reach[at] && one(element, &found[at]);
            }
            reach[0] = false;
        }
    }
    reach[found.len()]
}

fn glob(pieces: &[&str], text: &str) -> bool {
    let [first, middle @ ..] = pieces else { return text.is_empty() };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let [middle @ .., last] = middle else { return rest.is_empty() };
    for piece in middle {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
    }
    rest.ends_with(last)
}

#[test]
fn dots_match_any_text_and_any_lines() {
    let fits = |expected: &str, text: &str| {
        let expected: Vec<String> = expected.lines().map(str::to_owned).collect();
        matches(&expected, text)
    };
    assert!(fits("a\n...\nd", "a\nb\nc\nd\n"));
    assert!(fits("...", "") && fits("", "") && fits("a\n...", "a"));
    assert!(fits("time ... ms\n...", "time 12.5 ms\nmore"));
    assert!(fits("a...b...c", "a1b2b3c") && !fits("a...b", "a1c"));
    assert!(!fits("a", "a\nb") && !fits("a\n...\nd", "a\nb") && !fits("", "a"));
    assert!(!fits("ab...bc", "abc"));
}
