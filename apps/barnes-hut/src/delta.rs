//! Encodes one step's positions as a change of the former ones: lossless, and much shorter than the
//! positions.
//!
//! Bodies move smoothly, so the positions of the last steps allow a forecast of the next. Both
//! sides extrapolate, through up to three frames and in the next one's box, and round to single
//! precision. The code contains, for each coordinate, its distance from the forecast in
//! representable numbers (P. Lindstrom and M. Isenburg, IEEE Trans. Vis. Comput. Graph. 12, 1245,
//! 2006), in Golomb-Rice codes (R. F. Rice, JPL Publication 79-22, 1979).
//!
//! The scale of this distance follows from two quantities that both sides know: the change of the
//! body's velocity, and the density of numbers around the forecast. Each ratio of these, in steps
//! of half a power of two, has its own code.
//!
//! Both sides compute with + - * / alone, each rounded by IEEE 754 and none contracted, so that all
//! machines have the same forecast. A checksum of the result is sent too.
//!
//! The functions are pure. This module depends on neither tasks and versions nor trees nor the
//! transport.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The number of frames before the last that a forecast uses.
///
/// With them it is a parabola. A fourth frame would save another twelfth, and would be sent with
/// each whole frame.
pub const BEFORE: usize = 2;

/// The places of all bodies at one time: a box and, within it, positions in single precision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionFrame {
    /// The middle of the box.
    pub centre: [f64; 3],
    /// The side of the box, a power of two.
    pub side: f64,
    /// Little-endian `f32` x, y, z of each body, in sides from the middle.
    pub inside: Bytes,
}

impl PositionFrame {
    /// The number of bodies.
    pub fn len(&self) -> usize {
        self.inside.len() / BODY
    }

    /// Whether there are no bodies.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn has_box(&self) -> bool {
        self.centre.iter().all(|c| c.is_finite()) && self.side.is_normal() && self.side > 0.0
    }
}

/// The change from a frame, and those before it, to the next one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// The box of the next frame.
    centre: [f64; 3],
    side: f64,
    bodies: u32,
    /// The [`sum`] of the next frame.
    sum: u64,
    /// The number of low bits of a code, for each context.
    #[serde(with = "serde_bytes")]
    widths: Vec<u8>,
    /// The codes of all bodies, from the lowest bit on. Each axis has its own stream, so that three
    /// can be read at a time.
    codes: [Bytes; 3],
}

impl Delta {
    /// The approximate number of bytes on the wire.
    pub fn wire_len(&self) -> usize {
        const REST: usize = 64;
        self.codes.iter().map(Bytes::len).sum::<usize>() + self.widths.len() + REST
    }
}

/// A delta is not valid, or does not belong to these frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The delta has another number of bodies.
    #[error("a change of the positions of {delta} bodies cannot go with {base} bodies")]
    Bodies {
        /// The number of bodies of the delta.
        delta: usize,
        /// The number of bodies of the frame.
        base: usize,
    },
    /// The delta has no valid box.
    #[error("the box of a change of positions is not valid")]
    Box,
    /// The table of widths has a wrong length, or a width is too large.
    #[error("the widths of the codes in a change of positions are out of range")]
    Widths,
    /// There are too few or too many codes, or one is not valid.
    #[error("the codes in a change of positions are cut short or damaged")]
    Codes,
    /// The decoded positions have another checksum than the encoded ones.
    #[error("a change of positions does not belong to the positions before: the sums differ")]
    Sum,
}

/// The number of bytes of a body.
pub(crate) const BODY: usize = 12;
/// The number of values that are forecast together, for whole bodies: large enough for efficient
/// loops, and small enough for the innermost cache.
const CHUNK: usize = 3 * 256;
/// The number of contexts: scale over density of numbers, by halves of powers of two.
const CONTEXTS: usize = 128;
/// The context of a scale as large as the value. Lower ones reach down to a small part of the
/// number's last place.
const EVEN: i32 = 72;
/// Code words start with fewer zeros than this; exactly as many precede a value of 32 bits.
const ESCAPE: u32 = 15;
/// The maximum number of low bits: with its zeros and the one after them, a code fits into
/// [`Reader::peek`].
const WIDTH_MAX: u8 = 31;
const VALUE_BITS: u32 = 32;
/// The number of bits of the longest code.
const CODE_MAX: u32 = ESCAPE + 1 + VALUE_BITS;

