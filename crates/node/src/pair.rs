//! The units of pairs: the interface between a member of a pair and its node.
//!
//! The member ([`PairMember`]) decides which of the two gateways serves the unit. It calls the node for this
//! ([`PairMemberHost`]):
//!
//! | call | work of the node |
//! |------|------------------|
//! | `partner` | ends the last session with the partner's leg of the log and begins a new one |
//! | `turn_partner_away` | ends all sessions of the partner with the local leg, and exports the leg as another unit |
//! | `far` | checks that the far volume answers: logs in and out |
//! | `serve` | opens the unit with the mirrored log, and shows it to hosts |
//! | `withdraw` | ends the sessions of hosts; with `at_rest` closes the log for the partner, else abandons it |

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use ::cache::{
    Cache, LogLeg, PairMember, PairMemberAnswer, PairMemberHost, PairMemberStatus, PairTiming, Role,
};
use config::{IscsiName, IscsiTargetSettings, Layer, Settings, Unit, quantity::TimeSpan};
use control::{Failure, PairNvram, PairStatus, UnitName};
use initiator::RemoteVolume;
use stack::StackInput;
use volume::{Mirror, MirrorLegStatus, Stack};

use super::{Node, ServedUnit, open_unit, partner_link::PartnerLink, shown_half};
use crate::naming::Naming;

/// A pair of which this node is one gateway: the member that runs here, and the local leg of the log.
#[derive(Clone)]
pub(super) struct Paired {
    name: String,
    lun: u16,
    local: stack::LocalHalf,
    half: Arc<LogLeg>,
    member: Arc<PairMember>,
}

struct PairMemberContext {
    node: Weak<Node>,
    settings: Arc<Settings>,
    target: IscsiTargetSettings,
    unit: Unit,
    pair: config::PairPartnerSettings,
    log: String,
    link: PartnerLink,
}

impl Node {
    /// Opens this gateway's legs of the logs of all pairs. A start does this before anything else, because the
    /// partners request the legs.
    pub(super) async fn open_halves(
        self: &Arc<Self>,
        settings: &Arc<Settings>,
    ) -> Result<(), Failure> {
        for target in &settings.target {
            for unit in &target.unit {
                let caches = unit.stack.iter().filter_map(|layer| match layer {
                    Layer::Cache(cache) => Some((cache, cache.pair.as_deref()?)),
                    _ => None,
                });
                for (cache, pair) in caches {
                    let local = stack::LocalHalf::open(cache).await?;
                    let half = LogLeg::new(Arc::clone(&local.volume));
                    let place = PairMemberContext {
                        node: Arc::downgrade(self),
                        settings: Arc::clone(settings),
                        target: target.clone(),
                        unit: unit.clone(),
                        pair: pair.clone(),
                        log: cache.log.display().to_string(),
                        link: PartnerLink::default(),
                    };
                    let timing = PairTiming { dead_after: pair.dead_after.0, is_first: pair.first };
                    let member = PairMember::new(Arc::clone(&half), Arc::new(place), timing);
                    let (name, lun) = (target.name.0.clone(), unit.lun);
                    self.inner.lock().pairs.push(Paired { name, lun, local, half, member });
                }
            }
        }
        Ok(())
    }

    pub(super) fn start_pairs(&self) {
        for paired in &self.inner.lock().pairs {
            tokio::spawn(Arc::clone(&paired.member).run());
        }
    }

    /// Returns the leg of a pair's log that the unit exports to a partner, if it exports one.
    pub(super) fn given(&self, unit: &Unit) -> StackInput {
        let inner = self.inner.lock();
        let half = match unit.stack.first() {
            Some(Layer::Half(half)) => inner.pairs.iter().find(|paired| paired.name == half.of.0),
            _ => None,
        };
        half.map_or(StackInput::Nothing, |paired| StackInput::Half(paired.half.for_partner()))
    }

