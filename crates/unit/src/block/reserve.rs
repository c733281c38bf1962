//! PERSISTENT RESERVE OUT, and SET TARGET PORT GROUPS, which changes nothing.

use scsi::{PersistentReserveOut, Sense, WantedState, persistent::ReserveAction};

use super::{
    BlockCommandInput, BlockUnit,
    bounds::{at_once, check_list_length, parameter_list, taking, taking_with},
};
use crate::{Completion, Nexus, TaskAttribute, UnitReply, block::description::TARGET_PORT_GROUP};

impl BlockUnit {
    pub(super) fn persistent_reserve_out<'a>(
        &'a self,
        nexus: Nexus,
        asked: PersistentReserveOut,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        check_list_length(asked.parameter_list_length)?;
        let taken = asked.parameter_list_length;
        let list = parameter_list(&work.data, taken as usize)?;
        let turn = work.turn;
        Ok(UnitReply::new(async move {
            let ports = &self.target_ports(&nexus);
            let attentions = match self.reservations.change(&nexus, asked, &list, ports).await {
                Ok(attentions) => attentions,
                Err(failure) => return taking_with(taken, failure),
            };
            for (number, sense) in attentions {
                self.attentions.raise_to(sense, number);
            }
            drop(turn);
            if matches!(asked.action, ReserveAction::PreemptAndAbort(_)) {
                // What the preempted have on its way ends before the status, so that nothing of
                // theirs is written after it; what comes from them now is refused.
                drop(self.order.turn(TaskAttribute::Ordered).await);
            }
            taking(taken)
        }))
    }

    /// Every group is active and optimized, and stays so: nothing else can be wanted of it.
    pub(super) fn set_target_port_groups<'a>(
        &'a self,
        length: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        check_list_length(length)?;
        // A length of zero is no error (SPC-4, 6.45).
        if length == 0 {
            return Err(taking(0));
        }
        let list = parameter_list(&work.data, length as usize)?;
        let wanted = WantedState::list(&list).map_err(|sense| taking_with(length, sense.into()))?;
        for (index, wanted) in wanted.iter().enumerate() {
            let is_there = wanted.group == TARGET_PORT_GROUP;
            if wanted.state != 0 || !is_there {
                let byte = u16::try_from(4 + 4 * index).unwrap_or(u16::MAX);
                let sense = Sense::invalid_field_in_parameter_list(byte);
                return Err(taking_with(length, sense.into()));
            }
        }
        Ok(at_once(taking(length)))
    }
}
