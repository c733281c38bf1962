//! PERFORM SCSI COMMAND: a command of SPC that a capability permits.
//!
//! A unit that requires security checks no capability of a command of SPC that comes on its own. In PERFORM SCSI
//! COMMAND it does. Commands with Data-Out are refused: OSD-2 does not say where their data is.

use object::{Command, ObjectAddress, ObjectReply, ObjectRequest, ReplyData};
use scsi::{PrimaryCommand, ScsiStatus, Sense};
use unit::{Nexus, PrimaryCommandInput, TaskTurn};
use volume::Data;

use super::{ObjectUnit, sense::Failure};
use crate::backing::DriveBacking;

impl<S: DriveBacking> ObjectUnit<S> {
    /// Performs the command of SPC, and then the lists of the request, which are about the root.
    pub(super) async fn perform_primary(
        &self,
        nexus: &Nexus,
        turn: TaskTurn<'_>,
        cdb: &[u8; 16],
        request: ObjectRequest,
    ) -> Result<ObjectReply, Failure> {
        let command = PrimaryCommand::parse(cdb)?;
        let completion = match &command {
            PrimaryCommand::ModeSense(asked) => self.primary.mode_sense(self, asked)?,
            command if only_returns_data(command) => {
                let (nexus, data) = (nexus.clone(), Data::new());
                let started = {
                    let description = self.description(nexus.number);
                    let input = PrimaryCommandInput { nexus, data, turn };
                    self.primary.start(&description, command, input)
                };
                match started {
                    Ok(reply) => reply.await,
                    Err(completion) => completion,
                }
            }
            _ => return Err(Sense::invalid_field_in_cdb(REQUEST_CDB).into()),
        };
        if completion.status != ScsiStatus::Good {
            return Err(completion.sense.unwrap_or(Sense::INTERNAL_TARGET_FAILURE).into());
        }
        let object = ObjectAddress::ROOT;
        let lists = match request.set.is_empty() {
            true => Command::GetAttributes { object },
            false => Command::SetAttributes { object },
        };
        let mut reply =
            self.drive.store.perform(ObjectRequest { command: lists, ..request }).await?;
        reply.data = ReplyData::Bytes(completion.data_in);
        Ok(reply)
    }
}

/// Returns true for a command without Data-Out that changes nothing. REPORT LUNS is about the whole target, so the
/// session answers it.
const fn only_returns_data(command: &PrimaryCommand) -> bool {
    matches!(
        command,
        PrimaryCommand::TestUnitReady
            | PrimaryCommand::RequestSense { .. }
            | PrimaryCommand::Inquiry { .. }
            | PrimaryCommand::LogSense(_)
            | PrimaryCommand::PersistentReserveIn(_)
            | PrimaryCommand::ReportTargetPortGroups(_)
            | PrimaryCommand::ReportIdentifying { .. }
            | PrimaryCommand::ReportTimestamp { .. }
            | PrimaryCommand::ReportTaskFunctions { .. }
            | PrimaryCommand::ReportSupportedOperationCodes { .. }
    )
}

/// Offset of the CDB of SPC.
const REQUEST_CDB: u16 = 32;
