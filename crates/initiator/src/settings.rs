//! The settings of an initiator: the target and the identity for the login, sizes and time-outs.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use iscsi::{
    Isid,
    keys::NegotiationOffer,
    login::chap::InitiatorChap,
    session::initiator::{CommandDistribution, ConnectionTiming},
};

use transport::{CongestionControl, SocketOptions, TlsClient};

use crate::{
    error::Error,
    locate::{IscsiLocation, Locate},
    url::Url,
};

/// The settings of a session with one unit of a target.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The portal's address, `host:port`, IPv6 in brackets.
    pub portal: String,
    /// Further portals of the same target, which are tried in this order if a login at the first one fails. They must
    /// belong to the same portal group: a login at one of them then ends a session that was lost at another, before
    /// commands are sent again. Or they must belong to gateways of which only one at a time accepts writes. Default:
    /// none.
    pub other_portals: Vec<String>,
    /// iSCSI name of the target.
    pub target: String,
    /// The logical unit, 0 to 16383.
    pub lun: u16,
    /// The service that is asked where the unit is before every attempt to connect. Its answer replaces `portal`,
    /// `other_portals`, `target` and `lun`. Default: none.
    pub locate: Option<Arc<dyn Locate>>,
    /// Our iSCSI name. Default `iqn.2026-11.io.forebay:initiator`; the caller should append a part that is unique to
    /// its host.
    pub initiator_name: String,
    /// Our alias, which the target shows to people.
    pub initiator_alias: Option<String>,
    /// Our part of the session identifier. A login with the same name, ISID and target replaces an earlier session (RFC
    /// 7143, 6.3.5), so that no late command of the earlier session is performed after ours. Default: random, so that
    /// two processes do not end each other's sessions. If a restarted process must end its former session, set an ISID
    /// that does not change ([`Settings::lasting_isid`]).
    pub isid: Isid,
    /// The CHAP credentials, and whether the target has to authenticate itself. Default: no CHAP.
    pub chap: Option<InitiatorChap>,
    /// TLS for every connection, including those after redirects: the login begins only after the handshake. Default:
    /// no TLS.
    pub tls: Option<TlsClient>,
    /// The parameters that are offered at login. `connections` and `error_recovery_level` replace the values of this
    /// offer.
    pub offer: NegotiationOffer,
    /// Number of connections of the session, 1 to 8. The target may allow fewer. Default 1.
    pub connections: u16,
    /// How commands are distributed among the connections. Default: to the connection with the least load; if one
    /// stalls, the others continue.
    pub spread: CommandDistribution,
    /// The highest error recovery level that is offered (RFC 7143, 7.1.5). At level 0, a failed connection ends the
    /// session, and a new one sends the commands again. At level 1, lost or damaged PDUs are also requested again. At
    /// level 2, commands of a failed connection also continue on another one. Default 2; the target may support less.
    pub error_recovery_level: u8,
    /// True to reserve a unit that does not support claims: write exclusive, registrants only, persistent across a
    /// power loss. Default false.
    pub reserve: bool,
    /// The maximum number of commands in flight, at least 1. Default 128, which is the default of our node: 128 writes
    /// of 64 KiB fill 1 Gbit/s over a round trip of 67 ms.
    pub queue_depth: usize,
    /// The most bytes of one read or write command, a multiple of 4096. Longer reads and writes are split. Default 1
    /// MiB, one burst.
    pub piece_bytes: u32,
    /// Time-out of the TCP connect. Default 5 s.
    pub connect_time_out: Duration,
    /// Time-out of the login, including the TLS handshake. Default 15 s.
    pub login_time_out: Duration,
    /// Time after which an unanswered command is aborted. Default 30 s.
    pub command_time_out: Duration,
    /// How long a command is sent again while the target answers BUSY or TASK SET FULL. Default 5 s.
    pub busy_time_out: Duration,
    /// How long calls wait for a new connection after the last one was lost. After this time calls fail at once until
    /// there is a connection. Default 15 s.
    pub give_up_after: Duration,
    /// The first pause before another attempt to connect. The pause doubles up to `back_off_max`, and each pause is
    /// lengthened by up to a quarter at random. Default 100 ms.
    pub back_off: Duration,
    /// The longest pause between attempts to connect. Default 5 s.
    pub back_off_max: Duration,
    /// The times and time-outs of pings (NOP-Out).
    pub timing: ConnectionTiming,
    /// Buffer sizes and other socket options.
    pub socket: SocketOptions,
    /// The congestion control of the connections, from the end of the login on. Discovery sessions do not use it.
    /// Default: the kernel's default.
    pub congestion: CongestionControl,
}

