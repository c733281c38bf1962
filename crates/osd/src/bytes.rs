//! Reads and writes big-endian fields at fixed offsets.

/// Reads `N` bytes at offset `at`; `None` if `bytes` ends before them.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_be_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_be_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_be_bytes)
}

/// Overwrites the bytes at `at`.
///
/// # Panics
/// If `bytes` is too short.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Returns the zero bytes that follow `length` bytes up to a multiple of 8.
pub(crate) const fn padding(length: usize) -> usize {
    length.wrapping_neg() % 8
}
