//! The write modes.
//!
//! Each mode has one file, and all these files have the same functions in the same order: the rules (when a
//! write is acknowledged, whether it is volatile, whether it uses the log, what recovery must find), then
//! write, flush, discard and admit. This file only chooses the file. No other module asks for the mode: they
//! use `ModeRules`.
//!
//! | mode | acknowledged when the write is in | volatile | uses the log | recovery must find |
//! |---|---|---|---|---|
//! | after complete | the log | no, unless NVRAMs are in front of the log | yes | the log |
//! | immediate | the NVRAM | unless the NVRAM survives a power failure | yes | the log and the NVRAM |
//! | at flush | memory | yes | yes | the log up to the last flush |
//! | through, around | the lower volume | no, unless NVRAMs are in front of the log | no | no data of this mode |

mod discard;
mod after_complete;
mod immediate;
mod at_flush;
mod through;

use std::sync::Arc;

use volume::Error;

use crate::{
    core::CacheCore,
    rules::ModeRules,
    settings::{DestageOrder, LogErrorPolicy, Settings, WriteMode},
    write::HostWrite,
};

pub(crate) fn rules(settings: &Settings) -> ModeRules {
    match settings.report {
        WriteMode::AfterComplete => after_complete::rules(settings),
        WriteMode::Immediate => immediate::rules(settings),
        WriteMode::AtFlush => at_flush::rules(settings),
        WriteMode::Through => through::rules(settings),
        WriteMode::Around => through::rules_around(settings),
    }
}

/// Writes sectors. Returns when the mode allows the write to be acknowledged.
///
/// # Errors
/// [`Error::Busy`] means that nothing was changed.
pub(crate) async fn write(core: &Arc<CacheCore>, write: HostWrite) -> Result<(), Error> {
    match core.settings.report {
        WriteMode::AfterComplete => after_complete::write(core, write).await,
        WriteMode::Immediate => immediate::write(core, write).await,
        WriteMode::AtFlush => at_flush::write(core, write).await,
        WriteMode::Through | WriteMode::Around => through::write(core, write).await,
    }
}

/// Begins a flush. Returns true if [`flush`] has to do the rest, and false if all acknowledged writes are stable
/// already.
///
/// # Errors
/// The log is lost, and the lower volume lacks some of its data.
pub(crate) fn begin_flush(core: &Arc<CacheCore>) -> Result<bool, Error> {
    match core.settings.report {
        WriteMode::AfterComplete => after_complete::begin_flush(core),
        WriteMode::Immediate => immediate::begin_flush(core),
        WriteMode::AtFlush => at_flush::begin_flush(core),
        WriteMode::Through | WriteMode::Around => through::begin_flush(core),
    }
}

pub(crate) async fn flush(core: &Arc<CacheCore>) -> Result<(), Error> {
    match core.settings.report {
        WriteMode::AfterComplete => after_complete::flush(core).await,
        WriteMode::Immediate => immediate::flush(core).await,
        WriteMode::AtFlush => at_flush::flush(core).await,
        WriteMode::Through | WriteMode::Around => through::flush(core).await,
    }
}

/// Makes `sectors` sectors from `sector` on read as zeros.
pub(crate) async fn discard(core: &Arc<CacheCore>, sector: u64, sectors: u64) -> Result<(), Error> {
    match core.settings.report {
        WriteMode::AfterComplete => after_complete::discard(core, sector, sectors).await,
        WriteMode::Immediate => immediate::discard(core, sector, sectors).await,
        WriteMode::AtFlush => at_flush::discard(core, sector, sectors).await,
        WriteMode::Through | WriteMode::Around => through::discard(core, sector, sectors).await,
    }
}

/// Checks whether the cache would accept a write of `bytes` bytes at this moment.
pub(crate) fn admit(core: &Arc<CacheCore>, bytes: usize) -> Result<(), Error> {
    match core.settings.report {
        WriteMode::AfterComplete => after_complete::admit(core, bytes),
        WriteMode::Immediate => immediate::admit(core, bytes),
        WriteMode::AtFlush => at_flush::admit(core, bytes),
        WriteMode::Through | WriteMode::Around => through::admit(core),
    }
}

impl Settings {
    /// Checks the settings.
    ///
    /// # Errors
    /// Says which setting is out of its range, or does not fit the mode.
    pub fn validate(&self) -> Result<(), String> {
        self.check_ranges()?;
        match self.report {
            WriteMode::AtFlush => at_flush::check_settings(self),
            _ => Ok(()),
        }
    }
}

/// Returns true if the settings are allowed for a pair: report after completion, strict order, and no writes that
/// bypass the log.
pub(crate) fn fits_pair(settings: &Settings) -> bool {
    settings.report == WriteMode::AfterComplete && goes_through_log(settings)
}

/// Returns true if the settings are allowed for a log of several volumes: no writes that bypass the log, strict
/// order, and an acknowledgment that does not depend on a flush.
pub(crate) fn fits_common(settings: &Settings) -> bool {
    matches!(settings.report, WriteMode::AfterComplete | WriteMode::Immediate)
        && goes_through_log(settings)
}

fn goes_through_log(settings: &Settings) -> bool {
    settings.order == DestageOrder::Strict && settings.on_log_error == LogErrorPolicy::StopWrites
}