impl Settings {
    /// Returns the default settings for the unit `lun` of `target` at `portal`.
    #[must_use]
    pub fn new(portal: impl Into<String>, target: impl Into<String>, lun: u16) -> Self {
        Self {
            portal: portal.into(),
            other_portals: Vec::new(),
            target: target.into(),
            lun,
            locate: None,
            initiator_name: "iqn.2026-11.io.forebay:initiator".to_owned(),
            initiator_alias: None,
            isid: random_isid(),
            chap: None,
            tls: None,
            // Propose zero. The result is the larger proposal, so the target decides.
            offer: NegotiationOffer { default_time2wait: 0, ..NegotiationOffer::initiator() },
            connections: 1,
            spread: CommandDistribution::default(),
            error_recovery_level: 2,
            reserve: false,
            queue_depth: 128,
            piece_bytes: 1 << 20,
            connect_time_out: Duration::from_secs(5),
            login_time_out: Duration::from_secs(15),
            command_time_out: Duration::from_secs(30),
            busy_time_out: Duration::from_secs(5),
            give_up_after: Duration::from_secs(15),
            back_off: Duration::from_millis(100),
            back_off_max: Duration::from_secs(5),
            timing: ConnectionTiming::default(),
            socket: SocketOptions::default(),
            congestion: CongestionControl::default(),
        }
    }

    /// Returns the parameters to offer at login: `offer` with the values of the other fields.
    pub(crate) fn offer(&self) -> NegotiationOffer {
        NegotiationOffer {
            max_connections: self.connections.clamp(1, MOST_CONNECTIONS),
            error_recovery_level: self.error_recovery_level.min(2),
            ..self.offer.clone()
        }
    }

    /// Returns the default settings for the unit that a URL names, with LUN 0 if it names none. Returns `None` if the
    /// URL has no target.
    #[must_use]
    pub fn from_url(url: &Url) -> Option<Self> {
        let target = url.target.clone()?;
        let (portal, other_portals) = url.portals.split_first()?;
        let one = Self::new(portal, target, url.lun.unwrap_or(0));
        Some(Self { other_portals: other_portals.to_vec(), ..one })
    }

    /// Derives an ISID from `seed` alone, which may be the instance id of a cache.
    #[must_use]
    pub fn lasting_isid(seed: &str) -> Isid {
        // Use FNV-1a: the ISID must not change with the compiler, as the hashers of std may.
        let hash = seed.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        isid_of(hash)
    }
}

/// The most connections of a session. A process can fill a link of 100 Gbit/s with fewer.
const MOST_CONNECTIONS: u16 = 8;

fn random_isid() -> Isid {
    isid_of(RandomState::new().hash_one(0))
}

/// Builds an ISID of the format "random" (RFC 7143, 11.12.5): 24 random bits, and a qualifier of 16 bits.
fn isid_of(bits: u64) -> Isid {
    let [a, b, c, d, e, ..] = bits.to_be_bytes();
    Isid([0x80, a, b, c, d, e])
}

impl Settings {
    /// Returns a copy of these settings for each portal where the unit may be now, in the order to try them. The list
    /// is never empty.
    pub async fn places(&self) -> Result<Vec<Self>, Error> {
        let Some(locate) = &self.locate else {
            let following = |place: &Self| Some(place.clone().at_the_next_portal());
            let places = std::iter::successors(Some(self.clone()), following);
            return Ok(places.take(1 + self.other_portals.len()).collect());
        };
        let IscsiLocation { portals, target, lun } =
            locate.locate().await.map_err(Error::NotLocated)?;
        let at = |portal| Self { portal, target: target.clone(), lun, ..self.clone() };
        let places: Vec<Self> = portals.into_iter().map(at).collect();
        match places.is_empty() {
            true => Err(Error::NotLocated("it has no portal".into())),
            false => Ok(places),
        }
    }

    /// Makes the next portal the first to be tried, and the present one the last.
    pub(crate) fn at_the_next_portal(mut self) -> Self {
        if let Some(next) = self.other_portals.first_mut() {
            std::mem::swap(&mut self.portal, next);
            self.other_portals.rotate_left(1);
        }
        self
    }

    /// Returns true if the unit may be served at another portal than the last one used.
    pub(crate) fn has_choice(&self) -> bool {
        self.locate.is_some() || !self.other_portals.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_portal_is_tried_in_turn() {
        let url = "iscsi://a,b,c/iqn.x:y/3".parse().unwrap();
        let settings = Settings::from_url(&url).unwrap();
        let order = |places: Vec<Settings>| {
            places.into_iter().map(|place| place.portal).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(order(settings.places().await.unwrap()), "a:3260 b:3260 c:3260");
        // After a session at the second portal, that portal is tried first.
        let place = settings.places().await.unwrap().swap_remove(1);
        assert_eq!(order(place.places().await.unwrap()), "b:3260 c:3260 a:3260");
        let next = place.at_the_next_portal();
        assert_eq!(order(next.places().await.unwrap()), "c:3260 a:3260 b:3260");
        let alone = Settings::new("a", "iqn.x:y", 0);
        assert_eq!(order(alone.clone().at_the_next_portal().places().await.unwrap()), "a");
        assert!(settings.has_choice() && !alone.has_choice());
    }

    #[test]
    fn equal_seeds_give_equal_isids() {
        assert_eq!(Settings::lasting_isid("a"), Settings::lasting_isid("a"));
        assert_ne!(Settings::lasting_isid("a"), Settings::lasting_isid("b"));
        assert_ne!(random_isid(), random_isid());
        assert_eq!(random_isid().0[0], 0x80);
    }
}
