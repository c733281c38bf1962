//! What an initiator is told: where to log in as whom, sizes, and how long to wait.

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

/// One session with one unit of one target.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `host:port`, IPv6 in brackets.
    pub portal: String,
    /// Further portals of the same target, to be tried in this order where that one does not let us
    /// in. They belong to its portal group, so that a login at one ends the session that was lost
    /// at another before anything is sent again, or to gateways of which one alone takes writes.
    /// Default: none.
    pub other_portals: Vec<String>,
    /// The target's iSCSI name.
    pub target: String,
    /// The logical unit, 0 to 16383.
    pub lun: u16,
    /// Who is asked before every connect where the unit is; then `portal`, `other_portals`, `target`
    /// and `lun` do not matter. Default: nobody.
    pub locate: Option<Arc<dyn Locate>>,
    /// Who we are. Default `iqn.2026-11.io.forebay:initiator`; the caller appends what makes its
    /// host unique.
    pub initiator_name: String,
    /// What we call ourselves for humans.
    pub initiator_alias: Option<String>,
    /// Our half of the session's name. A login with the same name, ISID and target ends the
    /// session that was there before (RFC 7143, 6.3.5), so that no late command of it is
    /// performed after ours. Default: random, so that two processes do not end each other's;
    /// who starts again and wants its former session ended sets a lasting one
    /// ([`Settings::lasting_isid`]).
    pub isid: Isid,
    /// How we prove who we are, and whether the target has to. Default: not at all.
    pub chap: Option<InitiatorChap>,
    /// With what every connection begins, those to where a target sends us included: nothing is
    /// said without it. Default: TCP as it is.
    pub tls: Option<TlsClient>,
    /// Digests, burst lengths and so on, as proposed at login; connections and error recovery level
    /// are taken from the fields below.
    pub offer: NegotiationOffer,
    /// Connections of the session, 1 to 8, as many as the target takes. Default 1.
    pub connections: u16,
    /// Which of them a command goes to. Default: the one with the least to do; where one stalls, the
    /// others go on.
    pub spread: CommandDistribution,
    /// The most of error recovery that is asked for (RFC 7143, 7.1.5): 0, the session is made anew
    /// and commands are sent again; 1, what is lost or damaged is asked for again; 2, commands of a
    /// connection that fails go on where they were on another one. Default 2; the target may have
    /// less.
    pub error_recovery_level: u8,
    /// A unit that knows no claims is reserved in place of being claimed: write exclusive, for
    /// registrants only, over a loss of power. Default false.
    pub reserve: bool,
    /// Commands on their way at once, at least 1. Default 128, as many as a node of ours takes by default: 128
    /// writes of 64 KiB are what 1 Gbit/s holds over 67 ms of round trip.
    pub queue_depth: usize,
    /// Longer reads and writes are split into commands of this many bytes, a multiple of 4096.
    /// Default 1 MiB, one burst.
    pub piece_bytes: u32,
    /// For TCP to connect. Default 5 s.
    pub connect_time_out: Duration,
    /// For the login to end, a TLS handshake included. Default 15 s.
    pub login_time_out: Duration,
    /// For a command to be answered before it is aborted. Default 30 s.
    pub command_time_out: Duration,
    /// For a target that answers BUSY or TASK SET FULL to take a command. Default 5 s.
    pub busy_time_out: Duration,
    /// How long calls wait for a connection that was lost; after that they fail at once until it
    /// is there again. Default 15 s.
    pub give_up_after: Duration,
    /// The first pause before connecting again. It doubles up to `back_off_max`, and each is
    /// lengthened by up to a quarter at random. Default 100 ms.
    pub back_off: Duration,
    /// The longest pause. Default 5 s.
    pub back_off_max: Duration,
    /// Pings.
    pub timing: ConnectionTiming,
    /// Buffer sizes of the socket.
    pub socket: SocketOptions,
    /// The congestion control of the session's connections, from the end of their login on. Default:
    /// the kernel's.
    pub congestion: CongestionControl,
}

impl Settings {
    /// The defaults for a unit.
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
            // The target says how long it needs; what it needs not is waited for by nobody.
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

    /// What is proposed at login.
    pub(crate) fn offer(&self) -> NegotiationOffer {
        NegotiationOffer {
            max_connections: self.connections.clamp(1, MOST_CONNECTIONS),
            error_recovery_level: self.error_recovery_level.min(2),
            ..self.offer.clone()
        }
    }

    /// The defaults for the unit of a URL; without a unit in it, LUN 0. `None` without a target.
    #[must_use]
    pub fn from_url(url: &Url) -> Option<Self> {
        let target = url.target.clone()?;
        let (portal, other_portals) = url.portals.split_first()?;
        let one = Self::new(portal, target, url.lun.unwrap_or(0));
        Some(Self { other_portals: other_portals.to_vec(), ..one })
    }

    /// An ISID that is the same whenever `seed` is: for example a cache's instance id.
    #[must_use]
    pub fn lasting_isid(seed: &str) -> Isid {
        // FNV-1a: the value must not change with the compiler, as std's hashers may
        let hash = seed.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        isid_of(hash)
    }
}

/// One process fills a link of 100 Gbit/s with fewer.
const MOST_CONNECTIONS: u16 = 8;

fn random_isid() -> Isid {
    isid_of(RandomState::new().hash_one(0))
}

/// The format "random" (RFC 7143, 11.12.5): 24 bits that are, and a qualifier of 16.
fn isid_of(bits: u64) -> Isid {
    let [a, b, c, d, e, ..] = bits.to_be_bytes();
    Isid([0x80, a, b, c, d, e])
}

impl Settings {
    /// These, once for each place where the unit may be reached now; at least one. To be tried in
    /// this order.
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

    /// The portal after this one is the first to be tried, and this one the last.
    pub(crate) fn at_the_next_portal(mut self) -> Self {
        if let Some(next) = self.other_portals.first_mut() {
            std::mem::swap(&mut self.portal, next);
            self.other_portals.rotate_left(1);
        }
        self
    }

    /// The unit may be served at another place than the one where it was.
    pub(crate) fn has_choice(&self) -> bool {
        self.locate.is_some() || !self.other_portals.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_portal_has_its_turn() {
        let url = "iscsi://a,b,c/iqn.x:y/3".parse().unwrap();
        let settings = Settings::from_url(&url).unwrap();
        let order = |places: Vec<Settings>| {
            places.into_iter().map(|place| place.portal).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(order(settings.places().await.unwrap()), "a:3260 b:3260 c:3260");
        // The last that was used.
        let place = settings.places().await.unwrap().swap_remove(1);
        assert_eq!(order(place.places().await.unwrap()), "b:3260 c:3260 a:3260");
        let next = place.at_the_next_portal();
        assert_eq!(order(next.places().await.unwrap()), "c:3260 a:3260 b:3260");
        let alone = Settings::new("a", "iqn.x:y", 0);
        assert_eq!(order(alone.clone().at_the_next_portal().places().await.unwrap()), "a");
        assert!(settings.has_choice() && !alone.has_choice());
    }

    #[test]
    fn an_isid_lasts_if_its_seed_does() {
        assert_eq!(Settings::lasting_isid("a"), Settings::lasting_isid("a"));
        assert_ne!(Settings::lasting_isid("a"), Settings::lasting_isid("b"));
        assert_ne!(random_isid(), random_isid());
        assert_eq!(random_isid().0[0], 0x80);
    }
}
