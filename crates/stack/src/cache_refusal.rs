//! Messages of a cache that cannot use its log or NVRAM, with the remedy for each cause.

use std::{os::unix::fs::FileTypeExt, path::Path};

use cache::{CacheOpenError, KeyRefusal};
use config::{UNMOUNT_REMEDY, quoted};
use control::Failure;
use volume::Claim;

use crate::not_opened::NotOpened;

/// Decides which units an error of a cache affects. If a log, NVRAM or far volume cannot be used, only the units of
/// this cache are not served. A wrong setting ends the start of the process. So does a pair whose node supports no
/// claims (`NoWitness`) or has not granted the claim (`Unwitnessed`): the gateway then cannot know which mirror leg is
/// current.
pub fn not_opened(settings: &config::CacheLayerSettings, error: &CacheOpenError) -> NotOpened {
    let failure = refusal(settings, error);
    match error {
        CacheOpenError::Settings(_) | CacheOpenError::Unwitnessed | CacheOpenError::NoWitness => {
            NotOpened::Failed(failure)
        }
        CacheOpenError::Log(_)
        | CacheOpenError::NotALog
        | CacheOpenError::Version { .. }
        | CacheOpenError::Size(_)
        | CacheOpenError::Truncated { .. }
        | CacheOpenError::OtherVolume { .. }
        | CacheOpenError::Absent { .. }
        | CacheOpenError::GivenUp { .. }
        | CacheOpenError::Beyond { .. }
        | CacheOpenError::Geometry { .. }
        | CacheOpenError::Key(_)
        | CacheOpenError::Missing(_)
        | CacheOpenError::NvramMissing(_)
        | CacheOpenError::NvramBehind { .. }
        | CacheOpenError::Behind { .. }
        | CacheOpenError::Confirmed(_)
        | CacheOpenError::Nvram(_)
        | CacheOpenError::OtherNvram { .. }
        | CacheOpenError::LogMissing { .. }
        | CacheOpenError::Claim(_)
        | CacheOpenError::Dirty { .. } => NotOpened::Refused(failure),
    }
}

/// Returns the message and the remedy for a log that cannot be used.
pub fn refusal(settings: &config::CacheLayerSettings, error: &CacheOpenError) -> Failure {
    let remedy = match error {
        CacheOpenError::Settings(_) => "correct that setting of the cache".to_owned(),
        CacheOpenError::Log(_)
        | CacheOpenError::NotALog
        | CacheOpenError::Version { .. }
        | CacheOpenError::Size(_)
        | CacheOpenError::Truncated { .. }
        | CacheOpenError::OtherVolume { .. }
        | CacheOpenError::Geometry { .. }
        | CacheOpenError::Missing(_)
        | CacheOpenError::LogMissing { .. }
        | CacheOpenError::Dirty { .. } => log_remedy(settings, error),
        CacheOpenError::Key(KeyRefusal::Missing | KeyRefusal::Other) => {
            "name the key file with which it was encrypted as `log_key`; an empty log accepts another key when \
             it is opened"
                .into()
        }
        CacheOpenError::Key(KeyRefusal::Needless) => {
            "start without `log_key`, drain it (`forebay gateway drain`) and stop; with `log_key` it is \
             encrypted from then on"
                .into()
        }
        CacheOpenError::Nvram(_)
        | CacheOpenError::NvramMissing(_)
        | CacheOpenError::OtherNvram { .. }
        | CacheOpenError::NvramBehind { .. } => nvram_remedy(error),
        CacheOpenError::Behind { .. } | CacheOpenError::Confirmed(_) => copy_remedy(settings, error),
        CacheOpenError::Absent { .. }
        | CacheOpenError::GivenUp { .. }
        | CacheOpenError::Beyond { .. } => member_remedy(settings, error),
        CacheOpenError::Claim(reason) => claim_remedy(settings, reason),
        CacheOpenError::NoWitness => "serve the far volume from a Forebay node that has a `state` folder, and \
                                      put the cache directly on the remote layer; or remove `pair` from the \
                                      cache"
            .into(),
        CacheOpenError::Unwitnessed => "start the partner or the node".into(),
    };
    Failure::new(format!("cannot use the log {}: {error}", settings.log.display())).remedy(remedy)
}

