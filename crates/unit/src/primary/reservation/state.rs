//! Registrations and the persistent reservation as a value, and what each service action of
//! PERSISTENT RESERVE OUT does to it (SPC-4, 5.13).

use std::sync::Arc;

use scsi::{
    Sense,
    persistent::{
        FullStatus, MoveParameters, OutParameters, ReservationHeld, ReservationType, TransportId,
    },
};

use super::conflict::{Barred, barred};
use crate::sense::UnitCommandFailure;

/// All that persistent reservations are about.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct ReservationState {
    /// At most [`MOST_REGISTRANTS`]; no nexus twice.
    pub(super) registrants: Vec<Registrant>,
    /// Its holder is registered; without registrants there is none.
    pub(super) reservation: Option<PersistentReservation>,
    /// PRGENERATION.
    pub(super) generation: u32,
    /// APTPL of the last registration: all of this outlasts a loss of power.
    pub(super) persist: bool,
}

/// A nexus by name: what lasts longer than its session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Path {
    /// The initiator port's name.
    pub(super) initiator: Arc<str>,
    /// The target port's relative identifier.
    pub(super) target: u16,
}

/// A registered nexus.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Registrant {
    pub(super) path: Path,
    pub(super) key: u64,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PersistentReservation {
    pub(super) kind: ReservationType,
    /// `None`: all registrants hold it.
    pub(super) holder: Option<Path>,
}

/// What is to be told to others when a change has been made.
pub(super) type ReservationNotices = Vec<(Path, Sense)>;

impl ReservationState {
    /// REGISTER, and with `ignore` REGISTER AND IGNORE EXISTING KEY. `ports`: all target ports.
    pub(super) fn register(
        &mut self,
        from: &Path,
        asked: &OutParameters,
        ignore: bool,
        ports: &[u16],
    ) -> Result<ReservationNotices, UnitCommandFailure> {
        let known = self.key_of(from);
        if !ignore && asked.key != known.unwrap_or(0) {
            return Err(UnitCommandFailure::Conflict);
        }
        // Ports are named only by who registers for the first time, and with REGISTER alone.
        if asked.ports.is_some() && (ignore || known.is_some() || asked.action_key == 0) {
            return Err(Sense::invalid_field_in_parameter_list(FLAGS).into());
        }
        if known.is_none() && asked.action_key == 0 {
            return Ok(ReservationNotices::new());
        }
        let mut initiators = vec![from.initiator.clone()];
        for port in asked.ports.iter().flatten() {
            initiators.push(port.0.as_str().into());
        }
        let targets = if asked.all_target_ports { ports } else { &[from.target] };
        let mut news = ReservationNotices::new();
        for initiator in initiators {
            for target in targets {
                let path = Path { initiator: initiator.clone(), target: *target };
                let is_new = self.key_of(&path).is_none();
                if asked.action_key == 0 {
                    news.extend(self.unregister(&path));
                } else if is_new || initiator == from.initiator {
                    self.put(path, asked.action_key)?;
                } else {
                    // Who is registered already changes its key itself.
                    return Err(Sense::invalid_field_in_parameter_list(LIST).into());
                }
            }
        }
        self.persist = asked.persist;
        self.generation = self.generation.wrapping_add(1);
        Ok(news)
    }

    /// RESERVE.
    pub(super) fn reserve(
        &mut self,
        from: &Path,
        asked: &OutParameters,
        kind: ReservationType,
    ) -> Result<ReservationNotices, UnitCommandFailure> {
        self.check_key(from, asked.key)?;
        match &self.reservation {
            Some(held) if held.kind == kind && self.holds(from) => {}
            Some(_) => return Err(UnitCommandFailure::Conflict),
            None => self.reservation = Some(PersistentReservation::new(kind, from)),
        }
        Ok(ReservationNotices::new())
    }

    /// RELEASE.
    pub(super) fn release(
        &mut self,
        from: &Path,
        asked: &OutParameters,
        kind: ReservationType,
    ) -> Result<ReservationNotices, UnitCommandFailure> {
        self.check_key(from, asked.key)?;
        match &self.reservation {
            Some(held) if self.holds(from) => {
                if held.kind != kind {
                    return Err(Sense::INVALID_RELEASE_OF_PERSISTENT_RESERVATION.into());
                }
                self.reservation = None;
                Ok(self.released(kind, from))
            }
            // Who holds nothing has nothing to release (SPC-4, 5.13.11.2).
            _ => Ok(ReservationNotices::new()),
        }
    }

