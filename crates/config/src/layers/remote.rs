//! The settings of the layer `remote`, which is a logical unit of another iSCSI target.

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

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteLayerSettings {
    /// Far volume: iscsi://HOST[:PORT]/TARGET-NAME/LUN, or gln:VOLUME, which `[names]` finds at any node. Up to 8
    /// portals of one group, or of both gateways of a pair, are separated by commas
    /// (iscsi://HOST,HOST/TARGET-NAME/LUN) and tried in turn. Required.
    pub url: String,
    /// CHAP credential with which this process authenticates to the target: `name` with `secret_file` or `secret_env`.
    pub user: Option<ChapCredentialSettings>,
    /// CHAP credential that the target must prove (mutual CHAP). The secret must differ from that of `user`. Requires
    /// `user`.
    pub mutual: Option<ChapCredentialSettings>,
    /// TLS 1.3 for every connection, also to an address to which the target redirects:
    /// `[target.unit.stack.remote.tls]`. The portal must have `tls`, too. If left out: no TLS.
    pub tls: Option<Box<RemoteTls>>,
    /// CHAP hashes to propose, the preferred one first. tgt mistakes sha-256 (algorithm 7) for SHA-1: propose only
    /// "md5" to it.
    pub chap: Vec<ChapHashSetting>,
    /// If true, reserves a unit that does not support claims, such as a target of another make, for the cache above
    /// (persistent reservation: write exclusive, registrants only, kept over a power loss). If the reservation fails,
    /// the start fails.
    pub reserve: bool,
    /// Maximum number of commands in flight, 1 to 1024. The target may allow fewer (`queue_depth` in `[iscsi]` of a
    /// Forebay node).
    pub queue_depth: u16,
    /// Number of TCP connections of the session, 1 to 8; the target may allow fewer (MaxConnections). Each command goes
    /// to the connection with the least work. A connection that is silent for a third of a second while others answer
    /// is dropped and made again; the others take over its commands.
    pub connections: u16,
    /// Highest ErrorRecoveryLevel to propose, 0 to 2. At 0, an error ends the session, and commands are sent again on a
    /// new one. 1 also requests damaged data again. 2 also continues the commands of a broken connection on another.
    /// Most targets of other makes support only 0.
    pub error_recovery_level: u8,
    /// CRC32C digest of PDU headers: "never", "accept", "prefer" or "require", as in `[iscsi]`.
    pub header_digest: Digest,
    /// CRC32C digest of PDU data: "never", "accept", "prefer" or "require", as in `[iscsi]`.
    pub data_digest: Digest,
    /// Compression of the link: "none", "lz4" (fast; for about 1 Gbit/s) or "zstd" (smaller, more CPU; for slower
    /// links). `out_bytes` and `out_link_bytes` in the status show the gain. The target must be a Forebay process that
    /// allows it in `[iscsi]`; otherwise the session runs uncompressed, and one event reports it.
    pub compression: LinkCompressionSetting,
    /// TCP congestion control towards the target, with the values of `congestion` in `[iscsi]`. The kernel shows an
    /// ensemble as `fairtcp` (`fairtcp_2` in a second process). From a round trip of 1 ms on, the kernel paces a
    /// connection after its first output of more than ten segments.
    pub congestion: CongestionSetting,
    /// Send and receive buffer of each connection's socket, 16 KiB to 256 MiB, as in `[iscsi]`. If left out: the kernel
    /// tunes the buffers.
    pub socket_buffer: Option<Size>,
    /// Maximum time of a TCP connect, 100ms to 1h. With several portals it applies to each of them.
    pub connect_timeout: TimeSpan,
    /// Maximum time of a login, 100ms to 1h. With several portals it applies to each of them.
    pub login_timeout: TimeSpan,
    /// Maximum time of a command before it is aborted, 100ms to 1h. If the abort is not answered within 5s, the
    /// connection is closed.
    pub command_timeout: TimeSpan,
    /// How long calls wait for a lost connection, 100ms to 1h. After that, they fail at once until the connection is
    /// back. Without a cache above, hosts see errors after this time. A connect is tried again after 100 ms, then after
    /// longer pauses up to 5 s (1 s with several portals).
    pub give_up_after: TimeSpan,
    /// Silence of the target after which it is pinged, 1s to 1h. It counts as lost 5s after the ping (on a slow link,
    /// 5s after the last byte that the answer queues behind). TCP acknowledgments do not count: the kernel of a hung
    /// target sends them, too.
    pub ping_interval: TimeSpan,
    /// How long the first start waits for a target that is away. A gateway whose log has recorded the volume before
    /// starts at once and serves cached data.
    pub start_timeout: TimeSpan,
    /// Source of the values, the command line or a settings file; messages name options or keys
    /// accordingly.
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
                    format!("add one; `forebay ls {}` lists them", self.url),
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
