//! Numbers that are told again and again and change smoothly: by how far each is beside what both sides expect.
//!
//! Each number is expected where a line or a parabola through its last values leads (at first: where that of the row before it is,
//! or what whoever tells it makes of that), and how many representable numbers, or whole ones, it is beside that goes in a Golomb-Rice code. Its width follows the mean of those in
//! the same column so far; in the first frames, which are unlike all later ones and may be of few rows, it is told, by column. Of several forecasts the one that does best for a frame is taken: an exact parabola follows a turn
//! but makes the rounding of what it goes through four times as large, one fitted to six values hides it. Lossless; both sides
//! compute alike, by rounded operations of IEEE 754. Smaller siblings of what `delta.rs` does for all bodies at once: nothing
//! but codes travels here, for a frame may be of few numbers. Pure. Must not know what the numbers are.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::delta::{
    Reader, Writer, bits, code_bits, ordered, put_code, take_code, unzigzag, zigzag,
};

/// About so many codes are written from one flush to the next.
const FLUSH: usize = 64;
/// Frames that are kept.
const KNOWN: usize = 6;
/// The next value as a sum of the last ones, newest first, times these: the last value; the lines through two and nearest to
/// four; the parabolas through three and nearest to five and six.
const FORECASTS: [&[f64]; 6] = [
    &[1.0],
    &[2.0, -1.0],
    &[1.0, 0.5, 0.0, -0.5],
    &[3.0, -3.0, 1.0],
    &[1.8, 0.0, -0.8, -0.6, 0.6],
    &[1.5, 0.3, -0.4, -0.6, -0.3, 0.5],
];
/// Forecasts are compared by about so many numbers of a frame.
const SAMPLE: usize = 128;
/// By this part a value changes its column's mean.
const SLOW: u32 = 4;
/// Where fewer frames than this are known, widths are told with a frame.
const TELLING: usize = 3;
/// The widest of them.
const WIDEST: u8 = 24;
/// What values are about expected to be thereafter, at first; in powers of two.
const FIRST: u32 = 2;

/// Frames of as many numbers each, in rows of some columns, as one side tells them and the other hears them.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    /// How the numbers of each column count.
    columns: &'static [Counts],
    /// Newest first.
    frames: VecDeque<Vec<f32>>,
    /// Of what was told in each column when [`TELLING`] frames or more were known, times 2^[`SLOW`].
    means: Vec<u64>,
}

/// How the numbers of a column count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    /// Those between two are all that single precision has.
    InOrder,
    /// They are whole, and less than two to the power of 31.
    Whole,
}

/// What is told of one frame is no such thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFrame;

impl Track {
    /// Nothing is told yet; rows have these columns.
    pub(crate) fn new(columns: &'static [Counts]) -> Self {
        Self { columns, frames: VecDeque::new(), means: Means::of(columns.len()).0 }
    }

    /// Goes on where some rows of other tracks with these columns are: of each it is said which track's row it is. So far the numbers of
    /// each column have moved since.
    pub(crate) fn of_rows(
        columns: &'static [Counts],
        rows: &[(&Self, usize)],
        moved: &[f64],
    ) -> Self {
        let frames = rows.iter().map(|(track, _)| track.frames.len()).min().unwrap_or(0);
        let frame = |age: usize| -> Vec<f32> {
            let all = rows.iter().flat_map(|&(track, row)| {
                let first = row * columns.len();
                track.frames[age][first..first + columns.len()].iter().zip(moved)
            });
            all.map(|(number, moved)| (f64::from(*number) + moved) as f32).collect()
        };
        Self { frames: (0..frames).map(frame).collect(), ..Self::new(columns) }
    }

    /// Whether widths are told with the next frame.
    fn tells_widths(&self) -> bool {
        self.frames.len() < TELLING
    }

