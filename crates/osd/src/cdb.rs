//! The CDB of an OSD command: 236 bytes (OSD-2, 5.2).
//!
//! | bytes | content |
//! |-------|---------|
//! | 0, 1, 7, 8 to 9 | 7Fh, CONTROL, E4h (bytes that follow), service action |
//! | 10 to 51 | options and fields of the command |
//! | 52 to 79 | attributes to set and to return |
//! | 80 to 183 | capability |
//! | 184 to 227 | request integrity check value, nonce |
//! | 228 to 235 | offsets of the integrity information of the data |

use object::{Command, CommandOptions, Isolation, TimestampControl};

use crate::{
    attribute_parameters::AttributeParameters,
    bytes::{array_at, put, u16_at, u32_at},
    capability::Capability,
    fields::{self, DEFAULT_FORMAT},
    layout::{CAPABILITY, CAPABILITY_BYTES, CDB_BYTES, INTEGRITY, NONCE},
    offset::{self, UNUSED},
    refusal::Refusal,
    security::{IntegrityCheckValue, Nonce},
    service_action::{OPERATION_CODE, ServiceAction},
};

/// ADDITIONAL CDB LENGTH: the number of bytes after byte 7.
const ADDITIONAL_LENGTH: u8 = (CDB_BYTES - 8) as u8;
/// The bit of CONTROL (SAM-5) that requests auto contingent allegiance, which Forebay does not
/// support.
const NACA: u8 = 0x04;
const DPO: u8 = 0x10;
const FUA: u8 = 0x08;
const DATA_IN_OFFSET: usize = 228;
const DATA_OUT_OFFSET: usize = 232;

/// The fields of an OSD command's CDB.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OsdCdb {
    pub command: Command,
    pub options: CommandOptions,
    pub attributes: AttributeParameters,
    /// Length in bytes of the CDB continuation segment at the start of the Data-Out buffer; zero
    /// without a segment.
    pub continuation_length: u32,
    /// The encoded capability, kept as bytes because the signature covers the bytes.
    pub capability: [u8; CAPABILITY_BYTES],
    pub integrity: IntegrityCheckValue,
    pub nonce: Nonce,
    /// Offset of the integrity information in the Data-In buffer, with the method ALLDATA.
    pub data_in_integrity: Option<u64>,
    /// Offset of the integrity information in the Data-Out buffer, with the method ALLDATA.
    pub data_out_integrity: Option<u64>,
}

impl OsdCdb {
    /// Returns a CDB without attributes, capability and integrity check value.
    #[must_use]
    pub fn new(command: Command) -> Self {
        Self {
            command,
            options: CommandOptions::default(),
            attributes: AttributeParameters::NONE,
            continuation_length: 0,
            capability: [0; CAPABILITY_BYTES],
            integrity: IntegrityCheckValue::ZERO,
            nonce: Nonce { time: object::Timestamp::ZERO, random: [0; 6] },
            data_in_integrity: None,
            data_out_integrity: None,
        }
    }

    /// Parses a CDB.
    ///
    /// # Errors
    /// 5/20/00 for a service action that is not one of OSD-2; 5/24/00 with a pointer to the field
    /// for a CDB of another length, and for a reserved value.
    pub fn parse(cdb: &[u8]) -> Result<Self, Refusal> {
        let code = u16_at(cdb, 8).ok_or(Refusal::UnknownServiceAction)?;
        let action = ServiceAction::from_code(code).ok_or(Refusal::UnknownServiceAction)?;
        if cdb[0] != OPERATION_CODE {
            return Err(Refusal::UnknownServiceAction);
        }
        if cdb[7] != ADDITIONAL_LENGTH || cdb.len() != CDB_BYTES {
            return Err(Refusal::field(7));
        }
        if cdb[1] & NACA != 0 {
            return Err(Refusal::field(1));
        }
        let integrity_offset = |at| {
            let field = u32_at(cdb, at).unwrap_or(UNUSED);
            offset::decode(field).map_err(|_| Refusal::field(at as u16))
        };
        let format = match cdb[11] >> 4 & 0x03 {
            // In a CDB without attributes, CDBFMT may be zero.
            0 if cdb[52..80].iter().all(|&byte| byte == 0 || byte == 0xff) => DEFAULT_FORMAT,
            format => format,
        };
        Ok(Self {
            command: fields::parse(action, cdb)?,
            options: parse_options(action, cdb)?,
            attributes: AttributeParameters::parse(format, cdb)?,
            continuation_length: fields::continuation_length(action, cdb)?,
            capability: array_at(cdb, CAPABILITY).expect("a CDB has a capability"),
            integrity: IntegrityCheckValue(array_at(cdb, INTEGRITY).expect("a CDB has a value")),
            nonce: Nonce::from_bytes(&array_at(cdb, NONCE).expect("a CDB has a nonce")),
            data_in_integrity: integrity_offset(DATA_IN_OFFSET)?,
            data_out_integrity: integrity_offset(DATA_OUT_OFFSET)?,
        })
    }

