//! Remote units: converts settings to a session, and handles a node that cannot be reached.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ::names::VolumeName;
use config::{
    ChapCredentialSettings, Digest, FarVolumeAddress, IscsiName, RemoteLayerSettings, RemoteTls,
    certificates::{self, FarSettingsOrigin},
    login_rules,
};
use control::Failure;
use initiator::{Error, Locate, RemoteVolume};
use iscsi::{
    keys::{DigestPolicy, NegotiationOffer},
    login::LoginFailure,
    pdu::LoginStatus,
};
use transport::SocketOptions;
use volume::Geometry;

use crate::congestion::congestion;

/// The address and identity of a far volume, as the log of its cache has recorded them.
#[derive(Clone, Debug)]
pub struct RecordedFarVolume {
    /// The identity that the remote unit reports.
    pub identity: String,
    /// The size and abilities of the unit.
    pub geometry: Geometry,
}

/// The identity with which this process logs in to far volumes.
#[derive(Clone, Debug)]
pub struct Us {
    pub initiator_name: IscsiName,
    /// A name that stays the same for this session over restarts. The node then ends the session that a killed
    /// process has left, before a late command of it can do harm. `None`: a temporary session, which ends no
    /// other.
    pub lasting: Option<String>,
}

/// A naming service, as far as a stack needs it: it finds far volumes that the settings name without an address.
pub trait FindFarVolume: Send + Sync {
    /// Returns the object that an initiator asks for the location of `volume` before each connect. With `tls` it
    /// returns portals with TLS only, else portals without TLS only.
    fn finder(self: Arc<Self>, volume: VolumeName, tls: bool) -> Arc<dyn Locate>;
}

/// Returns the settings of the session that a remote layer asks for. `names` finds a volume that the layer names
/// without an address.
///
/// # Errors
/// The layer's `url` cannot be used, or it is a name and `names` is `None`.
pub fn session(
    remote: &RemoteLayerSettings,
    us: &Us,
    names: Option<Arc<dyn FindFarVolume>>,
) -> Result<initiator::Settings, Failure> {
    let mut session = match remote.url.parse().map_err(Failure::settings)? {
        FarVolumeAddress::At(url) => initiator::Settings::from_url(&url).ok_or_else(|| {
            Failure::settings(format!("{url} names no target")).remedy(
                "write `url = \"iscsi://HOST/TARGET/LUN\"`; `forebay ls iscsi://HOST` \
                 lists the targets",
            )
        })?,
        FarVolumeAddress::Named(volume) => {
            let names = names.ok_or_else(|| {
                Failure::settings(format!("there is no naming service to locate {volume}"))
                    .remedy("add a [names] table to the settings")
            })?;
            let locate = names.finder(volume, remote.tls.is_some());
            // Leave the address empty: the initiator asks the naming service for the location each time it connects.
            let nowhere = initiator::Settings::new("", "", 0);
            initiator::Settings { locate: Some(locate), ..nowhere }
        }
    };
    session.initiator_name.clone_from(&us.initiator_name.0);
    if let Some(lasting) = &us.lasting {
        session.isid = initiator::Settings::lasting_isid(lasting);
    }
    session.chap = login_rules::chap(remote);
    session.tls = remote.tls.as_deref().map(RemoteTls::client);
    session.offer = NegotiationOffer {
        header_digest: digest(remote.header_digest),
        data_digest: digest(remote.data_digest),
        compression: remote.compression.method().into_iter().collect(),
        ..session.offer
    };
    session.congestion = congestion(&remote.congestion);
    session.socket = SocketOptions::buffers(remote.socket_buffer.map(|size| size.0 as usize));
    session.reserve = remote.reserve;
    session.queue_depth = remote.queue_depth.into();
    session.connections = remote.connections;
    session.error_recovery_level = remote.error_recovery_level;
    session.connect_time_out = remote.connect_timeout.0;
    session.login_time_out = remote.login_timeout.0;
    session.command_time_out = remote.command_timeout.0;
    session.give_up_after = remote.give_up_after.0;
    session.timing.ping_after = remote.ping_interval.0;
    Ok(session)
}

