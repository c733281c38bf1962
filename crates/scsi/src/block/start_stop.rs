//! The CDB of START STOP UNIT (SBC-3, 5.22).

use crate::Cdb;

/// The CDB fields of START STOP UNIT.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StartStop {
    /// IMMED: the unit may answer before the operation is complete.
    pub immediate: bool,
    /// POWER CONDITION, 0 to 15. START and LOEJ are valid only if it is 0.
    pub power_condition: u8,
    /// NO_FLUSH bit: the unit need not make its cached data stable before it stops.
    pub no_flush: bool,
    /// LOEJ bit: load the medium if START=1; eject the medium if START=0.
    pub load_eject: bool,
    pub start: bool,
}

impl StartStop {
    /// Returns true if the command stops the unit and requires it to make earlier writes stable
    /// first.
    #[must_use]
    pub fn flushes(&self) -> bool {
        self.power_condition == 0 && !self.start && !self.no_flush
    }

    pub(crate) fn encode(self) -> Cdb {
        let flags = self.power_condition << 4
            | u8::from(self.no_flush) << 2
            | u8::from(self.load_eject) << 1
            | u8::from(self.start);
        Cdb::new(&[0x1b, u8::from(self.immediate), 0, 0, flags, 0])
    }

    pub(crate) fn parse(cdb: &[u8]) -> Self {
        Self {
            immediate: cdb[1] & 0x01 != 0,
            power_condition: cdb[4] >> 4,
            no_flush: cdb[4] & 0x04 != 0,
            load_eject: cdb[4] & 0x02 != 0,
            start: cdb[4] & 0x01 != 0,
        }
    }
}
