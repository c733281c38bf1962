//! The command SANITIZE: checks its parameters and starts its work.

use std::sync::Arc;

use scsi::{Overwrite, Sanitize, SanitizeAction, Sense};
use tokio::runtime::Handle;
use volume::Geometry;

use super::{BlockCommandInput, BlockUnit, bounds::writable};
use crate::{
    Completion, TaskAttribute, UnitReply,
    block::sanitizer::Method,
    primary::reply::{finished, parameter_list, taking, taking_with},
};

impl BlockUnit {
    /// Waits until every other command has ended and begins the work. With IMMED, answers without waiting for
    /// its end. Dropping the answer later does not stop the work.
    pub(super) fn sanitize<'a>(
        &'a self,
        asked: Sanitize,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { data, geometry, turn, .. } = work;
        self.check_sanitize(&asked, &geometry)?;
        let taken = u32::from(asked.parameter_list_length);
        let list = parameter_list(&data, taken as usize)?;
        let method = match asked.action {
            SanitizeAction::ExitFailureMode => {
                let exit = async { Ok(self.sanitizer.exit_failure_mode().await?) };
                return Ok(finished(exit, taken, turn));
            }
            SanitizeAction::BlockErase => Method::BlockErase,
            SanitizeAction::CryptographicErase => Method::CryptographicErase,
            SanitizeAction::Overwrite => {
                let list = Overwrite::parse(&list, geometry.block_size);
                Method::Overwrite(list.map_err(|sense| taking_with(taken, sense.into()))?)
            }
        };
        // Without a runtime the work cannot continue after the command.
        let runtime = Handle::try_current().map_err(|_| Sense::INTERNAL_TARGET_FAILURE)?;
        Ok(UnitReply::new(async move {
            drop(turn);
            let alone = self.primary.order.turn(TaskAttribute::Ordered).await;
            let volume = Arc::clone(&self.volume);
            self.tokens.note_overwritten();
            let exit = asked.unrestricted_exit;
            let begun = self.sanitizer.begin(volume, method, exit, &runtime).await;
            drop(alone);
            let ended = match begun {
                Ok(ended) if !asked.immediate => ended.await,
                Ok(_) => Ok(()),
                Err(sense) => Err(sense),
            };
            match ended {
                Ok(()) => taking(taken),
                Err(sense) => taking_with(taken, sense.into()),
            }
        }))
    }

    pub(super) fn check_sanitize(
        &self,
        asked: &Sanitize,
        geometry: &Geometry,
    ) -> Result<(), Sense> {
        // The volume does not overwrite blocks in place, so older copies of the data would survive, out of
        // reach of any command.
        if !geometry.in_place {
            return Err(Sense::INVALID_COMMAND_OPERATION_CODE);
        }
        if asked.action == SanitizeAction::CryptographicErase && !geometry.key_erasable {
            return Err(Sense::invalid_bit_in_cdb(1, 4));
        }
        // The content of the list is checked when it has arrived; here only its length.
        let most = geometry.block_size + 4;
        if asked.action == SanitizeAction::Overwrite
            && !(5..=most).contains(&u32::from(asked.parameter_list_length))
        {
            return Err(Sense::invalid_field_in_cdb(7));
        }
        writable(geometry)
    }
}
