//! The header of an ELF file: whether hosts can start it, and which.
//!
//! Reads only what a loader reads before it starts a program. This module knows neither networks
//! nor stores.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use springtide_protocol::program::ProgramTarget;

/// Length of the longest header of a file, in bytes.
const HEADER_LEN: usize = 64;
/// Greatest number of program headers that are searched for the loader's path.
const HEADERS_MAX: u64 = 256;
/// Longest path of a loader.
const PATH_MAX: u64 = 4096;
/// Type of a program header that names the loader.
const PT_INTERP: u64 = 3;

/// What a program needs of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfHeader {
    /// Machine that it is for.
    pub target: ProgramTarget,
    /// Path of its loader, if it needs one.
    pub interpreter: Option<String>,
}

/// Reads the header of a program.
///
/// # Errors
/// The file cannot be read, or lacks what an executable has: in words.
pub fn read_header(path: &Path) -> Result<ElfHeader, String> {
    let file = File::open(path).map_err(|error| format!("cannot read it: {error}"))?;
    header_of(|at, bytes| file.read_exact_at(bytes, at))
}

/// The machine of this host, as this process's own program has it.
pub fn own_target() -> Option<ProgramTarget> {
    let own = std::env::current_exe().ok()?;
    // The path of a replaced program no longer exists.
    let image = Path::new("/proc/self/exe");
    read_header(image).or_else(|_| read_header(&own)).ok().map(|header| header.target)
}

fn header_of(read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> Result<ElfHeader, String> {
    let no_elf = || "it has no ELF header".to_owned();
    let mut header = [0; HEADER_LEN];
    // A header of 32 bits is shorter, and no program ends within 64 bytes.
    read(0, &mut header).map_err(|_| no_elf())?;
    if &header[..4] != b"\x7fELF" {
        return Err(no_elf());
    }
    let bits = match header[4] {
        1 => 32,
        2 => 64,
        _ => return Err("its ELF header has no known width".to_owned()),
    };
    let little_endian = match header[5] {
        1 => true,
        2 => false,
        _ => return Err("its ELF header has no known byte order".to_owned()),
    };
    let number = |bytes: &[u8]| {
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        if little_endian { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) }
    };
    match number(&header[16..18]) {
        2 | 3 => {}
        other => return Err(format!("its ELF file has type {other}, not that of a program")),
    }
    let machine = u16::try_from(number(&header[18..20])).unwrap_or(0);
    let target = ProgramTarget { machine, bits, little_endian };
    let (table, size, count) = match bits {
        64 => (number(&header[32..40]), number(&header[54..56]), number(&header[56..58])),
        _ => (number(&header[28..32]), number(&header[42..44]), number(&header[44..46])),
    };
    let entry_len = if bits == 64 { 56 } else { 32 };
    let broken = |_| "its ELF file is cut off".to_owned();
    let mut interpreter = None;
    for at in 0..count.min(HEADERS_MAX) {
        let mut entry = [0; 56];
        let entry = &mut entry[..entry_len];
        let place = at.checked_mul(size).and_then(|offset| table.checked_add(offset));
        read(place.ok_or_else(|| broken(()))?, entry).map_err(|_| broken(()))?;
        if number(&entry[..4]) != PT_INTERP {
            continue;
        }
        let (offset, length) = match bits {
            64 => (number(&entry[8..16]), number(&entry[32..40])),
            _ => (number(&entry[4..8]), number(&entry[16..20])),
        };
        if length == 0 || length > PATH_MAX {
            return Err("its ELF file names no usable loader".to_owned());
        }
        let mut path = vec![0; usize::try_from(length).unwrap_or(0)];
        read(offset, &mut path).map_err(|_| broken(()))?;
        let end = path.iter().position(|byte| *byte == 0).unwrap_or(path.len());
        interpreter = Some(String::from_utf8_lossy(&path[..end]).into_owned());
    }
    // An object without a loader may be a program that is linked statically, or a library.
    Ok(ElfHeader { target, interpreter })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> Result<ElfHeader, String> {
        header_of(|at, to| {
            let at = usize::try_from(at).map_err(io::Error::other)?;
            let end = at.checked_add(to.len()).filter(|end| *end <= bytes.len());
            let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
            to.copy_from_slice(&bytes[at..end]);
            Ok(())
        })
    }

    /// A file of 64 bits with a loader.
    pub(crate) fn elf(machine: u16) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[16] = 3;
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        (bytes[32], bytes[54], bytes[56]) = (64, 56, 1);
        let mut entry = vec![0; 56];
        (entry[0], entry[8], entry[32]) = (3, 120, 11);
        bytes.extend(entry);
        bytes.extend(b"/lib/ld.so\0");
        bytes
    }

    #[test]
    fn a_header_says_where_the_program_runs() {
        let arm = of(&elf(183)).unwrap();
        assert_eq!(arm.target.to_string(), "aarch64");
        assert_eq!(arm.interpreter.as_deref(), Some("/lib/ld.so"));
        let own = own_target().unwrap();
        assert_eq!(own.machine_name(), Some(std::env::consts::ARCH));
        let odd = ProgramTarget { machine: 9999, ..own };
        assert_eq!(odd.to_string(), "machine 9999 (64 bit, little endian)");
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        assert_eq!(of(b"#!/bin/sh\n").unwrap_err(), "it has no ELF header");
        assert_eq!(of(&[b'x'; 100]).unwrap_err(), "it has no ELF header");
        let whole = elf(62);
        let mut object = whole.clone();
        object[16] = 1;
        assert!(of(&object).unwrap_err().contains("type 1"));
        // No length and no value of one byte is a panic.
        for length in 0..whole.len() {
            assert!(of(&whole[..length]).is_err(), "{length}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _ = of(&bytes);
            }
        }
    }
}
