//! The gate that every command passes before a unit performs it, whatever the device type.
//!
//! A command whose data has to be solicited is parsed and checked before that ([`admit`]). The session keeps
//! the result with the task. When the data has come ([`begin`]), the gate compares generations and repeats
//! the checks only if a reservation, a claim or the medium has changed in between. The CDB is not parsed
//! again.

use scsi::{AdmittedCommand, PrimaryCommand, Sense};

use crate::{
    Completion, Nexus, Task, TaskAttribute,
    primary::{DeviceCommand, PrimaryUnit},
    sense::UnitCommandFailure,
};

/// The checks that a device type adds to the gate.
pub trait GatedDevice {
    /// The commands of this device type, including those that SPC defines for all types.
    type Command: DeviceCommand;

    /// Parses a CDB.
    ///
    /// # Errors
    /// 5/20/00 for an unknown command, 5/24/00 for a field that asks for something that is not supported.
    fn parse(&self, cdb: &[u8]) -> Result<Self::Command, Sense>;

    /// Checks that a nexus may perform a command while the unit has an exclusive writer.
    ///
    /// # Errors
    /// The completion of the command.
    fn check_writer(&self, _nexus: u64, _command: &Self::Command) -> Result<(), Completion> {
        Ok(())
    }

    /// Checks that no work on the whole unit is running, or has failed, that excludes the command. `parsed`
    /// may be an error: the work is reported before errors of the CDB.
    ///
    /// # Errors
    /// The sense data of the command.
    fn check_work(&self, _parsed: &Result<Self::Command, Sense>) -> Result<(), Sense> {
        Ok(())
    }

    /// Checks that the unit can perform the command in its present state, and that its medium is there if the command
    /// needs it.
    ///
    /// # Errors
    /// The sense data of the command.
    fn check_medium(&self, _command: &Self::Command) -> Result<(), Sense> {
        Ok(())
    }

    /// Returns the generation of the state that the checks of this trait depend on. The generation increases
    /// with each change of that state. Returns `None` (the default) if the result depends on more than
    /// counted changes, so that the checks must be made for each command.
    fn generation(&self, _nexus: u64) -> Option<u64> {
        None
    }
}

/// One kind of check of the gate. INQUIRY, REPORT LUNS and REQUEST SENSE pass all of them (SPC-4, 5.14).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum GateCheck {
    /// Unit attention condition of a reset, the only one that comes before a reservation conflict (SAM-5,
    /// 5.3.3). A part of another task skips it: the condition is reported to that task.
    Reset,
    /// Refuse the command if a reservation of another nexus excludes it (SPC-4, 5.13.1; SPC-2, 5.5.1).
    Reservation,
    /// Refuse the command if another session is the exclusive writer (CLAIM OUT: `docs/protocols.md`).
    Writer,
    /// Report any other unit attention condition (SAM-5, 5.14). Commands that are a part of another task skip this
    /// check.
    Attention,
    /// Work on the whole unit: SANITIZE (SBC-3, 4.11).
    Work,
    /// The CDB itself (SPC-4, 4.2), and then the medium of a removable unit (SBC-3, 4.3).
    Medium,
}

impl GateCheck {
    /// The order of the checks: SAM-5, 5.3.3.
    const ORDER: [Self; 6] =
        [Self::Reset, Self::Reservation, Self::Writer, Self::Attention, Self::Work, Self::Medium];
}

/// Parses a command before its data is solicited, and checks that this nexus may perform it now. Takes the unit
/// attention condition that it reports. Returns the command, and the result for [`Task::admitted`].
///
/// # Errors
/// The completion of a command that does not pass.
pub fn admit<D: GatedDevice>(
    primary: &PrimaryUnit,
    device: &D,
    nexus: &Nexus,
    cdb: &[u8],
) -> Result<(D::Command, AdmittedCommand), Completion> {
    // Read the generation before the checks, so that a change during the checks counts as a change after them.
    let generation = generation(primary, device, nexus.number);
    let parsed = device.parse(cdb);
    make_all(primary, device, nexus.number, &parsed, TaskAttribute::Simple)?;
    let command = parsed?;
    let admitted = AdmittedCommand { command: command.to_parsed(), generation };
    Ok((command, admitted))
}

/// Returns the command of a task that begins now, with all its data. Checks that its nexus may perform it, unless
/// this was checked by [`admit`] and cannot have changed since. Takes the unit attention condition that it reports.
///
/// # Errors
/// The completion of a task that does not pass.
pub fn begin<D: GatedDevice>(
    primary: &PrimaryUnit,
    device: &D,
    task: &Task,
) -> Result<D::Command, Completion> {
    let nexus = task.nexus.number;
    let admitted = task.admitted.as_ref();
    let command = admitted.and_then(|admitted| D::Command::from_parsed(&admitted.command));
    let parsed = match command {
        Some(command) => {
            let checked = admitted.and_then(|admitted| admitted.generation);
            if checked.is_some() && checked == generation(primary, device, nexus) {
                return Ok(command);
            }
            Ok(command)
        }
        None => device.parse(&task.cdb),
    };
    make_all(primary, device, nexus, &parsed, task.attribute)?;
    Ok(parsed?)
}

