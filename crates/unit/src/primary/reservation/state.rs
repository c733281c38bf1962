//! Registrations and the persistent reservation of one unit, and the effect of each service action of
//! PERSISTENT RESERVE OUT on them (SPC-4, 5.13).

use std::sync::Arc;

use scsi::{
    Sense,
    persistent::{
        FullStatus, MoveParameters, OutParameters, ReservationHeld, ReservationType, TransportId,
    },
};

use super::conflict::{Barred, barred};
use crate::sense::UnitCommandFailure;

/// The persistent reservation and the registrations of one unit.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct ReservationState {
    /// At most [`MOST_REGISTRANTS`], each nexus once.
    pub(super) registrants: Vec<Registrant>,
    /// The reservation, whose holder is always registered; therefore `None` if no nexus is registered.
    pub(super) reservation: Option<PersistentReservation>,
    /// The counter PRGENERATION, which PERSISTENT RESERVE IN reports.
    pub(super) generation: u32,
    /// APTPL bit of the last registration: if set, this state survives a loss of power.
    pub(super) persist: bool,
}

/// The ports of a nexus, which stay the same when its sessions end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Path {
    /// Name of the initiator port.
    pub(super) initiator: Arc<str>,
    /// Relative identifier of the target port.
    pub(super) target: u16,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Registrant {
    pub(super) path: Path,
    pub(super) key: u64,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PersistentReservation {
    pub(super) kind: ReservationType,
    /// The nexus that holds the reservation; `None` if all registrants hold it together.
    pub(super) holder: Option<Path>,
}

/// The unit attention conditions that a change of reservations causes, each with its nexus.
pub(super) type ReservationNotices = Vec<(Path, Sense)>;

impl ReservationState {
    /// REGISTER; with `ignore`, REGISTER AND IGNORE EXISTING KEY. `ports`: all target ports of the unit.
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
        // Only the first registration of a nexus may name other ports, and only with REGISTER.
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
                    // A registered nexus may change only its own key.
                    return Err(Sense::invalid_field_in_parameter_list(LIST).into());
                }
            }
        }
        self.persist = asked.persist;
        self.generation = self.generation.wrapping_add(1);
        Ok(news)
    }

    /// Performs RESERVE: takes the reservation with the given type.
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

    /// Performs RELEASE: ends the reservation that the nexus `from` holds.
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
            // RELEASE by a nexus that does not hold the reservation succeeds and changes nothing (SPC-4, 5.13.11.2).
            _ => Ok(ReservationNotices::new()),
        }
    }

    /// CLEAR: ends the reservation and removes all registrations.
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

    /// PREEMPT and PREEMPT AND ABORT (SPC-4, 5.13.11.4). If the key to preempt is the holder's (or zero, if all
    /// registrants hold the reservation), takes over the reservation and removes the registrations with that key.
    /// Otherwise only removes the registrations with that key.
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
            // The remaining registrants get a unit attention condition: the reservation that admitted them
            // now has another type.
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

    /// Performs REGISTER AND MOVE: registers another nexus and gives the reservation to it.
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

    /// Returns true if the nexus `path` holds the reservation.
    pub(super) fn holds(&self, path: &Path) -> bool {
        match &self.reservation {
            None => false,
            Some(PersistentReservation { holder: Some(holder), .. }) => holder == path,
            Some(PersistentReservation { holder: None, .. }) => self.key_of(path).is_some(),
        }
    }

    /// Returns true if the nexus `path` has full access despite the reservation.
    pub(super) fn admits(&self, path: &Path) -> bool {
        let Some(held) = &self.reservation else { return true };
        self.holds(path) || held.kind.admits_registrants() && self.key_of(path).is_some()
    }

    /// Returns which commands of the nexus `path` the reservation excludes.
    pub(super) fn barred(&self, path: &Path) -> Barred {
        match &self.reservation {
            Some(held) if !self.admits(path) => barred(held.kind),
            _ => Barred::Nothing,
        }
    }

    /// Returns the reservation in the form that READ RESERVATION reports.
    pub(super) fn held(&self) -> Option<ReservationHeld> {
        let held = self.reservation.as_ref()?;
        let key = held.holder.as_ref().and_then(|holder| self.key_of(holder)).unwrap_or(0);
        Some(ReservationHeld { key, kind: held.kind })
    }

    /// Returns the registrations in the form that READ FULL STATUS reports.
    pub(super) fn full_status(&self) -> impl Iterator<Item = FullStatus> + '_ {
        let kind = self.reservation.as_ref().map(|held| held.kind);
        self.registrants.iter().map(move |registrant| FullStatus {
            key: registrant.key,
            held: kind.filter(|_| self.holds(&registrant.path)),
            target_port: registrant.path.target,
            port: TransportId(registrant.path.initiator.to_string()),
        })
    }

    /// Checks that the nexus `from` is registered with the key `key`.
    fn check_key(&self, from: &Path, key: u64) -> Result<(), UnitCommandFailure> {
        if self.key_of(from) == Some(key) { Ok(()) } else { Err(UnitCommandFailure::Conflict) }
    }

    /// Registers the nexus `path` with the key `key`, or changes its key.
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

    /// Removes a registration at its owner's request, and the reservation if the owner held it.
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

    /// Removes the registrations for which `doomed` returns true, and returns the notices for their nexuses.
    fn drop_registrants(&mut self, doomed: impl Fn(&Registrant) -> bool) -> ReservationNotices {
        let (gone, kept) = self.registrants.drain(..).partition(doomed);
        self.registrants = kept;
        if self.registrants.is_empty() {
            self.reservation = None;
        }
        let gone: Vec<Registrant> = gone;
        gone.into_iter().map(|r| (r.path, Sense::REGISTRATIONS_PREEMPTED)).collect()
    }

    /// Returns the notices for the end of a reservation of this type: for every nexus that it admitted except
    /// `by`, which ended it.
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

/// Maximum number of registrations of one unit: 64 hosts with 64 paths each. A record of them is smaller than 1.1 MiB,
/// and so is READ FULL STATUS.
pub(super) const MOST_REGISTRANTS: usize = 4096;
/// Offsets of fields in the parameter lists of PERSISTENT RESERVE OUT.
const ACTION_KEY: u16 = 8;
const TARGET_PORT: u16 = 18;
const FLAGS: u16 = 20;
const LIST: u16 = 24;