    /// Something of each number of a frame, what goes with it, and how it counts.
    fn by_number<A: Copy, B: Copy, T>(
        &self,
        numbers: &[A],
        with: &[B],
        of: impl Fn(A, B, Counts) -> T,
    ) -> Vec<T> {
        let both = numbers.iter().zip(with);
        // Where all count alike this is a loop that goes over many numbers at once.
        if self.columns.iter().all(|counts| *counts == Counts::InOrder) {
            return both.map(|(number, with)| of(*number, *with, Counts::InOrder)).collect();
        }
        let counts = self.columns.iter().cycle();
        both.zip(counts).map(|((number, with), counts)| of(*number, *with, *counts)).collect()
    }

    /// What the next frame's numbers are expected to be; nothing where no frame is known.
    fn expected(&self, forecast: &[f64]) -> Option<Vec<f32>> {
        self.frames.front()?;
        Some(match *forecast {
            [a] => self.sums([a]),
            [a, b] => self.sums([a, b]),
            [a, b, c] => self.sums([a, b, c]),
            [a, b, c, d] => self.sums([a, b, c, d]),
            [a, b, c, d, e] => self.sums([a, b, c, d, e]),
            [a, b, c, d, e, f] => self.sums([a, b, c, d, e, f]),
            _ => return None,
        })
    }

    /// Sums of the last frames, newest first, times these; in loops of a fixed length, for they are most of what expecting takes.
    fn sums<const N: usize>(&self, weights: [f64; N]) -> Vec<f32> {
        let count = self.frames[0].len();
        let frames: [&[f32]; N] = std::array::from_fn(|age| &self.frames[age][..count]);
        let mut all = vec![0.0; count];
        for (at, to) in all.iter_mut().enumerate() {
            let mut sum = 0.0;
            for age in 0..N {
                sum += weights[age] * f64::from(frames[age][at]);
            }
            *to = rounded(sum, frames[0][at]);
        }
        all
    }

    /// The forecast that would have told this frame in the fewest bits, about.
    fn best(&self, next: &[f32]) -> u8 {
        let mut bits = [0; FORECASTS.len()];
        let columns = self.columns.len();
        let rows = (0..next.len() / columns).step_by(next.len() / SAMPLE + 1);
        for at in rows.flat_map(|row| row * columns..(row + 1) * columns) {
            let Some(last) = self.frames.front() else { break };
            let mut values = [0.0; KNOWN];
            values
                .iter_mut()
                .zip(&self.frames)
                .for_each(|(value, frame)| *value = frame[at].into());
            for (bits, forecast) in bits.iter_mut().zip(FORECASTS) {
                let sum: f64 = forecast.iter().zip(values).map(|(weight, v)| weight * v).sum();
                let value = beside(next[at], rounded(sum, last[at]), self.columns[at % columns]);
                *bits += u32::BITS - value.leading_zeros();
            }
        }
        let some = FORECASTS.iter().zip(bits).enumerate();
        let some = some.filter(|(_, (forecast, _))| forecast.len() <= self.frames.len());
        some.min_by_key(|(_, (_, bits))| *bits).map_or(0, |(best, _)| best as u8)
    }

    fn end(&mut self, next: Vec<f32>, means: Means) {
        self.means = means.0;
        self.frames.truncate(KNOWN - 1);
        self.frames.push_front(next);
    }

    /// What the first number of a frame of which nothing is known is about, and the next one: that of the row before.
    fn of_row_before(columns: usize) -> impl Fn(&[f32]) -> f32 {
        move |known| known.len().checked_sub(columns).map_or(0.0, |at| known[at])
    }

    /// Tells the next frame, of as many numbers as those before: writes it for [`Track::hear`].
    pub(crate) fn tell(&mut self, next: Vec<f32>, to: &mut Vec<u8>) {
        self.tell_from(Self::of_row_before(self.columns.len()), next, to);
    }

    /// The same where it is known what each number of the first frame is about, given those before it.
    pub(crate) fn tell_from(
        &mut self,
        first: impl Fn(&[f32]) -> f32,
        next: Vec<f32>,
        to: &mut Vec<u8>,
    ) {
        let columns = self.columns.len();
        let best = self.best(&next);
        let expected = self.expected(FORECASTS[usize::from(best)]);
        let from_first = || (0..next.len()).map(|at| first(&next[..at])).collect();
        let expected = expected.unwrap_or_else(from_first);
        let values: Vec<u32> = self.by_number(&next, &expected, beside);
        let told = if self.tells_widths() { shortest(&values, columns) } else { Vec::new() };
        let mut means = Means(self.means.clone());
        let codes = means.write(&told, &values);
        put_number(codes.len() as u32, to);
        to.push(best);
        to.extend_from_slice(&told);
        to.extend_from_slice(&codes);
        self.end(next, means);
    }