/// Encodes the change from `last` to `next`, for receivers with `last` and the frames `before` it,
/// newest first.
///
/// None if the two have different bodies, or `next` has no valid box.
pub fn encode(
    last: &PositionFrame,
    before: &[PositionFrame],
    next: &PositionFrame,
) -> Option<Delta> {
    if next.len() != last.len() || !next.has_box() {
        return None;
    }
    let bodies = u32::try_from(next.len()).ok()?;
    let forecast = Forecast::new(last, before, next.centre, next.side);
    let values = words(&next.inside);
    let mut differences = vec![0u32; values.len()];
    let mut contexts = vec![0u8; values.len()];
    let mut lengths = vec![[0u32; VALUE_BITS as usize + 1]; CONTEXTS];
    let mut chunk = Chunk::new();
    let chunks =
        values.chunks(CHUNK).zip(differences.chunks_mut(CHUNK)).zip(contexts.chunks_mut(CHUNK));
    for (number, ((values, differences), contexts)) in chunks.enumerate() {
        forecast.fill(number * CHUNK, &mut chunk);
        contexts.copy_from_slice(&chunk.context[..contexts.len()]);
        for ((bytes, expected), differences) in
            values.iter().zip(&chunk.expected).zip(&mut *differences)
        {
            *differences = zigzag(ordered(u32::from_le_bytes(*bytes)).wrapping_sub(*expected));
        }
        for (value, context) in differences.iter().zip(&*contexts) {
            lengths[usize::from(*context)][(VALUE_BITS - value.leading_zeros()) as usize] += 1;
        }
    }
    let widths: Vec<u8> = lengths.iter().map(best_width).collect();
    let mut writers = [(); 3].map(|()| Writer::new(next.len()));
    for (differences, contexts) in differences.chunks(CHUNK).zip(contexts.chunks(CHUNK)) {
        let (differences, _) = differences.as_chunks::<3>();
        let (contexts, _) = contexts.as_chunks::<3>();
        for (differences, contexts) in differences.iter().zip(contexts) {
            for axis in 0..3 {
                let width = u32::from(widths[usize::from(contexts[axis])]);
                put_code(&mut writers[axis], differences[axis], width);
            }
        }
        writers.iter_mut().for_each(Writer::flush);
    }
    let codes = writers.map(Writer::end);
    let (centre, side) = (next.centre, next.side);
    Some(Delta { centre, side, bodies, sum: sum(next), widths, codes })
}

/// Decodes the frame that follows `last` and the frames `before` it, newest first, bit for bit.
///
/// It needs no more memory than `last` does, for any contents of the delta.
///
/// # Errors
/// [`Malformed`].
/// [`Malformed`].
pub fn decode(
    last: &PositionFrame,
    before: &[PositionFrame],
    delta: &Delta,
) -> Result<PositionFrame, Malformed> {
    let Delta { centre, side, .. } = *delta;
    let empty = PositionFrame { centre, side, inside: Bytes::new() };
    if delta.bodies as usize != last.len() {
        return Err(Malformed::Bodies { delta: delta.bodies as usize, base: last.len() });
    }
    if !empty.has_box() {
        return Err(Malformed::Box);
    }
    if delta.widths.len() != CONTEXTS || delta.widths.iter().any(|width| *width > WIDTH_MAX) {
        return Err(Malformed::Widths);
    }
    let forecast = Forecast::new(last, before, centre, side);
    let mut chunk = Chunk::new();
    let mut readers = delta.codes.each_ref().map(|codes| CodeReader::new(codes));
    let mut inside = vec![0; last.len() * BODY];
    let (values, _) = inside.as_chunks_mut::<4>();
    for (number, values) in values.chunks_mut(CHUNK).enumerate() {
        forecast.fill(number * CHUNK, &mut chunk);
        let (values, _) = values.as_chunks_mut::<3>();
        let (expected, _) = chunk.expected.as_chunks::<3>();
        let (contexts, _) = chunk.context.as_chunks::<3>();
        for ((values, expected), contexts) in values.iter_mut().zip(expected).zip(contexts) {
            for axis in 0..3 {
                let width = u32::from(delta.widths[usize::from(contexts[axis])]);
                let value = take_code(&mut readers[axis], width).ok_or(Malformed::Codes)?;
                let number = expected[axis].wrapping_add(unzigzag(value));
                values[axis] = bits(number).to_le_bytes();
            }
        }
    }
    if readers.iter().any(|reader| reader.whole_bytes() != reader.bytes.len()) {
        return Err(Malformed::Codes);
    }
    let frame = PositionFrame { inside: inside.into(), ..empty };
    if sum(&frame) == delta.sum { Ok(frame) } else { Err(Malformed::Sum) }
}

