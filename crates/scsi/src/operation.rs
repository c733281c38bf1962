//! The operation codes we know: one table that reads CDBs and answers REPORT SUPPORTED OPERATION
//! CODES, so that what is reported is what is served.

use crate::{
    ByteCheck, Command, Form, ModeSense, PageControl, Reporting, Sense, Transfer,
    field::{u16_at, u32_at, u64_at},
};

/// One command of the table.
#[derive(Debug)]
pub struct Operation {
    /// Byte 0 of the CDB.
    pub opcode: u8,
    /// The service action in bits 4-0 of byte 1, for the opcodes that have some.
    pub service_action: Option<u16>,
    /// How long it takes as a rule, in seconds.
    pub nominal_s: u32,
    /// How long to wait before giving up, in seconds: an initiator's time-out.
    pub recommended_s: u32,
    /// Only the first `length` bytes count.
    usage: [u8; 16],
    length: u8,
    parse: fn(&[u8]) -> Result<Command, Sense>,
}

impl Command {
    /// What a CDB asks for. A CDB longer than the command's (iSCSI always sends 16 bytes) is fine.
    ///
    /// # Errors
    /// 5/20/00 for what is not in [`OPERATIONS`], 5/24/00 for a field that asks for what nobody
    /// here has: protection information, ACA, reserved values.
    pub fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        let opcode = *cdb.first().ok_or(Sense::INVALID_COMMAND_OPERATION_CODE)?;
        let first = usize::from(FIRST[usize::from(opcode)]);
        let mut operation = OPERATIONS.get(first).ok_or(Sense::INVALID_COMMAND_OPERATION_CODE)?;
        if operation.service_action.is_some() {
            let asked = cdb.get(1).map(|byte| u16::from(byte & 0x1f));
            operation =
                Operation::find(opcode, asked).ok_or(Sense::INVALID_COMMAND_OPERATION_CODE)?;
        }
        let length = usize::from(operation.length);
        let Some(cdb) = cdb.get(..length) else {
            return Err(Sense::invalid_field_in_cdb(cdb.len() as u16));
        };
        // NACA: auto contingent allegiance, which standard INQUIRY data denies (NORMACA=0).
        if cdb[length - 1] & NACA != 0 {
            return Err(Sense::invalid_bit_in_cdb(length as u16 - 1, 2));
        }
        (operation.parse)(cdb)
    }
}

impl Operation {
    /// The command that these two name.
    #[must_use]
    pub fn find(opcode: u8, service_action: Option<u16>) -> Option<&'static Self> {
        OPERATIONS.iter().find(|o| o.opcode == opcode && o.service_action == service_action)
    }

    /// CDB usage data (SPC-4, 6.35.3): the opcode, then a one for every bit that is looked at; as
    /// long as the CDB.
    #[must_use]
    pub fn usage(&self) -> &[u8] {
        &self.usage[..usize::from(self.length)]
    }
}

/// Every command that [`Command::parse`] takes, by opcode.
pub static OPERATIONS: &[Operation] = TABLE;

const TABLE: &[Operation] = &[
    quick(&[0x00, 0, 0, 0, 0, NACA], |_| Ok(Command::TestUnitReady)),
    quick(&[0x03, 0x01, 0, 0, 0xff, NACA], request_sense),
    moving(&[0x08, 0x1f, 0xff, 0xff, 0xff, NACA], |cdb| Ok(Command::Read(six(cdb)))),
    moving(&[0x0a, 0x1f, 0xff, 0xff, 0xff, NACA], |cdb| Ok(Command::Write(six(cdb)))),
    quick(&[0x12, 0x03, 0xff, 0xff, 0xff, NACA], inquiry),
    quick(&[0x1a, 0x08, 0xff, 0xff, 0xff, NACA], mode_sense),
    quick(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, NACA], |_| Ok(Command::ReadCapacity10)),
    moving(&ten(0x28, 0xf8), |cdb| Ok(Command::Read(protected(cdb)?))),
    moving(&ten(0x2a, 0xf8), |cdb| Ok(Command::Write(protected(cdb)?))),
    moving(&ten(0x2e, 0xf6), write_and_verify),
    moving(&ten(0x2f, 0xf6), verify),
    slow(&ten(0x35, 0x02), synchronize_cache),
    slow(&ten(0x41, 0xfe), write_same),
    slow(&[0x42, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, NACA], unmap),
    quick(&[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, NACA], mode_sense),
    moving(&sixteen(0x88, 0xf8), |cdb| Ok(Command::Read(protected(cdb)?))),
    moving(&sixteen(0x8a, 0xf8), |cdb| Ok(Command::Write(protected(cdb)?))),
    moving(&sixteen(0x8e, 0xf6), write_and_verify),
    moving(&sixteen(0x8f, 0xf6), verify),
    slow(&sixteen(0x91, 0x02), synchronize_cache),
    slow(&sixteen(0x93, 0xff), write_same),
    quick(&[0x9e, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], |cdb| {
        Ok(Command::ReadCapacity16 { allocation_length: be32(cdb, 10) })
    })
    .with_service_action(0x10),
    quick(&[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, NACA], report_luns),
    quick(
        &[0xa3, 0x1f, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, NACA],
        report_supported_operation_codes,
    )
    .with_service_action(0x0c),
    moving(&twelve(0xa8, 0xf8), |cdb| Ok(Command::Read(protected(cdb)?))),
    moving(&twelve(0xaa, 0xf8), |cdb| Ok(Command::Write(protected(cdb)?))),
    moving(&twelve(0xae, 0xf6), write_and_verify),
    moving(&twelve(0xaf, 0xf6), verify),
];