/// The last part of remedies for a log or an NVRAM that lacks acknowledged writes.
const ACCEPT_LOSS: &str = "set `accept_loss = true` for one start to continue with the undamaged data, and \
                           check the content of the volume";

/// Returns instructions for the operator to discard the log together with its record.
fn give_up_with_record(settings: &config::CacheLayerSettings) -> String {
    format!(
        "{}, and remove its record (`{}`)",
        give_up_log(settings),
        config::forget_command(&settings.config, &settings.log, true)
    )
}

/// Returns the remedy for a log disk with the wrong content or size.
fn log_remedy(settings: &config::CacheLayerSettings, error: &CacheOpenError) -> String {
    let path = quoted(&settings.log);
    let zero = give_up_with_record(settings);
    match error {
        CacheOpenError::NotALog => {
            format!(
                "name the right file or device; to discard the content of this one, {UNMOUNT_REMEDY}; then {zero}"
            )
        }
        CacheOpenError::Version { found, supported, .. } if found > supported => {
            "use the newer Forebay".into()
        }
        CacheOpenError::Version { .. } => format!(
            "drain it with the Forebay that wrote it (`dirty_bytes` 0 in `forebay status`), then \
             {zero}"
        ),
        CacheOpenError::Size(_) => "give it another `log_size`, or another device".into(),
        CacheOpenError::Truncated { recorded, .. } => format!(
            "restore the complete log; if it is lost, give the file its former length \
             (`truncate -s {} {path}`) and start; if acknowledged writes are missing from it then, \
             {UNMOUNT_REMEDY}; then {ACCEPT_LOSS}",
            recorded.saturating_mul(4096)
        ),
        CacheOpenError::OtherVolume { .. } => format!(
            "name that volume's own log, or point the stack at the log's volume; once that log \
             is drained, {zero} to use it here"
        ),
        CacheOpenError::Geometry { .. } => format!(
            "give the volume its former size back until the log is drained (`dirty_bytes` 0 in \
             `forebay status`), then {zero}"
        ),
        CacheOpenError::Missing(_) => format!(
            "restore the undamaged log; if it is lost, {UNMOUNT_REMEDY}; then {ACCEPT_LOSS}"
        ),
        CacheOpenError::LogMissing { .. } => format!(
            "put the log back under {path}; to continue with a new one, and lose the content of that log, \
             {UNMOUNT_REMEDY}; then set `accept_loss = true` for one start"
        ),
        CacheOpenError::Dirty { .. } => {
            format!("drain it; to discard its content, {UNMOUNT_REMEDY}; then {zero}")
        }
        _ => "check the disk of the log; its content may be needed".into(),
    }
}

/// Returns the remedy for an NVRAM that is missing, older than the log, or belongs to another log.
fn nvram_remedy(error: &CacheOpenError) -> String {
    match error {
        CacheOpenError::NvramMissing(_) | CacheOpenError::OtherNvram { .. } => {
            format!(
                "name the NVRAM file that belongs to it with `nvram`; if it is lost, {UNMOUNT_REMEDY}; then \
                 {ACCEPT_LOSS}"
            )
        }
        CacheOpenError::NvramBehind { .. } => {
            format!(
                "restore the newest NVRAM file; if it is lost, {UNMOUNT_REMEDY}; then {ACCEPT_LOSS}"
            )
        }
        _ => "check the storage of the NVRAM file; its content is needed".into(),
    }
}

/// Returns the remedy for a log that is an older copy, or for which that cannot be decided.
fn copy_remedy(settings: &config::CacheLayerSettings, error: &CacheOpenError) -> String {
    match error {
        CacheOpenError::Behind { .. } if settings.pair.is_some() => {
            "start its partner first: it serves, and fills this log again; if the partner is lost, see \
             docs/reference/pair.md"
                .into()
        }
        CacheOpenError::Behind { .. } => older_log(
            settings,
            "if the far volume is at a Forebay node, end the claim there (`forebay claim drop TARGET/LUN \
             --lose-dirty-data --hosts-unmounted`), ",
        ),
        _ => "give the user of this process read and write access to that file, or restore it; or, if log and \
              NVRAM were not restored from a copy, delete it"
            .into(),
    }
}

