//! Opens an object drive as a logical unit on the layers of a stack, closes it, and examines a drive that is not
//! served.

use std::{path::Path, sync::Arc};

use config::{DriveSecurity, Layer, ObjectDriveSettings, Unit, read_master_key_file};
use control::{Failure, ObjectDriveStatus};
pub use drive::{DriveExamination, DriveFinding};
use drive::{
    DriveIdentity, DriveOptions, DriveStore, ExaminationProgress, Limits, ListLimits, ObjectUnit,
    OpenError, examine_drive,
    security::{
        DriveClock, HostTime, KeyStore, KeyStoreError, Security, SecuritySettings,
        replace_master_key,
    },
};
use osd::security::{KeyPair, SecurityMethod, SystemId, parse_master_key};
use unit::{LogicalUnit, PrimaryUnit, UnitIdentity};
use volume::{OverlayVolume, Stack};

use crate::{
    layers::open_filter,
    not_opened::NotOpened,
    unit_state::{StateFiles, cannot_use},
};

/// An open object drive: the logical unit, and the store of objects below it.
pub struct ServedDrive {
    unit: Arc<ObjectUnit<DriveStore>>,
    store: Arc<DriveStore>,
}

impl ServedDrive {
    /// Opens the drive on the volume `top`; formats a volume of zeros. The unit keeps its reservations in `folder`, if
    /// there is one.
    ///
    /// # Errors
    /// The key file or the reservations cannot be used, the volume is not an object drive, or its keys need another
    /// master key.
    pub async fn open(
        unit: &Unit,
        top: Stack,
        identity: UnitIdentity,
        folder: Option<&Path>,
    ) -> Result<Self, NotOpened> {
        let settings = unit.object.clone().unwrap_or_default();
        let master = settings.master_key_file.as_deref().map(read_master_key).transpose()?;
        let former = settings.former_master_key_file.as_deref().map(read_master_key).transpose()?;
        let system = settings.system_id().unwrap_or_else(|| system_id(&identity));
        let primary = open_primary(identity.clone(), folder)?;
        let clock = Arc::new(DriveClock::new(HostTime::default()));
        let options = DriveOptions {
            limits: limits(&settings),
            identity: drive_identity(&identity, system),
            clock: Arc::<DriveClock>::clone(&clock),
        };
        let serial = &identity.serial;
        let opened = DriveStore::open(top, options).await;
        let store = Arc::new(opened.map_err(|error| refused_volume(serial, &error))?);
        let checks = SecuritySettings {
            least: least(settings.security),
            nonce_window_ms: settings.nonce_window.0.as_millis() as u64,
            nonces: settings.nonces as usize,
            system,
        };
        let opened = open_security(&store, checks, [master, former], clock).await;
        let security = match opened {
            Ok(security) => security,
            Err(error) => {
                // Ignore an error of the close: no data was written since the start that could be lost.
                let _ = store.close().await;
                return Err(NotOpened::Refused(refused_keys(serial, &settings, &error)));
            }
        };
        let lists = ListLimits {
            entries: settings.list_entries as usize,
            bytes: settings.list_bytes.0 as u32,
        };
        let unit = ObjectUnit::new(primary, Arc::clone(&store), security, lists);
        Ok(Self { unit: Arc::new(unit), store })
    }

    /// Returns the logical unit through which hosts use the drive.
    #[must_use]
    pub fn unit(&self) -> Arc<dyn LogicalUnit> {
        Arc::<ObjectUnit<DriveStore>>::clone(&self.unit)
    }

    /// Makes all changes stable, and marks the drive as closed. Later commands fail.
    ///
    /// # Errors
    /// The volume failed.
    pub async fn close(&self) -> Result<(), Failure> {
        let stopped = self.unit.security().clock().stop(&*self.store).await;
        let closed = self.store.close().await;
        stopped.and(closed).map_err(|error| {
            let serial = &self.unit.primary().identity().serial;
            Failure::new(format!("the object drive {serial} cannot be closed: {error}")).remedy(
                "check the disk of the unit; changes that clients did not flush may be lost, and flushed ones are \
                 not: the drive goes on at the next start",
            )
        })
    }

