//! The format of capture files (pcap), as tcpdump and Wireshark read it.

use std::time::{SystemTime, UNIX_EPOCH};

/// The number of a file with times in nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// The longest packet.
const SNAP_LEN: u32 = 1 << 16;
/// The type of a file of IP packets without a header before them.
const LINKTYPE_RAW: u32 = 101;

/// The header of a file.
pub fn header() -> Vec<u8> {
    // Version 2.4, times in UTC.
    let words = [MAGIC, 4 << 16 | 2, 0, 0, SNAP_LEN, LINKTYPE_RAW];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The record of a packet at a time.
pub fn record(at: SystemTime, packet: &[u8]) -> Vec<u8> {
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let packet = &packet[..packet.len().min(SNAP_LEN as usize)];
    // The format has 32 bits for seconds.
    let (seconds, len) = (at.as_secs() as u32, packet.len() as u32);
    let words = [seconds, at.subsec_nanos(), len, len];
    words.iter().flat_map(|word| word.to_le_bytes()).chain(packet.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn files_have_the_published_format() {
        let mut file = header();
        file.extend(record(UNIX_EPOCH + Duration::new(3, 5), &[0x45, 1]));
        let expected = [
            &[0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 101, 0, 0, 0]
                [..],
            &[3, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0x45, 1],
        ];
        assert_eq!(file, expected.concat());
    }
}
