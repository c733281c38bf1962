//! Tests the table of operations. Every encoded command must be parsed to the same command, and the
//! usage data must have exactly the bits that the parser evaluates.

use proptest::prelude::*;

use scsi::{
    BlockCommand, BlockTransfer, ByteCheck, Command, Form, IdentifyingType, LogSelect, LogSense,
    ModeSelect, ModeSense, OPERATIONS, OperationCodeEntry, PageControl, PersistentReserveIn,
    PersistentReserveOut, PrimaryCommand, ReadDefectData, ReportTargetPortGroups, Reporting,
    Sanitize, SanitizeAction, Sense, StartStop,
    copy::CopyResults,
    persistent::{ReservationType, ReserveAction, ReserveReport},
};

#[test]
fn the_table_is_sorted_and_has_no_row_twice() {
    let keys: Vec<_> = OPERATIONS.iter().map(|o| (o.opcode, o.service_action)).collect();
    assert!(keys.is_sorted_by(|a, b| a < b));
}

/// Returns a CDB of this operation in which every field is zero, or has the least value that the
/// parser accepts.
fn plain(operation: &OperationCodeEntry) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = operation.opcode;
    cdb[1] = operation.service_action.unwrap_or(0) as u8;
    // Some service actions of PERSISTENT RESERVE OUT need a TYPE, for which 0 is not valid.
    if operation.opcode == 0x5f && operation.usage()[2] != 0 {
        cdb[2] = 1;
    }
    cdb
}

#[test]
fn every_row_parses_and_its_usage_data_starts_with_the_opcode() {
    for operation in OPERATIONS {
        let cdb = plain(operation);
        assert!(Command::parse(&cdb).is_ok(), "{operation:?}");
        assert_eq!(operation.usage()[0], operation.opcode);
        let short = &cdb[..operation.usage().len() - 1];
        assert!(Command::parse(short).is_err(), "{operation:?}");
    }
}

#[test]
fn usage_data_marks_exactly_the_bits_that_the_parser_evaluates() {
    for operation in OPERATIONS {
        let cdb = plain(operation);
        for (byte, usage) in operation.usage().iter().enumerate().skip(1) {
            for bit in 0..8 {
                // Skip the reserved fields of SANITIZE: the parser evaluates them in order to
                // refuse them.
                if operation.opcode == 0x48 && ((byte, bit) == (1, 6) || (2..7).contains(&byte)) {
                    continue;
                }
                // The parser evaluates some fields only if another one is set: the page code with
                // EVPD, the operation code with a reporting option, ANCHOR with UNMAP.
                let companions: &[(usize, u8)] =
                    &[(1, 0), (1, 0x01), (1, 0x08), (2, 0x01), (2, 0x02)];
                let matters = companions.iter().any(|&(at, with)| {
                    // Skip the companion bits in byte 1 of a command with a service action, which
                    // is in the same byte: setting these bits would make the CDB one with another
                    // service action.
                    if at == 1 && with != 0 && operation.service_action.is_some() {
                        return false;
                    }
                    let mut base = cdb;
                    base[at] |= with & operation.usage()[at];
                    let mut flipped = base;
                    flipped[byte] ^= 1 << bit;
                    Command::parse(&base) != Command::parse(&flipped)
                });
                let said = usage & 1 << bit != 0;
                assert_eq!(matters, said, "{byte} {bit} {operation:?}");
            }
        }
    }
}

#[test]
fn golden_cdbs() {
    let read = Command::parse(&[0x28, 0x18, 0, 1, 2, 3, 0, 0x10, 1, 0]);
    let transfer =
        BlockTransfer { lba: 0x0001_0203, blocks: 0x1001, dpo: true, fua: true, form: Form::Ten };
    assert_eq!(read, Ok(Command::Block(BlockCommand::Read(transfer))));
    let six = Command::parse(&[0x08, 0xff, 0xff, 0xff, 0, 0]).unwrap();
    let Command::Block(BlockCommand::Read(transfer)) = six else { panic!("{six:?}") };
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
    assert_eq!(refused(&[0x9e, 0x1f]), Sense::invalid_bit_in_cdb(1, 4));
    assert_eq!(refused(&[0x7f; 32]), Sense::INVALID_COMMAND_OPERATION_CODE);
    let mut read = [0; 10];
    (read[0], read[1]) = (0x28, 0x20);
    assert_eq!(refused(&read), Sense::invalid_bit_in_cdb(1, 7));
    assert_eq!(refused(&[0x12, 0, 1, 0, 0, 0]), Sense::invalid_field_in_cdb(2));
    assert_eq!(refused(&[0, 0, 0, 0, 0, 4]), Sense::invalid_bit_in_cdb(5, 2));
}