    /// Gives the end of a volume that has grown to the drive.
    ///
    /// # Errors
    /// The volume failed.
    pub async fn grow(&self) -> Result<(), Failure> {
        let grown = self.store.grow().await;
        grown.map(drop).map_err(|error| {
            let serial = &self.unit.primary().identity().serial;
            Failure::new(format!("the object drive {serial} cannot grow: {error}"))
                .remedy("check the disk of the unit; a restart of the process tries it again")
        })
    }

    #[must_use]
    pub fn status(&self) -> ObjectDriveStatus {
        let statistics = self.store.statistics();
        let refused = self.unit.security().refused().counted();
        ObjectDriveStatus {
            kind: "object".to_owned(),
            objects: statistics.objects,
            used_bytes: statistics.used_bytes,
            capacity_bytes: statistics.capacity_bytes,
            damaged_blocks: statistics.damaged_blocks,
            repaired_blocks: statistics.repaired_blocks,
            service_actions: self
                .unit
                .performed()
                .map(|(action, count)| (action.name().to_owned(), count))
                .collect(),
            refused: refused.map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
        }
    }
}

/// Examines the object drive of a unit without changing it. `file` is the open file or device of the unit, which no
/// process may serve meanwhile. Returns `None` if the drive is not formatted yet.
///
/// # Errors
/// The volume is not the drive of this unit, its keys cannot be opened, or the examination was not finished.
pub async fn examine(
    unit: &Unit,
    file: Stack,
    identity: UnitIdentity,
    progress: ExaminationProgress,
) -> Result<Option<DriveExamination>, Failure> {
    let mut top = file;
    // Skip the other layers: they do not change the blocks.
    for layer in &unit.stack {
        if matches!(layer, Layer::Slice(_) | Layer::Encrypt(_)) {
            top = open_filter(layer, top, "")?.volume;
        }
    }
    let settings = unit.object.clone().unwrap_or_default();
    let master = settings.master_key_file.as_deref().map(read_master_key).transpose()?;
    let system = settings.system_id().unwrap_or_else(|| system_id(&identity));
    let options = DriveOptions {
        limits: limits(&settings),
        identity: drive_identity(&identity, system),
        clock: Arc::new(DriveClock::new(HostTime::default())),
    };
    let refused = |error: OpenError| unopened(&identity.serial, &error);
    let report = examine_drive(Arc::clone(&top), options.clone(), progress);
    let Some(report) = report.await.map_err(refused)? else { return Ok(None) };
    if report.is_sound() {
        let overlay: Stack = Arc::new(OverlayVolume::new(top, KEYS_OVERLAY));
        let store = DriveStore::open(overlay, options).await.map_err(refused)?;
        let keys = KeyStore::open(&store, master, system).await;
        keys.map_err(|error| refused_keys(&identity.serial, &settings, &error))?;
    }
    Ok(Some(report))
}

/// Reads a master key from a file that only the user of this process may read.
///
/// # Errors
/// The file cannot be read or used, or its content is no master key.
pub fn read_master_key(path: &Path) -> Result<KeyPair, Failure> {
    let content = read_master_key_file(path)
        .map_err(|(message, remedy)| Failure::settings(message).remedy(remedy))?;
    parse_master_key(&content).map_err(|error| {
        Failure::settings(format!("the master key file {} {error}", path.display()))
            .remedy("restore the file from a copy, or name the right one as `master_key_file`")
    })
}

/// Derives the OSD SYSTEM ID from the unit's identity: F1h 81h, the length 16, and the unit's NAA designator.
#[must_use]
pub fn system_id(identity: &UnitIdentity) -> SystemId {
    let mut id = [0; 20];
    id[..4].copy_from_slice(&[0xf1, 0x81, 0x00, 0x10]);
    id[4..].copy_from_slice(&identity.naa);
    id
}

fn open_primary(identity: UnitIdentity, folder: Option<&Path>) -> Result<PrimaryUnit, Failure> {
    let Some(folder) = folder else { return Ok(PrimaryUnit::new(identity)) };
    let serial = identity.serial.clone();
    StateFiles::open(folder, &identity)
        .and_then(|files| {
            let files: Arc<dyn unit::UnitStore> = Arc::new(files);
            PrimaryUnit::open(identity, &files)
        })
        .map_err(|error| cannot_use(folder, &serial, &error))
}

/// Returns the identifying attributes of the drive's root object, such as its serial number.
#[must_use]
pub fn drive_identity(identity: &UnitIdentity, system: SystemId) -> DriveIdentity {
    DriveIdentity {
        system_id: system,
        vendor: identity.vendor.clone(),
        product: identity.product.clone(),
        revision: identity.revision.clone(),
        serial: identity.serial.clone(),
    }
}

