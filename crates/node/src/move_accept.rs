//! Checks whether this node can accept a volume that another node wants to move here.

use std::{path::Path, sync::Arc};

use ::names::{Gln, MOST_VOLUMES, NodeName, VolumeName};
use config::{
    Accept, File, IscsiTargetSettings, Layer, Settings, Unit,
    quantity::{Size, about},
};
use control::Failure;
use futures_util::stream::FuturesUnordered;
use stack::{atomic_file, records::Records, unit_state};

use super::{Node, copy_in::Copy};
use crate::moves::{
    Come, CopyStage, Described, MoveId, MoveOutcome, TargetAccessRules, VolumeMoveRecord,
};

/// A volume that another node wants to move here, with the data of its request.
pub(super) struct MoveOffer {
    pub(super) from: Gln,
    pub(super) from_node: NodeName,
    pub(super) id: MoveId,
    pub(super) volume: Described,
}

/// The exclusive right to keep, serve or discard the copy of a volume. Dropping this value releases the right.
pub(super) struct Berth<'a>(&'a Node, VolumeName);

impl Drop for Berth<'_> {
    fn drop(&mut self) {
        self.0.moving.lock().arriving.remove(&self.1);
    }
}

impl Node {
    /// Accepts or refuses the volume of `offer`. Returns its record and the file for its copy.
    pub(super) async fn begin(&self, offer: MoveOffer) -> Result<(Come, Copy), Failure> {
        let MoveOffer { from, from_node, id, volume } = offer;
        volume.check()?;
        let base = Arc::clone(&self.inner.lock().base);
        let (Some(accept), Some(state)) = (&base.accept, &base.state) else {
            return Err(Failure::new("the node does not accept volumes").remedy(
                "add an [accept] table with `folder` and `size` to its settings, and reload",
            ));
        };
        let name = &volume.volume;
        match &self.moves.of(name).come {
            // The source node has started the same move again, so the former copy may be discarded. But this request
            // may be a late one, sent before that copy was complete. So discard a complete copy only if the source node
            // says that the volume has stayed there.
            Some(come) if come.stage != CopyStage::Here && come.from == from => {
                if come.stage == CopyStage::Ready
                    && self.fate_of(name, come).await != MoveOutcome::Undone
                {
                    return Err(Failure::new(format!(
                        "the node has a complete copy of {name}, and {} has not confirmed that it is obsolete",
                        come.from_node
                    ))
                    .remedy(
                        "see what `forebay volume list` says there, and try again when both nodes know each other \
                         (`forebay names`)",
                    ));
                }
                self.discard(name, &come.id);
            }
            Some(come) if come.stage != CopyStage::Here => {
                return Err(Failure::new(format!(
                    "{name} is already being moved to the node from {}",
                    come.from_node
                ))
                .remedy("start that node: it decides the outcome of that move"));
            }
            _ => {}
        }
        let come = self.admit(MoveOffer { from, from_node, id, volume }, accept, state)?;
        let (name, volume) = (&come.volume.volume, &come.volume);
        // Remove the record of the former file at this path, since a new file is created there.
        if let Err(failure) = Records::of(&base).forget(&come.file) {
            self.discard(name, &come.id);
            return Err(failure);
        }
        match std::fs::remove_file(&come.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                self.discard(name, &come.id);
                return Err(no_file(&come.file, &error));
            }
            _ => {}
        }
        let settings = File {
            path: come.file.clone(),
            size: Some(Size(volume.bytes())),
            block_size: Size(u64::from(volume.block_size)),
            ..File::default()
        };
        match stack::open_file(stack::options(&settings)).await {
            Ok(file) => {
                let file = Arc::new(file);
                let (writes, records) = (FuturesUnordered::new(), Vec::new());
                Ok((come, Copy { file, writes, records, unflushed: 0 }))
            }
            Err(failure) => {
                self.discard(name, &come.id);
                Err(failure)
            }
        }
    }

    /// Reserves space, names and a file for the volume. From then on no other volume gets them.
    fn admit(&self, offer: MoveOffer, accept: &Accept, state: &Path) -> Result<Come, Failure> {
        let _one_at_a_time = self.admitting.lock();
        let MoveOffer { from, from_node, id, volume } = offer;
        let name = &volume.volume;
        let settings = self.settings_with_refused();
        let kept = self.moves.of(name);
        if let Some(gone) = kept.gone.as_ref().filter(|gone| gone.generation >= volume.generation) {
            return Err(Failure::new(format!(
                "{name} was on the node before, and was moved on to {} by move {}: this copy is older",
                gone.to_node, gone.generation
            ))
            .remedy("find the node that has the volume (`forebay names`); if this copy is the right one, give \
                     it a higher `generation`"));
        }
        let file = accept.folder.join(format!("{name}.img"));
        free_of(&settings, &volume)?;
        free_of_file(&settings, &file)?;
        self.free_of_others(&settings, &volume)?;
        self.check_access(&volume)?;
        self.has_room(accept.size, &accept.folder, &volume)?;
        self.redirect_for(&volume)?;
        // Check that the unit's state files can be used: another unit with this serial number would use the same files.
        unit_state::StateFiles::open(state, &volume.identity()).map_err(Failure::new)?;
        // Accept an existing file only if the volume itself has left it here when it moved away.
        let is_left = kept.gone.as_ref().is_some_and(|gone| gone.left.as_ref() == Some(&file));
        if file.exists() && !is_left {
            return Err(Failure::new(format!("{} exists already", file.display()))
                .remedy("check its content, and move it away"));
        }
        let come = Come { id, stage: CopyStage::Arriving, from, from_node, file, volume };
        self.moves
            .keep(&come.volume.volume, VolumeMoveRecord { come: Some(come.clone()), ..kept })?;
        Ok(come)
    }

    /// Returns the settings with all moves applied, including the units that are not served because of their storage:
    /// these keep their names, files and records.
    fn settings_with_refused(&self) -> Settings {
        let mut settings = (*Arc::clone(&self.inner.lock().base)).clone();
        // Ignore volumes that cannot be served: they were reported when their records were last applied.
        let _ = self.moves.apply(&mut settings);
        settings
    }

    /// Fails if new settings use a name of a volume that is being received.
    pub(super) fn leaves_names_to_comers(&self, new: &Settings) -> Result<(), Failure> {
        let all = self.moves.all();
        let come = all.iter().filter_map(|(_, kept)| kept.come.as_ref());
        let coming = come.filter(|come| come.stage != CopyStage::Here);
        coming.map(|come| &come.volume).try_for_each(|volume| {
            free_of(new, volume).map_err(|failure| {
                let Failure { message, remedy, code } = failure;
                let message =
                    format!("{} is being moved to the node, and {message}", volume.volume);
                Failure { message, remedy, code }
            })
        })
    }

    /// Fails if another moved volume has the same target, or if there are more volumes than can be announced.
    fn free_of_others(&self, settings: &Settings, volume: &Described) -> Result<(), Failure> {
        let all = self.moves.all();
        let come = all.iter().filter_map(|(_, kept)| kept.come.as_ref());
        let others: Vec<_> = come.filter(|come| come.volume.volume != volume.volume).collect();
        if let Some(other) = others.iter().find(|other| other.volume.target == volume.target) {
            let (target, other) = (&volume.target, &other.volume.volume);
            return Err(Failure::new(format!(
                "the volume {other} was or is being moved to the node as the unit of {target}, and a moved volume needs its own target"
            ))
            .remedy("rename one of the two targets at the node that serves it"));
        }
        let units = settings.target.iter().flat_map(|target| &target.unit);
        let named = units.filter(|unit| unit.volume.is_some()).count();
        let coming = others.iter().filter(|other| other.stage != CopyStage::Here).count();
        if named + coming >= MOST_VOLUMES {
            return Err(Failure::new(format!(
                "the node has {} volumes, including incoming ones, and can announce at most {MOST_VOLUMES}",
                named + coming
            ))
            .remedy("move it to another node"));
        }
        Ok(())
    }

    /// Fails if this node's access rules admit an initiator that the source node refuses.
    pub(super) fn check_access(&self, volume: &Described) -> Result<(), Failure> {
        let base = Arc::clone(&self.inner.lock().base);
        // If this node's settings have a target of the same name, its access rules apply.
        let is_its = |target: &&IscsiTargetSettings| target.name.0 == volume.target;
        let allow = base.accept.as_ref().and_then(|accept| accept.allow.clone());
        let new = volume.served(Default::default(), allow);
        let access = TargetAccessRules::of(&base, base.target.iter().find(is_its).unwrap_or(&new))?;
        volume.access.check(&volume.target, &access)
    }

    /// Fails if the limit of the settings is exceeded, or if the disk does not have enough space.
    fn has_room(&self, most: Size, folder: &Path, volume: &Described) -> Result<(), Failure> {
        let all = self.moves.all();
        let come = all.iter().filter_map(|(_, kept)| kept.come.as_ref());
        let taken: u64 = come.map(|come| come.volume.bytes()).sum();
        if taken.saturating_add(volume.bytes()) > most.0 {
            return Err(Failure::new(format!(
                "the node accepts {} of moved volumes, {} are in use, and {} has {}",
                about(most.0),
                about(taken),
                volume.volume,
                about(volume.bytes())
            ))
            .remedy("raise `size` of its [accept] table, and reload"));
        }
        // Make the folder stable now: the source node removes the volume after the move, so a power failure must not
        // lose the folder then.
        atomic_file::make_folder(folder, 0o777).map_err(|error| no_file(folder, &error))?;
        let free = rustix::fs::statvfs(folder).map_err(|error| no_file(folder, &error.into()))?;
        let free = free.f_bavail.saturating_mul(free.f_frsize);
        if free < volume.used_bytes {
            return Err(Failure::new(format!(
                "{} has {} free, and {} needs {}",
                folder.display(),
                about(free),
                volume.volume,
                about(volume.used_bytes)
            ))
            .remedy("make room there, or name another `folder` in [accept]"));
        }
        Ok(())
    }

    /// Returns the address to which the source node redirects initiators.
    pub(super) fn redirect_for(&self, volume: &Described) -> Result<String, Failure> {
        let inner = self.inner.lock();
        let base = Arc::clone(&inner.base);
        let is_its = |target: &&IscsiTargetSettings| target.name.0 == volume.target;
        let new = volume.served(Default::default(), None);
        let target = base.target.iter().find(is_its).unwrap_or(&new);
        let portals = match &base.names {
            Some(names) => inner.portals_of(target, &base.groups(), names),
            None => Vec::new(),
        };
        let first = portals.iter().find(|portal| !portal.tls).or(portals.first());
        first.map(|portal| portal.address.clone()).ok_or_else(|| {
            Failure::new("the node has no portal to which hosts could be redirected")
                .remedy("add one to its `listen`, and `host` to its [names] if that is 0.0.0.0")
        })
    }

    /// Takes the exclusive right to decide about a copy of the volume. Returns `None` if another task has it.
    pub(super) fn berth(&self, name: &VolumeName) -> Option<Berth<'_>> {
        let is_free = self.moving.lock().arriving.insert(name.clone());
        is_free.then(|| Berth(self, name.clone()))
    }

    /// Removes the copy that a failed or cancelled move has left.
    pub(super) fn discard(&self, name: &VolumeName, id: &MoveId) {
        let kept = self.moves.of(name);
        let come = kept.come.clone().filter(|come| come.id == *id && come.stage != CopyStage::Here);
        let Some(come) = come else { return };
        let removed = match std::fs::remove_file(&come.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(no_file(&come.file, &error))
            }
            _ => Records::of(&self.settings())
                .forget(&come.file)
                .and_then(|_| self.moves.keep(name, VolumeMoveRecord { come: None, ..kept })),
        };
        if let Err(failure) = removed {
            tracing::warn!(volume = %name, %failure, "cannot remove an unused copy");
        }
    }
}