    /// Hears the next frame, of so many numbers.
    ///
    /// # Errors
    /// If the bytes do not begin with one.
    pub(crate) fn hear(&mut self, count: usize, bytes: &mut &[u8]) -> Result<&[f32], NoFrame> {
        self.hear_from(Self::of_row_before(self.columns.len()), count, bytes)
    }

    /// The same of what [`Track::tell_from`] wrote.
    ///
    /// # Errors
    /// If the bytes do not begin with a frame.
    pub(crate) fn hear_from(
        &mut self,
        first: impl Fn(&[f32]) -> f32,
        count: usize,
        bytes: &mut &[u8],
    ) -> Result<&[f32], NoFrame> {
        let length = take_number(bytes).ok_or(NoFrame)? as usize;
        let (&best, rest) = bytes.split_first().ok_or(NoFrame)?;
        let columns = self.columns.len();
        let told = if self.tells_widths() { columns } else { 0 };
        let (told, rest) = rest.split_at_checked(told).ok_or(NoFrame)?;
        let (codes, rest) = rest.split_at_checked(length).ok_or(NoFrame)?;
        let forecast = *FORECASTS.get(usize::from(best)).ok_or(NoFrame)?;
        if self.frames.front().is_some_and(|frame| frame.len() != count)
            || forecast.len() > self.frames.len().max(1)
            || told.iter().any(|width| *width > WIDEST)
        {
            return Err(NoFrame);
        }
        let mut means = Means(self.means.clone());
        let values = means.read(told, count, codes).ok_or(NoFrame)?;
        *bytes = rest;
        let next = match self.expected(forecast) {
            Some(expected) => self.by_number(&expected, &values, from_there),
            None => {
                let mut next = Vec::with_capacity(count);
                for (value, counts) in values.iter().zip(self.columns.iter().cycle()) {
                    next.push(from_there(first(&next), *value, *counts));
                }
                next
            }
        };
        self.end(next, means);
        Ok(&self.frames[0])
    }
}

/// Of what was told so far, by column.
struct Means(Vec<u64>);

impl Means {
    /// Of so many columns, of which nothing was told.
    fn of(columns: usize) -> Self {
        Self(vec![1 << (FIRST + SLOW); columns])
    }

    /// The width of the next code in a column: what is told or, if nothing is, one that makes codes of such values short.
    fn next(&self, told: &[u8], column: usize) -> u32 {
        // The mean times the logarithm of two, about.
        let by_mean = || (((self.0[column] * 11) >> (4 + SLOW)) | 1).ilog2();
        told.get(column).map_or_else(by_mean, |width| u32::from(*width))
    }

    /// Counts what that code says, if nothing is told.
    fn count(&mut self, told: &[u8], column: usize, value: u32) {
        if told.is_empty() {
            let mean = &mut self.0[column];
            *mean = *mean - (*mean >> SLOW) + u64::from(value);
        }
    }

    /// The codes of rows of values.
    fn write(&mut self, told: &[u8], values: &[u32]) -> Bytes {
        let columns = self.0.len();
        let mut writer = Writer::new(values.len() / 3);
        for rows in values.chunks((FLUSH / columns).max(1) * columns) {
            for row in rows.chunks(columns) {
                for (column, value) in row.iter().enumerate() {
                    put_code(&mut writer, *value, self.next(told, column));
                    self.count(told, column, *value);
                }
            }
            writer.flush();
        }
        writer.end()
    }

