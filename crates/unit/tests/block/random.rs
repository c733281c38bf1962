//! Property tests: random CDBs with random data do no harm, and random sequences of commands have the same effect on
//! the unit as on an array.

use proptest::prelude::*;
use scsi::{
    BlockCommand, BlockTransfer, ByteCheck, Command, Form, OPERATIONS, ScsiStatus, Sense,
    UnmapDescriptor, unmap_list,
};
use unit::Settings;
use volume::Geometry;

use crate::host::{BLOCK, Call, Host};

const BLOCKS: u64 = 40;

fn small() -> Geometry {
    Geometry::with_blocks(BLOCKS)
}

fn transfer() -> impl Strategy<Value = BlockTransfer> {
    // Some of the random extents end beyond the last block.
    (0..BLOCKS + 2, 0u32..12).prop_map(|(lba, blocks)| BlockTransfer::new(lba, blocks))
}

/// Generates a random command, and the seed of the data that it writes.
fn command() -> impl Strategy<Value = (Command, u8)> {
    let command = prop_oneof![
        3 => transfer().prop_map(|command| Command::Block(BlockCommand::Read(command))),
        3 => (transfer(), any::<bool>()).prop_map(|(t, fua)| Command::Block(BlockCommand::Write(t.with_fua(fua)))),
        1 => transfer().prop_map(|transfer| Command::Block(BlockCommand::WriteAndVerify {
            transfer,
            byte_check: ByteCheck::Data
        })),
        1 => transfer().prop_map(|transfer| Command::Block(BlockCommand::Verify {
            transfer,
            byte_check: ByteCheck::Data
        })),
        2 => (transfer(), any::<bool>(), any::<bool>()).prop_map(|(t, unmap, no_data_out)| {
            let form = if no_data_out { Form::Sixteen } else { Form::Ten };
            let transfer = BlockTransfer { form, ..t };
            Command::Block(BlockCommand::WriteSame { transfer, unmap, anchor: false, no_data_out })
        }),
        1 => Just(Command::Block(BlockCommand::Unmap { anchor: false, parameter_list_length: 40 })),
    ];
    // Seed 0 makes blocks of zeros, which some commands treat specially.
    (command, 0u8..4)
}

/// The reference that the unit is compared with.
struct Model(Vec<u8>);

impl Model {
    /// Executes the command on the model. Returns the data that it writes and its expected result.
    fn run(&mut self, command: &Command, seed: u8) -> (Vec<u8>, Result<Vec<u8>, Sense>) {
        let block = |index: usize| [if seed == 0 { 0 } else { seed ^ index as u8 }; BLOCK];
        let blocks =
            |t: &BlockTransfer| (0..t.blocks as usize).flat_map(block).collect::<Vec<u8>>();
        match command {
            Command::Block(BlockCommand::Read(t)) => {
                (vec![], self.slice(t).map(|found| found.to_vec()))
            }
            Command::Block(BlockCommand::Write(t))
            | Command::Block(BlockCommand::WriteAndVerify { transfer: t, .. }) => {
                let data = blocks(t);
                let done = self.slice(t).map(|place| place.copy_from_slice(&data));
                (data, done.map(|()| vec![]))
            }
            Command::Block(BlockCommand::Verify { transfer: t, .. }) => {
                let data = blocks(t);
                let found = self.slice(t).map(|found| found.to_vec());
                let result = found.and_then(|found| {
                    match found.iter().zip(&data).position(|(a, b)| a != b) {
                        None => Ok(vec![]),
                        Some(at) => Err(Sense::MISCOMPARE_DURING_VERIFY
                            .with_information(t.lba + (at / BLOCK) as u64)),
                    }
                });
                (data, result)
            }
            Command::Block(BlockCommand::WriteSame { transfer: t, no_data_out, .. }) => {
                let data = if *no_data_out { vec![] } else { block(0).to_vec() };
                let value = if *no_data_out { [0; BLOCK] } else { block(0) };
                let to_end = BLOCKS.saturating_sub(t.lba) as u32;
                let blocks = if t.blocks == 0 { to_end } else { t.blocks };
                let done = self.slice(&BlockTransfer { blocks, ..*t }).map(|place| {
                    place.chunks_exact_mut(BLOCK).for_each(|chunk| chunk.copy_from_slice(&value));
                });
                (data, done.map(|()| vec![]))
            }
            Command::Block(BlockCommand::Unmap { .. }) => {
                let runs = [(u64::from(seed), 3), (u64::from(seed) * 12, 5)];
                let list = unmap_list(&runs.map(|(lba, blocks)| UnmapDescriptor { lba, blocks }));
                let runs = runs.map(|(lba, blocks)| BlockTransfer::new(lba, blocks));
                let inside = runs.iter().all(|run| self.slice(run).is_ok());
                if !inside {
                    return (list, Err(Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE));
                }
                for run in runs {
                    self.slice(&run).expect("it is inside").fill(0);
                }
                (list, Ok(vec![]))
            }
            other => unreachable!("{other:?} is not generated"),
        }
    }

