//! Snapshots in the binary format of the Gadget codes, which the field's Python packages (pynbody,
//! yt) can read.
//!
//! This module writes SnapFormat 1 with single precision, which all packages accept. In double
//! precision yt 4.4 reads velocities and masses at wrong offsets; `.npy` keeps every bit. This
//! module reads formats 1 and 2, in either precision. The first population is type 1 (halo), the
//! second type 2 (disk). Units are the run's own, with G = 1, and the header's time is that of the
//! run. Source of the format: V. Springel, User guide for GADGET-2 (2005), section 6. This module
//! does not depend on options.

use crate::bodies::Bodies;
use crate::read::{COLUMNS, FilePosition, Mistake, Reason, check, push, some};

/// Types of bodies in Gadget: gas, halo, disk, bulge, stars, boundary.
const TYPES: usize = 6;
const HEADER: usize = 256;
const FIRST: usize = 1;
const SECOND: usize = 2;

/// The maximum number of bodies of a snapshot: lengths of blocks have 32 bits.
pub const BODIES_MAX: usize = u32::MAX as usize / 12;

/// A number is too large for single precision.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "body {body} has {value:e}, which is too large for a Gadget snapshot; choose \
     --snapshot-format npy or other units"
)]
pub struct TooLarge {
    /// The index of the body.
    pub body: usize,
    /// The coordinate, velocity or mass.
    pub value: f64,
}

