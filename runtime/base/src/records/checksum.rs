//! CRC-32C (Castagnoli, reflected), the checksum of records. It detects every change of up to three
//! bits in records of up to 256 MiB.
//!
//! Source: RFC 3720, appendix B.4; Koopman, 32-bit cyclic redundancy codes for internet
//! applications, DSN 2002.

/// The remainder of each byte value.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut remainder, mut bit) = (byte as u32, 0);
        while bit < 8 {
            let carry = remainder & 1;
            remainder = (remainder >> 1) ^ (0x82f6_3b78 & carry.wrapping_neg());
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};

/// CRC-32C of `bytes`.
pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)];
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of RFC 3720.
    #[test]
    fn the_checksum_is_crc_32c() {
        let ascending: Vec<u8> = (0..32).collect();
        for (bytes, crc) in [
            (&b"123456789"[..], 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
        ] {
            assert_eq!(crc32c(bytes), crc);
        }
    }
}
