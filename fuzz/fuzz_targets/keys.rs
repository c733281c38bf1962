//! Parses text keys. Accepted keys must be the same after they are encoded and parsed again. The negotiation in full
//! feature phase must not panic at any key, and must keep the maximum segment length in its range.
#![no_main]

use iscsi::keys::{self, Parameters};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let listed: Result<Vec<_>, _> = keys::pairs(input).collect();
    let Ok(pairs) = keys::parse(input) else { return };
    assert_eq!(listed.as_ref(), Ok(&pairs));

    let mut written = Vec::new();
    let mut parameters = Parameters::default();
    for (key, value) in &pairs {
        keys::push(&mut written, key, value);
        keys::receive_in_full_feature(key, value, &mut parameters);
    }
    assert_eq!(keys::parse(&written), Ok(pairs));
    assert!((512..1 << 24).contains(&parameters.max_send_data_segment_length));
});