/// The forecast of bodies, in sides of the next frame's box from its middle, and the scale of their
/// distance from it.
///
/// It is in single precision, and still exact to the last place of most numbers: the sum starts
/// with small terms, which are exact or nearly so, and ends with the last position.
struct Forecast<'a> {
    /// Coordinates of each frame, newest first, and its box's side in sides of the next.
    frames: Vec<(&'a [[u8; 4]], f32)>,
    /// Weights of the differences of successive frames in the step and in the scale, newest first.
    weights: &'static [(f32, f32)],
    /// The step and scale of the boxes' middles, for each axis, repeated.
    step: [f32; CHUNK],
    scale: [f32; CHUNK],
    /// The lower limit of the scale.
    least: f32,
}

/// The forecast of consecutive values.
struct Chunk {
    /// The forecast as an [`ordered`] number.
    expected: [i32; CHUNK],
    context: [u8; CHUNK],
}

impl Chunk {
    fn new() -> Self {
        Self { expected: [0; CHUNK], context: [0; CHUNK] }
    }
}

impl<'a> Forecast<'a> {
    fn new(
        last: &'a PositionFrame,
        before: &'a [PositionFrame],
        centre: [f64; 3],
        side: f64,
    ) -> Self {
        let usable = before.iter().take(BEFORE).take_while(|frame| frame.len() == last.len());
        let frames: Vec<&PositionFrame> = std::iter::once(last).chain(usable).collect();
        // One frame gives no step, two the last step, three its change too. The scale is the
        // highest difference that the frames give.
        let (weights, least): (&[(f32, f32)], f32) = match frames.len() {
            1 => (&[], 1.0),
            2 => (&[(1.0, 1.0)], LEAST),
            _ => (&[(2.0, 1.0), (-1.0, -1.0)], LEAST),
        };
        let middle =
            |frame: &PositionFrame, axis: usize| (frame.centre[axis] - centre[axis]) / side;
        let (mut step, mut scale) = ([0.0; CHUNK], [0.0; CHUNK]);
        for i in 0..CHUNK {
            let axis = i % 3;
            let mut sums = (middle(last, axis), 0.0);
            for (pair, weight) in frames.windows(2).zip(weights) {
                let moved = middle(pair[0], axis) - middle(pair[1], axis);
                sums.0 += f64::from(weight.0) * moved;
                sums.1 += f64::from(weight.1) * moved;
            }
            (step[i], scale[i]) = (sums.0 as f32, sums.1 as f32);
        }
        let scaled = |frame: &&'a PositionFrame| (words(&frame.inside), (frame.side / side) as f32);
        Self { frames: frames.iter().map(scaled).collect(), weights, step, scale, least }
    }

