//! Big-endian fields of CDBs and parameter data, read from bytes that may be too few.

/// The byte at `at`.
pub(crate) fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// The two bytes at `at`.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(array_at(bytes, at)?))
}

/// The four bytes at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(array_at(bytes, at)?))
}

/// The eight bytes at `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(array_at(bytes, at)?))
}

/// The `N` bytes at `at`.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// What stands at `at` and lasts for the length that a 16-bit field before it claims, as far as it
/// really came.
pub(crate) fn body(bytes: &[u8], at: usize, claimed: usize) -> &[u8] {
    let start = at.min(bytes.len());
    let end = at.saturating_add(claimed).min(bytes.len());
    &bytes[start..end]
}

// Of CDBs: parsers get them whole, `Command::parse` sees to that.

/// The two bytes at `at` of a whole CDB.
pub(crate) fn be16(cdb: &[u8], at: usize) -> u16 {
    u16_at(cdb, at).expect(WHOLE)
}

/// The four bytes at `at` of a whole CDB.
pub(crate) fn be32(cdb: &[u8], at: usize) -> u32 {
    u32_at(cdb, at).expect(WHOLE)
}

/// The eight bytes at `at` of a whole CDB.
pub(crate) fn be64(cdb: &[u8], at: usize) -> u64 {
    u64_at(cdb, at).expect(WHOLE)
}

const WHOLE: &str = "parsers get whole CDBs";