/// Fails if a unit of this node already has the volume name, target name or serial number of the volume.
fn free_of(settings: &Settings, volume: &Described) -> Result<(), Failure> {
    for target in &settings.target {
        if target.unit.iter().any(|unit| unit.volume.as_ref() == Some(&volume.volume)) {
            return Err(Failure::new(format!("the node has a volume {} already", volume.volume))
                .remedy("remove that volume from the settings of the node, or move another"));
        }
        if target.name.0 == volume.target && !target.unit.is_empty() {
            return Err(Failure::new(format!("the node has a target {} already", volume.target))
                .remedy("give one of the two another name"));
        }
        let has_its_serial = |unit: &&Unit| super::serial(target, unit) == volume.serial;
        if let Some(unit) = target.unit.iter().find(has_its_serial) {
            return Err(Failure::new(format!(
                "{} LUN {} of the node has the serial number {} already",
                target.name, unit.lun, volume.serial
            ))
            .remedy("give one of the two another `serial`"));
        }
    }
    Ok(())
}

/// Fails if a unit of the settings has this file, even a missing one: its disk may not be mounted.
fn free_of_file(settings: &Settings, file: &Path) -> Result<(), Failure> {
    let is_it = |layer: &Layer| matches!(layer, Layer::File(it) if it.path == file);
    for target in &settings.target {
        if let Some(unit) = target.unit.iter().find(|unit| unit.stack.iter().any(is_it)) {
            let (name, lun, file) = (&target.name, unit.lun, file.display());
            return Err(Failure::new(format!("{file} is the file of {name} LUN {lun}"))
                .remedy("name another `folder` in [accept]"));
        }
    }
    Ok(())
}

fn no_file(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
        .remedy("give the user of that process write access to the `folder` of [accept]")
}
