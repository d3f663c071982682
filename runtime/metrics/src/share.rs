//! A node's share of its host: binding to processors, and the memory that the node uses.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Place of a processor in the host: neighbours in this order are near each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessorPlace {
    memory_node: usize,
    package: usize,
    core: usize,
    number: usize,
}

/// Binds the calling thread to processors, and all threads and processes that it starts later.
///
/// `positions` count the processors that the thread may use, ordered by memory node and core.
/// Returns the numbers of the processors, or `None` if there are fewer than the positions need:
/// then the thread is not bound.
///
/// # Errors
/// The system call fails.
pub fn bind_to_positions(positions: &BTreeSet<usize>) -> io::Result<Option<Vec<usize>>> {
    let usable = sched_getaffinity(None)?;
    let numbers = (0..CpuSet::MAX_CPU).filter(|number| usable.is_set(*number));
    let mut places: Vec<_> =
        numbers.map(|n| place(Path::new("/sys/devices/system/cpu"), n)).collect();
    places.sort_unstable();
    let chosen = positions.iter().map(|at| places.get(*at).map(|place| place.number));
    let Some(mut chosen) = chosen.collect::<Option<Vec<usize>>>().filter(|all| !all.is_empty())
    else {
        return Ok(None);
    };
    let mut set = CpuSet::new();
    chosen.iter().for_each(|number| set.set(*number));
    sched_setaffinity(None, &set)?;
    chosen.sort_unstable();
    Ok(Some(chosen))
}

/// The place of a processor. What the kernel does not say counts as 0.
fn place(root: &Path, number: usize) -> ProcessorPlace {
    let dir = root.join(format!("cpu{number}"));
    let read = |name: &str| {
        let text = fs::read_to_string(dir.join("topology").join(name)).ok()?;
        text.trim().parse().ok()
    };
    let memory_node = || {
        let names =
            fs::read_dir(&dir).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).min()
    };
    ProcessorPlace {
        memory_node: memory_node().unwrap_or(0),
        package: read("physical_package_id").unwrap_or(0),
        core: read("core_id").unwrap_or(0),
        number,
    }
}

/// Memory in bytes that this process and its descendants have in use.
///
/// Memory that processes share counts in each of them. A process that ends meanwhile does not
/// count.
pub fn memory_in_use() -> u64 {
    memory_of_tree(Path::new("/proc/self"))
}

/// Memory in bytes that a process and its descendants have in use, by the process's directory in
/// `/proc`. The rules of [`memory_in_use`] hold.
pub fn memory_of_tree(process: &Path) -> u64 {
    let mut sum = 0;
    let mut left = vec![process.to_owned()];
    while let Some(dir) = left.pop() {
        sum += resident(&dir).unwrap_or(0);
        let Ok(threads) = fs::read_dir(dir.join("task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            left.extend(children.split_whitespace().map(|id| Path::new("/proc").join(id)));
        }
    }
    sum
}

/// Resident memory of a process, without pages of files.
fn resident(dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(dir.join("statm")).ok()?;
    let mut fields = text.split_whitespace().skip(1);
    let mut next = || fields.next()?.parse::<u64>().ok();
    let (resident, shared) = (next()?, next()?);
    Some(resident.saturating_sub(shared) * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_bound_thread_and_its_children_use_one_processor() {
        let bound = std::thread::spawn(|| {
            let chosen = bind_to_positions(&[0].into()).expect("it may be bound");
            let output = Command::new("nproc").output().expect("it runs");
            (chosen, String::from_utf8_lossy(&output.stdout).trim().to_owned())
        });
        let (chosen, processors) = bound.join().expect("it ends");
        assert_eq!((chosen.map(|all| all.len()), processors.as_str()), (Some(1), "1"));
        let too_many = bind_to_positions(&[0, 1_000_000].into()).expect("it is not bound");
        assert_eq!(too_many, None);
    }

    #[test]
    fn places_follow_memory_nodes_and_cores() {
        let dir = tempfile::tempdir().expect("a directory");
        // Processors 0 and 2 are threads of one core of node 1, and 1 is of node 0.
        for (number, node, core) in [(0, 1, 5), (1, 0, 7), (2, 1, 5)] {
            let cpu = dir.path().join(format!("cpu{number}"));
            fs::create_dir_all(cpu.join("topology")).expect("a directory");
            fs::create_dir_all(cpu.join(format!("node{node}"))).expect("a directory");
            fs::write(cpu.join("topology/core_id"), format!("{core}\n")).expect("a file");
        }
        let mut places: Vec<_> = (0..4).map(|number| place(dir.path(), number)).collect();
        places.sort_unstable();
        let order: Vec<usize> = places.iter().map(|place| place.number).collect();
        assert_eq!(order, [3, 1, 0, 2], "an unknown one comes first");
    }

    #[test]
    fn the_memory_of_children_counts() {
        let before = memory_in_use();
        assert!(before > 100_000, "{before}");
        // It holds 64 MB in a variable until its input ends.
        let script = "x=$(head -c 64000000 /dev/zero | tr '\\0' x); echo ready; read line";
        let mut child = Command::new("bash")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output");
        io::BufRead::read_line(&mut io::BufReader::new(output), &mut line).expect("a line");
        let with_child = memory_in_use();
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(with_child > before + 60_000_000, "{before} {with_child}");
    }
}
