//! The part of a unit that does not depend on its device type: commands of SPC, reservations, attentions, task order.

pub(crate) mod attention;
pub(crate) mod reservation;
pub(crate) mod modes;
pub(crate) mod timestamp;
pub(crate) mod identifying;
pub(crate) mod order;