    /// So many values from their codes; nothing if these are not just that.
    fn read(&mut self, told: &[u8], count: usize, codes: &[u8]) -> Option<Vec<u32>> {
        // Each code has a bit.
        if codes.len().saturating_mul(8) < count {
            return None;
        }
        let mut reader = Reader::new(codes);
        let mut values = vec![0; count];
        for row in values.chunks_mut(self.0.len()) {
            for (column, value) in row.iter_mut().enumerate() {
                *value = take_code(&mut reader, self.next(told, column))?;
                self.count(told, column, *value);
            }
        }
        (reader.whole_bytes() == codes.len()).then_some(values)
    }
}

/// A forecast as a number; which NaN comes of infinite ones is not said by IEEE 754.
fn rounded(sum: f64, last: f32) -> f32 {
    if sum.is_nan() { last } else { sum as f32 }
}

/// How far a number is beside what is expected.
fn beside(number: f32, expected: f32, counts: Counts) -> u32 {
    debug_assert!(counts == Counts::InOrder || f64::from(number) == f64::from(number as i32));
    zigzag(place(number, counts).wrapping_sub(place(expected, counts)))
}

/// The number that is so far beside what is expected: see [`beside`].
fn from_there(expected: f32, value: u32, counts: Counts) -> f32 {
    let place = place(expected, counts).wrapping_add(unzigzag(value));
    match counts {
        Counts::InOrder => f32::from_bits(bits(place)),
        Counts::Whole => place as f32,
    }
}

/// Where a number, if it is whole or else the one nearest to it that is, stands among all.
fn place(number: f32, counts: Counts) -> i32 {
    match counts {
        Counts::InOrder => ordered(number.to_bits()),
        Counts::Whole => nearest_whole(number.into()) as i32,
    }
}

/// The whole number nearest to one of less than 52 bits; no instruction for it is there on every machine.
pub(crate) fn nearest_whole(number: f64) -> f64 {
    // Adding this leaves no bits below one.
    const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
    number + ROUND - ROUND
}

/// Of each column the width by which the codes of its values are shortest, or nearly: about as wide as its values are long on average.
fn shortest(values: &[u32], columns: usize) -> Vec<u8> {
    let best = |column: usize| {
        let of_column = || values.iter().skip(column).step_by(columns);
        let length = |value: &u32| u64::from(u32::BITS - value.leading_zeros());
        let mean = of_column().map(length).sum::<u64>() / of_column().count().max(1) as u64;
        let bits = |width: &u8| -> u64 {
            of_column().map(|value| u64::from(code_bits(*value, u32::from(*width)))).sum()
        };
        let mean = mean as u8;
        let some = mean.saturating_sub(3).min(WIDEST)..=(mean + 2).min(WIDEST);
        some.min_by_key(bits).unwrap_or(0)
    };
    (0..columns).map(best).collect()
}

/// Writes numbers that are mostly small, for [`take_codes`]: in codes whose width follows their mean so far.
pub(crate) fn put_codes(values: &[u32], to: &mut Vec<u8>) {
    let codes = Means::of(1).write(&[], values);
    put_number(codes.len() as u32, to);
    to.extend_from_slice(&codes);
}

/// Reads so many numbers that [`put_codes`] wrote, and goes on behind them. Nothing if there are not so many.
pub(crate) fn take_codes(count: usize, bytes: &mut &[u8]) -> Option<Vec<u32>> {
    let length = take_number(bytes)? as usize;
    let (codes, rest) = bytes.split_at_checked(length)?;
    let values = Means::of(1).read(&[], count, codes)?;
    *bytes = rest;
    Some(values)
}

