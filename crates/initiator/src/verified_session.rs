//! A session with the unit that is expected, and the way to one: data must never go to another unit.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use volume::{Geometry, Holding};

use crate::{
    Error, Settings, UnitDescription, probe::probe, session_io::SessionIo,
    session_state::RemoteSessionState,
};

/// The unit that is expected behind the link.
#[derive(Clone, Debug)]
pub(crate) struct ExpectedUnit {
    pub(crate) identity: String,
    pub(crate) block_size: u32,
    pub(crate) blocks: u64,
}

/// A session with the unit that is expected.
pub(crate) struct VerifiedSession {
    /// Where it was found.
    pub(crate) settings: Arc<Settings>,
    pub(crate) wires: SessionIo,
    pub(crate) facts: UnitDescription,
}

impl ExpectedUnit {
    pub(crate) fn new(identity: String, geometry: &Geometry) -> Self {
        Self { identity, block_size: geometry.block_size, blocks: geometry.blocks }
    }

    /// Is this the unit? Data must never go to another one.
    fn check(&self, facts: &UnitDescription) -> Result<(), Error> {
        let found = Self::new(facts.identity.clone(), &facts.geometry);
        if found.identity != self.identity {
            let (found, expected) = (found.identity, &self.identity);
            let reason = format!("the remote unit is {found}, and {expected} is expected");
            return Err(Error::Changed(reason.into()));
        }
        // One that has grown still has all that was there.
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
    /// A login ends the session that was lost only in the same portal group (RFC 7143, 6.3.5): at
    /// another one that may still perform what was sent again here, after newer writes.
    fn check_group(&self, before: Option<u16>) -> Result<(), Error> {
        match (self.wires.tpgt, before) {
            (Some(tag), Some(before)) if tag != before => {
                Err(Error::OtherGroup { portal: self.wires.portal.as_str().into(), tag, before })
            }
            _ => Ok(()),
        }
    }
}

/// Connects where the unit is, logs in, asks it what it is. Of several places the first that answers.
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
    let mut wires = SessionIo::open(&settings, false).await?;
    let probing = timeout(settings.login_time_out, probe(&mut wires, &settings)).await;
    let facts = probing.map_err(|_| Error::TimedOut("what the unit is"))??;
    Ok(VerifiedSession { settings: Arc::new(settings), wires, facts })
}

/// After a pause connects and takes the session up, if it is with the unit that is expected, in the portal group of the
/// last one if there is a choice, and if what we claim of it is granted.
pub(crate) async fn attempt(
    wait: Duration,
    settings: Arc<Settings>,
    (expected, group): (ExpectedUnit, Option<u16>),
    shared: Arc<RemoteSessionState>,
) -> Result<VerifiedSession, Error> {
    sleep(wait).await;
    // Not even a login: it would end the session of a rightful owner of the same name.
    shared.claimed.check()?;
    let mut failed = Error::Closed;
    for place in settings.places().await? {
        match attempt_at(place, &expected, group, &shared).await {
            Ok(live) => return Ok(live),
            // It was the last word, wherever it was said.
            Err(error @ Error::Fenced(_)) => return Err(error),
            // Another unit is worth more words than a place where there is none.
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
    // Nothing is claimed of another unit.
    if taken.is_ok() {
        let presenting = shared.claimed.present(&mut live.wires, &live.settings);
        let presented = timeout(live.settings.login_time_out, presenting).await;
        taken = presented.unwrap_or(Err(Error::TimedOut("the claim")));
    }
    // A claim that is granted shuts the sessions before this one out, whichever group they are at.
    if taken.is_ok() && shared.claimed.holding() != Holding::Held {
        taken = live.check_group(group);
    }
    match taken {
        Ok(()) => Ok(live),
        Err(error) => {
            live.wires.log_out().await;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_unit_is_told_by_its_name_and_size() {
        let facts = UnitDescription {
            identity: "naa.1".into(),
            vendor: String::new(),
            product: String::new(),
            geometry: Geometry::with_blocks(100),
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
