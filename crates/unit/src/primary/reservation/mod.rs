//! Reservations of one unit: those of RESERVE (SPC-2) and persistent reservations (SPC-4, 5.13), and the commands of
//! other nexuses that they refuse.
//!
//! Registrations belong to a nexus by its name and outlast its sessions. A RESERVE belongs to a session and
//! ends with it.

mod conflict;
mod state;
mod record;

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use scsi::{
    PersistentReserveOut, PrimaryCommand, Sense,
    persistent::{self, Capabilities, MoveParameters, OutParameters, ReserveAction, ReserveReport},
};

use self::{
    conflict::{Barred, barred_by_reserve},
    state::{Path, ReservationNotices, ReservationState},
};
use crate::{
    Nexus,
    primary::effect::DeviceCommand,
    sense::UnitCommandFailure,
    store::{UnitRecordKind, UnitStore, damaged},
};

pub(crate) struct Reservations {
    /// True while a reservation may refuse a command. Written under the lock. While it is false, a command
    /// need not take the lock.
    any: AtomicBool,
    /// Number of changes of `inner`. Written under the lock.
    generation: AtomicU64,
    inner: Mutex<ReservationTable>,
    /// The record that the store is known to hold; `None` while that is uncertain. A change holds this lock until its
    /// record is saved, so that changes happen one after the other.
    saved: tokio::sync::Mutex<Option<Vec<u8>>>,
    store: Option<Arc<dyn UnitStore>>,
}

#[derive(Default)]
struct ReservationTable {
    state: ReservationState,
    /// The session that holds a RESERVE.
    reserved: Option<u64>,
    /// The open sessions by number: the nexus of each, and the commands that it is refused.
    sessions: HashMap<u64, (Path, Barred)>,
}

/// A unit attention condition, after the number of the session that has to receive it.
pub(crate) type Attention = (u64, Sense);

impl Reservations {
    /// Creates the reservation state of a unit without a store. There are no reservations.
    pub(crate) fn new() -> Self {
        Self {
            any: AtomicBool::new(false),
            generation: AtomicU64::new(0),
            inner: Mutex::default(),
            saved: tokio::sync::Mutex::new(None),
            store: None,
        }
    }

    pub(crate) fn load(store: Arc<dyn UnitStore>) -> io::Result<Self> {
        let saved = store.load(UnitRecordKind::Reservations)?.unwrap_or_default();
        let state = ReservationState::from_record(&saved)
            .ok_or_else(|| damaged(UnitRecordKind::Reservations))?;
        let reservations =
            Self { saved: tokio::sync::Mutex::new(Some(saved)), store: Some(store), ..Self::new() };
        reservations.change_inner(|inner| inner.state = state);
        Ok(reservations)
    }

    /// Returns the record of the reservations in force, those included that a loss of power here would end.
    /// After a move, the unit must refuse the same nexuses as before.
    pub(crate) fn to_move(&self) -> Vec<u8> {
        let state = self.inner.lock().state.clone();
        ReservationState { persist: true, ..state }.to_record()
    }

    /// Adds a session that has begun.
    pub(crate) fn open(&self, nexus: &Nexus) {
        self.change_inner(|inner| {
            inner.sessions.insert(nexus.number, (path(nexus), Barred::Nothing));
        });
    }

    /// Removes a session that has ended, and its reservation by RESERVE.
    pub(crate) fn close(&self, nexus: u64) {
        self.change_inner(|inner| {
            inner.sessions.remove(&nexus);
            inner.reserved = inner.reserved.filter(|holder| *holder != nexus);
        });
    }

    /// Ends a reservation by RESERVE because of a reset. Persistent reservations survive a reset.
    pub(crate) fn reset(&self) {
        self.change_inner(|inner| inner.reserved = None);
    }

    /// Returns the number of changes so far. While it stays the same, [`Self::bar`] has the same result for the same
    /// command and session.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns true if the command conflicts with a reservation of another nexus.
    pub(crate) fn bar(&self, nexus: u64, command: &impl DeviceCommand) -> bool {
        if !self.any.load(Ordering::Acquire) {
            return false;
        }
        let primary = command.primary();
        if matches!(primary, Some(PrimaryCommand::Reserve { .. } | PrimaryCommand::Release { .. }))
        {
            return false;
        }
        let inner = self.inner.lock();
        match inner.reserved {
            // A nexus that uses one kind of reservation may not use the other (SPC-2, 5.5.1).
            Some(holder) if holder == nexus => matches!(
                primary,
                Some(
                    PrimaryCommand::PersistentReserveIn(_)
                        | PrimaryCommand::PersistentReserveOut(_)
                )
            ),
            Some(_) => barred_by_reserve(command),
            None => {
                let session = inner.sessions.get(&nexus);
                session.is_some_and(|(_, barred)| barred.from(command))
            }
        }
    }

    /// Performs RESERVE of SPC-2 for the session of this nexus.
    pub(crate) fn reserve(&self, nexus: &Nexus) -> Result<(), UnitCommandFailure> {
        self.change_inner(|inner| {
            if inner.is_beside_persistent(nexus)? {
                return Ok(());
            }
            match inner.reserved {
                Some(holder) if holder != nexus.number => Err(UnitCommandFailure::Conflict),
                _ => {
                    inner.reserved = Some(nexus.number);
                    Ok(())
                }
            }
        })
    }

