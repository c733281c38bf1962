//! Parses lists of coherence token requests and answers. An accepted list must be the same after it is written and read
//! again. Whatever the lists contain, the state machines must stay consistent: at most one gateway may write a range.
#![no_main]

use fuzz::Choices;
use libfuzzer_sys::fuzz_target;
use coherence::{
    Grantor, Holder, SharingMember, CoherenceRange, Terms, read_answers, read_requests, write_answers,
    write_requests,
};

const TERMS: Terms = Terms { lease: 1000, ranges: 8 };
const MEMBERS: u32 = 3;

fuzz_target!(|input: &[u8]| {
    let mut choices = Choices::new(input);
    let forges = choices.flag();
    let mut bytes = choices.rest().to_vec();
    if forges {
        seal(&mut bytes);
    }
    if let Ok(requests) = read_requests(&bytes) {
        let (written, count) = write_requests(&requests);
        assert_eq!(count, requests.len());
        assert_eq!(read_requests(&written).as_ref(), Ok(&requests));
        let mut grantor = Grantor::new(TERMS, 1 << 32, [], 0);
        (0..MEMBERS).for_each(|member| grantor.attach(SharingMember(member), 0));
        for (at, request) in requests.into_iter().enumerate() {
            grantor.handle(SharingMember(at as u32 % MEMBERS), request, at as u64 * 10);
            grantor.handle_timeout(at as u64 * 10);
            for range in (0..TERMS.ranges).map(CoherenceRange) {
                let writers = (0..MEMBERS).filter(|m| grantor.may_write(SharingMember(*m), range));
                assert!(writers.count() <= 1);
            }
        }
        while grantor.poll_answer().is_some() {}
    }
    if let Ok((terms, grain, answers)) = read_answers(&bytes) {
        let (written, count) = write_answers(terms, grain, &answers, usize::MAX);
        assert_eq!(count, answers.len());
        assert_eq!(read_answers(&written), Ok((terms, grain, answers.clone())));
        let mut holder = Holder::new(TERMS.lease, [CoherenceRange(1)], 0);
        for (at, answer) in answers.into_iter().enumerate() {
            holder.handle(answer, at as u64 * 10);
            holder.handle_timeout(at as u64 * 10);
        }
        while holder.poll_request().is_some() {}
        while let Some(cleaning) = holder.poll_cleaning() {
            holder.cleaned(cleaning.range, 10_000);
        }
    }
});

/// Corrects the length and the checksum of a message (docs/formats/network.md).
fn seal(bytes: &mut Vec<u8>) {
    if bytes.len() < 20 {
        return;
    }
    let length = (bytes.len() as u32).to_be_bytes();
    bytes[12..16].copy_from_slice(&length);
    let end = bytes.len() - 4;
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..end]) as u32;
    bytes[end..].copy_from_slice(&sum.to_be_bytes());
}