/// Encodes a snapshot in format 1 with single precision, of at most [`BODIES_MAX`] bodies.
///
/// `time` counts from the start of the run.
///
/// # Errors
/// [`TooLarge`].
pub fn write(bodies: &Bodies, time: f64) -> Result<Vec<u8>, TooLarge> {
    for body in 0..bodies.len() {
        let values = bodies.position[body].iter().chain(&bodies.velocity[body]);
        let too_large = |value: &&f64| !(**value as f32).is_finite();
        if let Some(&value) = values.chain([&bodies.mass[body]]).find(too_large) {
            return Err(TooLarge { body, value });
        }
    }
    let split = bodies.second.min(bodies.len());
    let mut counts = [0u32; TYPES];
    counts[FIRST] = split as u32;
    counts[SECOND] = (bodies.len() - split) as u32;
    let mut header = Vec::with_capacity(HEADER);
    let ints = |header: &mut Vec<u8>, values: &[u32]| {
        header.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    let doubles = |header: &mut Vec<u8>, values: &[f64]| {
        header.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    ints(&mut header, &counts);
    // Masses of types: zero, since each body has its own.
    doubles(&mut header, &[0.0; TYPES]);
    // Time and redshift.
    doubles(&mut header, &[time, 0.0]);
    // No star formation and no feedback; counts in all files of the snapshot.
    ints(&mut header, &[0, 0]);
    ints(&mut header, &counts);
    // No cooling; the number of files.
    ints(&mut header, &[0, 1]);
    // No box, matter and cosmological constant; a Hubble parameter of 1, so that no reader scales
    // by it.
    doubles(&mut header, &[0.0, 0.0, 0.0, 1.0]);
    // No ages, metals, high words of the counts and other fields.
    header.resize(HEADER, 0);

    let mut bytes = Vec::with_capacity(HEADER + bodies.len() * 32 + 40);
    let mut block = |length: usize, values: &mut dyn Iterator<Item = [u8; 4]>| {
        let length = (length as u32).to_le_bytes();
        bytes.extend_from_slice(&length);
        values.for_each(|value| bytes.extend_from_slice(&value));
        bytes.extend_from_slice(&length);
    };
    let mut fours = header.chunks_exact(4).map(|c| c.try_into().expect("chunks of four"));
    block(HEADER, &mut fours);
    let single = |value: &f64| (*value as f32).to_le_bytes();
    let count = bodies.len();
    block(count * 12, &mut bodies.position.iter().flatten().map(single));
    block(count * 12, &mut bodies.velocity.iter().flatten().map(single));
    block(count * 4, &mut (1..=count as u32).map(u32::to_le_bytes));
    block(count * 4, &mut bodies.mass.iter().map(single));
    Ok(bytes)
}

/// Whether a file starts like a snapshot of this format.
pub fn is_snapshot(bytes: &[u8]) -> bool {
    matches!(bytes.first_chunk(), Some([0, 1, 0, 0])) || named(bytes)
}

/// Whether a snapshot has format 2, where each block follows a record of 8 bytes with its name.
fn named(bytes: &[u8]) -> bool {
    matches!(bytes.first_chunk(), Some([8, 0, 0, 0, b'H', b'E', b'A', b'D']))
}

/// Reads a snapshot of format 1 or 2. The order of the bodies is that of the file.
///
/// The first population is the first type with bodies.
///
/// # Errors
/// The place and the reason of the first mistake.
pub fn read(bytes: &[u8]) -> Result<Bodies, Mistake> {
    let whole = |reason| (FilePosition::Whole, reason);
    if !is_snapshot(bytes) {
        return Err(whole(Reason::NotGadget));
    }
    let mut records = Records { bytes, at: 0, named: named(bytes) };
    let header = records.next()?.filter(|(_, header)| header.len() == HEADER);
    let (_, header) = header.ok_or(whole(Reason::NotGadget))?;
    let header = SnapshotHeader::parse(header);
    if header.files > 1 {
        return Err(whole(Reason::GadgetFiles(header.files)));
    }
    if header.redshift != 0.0 {
        return Err(whole(Reason::GadgetComoving(header.redshift.to_string())));
    }
    let count: usize = header.counts.iter().map(|count| *count as usize).sum();
    let own = |kind: usize| header.masses[kind] == 0.0;
    let with_own: usize =
        (0..TYPES).filter(|kind| own(*kind)).map(|kind| header.counts[kind] as usize).sum();

    let mut blocks = [const { None::<&[u8]> }; 4];
    let mut place = 0;
    while blocks.iter().any(Option::is_none) {
        let Some((name, record)) = records.next()? else { break };
        let at = match name {
            Some(name) => BLOCKS.iter().position(|block| block.as_bytes() == &name[..]),
            None => Some(place),
        };
        place += 1;
        if let Some(at) = at {
            blocks[at] = Some(record);
        }
    }
    let block = |at: usize, values: usize| {
        let missing = whole(Reason::GadgetMissing(BLOCKS[at].trim_end()));
        let record = if values == 0 { &[][..] } else { blocks[at].ok_or(missing)? };
        let size = match record.len() {
            length if length == values * 4 => 4,
            length if length == values * 8 => 8,
            length => {
                return Err(whole(Reason::GadgetBlock {
                    block: BLOCKS[at].trim_end(),
                    got: length as u64,
                    values: values as u64,
                }));
            }
        };
        Ok(BlockValues { record, size })
    };
    let position = block(0, count * 3)?;
    let velocity = block(1, count * 3)?;
    let mass = block(3, with_own)?;

    let mut bodies = Bodies::default();
    let mut next_mass = 0;
    let kinds = (0..TYPES).flat_map(|kind| (0..header.counts[kind]).map(move |_| kind));
    for (row, kind) in kinds.enumerate() {
        let mut values = [0.0; 7];
        for axis in 0..3 {
            values[axis] = position.get(row * 3 + axis);
            values[3 + axis] = velocity.get(row * 3 + axis);
        }
        values[6] = header.masses[kind];
        if own(kind) {
            values[6] = mass.get(next_mass);
            next_mass += 1;
        }
        for (column, value) in values.iter().enumerate() {
            check(*value, column, FilePosition::Row(row, COLUMNS[column]))?;
        }
        push(&mut bodies, values);
    }
    let first = header.counts.iter().find(|count| **count > 0);
    bodies.second = first.map_or(0, |count| *count as usize);
    some(bodies)
}

/// Names of the blocks in format 2, which is their order in format 1.
const BLOCKS: [&str; 4] = ["POS ", "VEL ", "ID  ", "MASS"];

struct SnapshotHeader {
    counts: [u32; TYPES],
    masses: [f64; TYPES],
    redshift: f64,
    files: u32,
}

impl SnapshotHeader {
    /// Parses the [`HEADER`] bytes.
    fn parse(bytes: &[u8]) -> Self {
        let int = |at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were cut"))
        };
        let double = |at: usize| {
            f64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were cut"))
        };
        Self {
            counts: std::array::from_fn(|kind| int(kind * 4)),
            masses: std::array::from_fn(|kind| double(24 + kind * 8)),
            redshift: double(80),
            files: int(124),
        }
    }
}

/// Numbers of a block in single or double precision.
struct BlockValues<'b> {
    record: &'b [u8],
    size: usize,
}

impl BlockValues<'_> {
    fn get(&self, i: usize) -> f64 {
        match self.record[i * self.size..(i + 1) * self.size] {
            [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => unreachable!("numbers are of four or eight bytes"),
        }
    }
}

/// Fortran's records, with the length in bytes before and after each.
struct Records<'b> {
    bytes: &'b [u8],
    at: usize,
    named: bool,
}

/// A block and, in format 2, its name.
type NamedBlock<'b> = (Option<[u8; 4]>, &'b [u8]);