    /// Fills a chunk from a value on, as far as there are values. Each loop does one operation, and
    /// is vectorised.
    fn fill(&self, first: usize, chunk: &mut Chunk) {
        let place = |bytes: &[u8; 4], ratio: f32| f32::from_le_bytes(*bytes) * ratio;
        let from =
            |frame: &(&'a [[u8; 4]], f32)| (frame.0.get(first..).unwrap_or_default(), frame.1);
        let (mut step, mut scale) = (self.step, self.scale);
        for (pair, weight) in self.frames.windows(2).zip(self.weights) {
            let (new, new_ratio) = from(&pair[0]);
            let (old, old_ratio) = from(&pair[1]);
            for (((new, old), step), scale) in new.iter().zip(old).zip(&mut step).zip(&mut scale) {
                let moved = place(new, new_ratio) - place(old, old_ratio);
                *step += weight.0 * moved;
                *scale += weight.1 * moved;
            }
        }
        let mut halves = [0i32; CHUNK];
        let (scales, _) = scale.as_chunks::<3>();
        let (all, _) = halves.as_chunks_mut::<3>();
        for (scale, halves) in scales.iter().zip(all) {
            let [x, y, z] = scale.map(f32::abs);
            let scale = x + y + z + self.least;
            // A NaN has no certain bits. Distant middles and large sides can lead to it.
            let scale = if scale <= f32::MAX { scale } else { f32::MAX };
            *halves = [(scale.to_bits() >> 22) as i32; 3];
        }
        let Some((last, ratio)) = self.frames.first().map(from) else { return };
        let ratios = chunk.expected.iter_mut().zip(&mut chunk.context).zip(&halves);
        for ((bytes, step), ((expected, context), halves)) in last.iter().zip(&step).zip(ratios) {
            let near = place(bytes, ratio) + step;
            let near = if near.abs() <= f32::MAX { near } else { 0.0 };
            let exponent = (near.to_bits() >> 23 & 0xff) as i32;
            *expected = ordered(near.to_bits());
            *context = (halves - 2 * exponent + EVEN).clamp(0, CONTEXTS as i32 - 1) as u8;
        }
    }
}

/// Bodies without acceleration have a scale too.
const LEAST: f32 = 1e-30;

/// The number of low bits that makes the codes shortest in sum, by the numbers of values of each
/// length.
fn best_width(lengths: &[u32; VALUE_BITS as usize + 1]) -> u8 {
    let bits = |width: u8| -> u64 {
        let code = |(length, count): (usize, &u32)| {
            // The mean value of this length is one and a half times the smallest.
            let high =
                if length == 0 { 0 } else { (3u64 << (length - 1)) >> (u32::from(width) + 1) };
            u64::from(*count) * u64::from(bits_with(high, width.into()))
        };
        lengths.iter().enumerate().map(code).sum()
    };
    (0..=WIDTH_MAX).min_by_key(|width| bits(*width)).unwrap_or(0)
}

/// The bits of a single-precision number as an integer that counts such numbers in order; zero is
/// 0, negative zero -1.
pub(crate) fn ordered(bits: u32) -> i32 {
    let bits = bits as i32;
    bits ^ (bits >> 31 & i32::MAX)
}

/// The inverse of [`ordered`].
pub(crate) fn bits(ordered: i32) -> u32 {
    (ordered ^ (ordered >> 31 & i32::MAX)) as u32
}

/// Maps integers near zero, of either sign, to small ones.
pub(crate) fn zigzag(number: i32) -> u32 {
    (number << 1 ^ number >> 31) as u32
}

/// The inverse of [`zigzag`].
pub(crate) fn unzigzag(value: u32) -> i32 {
    (value >> 1) as i32 ^ -((value & 1) as i32)
}

fn words(bytes: &[u8]) -> &[[u8; 4]] {
    let whole = bytes.len() / BODY * BODY;
    bytes[..whole].as_chunks().0
}

/// A checksum over all bits of a frame. It is not cryptographic, and has four strands, for a
/// multiplication has a long latency.
fn sum(frame: &PositionFrame) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |state: u64, word: u64| (state.rotate_left(29) ^ word).wrapping_mul(ODD);
    let [x, y, z] = frame.centre.map(f64::to_bits);
    let mut strands = [x, y, z, frame.side.to_bits()];
    let (blocks, rest) = frame.inside.as_chunks::<32>();
    for block in blocks {
        let (eights, _) = block.as_chunks::<8>();
        for (strand, word) in strands.iter_mut().zip(eights) {
            *strand = step(*strand, u64::from_le_bytes(*word));
        }
    }
    let rest = rest.iter().fold(frame.inside.len() as u64, |state, b| step(state, (*b).into()));
    let all = strands.iter().fold(rest, |state, strand| step(state, *strand));
    all ^ all >> 32
}

/// Writes codes one after the other.
pub(crate) struct Writer {
    bytes: Vec<u8>,
    /// The next bytes: room for the codes of a chunk.
    block: [u8; CHUNK / 3 * CODE_MAX as usize / 8 + 16],
    /// The number of full bytes in the block.
    full: usize,
    /// Bits that do not fill a byte yet.
    pending: u64,
    bits: u32,
}