/// For every opcode where its rows begin in the table; the table's length for the rest.
static FIRST: [u8; 256] = {
    let mut first = [TABLE.len() as u8; 256];
    let mut row = TABLE.len();
    while row > 0 {
        row -= 1;
        first[TABLE[row].opcode as usize] = row as u8;
    }
    first
};

/// The bit of the CONTROL byte that asks for auto contingent allegiance (SAM-5, 5.2).
const NACA: u8 = 0x04;

type Parse = fn(&[u8]) -> Result<Command, Sense>;

/// A row whose command touches no block: nominally done at once; 10 s is what the Linux initiator
/// gives its inquiries.
const fn quick(usage: &[u8], parse: Parse) -> Operation {
    row(usage, 1, 10, parse)
}

/// A row whose command moves blocks: 30 s is the SCSI disk time-out of Linux.
const fn moving(usage: &[u8], parse: Parse) -> Operation {
    row(usage, 1, 30, parse)
}

/// A row whose command may have much to do below: 60 s is Linux's time-out for a flush.
const fn slow(usage: &[u8], parse: Parse) -> Operation {
    row(usage, 5, 60, parse)
}

const fn row(bytes: &[u8], nominal_s: u32, recommended_s: u32, parse: Parse) -> Operation {
    let mut usage = [0; 16];
    let mut at = 0;
    while at < bytes.len() {
        usage[at] = bytes[at];
        at += 1;
    }
    let length = bytes.len() as u8;
    Operation {
        opcode: bytes[0],
        service_action: None,
        nominal_s,
        recommended_s,
        usage,
        length,
        parse,
    }
}

impl Operation {
    const fn with_service_action(mut self, action: u16) -> Self {
        self.service_action = Some(action);
        self
    }
}

/// Usage data of a 10-byte CDB with LBA and transfer length.
const fn ten(opcode: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, NACA]
}

/// Usage data of a 12-byte CDB with LBA and transfer length.
const fn twelve(opcode: u8, flags: u8) -> [u8; 12] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, NACA]
}

/// Usage data of a 16-byte CDB with LBA and transfer length.
const fn sixteen(opcode: u8, flags: u8) -> [u8; 16] {
    let f = 0xff;
    [opcode, flags, f, f, f, f, f, f, f, f, f, f, f, f, 0, NACA]
}

// The parsers below get a CDB of exactly its command's length.

fn six(cdb: &[u8]) -> Transfer {
    let lba = u64::from(be32(cdb, 0) & 0x1f_ffff);
    let blocks = if cdb[4] == 0 { 256 } else { u32::from(cdb[4]) };
    Transfer { lba, blocks, dpo: false, fua: false, form: Form::Six }
}

/// LBA and transfer length where they stand in CDBs of 10, 12 and 16 bytes; DPO and FUA left out.
fn transfer(cdb: &[u8]) -> Transfer {
    let (lba, blocks, form) = match cdb.len() {
        10 => (u64::from(be32(cdb, 2)), u32::from(be16(cdb, 7)), Form::Ten),
        12 => (u64::from(be32(cdb, 2)), be32(cdb, 6), Form::Twelve),
        _ => (u64_at(cdb, 2).expect(WHOLE), be32(cdb, 10), Form::Sixteen),
    };
    Transfer { lba, blocks, dpo: false, fua: false, form }
}

/// A transfer with DPO and FUA, and with RDPROTECT, WRPROTECT or VRPROTECT zero: there is no
/// protection information (PROTECT=0), so nothing else may be asked for.
fn protected(cdb: &[u8]) -> Result<Transfer, Sense> {
    unprotected(cdb)?;
    Ok(Transfer { dpo: cdb[1] & 0x10 != 0, fua: cdb[1] & 0x08 != 0, ..transfer(cdb) })
}

