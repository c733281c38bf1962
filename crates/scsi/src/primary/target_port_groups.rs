//! REPORT and SET TARGET PORT GROUPS (SPC-4, 6.37 and 6.45): CDBs, parameter data and parameter
//! list.

use crate::{
    Cdb, Sense,
    field::{be32, u16_at},
};

/// The CDB fields of REPORT TARGET PORT GROUPS.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReportTargetPortGroups {
    /// PARAMETER DATA FORMAT 001b: return the extended header.
    pub extended: bool,
    pub allocation_length: u32,
}

/// A target port group. The only state that it supports is active/optimized.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetPortGroup {
    pub group: u16,
    /// The RELATIVE TARGET PORT IDENTIFIERs of the ports in the group, at most 255.
    pub ports: Vec<u16>,
}

/// A descriptor in the parameter list of SET TARGET PORT GROUPS: the state that a group is to have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WantedState {
    /// ASYMMETRIC ACCESS STATE field, 0 to 15; 0 stands for active/optimized.
    pub state: u8,
    pub group: u16,
}

impl ReportTargetPortGroups {
    pub(crate) fn encode(self) -> Cdb {
        let mut cdb = [0; 12];
        (cdb[0], cdb[1]) = (0xa3, u8::from(self.extended) << 5 | 0x0a);
        cdb[6..10].copy_from_slice(&self.allocation_length.to_be_bytes());
        Cdb::new(&cdb)
    }

    pub(crate) fn parse(cdb: &[u8]) -> Result<Self, Sense> {
        let extended = match cdb[1] >> 5 {
            0 => false,
            1 => true,
            _ => return Err(Sense::invalid_bit_in_cdb(1, 7)),
        };
        Ok(Self { extended, allocation_length: be32(cdb, 6) })
    }

    /// Encodes the parameter data of REPORT TARGET PORT GROUPS.
    #[must_use]
    pub fn answer(self, groups: &[TargetPortGroup]) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        if self.extended {
            // The field IMPLICIT TRANSITION TIME is 0, since the access state of a group never
            // changes.
            bytes.extend_from_slice(&[0x10, 0, 0, 0]);
        }
        for group in groups {
            let [high, low] = group.group.to_be_bytes();
            let ports = &group.ports[..group.ports.len().min(255)];
            bytes.extend_from_slice(&[0, ACTIVE_OPTIMIZED_SUPPORTED, high, low]);
            bytes.extend_from_slice(&[0, 0, 0, ports.len() as u8]);
            for port in ports {
                let [high, low] = port.to_be_bytes();
                bytes.extend_from_slice(&[0, 0, high, low]);
            }
        }
        let length = (bytes.len() - 4) as u32;
        bytes[..4].copy_from_slice(&length.to_be_bytes());
        bytes
    }
}

impl WantedState {
    /// Parses the parameter list of SET TARGET PORT GROUPS.
    ///
    /// # Errors
    /// 5/1A/00 if the list is not a header followed by whole descriptors.
    pub fn list(bytes: &[u8]) -> Result<Vec<Self>, Sense> {
        let descriptors = bytes.get(4..).filter(|rest| rest.len() % 4 == 0);
        let descriptors = descriptors.ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let wanted = descriptors.chunks_exact(4).map(|descriptor| Self {
            state: descriptor[0] & 0x0f,
            group: u16_at(descriptor, 2).expect("chunks are 4 bytes"),
        });
        Ok(wanted.collect())
    }
}

/// AO_SUP bit: the group supports the state active/optimized.
const ACTIVE_OPTIMIZED_SUPPORTED: u8 = 0x01;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_byte_by_byte() {
        let groups = [TargetPortGroup { group: 1, ports: vec![1, 2] }];
        let asked = ReportTargetPortGroups { extended: false, allocation_length: 255 };
        assert_eq!(
            asked.answer(&groups),
            [0, 0, 0, 16, 0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]
        );
        let extended = ReportTargetPortGroups { extended: true, ..asked };
        assert_eq!(extended.answer(&groups)[..8], [0, 0, 0, 20, 0x10, 0, 0, 0]);
    }

    #[test]
    fn a_truncated_list_of_wanted_states_is_refused() {
        let wanted = WantedState { state: 2, group: 0x0103 };
        assert_eq!(WantedState::list(&[0, 0, 0, 0, 2, 0, 1, 3]), Ok(vec![wanted]));
        assert_eq!(WantedState::list(&[0; 4]), Ok(vec![]));
        assert!(WantedState::list(&[0; 7]).is_err());
        assert!(WantedState::list(&[0; 3]).is_err());
    }
}