impl Writer {
    /// A writer for this number of rows of three.
    pub(crate) fn new(codes: usize) -> Self {
        let block = [0; CHUNK / 3 * CODE_MAX as usize / 8 + 16];
        Self { bytes: Vec::with_capacity(3 * codes), block, full: 0, pending: 0, bits: 0 }
    }

    /// Appends up to [`CODE_MAX`] bits, with zeros beyond; between two flushes, at most the codes
    /// of a chunk.
    fn put(&mut self, code: u64, bits: u32) {
        self.pending |= code << self.bits;
        self.bits += bits;
        // All eight bytes, in one instruction; the next call overwrites those that are not full.
        self.block[self.full..self.full + 8].copy_from_slice(&self.pending.to_le_bytes());
        let whole = self.bits / 8;
        self.full += whole as usize;
        self.pending >>= 8 * whole;
        self.bits -= 8 * whole;
    }

    pub(crate) fn flush(&mut self) {
        self.bytes.extend_from_slice(&self.block[..self.full]);
        self.full = 0;
    }

    pub(crate) fn end(mut self) -> Bytes {
        self.flush();
        if self.bits > 0 {
            self.bytes.push(self.pending as u8);
        }
        self.bytes.into()
    }
}

/// Writes the code of this width for a value: its high bits as a number of zeros and a one, and
/// then the low bits.
#[inline]
pub(crate) fn put_code(writer: &mut Writer, value: u32, width: u32) {
    let high = value >> width;
    let (value, low) = (u64::from(value), u64::from(value & ((1 << width) - 1)));
    if high < ESCAPE {
        writer.put((low << 1 | 1) << high, high + 1 + width);
    } else {
        writer.put((value << 1 | 1) << ESCAPE, CODE_MAX);
    }
}

/// The number of bits of the code of this width for a value.
pub(crate) fn code_bits(value: u32, width: u32) -> u32 {
    bits_with(u64::from(value >> width), width)
}

/// The number of bits of a code for a value with these high bits.
fn bits_with(high: u64, width: u32) -> u32 {
    if high < ESCAPE.into() { high as u32 + 1 + width } else { CODE_MAX }
}

/// Reads a code of [`put_code`]; none if the bits are not a code.
#[inline]
pub(crate) fn take_code(reader: &mut CodeReader<'_>, width: u32) -> Option<u32> {
    let code = reader.peek();
    let high = code.trailing_zeros();
    if high < ESCAPE {
        reader.at += (high + 1 + width) as usize;
        let low = (code >> (high + 1)) as u32 & ((1 << width) - 1);
        // No writer produces high bits that are lost here.
        Some((high << width) | low)
    } else if high == ESCAPE {
        reader.at += CODE_MAX as usize;
        Some((code >> (ESCAPE + 1)) as u32)
    } else {
        None
    }
}

/// Reads codes one after the other.
pub(crate) struct CodeReader<'a> {
    bytes: &'a [u8],
    /// The position in bits.
    at: usize,
}