    /// Returns the capability; `None` if the CDB has none.
    ///
    /// # Errors
    /// 5/24/00 with a pointer to a field that has a reserved value.
    pub fn capability(&self) -> Result<Option<Capability>, Refusal> {
        Capability::parse(&self.capability).map_err(|at| Refusal::field((CAPABILITY + at) as u16))
    }

    #[must_use]
    pub fn service_action(&self) -> ServiceAction {
        fields::service_action(&self.command)
    }

    /// Encodes the CDB.
    ///
    /// # Panics
    /// If an offset has no encoding: see [`offset::next`].
    #[must_use]
    pub fn encode(&self) -> [u8; CDB_BYTES] {
        let mut cdb = [0; CDB_BYTES];
        cdb[0] = OPERATION_CODE;
        cdb[7] = ADDITIONAL_LENGTH;
        put(&mut cdb, 8, &(self.service_action() as u16).to_be_bytes());
        let options = &self.options;
        cdb[10] = if options.dpo { DPO } else { 0 } | if options.fua { FUA } else { 0 };
        cdb[10] |= options.isolation as u8;
        cdb[11] = self.attributes.format() << 4;
        cdb[12] = options.timestamps as u8;
        fields::write(&self.command, &mut cdb);
        if self.continuation_length != 0 {
            put(&mut cdb, fields::CONTINUATION_LENGTH, &self.continuation_length.to_be_bytes());
        }
        self.attributes.write(&mut cdb);
        put(&mut cdb, CAPABILITY, &self.capability);
        put(&mut cdb, INTEGRITY, &self.integrity.0);
        put(&mut cdb, NONCE, &self.nonce.to_bytes());
        let field = |place: Option<u64>| {
            place.map_or(UNUSED, |place| offset::encode(place).expect("a multiple of 8"))
        };
        put(&mut cdb, DATA_IN_OFFSET, &field(self.data_in_integrity).to_be_bytes());
        put(&mut cdb, DATA_OUT_OFFSET, &field(self.data_out_integrity).to_be_bytes());
        cdb
    }
}

/// Parses OPTIONS and TIMESTAMPS CONTROL. In the flush commands FLUSH SCOPE takes the place of
/// ISOLATION.
fn parse_options(action: ServiceAction, cdb: &[u8]) -> Result<CommandOptions, Refusal> {
    let isolation = match action {
        ServiceAction::Flush
        | ServiceAction::FlushCollection
        | ServiceAction::FlushPartition
        | ServiceAction::FlushOsd => Isolation::Default,
        _ => Isolation::from_code(cdb[10]).ok_or(Refusal::field(10))?,
    };
    Ok(CommandOptions {
        fua: cdb[10] & FUA != 0,
        dpo: cdb[10] & DPO != 0,
        isolation,
        timestamps: TimestampControl::from_code(cdb[12]).ok_or(Refusal::field(12))?,
    })
}