/// Writes a number in as many bytes as it needs.
pub(crate) fn put_number(mut number: u32, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Reads what [`put_number`] wrote, and goes on behind it.
pub(crate) fn take_number(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in (0..32).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return u32::try_from(number).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Counts::{InOrder, Whole};
    use super::*;

    proptest! {
        #[test]
        fn numbers_are_read_as_they_were_written(number in any::<u32>(), rest in any::<Vec<u8>>()) {
            let mut bytes = Vec::new();
            put_number(number, &mut bytes);
            bytes.extend(&rest);
            let mut left = &bytes[..];
            prop_assert_eq!(take_number(&mut left), Some(number));
            prop_assert_eq!(left, &rest[..]);
        }

        #[test]
        fn codes_are_read_as_they_were_written(
            numbers in prop::collection::vec(prop_oneof![0u32..9, any::<u32>()], 0..300), rest in any::<Vec<u8>>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            put_codes(&numbers, &mut bytes);
            let mut few = &bytes[..cut.index(bytes.len())];
            prop_assert!(take_codes(numbers.len(), &mut few).is_none());
            bytes.extend(&rest);
            let mut left = &bytes[..];
            prop_assert_eq!(take_codes(numbers.len(), &mut left), Some(numbers));
            prop_assert_eq!(left, &rest[..]);
        }

        /// Whatever the numbers are, the same bits come out, and what is cut or damaged is no panic.
        #[test]
        fn frames_are_heard_as_they_were_told(
            columns in prop_oneof![Just(&[InOrder][..]), Just(&[InOrder; 3][..]), Just(&[Whole, InOrder, Whole, Whole][..])],
            frames in (0usize..40).prop_flat_map(|n| prop::collection::vec(prop::collection::vec(any::<u32>(), n), 1..10)),
            cut in any::<prop::sample::Index>(),
            flip in any::<prop::sample::Index>(),
        ) {
            let (mut told, mut heard) = (Track::new(columns), Track::new(columns));
            for frame in &frames {
                let number = |(at, bits): (usize, &u32)| {
                    match columns[at % columns.len()] {
                        InOrder => f32::from_bits(*bits),
                        Whole => (*bits as i32 >> (1 + bits % 30)) as f32,
                    }
                };
                let frame: Vec<f32> = frame.iter().enumerate().map(number).collect();
                let mut bytes = Vec::new();
                told.tell(frame.clone(), &mut bytes);
                let mut damaged = bytes.clone();
                damaged[flip.index(bytes.len())] ^= 0x14;
                let _ = heard.clone().hear(frame.len(), &mut &damaged[..]);
                let cut = &bytes[..cut.index(bytes.len())];
                prop_assert!(heard.clone().hear(frame.len(), &mut &cut[..]).is_err());
                bytes.push(7);
                let mut left = &bytes[..];
                let got = heard.hear(frame.len(), &mut left).unwrap();
                let same = got.iter().map(|x| x.to_bits()).eq(frame.iter().map(|x| x.to_bits()));
                prop_assert!(same);
                prop_assert_eq!(left, &[7][..]);
            }
        }
    }

    /// Bodies on their way round: once it is known how they move, three coordinates take little more than one byte.
    #[test]
    fn smooth_ways_are_short() {
        let mut track = Track::new(&[InOrder; 3]);
        let lengths: Vec<usize> = (0..12)
            .map(|step| {
                let place = |i: usize| {
                    let turn = 0.37 * i as f64 + 1e-3 * f64::from(step);
                    [turn.cos() * 0.1, turn.sin() * 0.1, 0.02 * (3.0 * turn).cos()]
                };
                let frame = (0..500).flat_map(place).map(|x| x as f32).collect();
                let mut bytes = Vec::new();
                track.tell(frame, &mut bytes);
                bytes.len()
            })
            .collect();
        assert!(lengths[0] < 500 * 12 && lengths[1] < 500 * 8, "{lengths:?}");
        assert!(lengths[3..].iter().all(|length| *length < 500 * 3 / 2), "{lengths:?}");
    }

    /// A few rows with a column that stays as it is: from the second frame on each of its numbers takes a bit.
    #[test]
    fn few_rows_are_short_from_the_beginning() {
        let mut track = Track::new(&[InOrder; 2]);
        let lengths: Vec<usize> = (0..3)
            .map(|step| {
                let row = |i: usize| [0.1 + 0.01 * i as f32 + 1e-4 * step as f32, 1.0 + i as f32];
                let mut bytes = Vec::new();
                track.tell((0..20).flat_map(row).collect(), &mut bytes);
                bytes.len()
            })
            .collect();
        // 15 bits and two for how each of the others moves, one for each that stays, and what goes before.
        assert!(lengths[1] < 20 * (15 + 2 + 1) / 8 + 5, "{lengths:?}");
    }
}