impl<'a> CodeReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The number of bytes of the codes that were read.
    pub(crate) fn whole_bytes(&self) -> usize {
        self.at.div_ceil(8)
    }

    /// At least the next 57 bits, the next one the lowest; zeros beyond the end.
    fn peek(&self) -> u64 {
        let rest = self.bytes.get(self.at / 8..).unwrap_or_default();
        let eight = match rest.first_chunk::<8>() {
            Some(eight) => *eight,
            None => {
                let mut eight = [0; 8];
                eight[..rest.len()].copy_from_slice(rest);
                eight
            }
        };
        u64::from_le_bytes(eight) >> (self.at % 8)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn frame(centre: [f64; 3], side: f64, at: &[[f32; 3]]) -> PositionFrame {
        let inside: Vec<u8> = at.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        PositionFrame { centre, side, inside: inside.into() }
    }

    /// A path in four frames, the newest last.
    fn walk(
        bodies: usize,
        seed: u64,
        pace: f32,
        odd: u64,
        boxes: &[([f64; 3], i32)],
    ) -> Vec<PositionFrame> {
        const ODD: [f32; 12] = [
            0.0,
            -0.0,
            1e-45,
            -1e-45,
            f32::MIN_POSITIVE,
            -1.1e-38,
            0.5,
            -0.5,
            f32::MAX,
            f32::MIN,
            1e-20,
            0.499_999_97,
        ];
        let mut state = seed;
        let mut draw = move || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 40) as u32
        };
        let mut place = || draw() as f32 / (1 << 24) as f32 - 0.5;
        let mut at: Vec<[f32; 3]> = (0..bodies).map(|_| [place(), place(), place()]).collect();
        let speed: Vec<[f32; 3]> = (0..bodies).map(|_| [place(), place(), place()]).collect();
        let mut frames = Vec::new();
        for (centre, exponent) in boxes {
            frames.push(frame(*centre, 2f64.powi(*exponent), &at));
            for (at, speed) in at.iter_mut().zip(&speed) {
                for (at, speed) in at.iter_mut().zip(speed) {
                    *at += pace * (*speed + 0.1 * place());
                    let lot = (place() + 0.5) * 100.0;
                    if lot < odd as f32 {
                        *at = ODD[((place() + 0.5) * 11.9) as usize];
                    }
                }
            }
        }
        frames
    }

    fn walks() -> impl Strategy<Value = Vec<PositionFrame>> {
        let middle = prop_oneof![
            4 => prop::array::uniform3(-0.1..0.1f64),
            1 => prop::array::uniform3(-1e300..1e300f64),
        ];
        let side = prop_oneof![8 => -3..3i32, 1 => Just(1023), 1 => Just(-1022)];
        let pace = prop_oneof![Just(0.0f32), Just(1e-6), Just(1e-3), Just(0.1)];
        let odd = prop_oneof![Just(0u64), Just(3), Just(100)];
        let bodies = prop_oneof![8 => 0..40usize, 2 => 250..270usize, 1 => 500..1100usize];
        (bodies, any::<u64>(), pace, odd, prop::collection::vec((middle, side), 4))
            .prop_map(|(bodies, seed, pace, odd, boxes)| walk(bodies, seed, pace, odd, &boxes))
    }

    /// The last frame, those before it newest first, and the next.
    fn split(
        frames: &[PositionFrame],
        before: usize,
    ) -> (PositionFrame, Vec<PositionFrame>, PositionFrame) {
        let mut newest: Vec<PositionFrame> =
            frames.iter().rev().take(before + 2).cloned().collect();
        let next = newest.remove(0);
        let last = newest.remove(0);
        (last, newest, next)
    }

    #[test]
    fn ordered_numbers_keep_their_order_and_convert_back() {
        let order = [f32::MIN, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY];
        let mapped = order.map(|number| ordered(number.to_bits()));
        assert!(mapped.is_sorted_by(|a, b| a < b), "{mapped:?}");
        assert_eq!((mapped[3], mapped[4], mapped[5]), (-1, 0, 1));
        for number in [0, 1, -1, 77, -78, i32::MAX, i32::MIN] {
            assert_eq!(unzigzag(zigzag(number)), number);
            assert_eq!(ordered(bits(number)), number);
        }
        assert_eq!([0, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn decoding_an_encoded_frame_is_the_identity(frames in walks()) {
            for before in 0..=BEFORE {
                let (last, before, next) = split(&frames, before);
                let delta = encode(&last, &before, &next).unwrap();
                let back = decode(&last, &before, &delta).unwrap();
                prop_assert_eq!(back.centre.map(f64::to_bits), next.centre.map(f64::to_bits));
                prop_assert_eq!(back.side.to_bits(), next.side.to_bits());
                prop_assert!(back.inside == next.inside);
            }
        }

        #[test]
        fn decoding_an_encoded_frame_of_any_bits_is_the_identity(
            words in prop::collection::vec(any::<[u32; 9]>(), 0..30),
            centre in any::<[f64; 3]>(),
        ) {
            // Neither side computes with NaNs, so even these are preserved.
            let at = |from: usize| {
                let bytes = words.iter().flat_map(|word| word[from..from + 3].to_vec());
                PositionFrame {
                    centre: centre.map(|c| if c.is_finite() { c } else { 0.0 }),
                    side: 1.0,
                    inside: bytes.flat_map(u32::to_le_bytes).collect(),
                }
            };
            let (last, before, next) = (at(3), [at(0)], at(6));
            let delta = encode(&last, &before, &next).unwrap();
            prop_assert_eq!(decode(&last, &before, &delta), Ok(next));
        }

        #[test]
        fn a_damaged_delta_gives_the_right_bits_or_an_error(
            frames in walks(),
            hits in prop::collection::vec((0..8u8, any::<Index>(), any::<u8>()), 1..6),
        ) {
            let (last, before, next) = split(&frames, BEFORE);
            let mut delta = encode(&last, &before, &next).unwrap();
            for (what, at, byte) in hits {
                let mut codes = delta.codes.clone().map(|codes| codes.to_vec());
                let axis = usize::from(byte) % 3;
                match what {
                    // An earlier change may have removed the last of them.
                    0 => {
                        let at = at.index(delta.widths.len());
                        delta.widths[at] = byte;
                    }
                    1 => delta.widths.truncate(usize::from(byte)),
                    2 => delta.bodies ^= 1 << (byte % 32),
                    3 => delta.sum ^= 1 << (byte % 64),
                    4 => delta.side = f64::from_bits(delta.side.to_bits() ^ 1 << (byte % 64)),
                    5 => codes[axis].truncate(at.index(codes[axis].len() + 1)),
                    6 => codes[axis].extend([byte; 3]),
                    _ if codes[axis].is_empty() => {}
                    _ => {
                        let at = at.index(codes[axis].len());
                        codes[axis][at] ^= byte;
                    }
                }
                delta.codes = codes.map(Bytes::from);
                delta.widths.resize(delta.widths.len().max(CONTEXTS - 1), 0);
            }
            if let Ok(frame) = decode(&last, &before, &delta) {
                prop_assert_eq!(frame, next);
            }
            // Nor does the frame matter that it is applied to.
            let inside = last.inside.slice(..last.inside.len() / 2);
            let ragged = PositionFrame { inside, ..last.clone() };
            prop_assert!(last.is_empty() || decode(&ragged, &before, &delta).is_err());
            let nan: Bytes = vec![0xff; last.inside.len()].into();
            let nan = PositionFrame { inside: nan, centre: [f64::NAN; 3], side: 0.0 };
            let _ = decode(&nan, std::slice::from_ref(&ragged), &delta);
        }
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let boxes = [([0.0; 3], 0), ([0.01; 3], 0), ([0.02; 3], 1), ([0.01; 3], 1)];
        let (last, before, next) = split(&walk(300, 5, 1e-3, 0, &boxes), BEFORE);
        let good = encode(&last, &before, &next).unwrap();
        let error = |last: &PositionFrame, delta: &Delta| decode(last, &before, delta).unwrap_err();
        let other = walk(299, 5, 1e-3, 0, &boxes).remove(0);
        assert_eq!(error(&other, &good), Malformed::Bodies { delta: 300, base: 299 });
        assert_eq!(encode(&other, &before, &next), None);
        assert_eq!(encode(&last, &before, &PositionFrame { side: 0.0, ..next.clone() }), None);
        for side in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(error(&last, &Delta { side, ..good.clone() }), Malformed::Box);
        }
        let widths = vec![32; CONTEXTS];
        assert_eq!(error(&last, &Delta { widths, ..good.clone() }), Malformed::Widths);
        assert_eq!(error(&last, &Delta { widths: vec![], ..good.clone() }), Malformed::Widths);
        let codes = good.codes.each_ref().map(|codes| codes.slice(..codes.len() / 2));
        assert_eq!(error(&last, &Delta { codes, ..good.clone() }), Malformed::Codes);
        let mut longer = good.codes.each_ref().map(|codes| codes.to_vec());
        longer[1].push(1);
        let codes = longer.map(Bytes::from);
        assert_eq!(error(&last, &Delta { codes, ..good.clone() }), Malformed::Codes);
        // Positions of another step.
        assert!(matches!(error(&next, &good), Malformed::Sum | Malformed::Codes));
        assert_eq!(decode(&last, &before, &good), Ok(next));
    }

    #[test]
    fn uniform_motion_needs_a_bit_per_coordinate() {
        let boxes = [([0.25, 0.0, -0.5], 3); 4];
        let frames = walk(4000, 9, 0.0, 0, &boxes);
        for before in 0..=BEFORE {
            let (last, before, next) = split(&frames, before);
            let delta = encode(&last, &before, &next).unwrap();
            // One bit a coordinate.
            assert!(delta.wire_len() < 4000 * 3 / 8 + 256, "{}", delta.wire_len());
        }
    }
}
