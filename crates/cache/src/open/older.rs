//! Detects that a log or an NVRAM was replaced by an older copy of itself.

use journal::{recovery::Scan, superblock::Superblock};

use crate::{
    confirmed::{BootId, ConfirmedIn, ConfirmedWrites},
    inspect::{LogInfo, complete},
    nvram::{self, StableMemory},
    refusal::CacheOpenError,
    rules::ModeRules,
    settings::{NvramSurvival, Settings},
};

/// Returns the confirmed numbers of this log, as recorded in the store that the settings name.
pub(crate) fn recall(
    settings: &Settings,
    superblock: &Superblock,
) -> Result<Option<ConfirmedWrites>, CacheOpenError> {
    let Some(ConfirmedIn(store)) = &settings.confirmed_in else { return Ok(None) };
    store.recall(superblock.instance).map_err(CacheOpenError::Confirmed)
}

/// Returns the boot id for the superblock: the current one, if acknowledged writes may be in an NVRAM that
/// does not survive a reboot.
pub(crate) fn boot(settings: &Settings, rules: &ModeRules) -> Option<[u8; 16]> {
    let is_lost = settings.nvram_survives == NvramSurvival::Restart;
    let boot = settings.boot.filter(|_| is_lost && rules.keeps_in_nvram);
    boot.map(|BootId(bytes)| bytes)
}

/// Returns true if the machine has been rebooted since the log was open, or is another one, and the NVRAM was
/// not declared to survive that. Then the NVRAM must not be used: some of its pages may be as old as their
/// last write-back by the system, and the remaining writes would not be a consistent prefix. An unknown boot
/// id counts as another one.
pub(crate) fn is_nvram_void(settings: &Settings, superblock: &Superblock) -> bool {
    let is_in_use = superblock.immediate && !superblock.clean;
    is_in_use && superblock.boot.is_some_and(|then| settings.boot != Some(BootId(then)))
}

/// Reports which acknowledged writes may be lost with a [void NVRAM](is_nvram_void). `slots` is the number of
/// slots that the NVRAM holds.
pub(crate) fn report_void_nvram(
    settings: &Settings,
    superblock: &Superblock,
    found: &Scan,
    slots: u32,
) {
    let confirmed_at =
        settings.confirmed_in.as_ref().and_then(|ConfirmedIn(store)| store.noted_at());
    tracing::warn!(
        log = %superblock.instance, write = found.complete, segment = found.ring.next() - 1,
        at_most = slots, last_confirmed = confirmed_at.as_deref().unwrap_or("not known"),
        remedy = "check the file systems of the volume, and write the data of that moment again; on \
         persistent memory, set `nvram_survives = \"power-loss\"`",
        "the machine was rebooted, and the NVRAM was not declared to survive that: the log ends at \
         this write, and writes that were acknowledged after it are lost; they arrived while the next \
         segment was being written, are no more than at_most blocks of 4096 bytes, and were \
         acknowledged about a second after last_confirmed at the latest"
    );
}

/// Refuses an NVRAM that has not recorded the newest segment of its log: it is an older copy and lacks writes
/// that were acknowledged later. `noted` is the newest segment that the NVRAM has recorded.
pub(crate) fn check_nvram(
    superblock: &Superblock,
    found: &Scan,
    noted: u64,
) -> Result<(), CacheOpenError> {
    let committed = superblock.noted.then_some(superblock.committed);
    let needed = found.noted.max(committed).unwrap_or(0);
    if noted < needed {
        return Err(CacheOpenError::NvramBehind { segment: needed, noted });
    }
    Ok(())
}

/// Refuses a log that ends before the confirmed numbers. `newest` is the newest write in the log and the NVRAM.
pub(crate) fn check_confirmed(
    settings: &Settings,
    confirmed: ConfirmedWrites,
    (superblock, found): (&Superblock, &Scan),
    newest: u64,
) -> Result<(), CacheOpenError> {
    compare((complete(superblock, found), newest), confirmed, settings.boot)
}

/// Checks log and NVRAM as an opening in this boot would: refuses them if they are an older copy. Changes
/// nothing.
///
/// # Errors
/// [`CacheOpenError::Behind`].
pub fn check_older(
    log: &LogInfo,
    nvram: Option<&dyn StableMemory>,
    confirmed: ConfirmedWrites,
    boot: Option<BootId>,
) -> Result<(), CacheOpenError> {
    let held = nvram.map_or(0, |memory| nvram::newest_write(memory, log.instance));
    compare((log.complete, log.newest.max(held)), confirmed, boot)
}

fn compare(
    (ends, newest): (u64, u64),
    confirmed: ConfirmedWrites,
    boot: Option<BootId>,
) -> Result<(), CacheOpenError> {
    if ends < confirmed.logged {
        return Err(CacheOpenError::Behind { ends, confirmed: confirmed.logged });
    }
    let holds = confirmed.boot.is_none() || confirmed.boot == boot;
    if holds && newest < confirmed.kept {
        return Err(CacheOpenError::Behind { ends: newest, confirmed: confirmed.kept });
    }
    Ok(())
}
