//! Reads and writes little-endian fields at fixed offsets of a record. All functions panic if the record is
//! too short.

pub fn array<const N: usize>(record: &[u8], offset: usize) -> [u8; N] {
    record[offset..offset + N].try_into().expect("the slice is N bytes long")
}

pub fn u32_at(record: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(array(record, offset))
}

pub fn u64_at(record: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(array(record, offset))
}

pub fn put(record: &mut [u8], offset: usize, field: &[u8]) {
    record[offset..offset + field.len()].copy_from_slice(field);
}

pub fn put_u32(record: &mut [u8], offset: usize, number: u32) {
    put(record, offset, &number.to_le_bytes());
}

pub fn put_u64(record: &mut [u8], offset: usize, number: u64) {
    put(record, offset, &number.to_le_bytes());
}
