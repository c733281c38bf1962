//! The inputs of the test vectors for the security formats that we have defined.

use object::Timestamp;

use crate::{
    layout::CAPABILITY_BYTES,
    security::{Algorithm, Nonce, SystemId},
};

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two hex digits");
    (0..text.len()).step_by(2).map(digits).collect()
}

/// Returns `N` bytes: `first`, `first + 1` and so on.
pub(crate) fn ascending<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|at| first + at as u8)
}

/// Returns the capability of the test vectors. For HMAC-SHA1 and HMAC-SHA-256 the bytes are the
/// same and name HMAC-SHA1; for BLAKE3 they name algorithm 3.
pub(crate) fn capability_vector(algorithm: Algorithm) -> [u8; CAPABILITY_BYTES] {
    let mut bytes: [u8; CAPABILITY_BYTES] = unhex(concat!(
        "0251020001b8dac5b4000000000000000000000000000000000000000000000102030405060708090a0b0000",
        "0000000080a0000000000010ffffffff00000007000000000000000000000000000100000000000000010001",
        "ffffffffffffffff0000000000000000",
    ))
    .try_into()
    .expect("104 bytes");
    if algorithm == Algorithm::Blake3 {
        bytes[1] = 0x53;
    }
    bytes
}

pub(crate) fn system_vector() -> SystemId {
    unhex("f181000e464f5245424159204f53443000000000").try_into().expect("20 bytes")
}

pub(crate) fn nonce_vector() -> Nonce {
    Nonce { time: Timestamp::from_ms(0x0194_1f29_7c00), random: [1, 2, 3, 4, 5, 6] }
}
