//! The CDBs of PERSISTENT RESERVE IN and OUT (SPC-4, 6.15 and 6.16).

use crate::{
    Cdb, Sense,
    field::{be16, be32},
};

/// The CDB fields of PERSISTENT RESERVE IN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PersistentReserveIn {
    pub report: ReserveReport,
    pub allocation_length: u16,
}

/// The service actions of PERSISTENT RESERVE IN (SPC-4, table 205).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum ReserveReport {
    Keys = 0,
    Reservation = 1,
    Capabilities = 2,
    FullStatus = 3,
}

/// The CDB fields of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PersistentReserveOut {
    pub action: ReserveAction,
    pub parameter_list_length: u32,
}

/// The service actions of PERSISTENT RESERVE OUT (SPC-4, table 214), with the TYPE of the
/// reservation if the action has one. The scope is always the logical unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReserveAction {
    Register,
    Reserve(ReservationType),
    Release(ReservationType),
    Clear,
    Preempt(ReservationType),
    PreemptAndAbort(ReservationType),
    RegisterAndIgnoreExistingKey,
    RegisterAndMove,
}

/// The types of a persistent reservation (SPC-4, table 212).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum ReservationType {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

impl PersistentReserveIn {
    pub(crate) fn encode(self) -> Cdb {
        let [high, low] = self.allocation_length.to_be_bytes();
        Cdb::new(&[0x5e, self.report as u8, 0, 0, 0, 0, 0, high, low, 0])
    }

    /// Parses a CDB of PERSISTENT RESERVE IN. The caller has evaluated the service action and
    /// passes it as `report`.
    pub(crate) fn parse(report: ReserveReport, cdb: &[u8]) -> Self {
        Self { report, allocation_length: be16(cdb, 7) }
    }
}

impl PersistentReserveOut {
    pub(crate) fn encode(self) -> Cdb {
        let (action, kind) = self.action.numbers();
        let mut cdb = [0; 10];
        cdb[..3].copy_from_slice(&[0x5f, action, kind]);
        cdb[5..9].copy_from_slice(&self.parameter_list_length.to_be_bytes());
        Cdb::new(&cdb)
    }

    /// Parses a CDB of PERSISTENT RESERVE OUT. The caller has evaluated the service action and the
    /// type.
    pub(crate) fn parse(action: ReserveAction, cdb: &[u8]) -> Self {
        Self { action, parameter_list_length: be32(cdb, 5) }
    }

    /// Parses a CDB of PERSISTENT RESERVE OUT whose service action needs a reservation type.
    pub(crate) fn parse_typed(
        action: fn(ReservationType) -> ReserveAction,
        cdb: &[u8],
    ) -> Result<Self, Sense> {
        // SCOPE must be 0, which is the logical unit.
        if cdb[2] >> 4 != 0 {
            return Err(Sense::invalid_bit_in_cdb(2, 7));
        }
        let kind = ReservationType::from_number(cdb[2]);
        let kind = kind.ok_or(Sense::invalid_bit_in_cdb(2, 3))?;
        Ok(Self::parse(action(kind), cdb))
    }
}

impl ReserveAction {
    /// Returns the numbers of the service action and of the type for the CDB.
    fn numbers(self) -> (u8, u8) {
        match self {
            Self::Register => (0, 0),
            Self::Reserve(kind) => (1, kind as u8),
            Self::Release(kind) => (2, kind as u8),
            Self::Clear => (3, 0),
            Self::Preempt(kind) => (4, kind as u8),
            Self::PreemptAndAbort(kind) => (5, kind as u8),
            Self::RegisterAndIgnoreExistingKey => (6, 0),
            Self::RegisterAndMove => (7, 0),
        }
    }
}

impl ReservationType {
    /// All types of reservations, in the order of their codes.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Returns true if every registered nexus holds the reservation.
    #[must_use]
    pub fn all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Returns true if every registered nexus has the same access to the unit as the holder.
    #[must_use]
    pub fn admits_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Returns true if this type of reservation also prevents other nexuses from reading.
    #[must_use]
    pub fn excludes_reading(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess
                | Self::ExclusiveAccessRegistrantsOnly
                | Self::ExclusiveAccessAllRegistrants
        )
    }
}