/// Returns the generation of all state that the checks depend on: it is equal at two times only if nothing has
/// changed in between. Returns `None` if the checks have to be made each time.
fn generation<D: GatedDevice>(primary: &PrimaryUnit, device: &D, nexus: u64) -> Option<u64> {
    // Neither generation ever decreases, so an equal sum means that both are unchanged.
    Some(primary.generation()?.wrapping_add(device.generation(nexus)?))
}

fn make_all<D: GatedDevice>(
    primary: &PrimaryUnit,
    device: &D,
    nexus: u64,
    parsed: &Result<D::Command, Sense>,
    attribute: TaskAttribute,
) -> Result<(), Completion> {
    if parsed.as_ref().is_ok_and(is_unconditional) {
        return Ok(());
    }
    GateCheck::ORDER
        .into_iter()
        .try_for_each(|check| make(check, primary, device, nexus, parsed, attribute))
}

fn make<D: GatedDevice>(
    check: GateCheck,
    primary: &PrimaryUnit,
    device: &D,
    nexus: u64,
    parsed: &Result<D::Command, Sense>,
    attribute: TaskAttribute,
) -> Result<(), Completion> {
    let is_nested = attribute == TaskAttribute::Nested;
    match check {
        GateCheck::Reset if is_nested => {}
        GateCheck::Reset => fail_with(primary.take_reset(nexus))?,
        GateCheck::Reservation => {
            if let Ok(command) = parsed
                && primary.conflicts(nexus, command)
            {
                return Err(UnitCommandFailure::Conflict.into());
            }
        }
        GateCheck::Writer => {
            if let Ok(command) = parsed {
                device.check_writer(nexus, command)?;
            }
        }
        GateCheck::Attention if is_nested => {}
        GateCheck::Attention => fail_with(primary.take_attention(nexus))?,
        GateCheck::Work => device.check_work(parsed)?,
        GateCheck::Medium => match parsed {
            Ok(command) => device.check_medium(command)?,
            Err(sense) => return Err((*sense).into()),
        },
    }
    Ok(())
}

fn fail_with(condition: Option<Sense>) -> Result<(), Sense> {
    condition.map_or(Ok(()), Err)
}