    /// Ends all sessions with the leg of a target's log, and exports the leg as another unit. An old session of the
    /// partner that logs in again then finds another unit, and does not repeat the commands that it had sent.
    async fn export_half_again(&self, settings: &Settings, of: &str) -> Result<(), Failure> {
        let is_its =
            |unit: &Unit| matches!(unit.stack.first(), Some(Layer::Half(half)) if half.of.0 == of);
        for target in settings.target.iter().filter(|target| target.unit.iter().any(is_its)) {
            {
                let mut inner = self.inner.lock();
                let served = inner.targets.iter_mut().find(|served| served.name == target.name.0);
                let units = served.map(|served| &mut served.units).into_iter().flatten();
                for served in units {
                    let unit = target.unit.iter().find(|unit| unit.lun == served.lun);
                    if let Some(unit) = unit.filter(|unit| is_its(unit)) {
                        let opened = Arc::clone(&served.opened);
                        *served = shown_half(target, unit, opened)?;
                    }
                }
            }
            let shown = self.shown(settings, target);
            if !self.server.turn_away(shown).await.map_err(Failure::settings)? {
                return Err(Failure::new(
                    "a session of the partner with the leg of the log does not end",
                )
                .remedy(
                    "nothing has to be done unless it lasts: the takeover is tried again; \
                     otherwise restart the partner",
                ));
            }
        }
        Ok(())
    }

    /// Writes the content of the NVRAMs in front of all legs to the disks. Call this after the server and all units
    /// have stopped.
    pub(super) async fn close_halves(&self) {
        let halves: Vec<_> =
            self.inner.lock().pairs.iter().map(|paired| paired.local.clone()).collect();
        futures_util::future::join_all(halves.iter().map(stack::LocalHalf::close)).await;
    }

    pub(super) fn pair_status(pairs: &[Paired], target: &str) -> Option<PairStatus> {
        let paired = pairs.iter().find(|paired| paired.name == target)?;
        Some(paired.status())
    }

    /// Hands the unit of a pair over to the other member. Returns the resulting state.
    pub async fn take_over(&self, name: &UnitName) -> Result<PairStatus, Failure> {
        let paired = {
            let inner = self.inner.lock();
            let is_it = |paired: &&Paired| paired.name == name.target && paired.lun == name.lun;
            inner.pairs.iter().find(is_it).cloned()
        };
        let paired = paired.ok_or_else(|| {
            Failure::new(format!("{name} is not the unit of a pair"))
                .remedy("name a unit whose cache has `pair`")
        })?;
        let member = &paired.member;
        let before = member.standing();
        let refused = |reason: Arc<str>| {
            Failure::new(format!("{name} cannot be switched over: {reason}"))
                .remedy("see `forebay status` here and at the partner")
        };
        member.change_places().map_err(refused)?;
        let changed = async {
            while member.standing().role == before.role {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let _ = tokio::time::timeout(CHANGE_WITHIN, changed).await;
        let now = member.standing();
        if now.role == before.role {
            let reason = now.reason.unwrap_or_else(|| "it is still in progress".into());
            return Err(refused(reason));
        }
        Ok(paired.status())
    }

    async fn show_pair(&self, settings: &Settings, target: &IscsiTargetSettings, unit: ServedUnit) {
        {
            let mut inner = self.inner.lock();
            let served = inner.targets.iter_mut().find(|served| served.name == target.name.0);
            if let Some(served) = served {
                served.units = vec![unit];
            }
        }
        if let Err(error) = self.server.change(self.shown(settings, target)).await {
            tracing::error!(
                %error,
                remedy = "restart this process; if the event comes again, report it with the settings",
                "a target is invalid, although the settings were accepted"
            );
        }
        self.tell_names();
    }

    /// Stops serving the unit of a pair. Returns the unit, which no session uses any more.
    async fn hide_pair(
        &self,
        settings: &Settings,
        target: &IscsiTargetSettings,
    ) -> Vec<ServedUnit> {
        let units = {
            let mut inner = self.inner.lock();
            let served = inner.targets.iter_mut().find(|served| served.name == target.name.0);
            served.map(|served| std::mem::take(&mut served.units)).unwrap_or_default()
        };
        // End all sessions of the target, so that hosts look for the partner's portal.
        self.server.remove(&target.name.0, Duration::ZERO).await;
        if let Err(error) = self.server.add(self.shown(settings, target)) {
            tracing::error!(
                %error,
                remedy = "restart this process; if the event comes again, report it with the settings",
                "a target is invalid, although the settings were accepted"
            );
        }
        self.tell_names();
        units
    }
}

impl PairMemberContext {
    fn initiator_name(&self) -> IscsiName {
        self.settings.initiator_name.clone().unwrap_or_else(config::name_of_host)
    }
}

impl PairMemberHost for PairMemberContext {
    fn partner(&self) -> PairMemberAnswer<'_, Stack> {
        Box::pin(async move {
            let node = self.node.upgrade().ok_or(ENDING)?;
            let within = self.pair.dead_after;
            // Use short time-outs: a partner that answers later counts as failed, and must not delay this member.
            let remote = config::RemoteLayerSettings {
                connect_timeout: within,
                login_timeout: within,
                command_timeout: within,
                give_up_after: within,
                ping_interval: TimeSpan::seconds(1),
                ..self.pair.partner.clone()
            };
            let initiator_name = self.initiator_name();
            let lasting = Some(format!("{initiator_name} partner of {}", self.log));
            let us = stack::Us { initiator_name, lasting };
            let session = stack::session(&remote, &us, Naming::for_stacks(node.naming.as_ref()));
            let session = session.map_err(|failure| Arc::<str>::from(failure.to_string()))?;
            let connected = self.link.begin(session).await;
            Ok(connected.map_err(|error| Arc::<str>::from(error.to_string()))? as Stack)
        })
    }

    fn turn_partner_away(&self) -> PairMemberAnswer<'_, ()> {
        Box::pin(async move {
            let node = self.node.upgrade().ok_or(ENDING)?;
            let shown = node.export_half_again(&self.settings, &self.target.name.0).await;
            shown.map_err(|failure| failure.to_string().into())
        })
    }

