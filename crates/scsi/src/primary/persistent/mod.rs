//! Persistent reservations (SPC-4, 5.13, 6.15, 6.16): CDBs, parameter lists and parameter data. The
//! unit keeps the reservations themselves.

mod command;
mod report;
mod transport_id;
mod parameters;

pub use command::{
    PersistentReserveIn, PersistentReserveOut, ReservationType, ReserveAction, ReserveReport,
};
pub use parameters::{MoveParameters, OutParameters};
pub use report::{Capabilities, FullStatus, ReservationHeld, full_status, keys, reservation};
pub use transport_id::TransportId;