/// Converts the limits of the settings into the form that the object store uses.
#[must_use]
pub fn limits(settings: &ObjectDriveSettings) -> Limits {
    Limits {
        attribute_bytes: settings.attribute_bytes.0,
        list_entries: settings.list_entries as usize,
        list_bytes: settings.list_bytes.0 as usize,
        collections: settings.collections_per_object as usize,
        command_bytes: settings.command_bytes.0,
        ..Limits::default()
    }
}

fn least(security: DriveSecurity) -> SecurityMethod {
    match security {
        DriveSecurity::Nosec => SecurityMethod::NoSec,
        DriveSecurity::Capkey => SecurityMethod::CapKey,
        DriveSecurity::Cmdrsp => SecurityMethod::CmdRsp,
        DriveSecurity::Alldata => SecurityMethod::AllData,
    }
}

/// Returns the failure for a volume that cannot be opened as an object drive. The node can still serve its other units,
/// except if the volume is too small: then the settings are wrong.
fn refused_volume(serial: &str, error: &OpenError) -> NotOpened {
    let failure = unopened(serial, error);
    match error {
        OpenError::TooSmall { .. } => NotOpened::Failed(failure),
        _ => NotOpened::Refused(failure),
    }
}

/// Returns the message and the remedy for a volume that cannot be opened as an object drive.
#[must_use]
pub fn unopened(serial: &str, error: &OpenError) -> Failure {
    // The message of a newer version has its remedy in its second line.
    let text = error.to_string();
    let (message, own_remedy) = text.split_once('\n').unwrap_or((&text, ""));
    let failure = Failure::new(format!("the object drive {serial} cannot be used: {message}"));
    failure.remedy(match error {
        OpenError::Foreign => {
            "name the volume of the drive in `stack`; a new drive needs a volume of zeros, such as a file that does \
             not exist yet"
        }
        OpenError::NewerVersion { .. } | OpenError::OlderVersion { .. } => own_remedy,
        OpenError::TooSmall { .. } => "make the volume larger: change `size` in `stack`",
        OpenError::Truncated { .. } => {
            "the end of the volume is missing: restore the whole file or device, or correct the slice"
        }
        OpenError::OtherDrive { .. } => {
            "name the volume of this drive in `stack`; if it is this drive, and its target or serial number has \
             changed, set `system_id` to the former id: f1810010 and the digits above, unless it was set before"
        }
        OpenError::Contradiction | OpenError::Superblocks | OpenError::Tables(_)
 | OpenError::Log => {
            "restore the volume from a copy; `forebay check` examines a copy without changing it"
        }
        OpenError::Volume(_) => "check the disk below the drive, and start again",
    })
}

/// Opens the check of commands with the master key. If there is a former one, seals the keys of the drive under the new
/// one first.
async fn open_security(
    store: &DriveStore,
    checks: SecuritySettings,
    [master, former]: [Option<KeyPair>; 2],
    clock: Arc<DriveClock>,
) -> Result<Security, KeyStoreError> {
    if let (Some(master), Some(former)) = (&master, &former) {
        let records = replace_master_key(store, former, master, checks.system).await?;
        tracing::info!(records, "the keys of the drive are sealed under the new master key");
    }
    Security::open(store, checks, master, clock).await
}

fn refused_keys(serial: &str, settings: &ObjectDriveSettings, error: &KeyStoreError) -> Failure {
    let failure = Failure::new(format!("the object drive {serial} cannot be used: {error}"));
    let remedy = match (error, &settings.master_key_file) {
        (KeyStoreError::Sealed, Some(path)) => format!(
            "restore the master key file with which the drive was served before as {}; a new key replaces it at a start \
             with the former file as `former_master_key_file`",
            path.display()
        ),
        (KeyStoreError::Sealed, None) => {
            "set `master_key_file` to the file with which the drive was first served".to_owned()
        }
        (KeyStoreError::Store(_), _) => {
            "check the disk below the drive, and start again".to_owned()
        }
    };
    failure.remedy(remedy)
}

/// Maximum number of bytes that recovery may write to memory while `examine` checks the keys: as many as the
/// examination of the drive.
const KEYS_OVERLAY: usize = 256 << 20;