    /// RELEASE. If the session does not hold the RESERVE, this changes nothing and ends with GOOD (SPC-2,
    /// 7.16).
    pub(crate) fn release(&self, nexus: &Nexus) -> Result<(), UnitCommandFailure> {
        self.change_inner(|inner| {
            if !inner.is_beside_persistent(nexus)? {
                inner.reserved = inner.reserved.filter(|holder| *holder != nexus.number);
            }
            Ok(())
        })
    }

    /// PERSISTENT RESERVE IN: returns the data of the report.
    pub(crate) fn report(&self, report: ReserveReport) -> Vec<u8> {
        let inner = self.inner.lock();
        let state = &inner.state;
        let generation = state.generation;
        match report {
            ReserveReport::Keys => {
                persistent::keys(generation, state.registrants.iter().map(|r| r.key))
            }
            ReserveReport::Reservation => persistent::reservation(generation, state.held()),
            ReserveReport::Capabilities => {
                let can_persist = self.store.is_some();
                Capabilities { can_persist, persists: state.persist }.to_bytes()
            }
            ReserveReport::FullStatus => persistent::full_status(generation, state.full_status()),
        }
    }

    /// PERSISTENT RESERVE OUT with its parameter list. `ports`: all target ports of the unit. If it fails, nothing has
    /// changed. If the future is dropped, the change may or may not have happened.
    pub(crate) async fn change(
        &self,
        nexus: &Nexus,
        asked: PersistentReserveOut,
        list: &[u8],
        ports: &[u16],
    ) -> Result<Vec<Attention>, UnitCommandFailure> {
        let mut saved = self.saved.lock().await;
        let mut state = self.inner.lock().state.clone();
        let news = self.apply(&mut state, &path(nexus), asked.action, list, ports)?;
        if let Some(store) = &self.store {
            let record = state.to_record();
            if saved.as_ref() != Some(&record) {
                *saved = None;
                let kept = store.save(UnitRecordKind::Reservations, record.clone()).await;
                kept.map_err(|_| Sense::INTERNAL_TARGET_FAILURE)?;
                *saved = Some(record);
            }
        }
        Ok(self.change_inner(|inner| {
            inner.state = state;
            inner.address(&news)
        }))
    }

    fn apply(
        &self,
        state: &mut ReservationState,
        from: &Path,
        action: ReserveAction,
        list: &[u8],
        ports: &[u16],
    ) -> Result<ReservationNotices, UnitCommandFailure> {
        if action == ReserveAction::RegisterAndMove {
            let asked = MoveParameters::from_bytes(list)?;
            self.check_persist(asked.persist, 17)?;
            return state.register_and_move(from, &asked, ports);
        }
        let asked = OutParameters::from_bytes(list)?;
        let registers =
            matches!(action, ReserveAction::Register | ReserveAction::RegisterAndIgnoreExistingKey);
        if registers {
            self.check_persist(asked.persist, 20)?;
        } else if asked.ports.is_some() {
            return Err(Sense::invalid_field_in_parameter_list(20).into());
        }
        match action {
            ReserveAction::Register => state.register(from, &asked, false, ports),
            ReserveAction::RegisterAndIgnoreExistingKey => {
                state.register(from, &asked, true, ports)
            }
            ReserveAction::Reserve(kind) => state.reserve(from, &asked, kind),
            ReserveAction::Release(kind) => state.release(from, &asked, kind),
            ReserveAction::Clear => state.clear(from, &asked),
            ReserveAction::Preempt(kind) | ReserveAction::PreemptAndAbort(kind) => {
                state.preempt(from, &asked, kind)
            }
            ReserveAction::RegisterAndMove => unreachable!("it has another list"),
        }
    }

    /// Refuses APTPL=1 (survive a loss of power) if the unit has no store.
    fn check_persist(&self, persist: bool, byte: u16) -> Result<(), Sense> {
        if persist && self.store.is_none() {
            return Err(Sense::invalid_field_in_parameter_list(byte));
        }
        Ok(())
    }

    /// Changes `inner`, and then updates `any`, `generation` and the commands that each session is refused.
    fn change_inner<T>(&self, change: impl FnOnce(&mut ReservationTable) -> T) -> T {
        let mut inner = self.inner.lock();
        let result = change(&mut inner);
        let ReservationTable { state, reserved, sessions } = &mut *inner;
        for (path, barred) in sessions.values_mut() {
            *barred = state.barred(path);
        }
        self.any.store(state.reservation.is_some() || reserved.is_some(), Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
        result
    }
}

impl ReservationTable {
    /// Checks RESERVE and RELEASE while there are registrations (SPC-4, 5.13.3). Returns true if the nexus already has
    /// the access that RESERVE would give it: the command then changes nothing and ends with GOOD.
    fn is_beside_persistent(&self, nexus: &Nexus) -> Result<bool, UnitCommandFailure> {
        let path = path(nexus);
        if self.state.registrants.is_empty() {
            Ok(false)
        } else if self.state.reservation.is_some() && self.state.admits(&path) {
            Ok(true)
        } else {
            Err(UnitCommandFailure::Conflict)
        }
    }

    /// Converts the notices for nexuses into unit attention conditions for their sessions. A nexus without a
    /// session gets the condition of a reset when it returns.
    fn address(&self, news: &ReservationNotices) -> Vec<Attention> {
        let mut attentions = Vec::new();
        for (path, sense) in news {
            let sessions = self.sessions.iter().filter(|(_, (session, _))| session == path);
            attentions.extend(sessions.map(|(number, _)| (*number, *sense)));
        }
        attentions
    }
}

fn path(nexus: &Nexus) -> Path {
    Path { initiator: Arc::clone(&nexus.initiator_port), target: nexus.target_port }
}
