//! Fuzzing of readers of bytes from outside: files of users, files that a grid keeps, and what
//! nodes send to each other.
//!
//! `springtide_runtime::fuzz` documents the variables that set the length of a run and replay an
//! input. Frames of the network are fuzzed in their crates (`wire::fuzz`, `wire::golden`), and so
//! are readers that are private there.

mod configs;
mod kept;
mod programs;
mod wire;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::{Path, PathBuf};

use springtide_runtime::fuzz::Target;

/// The system's allocator, which counts the bytes that each thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: every call is the system allocator's. The counter needs no memory and no destructor.
#[expect(unsafe_code, reason = "a global allocator is an unsafe trait")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get().wrapping_add(layout.size() as u64));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let more = size.saturating_sub(layout.size()) as u64;
        ALLOCATED.set(ALLOCATED.get().wrapping_add(more));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// Greatest number of allocated bytes for each byte of an input. It bounds work as well: readers
/// whose work grows faster than their input allocate as they go.
const ALLOCATED_EACH: u64 = 20_000;

/// A target of this module, whose test has the name of the reader.
fn target(name: &'static str, read: fn(&[u8]) -> Result<(), String>) -> Target {
    Target {
        name,
        test: "-p springtide-tests --test all fuzz::",
        words: &[],
        max_len: 16 << 10,
        found: &[],
        read,
        allocated: Some((|| ALLOCATED.get(), ALLOCATED_EACH)),
    }
}

/// A file of the repository.
fn file(path: &str) -> Vec<u8> {
    let path = root().join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of a folder of the repository and of the folders in it, with one of these endings.
fn files(folder: &str, endings: &[&str]) -> Vec<Vec<u8>> {
    let (mut folders, mut found) = (vec![root().join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if path.is_dir() {
                folders.push(path);
            } else if endings.contains(&ending) {
                found.push(std::fs::read(path).unwrap());
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has no {endings:?}");
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The text of an input, or the reason why it is none.
fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}
