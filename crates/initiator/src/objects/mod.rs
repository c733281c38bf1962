//! An object drive behind an iSCSI session, used as an [`ObjectStore`].
//!
//! | state | after a lost session |
//! |---|---|
//! | a command that has the same effect when it is performed twice | it is signed and sent again |
//! | a command that [`Command::is_unrepeatable`] | its request tag is looked up (see `osd::RequestTag`) |
//! | acknowledged changes that were not flushed | if the boot epoch has changed, the next flush fails once |
//!
//! Each command is signed when it is sent, with a fresh nonce by the drive's clock. Each answer is checked: the integrity
//! check values of status and data, lengths, identifiers, and that attributes are those of the request.

mod key_chain;
mod credential;
mod drive_time;
mod refusal;
mod encoding;
mod signing;
mod answer;
mod unflushed;
mod exchange;
mod drive_facts;
mod requests;

use std::sync::Arc;

use object::{ObjectError, ObjectRequest, ObjectResult, ObjectStore};
use osd::security::SystemId;
use parking_lot::Mutex;
use volume::Reply;

pub use self::{
    credential::{Credential, Grant, GrantedCapability, OwnKeys},
    key_chain::KeyChain,
};
use self::{
    drive_facts::DriveFacts, drive_time::DriveTime, exchange::DriveLink, signing::Signer,
    unflushed::Unflushed,
};
use crate::{Error, RemoteSession, Settings, unit_description::UnitKind};

/// A drive that is reached through a session with all recovery levels. Calls wait at most as long as the time-outs of
/// the settings allow.
pub struct RemoteObjects {
    link: DriveLink,
    facts: Mutex<DriveFacts>,
    /// Held while a task reads clock, system ID and boot epoch, so that other tasks wait for its result.
    learning: tokio::sync::Mutex<()>,
    unflushed: Mutex<Unflushed>,
}

impl RemoteObjects {
    /// Logs in to an object drive, and reads its clock, its system ID and its boot epoch. `system` is the drive's
    /// system ID. An owner's credential needs it if the drive does not report it in its vital product data.
    ///
    /// # Errors
    /// The session cannot be opened, or the unit is not an object drive.
    pub async fn connect(
        settings: Settings,
        credential: Credential,
        system: Option<SystemId>,
    ) -> Result<Self, Error> {
        let session = RemoteSession::open_kind(settings, UnitKind::ObjectDrive).await?;
        let facts = session.facts().ok_or(Error::Closed)?;
        let reported = facts.object_drive.as_ref().and_then(|drive| drive.system_id);
        let signer = Signer { time: DriveTime::new()?, state: session.shared() };
        let (signer, system) = (Arc::new(signer), Mutex::new(system.or(reported)));
        Ok(Self {
            link: DriveLink { session, credential, signer, system },
            facts: Mutex::new(DriveFacts::default()),
            learning: tokio::sync::Mutex::default(),
            unflushed: Mutex::default(),
        })
    }

    #[must_use]
    pub fn session(&self) -> &RemoteSession {
        &self.link.session
    }

    #[must_use]
    pub const fn credential(&self) -> &Credential {
        &self.link.credential
    }

    /// Returns OSD SYSTEM ID of the drive, if it is known.
    #[must_use]
    pub fn system_id(&self) -> Option<SystemId> {
        *self.link.system.lock()
    }

    /// Returns the drive's time as the initiator estimates it.
    #[must_use]
    pub fn drive_time(&self) -> object::Timestamp {
        self.link.signer.time.now()
    }

    /// Returns a new request tag. A caller that keeps the tag and sets it in a request (`osd::REQUEST_TAG`) can send
    /// the request again after a restart: the drive performs a command with a tag once.
    pub async fn request_tag(&self) -> osd::RequestTag {
        // Tags go by the drive's clock: the drive refuses a tag that is older than those it has forgotten.
        self.learn_once().await;
        self.link.signer.time.tag()
    }

    /// Logs out, which takes at most 10 s. Does not flush. Later calls fail.
    pub async fn close(&self) {
        self.link.session.close().await;
    }

    /// Performs one command. See [`ObjectStore::perform`].
    ///
    /// # Errors
    /// See [`ObjectError`].
    pub async fn request(&self, request: ObjectRequest) -> ObjectResult {
        self.learn_once().await;
        let result = self.perform_known(request).await;
        match result {
            Err(ObjectError::Quota { used: 0, limit: 0 }) => Err(self.quota().await),
            other => other,
        }
    }
}

impl ObjectStore for RemoteObjects {
    fn perform(&self, request: ObjectRequest) -> Reply<'_, ObjectResult> {
        Reply::new(self.request(request))
    }
}