/// Returns the remedy for a log of several volumes, one of which is missing or was removed.
fn member_remedy(settings: &config::CacheLayerSettings, error: &CacheOpenError) -> String {
    let zero = give_up_with_record(settings);
    match error {
        CacheOpenError::Absent { .. } => format!(
            "serve that volume with this common cache again until the log is drained \
             (`forebay gateway drain`), and remove it then; if it is lost, `forebay gateway give-up` it; to \
             discard the log's data of all volumes, {UNMOUNT_REMEDY}; then {zero}"
        ),
        CacheOpenError::GivenUp { .. } => {
            "remove its unit from the settings; or add it again with the content of its far volume: \
             `forebay gateway take-in`"
                .into()
        }
        _ => {
            format!(
                "restore the undamaged log; to discard its data of all volumes, {UNMOUNT_REMEDY}; then {zero}"
            )
        }
    }
}

/// Returns the remedy for a far volume that another log has claimed. `reason` is the node's answer. The log may be new
/// and blank: then there is nothing in it to adopt.
fn claim_remedy(settings: &config::CacheLayerSettings, reason: &str) -> String {
    let path = quoted(&settings.log);
    if reason.contains(initiator::OURSELVES) {
        return format!(
            "the log of this gateway that has the claim is missing, or another gateway has the same \
             `initiator_name`: put that log back under {path}; if it is lost, {UNMOUNT_REMEDY}; then, at the \
             node, `forebay claim drop TARGET/LUN --lose-dirty-data --hosts-unmounted`"
        );
    }
    if reason.contains(initiator::DATA_ELSEWHERE) {
        return format!(
            "let that gateway drain (`forebay gateway drain`) and stop, or bring its log here and adopt it \
             (docs/guide/move.md); if that log is lost, {UNMOUNT_REMEDY}; then, at the node, \
             `forebay claim drop TARGET/LUN --lose-dirty-data --hosts-unmounted`"
        );
    }
    if reason.contains(initiator::COPY_IN_USE) {
        return "stop that gateway; or continue with this copy in its place: `forebay gateway adopt` \
                (docs/guide/move.md)"
            .to_owned();
    }
    if reason.contains(Claim::OLDER_LOG) {
        return older_log(
            settings,
            "end the claim at the node (`forebay claim drop TARGET/LUN --lose-dirty-data --hosts-unmounted` there), ",
        );
    }
    if reason.contains(initiator::NODE_IS_OLDER) {
        return format!(
            "restore the node's newest `state` folder and volume; if they are lost, {UNMOUNT_REMEDY}; then set \
             `accept_loss = true` for one start, and check the content of the volume"
        );
    }
    "see the owner of the claim with `forebay claim show` at the node, and find the message in \
     docs/reference/claims.md#refused-logs"
        .to_owned()
}

/// Returns the remedy for a log that is an older copy of itself. `first` is a step to take before the log is
/// discarded.
fn older_log(settings: &config::CacheLayerSettings, first: &str) -> String {
    let nvram = settings.nvram.as_ref();
    let nvram = nvram
        .map_or_else(String::new, |path| format!(", remove the NVRAM (`rm {}`)", quoted(path)));
    format!(
        "restore the newest log and NVRAM. If they are lost, {UNMOUNT_REMEDY}; then discard this copy: \
         {first}{}{nvram}, remove the log's record (`{}`), and start; the volume then keeps its content, \
         and writes that only this log holds are lost. `accept_loss = true` does the opposite: it writes the \
         older data of this copy over newer data of the volume",
        give_up_log(settings),
        config::forget_command(&settings.config, &settings.log, true)
    )
}

/// Returns the instructions to discard the content of the log and of the other leg of its mirror.
fn give_up_log(settings: &config::CacheLayerSettings) -> String {
    let paths = [Some(&settings.log), settings.log_mirror.as_ref()];
    let commands: Vec<_> = paths.into_iter().flatten().map(|path| give_up(path)).collect();
    commands.join(", ")
}

