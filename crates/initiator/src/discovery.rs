//! Discovery: the targets of a portal, and the units of a target.

use scsi::{Lun, PrimaryCommand, ScsiStatus};

use crate::{
    Error, Settings, UnitDescription,
    probe::probe,
    session_io::SessionIo,
    url::{is_iscsi_name, parse_portal},
};
use iscsi::session::initiator::DataPhase;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiscoveredTarget {
    pub name: String,
    /// The addresses at which the target can be reached: `host:port`, IPv6 in brackets. If the portal has reported
    /// none, this is the address of the portal itself.
    pub portals: Vec<String>,
}

/// A unit that a target has listed in REPORT LUNS.
#[derive(Clone, Debug)]
pub struct ListedUnit {
    pub lun: u16,
    /// The properties of the unit, or the reason why they cannot be read.
    pub facts: Result<UnitDescription, Error>,
}

/// Asks the portal of the settings for the targets that this initiator may use (SendTargets=All). Ignores target and
/// LUN of the settings.
pub async fn discover(settings: &Settings) -> Result<Vec<DiscoveredTarget>, Error> {
    let mut socket = SessionIo::open(settings, true).await?;
    let answer = socket.text(bytes::Bytes::from_static(b"SendTargets=All\0")).await?;
    socket.log_out().await;
    parse_targets(&answer, &settings.portal)
}

/// Asks a target for its units, and each unit for its properties. Ignores `settings.lun`.
pub async fn list_units(settings: &Settings) -> Result<Vec<ListedUnit>, Error> {
    let mut settings = Settings { lun: 0, ..settings.clone() };
    let mut socket = SessionIo::open(&settings, false).await?;
    let luns = report_luns(&mut socket, &settings).await?;
    let mut units = Vec::with_capacity(luns.len());
    for lun in luns {
        settings.lun = lun;
        let facts = match probe(&mut socket, &settings).await {
            // This unit cannot be used, but the connection is intact, so ask the other units.
            Err(Error::Unit(reason)) => Err(Error::Unit(reason)),
            other => Ok(other?),
        };
        units.push(ListedUnit { lun, facts });
    }
    socket.log_out().await;
    Ok(units)
}

/// The allocation length of REPORT LUNS in bytes, which is enough for 2,047 units.
const REPORT_LUNS_BYTES: u32 = 16 * 1024;

async fn report_luns(socket: &mut SessionIo, settings: &Settings) -> Result<Vec<u16>, Error> {
    let allocation_length = REPORT_LUNS_BYTES;
    let cdb = PrimaryCommand::ReportLuns { select_report: 0, allocation_length }.encode();
    // A unit may answer the first commands of a new nexus with unit attention conditions.
    for _ in 0..crate::probe::MOST_UNIT_ATTENTIONS {
        let outcome =
            socket.execute(settings, cdb.clone(), DataPhase::In(allocation_length)).await?;
        if outcome.status == ScsiStatus::Good {
            return Ok(parse_luns(&outcome.data_in.concat()));
        }
    }
    Err(Error::unit("the target refuses REPORT LUNS"))
}

/// Parses REPORT LUNS parameter data (SPC-4, 6.33.2).
fn parse_luns(data: &[u8]) -> Vec<u16> {
    let Some((length, rest)) = data.split_first_chunk::<4>() else { return Vec::new() };
    let rest = rest.get(4..).unwrap_or_default();
    let length = (u32::from_be_bytes(*length) as usize).min(rest.len());
    let luns = rest[..length].as_chunks::<8>().0.iter();
    luns.filter_map(|&lun| Lun(u64::from_be_bytes(lun)).number()).collect()
}

/// Parses the answer to SendTargets (RFC 7143, appendix C): the addresses of a target follow its TargetName.
fn parse_targets(text: &[u8], asked: &str) -> Result<Vec<DiscoveredTarget>, Error> {
    let wrong = |what: &'static str| {
        Error::Dropped(iscsi::session::initiator::InitiatorSessionError::Protocol(what))
    };
    let mut targets: Vec<DiscoveredTarget> = Vec::new();
    for pair in text.split(|&byte| byte == 0).filter(|pair| !pair.is_empty()) {
        let pair = std::str::from_utf8(pair).map_err(|_| wrong("text that is not UTF-8"))?;
        match pair.split_once('=') {
            Some(("TargetName", name)) if is_iscsi_name(name) => {
                targets.push(DiscoveredTarget { name: name.to_owned(), portals: Vec::new() });
            }
            Some(("TargetName", _)) => return Err(wrong("an invalid target name")),
            Some(("TargetAddress", address)) => {
                // Remove the portal group tag, which follows the address after a comma: `host:port,tag`.
                let address = address.split_once(',').map_or(address, |(address, _)| address);
                parse_portal(address).map_err(|_| wrong("an invalid portal address"))?;
                let target = targets.last_mut().ok_or(wrong("an address before any target"))?;
                target.portals.push(address.to_owned());
            }
            // Ignore keys other than TargetName and TargetAddress, which RFC 7143 allows.
            Some(_) => {}
            None => return Err(wrong("text that is not key=value")),
        }
    }
    for target in targets.iter_mut().filter(|target| target.portals.is_empty()) {
        target.portals.push(asked.to_owned());
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_with_and_without_addresses() {
        let text = b"TargetName=iqn.x:a\0TargetAddress=10.0.0.1:3260,1\0\
                     TargetAddress=[::1]:3261,2\0TargetName=iqn.x:b\0";
        let targets = parse_targets(text, "node:3260").unwrap();
        assert_eq!(targets.len(), 2);
        assert_eq!(targets[0].portals, ["10.0.0.1:3260", "[::1]:3261"]);
        assert_eq!(targets[1].portals, ["node:3260"]);
        assert_eq!(parse_targets(b"", "node").unwrap(), []);
    }

    #[test]
    fn text_that_makes_no_sense_is_refused() {
        let wrong: [&[u8]; 6] = [
            b"TargetAddress=10.0.0.1:3260,1\0",
            b"TargetName=iqn.x:\x1b[2J\0",
            "TargetName=iqn.x:\u{202e}gpj\0".as_bytes(),
            b"TargetName\0",
            b"TargetName=iqn.x:a\0TargetAddress=a b\0",
            b"\xff=\0",
        ];
        for text in wrong {
            assert!(parse_targets(text, "node").is_err(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_list_of_units_with_a_wrong_length_is_read_to_its_end() {
        let mut data = vec![0, 0, 0xff, 0xff, 0, 0, 0, 0];
        data.extend_from_slice(&Lun::from_number(5).unwrap().0.to_be_bytes());
        data.extend_from_slice(&[0x01, 2, 0x03]);
        assert_eq!(parse_luns(&data), [5]);
        assert_eq!(parse_luns(&[0; 3]), []);
        assert_eq!(parse_luns(&[0, 0, 0, 8]), []);
    }
}
