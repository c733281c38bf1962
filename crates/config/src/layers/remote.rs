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
    /// The far unit: iscsi://HOST[:PORT]/TARGET-NAME/LUN, or gln:VOLUME, which `[names]` finds wherever it is.
    /// Several portals of one group, or of the gateways of a pair, are separated by commas:
    /// iscsi://HOST,HOST/TARGET-NAME/LUN; they are tried in turn. Required.
    pub url: String,
    /// The CHAP credential with which we authenticate, with the secret in a file or in a variable (`secret_env`).
    pub user: Option<ChapCredentialSettings>,
    /// The CHAP credential that the target has to prove (mutual CHAP), with another secret.
    pub mutual: Option<ChapCredentialSettings>,
    /// TLS: every connection begins with a TLS 1.3 handshake, as a portal with `tls` requires, also where the far
    /// side redirects us: `[target.unit.stack.remote.tls]`.
    pub tls: Option<Box<RemoteTls>>,
    /// The CHAP hashes that are proposed, the preferred one first. tgt uses the number of sha-256 (7) for SHA-1:
    /// propose only "md5" to it.
    pub chap: Vec<ChapHashSetting>,
    /// Whether a unit that does not support claims, such as a target of another make, is reserved for the cache above
    /// (write exclusive, registrants only, over a loss of power). If it cannot be reserved, the start fails.
    pub reserve: bool,
    /// Maximum number of commands in flight, 1 to 1024. The far side may allow fewer (`queue_depth` in `[iscsi]` of a
    /// node: 128).
    pub queue_depth: u16,
    /// Number of connections of the session, 1 to 8, if the far side allows as many (MaxConnections). Commands go to
    /// the connection with the least work; if one stalls or breaks, the others go on.
    pub connections: u16,
    /// The highest ErrorRecoveryLevel that is proposed. 0: the session is made anew, and commands are sent again. 1:
    /// damaged data is also requested again. 2: commands of a broken connection also continue on another one.
    pub error_recovery_level: u8,
    /// Header digests, as for targets: "never", "accept", "prefer" or "require".
    pub header_digest: Digest,
    /// Data digests: the same four values.
    pub data_digest: Digest,
    /// Compression of the link: "none", "lz4" (fast) or "zstd" (smaller). The far side must be a Forebay target that
    /// allows it in `[iscsi]`; with any other target the session has no compression, and one event reports it.
    pub compression: LinkCompressionSetting,
    /// The congestion control of TCP towards the far side, as in `[iscsi]`.
    pub congestion: CongestionSetting,
    /// Send and receive buffer of each connection's socket, as in `[iscsi]`.
    pub socket_buffer: Option<Size>,
    /// Maximum time of a TCP connect.
    pub connect_timeout: TimeSpan,
    /// Maximum time of a login.
    pub login_timeout: TimeSpan,
    /// Maximum time of a command before it is aborted. If the abort is not answered within 5s, the connection is
    /// given up.
    pub command_timeout: TimeSpan,
    /// How long calls wait for a lost connection. After that, calls fail at once until the connection is back.
    pub give_up_after: TimeSpan,
    /// Time without a sign of life after which the far side is pinged, 1s or more. The connection is given up 5s
    /// after the ping, or on a slow link after the last byte that the answer had to wait for. Acknowledgments of the
    /// far host for a process that hangs do not count.
    pub ping_interval: TimeSpan,
    /// How long a start waits for a far side that is away, if no log knows the volume yet. With a log that knows it,
    /// the gateway starts at once and serves what it has.
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
