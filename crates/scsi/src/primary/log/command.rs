//! The CDBs of LOG SENSE and LOG SELECT.

use crate::{Cdb, PageControl, field::be16};

/// LOG SENSE's fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogSense {
    /// SP: the parameters are saved, too.
    pub save: bool,
    /// PC: threshold or cumulative values, current or default (SPC-4, table 193). The bits are
    /// those of a mode page's control: 01b, current cumulative, is what everybody asks for.
    pub control: PageControl,
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// PARAMETER POINTER: the first parameter that is wanted.
    pub first_parameter: u16,
    /// At most this many bytes come back.
    pub allocation_length: u16,
}

/// LOG SELECT's fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogSelect {
    /// PCR: counters go back to zero.
    pub reset: bool,
    /// SP: the parameters are saved, too.
    pub save: bool,
    /// PC.
    pub control: PageControl,
    /// PAGE CODE; 0: all pages.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// Bytes of parameter list that come with it.
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