/// Connects to the node. If it cannot be reached, continues without it if a log knows the volume, otherwise
/// waits for it up to `start_timeout`.
pub async fn open(
    remote: &RemoteLayerSettings,
    us: &Us,
    known: Option<RecordedFarVolume>,
    names: Option<Arc<dyn FindFarVolume>>,
) -> Result<Arc<RemoteVolume>, Failure> {
    let session = session(remote, us, names)?;
    let begun = Instant::now();
    let mut is_reported = false;
    loop {
        let error = match RemoteVolume::connect(session.clone()).await {
            Ok(volume) => {
                if is_reported {
                    tracing::info!(url = remote.url, "the node answers");
                }
                return Ok(Arc::new(volume));
            }
            Err(error) => error,
        };
        if let Some(known) = known.clone() {
            tracing::warn!(
                url = remote.url, %error,
                remedy = "nothing has to be done unless it lasts: start the node, or correct `url`; \
                 `forebay status` shows when it answers",
                "the node cannot be reached; continuing with the log"
            );
            let volume = RemoteVolume::open_lazy(session, known.geometry, known.identity);
            return Ok(Arc::new(volume));
        }
        if !may_pass(&error) || begun.elapsed() >= remote.start_timeout.0 {
            let mut failure = refusal(remote, &error);
            if matches!(error, Error::Login(_)) {
                failure.message += &format!(" (we are {})", us.initiator_name);
            }
            return Err(failure);
        }
        if !std::mem::replace(&mut is_reported, true) {
            let at_most = remote.start_timeout;
            tracing::warn!(
                url = remote.url, %error, %at_most,
                remedy = "start the node, or correct `url`; without an answer, the start fails after \
                 `start_timeout`",
                "the node cannot be reached; waiting for it"
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Pause between two attempts to connect at the start.
const PAUSE: Duration = Duration::from_millis(500);

/// Returns true if the error may disappear without an intervention.
pub fn may_pass(error: &Error) -> bool {
    // Both gateways of a pair answer with this status until one of them serves the volume.
    let unavailable = LoginFailure::Refused(LoginStatus::ServiceUnavailable);
    if matches!(error, Error::Login(failure) if *failure == unavailable) {
        return true;
    }
    !matches!(
        error,
        Error::Tls(_)
            | Error::Login(_)
            | Error::Redirected(_)
            | Error::Unit(_)
            | Error::Changed(_)
            | Error::Fenced(_)
    )
}

/// Returns the message and the remedy for a remote unit that cannot be used.
pub fn refusal(remote: &RemoteLayerSettings, error: &Error) -> Failure {
    let RemoteLayerSettings { url, named, .. } = remote;
    let portal = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    let remedy = match error {
        Error::NotLocated(_) => {
            "see `forebay names`; the node must announce the volume, and a seed of this process must know it".to_owned()
        }
        Error::Closed if remote.tls.is_some() => {
            "see the events of the target about this connection".to_owned()
        }
        Error::Closed => {
            let ours = match named {
                FarSettingsOrigin::Options => "give --ca FILE",
                FarSettingsOrigin::Settings => "this needs it, too",
            };
            format!("see the events of the target; if its portal has `tls`, {ours}")
        }
        Error::Connect { .. } | Error::TimedOut(_) | Error::Io(_) => {
            let address = match named {
                FarSettingsOrigin::Options => format!("the address in {url}"),
                FarSettingsOrigin::Settings => "the address in `url`".to_owned(),
            };
            format!("start the target there, or correct {address}")
        }
        Error::Tls(distrust) => certificates::remedy(distrust.cause, *named),
        Error::Login(LoginFailure::Refused(LoginStatus::AuthenticationFailure)) => {
            authentication_remedy(remote)
        }
        Error::Login(LoginFailure::Proof(_)) => match named {
            FarSettingsOrigin::Options => {
                "correct the name in --mutual or the secret in --mutual-secret-file".to_owned()
            }
            FarSettingsOrigin::Settings => {
                "set `mutual` to the name and the secret of the target".to_owned()
            }
        },
        Error::Login(LoginFailure::Refused(
            LoginStatus::ServiceUnavailable | LoginStatus::OutOfResources,
        )) => "see `forebay status` there: the target is not served now, or cannot accept more sessions"
            .to_owned(),
        Error::Login(_) => {
            let us = match &remote.user {
                Some(proof) => format!("the user {} and this initiator", proof.name),
                None => "this initiator".to_owned(),
            };
            format!(
                "check that the target has that name and that its `allow` admits {us}: `forebay ls {portal}` \
                 shows the targets, and the target's events name the initiator that was refused"
            )
        }
        Error::Unit(_) => format!("see which units there are: `forebay ls {portal}`"),
        Error::Fenced(_) => "see `forebay claim show` at the node".to_owned(),
        Error::NotServed(_) => {
            "see `forebay status` there; name the portal that serves the unit now, or both".to_owned()
        }
        Error::OtherGroup { .. } => "name portals of one group, with one tag".to_owned(),
        Error::Changed(_) => "set `url` to the unit that was there before".to_owned(),
        Error::Dropped(_) | Error::Redirected(_) => {
            "see the events of the target, or try with --log-level debug".to_owned()
        }
    };
    Failure::new(format!("cannot use {url}: {error}")).remedy(remedy)
}

/// Returns the remedy for a target that does not accept our authentication. It names the options or keys that
/// the user has used.
fn authentication_remedy(remote: &RemoteLayerSettings) -> String {
    let Some(proof) = &remote.user else {
        return match remote.named {
            FarSettingsOrigin::Options => "authenticate: --user NAME --secret-file FILE",
            FarSettingsOrigin::Settings => {
                "give this remote layer a `user` with the name and the secret that the target wants"
            }
        }
        .to_owned();
    };
    let ChapCredentialSettings { name, secret_file, secret_env, .. } = proof;
    let secret = match (secret_file, secret_env) {
        (Some(file), _) => format!("the file {}", file.display()),
        (None, Some(variable)) => format!("the environment variable {variable}"),
        (None, None) => "the settings".to_owned(),
    };
    let place = match remote.named {
        FarSettingsOrigin::Options => "--user",
        FarSettingsOrigin::Settings => "`user` of the remote layer",
    };
    format!(
        "the target does not know the user {name}, or its secret is not the one in {secret}: correct {place}, or the \
         secret"
    )
}

/// Converts the digest setting to the offers of RFC 7143, 13.1.
pub fn digest(digest: Digest) -> DigestPolicy {
    match digest {
        Digest::Never => DigestPolicy::Off,
        Digest::Accept => DigestPolicy::Allow,
        Digest::Prefer => DigestPolicy::Prefer,
        Digest::Require => DigestPolicy::Require,
    }
}
