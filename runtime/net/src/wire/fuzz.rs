//! Mutated frames through the decode gate: no panic, no abort, a value or a typed error.
//!
//! For tests only, in every crate that defines messages: each hands in its golden corpus and a decoder a kind.

use super::{DEPTH_MAX, HEADER_LEN, Header, Kind};
use crate::random::SplitMix;

/// A kind and what decodes its payload; returns whether it was accepted.
pub type Decoder = (Kind, fn(&[u8]) -> bool);

/// How many mutated frames a normal test run tries.
const FRAMES: u64 = 200_000;

/// The number in an environment variable that sets the length of a test, or the default.
///
/// # Panics
/// If the variable holds no number.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |set| {
        set.parse().unwrap_or_else(|_| panic!("{name} must be a number, found \"{set}\""))
    })
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames tried.
    pub frames: u64,
    /// Of these, refused at the header.
    pub bad_header: u64,
    /// Of these, decoded to a value all the same.
    pub accepted: u64,
    /// Of these, refused by the gate.
    pub refused: u64,
}

/// Mutates the corpus under `seed` and sends it through header check and gate, on a thread with the 2 MiB stack that
/// runtime threads have. The number of frames is 200,000, or what `SPRINGTIDE_FUZZ_FRAMES` says.
///
/// Golden frames of kinds that no decoder is given for are left out: another module of the crate tests them.
///
/// # Panics
/// When a decoder has no golden frame, or panics (the frame is printed).
pub fn run(corpus: &[(Kind, Vec<u8>)], decoders: &[Decoder], seed: u64) -> Tally {
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
        let mut tally = Tally::default();
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

fn try_frame(frame: &[u8], decoders: &[Decoder], tally: &mut Tally) {
    tally.frames += 1;
    let Some((header, body)) = frame.split_first_chunk::<HEADER_LEN>() else {
        tally.bad_header += 1;
        return;
    };
    // The announced length only decides what is read, so the body at hand is decoded whether or not it agrees.
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

/// Some bytes changed, cut, doubled, or replaced by markers that announce what does not follow.
fn mutate(frame: &mut Vec<u8>, rng: &mut SplitMix) {
    for _ in 0..1 + rng.below(4) {
        // Mostly leave the header alone: what it refuses never reaches the gate.
        let start = if rng.below(8) == 0 { 0 } else { HEADER_LEN.min(frame.len()) };
        if frame.len() == start {
            frame.push(rng.next() as u8);
            continue;
        }
        let at = start + rng.below(frame.len() - start);
        match rng.below(8) {
            0 => frame[at] ^= 1 << rng.below(8),
            1 => frame[at] = rng.next() as u8,
            2 => frame.truncate(at),
            3 => frame.push(rng.next() as u8),
            4 => {
                let end = at + rng.below(frame.len() - at);
                let part = frame[at..end].to_vec();
                frame.splice(at..at, part);
            }
            5 => {
                // str32, bin32, array32, map32 with a length of 4 Gi
                let marker = [0xdb, 0xc6, 0xdd, 0xdf][rng.below(4)];
                frame.splice(at..at + 1, [marker, 0xff, 0xff, 0xff, 0xff]);
            }
            6 => {
                // nested arrays or maps, deeper than allowed and than a stack holds
                let marker = [0x91, 0x81, 0xd4][rng.below(3)];
                let depth = [DEPTH_MAX, DEPTH_MAX + 1, 4096][rng.below(3)];
                frame.splice(at..at, std::iter::repeat_n(marker, depth));
            }
            _ => {
                frame.remove(at);
            }
        }
    }
}
