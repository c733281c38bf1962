//! Reads big-endian fields of CDBs and of parameter data. Functions with names like `u16_at` return
//! `None` if the bytes are too short; `be16` and its siblings expect a complete CDB.

pub(crate) fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(array_at(bytes, at)?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(array_at(bytes, at)?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(array_at(bytes, at)?))
}

pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Returns `claimed` bytes from offset `at` on, or fewer if fewer were received. `claimed` comes
/// from a length field of the data, which may be wrong.
pub(crate) fn body(bytes: &[u8], at: usize, claimed: usize) -> &[u8] {
    let start = at.min(bytes.len());
    let end = at.saturating_add(claimed).min(bytes.len());
    &bytes[start..end]
}

// The functions below panic on short input. Use them only in parsers of CDBs: `OperationRow::read`
// passes a CDB of exactly the command's length to them.

pub(crate) fn be16(cdb: &[u8], at: usize) -> u16 {
    u16_at(cdb, at).expect(WHOLE)
}

pub(crate) fn be32(cdb: &[u8], at: usize) -> u32 {
    u32_at(cdb, at).expect(WHOLE)
}

pub(crate) fn be64(cdb: &[u8], at: usize) -> u64 {
    u64_at(cdb, at).expect(WHOLE)
}

const WHOLE: &str = "parsers get whole CDBs";