    fn slice(&mut self, transfer: &BlockTransfer) -> Result<&mut [u8], Sense> {
        let start = transfer.lba as usize * BLOCK;
        let end = start + transfer.blocks as usize * BLOCK;
        self.0.get_mut(start..end).ok_or(Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE)
    }
}

proptest! {
    #[test]
    fn the_unit_behaves_like_an_array_of_blocks(
        commands in proptest::collection::vec(command(), 1..40),
    ) {
        let settings = Settings { write_same_to_end: true, ..Settings::default() };
        let host = Host::with_settings(small(), settings);
        let mut model = Model(vec![0; BLOCKS as usize * BLOCK]);
        for (command, seed) in commands {
            let (data, expected) = model.run(&command, seed);
            let completion = host.send(&command.encode(), &data);
            match expected {
                Ok(data_in) => {
                    prop_assert_eq!(completion.status, ScsiStatus::Good, "{:?}", command);
                    prop_assert_eq!(&completion.data_in.into_bytes()[..], &data_in[..]);
                }
                Err(sense) => prop_assert_eq!(completion.sense, Some(sense), "{:?}", command),
            }
        }
        let all = host.good(&Command::read(0, BLOCKS as u32), &[]);
        prop_assert!(all == model.0);
    }

    #[test]
    fn any_cdb_with_any_data_does_no_harm(
        operation in 0..OPERATIONS.len(),
        rest in any::<[u8; 15]>(),
        small_numbers in any::<bool>(),
        length in prop_oneof![0usize..3000, (0usize..6).prop_map(|blocks| blocks * BLOCK)],
        byte in any::<u8>(),
    ) {
        let host = Host::new(small());
        let mut cdb = [0; 16];
        cdb[1..].copy_from_slice(&rest);
        if small_numbers {
            // Keep the address within the unit, where most random addresses would not be.
            cdb[2..].iter_mut().for_each(|field| *field &= 0x03);
            cdb[2..6].fill(0);
        }
        cdb[0] = OPERATIONS[operation].opcode;
        let data = vec![byte; length];
        let admitted = unit::LogicalUnit::admit(
            &host.unit,
            &host.nexus,
            &scsi::Cdb::new(&cdb),
            length as u32,
        );
        let completion = host.send(&cdb, &data);
        prop_assert_eq!(
            completion.status == ScsiStatus::CheckCondition,
            completion.sense.is_some()
        );
        if let Err(refused) = admitted {
            prop_assert_eq!(refused.sense, completion.sense);
        }
        for call in host.asked() {
            match call {
                Call::Read(lba, blocks)
                | Call::ReadFlushed(lba, blocks)
                | Call::Discard(lba, blocks) => {
                    prop_assert!(blocks > 0 && lba + u64::from(blocks) <= BLOCKS);
                }
                Call::Write(lba, bytes, _) => {
                    prop_assert!(bytes > 0 && lba + (bytes / BLOCK) as u64 <= BLOCKS);
                }
                Call::Flush | Call::RollBack | Call::Admit(_) => {}
            }
        }
    }
}
