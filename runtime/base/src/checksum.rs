//! FNV-1a with 64 bits: the checksum of results, registries, histories and benchmarks.
//!
//! It is the same on every machine and in every release, and does not resist attacks. It knows
//! nothing of the summed data.
//!
//! Source: Fowler, Noll and Vo, draft-eastlake-fnv.

/// The checksum of no bytes, with which [`checksum_from`] starts.
pub const START: u64 = 0xcbf2_9ce4_8422_2325;

/// Computes FNV-1a over bytes, for example over the bits of a result.
pub fn checksum(bytes: impl IntoIterator<Item = u8>) -> u64 {
    checksum_from(START, bytes)
}

/// Continues a [`checksum`] with further bytes; `state` is the checksum of the earlier ones.
pub fn checksum_from(state: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(state, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the test vectors of the source.
    #[test]
    fn it_is_fnv_1a() {
        for (text, sum) in
            [("", START), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(checksum(text.bytes()), sum, "{text}");
        }
        assert_eq!(
            checksum_from(checksum("foo".bytes()), "bar".bytes()),
            checksum("foobar".bytes())
        );
    }
}
