//! `forebay forget`: removes the record of a volume file or a cache log.

use std::{
    fs::{self, File},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use config::{CacheLayerSettings, Layer, Settings, UNMOUNT_REMEDY, Unit};
use control::{ControlRequest, ControlResponse, Failure};
use stack::{
    NotOpened,
    records::{Records, StorageRecord, absolute},
};

use crate::{cli::Forget, control_socket, output::print_line};

/// Removes the record of a path. Fails if a process serves the storage there, and, without `--lose-data`, if the
/// storage may hold data.
pub fn run(args: &Forget) -> Result<(), Failure> {
    let settings = Settings::load_without_secrets(&args.config)?;
    let records = Records::of(&settings);
    let path = absolute(&args.path)?;
    if is_served(&settings, &path)? {
        return Err(Failure::new(format!("{} is in use", path.display()))
            .remedy("stop the process that serves it (`forebay status` shows it), and try again"));
    }
    let record = match records.load(&path) {
        Ok(Some(record)) => Some(record),
        Ok(None) => {
            return Err(Failure::new(format!("there is no record of {}", path.display()))
                .remedy("nothing has to be done if `forebay check` shows this path; otherwise name the path as it shows it"));
        }
        // A damaged record does not say which data it protects, so only `--lose-data` removes it.
        Err(NotOpened::Refused(_)) if args.lose_data => None,
        Err(error) => return Err(error.into()),
    };
    if record.as_ref().is_none_or(StorageRecord::may_hold_data) {
        let command = records.forget_command(&path, true);
        if let Some(record) = record.as_ref().filter(|_| !args.lose_data) {
            return Err(Failure::new(format!(
                "{} of {}, last opened {}, may have the only copy of acknowledged writes",
                path.display(),
                record.used_by,
                record.opened
            ))
            .remedy(format!(
                "mount its disk or put the file back; if it is permanently lost, {UNMOUNT_REMEDY}; \
                 then `{command}`"
            )));
        }
        if !args.hosts_unmounted {
            return Err(stack::hosts_may_be_mounted(path.display(), &command));
        }
    }
    records.forget(&path)?;
    if let Some(mirror) = record.as_ref().and_then(StorageRecord::mirror) {
        records.forget(mirror)?;
    }
    print_line(format_args!(
        "{}: its record is removed; the next start uses the file that is there, or makes a new \
         one",
        path.display()
    ))
}

/// Returns true if a process has the file open, or serves a unit whose settings name the path: a file that was renamed
/// or deleted may still be open. Fails if a process has the control socket and does not report what it serves.
fn is_served(settings: &Settings, path: &Path) -> Result<bool, Failure> {
    if let Ok(found) = fs::metadata(path) {
        if !found.is_file() && !found.file_type().is_block_device() {
            let message = format!("{} is neither a file nor a block device", path.display());
            return Err(Failure::new(message)
                .remedy("check what was put there, and move it away; then try again"));
        }
        // Without NONBLOCK, the open would block if someone replaced the file by a pipe meanwhile.
        let no_wait = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        if let Ok(file) = File::options().read(true).custom_flags(no_wait).open(path)
            && matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock))
        {
            return Ok(true);
        }
    }
    let socket = control_socket::path(settings)?;
    let status = match control_socket::ask_if_running(&socket, &ControlRequest::Status) {
        Ok(None) => return Ok(false),
        Ok(Some(ControlResponse::Status(status))) => status,
        other => {
            let failure = match other {
                Ok(Some(other)) => other.unexpected(),
                Ok(None) => return Ok(false),
                Err(failure) => failure,
            };
            return Err(Failure::new(format!(
                "it is not known whether {} is in use: {}",
                path.display(),
                failure.message
            ))
            .remedy("try again when the process answers, or stop it first"));
        }
    };
    let served = settings.target.iter().any(|target| {
        let units = status.targets.iter().filter(|served| served.name == target.name.0);
        let luns: Vec<_> = units.flat_map(|served| &served.units).map(|unit| unit.lun).collect();
        let mut units = target.unit.iter().filter(|unit| luns.contains(&unit.lun));
        units.any(|unit| names(settings, unit, path))
    });
    Ok(served)
}

/// Returns true if a layer of the unit keeps its data at `path`.
fn names(settings: &Settings, unit: &Unit, path: &Path) -> bool {
    let is_it = |named: &Path| absolute(named).is_ok_and(|named| named == path);
    let in_cache = |cache: &CacheLayerSettings| {
        is_it(&cache.log) || cache.log_mirror.as_deref().is_some_and(is_it)
    };
    let common = unit.in_common().and_then(|common| settings.common_cache(common));
    common.is_some_and(in_cache)
        || unit.stack.iter().any(|layer| match layer {
            Layer::File(file) => is_it(&file.path),
            Layer::Cache(cache) => in_cache(cache),
            _ => false,
        })
}