fn transfers(form: Form) -> BoxedStrategy<BlockTransfer> {
    let (lba, blocks) = match form {
        Form::Six => (0..1u64 << 21, 1..=256u32),
        Form::Ten => (0..1 << 32, 0..=0xffff),
        Form::Twelve => (0..1 << 32, 0..=u32::MAX),
        Form::Sixteen => (0..u64::MAX, 0..=u32::MAX),
    };
    let flags = form != Form::Six;
    (lba, blocks, any::<bool>(), any::<bool>())
        .prop_map(move |(lba, blocks, dpo, fua)| BlockTransfer {
            lba,
            blocks,
            dpo: dpo && flags,
            fua: fua && flags,
            form,
        })
        .boxed()
}

fn forms(from: &'static [Form]) -> impl Strategy<Value = BlockTransfer> {
    proptest::sample::select(from).prop_flat_map(transfers)
}

const ALL: &[Form] = &[Form::Six, Form::Ten, Form::Twelve, Form::Sixteen];
const LONG: &[Form] = &[Form::Ten, Form::Twelve, Form::Sixteen];
const TWO: &[Form] = &[Form::Ten, Form::Sixteen];

fn reserve_actions() -> impl Strategy<Value = ReserveAction> {
    (0..8, proptest::sample::select(&ReservationType::ALL[..])).prop_map(|(action, kind)| {
        match action {
            0 => ReserveAction::Register,
            1 => ReserveAction::Reserve(kind),
            2 => ReserveAction::Release(kind),
            3 => ReserveAction::Clear,
            4 => ReserveAction::Preempt(kind),
            5 => ReserveAction::PreemptAndAbort(kind),
            6 => ReserveAction::RegisterAndIgnoreExistingKey,
            _ => ReserveAction::RegisterAndMove,
        }
    })
}

