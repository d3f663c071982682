//! Encodes snapshots of all bodies as `.npy` or CSV, both of which [`crate::read`] reads back bit
//! for bit.
//!
//! This module does not depend on the destination of the bytes.

use std::fmt::Write;

use crate::bodies::Bodies;
use crate::read::COLUMNS;

/// A NumPy array of `float64` with shape (n, 7), columns as in [`COLUMNS`].
///
/// Source of the format: numpy/lib/format.py, version 1.0.
pub fn npy(bodies: &Bodies) -> Vec<u8> {
    const START: usize = 10;
    let mut header =
        format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({}, 7), }}", bodies.len());
    // Magic, length and header with its newline end at a multiple of 64, so that the data can be
    // mapped.
    let padded = (START + header.len() + 1).next_multiple_of(64);
    while START + header.len() + 1 < padded {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = Vec::with_capacity(padded + bodies.len() * 56);
    bytes.extend_from_slice(b"\x93NUMPY\x01\x00");
    let length = u16::try_from(header.len()).expect("the header is of about a hundred bytes");
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    for row in rows(bodies) {
        for value in row {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// Comma-separated values with a header; numbers have the shortest form that is read back to the
/// same bits.
pub fn csv(bodies: &Bodies) -> Vec<u8> {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for row in rows(bodies) {
        for (i, value) in row.into_iter().enumerate() {
            let separator = if i == 6 { "\n" } else { "," };
            // `Debug` of a float uses an exponent for very large and small values; both forms are
            // exact.
            write!(text, "{value:?}{separator}").expect("text takes any amount");
        }
    }
    text.into_bytes()
}

fn rows(bodies: &Bodies) -> impl Iterator<Item = [f64; 7]> + '_ {
    (0..bodies.len()).map(|i| {
        let ([x, y, z], [vx, vy, vz]) = (bodies.position[i], bodies.velocity[i]);
        [x, y, z, vx, vy, vz, bodies.mass[i]]
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::read;

    fn some_bodies() -> impl Strategy<Value = Bodies> {
        let number = prop_oneof![-1e3f64..1e3, -1e100f64..1e100, -1e-300f64..1e-300, Just(-0.0)];
        let row = (prop::array::uniform6(number), 0f64..1e100);
        prop::collection::vec(row, 1..40).prop_map(|rows| {
            let mut bodies = Bodies::default();
            for ([x, y, z, vx, vy, vz], m) in rows {
                bodies.push([x, y, z], [vx, vy, vz], m);
            }
            bodies
        })
    }

    proptest! {
        #[test]
        fn both_formats_read_back_bit_for_bit(bodies in some_bodies()) {
            for back in [read::npy(&npy(&bodies)).unwrap(), read::csv(&csv(&bodies)).unwrap()] {
                prop_assert_eq!(back.checksum(), bodies.checksum());
                prop_assert_eq!(&back, &bodies);
            }
        }

        #[test]
        fn another_reader_of_npy_agrees(bodies in some_bodies()) {
            let bytes = npy(&bodies);
            let file = npyz::NpyFile::new(&bytes[..]).unwrap();
            prop_assert_eq!(file.shape(), &[bodies.len() as u64, 7][..]);
            let values: Vec<f64> = file.into_vec().unwrap();
            let ours: Vec<f64> = rows(&bodies).flatten().collect();
            prop_assert_eq!(values, ours);
            prop_assert_eq!((bytes.len() - 56 * bodies.len()) % 64, 0);
        }
    }
}