fn unprotected(cdb: &[u8]) -> Result<(), Sense> {
    if cdb[1] & 0xe0 == 0 { Ok(()) } else { Err(Sense::invalid_bit_in_cdb(1, 7)) }
}

/// A transfer with DPO and BYTCHK.
fn checked(cdb: &[u8]) -> Result<(Transfer, ByteCheck), Sense> {
    unprotected(cdb)?;
    let byte_check = match cdb[1] >> 1 & 0x03 {
        0 => ByteCheck::Medium,
        1 => ByteCheck::Data,
        3 => ByteCheck::Block,
        _ => return Err(Sense::invalid_bit_in_cdb(1, 2)),
    };
    Ok((Transfer { dpo: cdb[1] & 0x10 != 0, ..transfer(cdb) }, byte_check))
}

fn verify(cdb: &[u8]) -> Result<Command, Sense> {
    let (transfer, byte_check) = checked(cdb)?;
    Ok(Command::Verify { transfer, byte_check })
}

fn write_and_verify(cdb: &[u8]) -> Result<Command, Sense> {
    let (transfer, byte_check) = checked(cdb)?;
    if byte_check == ByteCheck::Block {
        return Err(Sense::invalid_bit_in_cdb(1, 2));
    }
    Ok(Command::WriteAndVerify { transfer, byte_check })
}

fn synchronize_cache(cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::SynchronizeCache { transfer: transfer(cdb), immediate: cdb[1] & 0x02 != 0 })
}

fn write_same(cdb: &[u8]) -> Result<Command, Sense> {
    unprotected(cdb)?;
    // PBDATA and LBDATA of older standards: blocks that differ in their first bytes.
    if cdb[1] & 0x06 != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 2));
    }
    let (anchor, unmap) = (cdb[1] & 0x10 != 0, cdb[1] & 0x08 != 0);
    if anchor && !unmap {
        return Err(Sense::invalid_bit_in_cdb(1, 4));
    }
    let no_data_out = cdb.len() == 16 && cdb[1] & 0x01 != 0;
    Ok(Command::WriteSame { transfer: transfer(cdb), unmap, anchor, no_data_out })
}

fn unmap(cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::Unmap { anchor: cdb[1] & 0x01 != 0, parameter_list_length: be16(cdb, 7) })
}

fn request_sense(cdb: &[u8]) -> Result<Command, Sense> {
    Ok(Command::RequestSense { descriptor_format: cdb[1] & 0x01 != 0, allocation_length: cdb[4] })
}

fn inquiry(cdb: &[u8]) -> Result<Command, Sense> {
    let vital_product_data = cdb[1] & 0x01 != 0;
    // CMDDT of SPC-2.
    if cdb[1] & 0x02 != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 1));
    }
    if !vital_product_data && cdb[2] != 0 {
        return Err(Sense::invalid_field_in_cdb(2));
    }
    let page = vital_product_data.then_some(cdb[2]);
    Ok(Command::Inquiry { page, allocation_length: be16(cdb, 3) })
}

fn mode_sense(cdb: &[u8]) -> Result<Command, Sense> {
    let ten = cdb.len() == 10;
    let control = match cdb[2] >> 6 {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => PageControl::Saved,
    };
    Ok(Command::ModeSense(ModeSense {
        ten,
        long_lba: ten && cdb[1] & 0x10 != 0,
        no_block_descriptors: cdb[1] & 0x08 != 0,
        control,
        page: cdb[2] & 0x3f,
        subpage: cdb[3],
        allocation_length: if ten { be16(cdb, 7) } else { u16::from(cdb[4]) },
    }))
}

fn report_luns(cdb: &[u8]) -> Result<Command, Sense> {
    match cdb[2] {
        select_report @ 0..=2 => {
            Ok(Command::ReportLuns { select_report, allocation_length: be32(cdb, 6) })
        }
        _ => Err(Sense::invalid_field_in_cdb(2)),
    }
}

fn report_supported_operation_codes(cdb: &[u8]) -> Result<Command, Sense> {
    let (opcode, action) = (cdb[3], be16(cdb, 4));
    let reporting = match cdb[2] & 0x07 {
        0 => Reporting::All,
        1 => Reporting::OperationCode(opcode),
        2 => Reporting::ServiceAction(opcode, action),
        3 => Reporting::Either(opcode, action),
        _ => return Err(Sense::invalid_bit_in_cdb(2, 2)),
    };
    Ok(Command::ReportSupportedOperationCodes {
        reporting,
        timeouts: cdb[2] & 0x80 != 0,
        allocation_length: be32(cdb, 6),
    })
}

