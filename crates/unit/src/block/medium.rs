//! START STOP UNIT: stops the unit, and ejects or loads a removable medium.

use scsi::{Sense, StartStop};

use super::{BlockCommandInput, BlockUnit};
use crate::{
    Completion, Nexus, UnitReply,
    primary::reply::{finished, taking},
};

impl BlockUnit {
    /// Ejects or loads the medium. While the unit is claimed, only the claim's owner can eject it.
    ///
    /// A unit has no motor: a stop makes earlier writes stable, and the unit stays ready. A power condition is accepted
    /// and changes nothing. A stop by an initiator that is not the claim's owner flushes nothing, since a flush would
    /// end the owner's epoch in the middle.
    pub(super) fn start_stop<'a>(
        &'a self,
        nexus: &Nexus,
        asked: StartStop,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        if asked.power_condition != 0 {
            return Err(taking(0));
        }
        if asked.load_eject {
            if !self.settings.removable {
                return Err(Sense::invalid_bit_in_cdb(4, 1).into());
            }
            self.medium.check_free()?;
            // Refuse to eject the medium of a unit that another nexus has claimed: that owner could not destage the
            // dirty data in its log any more.
            if !asked.start && self.has_another_owner(nexus.number) {
                return Err(Sense::MEDIUM_REMOVAL_PREVENTED.into());
            }
        }
        if asked.start {
            if asked.load_eject && self.medium.set_present(true) {
                let changed = Sense::MEDIUM_MAY_HAVE_CHANGED;
                self.primary.raise(changed, Some(nexus.number));
            }
            return Err(taking(0));
        }
        let flushes = asked.flushes()
            && !work.geometry.read_only
            && !self.is_anothers_epoch(nexus.number, &work.geometry);
        let flush = flushes.then(|| self.flush_as(nexus.number));
        let stop = async move {
            if let Some(flush) = flush {
                flush.await?;
            }
            if asked.load_eject {
                self.medium.set_present(false);
            }
            Ok(())
        };
        Ok(finished(stop, 0, work.turn))
    }
}
