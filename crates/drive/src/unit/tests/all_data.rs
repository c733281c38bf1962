//! Tests of the method ALLDATA, with which the data of both directions is proved.

use object::{AttributeId, AttributeSelection};
use osd::{
    AttributeParameters, ListInBuffer, Space, list,
    security::{DATA_IN_INTEGRITY_BYTES, DataInIntegrity, DataOutIntegrity},
};

use super::*;

/// Returns a signed WRITE of `data` with a list that sets the attribute "username", and its Data-Out buffer.
fn write(bench: &Bench, data: &[u8]) -> (SignedCdb, Vec<u8>) {
    let command = Command::Write { object: OBJECT, length: data.len() as u64, start: 0 };
    let mut cdb = bench.cdb(command);
    let set = list::encode_attributes(&[object::Attribute::new(1, 9, vec![7; 8])]);
    let mut out = data.to_vec();
    out.resize(out.len().next_multiple_of(8), 0);
    let offset = out.len() as u64;
    out.extend_from_slice(&set);
    let in_buffer = ListInBuffer { length: set.len() as u32, offset };
    cdb.attributes =
        AttributeParameters::Lists { get: None, retrieved: None, set: Some(in_buffer) };
    cdb.data_out_integrity = Some(out.len() as u64);
    let permissions = Permissions::WRITE | Permissions::SET_ATTRIBUTES;
    let method = SecurityMethod::AllData;
    let capability = Capability { method, ..bench.capability(permissions) };
    let signed = bench.signed(cdb, &capability);
    let lengths = [data.len() as u64, set.len() as u64, 0];
    let information = DataOutIntegrity::new(&signed.key, cdb.nonce, [&out[..]], lengths);
    out.extend_from_slice(&information.to_bytes());
    (signed, out)
}

#[tokio::test]
async fn a_proved_buffer_is_written_and_every_altered_one_refused() {
    let bench = Bench::new(SecurityMethod::AllData).await;
    let (signed, out) = write(&bench, b"hello world");
    for at in 0..out.len() {
        let mut altered = out.clone();
        altered[at] ^= 1;
        let refused = bench.run(&signed.bytes, altered).await;
        assert_eq!(codes(&refused), Some((0x26, 0x0f, None)), "byte {at}");
    }
    assert_eq!(bench.unit.store().performed(), 0, "nothing was done");
    data_in(bench.run(&signed.bytes, out.clone()).await);
    assert_eq!(bench.unit.store().data(OBJECT).unwrap(), b"hello world");
    assert_eq!(codes(&bench.run(&signed.bytes, out).await), Some((0x24, 0x06, None)), "replayed");
}

#[tokio::test]
async fn integrity_information_with_other_lengths_is_refused() {
    let bench = Bench::new(SecurityMethod::AllData).await;
    let (signed, mut out) = write(&bench, b"hello world");
    let end = out.len() - 56;
    for lengths in [[10, 32, 0], [11, 31, 0], [11, 32, 1]] {
        let information =
            DataOutIntegrity::new(&signed.key, signed.cdb.nonce, [&out[..end]], lengths);
        out.splice(end.., information.to_bytes());
        let refused = bench.run(&signed.bytes, out.clone()).await;
        assert_eq!(codes(&refused), Some((0x26, 0x0f, None)), "{lengths:?}");
    }
}

#[tokio::test]
async fn data_without_integrity_information_is_refused() {
    let bench = Bench::new(SecurityMethod::AllData).await;
    let capability =
        Capability { method: SecurityMethod::AllData, ..bench.capability(Permissions::WRITE) };
    let command = Command::Write { object: OBJECT, length: 5, start: 0 };
    let signed = bench.signed(bench.cdb(command), &capability);
    let refused = bench.run(&signed.bytes, b"hello".to_vec()).await;
    assert_eq!(codes(&refused), Some((0x24, 0x00, Some(232))));
}

#[tokio::test]
async fn data_in_is_proved_with_its_attributes() {
    let bench = Bench::new(SecurityMethod::CmdRsp).await;
    let (signed, out) = write(&bench, b"hello world");
    data_in(bench.run(&signed.bytes, out).await);
    let mut cdb = bench.cdb(Command::Read { object: OBJECT, length: 11, start: 0 });
    let get = list::encode_selections(&[AttributeSelection::One(AttributeId::new(1, 9))]);
    cdb.attributes = AttributeParameters::Lists {
        get: Some(ListInBuffer { length: get.len() as u32, offset: 0 }),
        retrieved: Some(Space { offset: 16, allocation_length: 64 }),
        set: None,
    };
    cdb.data_out_integrity = Some(get.len() as u64);
    cdb.data_in_integrity = Some(80);
    let permissions = Permissions::READ | Permissions::GET_ATTRIBUTES;
    let method = SecurityMethod::AllData;
    let capability = Capability { method, ..bench.capability(permissions) };
    let signed = bench.signed(cdb, &capability);
    let lengths = [0, 0, get.len() as u64];
    let information = DataOutIntegrity::new(&signed.key, cdb.nonce, [&get[..]], lengths);
    let out = [&get[..], &information.to_bytes()].concat();
    let small = Task { data_in_capacity: 100, ..bench.task(&signed.bytes, out.clone()) };
    let small = bench.unit.execute(small).await;
    assert_eq!(codes(&small), Some((0x24, 0x00, Some(228))), "no room for the information");
    let answer = data_in(bench.run(&signed.bytes, out).await);
    assert_eq!(answer.len(), 80 + DATA_IN_INTEGRITY_BYTES);
    assert_eq!(answer[..16], *b"hello world\0\0\0\0\0");
    assert_eq!(answer[16 + 24..16 + 32], [7; 8]);
    let received = DataInIntegrity::parse(&answer[80..]).unwrap();
    let expected = DataInIntegrity::new(&signed.key, cdb.nonce, [&answer[..80]], [11, 32]);
    assert_eq!(received, expected);
}