    /// CLEAR.
    pub(super) fn clear(
        &mut self,
        from: &Path,
        asked: &OutParameters,
    ) -> Result<ReservationNotices, UnitCommandFailure> {
        self.check_key(from, asked.key)?;
        self.reservation = None;
        self.generation = self.generation.wrapping_add(1);
        let all = std::mem::take(&mut self.registrants);
        let others = all.into_iter().filter(|r| r.path != *from);
        Ok(others.map(|r| (r.path, Sense::RESERVATIONS_PREEMPTED)).collect())
    }

    /// PREEMPT and PREEMPT AND ABORT (SPC-4, 5.13.11.4): takes the reservation if the key is its
    /// holder's, or registrations alone.
    pub(super) fn preempt(
        &mut self,
        from: &Path,
        asked: &OutParameters,
        kind: ReservationType,
    ) -> Result<ReservationNotices, UnitCommandFailure> {
        self.check_key(from, asked.key)?;
        let victim = asked.action_key;
        let held = self.reservation.as_ref().map(|held| (held.kind, held.holder.clone()));
        let takes_over = match &held {
            Some((_, Some(holder))) => self.key_of(holder) == Some(victim),
            Some((_, None)) => victim == 0,
            None => false,
        };
        if takes_over {
            let all = victim == 0;
            let mut news = self.drop_registrants(|r| (all || r.key == victim) && r.path != *from);
            self.reservation = Some(PersistentReservation::new(kind, from));
            // Those who stay registered learn that what they were admitted to has another type.
            let before = held.map(|(before, _)| before);
            if let Some(before) = before.filter(|before| *before != kind) {
                news.extend(self.released(before, from));
            }
            self.generation = self.generation.wrapping_add(1);
            return Ok(news);
        }
        if victim == 0 {
            return Err(Sense::invalid_field_in_parameter_list(ACTION_KEY).into());
        }
        if !self.registrants.iter().any(|r| r.key == victim) {
            return Err(UnitCommandFailure::Conflict);
        }
        let mut news = self.drop_registrants(|r| r.key == victim);
        news.retain(|(path, _)| path != from);
        self.generation = self.generation.wrapping_add(1);
        Ok(news)
    }

    /// REGISTER AND MOVE.
    pub(super) fn register_and_move(
        &mut self,
        from: &Path,
        asked: &MoveParameters,
        ports: &[u16],
    ) -> Result<ReservationNotices, UnitCommandFailure> {
        self.check_key(from, asked.key)?;
        let Some(PersistentReservation { kind, holder: Some(holder) }) = self.reservation.clone()
        else {
            return Err(UnitCommandFailure::Conflict);
        };
        if holder != *from {
            return Err(UnitCommandFailure::Conflict);
        }
        if asked.action_key == 0 {
            return Err(Sense::invalid_field_in_parameter_list(ACTION_KEY).into());
        }
        if !ports.contains(&asked.target_port) {
            return Err(Sense::invalid_field_in_parameter_list(TARGET_PORT).into());
        }
        let to = Path { initiator: asked.port.0.as_str().into(), target: asked.target_port };
        if to == *from {
            return Err(Sense::invalid_field_in_parameter_list(LIST).into());
        }
        self.put(to.clone(), asked.action_key)?;
        self.reservation = Some(PersistentReservation { kind, holder: Some(to) });
        if asked.unregister {
            self.registrants.retain(|r| r.path != *from);
        }
        self.persist = asked.persist;
        self.generation = self.generation.wrapping_add(1);
        Ok(ReservationNotices::new())
    }

    pub(super) fn key_of(&self, path: &Path) -> Option<u64> {
        self.registrants.iter().find(|r| r.path == *path).map(|r| r.key)
    }

    /// Whether this nexus holds the reservation.
    pub(super) fn holds(&self, path: &Path) -> bool {
        match &self.reservation {
            None => false,
            Some(PersistentReservation { holder: Some(holder), .. }) => holder == path,
            Some(PersistentReservation { holder: None, .. }) => self.key_of(path).is_some(),
        }
    }