/// Generates commands about reservations, mode parameters and logs.
fn commands_about_settings() -> impl Strategy<Value = PrimaryCommand> {
    let reports = [
        ReserveReport::Keys,
        ReserveReport::Reservation,
        ReserveReport::Capabilities,
        ReserveReport::FullStatus,
    ];
    let flags = any::<[bool; 4]>;
    prop_oneof![
        (flags(), any::<u16>()).prop_map(|([ten, page_format, revert, save], length)| {
            PrimaryCommand::ModeSelect(ModeSelect {
                ten,
                page_format,
                revert,
                save,
                parameter_list_length: if ten { length } else { length & 0xff },
            })
        }),
        any::<bool>().prop_map(|ten| PrimaryCommand::Reserve { ten }),
        (proptest::sample::select(reports.to_vec()), any::<u16>()).prop_map(
            |(report, allocation_length)| {
                PrimaryCommand::PersistentReserveIn(PersistentReserveIn {
                    report,
                    allocation_length,
                })
            }
        ),
        (reserve_actions(), any::<u32>()).prop_map(|(action, parameter_list_length)| {
            let reserve = PersistentReserveOut { action, parameter_list_length };
            PrimaryCommand::PersistentReserveOut(reserve)
        }),
        (flags(), 0u8..64, any::<u8>(), any::<u16>()).prop_map(
            |([reset, save, ..], page, subpage, parameter_list_length)| {
                PrimaryCommand::LogSelect(LogSelect {
                    reset,
                    save,
                    control: PageControl::Saved,
                    page,
                    subpage,
                    parameter_list_length,
                })
            }
        ),
        (any::<bool>(), 0u8..64, any::<u8>(), any::<[u16; 2]>()).prop_map(
            |(save, page, subpage, [first_parameter, allocation_length])| {
                PrimaryCommand::LogSense(LogSense {
                    save,
                    control: PageControl::Changeable,
                    page,
                    subpage,
                    first_parameter,
                    allocation_length,
                })
            }
        ),
        (any::<[bool; 3]>(), 0u8..64, any::<u8>(), any::<u16>()).prop_map(
            |([ten, long_lba, no_block_descriptors], page, subpage, length)| {
                PrimaryCommand::ModeSense(ModeSense {
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
    ]
}

/// Generates the commands of all device types, except those of third-party copy.
fn primary_commands() -> impl Strategy<Value = PrimaryCommand> {
    prop_oneof![
        any::<bool>().prop_map(|ten| PrimaryCommand::Release { ten }),
        (any::<bool>(), any::<u32>()).prop_map(|(extended, allocation_length)| {
            let report = ReportTargetPortGroups { extended, allocation_length };
            PrimaryCommand::ReportTargetPortGroups(report)
        }),
        any::<u32>().prop_map(|parameter_list_length| PrimaryCommand::SetTargetPortGroups {
            parameter_list_length
        }),
        (0..3usize, any::<u32>()).prop_map(|(kind, allocation_length)| {
            let kind = IdentifyingType::ALL.get(kind).copied();
            PrimaryCommand::ReportIdentifying { kind, allocation_length }
        }),
        (proptest::sample::select(&IdentifyingType::ALL[..]), 0u32..=256).prop_map(
            |(kind, parameter_list_length)| PrimaryCommand::SetIdentifying {
                kind,
                parameter_list_length
            }
        ),
        any::<u32>()
            .prop_map(|allocation_length| PrimaryCommand::ReportTimestamp { allocation_length }),
        any::<u32>().prop_map(|parameter_list_length| PrimaryCommand::SetTimestamp {
            parameter_list_length
        }),
        (any::<bool>(), any::<u32>()).prop_map(|(extended, allocation_length)| {
            PrimaryCommand::ReportTaskFunctions { extended, allocation_length }
        }),
        Just(PrimaryCommand::TestUnitReady),
        (any::<bool>(), any::<u8>()).prop_map(|(descriptor_format, allocation_length)| {
            PrimaryCommand::RequestSense { descriptor_format, allocation_length }
        }),
        (any::<Option<u8>>(), any::<u16>()).prop_map(|(page, allocation_length)| {
            PrimaryCommand::Inquiry { page, allocation_length }
        }),
        (0u8..3, any::<u32>()).prop_map(|(select_report, allocation_length)| {
            PrimaryCommand::ReportLuns { select_report, allocation_length }
        }),
        (0..4, any::<u8>(), any::<u16>(), any::<bool>(), any::<u32>()).prop_map(
            |(option, opcode, action, timeouts, allocation_length)| {
                let reporting = match option {
                    0 => Reporting::All,
                    1 => Reporting::OperationCode(opcode),
                    2 => Reporting::ServiceAction(opcode, action),
                    _ => Reporting::Either(opcode, action),
                };
                PrimaryCommand::ReportSupportedOperationCodes {
                    reporting,
                    timeouts,
                    allocation_length,
                }
            }
        ),
    ]
}

/// Generates commands to a block unit that have no block range.
fn commands_about_the_volume() -> impl Strategy<Value = BlockCommand> {
    let flags = any::<[bool; 4]>;
    prop_oneof![
        (flags(), 0u8..16).prop_map(
            |([immediate, no_flush, load_eject, start], power_condition)| {
                BlockCommand::StartStop(StartStop {
                    immediate,
                    power_condition,
                    no_flush,
                    load_eject,
                    start,
                })
            }
        ),
        any::<bool>().prop_map(|prevent| BlockCommand::PreventAllow { prevent }),
        Just(BlockCommand::ReadCapacity10),
        any::<u32>()
            .prop_map(|allocation_length| BlockCommand::ReadCapacity16 { allocation_length }),
        (any::<u64>(), any::<u32>()).prop_map(|(lba, allocation_length)| {
            BlockCommand::GetLbaStatus { lba, allocation_length }
        }),
        (any::<[bool; 3]>(), 0u8..8, any::<u32>(), any::<u32>()).prop_map(
            |([twelve, primary, grown], format, index, length)| {
                BlockCommand::ReadDefectData(ReadDefectData {
                    twelve,
                    primary,
                    grown,
                    format,
                    index: if twelve { index } else { 0 },
                    allocation_length: if twelve { length } else { length & 0xffff },
                })
            }
        ),
        (any::<[bool; 2]>(), any::<Option<u16>>()).prop_map(
            |([immediate, unrestricted_exit], list)| {
                let action = if list.is_some() {
                    SanitizeAction::Overwrite
                } else {
                    SanitizeAction::BlockErase
                };
                let parameter_list_length = list.unwrap_or(0);
                BlockCommand::Sanitize(Sanitize {
                    action,
                    immediate,
                    unrestricted_exit,
                    parameter_list_length,
                })
            }
        ),
    ]
}

/// Generates commands to a block unit that have a block range.
fn block_commands() -> impl Strategy<Value = BlockCommand> {
    let plain = |t: BlockTransfer| BlockTransfer { dpo: false, fua: false, ..t };
    let no_fua = |t: BlockTransfer| BlockTransfer { fua: false, ..t };
    let checks =
        || proptest::sample::select(&[ByteCheck::Medium, ByteCheck::Data, ByteCheck::Block][..]);
    prop_oneof![
        forms(ALL).prop_map(BlockCommand::Read),
        forms(ALL).prop_map(BlockCommand::Write),
        (forms(LONG), any::<bool>()).prop_map(move |(t, data)| BlockCommand::WriteAndVerify {
            transfer: no_fua(t),
            byte_check: if data { ByteCheck::Data } else { ByteCheck::Medium },
        }),
        (forms(LONG), checks()).prop_map(move |(t, byte_check)| BlockCommand::Verify {
            transfer: no_fua(t),
            byte_check
        }),
        (forms(TWO), any::<bool>()).prop_map(move |(t, immediate)| {
            BlockCommand::SynchronizeCache { transfer: plain(t), immediate }
        }),
        (any::<bool>(), any::<u16>()).prop_map(|(anchor, parameter_list_length)| {
            BlockCommand::Unmap { anchor, parameter_list_length }
        }),
        (forms(TWO), any::<[bool; 3]>()).prop_map(move |(t, [unmap, anchor, none])| {
            BlockCommand::WriteSame {
                transfer: plain(t),
                unmap,
                anchor: anchor && unmap,
                no_data_out: none && t.form == Form::Sixteen,
            }
        }),
        (transfers(Form::Sixteen), 0u32..256)
            .prop_map(|(t, blocks)| BlockCommand::CompareAndWrite(BlockTransfer { blocks, ..t })),
        transfers(Form::Sixteen).prop_map(BlockCommand::OrWrite),
        (transfers(Form::Sixteen), any::<u16>(), any::<u16>()).prop_map(|(t, blocks, boundary)| {
            let transfer = BlockTransfer { blocks: blocks.into(), ..t };
            BlockCommand::WriteAtomic { transfer, boundary }
        }),
        (forms(TWO), any::<bool>()).prop_map(move |(t, immediate)| {
            BlockCommand::PreFetch { transfer: plain(t), immediate }
        }),
    ]
}

fn commands() -> impl Strategy<Value = Command> {
    prop_oneof![
        commands_about_settings().prop_map(Command::from),
        primary_commands().prop_map(Command::from),
        commands_about_the_volume().prop_map(Command::from),
        block_commands().prop_map(Command::from),
        third_party_copies(),
    ]
}

fn third_party_copies() -> impl Strategy<Value = Command> {
    (0..9, any::<u32>(), any::<u32>()).prop_map(|(which, list, length)| {
        let results = |results| {
            Command::Primary(PrimaryCommand::ReceiveCopyResults {
                results,
                allocation_length: length,
            })
        };
        let parameter_list_length = length;
        match which {
            0 => Command::Primary(PrimaryCommand::ExtendedCopy {
                long: list % 2 == 0,
                parameter_list_length,
            }),
            1 => Command::Block(BlockCommand::PopulateToken { list, parameter_list_length }),
            2 => Command::Block(BlockCommand::WriteUsingToken { list, parameter_list_length }),
            3 => results(CopyResults::Status1(list as u8)),
            4 => results(CopyResults::OperatingParameters),
            5 => results(CopyResults::FailedSegment1(list as u8)),
            6 => results(CopyResults::Status4(list)),
            7 => Command::Primary(PrimaryCommand::CopyOperationAbort { list }),
            _ => results(CopyResults::RodTokens(list)),
        }
    })
}

proptest! {
    #[test]
    fn encoded_commands_are_parsed_as_the_same_commands(command in commands()) {
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
