//! Fuzzing of the decoder with mutated frames: each one gives a value or a typed error, never a
//! panic.
//!
//! For tests of every crate that defines messages. Each test passes its golden corpus and one
//! decoder per kind.

use super::{DEPTH_MAX, HEADER_LEN, Header, Kind};
use crate::random::SplitMix;

/// A kind and the decoder of its payload. The decoder returns whether it accepted the payload.
pub type Decoder = (Kind, fn(&[u8]) -> bool);

/// Number of mutated frames in a normal test run.
const FRAMES: u64 = 200_000;

/// Reads the length of a test from an environment variable, or returns the default.
///
/// # Panics
/// The variable holds no number.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |set| {
        set.parse().unwrap_or_else(|_| panic!("{name} must be a number, found \"{set}\""))
    })
}

/// Counts of a fuzzing run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuzzCounts {
    /// Number of frames tried.
    pub frames: u64,
    /// Frames refused at the header.
    pub bad_header: u64,
    /// Frames that decoded to a value in spite of the mutation.
    pub accepted: u64,
    /// Frames that the decoder refused.
    pub refused: u64,
}

/// Mutates the corpus and passes each frame through the header check and the decoder.
///
/// It runs on a thread with a stack of 2 MiB, as runtime threads have. The number of frames is
/// 200,000, or the value of `SPRINGTIDE_FUZZ_FRAMES`. Golden frames whose kind has no decoder are
/// skipped, because another module of the crate tests them.
///
/// # Panics
/// A decoder has no golden frame, or a decoder panics. The frame is printed.
pub fn run(corpus: &[(Kind, Vec<u8>)], decoders: &[Decoder], seed: u64) -> FuzzCounts {
    let known = |kind: Kind| decoders.iter().any(|(known, _)| *known == kind);
    let mut corpus = corpus.to_vec();
    corpus.retain(|(kind, _)| known(*kind));
    for (kind, _) in decoders {
        assert!(corpus.iter().any(|(k, _)| k == kind), "there is no golden frame of kind {kind:?}");
    }
    let frames = number("SPRINGTIDE_FUZZ_FRAMES", FRAMES);
    let decoders = decoders.to_vec();
    println!("fuzz: {frames} frames, seed {seed}, {} golden frames", corpus.len());
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        let mut rng = SplitMix(seed);
        let mut tally = FuzzCounts::default();
        for _ in 0..frames {
            let (kind, body) = &corpus[rng.below(corpus.len())];
            let mut frame = Header { len: body.len(), kind: *kind }.encode().to_vec();
            frame.extend_from_slice(body);
            mutate(&mut frame, &mut rng);
            try_frame(&frame, &decoders, &mut tally);
        }
        tally
    });
    match thread.expect("the system starts a thread").join() {
        Ok(tally) => tally,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn try_frame(frame: &[u8], decoders: &[Decoder], tally: &mut FuzzCounts) {
    tally.frames += 1;
    let Some((header, body)) = frame.split_first_chunk::<HEADER_LEN>() else {
        tally.bad_header += 1;
        return;
    };
    // The length in the header only decides how much is read, so the body is decoded in any case.
    let Ok(header) = Header::parse(header) else {
        tally.bad_header += 1;
        return;
    };
    let Some((_, decoder)) = decoders.iter().find(|(kind, _)| *kind == header.kind) else {
        tally.bad_header += 1;
        return;
    };
    match std::panic::catch_unwind(|| decoder(body)) {
        Ok(true) => tally.accepted += 1,
        Ok(false) => tally.refused += 1,
        Err(panic) => {
            eprintln!("{:?} panicked on {body:02x?}", header.kind);
            std::panic::resume_unwind(panic);
        }
    }
}

/// Changes, cuts or repeats some bytes, or replaces them by markers with false lengths.
fn mutate(frame: &mut Vec<u8>, rng: &mut SplitMix) {
    for _ in 0..1 + rng.below(4) {
        // Most mutations spare the header, because a refused header never reaches the decoder.
        let start = if rng.below(8) == 0 { 0 } else { HEADER_LEN.min(frame.len()) };
        if frame.len() == start {
            frame.push(rng.next() as u8);
            continue;
        }
        let position = start + rng.below(frame.len() - start);
        match rng.below(8) {
            0 => frame[position] ^= 1 << rng.below(8),
            1 => frame[position] = rng.next() as u8,
            2 => frame.truncate(position),
            3 => frame.push(rng.next() as u8),
            4 => {
                let end = position + rng.below(frame.len() - position);
                let part = frame[position..end].to_vec();
                frame.splice(position..position, part);
            }
            5 => {
                // str32, bin32, array32, map32 with a length of 4 Gi
                let marker = [0xdb, 0xc6, 0xdd, 0xdf][rng.below(4)];
                frame.splice(position..position + 1, [marker, 0xff, 0xff, 0xff, 0xff]);
            }
            6 => {
                // Nested arrays or maps: at the limit, above it, and deeper than the stack allows.
                let marker = [0x91, 0x81, 0xd4][rng.below(3)];
                let depth = [DEPTH_MAX, DEPTH_MAX + 1, 4096][rng.below(3)];
                frame.splice(position..position, std::iter::repeat_n(marker, depth));
            }
            _ => {
                frame.remove(position);
            }
        }
    }
}
