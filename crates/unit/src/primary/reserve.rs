//! The command PERSISTENT RESERVE OUT, and SET TARGET PORT GROUPS, which changes nothing.

use scsi::{PersistentReserveOut, Sense, WantedState, persistent::ReserveAction};
use volume::Data;

use super::{
    PrimaryUnit,
    describe::TARGET_PORT_GROUP,
    order::TaskTurn,
    reply::{check_list_length, parameter_list, taking, taking_with},
};
use crate::{Completion, Nexus, TaskAttribute, UnitReply};

impl PrimaryUnit {
    pub(super) fn persistent_reserve_out<'a>(
        &'a self,
        nexus: Nexus,
        asked: PersistentReserveOut,
        data: &Data,
        turn: TaskTurn<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        check_list_length(asked.parameter_list_length)?;
        let taken = asked.parameter_list_length;
        let list = parameter_list(data, taken as usize)?;
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
                // Wait until all commands in progress have ended, so that no write of a preempted nexus is done after
                // this status is sent. The new reservation already refuses the commands that arrive meanwhile.
                drop(self.order.turn(TaskAttribute::Ordered).await);
            }
            taking(taken)
        }))
    }
}

/// SET TARGET PORT GROUPS (SPC-4, 6.45). Every group is always active and optimized. A list that asks for
/// another state is refused.
pub(super) fn set_target_port_groups(length: u32, data: &Data) -> Result<Completion, Completion> {
    check_list_length(length)?;
    // An empty parameter list is valid and changes nothing (SPC-4, 6.45).
    if length == 0 {
        return Ok(taking(0));
    }
    let list = parameter_list(data, length as usize)?;
    let wanted = WantedState::list(&list).map_err(|sense| taking_with(length, sense.into()))?;
    for (index, wanted) in wanted.iter().enumerate() {
        let is_there = wanted.group == TARGET_PORT_GROUP;
        if wanted.state != 0 || !is_there {
            let byte = u16::try_from(4 + 4 * index).unwrap_or(u16::MAX);
            let sense = Sense::invalid_field_in_parameter_list(byte);
            return Err(taking_with(length, sense.into()));
        }
    }
    Ok(taking(length))
}
