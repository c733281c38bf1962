//! The layer `remote`: a logical unit of another iSCSI target.

use serde::Deserialize;

use crate::{
    access::{ChapCredentialSettings, ChapHashSetting},
    certificates::FarSettingsOrigin,
    connection_rules::{chap, proof, socket_buffer},
    names::FarVolumeAddress,
    problem::KeyPath,
    quantity::{Size, TimeSpan},
    rule::{SettingsRuleResult, range, required, wrong},
    tls::RemoteTls,
    value_types::{CongestionSetting, Digest, LinkCompressionSetting},
};

/// Settings of a remote layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteLayerSettings {
    /// `iscsi://host[:port]/target-name/lun`; required.
    pub url: String,
    /// The CHAP credential with which we authenticate.
    pub user: Option<ChapCredentialSettings>,
    /// The CHAP credential of the target, which it has to prove.
    pub mutual: Option<ChapCredentialSettings>,
    /// TLS: every connection begins with a handshake.
    pub tls: Option<Box<RemoteTls>>,
    /// The CHAP algorithms that are proposed, the preferred one first.
    pub chap: Vec<ChapHashSetting>,
    /// Whether a unit that does not support claims is reserved for the cache above.
    pub reserve: bool,
    /// Maximum number of commands in flight.
    pub queue_depth: u16,
    /// Number of connections of the session.
    pub connections: u16,
    /// The highest error recovery level that is proposed: 0, 1 or 2.
    pub error_recovery_level: u8,
    /// Header digests.
    pub header_digest: Digest,
    /// Data digests.
    pub data_digest: Digest,
    /// The compression methods that are proposed.
    pub compression: LinkCompressionSetting,
    /// The congestion control of the session's connections.
    pub congestion: CongestionSetting,
    /// Send and receive buffer of each connection's socket; if left out, the kernel tunes them.
    pub socket_buffer: Option<Size>,
    /// Time-out of a TCP connect.
    pub connect_timeout: TimeSpan,
    /// Time-out of a login.
    pub login_timeout: TimeSpan,
    /// Time-out of a command.
    pub command_timeout: TimeSpan,
    /// How long a command waits for a reconnect before it fails.
    pub give_up_after: TimeSpan,
    /// Idle time after which the target is pinged.
    pub ping_interval: TimeSpan,
    /// How long a start waits for a target that cannot be reached, if no local state describes the volume.
    pub start_timeout: TimeSpan,
    /// Whether these values come from the command line or from a settings file.
    #[serde(skip)]
    pub named: FarSettingsOrigin,
}

impl Default for RemoteLayerSettings {
    fn default() -> Self {
        Self {
            url: String::new(),
            user: None,
            mutual: None,
            tls: None,
            chap: ChapHashSetting::ALL.to_vec(),
            reserve: false,
            queue_depth: 128,
            connections: 1,
            error_recovery_level: 2,
            header_digest: Digest::default(),
            data_digest: Digest::default(),
            compression: LinkCompressionSetting::default(),
            congestion: CongestionSetting::default(),
            socket_buffer: None,
            connect_timeout: TimeSpan::seconds(5),
            login_timeout: TimeSpan::seconds(15),
            command_timeout: TimeSpan::seconds(30),
            give_up_after: TimeSpan::seconds(15),
            ping_interval: TimeSpan::seconds(5),
            start_timeout: TimeSpan::seconds(60),
            named: FarSettingsOrigin::default(),
        }
    }
}

impl RemoteLayerSettings {
    /// Checks the keys at `at`.
    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        required(
            at,
            "url",
            self.url.is_empty(),
            "\"iscsi://10.0.0.2/iqn.2026-11.com.example:disk1/0\"",
        )?;
        match self.url.parse::<FarVolumeAddress>() {
            Ok(FarVolumeAddress::Named(_)) => {}
            Ok(FarVolumeAddress::At(url)) if url.target.is_some() => {}
            Ok(FarVolumeAddress::At(_)) => {
                return wrong(
                    at.key("url"),
                    format!("{} names no target", self.url),
                    format!("add one; `forebay ls {}` shows which there are", self.url),
                );
            }
            Err(error) => {
                let remedy = "write iscsi://HOST[:PORT]/TARGET-NAME/LUN, or gln:VOLUME";
                return wrong(at.key("url"), error, remedy);
            }
        }
        self.user.iter().try_for_each(|user| proof(user, &at.key("user")))?;
        self.mutual.iter().try_for_each(|mutual| proof(mutual, &at.key("mutual")))?;
        if self.mutual.is_some() && self.user.is_none() {
            let message = "the target authenticates itself only to authenticated initiators";
            return wrong(at.key("mutual"), message, "add `user`, or remove `mutual`");
        }
        self.tls.iter().try_for_each(|tls| remote_tls(tls, &at.key("tls")))?;
        chap(&self.chap, at)?;
        range(at, "queue_depth", self.queue_depth, 1, 1024)?;
        socket_buffer(at, self.socket_buffer)?;
        range(at, "connections", self.connections, 1, 8)?;
        range(at, "error_recovery_level", self.error_recovery_level, 0, 2)?;
        let (least, most) = (TimeSpan::millis(100), TimeSpan::seconds(3600));
        range(at, "connect_timeout", self.connect_timeout, least, most)?;
        range(at, "login_timeout", self.login_timeout, least, most)?;
        range(at, "command_timeout", self.command_timeout, least, most)?;
        range(at, "give_up_after", self.give_up_after, least, most)?;
        range(at, "ping_interval", self.ping_interval, TimeSpan::seconds(1), most)
    }
}

fn remote_tls(tls: &RemoteTls, at: &KeyPath) -> SettingsRuleResult {
    required(at, "ca", tls.ca.as_os_str().is_empty(), "\"ca.pem\"")?;
    required(at, "key", tls.certificate.is_some() && tls.key.is_none(), "\"host.key\"")?;
    required(at, "certificate", tls.key.is_some() && tls.certificate.is_none(), "\"host.pem\"")
}