impl<'b> Records<'b> {
    /// The next block; none at the end of the file.
    fn next(&mut self) -> Result<Option<NamedBlock<'b>>, Mistake> {
        let mut name = None;
        if self.at == self.bytes.len() {
            return Ok(None);
        }
        if self.named {
            name = self.record()?.first_chunk().copied();
        }
        Ok(Some((name, self.record()?)))
    }

    fn record(&mut self) -> Result<&'b [u8], Mistake> {
        let cut = |expected: usize| {
            let got = self.bytes.len() as u64;
            (FilePosition::Whole, Reason::Truncated { expected: expected as u64, got })
        };
        let length_at = |at: usize| {
            let bytes: Option<&[u8; 4]> = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map(|bytes| u32::from_le_bytes(*bytes) as usize).ok_or(cut(at + 4))
        };
        let start = self.at + 4;
        let length = length_at(self.at)?;
        let end = start + length;
        if length_at(end)? != length {
            return Err((FilePosition::Whole, Reason::GadgetRecord(self.at as u64)));
        }
        self.at = end + 4;
        Ok(&self.bytes[start..end])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generate;

    fn two() -> Bodies {
        let mut bodies = Bodies::default();
        bodies.push([1.0, 2.0, 3.0], [0.5, 0.0, -0.5], 2.0);
        bodies.push([-1.0, 0.125, 1e-300], [1.0, 2.0, 3.0], 0.0);
        bodies.push([-0.0, 0.5f64.powi(-100), 4.0], [1.0, 2.0, 3.0], 0.25);
        bodies.second = 1;
        bodies
    }

    #[test]
    fn the_header_has_its_fields_in_their_places() {
        let bytes = write(&two(), 1.5).unwrap();
        assert_eq!(bytes.len(), 264 + 2 * (8 + 36) + (8 + 12) + (8 + 12));
        let mut expected = vec![0u8; 264];
        // The user guide's offsets, after the record's length.
        for at in [0, 260] {
            expected[at..at + 4].copy_from_slice(&256u32.to_le_bytes());
        }
        for (at, value) in [(4, 1u32), (8, 2)] {
            expected[4 + at..8 + at].copy_from_slice(&value.to_le_bytes());
            // Npart and Nall.
            expected[4 + 96 + at..8 + 96 + at].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in [(72, 1.5f64), (152, 1.0)] {
            expected[4 + at..12 + at].copy_from_slice(&value.to_le_bytes());
        }
        expected[4 + 124] = 1;
        assert_eq!(bytes[..264], expected);
        // The first block: three bodies of three numbers.
        assert_eq!(bytes[264..276], [36, 0, 0, 0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0x40]);
        assert_eq!(bytes[264 + 88..264 + 104], [12, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
    }

    #[test]
    fn a_snapshot_is_read_back_to_single_precision() {
        for mut bodies in [two(), generate::galaxies(100, 1), generate::plummer(7, 2)] {
            let back = read(&write(&bodies, 0.0).unwrap()).unwrap();
            for column in [&mut bodies.position, &mut bodies.velocity] {
                column.iter_mut().flatten().for_each(|c| *c = f64::from(*c as f32));
            }
            bodies.mass.iter_mut().for_each(|m| *m = f64::from(*m as f32));
            assert_eq!(back, bodies);
            // The next round trip is exact.
            assert_eq!(read(&write(&back, 0.0).unwrap()), Ok(back));
        }
    }

    #[test]
    fn numbers_too_large_for_single_precision_are_refused() {
        let mut bodies = two();
        bodies.mass[2] = 1e39;
        let error = write(&bodies, 0.0).unwrap_err().to_string();
        let expected = "body 2 has 1e39, which is too large for a Gadget snapshot; choose \
                        --snapshot-format npy or other units";
        assert_eq!(error, expected);
    }

    #[test]
    fn double_precision_of_others_is_read_bit_for_bit() {
        let bodies = generate::plummer(50, 3);
        let doubles = |values: &mut dyn Iterator<Item = &f64>| {
            values.flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()
        };
        let mut header = vec![0; HEADER];
        header[4] = 50;
        let blocks = [
            ("HEAD", header),
            ("POS ", doubles(&mut bodies.position.iter().flatten())),
            ("VEL ", doubles(&mut bodies.velocity.iter().flatten())),
            ("ID  ", vec![0; 200]),
            ("MASS", doubles(&mut bodies.mass.iter())),
        ];
        for named in [false, true] {
            assert_eq!(read(&file(named, &blocks)).as_ref(), Ok(&bodies));
        }
    }

    /// Blocks as records, with names in format 2.
    fn file(named: bool, blocks: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut record = |data: &[u8]| {
            bytes.extend((data.len() as u32).to_le_bytes());
            bytes.extend(data);
            bytes.extend((data.len() as u32).to_le_bytes());
        };
        for (name, data) in blocks {
            if named {
                let next = (data.len() as u32 + 8).to_le_bytes();
                record(&[name.as_bytes(), &next].concat());
            }
            record(data);
        }
        bytes
    }

    fn singles(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    type Blocks = Vec<(&'static str, Vec<u8>)>;

    /// One body of gas with the type's mass, and two stars with masses of their own.
    fn blocks() -> Blocks {
        let mut header = vec![0; HEADER];
        (header[0], header[16]) = (1, 2);
        header[24..32].copy_from_slice(&0.5f64.to_le_bytes());
        vec![
            ("HEAD", header),
            ("POS ", singles(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])),
            ("VEL ", singles(&[0.25; 9])),
            ("ID  ", vec![0; 24]),
            ("MASS", singles(&[2.0, 3.0])),
            ("U   ", singles(&[1.0])),
        ]
    }

    #[test]
    fn both_formats_of_others_are_read() {
        let mut expected = Bodies::default();
        for (p, m) in [([1.0, 2.0, 3.0], 0.5), ([4.0, 5.0, 6.0], 2.0), ([7.0, 8.0, 9.0], 3.0)] {
            expected.push(p, [0.25; 3], m);
        }
        expected.second = 1;
        for named in [false, true] {
            assert_eq!(read(&file(named, &blocks())).as_ref(), Ok(&expected));
        }
        // Names identify blocks in any order.
        let mut mixed = blocks();
        mixed[1..].reverse();
        assert_eq!(read(&file(true, &mixed)), Ok(expected));
    }

    #[test]
    fn every_mistake_is_named() {
        let changed = |change: &dyn Fn(&mut Blocks)| {
            let mut blocks = blocks();
            change(&mut blocks);
            file(false, &blocks)
        };
        let good = file(false, &blocks());
        let mut damaged = good.clone();
        damaged[260] = 9;
        let none = "is no Gadget snapshot: it begins neither with a record of 256 bytes (format \
                    1) nor with the name HEAD (format 2), in little-endian order";
        let table = [
            (vec![], none),
            (b"x,y,z".to_vec(), none),
            (vec![0, 0, 1, 0, 0], none),
            (good[..100].to_vec(), "is cut short: 264 bytes are expected, 100 are there"),
            (good[..270].to_vec(), "is cut short: 308 bytes are expected, 270 are there"),
            (
                damaged,
                "has a record at byte 0 whose lengths before and after it differ; \
                 the file is damaged",
            ),
            (good[..264].to_vec(), "has no block POS"),
            (
                changed(&|blocks| blocks[0].1[124] = 4),
                "is one of the 4 files of a snapshot; join them into one",
            ),
            (
                changed(&|blocks| blocks[0].1[80..88].copy_from_slice(&0.5f64.to_le_bytes())),
                "is of redshift 0.5, so its coordinates are comoving; \
                 save physical ones with redshift 0",
            ),
            (
                changed(&|blocks| blocks[0].1[16] = 3),
                "has 36 bytes in its block POS, which are not 12 numbers of 4 or 8 bytes",
            ),
            (changed(&|blocks| blocks.truncate(4)), "has no block MASS"),
            (changed(&|blocks| blocks[0].1[..24].fill(0)), "has no bodies; at least one is needed"),
            (
                changed(&|blocks| blocks[2].1[12..16].copy_from_slice(&f32::NAN.to_le_bytes())),
                "row 1, column vx: NaN is not a finite number",
            ),
            (
                changed(&|blocks| blocks[4].1[..4].copy_from_slice(&(-2f32).to_le_bytes())),
                "row 1, column m: the mass -2 is negative; masses must be zero or more",
            ),
        ];
        for (bytes, expected) in table {
            let (place, reason) = read(&bytes).unwrap_err();
            let message = format!("{place}: {reason}");
            assert_eq!(message.strip_prefix(": ").unwrap_or(&message), expected);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            noise in prop::collection::vec(any::<u8>(), 0..60),
            at in any::<prop::sample::Index>(),
            named in any::<bool>(),
        ) {
            let mut bytes = file(named, &blocks());
            let at = at.index(bytes.len());
            bytes.splice(at..(at + noise.len() / 2).min(bytes.len()), noise.iter().copied());
            drop((read(&bytes), read(&noise)));
        }
    }
}
