//! The parameter lists of PERSISTENT RESERVE OUT (SPC-4, 6.16.3 and 6.16.4).

use super::transport_id::TransportId;
use crate::{
    Sense,
    field::{u8_at, u16_at, u32_at, u64_at},
};

/// The parameter list of every service action except REGISTER AND MOVE.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OutParameters {
    /// RESERVATION KEY: the key under which the nexus is registered.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the new key of the nexus, or the key to preempt.
    pub action_key: u64,
    /// APTPL: registrations and reservation survive a power loss.
    pub persist: bool,
    /// ALL_TG_PT: register on all target ports.
    pub all_target_ports: bool,
    /// Initiator ports to register as well (SPEC_I_PT); `None` if the bit is not set.
    pub ports: Option<Vec<TransportId>>,
}

/// The parameter list of REGISTER AND MOVE.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MoveParameters {
    /// RESERVATION KEY: the key under which the nexus is registered.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the key under which the new holder will be registered.
    pub action_key: u64,
    /// UNREG bit: the unit removes the registration of this nexus.
    pub unregister: bool,
    /// APTPL: registrations and reservation survive a power loss.
    pub persist: bool,
    /// RELATIVE TARGET PORT IDENTIFIER of the new holder's nexus.
    pub target_port: u16,
    /// The initiator port of the new holder's nexus.
    pub port: TransportId,
}

impl OutParameters {
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let flags = u8::from(self.ports.is_some()) << 3
            | u8::from(self.all_target_ports) << 2
            | u8::from(self.persist);
        let mut bytes = [self.key.to_be_bytes(), self.action_key.to_be_bytes()].concat();
        bytes.extend_from_slice(&[0, 0, 0, 0, flags, 0, 0, 0]);
        if let Some(ports) = &self.ports {
            let ports: Vec<u8> = ports.iter().flat_map(TransportId::to_bytes).collect();
            bytes.extend_from_slice(&(ports.len() as u32).to_be_bytes());
            bytes.extend_from_slice(&ports);
        }
        bytes
    }

    /// Parses a complete parameter list.
    ///
    /// # Errors
    /// 5/1A/00 for a length that disagrees with the contents; 5/26/00 for a TransportID that is not
    /// the name of an iSCSI initiator port, and for more than [`MOST_PORTS`] TransportIDs.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Sense> {
        let (key, action_key, flags) = head(bytes)?;
        let ports = if flags & SPEC_I_PT == 0 {
            if bytes.len() != BASIC {
                return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
            }
            None
        } else {
            Some(ports(bytes)?)
        };
        Ok(Self {
            key,
            action_key,
            persist: flags & APTPL != 0,
            all_target_ports: flags & ALL_TG_PT != 0,
            ports,
        })
    }
}

impl MoveParameters {
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let flags = u8::from(self.unregister) << 1 | u8::from(self.persist);
        let port = self.port.to_bytes();
        let mut bytes = [self.key.to_be_bytes(), self.action_key.to_be_bytes()].concat();
        bytes.extend_from_slice(&[0, flags]);
        bytes.extend_from_slice(&self.target_port.to_be_bytes());
        bytes.extend_from_slice(&(port.len() as u32).to_be_bytes());
        bytes.extend_from_slice(&port);
        bytes
    }

    /// Parses a complete parameter list of REGISTER AND MOVE.
    ///
    /// # Errors
    /// The errors of [`OutParameters::from_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Sense> {
        let (key, action_key, _) = head(bytes)?;
        let length = u32_at(bytes, 20).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)? as usize;
        if length != bytes.len() - BASIC {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        let flags = bytes[17];
        match TransportId::from_bytes(&bytes[BASIC..]) {
            Some((port, [])) => Ok(Self {
                key,
                action_key,
                unregister: flags & 0x02 != 0,
                persist: flags & 0x01 != 0,
                target_port: u16_at(bytes, 18).unwrap_or(0),
                port,
            }),
            _ => Err(Sense::invalid_field_in_parameter_list(BASIC as u16)),
        }
    }
}

/// Returns the two reservation keys and byte 20, which has the flags in the basic parameter list.
fn head(bytes: &[u8]) -> Result<(u64, u64, u8), Sense> {
    let read = || {
        let flags = u8_at(bytes, 20)?;
        (bytes.len() >= BASIC).then_some((u64_at(bytes, 0)?, u64_at(bytes, 8)?, flags))
    };
    read().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)
}

fn ports(bytes: &[u8]) -> Result<Vec<TransportId>, Sense> {
    let length = u32_at(bytes, BASIC).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)? as usize;
    let mut rest = &bytes[BASIC + 4..];
    if length != rest.len() {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    let mut ports = Vec::new();
    while !rest.is_empty() {
        let at = u16::try_from(bytes.len() - rest.len()).unwrap_or(u16::MAX);
        let read = TransportId::from_bytes(rest).filter(|_| ports.len() < MOST_PORTS);
        let Some((port, after)) = read else {
            return Err(Sense::invalid_field_in_parameter_list(at));
        };
        ports.push(port);
        rest = after;
    }
    Ok(ports)
}

/// The length in bytes of a parameter list without TransportIDs.
const BASIC: usize = 24;
/// Maximum number of TransportIDs in a parameter list: more ports than a cluster has nodes.
const MOST_PORTS: usize = 256;
const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;
const APTPL: u8 = 0x01;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn port(number: usize) -> TransportId {
        TransportId(format!("iqn.2026-11.io.forebay:host,i,0x{number:012x}"))
    }

    #[test]
    fn lists_read_back() {
        let plain = OutParameters { key: 1, action_key: 2, persist: true, ..Default::default() };
        assert_eq!(plain.to_bytes().len(), 24);
        assert_eq!(OutParameters::from_bytes(&plain.to_bytes()), Ok(plain.clone()));
        let ports = Some(vec![port(1), port(2)]);
        let with = OutParameters { all_target_ports: true, ports, ..plain };
        assert_eq!(OutParameters::from_bytes(&with.to_bytes()), Ok(with));
        let moved = MoveParameters {
            key: 1,
            action_key: 2,
            unregister: true,
            persist: false,
            target_port: 7,
            port: port(3),
        };
        assert_eq!(MoveParameters::from_bytes(&moved.to_bytes()), Ok(moved));
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let length = Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        let list = |ports| OutParameters { key: 1, ports, ..Default::default() }.to_bytes();
        assert_eq!(OutParameters::from_bytes(&list(None)[..23]), length);
        assert_eq!(OutParameters::from_bytes(&[list(None), vec![0]].concat()), length);
        let with = list(Some(vec![port(1)]));
        assert_eq!(OutParameters::from_bytes(&with[..with.len() - 1]), length);
        assert_eq!(OutParameters::from_bytes(&with[..26]), length);
        let mut inner = with;
        inner[31] = 252;
        let sense = OutParameters::from_bytes(&inner).unwrap_err();
        assert_eq!(sense, Sense::invalid_field_in_parameter_list(28));
    }

    /// In CVE-2025-57275, another target accepted more registrants than its array had space for.
    #[test]
    fn no_list_names_more_ports_than_there_is_room_for() {
        let list = |count| {
            let ports = Some((0..count).map(port).collect());
            OutParameters { ports, ..Default::default() }.to_bytes()
        };
        assert!(OutParameters::from_bytes(&list(MOST_PORTS)).is_ok());
        assert!(OutParameters::from_bytes(&list(MOST_PORTS + 1)).is_err());
    }

    proptest! {
        #[test]
        fn hostile_lists_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = OutParameters::from_bytes(&bytes);
            let _ = MoveParameters::from_bytes(&bytes);
        }
    }
}
