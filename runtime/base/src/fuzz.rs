//! Fuzzing of readers of bytes from outside: mutated inputs give a value or an error, without a
//! panic, an endless loop or a large allocation.
//!
//! For tests of every crate that reads files, messages or answers of other programs. The length of
//! a run is `COUNT` inputs, or as many as `SPRINGTIDE_FUZZ_COUNT` states, or as long as
//! `SPRINGTIDE_FUZZ_SECONDS` states. `SPRINGTIDE_FUZZ_SEED` sets the seed, which is printed. A run
//! with other environment than these is deterministic.
//!
//! Inputs with a new kind of result (the words of the error, and the magnitude of the allocated
//! memory) become seeds of further inputs. That replaces a measurement of coverage, which needs
//! another compiler.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::checksum::checksum;
use crate::random::SplitMix;

/// Number of inputs in a normal test run.
const COUNT: u64 = 300;
/// Greatest number of attempts to make a failing input smaller.
const SHRINK_MAX: u32 = 3000;
/// Greatest number of seeds, with those that a run adds.
const SEEDS_MAX: usize = 4000;
/// Time of one input after which its reader counts as endless. Inputs take milliseconds.
const ENDLESS: Duration = Duration::from_secs(300);
/// Allocated bytes of each input, in addition to those by length.
const ALLOCATED_MIN: u64 = 4 << 20;
/// The stack of the reader's thread, in bytes: that of a thread of the runtime.
const STACK: usize = 2 << 20;

/// A reader, and what its inputs are made from.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the reader.
    pub name: &'static str,
    /// Arguments of `cargo test` that run this target alone.
    pub test: &'static str,
    /// Words and signs with a meaning in the format.
    pub words: &'static [&'static str],
    /// Greatest length of an input, in bytes.
    pub max_len: usize,
    /// Inputs of faults that were found before.
    pub found: &'static [&'static [u8]],
    /// Reads an input and returns the reason if it is refused. Panics if the input is accepted, and
    /// the value is wrong.
    pub read: fn(&[u8]) -> Result<(), String>,
    /// Memory that this thread has allocated, in bytes, and the greatest number of bytes for each
    /// byte of an input. The test binary measures it by its allocator.
    pub allocated: Option<(fn() -> u64, u64)>,
}

/// Mutates these inputs and reads them.
///
/// # Panics
/// An input fails. The smallest failing one that was found is printed, with the command that reads
/// it again.
pub fn run(target: Target, seeds: Vec<Vec<u8>>) {
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    silence_panics();
    let current = Arc::new(Mutex::new((0, Vec::new())));
    let (sender, receiver) = channel();
    let fuzzer = Fuzzer { target, current: Arc::clone(&current) };
    let thread = std::thread::Builder::new().name(target.name.to_owned()).stack_size(STACK);
    let work = move || {
        SILENT.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| fuzzer.run_all(seeds)));
        let _ = sender.send(result.unwrap_or_else(|_| Err(PANIC.take())));
    };
    thread.spawn(work).expect("the system starts a thread");
    if let Err(failure) = watch(&target, &receiver, &current) {
        panic!("{failure}");
    }
}

/// Waits for the end of a run, and ends it if one input takes too long.
fn watch(
    target: &Target,
    receiver: &Receiver<Result<(), String>>,
    current: &Mutex<(u64, Vec<u8>)>,
) -> Result<(), String> {
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        match receiver.recv_timeout(Duration::from_secs(1)) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(format!("{}: the reader's thread ended", target.name));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let (number, input) = &*current.lock().unwrap_or_else(PoisonError::into_inner);
        if *number != seen {
            (seen, since) = (*number, Instant::now());
        } else if since.elapsed() > ENDLESS {
            return Err(failure(target, input, "the reader does not end"));
        }
    }
}

struct Fuzzer {
    target: Target,
    /// Number and bytes of the input that is being read.
    current: Arc<Mutex<(u64, Vec<u8>)>>,
}