/// Why a parser may take a field for granted.
const WHOLE: &str = "parsers get whole CDBs";

fn be16(cdb: &[u8], at: usize) -> u16 {
    u16_at(cdb, at).expect(WHOLE)
}

fn be32(cdb: &[u8], at: usize) -> u32 {
    u32_at(cdb, at).expect(WHOLE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_table_is_sorted_and_has_no_row_twice() {
        let keys: Vec<_> = OPERATIONS.iter().map(|o| (o.opcode, o.service_action)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn every_row_parses_and_its_usage_data_starts_with_the_opcode() {
        for operation in OPERATIONS {
            let mut cdb = [0; 16];
            cdb[0] = operation.opcode;
            cdb[1] = operation.service_action.unwrap_or(0) as u8;
            assert!(Command::parse(&cdb).is_ok(), "{operation:?}");
            assert_eq!(operation.usage()[0], operation.opcode);
            let short = &cdb[..operation.usage().len() - 1];
            assert!(Command::parse(short).is_err(), "{operation:?}");
        }
    }

    #[test]
    fn usage_data_names_exactly_the_bits_that_are_looked_at() {
        for operation in OPERATIONS {
            let mut cdb = [0; 16];
            cdb[0] = operation.opcode;
            cdb[1] = operation.service_action.unwrap_or(0) as u8;
            let plain = Command::parse(&cdb);
            for (byte, usage) in operation.usage().iter().enumerate().skip(1) {
                for bit in 0..8 {
                    // Some fields are looked at only when another is set: the page code with
                    // EVPD, the opcode with a reporting option, ANCHOR with UNMAP.
                    let companions: &[(usize, u8)] =
                        &[(1, 0), (1, 0x01), (1, 0x08), (2, 0x01), (2, 0x02)];
                    let matters = companions.iter().any(|&(at, with)| {
                        let mut base = cdb;
                        base[at] |= with & operation.usage()[at];
                        let mut flipped = base;
                        flipped[byte] ^= 1 << bit;
                        Command::parse(&base) != Command::parse(&flipped)
                    });
                    let said = usage & 1 << bit != 0;
                    assert_eq!(matters, said, "{:02x} {byte} {bit} {plain:?}", operation.opcode);
                }
            }
        }
    }

    #[test]
    fn golden_cdbs() {
        let read = Command::parse(&[0x28, 0x18, 0, 1, 2, 3, 0, 0x10, 1, 0]);
        let transfer =
            Transfer { lba: 0x0001_0203, blocks: 0x1001, dpo: true, fua: true, form: Form::Ten };
        assert_eq!(read, Ok(Command::Read(transfer)));
        let six = Command::parse(&[0x08, 0xff, 0xff, 0xff, 0, 0]).unwrap();
        let Command::Read(transfer) = six else { panic!("{six:?}") };
        assert_eq!((transfer.lba, transfer.blocks), (0x1f_ffff, 256));
        assert_eq!(
            Command::write(1 << 32, 8, true).encode()[..],
            [0x8a, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]
        );
    }

    #[test]
    fn unknown_commands_and_fields_have_their_own_sense() {
        let refused = |cdb: &[u8]| Command::parse(cdb).unwrap_err();
        assert_eq!(refused(&[0xff; 16]), Sense::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!(refused(&[]), Sense::INVALID_COMMAND_OPERATION_CODE);
        assert_eq!(refused(&[0x9e, 0x12]), Sense::INVALID_COMMAND_OPERATION_CODE);
        let mut read = [0; 10];
        (read[0], read[1]) = (0x28, 0x20);
        assert_eq!(refused(&read), Sense::invalid_bit_in_cdb(1, 7));
        assert_eq!(refused(&[0x12, 0, 1, 0, 0, 0]), Sense::invalid_field_in_cdb(2));
        assert_eq!(refused(&[0, 0, 0, 0, 0, 4]), Sense::invalid_bit_in_cdb(5, 2));
    }

    fn transfers(form: Form) -> BoxedStrategy<Transfer> {
        let (lba, blocks) = match form {
            Form::Six => (0..1u64 << 21, 1..=256u32),
            Form::Ten => (0..1 << 32, 0..=0xffff),
            Form::Twelve => (0..1 << 32, 0..=u32::MAX),
            Form::Sixteen => (0..u64::MAX, 0..=u32::MAX),
        };
        let flags = form != Form::Six;
        (lba, blocks, any::<bool>(), any::<bool>())
            .prop_map(move |(lba, blocks, dpo, fua)| Transfer {
                lba,
                blocks,
                dpo: dpo && flags,
                fua: fua && flags,
                form,
            })
            .boxed()
    }

    fn forms(from: &'static [Form]) -> impl Strategy<Value = Transfer> {
        proptest::sample::select(from).prop_flat_map(transfers)
    }

    const ALL: &[Form] = &[Form::Six, Form::Ten, Form::Twelve, Form::Sixteen];
    const LONG: &[Form] = &[Form::Ten, Form::Twelve, Form::Sixteen];
    const TWO: &[Form] = &[Form::Ten, Form::Sixteen];

    fn commands() -> impl Strategy<Value = Command> {
        let plain = |t: Transfer| Transfer { dpo: false, fua: false, ..t };
        let no_fua = |t: Transfer| Transfer { fua: false, ..t };
        let checks = || {
            proptest::sample::select(&[ByteCheck::Medium, ByteCheck::Data, ByteCheck::Block][..])
        };
        prop_oneof![
            Just(Command::TestUnitReady),
            (any::<bool>(), any::<u8>()).prop_map(|(descriptor_format, allocation_length)| {
                Command::RequestSense { descriptor_format, allocation_length }
            }),
            (any::<Option<u8>>(), any::<u16>()).prop_map(|(page, allocation_length)| {
                Command::Inquiry { page, allocation_length }
            }),
            (any::<[bool; 3]>(), 0u8..64, any::<u8>(), any::<u16>()).prop_map(
                |([ten, long_lba, no_block_descriptors], page, subpage, length)| {
                    Command::ModeSense(ModeSense {
                        ten,
                        long_lba: long_lba && ten,
                        no_block_descriptors,
                        control: PageControl::Default,
                        page,
                        subpage,
                        allocation_length: if ten { length } else { length & 0xff },
                    })
                }
            ),
            forms(ALL).prop_map(Command::Read),
            forms(ALL).prop_map(Command::Write),
            (forms(LONG), any::<bool>()).prop_map(move |(t, data)| Command::WriteAndVerify {
                transfer: no_fua(t),
                byte_check: if data { ByteCheck::Data } else { ByteCheck::Medium },
            }),
            (forms(LONG), checks()).prop_map(move |(t, byte_check)| Command::Verify {
                transfer: no_fua(t),
                byte_check
            }),
            (forms(TWO), any::<bool>()).prop_map(move |(t, immediate)| {
                Command::SynchronizeCache { transfer: plain(t), immediate }
            }),
            Just(Command::ReadCapacity10),
            any::<u32>()
                .prop_map(|allocation_length| Command::ReadCapacity16 { allocation_length }),
            (0u8..3, any::<u32>()).prop_map(|(select_report, allocation_length)| {
                Command::ReportLuns { select_report, allocation_length }
            }),
            (any::<bool>(), any::<u16>()).prop_map(|(anchor, parameter_list_length)| {
                Command::Unmap { anchor, parameter_list_length }
            }),
            (forms(TWO), any::<[bool; 3]>()).prop_map(move |(t, [unmap, anchor, none])| {
                Command::WriteSame {
                    transfer: plain(t),
                    unmap,
                    anchor: anchor && unmap,
                    no_data_out: none && t.form == Form::Sixteen,
                }
            }),
            (0..4, any::<u8>(), any::<u16>(), any::<bool>(), any::<u32>()).prop_map(
                |(option, opcode, action, timeouts, allocation_length)| {
                    let reporting = match option {
                        0 => Reporting::All,
                        1 => Reporting::OperationCode(opcode),
                        2 => Reporting::ServiceAction(opcode, action),
                        _ => Reporting::Either(opcode, action),
                    };
                    Command::ReportSupportedOperationCodes {
                        reporting,
                        timeouts,
                        allocation_length,
                    }
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_parses_back(command in commands()) {
            prop_assert_eq!(Command::parse(&command.encode()), Ok(command));
        }

        #[test]
        fn hostile_cdbs_do_no_harm(cdb in proptest::collection::vec(any::<u8>(), 0..32),
                                   row in 0..OPERATIONS.len()) {
            let mut cdb = cdb;
            if let Ok(command) = Command::parse(&cdb) {
                prop_assert_eq!(Command::parse(&command.encode()), Ok(command));
            }
            if let Some(first) = cdb.first_mut() {
                *first = OPERATIONS[row].opcode;
            }
            if let Ok(command) = Command::parse(&cdb) {
                prop_assert_eq!(Command::parse(&command.encode()), Ok(command));
            }
        }
    }
}
