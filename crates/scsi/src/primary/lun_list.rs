//! Parameter data of REPORT LUNS (SPC-4, 6.33).

use crate::{
    Lun,
    field::{body, u32_at, u64_at},
};

/// Encodes the LUN list with its header. The target truncates the data to the allocation length;
/// the length in the header remains that of the whole list.
///
/// # Panics
/// If there are 2^29 LUNs or more.
#[must_use]
pub fn lun_list(luns: &[Lun]) -> Vec<u8> {
    let length = u32::try_from(luns.len() * 8).expect("fewer than 2^29 logical units");
    let mut bytes = Vec::with_capacity(8 + luns.len() * 8);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    for lun in luns {
        bytes.extend_from_slice(&lun.0.to_be_bytes());
    }
    bytes
}

/// Parses REPORT LUNS data. Returns the LUNs that have arrived, and the number of LUNs that the
/// header states. Returns `None` if the header is incomplete.
#[must_use]
pub fn parse_lun_list(bytes: &[u8]) -> Option<(Vec<Lun>, usize)> {
    let length = u32_at(bytes, 0)? as usize;
    let luns = body(bytes, 8, length)
        .chunks_exact(8)
        .map(|lun| Lun(u64_at(lun, 0).expect("chunks are 8 bytes")))
        .collect();
    Some((luns, length / 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_lun_list_still_has_the_number_of_units() {
        let luns = [Lun(0), Lun(1 << 48), Lun(2 << 48)];
        let bytes = lun_list(&luns);
        assert_eq!(bytes[..8], [0, 0, 0, 24, 0, 0, 0, 0]);
        assert_eq!(parse_lun_list(&bytes), Some((luns.to_vec(), 3)));
        assert_eq!(parse_lun_list(&bytes[..17]), Some((luns[..1].to_vec(), 3)));
        assert_eq!(parse_lun_list(&[0xff; 4]), Some((vec![], 0x1fff_ffff)));
        assert_eq!(parse_lun_list(&[0; 3]), None);
    }
}
