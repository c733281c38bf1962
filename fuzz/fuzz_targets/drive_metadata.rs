//! Decodes the superblock, the length of the tables and the rows of a forged object drive, with right or wrong checksums.
#![no_main]

use fuzz::Choices;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let kind = choices.byte();
    drive::store::decode_metadata(kind, choices.rest());
});
