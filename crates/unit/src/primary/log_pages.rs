//! LOG SENSE and LOG SELECT (SPC-4, 6.7 and 6.8).

use scsi::{
    LogSelect, LogSense, PageControl, Sense,
    log::{InformationalExceptions, LogPage, supported_log_pages, supported_log_subpages},
};
use volume::Data;

use crate::{
    Completion,
    primary::reply::{parameter_list, taking, taking_with},
};

/// LOG SENSE of a unit whose device type adds `own` pages.
pub(super) fn log_sense(asked: &LogSense, own: Vec<LogPage>) -> Result<Vec<u8>, Sense> {
    if asked.save {
        return Err(Sense::invalid_bit_in_cdb(1, 0));
    }
    let codes = codes(&own);
    let page = match (asked.page, asked.subpage) {
        (0x00, 0x00) => {
            let codes = codes.iter().filter(|(_, subpage)| *subpage == 0);
            return Ok(supported_log_pages(&codes.map(|(page, _)| *page).collect::<Vec<_>>()));
        }
        (0x00, 0xff) => return Ok(supported_log_subpages(&codes)),
        (InformationalExceptions::PAGE, 0) => InformationalExceptions::default().to_page(),
        wanted => match own.into_iter().find(|page| (page.code, page.subpage) == wanted) {
            Some(page) => page,
            None if codes.contains(&(asked.page, 0)) => return Err(Sense::invalid_field_in_cdb(3)),
            None => return Err(Sense::invalid_field_in_cdb(2)),
        },
    };
    // No page has thresholds or defaults, since none counts events.
    if asked.control != CUMULATIVE {
        return Err(Sense::invalid_bit_in_cdb(2, 7));
    }
    if page.parameters.iter().all(|parameter| parameter.code < asked.first_parameter) {
        return Err(Sense::invalid_field_in_cdb(5));
    }
    Ok(page.to_bytes(asked.first_parameter))
}

/// LOG SELECT. It changes nothing: no page has a counter to reset or a parameter to set.
pub(super) fn log_select(
    select: &LogSelect,
    own: &[LogPage],
    data: &Data,
) -> Result<Completion, Completion> {
    let length = u32::from(select.parameter_list_length);
    if select.save {
        return Err(Sense::invalid_bit_in_cdb(1, 0).into());
    }
    if select.page != 0 && !codes(own).contains(&(select.page, select.subpage)) {
        return Err(Sense::invalid_field_in_cdb(2).into());
    }
    if length == 0 {
        return Ok(taking(0));
    }
    // A command with PCR (reset of the parameters) must not have a parameter list (SPC-4, 6.7).
    if select.reset {
        return Err(Sense::invalid_bit_in_cdb(1, 1).into());
    }
    parameter_list(data, length as usize)?;
    Err(taking_with(length, Sense::invalid_field_in_parameter_list(0).into()))
}

/// Codes of log pages and subpages, ascending.
fn codes(own: &[LogPage]) -> Vec<(u8, u8)> {
    let mut codes = vec![(0x00, 0x00), (0x00, 0xff)];
    codes.extend(own.iter().map(|page| (page.code, page.subpage)));
    codes.push((InformationalExceptions::PAGE, 0));
    codes
}

/// PC 01b requests cumulative values in LOG SENSE, but changeable values in MODE SENSE.
const CUMULATIVE: PageControl = PageControl::Changeable;