#[cfg(test)]
mod tests {
    use object::ObjectAddress;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        fields::tests::one_of_each,
        security::{Algorithm, CapabilityKey, Key},
        testing::{ascending, capability_vector, nonce_vector, system_vector},
    };

    fn key(algorithm: Algorithm) -> CapabilityKey {
        let capability = capability_vector(algorithm);
        CapabilityKey::new(algorithm, &Key::new(ascending(0)), &capability, &system_vector())
    }

    #[test]
    fn every_service_action_decodes_to_the_encoded_command() {
        let commands = one_of_each();
        let mut actions: Vec<_> = commands.iter().map(fields::service_action).collect();
        actions.sort_unstable();
        actions.dedup();
        assert_eq!(actions, ServiceAction::ALL);
        for command in commands {
            let cdb = OsdCdb::new(command);
            assert_eq!(OsdCdb::parse(&cdb.encode()), Ok(cdb), "{command:?}");
        }
    }

    #[test]
    fn a_cdb_of_another_length_is_refused() {
        let cdb = OsdCdb::new(Command::GetAttributes { object: ObjectAddress::ROOT }).encode();
        for length in 0..CDB_BYTES {
            assert!(OsdCdb::parse(&cdb[..length]).is_err(), "{length}");
        }
        let longer = [&cdb[..], &[0]].concat();
        assert_eq!(OsdCdb::parse(&longer), Err(Refusal::field(7)));
        let mut osd_1 = cdb.to_vec();
        osd_1[7] = 192;
        osd_1[8..10].copy_from_slice(&[0x88, 0x0e]);
        osd_1.truncate(200);
        assert_eq!(OsdCdb::parse(&osd_1), Err(Refusal::UnknownServiceAction));
    }

    #[test]
    fn reserved_values_are_refused_at_their_field() {
        let cdb = OsdCdb::new(Command::GetAttributes { object: ObjectAddress::ROOT }).encode();
        let refused = |at: usize, value: u8| {
            let mut cdb = cdb;
            cdb[at] = value;
            OsdCdb::parse(&cdb).map_err(Refusal::pointer)
        };
        assert_eq!(refused(1, NACA), Err(Some(1)));
        assert_eq!(refused(10, 3), Err(Some(10)), "ISOLATION 3");
        assert_eq!(refused(12, 1), Err(Some(12)), "TIMESTAMPS CONTROL 1");
        assert_eq!(refused(228, 0x80), Err(Some(228)), "an exponent of -8");
        assert_eq!(refused(0, 0x7e), Err(None));
    }

    #[test]
    fn proofs_of_a_read_match_the_vectors() {
        let object = ObjectAddress::new(0x10000, 0x10001);
        let command = Command::Read { object, length: 4096, start: 0 };
        let proof = |algorithm, bytes_of: Algorithm| {
            let mut cdb = OsdCdb::new(command);
            cdb.capability = capability_vector(bytes_of);
            cdb.nonce = nonce_vector();
            let bytes = cdb.encode();
            format!("{:?}", key(algorithm).of_cdb(&bytes))
        };
        assert_eq!(
            proof(Algorithm::HmacSha1, Algorithm::HmacSha1)[..40],
            *"4c103c474018f2b83c707beb858d998982d40238"
        );
        assert_eq!(
            proof(Algorithm::HmacSha256, Algorithm::HmacSha256),
            "a6164aca45fc166a8fc19ca2ac3532f7410dc50b81f9e71d59c79957098e8902"
        );
    }

    #[test]
    fn each_bit_of_a_cdb_but_the_value_itself_changes_the_proof() {
        let key = key(Algorithm::Blake3);
        let mut cdb = OsdCdb::new(Command::CreatePartition { requested: 0 }).encode();
        let proof = key.of_cdb(&cdb);
        for at in 0..CDB_BYTES * 8 {
            cdb[at / 8] ^= 1 << (at % 8);
            let is_value = (INTEGRITY..NONCE).contains(&(at / 8));
            assert_eq!(key.of_cdb(&cdb) == proof, is_value, "bit {at}");
            cdb[at / 8] ^= 1 << (at % 8);
        }
    }

    proptest! {
        #[test]
        fn a_hostile_cdb_ends_in_fields_or_a_refusal(
            bytes in prop::collection::vec(any::<u8>(), CDB_BYTES),
            action in 0..ServiceAction::ALL.len(),
        ) {
            let mut cdb = bytes;
            cdb[0] = OPERATION_CODE;
            cdb[1] = 0;
            cdb[7] = ADDITIONAL_LENGTH;
            put(&mut cdb, 8, &(ServiceAction::ALL[action] as u16).to_be_bytes());
            cdb[10] &= 0x18;
            cdb[12] = 0;
            if let Ok(parsed) = OsdCdb::parse(&cdb) {
                let _ = parsed.capability();
                prop_assert_eq!(parsed.service_action(), ServiceAction::ALL[action]);
            }
        }
    }
}
