//! Little-endian fields at fixed offsets of a record.

/// The `N` bytes at `offset`.
pub fn array<const N: usize>(record: &[u8], offset: usize) -> [u8; N] {
    record[offset..offset + N].try_into().expect("the slice is N bytes long")
}

/// The number at `offset`.
pub fn u32_at(record: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(array(record, offset))
}

/// The number at `offset`.
pub fn u64_at(record: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(array(record, offset))
}

/// Puts `field` at `offset`.
pub fn put(record: &mut [u8], offset: usize, field: &[u8]) {
    record[offset..offset + field.len()].copy_from_slice(field);
}

/// Puts a number at `offset`.
pub fn put_u32(record: &mut [u8], offset: usize, number: u32) {
    put(record, offset, &number.to_le_bytes());
}

/// Puts a number at `offset`.
pub fn put_u64(record: &mut [u8], offset: usize, number: u64) {
    put(record, offset, &number.to_le_bytes());
}