    fn far(&self) -> PairMemberAnswer<'_, ()> {
        Box::pin(async move {
            let node = self.node.upgrade().ok_or(ENDING)?;
            let Some(Layer::Remote(remote)) = self.unit.stack.first() else { return Ok(()) };
            let within = self.pair.dead_after;
            let remote = config::RemoteLayerSettings {
                connect_timeout: within,
                login_timeout: within,
                ..remote.clone()
            };
            let us = stack::Us { initiator_name: self.initiator_name(), lasting: None };
            let session = stack::session(&remote, &us, Naming::for_stacks(node.naming.as_ref()));
            let session = session.map_err(|failure| Arc::<str>::from(failure.to_string()))?;
            let connected = RemoteVolume::connect(session).await;
            let volume = connected.map_err(|error| Arc::<str>::from(error.to_string()))?;
            volume.close().await;
            Ok(())
        })
    }

    fn serve(&self, log: Arc<Mirror>) -> PairMemberAnswer<'_, Arc<Cache>> {
        Box::pin(async move {
            let node = self.node.upgrade().ok_or(ENDING)?;
            let (settings, target) = (&self.settings, &self.target);
            let naming = node.naming.as_ref();
            let (unit, files) = (&self.unit, &node.files);
            let unit = open_unit(settings, target, unit, naming, files, StackInput::Log(log)).await;
            let unit = unit.map_err(|error| Arc::<str>::from(Failure::from(error).to_string()))?;
            let cache = unit.opened.cache().map(|layer| layer.cache()).ok_or(ENDING)?;
            node.show_pair(settings, target, unit).await;
            Ok(cache)
        })
    }

    fn withdraw(&self, at_rest: bool) -> PairMemberAnswer<'_, ()> {
        Box::pin(async move {
            let node = self.node.upgrade().ok_or(ENDING)?;
            let units = node.hide_pair(&self.settings, &self.target).await;
            let mut result = Ok(());
            for unit in units {
                if at_rest {
                    let stopped = unit.opened.stop().await;
                    result = result.and(stopped.map_err(|failure| failure.to_string().into()));
                }
                unit.opened.abandon("the partner serves the unit").await;
            }
            result
        })
    }
}

impl Paired {
    fn status(&self) -> PairStatus {
        let nvram = self.local.buffer.as_ref().map(|buffer| PairNvram {
            pending_bytes: buffer.pending_bytes(),
            is_used: buffer.is_fast(),
        });
        PairStatus { nvram, ..status_of(&self.member.standing()) }
    }
}

fn status_of(look: &PairMemberStatus) -> PairStatus {
    let in_sync = Some([MirrorLegStatus::InSync, MirrorLegStatus::InSync]);
    PairStatus {
        nvram: None,
        role: match look.role {
            Role::Standby => "standby",
            Role::Active if look.halves == in_sync && look.partner_is_there => "active",
            Role::Active => "alone",
        }
        .to_owned(),
        partner_is_there: look.partner_is_there,
        halves: look.halves.iter().flatten().map(ToString::to_string).collect(),
        reason: look.reason.as_deref().map(str::to_owned),
    }
}

const ENDING: &str = "the process is ending";
/// Interval of the checks whether a unit has been handed over.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time-out of a handover: a clean close of a cache takes up to five seconds.
const CHANGE_WITHIN: Duration = Duration::from_secs(8);
