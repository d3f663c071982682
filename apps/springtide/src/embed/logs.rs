//! The lines that nodes on this host write, with the names of the nodes before them.
//!
//! Nodes append their standard output and standard error to files, which are read here. So a node
//! never waits for the reader.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinHandle, spawn_local};

/// Interval between two readings of the files.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of a file that are read at a time.
const READ_MAX: u64 = 1 << 20;
/// Lines of a node that are written at a time. More are counted only.
const LINES_MAX: usize = 100;

/// Writes the lines of nodes to standard error, until the grid ends.
pub(super) struct FollowedLogs {
    logs: Rc<RefCell<NodeLogs>>,
    task: JoinHandle<()>,
}

impl FollowedLogs {
    /// Follows the files in a directory.
    pub(super) fn start(dir: &Path) -> Self {
        let logs = Rc::new(RefCell::new(NodeLogs::of(dir)));
        let followed = logs.clone();
        let task = spawn_local(async move {
            loop {
                tokio::time::sleep(READ_INTERVAL).await;
                show(&followed.borrow_mut().read());
            }
        });
        Self { logs, task }
    }

    /// Writes the last lines.
    pub(super) fn finish(self) {
        self.task.abort();
        show(&self.logs.borrow_mut().read());
    }
}

fn show(lines: &[String]) {
    let mut stderr = std::io::stderr().lock();
    for line in lines {
        // Without standard error nothing can be shown.
        let _ = writeln!(stderr, "{line}");
    }
}

/// The logs in a directory, as far as they have been read.
struct NodeLogs {
    dir: PathBuf,
    logs: BTreeMap<String, NodeLog>,
}

struct NodeLog {
    file: File,
    /// The beginning of a line whose end is not written yet.
    partial: Vec<u8>,
}

impl NodeLogs {
    fn of(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), logs: BTreeMap::new() }
    }

    /// The lines since the last reading, with the names of their nodes.
    fn read(&mut self) -> Vec<String> {
        for path in fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|e| e.path()) {
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
            let Some(name) = name.filter(|name| !self.logs.contains_key(name)) else { continue };
            if let Ok(file) = File::open(&path) {
                self.logs.insert(name, NodeLog { file, partial: Vec::new() });
            }
        }
        self.logs.iter_mut().flat_map(|(node, log)| log.read(node)).collect()
    }
}

impl NodeLog {
    fn read(&mut self, node: &str) -> Vec<String> {
        // A file that cannot be read is read again later.
        let _ = (&self.file).take(READ_MAX).read_to_end(&mut self.partial);
        let Some(end) = self.partial.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.partial.split_off(end + 1);
        let text = std::mem::replace(&mut self.partial, rest);
        let text = String::from_utf8_lossy(&text);
        let mut lines: Vec<String> =
            text.lines().take(LINES_MAX).map(|line| format!("[{node}] {line}")).collect();
        let more = text.lines().count() - lines.len();
        if more > 0 {
            lines.push(format!("[{node}] {more} more lines are not shown"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_have_the_name_of_their_node() {
        let temp = tempfile::tempdir().unwrap();
        let mut logs = NodeLogs::of(temp.path());
        assert!(logs.read().is_empty());
        let mut file = File::create(temp.path().join("ams-1.log")).unwrap();
        write!(file, "one\ntw").unwrap();
        assert_eq!(logs.read(), ["[ams-1] one"]);
        writeln!(file, "o").unwrap();
        fs::write(temp.path().join("del-1.log"), "three\n").unwrap();
        assert_eq!(logs.read(), ["[ams-1] two", "[del-1] three"]);
        assert!(logs.read().is_empty());
    }

    #[test]
    fn a_node_that_writes_too_much_is_cut_short() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join("ams-1.log"), "line\n".repeat(LINES_MAX + 7)).unwrap();
        let lines = NodeLogs::of(temp.path()).read();
        assert_eq!(lines.len(), LINES_MAX + 1);
        assert_eq!(lines[LINES_MAX], "[ams-1] 7 more lines are not shown");
    }
}
