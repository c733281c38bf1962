//! The CDBs of LOG SENSE and LOG SELECT.

use crate::{Cdb, PageControl, field::be16};

/// The CDB fields of LOG SENSE.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogSense {
    /// SP bit: the unit saves the log parameters.
    pub save: bool,
    /// PC: threshold or cumulative values, current or default (SPC-4, table 193). The values of the
    /// field are the same as in PAGE CONTROL of mode pages. Initiators usually request 01b, current
    /// cumulative values.
    pub control: PageControl,
    pub page: u8,
    pub subpage: u8,
    /// PARAMETER POINTER: the first parameter to return.
    pub first_parameter: u16,
    pub allocation_length: u16,
}

/// The CDB fields of LOG SELECT.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogSelect {
    /// PCR: reset the counters to zero.
    pub reset: bool,
    /// SP bit: the unit saves the log parameters.
    pub save: bool,
    pub control: PageControl,
    /// PAGE CODE; 0 stands for all pages.
    pub page: u8,
    pub subpage: u8,
    pub parameter_list_length: u16,
}

impl LogSense {
    pub(crate) fn encode(self) -> Cdb {
        let page = (self.control as u8) << 6 | self.page & 0x3f;
        let [first_high, first_low] = self.first_parameter.to_be_bytes();
        let [high, low] = self.allocation_length.to_be_bytes();
        let save = u8::from(self.save);
        Cdb::new(&[0x4d, save, page, self.subpage, 0, first_high, first_low, high, low, 0])
    }

    pub(crate) fn parse(cdb: &[u8]) -> Self {
        Self {
            save: cdb[1] & 0x01 != 0,
            control: PageControl::from_bits(cdb[2] >> 6),
            page: cdb[2] & 0x3f,
            subpage: cdb[3],
            first_parameter: be16(cdb, 5),
            allocation_length: be16(cdb, 7),
        }
    }
}

impl LogSelect {
    pub(crate) fn encode(self) -> Cdb {
        let flags = u8::from(self.reset) << 1 | u8::from(self.save);
        let page = (self.control as u8) << 6 | self.page & 0x3f;
        let [high, low] = self.parameter_list_length.to_be_bytes();
        Cdb::new(&[0x4c, flags, page, self.subpage, 0, 0, 0, high, low, 0])
    }

    pub(crate) fn parse(cdb: &[u8]) -> Self {
        Self {
            reset: cdb[1] & 0x02 != 0,
            save: cdb[1] & 0x01 != 0,
            control: PageControl::from_bits(cdb[2] >> 6),
            page: cdb[2] & 0x3f,
            subpage: cdb[3],
            parameter_list_length: be16(cdb, 7),
        }
    }
}
