//! FNV-1a, 64 bits: the one checksum of results, registries, histories and benchmarks. The same on every machine and in every
//! release; not against malice.
//!
//! Source: Fowler, Noll and Vo, draft-eastlake-fnv. Must not know what is summed.

/// The checksum of no bytes, from which [`checksum_from`] goes on.
pub const START: u64 = 0xcbf2_9ce4_8422_2325;

/// The FNV-1a hash of bytes, for example of a job's result.
pub fn checksum(bytes: impl IntoIterator<Item = u8>) -> u64 {
    checksum_from(START, bytes)
}

/// As [`checksum`], where some bytes went before: `state` is theirs.
pub fn checksum_from(state: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(state, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of the source.
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