/// Returns the instruction, with the command, to discard the content of a log: a file is removed, a block
/// device overwritten.
fn give_up(log: &Path) -> String {
    let path = quoted(log);
    match std::fs::metadata(log) {
        Ok(found) if found.file_type().is_block_device() => format!(
            "write zeros over its first MiB (`dd if=/dev/zero of={path} bs=1M count=1 conv=notrunc`)"
        ),
        _ => format!("remove it (`rm {path}`)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wrong_setting_or_an_undecided_pair_ends_the_start() {
        let cache = config::CacheLayerSettings {
            log: "/srv/a b.log".into(),
            ..config::CacheLayerSettings::default()
        };
        let is_refused =
            |error: &CacheOpenError| matches!(not_opened(&cache, error), NotOpened::Refused(_));
        let geometry = CacheOpenError::Geometry {
            recorded_blocks: 9,
            recorded_size: 512,
            blocks: 8,
            size: 512,
        };
        let version = CacheOpenError::Version { what: "log", found: 1, supported: 2 };
        let broken = CacheOpenError::Log(volume::Error::Device("it does not answer".into()));
        let key = CacheOpenError::Key(KeyRefusal::Other);
        for error in [geometry, version, broken, key, CacheOpenError::Size("too small".into())] {
            assert!(is_refused(&error), "{error}");
        }
        for error in [CacheOpenError::Settings("wrong".into()), CacheOpenError::Unwitnessed] {
            assert!(!is_refused(&error), "{error}");
        }
    }

    #[test]
    fn a_remedy_that_leaves_older_content_says_to_unmount_first() {
        let cache = config::CacheLayerSettings::default();
        let claims = [
            "its dirty data is with iqn.a:b, in log 12, generation 3",
            "its dirty data is with iqn.a:b (this gateway itself), in another log: 12, generation 3",
            initiator::NODE_IS_OLDER,
            Claim::OLDER_LOG,
        ];
        let claims = claims.into_iter().map(|reason| CacheOpenError::Claim(reason.into()));
        let others = [
            CacheOpenError::NotALog,
            CacheOpenError::Truncated { recorded: 2, found: 1 },
            CacheOpenError::Behind { ends: 1, confirmed: 2 },
        ];
        for error in claims.chain(others) {
            let remedy = refusal(&cache, &error).remedy.expect("there is one");
            let unmount =
                remedy.find(UNMOUNT_REMEDY).unwrap_or_else(|| panic!("{error}: {remedy}"));
            let gives_up = ["claim drop", "forget", "accept_loss = true"].map(|it| remedy.find(it));
            assert!(gives_up.into_iter().flatten().all(|at| unmount < at), "{error}: {remedy}");
        }
    }

    #[test]
    fn the_remedy_for_data_in_another_log_is_to_drop_its_claim_if_that_log_is_lost() {
        let cache = config::CacheLayerSettings::default();
        let reason = format!("{} iqn.a:b, in log 12, generation 3", initiator::DATA_ELSEWHERE);
        let failure = refusal(&cache, &CacheOpenError::Claim(reason.into()));
        let remedy = failure.remedy.expect("there is one");
        assert!(
            remedy.contains("`forebay claim drop TARGET/LUN --lose-dirty-data --hosts-unmounted`"),
            "{remedy}"
        );
        assert!(!remedy.contains("adopt this log"), "{remedy}");
    }

    #[test]
    fn commands_in_remedies_can_be_pasted() {
        let cache = config::CacheLayerSettings {
            log: "/srv/a b.log".into(),
            nvram: Some("/srv/$x".into()),
            ..config::CacheLayerSettings::default()
        };
        let remedy = |error| refusal(&cache, &error).remedy.expect("there is one");
        let behind = remedy(CacheOpenError::Behind { ends: 1, confirmed: 2 });
        assert!(
            behind.contains("(`rm '/srv/a b.log'`), remove the NVRAM (`rm '/srv/$x'`)"),
            "{behind}"
        );
        assert!(behind.contains("`forebay forget '/srv/a b.log' --config "), "{behind}");
        assert!(remedy(CacheOpenError::NotALog).contains("`rm '/srv/a b.log'`"));
        let short = remedy(CacheOpenError::Truncated { recorded: 2, found: 1 });
        assert!(short.contains("`truncate -s 8192 '/srv/a b.log'`"), "{short}");
        let mirrored =
            config::CacheLayerSettings { log_mirror: Some("/srv/m.log".into()), ..cache };
        let both = refusal(&mirrored, &CacheOpenError::NotALog).remedy.expect("there is one");
        assert!(both.contains("(`rm '/srv/a b.log'`), remove it (`rm /srv/m.log`)"), "{both}");
    }
}