impl Fuzzer {
    fn run_all(&self, mut seeds: Vec<Vec<u8>>) -> Result<(), String> {
        let target = &self.target;
        if let Some(file) = std::env::var_os("SPRINGTIDE_FUZZ_INPUT") {
            let input = std::fs::read(PathBuf::from(file)).expect("the input's file is readable");
            println!("{}: {:?}", target.name, self.try_input(&input));
            return self.checked(&input).map(drop);
        }
        for input in target.found {
            self.checked(input)?;
        }
        let given = seeds.len();
        let mut valid = 0;
        for input in &seeds {
            valid += u32::from(self.checked(input)?.0.is_empty());
        }
        println!("{}: {valid} of {given} seeds are accepted", target.name);
        let seconds = number("SPRINGTIDE_FUZZ_SECONDS");
        let count = number("SPRINGTIDE_FUZZ_COUNT").unwrap_or(COUNT);
        let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let drawn = seconds.and(time.ok()).map(|time| time.as_nanos() as u64);
        let seed = number("SPRINGTIDE_FUZZ_SEED").or(drawn).unwrap_or(1);
        println!("{}: seed {seed} (SPRINGTIDE_FUZZ_SEED)", target.name);
        let mut random = SplitMix::with_text(seed, target.name);
        let (began, mut inputs, mut accepted) = (Instant::now(), 0_u64, 0_u64);
        let mut kinds = BTreeSet::new();
        loop {
            let over = match seconds {
                Some(seconds) => began.elapsed() >= Duration::from_secs(seconds),
                None => inputs >= count,
            };
            if over {
                break;
            }
            let input = mutate(&seeds, given, target, &mut random);
            let kind = self.checked(&input)?;
            inputs += 1;
            accepted += u64::from(kind.0.is_empty());
            if kinds.insert(kind) && seeds.len() < SEEDS_MAX {
                seeds.push(input);
            }
        }
        let (new, refused) = (seeds.len() - given, inputs - accepted);
        println!(
            "{}: {inputs} inputs, {accepted} accepted, {refused} refused, {new} new kinds of \
                  results",
            target.name
        );
        Ok(())
    }

    /// Reads an input, and describes its result. The error describes the smallest failing input.
    fn checked(&self, input: &[u8]) -> Result<(String, u32), String> {
        self.try_input(input).map_err(|reason| {
            let (input, reason) = self.shrink(input.to_vec(), reason);
            failure(&self.target, &input, &reason)
        })
    }

    /// The words of the refusal, empty if the input is accepted, and the magnitude of the allocated
    /// memory.
    fn try_input(&self, input: &[u8]) -> Result<(String, u32), String> {
        {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            current.0 += 1;
            current.1.clear();
            current.1.extend_from_slice(input);
        }
        let allocated = || self.target.allocated.map_or(0, |(allocated, _)| allocated());
        let before = allocated();
        let result = catch_unwind(AssertUnwindSafe(|| (self.target.read)(input)));
        let took = allocated() - before;
        let max = self.target.allocated.map_or(u64::MAX, |(_, each)| each * input.len() as u64);
        if took > max.saturating_add(ALLOCATED_MIN) {
            return Err(format!("{took} bytes are allocated for {} bytes", input.len()));
        }
        match result {
            Ok(Ok(())) => Ok((String::new(), took.checked_ilog2().unwrap_or(0))),
            Ok(Err(reason)) => {
                let words: String = reason.chars().filter(|c| c.is_ascii_lowercase()).collect();
                let words = words.chars().take(60).collect::<String>();
                let words = if words.is_empty() { "refused".to_owned() } else { words };
                Ok((words, took.checked_ilog2().unwrap_or(0) / 2))
            }
            Err(_) => Err(PANIC.take()),
        }
    }

    /// Removes parts of a failing input while it fails, and returns its last failure.
    fn shrink(&self, mut input: Vec<u8>, mut reason: String) -> (Vec<u8>, String) {
        let (mut part, mut tries) = (input.len().div_ceil(2).max(1), 0);
        loop {
            let (mut at, mut smaller) = (0, false);
            while at < input.len() && tries < SHRINK_MAX {
                let mut less = input.clone();
                less.drain(at..(at + part).min(input.len()));
                tries += 1;
                match self.try_input(&less) {
                    Err(why) => (input, reason, smaller) = (less, why, true),
                    Ok(_) => at += part,
                }
            }
            if tries >= SHRINK_MAX || part == 1 && !smaller {
                return (input, reason);
            }
            part = part.div_ceil(2);
        }
    }
}

/// Describes a failing input, which is written to a file.
fn failure(target: &Target, input: &[u8], reason: &str) -> String {
    let Target { name, test, .. } = target;
    let sum = checksum(input.iter().copied());
    let file = std::env::temp_dir().join(format!("springtide-fuzz-{sum:016x}"));
    let written = std::fs::write(&file, input);
    let shown = &input[..input.len().min(2000)];
    let mut text = format!("{name}: {reason}\ninput of {} bytes: b\"", input.len());
    let _ = writeln!(text, "{}\"", shown.escape_ascii());
    match written {
        Ok(()) => {
            let file = file.display();
            let _ = write!(text, "again: SPRINGTIDE_FUZZ_INPUT={file} cargo test {test}");
        }
        Err(error) => {
            let _ = write!(text, "cannot write {}: {error}", file.display());
        }
    }
    text
}

fn number(name: &str) -> Option<u64> {
    let set = std::env::var(name).ok()?;
    Some(set.parse().unwrap_or_else(|_| panic!("{name} must be a number, found \"{set}\"")))
}

thread_local! {
    /// Whether panics of this thread are kept instead of printed.
    static SILENT: Cell<bool> = const { Cell::new(false) };
    /// The last panic of this thread.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the texts of panics in readers' threads, which are many while an input becomes smaller.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if SILENT.get() {
                PANIC.set(info.to_string());
            } else {
                usual(info);
            }
        }));
    });
}