/// INQUIRY, REPORT LUNS and REQUEST SENSE are answered in any case (SPC-4, 5.14).
fn is_unconditional(command: &impl DeviceCommand) -> bool {
    matches!(
        command.primary(),
        Some(
            PrimaryCommand::Inquiry { .. }
                | PrimaryCommand::ReportLuns { .. }
                | PrimaryCommand::RequestSense { .. }
        )
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use scsi::{Cdb, Lun, OperationCodeEntry, ScsiStatus, inquiry::StandardInquiry};
    use volume::Data;

    use super::*;
    use crate::{DeviceType, PrimaryCommandInput, UnitIdentity};

    /// A device with the commands of SPC only. The test can make each of its checks fail.
    #[derive(Clone, Copy)]
    struct Barring {
        writer: bool,
        work: bool,
        medium: bool,
    }

    impl GatedDevice for Barring {
        type Command = PrimaryCommand;

        fn parse(&self, cdb: &[u8]) -> Result<PrimaryCommand, Sense> {
            PrimaryCommand::parse(cdb)
        }

        fn check_writer(&self, _: u64, _: &PrimaryCommand) -> Result<(), Completion> {
            if self.writer { Err(Completion::status(ScsiStatus::Busy)) } else { Ok(()) }
        }

        fn check_work(&self, _: &Result<PrimaryCommand, Sense>) -> Result<(), Sense> {
            if self.work { Err(Sense::SANITIZE_COMMAND_FAILED) } else { Ok(()) }
        }

        fn check_medium(&self, _: &PrimaryCommand) -> Result<(), Sense> {
            if self.medium { Err(Sense::MEDIUM_NOT_PRESENT) } else { Ok(()) }
        }
    }

    impl DeviceType for Barring {
        fn inquiry(&self) -> StandardInquiry {
            StandardInquiry::device(3, [b' '; 8], [b' '; 16], [b' '; 4])
        }

        fn operations(&self) -> Vec<&'static OperationCodeEntry> {
            Vec::new()
        }
    }

    fn nexus(number: u64) -> Nexus {
        Nexus { number, initiator_port: format!("iqn.a,i,{number}").into(), target_port: 1 }
    }

    fn task(nexus: &Nexus, command: &PrimaryCommand, admitted: Option<AdmittedCommand>) -> Task {
        Task {
            nexus: nexus.clone(),
            lun: Lun(0),
            cdb: Cdb::new(&command.encode()),
            attribute: TaskAttribute::Simple,
            data_out: Data::new(),
            data_in_capacity: 0,
            admitted,
        }
    }

    /// A device that counts how often it parses a CDB and how often it checks the exclusive writer.
    #[derive(Default)]
    struct CountingDevice {
        parsed: AtomicU64,
        checked: AtomicU64,
        generation: AtomicU64,
    }

    impl GatedDevice for CountingDevice {
        type Command = PrimaryCommand;

        fn parse(&self, cdb: &[u8]) -> Result<PrimaryCommand, Sense> {
            self.parsed.fetch_add(1, Ordering::Relaxed);
            PrimaryCommand::parse(cdb)
        }

        fn check_writer(&self, _: u64, _: &PrimaryCommand) -> Result<(), Completion> {
            self.checked.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn generation(&self, _: u64) -> Option<u64> {
            match self.generation.load(Ordering::Relaxed) {
                u64::MAX => None,
                generation => Some(generation),
            }
        }
    }

    #[test]
    fn a_solicited_command_is_parsed_once_and_checked_again_only_after_a_change() {
        let primary = PrimaryUnit::new(UnitIdentity::new("a"));
        let nexus = nexus(1);
        primary.nexus_opened(&nexus);
        assert_eq!(primary.take_attention(1), Some(Sense::POWER_ON_OCCURRED));
        let device = CountingDevice::default();
        let command = PrimaryCommand::SetTimestamp { parameter_list_length: 12 };
        let cdb = command.encode();
        let admitted = || admit(&primary, &device, &nexus, &cdb).expect("nothing bars it").1;
        let begun = |admitted| begin(&primary, &device, &task(&nexus, &command, Some(admitted)));
        let counts = || {
            let swap = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
            (swap(&device.parsed), swap(&device.checked))
        };

        assert_eq!(begun(admitted()).ok(), Some(command));
        assert_eq!(counts(), (1, 1), "nothing has changed");
        let before = admitted();
        device.generation.fetch_add(1, Ordering::Relaxed);
        assert_eq!(begun(before).ok(), Some(command));
        assert_eq!(counts(), (1, 2), "the device has changed");
        device.generation.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(begun(admitted()).ok(), Some(command));
        assert_eq!(counts(), (1, 2), "the device does not count all changes");
        device.generation.store(7, Ordering::Relaxed);
        let before = admitted();
        primary.raise(Sense::MODE_PARAMETERS_CHANGED, None);
        let told = begun(before).expect_err("a unit attention condition waits").sense;
        assert_eq!(told, Some(Sense::MODE_PARAMETERS_CHANGED));
        assert_eq!(counts(), (1, 2));
        assert_eq!(begin(&primary, &device, &task(&nexus, &command, None)).ok(), Some(command));
        assert_eq!(counts(), (1, 1), "the data came with the command");
    }

    #[test]
    fn of_several_reasons_to_refuse_a_command_the_first_in_the_order_is_reported() {
        let primary = PrimaryUnit::new(UnitIdentity::new("a"));
        let (holder, other) = (nexus(1), nexus(2));
        primary.nexus_opened(&holder);
        primary.nexus_opened(&other);
        let turn = primary.order.turn_now(TaskAttribute::Simple).expect("no other task is there");
        let input = PrimaryCommandInput { nexus: holder.clone(), data: Data::new(), turn };
        let mut device = Barring { writer: true, work: true, medium: true };
        let reserved = primary.start(&device, &PrimaryCommand::Reserve { ten: false }, input);
        assert_eq!(reserved.err().map(|completion| completion.status), Some(ScsiStatus::Good));
        primary.raise(Sense::MODE_PARAMETERS_CHANGED, None);
        let set = PrimaryCommand::SetTimestamp { parameter_list_length: 0 };
        let fails = |device: Barring, cdb: &[u8]| {
            let admitted = admit(&primary, &device, &other, cdb);
            admitted.map_err(|completion| (completion.status, completion.sense)).err()
        };
        let check = |sense| Some((ScsiStatus::CheckCondition, Some(sense)));

        let inquiry = PrimaryCommand::Inquiry { page: None, allocation_length: 36 };
        assert_eq!(fails(device, &inquiry.encode()), None, "INQUIRY passes");
        assert_eq!(fails(device, &set.encode()), check(Sense::POWER_ON_OCCURRED));
        let conflict = Some((ScsiStatus::ReservationConflict, None));
        assert_eq!(fails(device, &set.encode()), conflict);
        primary.nexus_closed(&holder);
        assert_eq!(fails(device, &set.encode()), Some((ScsiStatus::Busy, None)));
        device.writer = false;
        let nested = Task { attribute: TaskAttribute::Nested, ..task(&other, &set, None) };
        let nested = begin(&primary, &device, &nested).expect_err("the work bars it").sense;
        assert_eq!(
            nested,
            Some(Sense::SANITIZE_COMMAND_FAILED),
            "a part of a task gets no unit attention"
        );
        assert_eq!(fails(device, &set.encode()), check(Sense::MODE_PARAMETERS_CHANGED));
        assert_eq!(fails(device, &[0xff; 16]), check(Sense::SANITIZE_COMMAND_FAILED));
        device.work = false;
        assert_eq!(fails(device, &[0xff; 16]), check(Sense::INVALID_COMMAND_OPERATION_CODE));
        assert_eq!(fails(device, &set.encode()), check(Sense::MEDIUM_NOT_PRESENT));
        device.medium = false;
        assert_eq!(fails(device, &set.encode()), None);
    }
}
