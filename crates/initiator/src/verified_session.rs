//! Connects to a unit and verifies that it is the expected one, since commands must never be sent to another unit.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use volume::{Geometry, Holding};

use crate::{
    Error, Settings, UnitDescription, probe::probe, session_io::SessionIo,
    session_state::RemoteSessionState, unit_description::UnitKind,
};

#[derive(Clone, Debug)]
pub(crate) struct ExpectedUnit {
    pub(crate) kind: UnitKind,
    pub(crate) identity: String,
    pub(crate) block_size: u32,
    pub(crate) blocks: u64,
}

/// A session with a unit that was verified to be the expected one.
pub(crate) struct VerifiedSession {
    /// The settings with the location at which the unit was found.
    pub(crate) settings: Arc<Settings>,
    pub(crate) io: SessionIo,
    pub(crate) facts: UnitDescription,
}

impl ExpectedUnit {
    /// Returns what is expected of a disk.
    pub(crate) fn new(identity: String, geometry: &Geometry) -> Self {
        let (block_size, blocks) = (geometry.block_size, geometry.blocks);
        Self { kind: UnitKind::Disk, identity, block_size, blocks }
    }

    /// Returns what is expected of the unit after the first login.
    pub(crate) fn of(facts: &UnitDescription) -> Self {
        Self { kind: facts.kind(), ..Self::new(facts.identity.clone(), &facts.geometry) }
    }

    /// Returns an error if a unit with this description is not the expected one, since data must never be sent to
    /// another unit.
    fn check(&self, facts: &UnitDescription) -> Result<(), Error> {
        let found = Self::of(facts);
        if found.kind != self.kind {
            let reason = format!("the remote unit {} has another device type", found.identity);
            return Err(Error::Changed(reason.into()));
        }
        if found.identity != self.identity {
            let (found, expected) = (found.identity, &self.identity);
            let reason = format!("the remote unit is {found}, and {expected} is expected");
            return Err(Error::Changed(reason.into()));
        }
        // Accept a unit that has grown, since it still has all its former blocks.
        if found.block_size != self.block_size || found.blocks < self.blocks {
            let reason = format!(
                "the remote unit {} has {} blocks of {} bytes, and {} of {} or more are expected",
                self.identity, found.blocks, found.block_size, self.blocks, self.block_size
            );
            return Err(Error::Changed(reason.into()));
        }
        Ok(())
    }
}

impl VerifiedSession {
    /// Returns an error if this session's portal belongs to another portal group than the lost session. A login ends
    /// the lost session only if both are in the same group (RFC 7143, 6.3.5). In another group, the lost session may
    /// still perform its old commands after newer writes.
    fn check_group(&self, before: Option<u16>) -> Result<(), Error> {
        match (self.io.tpgt, before) {
            (Some(tag), Some(before)) if tag != before => {
                Err(Error::OtherGroup { portal: self.io.portal.as_str().into(), tag, before })
            }
            _ => Ok(()),
        }
    }
}

/// Connects, logs in and reads the unit's description. Tries the portals in order until one succeeds.
pub(crate) async fn connect(settings: &Settings) -> Result<VerifiedSession, Error> {
    let mut failed = Error::Closed;
    for place in settings.places().await? {
        match connect_to(place).await {
            Ok(live) => return Ok(live),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn connect_to(settings: Settings) -> Result<VerifiedSession, Error> {
    let mut io = SessionIo::open(&settings, false).await?;
    let probing = timeout(settings.login_time_out, probe(&mut io, &settings)).await;
    let facts = probing.map_err(|_| Error::TimedOut("the description of the unit"))??;
    Ok(VerifiedSession { settings: Arc::new(settings), io, facts })
}

/// Waits for `wait`, then makes one attempt to connect. Returns the session if its unit is the expected one, if its
/// portal is in the group of the last session (if there are several portals), and if our claim is granted.
pub(crate) async fn attempt(
    wait: Duration,
    settings: Arc<Settings>,
    (expected, group): (ExpectedUnit, Option<u16>),
    shared: Arc<RemoteSessionState>,
) -> Result<VerifiedSession, Error> {
    sleep(wait).await;
    // Do not even log in after a refused claim: the login could end a session of the rightful owner if that uses the
    // same initiator name.
    shared.claimed.check()?;
    let mut failed = Error::Closed;
    for place in settings.places().await? {
        match attempt_at(place, &expected, group, &shared).await {
            Ok(live) => return Ok(live),
            // Try no other portals: the unit has refused the claim, which is final.
            Err(error @ Error::Fenced(_)) => return Err(error),
            // Keep the error which says that another unit was found: the operator needs it more than the error of a
            // portal without an answer.
            Err(error) if !matches!(failed, Error::Changed(_)) => failed = error,
            Err(_) => {}
        }
    }
    Err(failed)
}

async fn attempt_at(
    settings: Settings,
    expected: &ExpectedUnit,
    group: Option<u16>,
    shared: &RemoteSessionState,
) -> Result<VerifiedSession, Error> {
    let mut live = connect_to(settings).await?;
    let mut taken = expected.check(&live.facts);
    // Present the claim only now that the unit is known to be the expected one.
    if taken.is_ok() {
        let presenting = shared.claimed.present(&mut live.io, &live.settings);
        let presented = timeout(live.settings.login_time_out, presenting).await;
        taken = presented.unwrap_or(Err(Error::TimedOut("the claim")));
    }
    // Check the portal group only without a granted claim: granting a claim fences all earlier sessions, whatever their
    // group.
    if taken.is_ok() && shared.claimed.holding() != Holding::Held {
        taken = live.check_group(group);
    }
    match taken {
        Ok(()) => Ok(live),
        Err(error) => {
            live.io.log_out().await;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_unit_is_recognized_by_its_name_or_size() {
        let facts = UnitDescription {
            identity: "naa.1".into(),
            vendor: String::new(),
            product: String::new(),
            geometry: Geometry::with_blocks(100),
            object_drive: None,
            fua: true,
            max_transfer_blocks: None,
            orders_flushes: false,
            write_same_unmap_blocks: None,
        };
        let expected = ExpectedUnit::new("naa.1".into(), &facts.geometry);
        assert!(expected.check(&facts).is_ok());
        let other = ExpectedUnit { identity: "naa.2".into(), ..expected.clone() };
        let message = other.check(&facts).unwrap_err().to_string();
        assert!(message.contains("naa.1") && message.contains("naa.2"), "{message}");
        assert!(
            ExpectedUnit { blocks: 99, ..expected.clone() }.check(&facts).is_ok(),
            "it has grown"
        );
        let shrunk = ExpectedUnit { blocks: 101, ..expected };
        let message = shrunk.check(&facts).unwrap_err().to_string();
        assert!(message.contains("100") && message.contains("101"), "{message}");
    }
}