/// Numbers at the limits of types, and those that are read as no number.
const NUMBERS: &[&str] = &[
    "0",
    "-1",
    "1",
    "65535",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "-1e308",
    "1e309",
    "1e-320",
    "NaN",
    "inf",
    "-inf",
    "1e9",
    "99999999999999999999999999",
    "0.1",
    "-0.0",
    "0x7fffffff",
    "1_000",
];

/// Changes one of the seeds in one to five places.
///
/// Every other input comes from the first `given` ones, since most of the others are refused early.
fn mutate(seeds: &[Vec<u8>], given: usize, target: &Target, random: &mut SplitMix) -> Vec<u8> {
    let count = if random.below(2) == 0 { given } else { seeds.len() };
    let mut input = seeds[random.below(count)].clone();
    let most = 1 + random.below(5);
    for _ in 0..1 + random.below(most) {
        let at = random.below(input.len() + 1);
        let end = (at + 1 + random.below(64)).min(input.len());
        let part = at.min(end)..end;
        match random.below(14) {
            0 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            1 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.next() as u8),
            2 if random.below(4) == 0 => input.truncate(at),
            3 => {
                let bytes: Vec<u8> =
                    (0..1 + random.below(8)).map(|_| random.next() as u8).collect();
                drop(input.splice(at..at, bytes));
            }
            4 => drop(input.drain(part)),
            5 => {
                let copy = input[part].to_vec();
                drop(input.splice(at..at, copy));
            }
            6 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                let to = (from + 1 + random.below(200)).min(other.len());
                drop(input.splice(part, other[from.min(to)..to].iter().copied()));
            }
            7 | 8 if !target.words.is_empty() => {
                let word = target.words[random.below(target.words.len())];
                drop(input.splice(at..at, word.bytes()));
            }
            9 => replace_number(&mut input, at, random),
            10 => {
                // A length or count in binary.
                let value = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u64::from(u32::MAX), u64::MAX];
                let value = value[random.below(value.len())].to_le_bytes();
                let width = [1, 2, 4, 8][random.below(4)];
                for (byte, new) in input.iter_mut().skip(at).zip(value.into_iter().take(width)) {
                    *byte = new;
                }
            }
            11 => change_lines(&mut input, random),
            12 if random.below(4) == 0 => {
                // Depth.
                let word = match target.words {
                    [] => &input[at.min(input.len())..input.len().min(at + 2)],
                    words => words[random.below(words.len())].as_bytes(),
                };
                let times = 1 + random.below(4000 / word.len().max(1) + 1);
                let many = word.repeat(times);
                drop(input.splice(at..at, many));
            }
            _ => {
                let from = random.below(input.len() + 1);
                let to = (from + 1 + random.below(16)).min(input.len());
                let copy = input[from.min(to)..to].to_vec();
                drop(input.splice(at..at, copy));
            }
        }
    }
    input.truncate(target.max_len);
    input
}

/// Replaces the next number of a text by one at the limit of a type.
fn replace_number(input: &mut Vec<u8>, at: usize, random: &mut SplitMix) {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let Some(begin) = input.iter().skip(at).position(is_digit).map(|begin| at + begin) else {
        return;
    };
    let len = input[begin..].iter().take_while(|byte| is_digit(byte) || **byte == b'.').count();
    let number = NUMBERS[random.below(NUMBERS.len())];
    input.splice(begin..begin + len, number.bytes());
}

/// Repeats, removes or moves a line.
fn change_lines(input: &mut Vec<u8>, random: &mut SplitMix) {
    let mut lines: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
    if lines.is_empty() {
        return;
    }
    let (from, to) = (random.below(lines.len()), random.below(lines.len()));
    match random.below(3) {
        0 => lines.insert(to, lines[from]),
        1 => drop(lines.remove(from)),
        _ => lines.swap(from, to),
    }
    *input = lines.concat();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(read: fn(&[u8]) -> Result<(), String>) -> Target {
        let (name, test, words) = ("a reader", "-p springtide-base fuzz", &["key"][..]);
        Target { name, test, words, max_len: 1000, found: &[], read, allocated: None }
    }

    #[test]
    fn a_failing_input_becomes_small_and_can_be_read_again() {
        let fails = |bytes: &[u8]| {
            assert!(!bytes.contains(&b'9'), "a nine");
            Ok(())
        };
        let seeds = vec![b"number = 1\n".repeat(10)];
        let panic = catch_unwind(|| run(target(fails), seeds)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("a nine") && text.contains("input of 1 bytes: b\"9\""), "{text}");
        assert!(text.contains("cargo test -p springtide-base fuzz"), "{text}");
    }

    #[test]
    fn inputs_without_failures_pass() {
        run(
            target(|bytes| std::str::from_utf8(bytes).map(drop).map_err(|e| e.to_string())),
            vec![b"key".to_vec()],
        );
    }
}
