//! Commands that the target answers without a logical unit: REPORT LUNS, and commands for a LUN that does not exist
//! (SPC-4, 6.4.2, 6.33; SAM-5, 5.11).

use scsi::{Command, Lun, PrimaryCommand, Sense, inquiry};
use unit::{Completion, Task};

/// The LUN of the REPORT LUNS well-known logical unit, in extended addressing (SAM-5, 4.7.5.1).
const REPORT_LUNS_UNIT: Lun = Lun(0xc101_0000_0000_0000);
const REPORT_LUNS: u8 = 0xa0;

/// Returns true for REPORT LUNS, which the target answers even if the addressed unit exists.
pub(crate) fn is_meant(cdb: &[u8]) -> bool {
    cdb.first() == Some(&REPORT_LUNS)
}

/// Answers REPORT LUNS, and any command for a LUN that does not exist.
pub(crate) fn execute(task: &Task, luns: &[Lun]) -> Completion {
    match Command::parse(&task.cdb) {
        Ok(Command::Primary(PrimaryCommand::ReportLuns { select_report, allocation_length })) => {
            report_luns(luns, select_report, allocation_length)
        }
        Ok(Command::Primary(PrimaryCommand::Inquiry { page: None, allocation_length })) => {
            inquiry_without_unit(usize::from(allocation_length))
        }
        // REQUEST SENSE succeeds without a unit, like INQUIRY. The sense data says that there is no unit.
        Ok(Command::Primary(PrimaryCommand::RequestSense { allocation_length, .. })) => {
            let sense = Sense::LOGICAL_UNIT_NOT_SUPPORTED.to_fixed_bytes();
            good(sense, usize::from(allocation_length))
        }
        Err(sense) if is_meant(&task.cdb) => Completion::check_condition(sense),
        // For a LUN without a unit, any other command fails.
        Ok(_) | Err(_) if task.lun != REPORT_LUNS_UNIT => {
            Completion::check_condition(Sense::LOGICAL_UNIT_NOT_SUPPORTED)
        }
        Ok(Command::Primary(PrimaryCommand::TestUnitReady)) => good(Vec::new(), 0),
        Ok(_) => Completion::check_condition(Sense::INVALID_COMMAND_OPERATION_CODE),
        Err(sense) => Completion::check_condition(sense),
    }
}

fn report_luns(luns: &[Lun], select_report: u8, allocation_length: u32) -> Completion {
    let list = match select_report {
        // 02h asks for all units, well-known units included. A target need not list its well-known unit.
        0x00 | 0x02 => scsi::lun_list(luns),
        0x01 => scsi::lun_list(&[]),
        _ => return Completion::check_condition(Sense::invalid_field_in_cdb(2)),
    };
    good(list, allocation_length as usize)
}

fn inquiry_without_unit(allocation_length: usize) -> Completion {
    let data = inquiry::StandardInquiry::no_unit(
        inquiry::ascii("FOREBAY"),
        inquiry::ascii(""),
        inquiry::ascii(""),
    );
    good(data.to_bytes(), allocation_length)
}

fn good(mut data: Vec<u8>, allocation_length: usize) -> Completion {
    data.truncate(allocation_length);
    Completion::good(data.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use scsi::{Cdb, ScsiStatus};
    use unit::{Nexus, TaskAttribute};

    use super::*;

    fn run(lun: Lun, cdb: &[u8]) -> Completion {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let task = Task {
            nexus: Nexus { number: 1, initiator_port: Arc::from("iqn.x,i,0x0"), target_port: 1 },
            lun,
            cdb: Cdb::new(&padded),
            attribute: TaskAttribute::Simple,
            data_out: Default::default(),
            data_in_capacity: 1024,
            admitted: None,
        };
        execute(&task, &[Lun(0), Lun(3 << 48)])
    }

    fn report(select: u8, allocation_length: u8) -> Completion {
        run(Lun(0), &[0xa0, 0, select, 0, 0, 0, 0, 0, 0, allocation_length])
    }

    #[test]
    fn a_truncated_list_of_units_has_the_full_length() {
        let all = report(0, 255).data_in.into_bytes();
        assert_eq!(all[..], [[0, 0, 0, 16, 0, 0, 0, 0], [0; 8], [0, 3, 0, 0, 0, 0, 0, 0]].concat());
        assert_eq!(report(2, 8).data_in.into_bytes(), all.slice(..8));
        assert_eq!(report(1, 255).data_in.into_bytes(), vec![0; 8]);
        assert_eq!(report(3, 255).sense, Some(Sense::invalid_field_in_cdb(2)));
    }

    #[test]
    fn inquiry_data_of_an_absent_unit_says_that_it_is_not_connected() {
        let inquiry = run(Lun(9 << 48), &[0x12, 0, 0, 0, 36, 0]);
        assert_eq!(inquiry.status, ScsiStatus::Good);
        let data = inquiry.data_in.into_bytes();
        assert_eq!((data.len(), data[0]), (36, 0x7f));
    }

    #[test]
    fn other_commands_to_an_absent_unit_fail() {
        for cdb in
            [&[0x00][..], &[0x12, 1, 0x83, 0, 255, 0], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1], &[0xee]]
        {
            let completion = run(Lun(9 << 48), cdb);
            assert_eq!(completion.sense, Some(Sense::LOGICAL_UNIT_NOT_SUPPORTED), "{cdb:x?}");
        }
        let sense = run(Lun(9 << 48), &[0x03, 0, 0, 0, 252]).data_in.into_bytes();
        assert_eq!((sense[2], sense[12], sense[13]), (5, 0x25, 0));
    }

    #[test]
    fn the_well_known_unit_is_ready_and_serves_only_report_luns() {
        assert_eq!(run(REPORT_LUNS_UNIT, &[0x00]).status, ScsiStatus::Good);
        assert_eq!(
            run(REPORT_LUNS_UNIT, &[0x28]).sense,
            Some(Sense::INVALID_COMMAND_OPERATION_CODE)
        );
    }
}
