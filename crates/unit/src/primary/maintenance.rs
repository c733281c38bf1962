//! The commands that set the unit's clock and its identifying information.

use scsi::{IdentifyingType, Sense, Timestamp};
use volume::Data;

use super::{
    PrimaryUnit,
    order::TaskTurn,
    reply::{check_list_length, finished, parameter_list, taking, taking_with},
};
use crate::{Completion, Nexus, UnitReply};

impl PrimaryUnit {
    pub(super) fn set_timestamp(
        &self,
        nexus: &Nexus,
        length: u32,
        data: &Data,
    ) -> Result<Completion, Completion> {
        check_list_length(length)?;
        // An empty parameter list is valid and changes nothing (SPC-4, 6.46).
        if length == 0 {
            return Ok(taking(0));
        }
        let list = parameter_list(data, length as usize)?;
        let set = Timestamp::parse_list(&list);
        self.clock.set(set.map_err(|sense| taking_with(length, sense.into()))?);
        self.attentions.raise(Sense::TIMESTAMP_CHANGED, Some(nexus.number));
        Ok(taking(length))
    }

    /// SET IDENTIFYING INFORMATION. The information is stable before the status is sent.
    pub(super) fn set_identifying<'a>(
        &'a self,
        nexus: &Nexus,
        kind: IdentifyingType,
        length: u32,
        data: &Data,
        turn: TaskTurn<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let identifying = self.identifying()?;
        let bytes = parameter_list(data, length as usize)?;
        if kind == IdentifyingType::Text && !(bytes.is_empty() || is_text(&bytes)) {
            let sense = Sense::invalid_field_in_parameter_list(0);
            return Err(taking_with(length, sense.into()));
        }
        let asker = nexus.number;
        let set = async move {
            if identifying.set(kind, bytes.to_vec()).await? {
                self.attentions.raise(Sense::DEVICE_IDENTIFIER_CHANGED, Some(asker));
            }
            Ok(())
        };
        Ok(finished(set, length, turn))
    }
}

/// Returns true if `bytes` are UTF-8 text that ends with the only zero byte.
fn is_text(bytes: &[u8]) -> bool {
    let text = bytes.split_last().filter(|(last, _)| **last == 0);
    text.is_some_and(|(_, text)| !text.contains(&0) && std::str::from_utf8(text).is_ok())
}
