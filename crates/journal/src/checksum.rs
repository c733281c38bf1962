//! CRC32C, the checksum of all records and blocks on the log disk and in the NVRAM.

use crc_fast::{CrcAlgorithm, checksum};

/// Returns the CRC32C (Castagnoli) of `bytes`, as in RFC 3720 B.4.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_check_value_is_that_of_the_standard() {
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(super::crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