    /// Whether this nexus may do whatever the reservation permits its holder.
    pub(super) fn admits(&self, path: &Path) -> bool {
        let Some(held) = &self.reservation else { return true };
        self.holds(path) || held.kind.admits_registrants() && self.key_of(path).is_some()
    }

    /// What the reservation bars this nexus from.
    pub(super) fn barred(&self, path: &Path) -> Barred {
        match &self.reservation {
            Some(held) if !self.admits(path) => barred(held.kind),
            _ => Barred::Nothing,
        }
    }

    /// The reservation as READ RESERVATION tells it.
    pub(super) fn held(&self) -> Option<ReservationHeld> {
        let held = self.reservation.as_ref()?;
        let key = held.holder.as_ref().and_then(|holder| self.key_of(holder)).unwrap_or(0);
        Some(ReservationHeld { key, kind: held.kind })
    }

    /// The registrations as READ FULL STATUS tells them.
    pub(super) fn full_status(&self) -> impl Iterator<Item = FullStatus> + '_ {
        let kind = self.reservation.as_ref().map(|held| held.kind);
        self.registrants.iter().map(move |registrant| FullStatus {
            key: registrant.key,
            held: kind.filter(|_| self.holds(&registrant.path)),
            target_port: registrant.path.target,
            port: TransportId(registrant.path.initiator.to_string()),
        })
    }

    /// That the nexus is registered, and under this key.
    fn check_key(&self, from: &Path, key: u64) -> Result<(), UnitCommandFailure> {
        if self.key_of(from) == Some(key) { Ok(()) } else { Err(UnitCommandFailure::Conflict) }
    }

    /// Registers, or gives another key.
    fn put(&mut self, path: Path, key: u64) -> Result<(), Sense> {
        let place = self.registrants.iter().position(|r| r.path == path);
        match place {
            Some(place) => self.registrants[place].key = key,
            None if self.registrants.len() >= MOST_REGISTRANTS => {
                return Err(Sense::INSUFFICIENT_REGISTRATION_RESOURCES);
            }
            None => self.registrants.push(Registrant { path, key }),
        }
        Ok(())
    }

    /// Takes a registration away at its owner's wish, with what it holds.
    fn unregister(&mut self, path: &Path) -> ReservationNotices {
        self.registrants.retain(|r| r.path != *path);
        let Some(held) = &self.reservation else { return ReservationNotices::new() };
        let was_held = match &held.holder {
            Some(holder) => holder == path,
            None => self.registrants.is_empty(),
        };
        if !was_held {
            return ReservationNotices::new();
        }
        let kind = held.kind;
        self.reservation = None;
        self.released(kind, path)
    }

    /// Takes registrations away against their owners' wish.
    fn drop_registrants(&mut self, doomed: impl Fn(&Registrant) -> bool) -> ReservationNotices {
        let (gone, kept) = self.registrants.drain(..).partition(doomed);
        self.registrants = kept;
        if self.registrants.is_empty() {
            self.reservation = None;
        }
        let gone: Vec<Registrant> = gone;
        gone.into_iter().map(|r| (r.path, Sense::REGISTRATIONS_PREEMPTED)).collect()
    }

    /// Whom the end of a reservation of this type concerns: all it admitted but who ended it.
    fn released(&self, kind: ReservationType, by: &Path) -> ReservationNotices {
        if !kind.admits_registrants() {
            return ReservationNotices::new();
        }
        let others = self.registrants.iter().filter(|r| r.path != *by);
        others.map(|r| (r.path.clone(), Sense::RESERVATIONS_RELEASED)).collect()
    }
}

impl PersistentReservation {
    fn new(kind: ReservationType, holder: &Path) -> Self {
        Self { kind, holder: (!kind.all_registrants()).then(|| holder.clone()) }
    }
}

/// The most registrations of one unit: 64 hosts by 64 paths. A record of them is below 1.1 MiB, and
/// READ FULL STATUS as long.
pub(super) const MOST_REGISTRANTS: usize = 4096;
/// Where fields stand in the parameter lists.
const ACTION_KEY: u16 = 8;
const TARGET_PORT: u16 = 18;
const FLAGS: u16 = 20;
const LIST: u16 = 24;
