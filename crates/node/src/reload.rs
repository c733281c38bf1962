//! Changes the settings while they are in force.
//!
//! A reload makes all changes or none:
//!
//! 1. Read the settings, apply the records of moved volumes, and try again to open the units that were refused before.
//! 2. Plan the changes ([`ReloadPlan`]). If one of them cannot be made while serving, the reload ends here.
//! 3. Prepare: the steps that may fail. Open new units and portals, and let files grow. After a failure the opened
//!    units and portals are closed again; a file that has grown keeps its size.
//! 4. Put the settings in force, which cannot fail: exchange units, change and remove targets and portals, and accept
//!    connections to the new portals.
//! 5. Flush and close the units that are no longer served.
//!
//! Moves of volumes use steps 2 to 5, with the settings of the last reload and the changed records.

use std::{collections::HashMap, io, path::Path, sync::Arc, time::Duration};

use config::{Address, File, IscsiTargetSettings, Layer, Settings, Unit, login_rules};
use control::{Failure, ReloadChanges, ServingPhase};
use stack::{NotOpened, OpenedStack, StackInput};
use target::Listener;

use super::{
    LOGOUT_WITHIN, Listening, Node, ServedTarget, ServedUnit, cannot_listen, open_unit,
    refused_units::{RefusedUnit, leave_out},
    stop_units,
};
use crate::{
    moves::Blocked,
    plan::{self, ReloadPlan},
};

/// Units and portals that were opened for new settings. They are closed if the settings are not put in force.
#[derive(Default)]
struct Prepared {
    units: HashMap<String, Vec<ServedUnit>>,
    portals: Vec<(Address, Listener)>,
}

impl Node {
    pub fn compare(&self, config: &Path) -> Result<ReloadChanges, Failure> {
        let mut new = Settings::load(config)?;
        self.apply_moves(&mut new)?;
        let old = self.settings();
        Ok(ReloadPlan::between(&old, &new).changes)
    }

    /// Reads the settings again and makes all changes, or none. Sessions that are not affected continue undisturbed.
    pub async fn reload(&self) -> Result<ReloadChanges, Failure> {
        let _one_at_a_time = self.changing.lock().await;
        if self.inner.lock().state != ServingPhase::Serving {
            return Err(Failure::new("the process does not serve yet, or no longer serves")
                .remedy("wait until `forebay status` lists the targets, and repeat the command"));
        }
        let mut new = Settings::load(&self.config)?;
        let old = self.settings();
        new.keep_certificates(&old);
        let base = Arc::new(new.clone());
        self.apply_moves(&mut new)?;
        let (prepared, still_refused) = self.try_refused(&mut new).await?;
        let plan = ReloadPlan::between(&old, &new);
        if !plan.changes.refused.is_empty() {
            self.give_up(prepared).await;
            return Err(Failure::new(format!(
                "nothing was changed, because some of the new settings cannot be applied while serving\n{}",
                plan.changes.for_people()
            ))
            .remedy("undo those changes in the settings, or restart"));
        }
        let mut changes = plan.changes.clone();
        let said = |refused: &RefusedUnit| format!("{}: {}", refused.unit, refused.failure.message);
        changes.not_served = still_refused.iter().map(said).collect();
        close_units(&self.change_with(&plan, &new, &base, prepared).await?).await;
        self.inner.lock().refused = still_refused;
        Ok(changes)
    }

    /// Opens the units that were refused before. Removes from `new` and returns those that are refused again.
    /// The units of a common cache are opened at the start only.
    async fn try_refused(
        &self,
        new: &mut Settings,
    ) -> Result<(Prepared, Vec<RefusedUnit>), Failure> {
        let (mut prepared, mut still_refused) = (Prepared::default(), Vec::new());
        let before = self.inner.lock().refused.clone();
        for refused in before {
            let name = refused.unit.clone();
            let target = new.target.iter().find(|target| target.name.0 == name.target);
            let unit = target.and_then(|target| target.unit.iter().find(|u| u.lun == name.lun));
            let Some((target, unit)) = target.zip(unit) else { continue };
            if unit.in_common().is_some() {
                let failure = &refused.failure;
                tracing::error!(
                    unit = %name, %failure,
                    "the unit is still not served: units of a common cache are opened at the start only"
                );
                still_refused.push(refused);
                continue;
            }
            let naming = self.naming.as_ref();
            match open_unit(new, target, unit, naming, &self.files, StackInput::Nothing).await {
                Ok(opened) => prepared.units.entry(name.target).or_default().push(opened),
                Err(NotOpened::Refused(failure)) => {
                    tracing::error!(unit = %name, %failure, "the unit is still not served");
                    still_refused.push(RefusedUnit { unit: name, failure });
                }
                Err(NotOpened::Failed(failure)) => {
                    self.give_up(prepared).await;
                    return Err(failure);
                }
            }
        }
        leave_out(new, &still_refused);
        Ok((prepared, still_refused))
    }

    /// Applies the records of moved volumes to new settings. Fails if the result leaves out a volume that is served now
    /// or is being received.
    fn apply_moves(&self, new: &mut Settings) -> Result<(), Failure> {
        let before = self.blocked();
        let is_new = |(volume, _): &&Blocked| before.iter().all(|(known, _)| known != volume);
        match self.moves.apply(new).iter().find(is_new) {
            Some((_, failure)) => Err(failure.clone()),
            None => self.leaves_names_to_comers(new),
        }
    }

    /// Makes all changes of a plan, or none. Returns the units that are no longer served, which the caller closes.
    pub(super) async fn change_to(
        &self,
        plan: &ReloadPlan<'_>,
        new: &Settings,
        base: &Arc<Settings>,
    ) -> Result<Vec<ServedUnit>, Failure> {
        self.change_with(plan, new, base, Prepared::default()).await
    }

    async fn change_with(
        &self,
        plan: &ReloadPlan<'_>,
        new: &Settings,
        base: &Arc<Settings>,
        mut prepared: Prepared,
    ) -> Result<Vec<ServedUnit>, Failure> {
        if let Err(failure) = self.prepare(new, plan, &mut prepared).await {
            self.give_up(prepared).await;
            let Failure { message, remedy, code } = failure;
            return Err(Failure {
                message: format!("nothing was changed: {message}"),
                remedy,
                code,
            });
        }
        self.inner.lock().base = Arc::clone(base);
        Ok(self.put_in_force(plan, new, prepared).await)
    }

    /// Performs the steps that may fail: opens files, remote volumes and portals.
    async fn prepare(
        &self,
        new: &Settings,
        plan: &ReloadPlan<'_>,
        prepared: &mut Prepared,
    ) -> Result<(), Failure> {
        for (target, unit) in plan.units_to_open() {
            let units = prepared.units.entry(target.name.0.clone()).or_default();
            if units.iter().any(|opened| opened.lun == unit.lun) {
                continue;
            }
            let naming = self.naming.as_ref();
            units.push(
                open_unit(new, target, unit, naming, &self.files, StackInput::Nothing).await?,
            );
        }
        for group in new.groups() {
            for (address, portal) in &group.portals {
                let is_new = plan.portals_added.contains(&(*address, group.tag));
                if !is_new {
                    continue;
                }
                let listener = self.server.bind(self.portal(&group, address.0, portal));
                let listener = listener.map_err(|error| refused_portal(plan, *address, &error))?;
                prepared.portals.push((*address, listener));
            }
        }
        // Let files grow as the last step, because this step is not undone after a failure. A larger file does no harm.
        for (target, unit) in &plan.units_changed {
            let (opened, _) = self.unit(&target.name.0, unit.lun)?;
            opened.follow(unit).await?;
            self.grow_drive(&target.name.0, unit.lun).await?;
        }
        Ok(())
    }

    async fn give_up(&self, prepared: Prepared) {
        let units: Vec<_> = prepared.units.into_values().flatten().collect();
        if let Err(failure) = stop_units(&units).await {
            tracing::error!(%failure, "units that were opened for new settings cannot be closed");
        }
    }

    /// Makes the new settings effective, which cannot fail: everything was checked and opened before.
    async fn put_in_force(
        &self,
        plan: &ReloadPlan<'_>,
        new: &Settings,
        mut prepared: Prepared,
    ) -> Vec<ServedUnit> {
        let portals = std::mem::take(&mut prepared.portals);
        let removed = self.exchange(plan, new, prepared);
        // Read secrets and certificates again: the files may have new content under the same names.
        new.renew_certificates();
        self.server.change_security(login_rules::security(new));
        for target in &plan.targets_added {
            if let Err(error) = self.server.add(self.shown(new, target)) {
                tracing::error!(
                    %error,
                    remedy = "restart this process; if the event comes again, report it with the \
                     settings",
                    "a target is invalid, although the settings were accepted"
                );
            }
        }
        let added = |target: &&IscsiTargetSettings| {
            plan.targets_added.iter().any(|a| a.name == target.name)
        };
        for target in new.target.iter().filter(|target| !added(target)) {
            match self.server.change(self.shown(new, target)).await {
                Ok(true) => {}
                Ok(false) => tracing::error!(
                    name = %target.name,
                    remedy = "restart this process; if the event comes again, report it with the \
                     settings",
                    "a target does not exist"
                ),
                Err(error) => {
                    tracing::error!(
                        %error,
                        remedy = "restart this process; if the event comes again, report it with the \
                         settings",
                        "a target is invalid, although the settings were accepted"
                    )
                }
            }
        }
        self.change_portals(plan, new).await;
        // Accept connections at the new portals only now that their targets are served.
        for (wanted, listener) in portals {
            let bound = self.server.accept(listener);
            self.inner.lock().portals.push(Listening { wanted, bound });
        }
        self.tell_names();
        let ended =
            plan.targets_removed.iter().map(|t| self.server.remove(&t.name.0, LOGOUT_WITHIN));
        futures_util::future::join_all(ended).await;
        removed
    }

    /// Makes the new settings those in force. Returns the units that are not part of them.
    fn exchange(
        &self,
        plan: &ReloadPlan<'_>,
        new: &Settings,
        mut prepared: Prepared,
    ) -> Vec<ServedUnit> {
        let mut inner = self.inner.lock();
        let mut removed = Vec::new();
        for (target, unit) in &plan.units_removed {
            let served = inner.targets.iter_mut().find(|served| served.name == target.name.0);
            let units = served.map(|served| served.units.extract_if(.., |u| u.lun == unit.lun));
            removed.extend(units.into_iter().flatten());
        }
        let is_gone =
            |served: &ServedTarget| plan.targets_removed.iter().any(|t| t.name.0 == served.name);
        let gone: Vec<_> = inner.targets.extract_if(.., |served| is_gone(served)).collect();
        removed.extend(gone.into_iter().flat_map(|served| served.units));
        let before = std::mem::take(&mut inner.targets);
        let mut before: HashMap<_, _> =
            before.into_iter().map(|served| (served.name.clone(), served.units)).collect();
        inner.targets = new
            .target
            .iter()
            .map(|target| {
                let name = target.name.0.clone();
                let mut units = before.remove(&name).unwrap_or_default();
                units.extend(prepared.units.remove(&name).unwrap_or_default());
                units.sort_by_key(|unit| unit.lun);
                ServedTarget { name, units }
            })
            .collect();
        inner.settings = Arc::new(new.clone());
        drop(inner);
        self.events.set_level(new.log_level.as_ref());
        removed
    }

    /// Changes the portals that stay, and closes the others. Connections that they have accepted stay open.
    async fn change_portals(&self, plan: &ReloadPlan<'_>, new: &Settings) {
        let mut closing = Vec::new();
        for address in &plan.portals_removed {
            let mut inner = self.inner.lock();
            let at = inner.portals.iter().position(|portal| portal.wanted == *address);
            closing.extend(at.map(|at| inner.portals.remove(at).bound));
        }
        for group in new.groups() {
            for (address, portal) in &group.portals {
                let open = self.inner.lock().portals.clone();
                for listening in open.iter().filter(|listening| listening.wanted == *address) {
                    self.server.change_portal(self.portal(&group, listening.bound, portal));
                }
            }
        }
        for address in closing {
            self.server.close_portal(address).await;
        }
    }

    /// Puts the settings with all moves applied in force. Returns the units that are no longer served, which the
    /// caller closes.
    pub(super) async fn exchange_moves(&self) -> Result<Vec<ServedUnit>, Failure> {
        let (old, base) = {
            let inner = self.inner.lock();
            (Arc::clone(&inner.settings), Arc::clone(&inner.base))
        };
        let mut new = (*base).clone();
        for (volume, failure) in self.moves.apply(&mut new) {
            tracing::error!(%volume, %failure, "a moved volume is not served");
        }
        self.leave_out_refused(&mut new);
        let plan = ReloadPlan::between(&old, &new);
        if let [why, ..] = &plan.changes.refused[..] {
            return Err(Failure::new(why));
        }
        self.change_to(&plan, &new, &base).await
    }

    /// Serves the volumes that have moved here, and closes those that have moved away. The caller holds `changing`.
    pub(super) async fn put_moves_in_force(&self) -> Result<(), Failure> {
        let removed = self.exchange_moves().await?;
        close_units(&removed).await;
        Ok(())
    }
}

pub(super) async fn close_units(removed: &[ServedUnit]) {
    flush(removed).await;
    if let Err(failure) = stop_units(removed).await {
        tracing::error!(%failure, "units that are no longer served cannot be closed");
    }
}

/// Makes the writes to removed units stable, all units at once, because no host can request that afterwards. Skips a
/// unit with an unfinished epoch of a gateway: the flush would make a part of the epoch stable.
async fn flush(units: &[ServedUnit]) {
    let flushed = units.iter().filter(|unit| !has_open_epoch(unit)).map(|unit| async {
        let result = match tokio::time::timeout(FLUSH_WITHIN, unit.opened.top.flush()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the flush takes longer than {} s", FLUSH_WITHIN.as_secs()),
        };
        let ServedUnit { lun, serial, .. } = unit;
        tracing::error!(
            lun, serial, error = result,
            remedy = "check the disk of the unit; writes that hosts did not flush may be lost: check \
             the file system before the volume is used again",
            "a removed unit could not be flushed"
        );
    });
    futures_util::future::join_all(flushed).await;
}

/// Returns true if the unflushed writes of a unit may be a part of an epoch of its exclusive writer. The writer will
/// send the whole epoch again.
fn has_open_epoch(unit: &ServedUnit) -> bool {
    let is_claimed = unit.claim_report().is_some_and(|claim| claim.is_held);
    is_claimed && unit.opened.top.geometry().epoch_blocks > 0
}

/// Time-out of the flush: the time that Linux gives a disk for SYNCHRONIZE CACHE by default.
const FLUSH_WITHIN: Duration = Duration::from_secs(60);

/// Returns the remedy for a portal that cannot be opened.
fn refused_portal(plan: &ReloadPlan<'_>, address: Address, error: &io::Error) -> Failure {
    let same_port = |removed: &&Address| removed.0.port() == address.0.port();
    match plan.portals_removed.iter().find(same_port) {
        Some(removed) if error.kind() == io::ErrorKind::AddrInUse => {
            Failure::new(format!("cannot listen on {address} while {removed} is open"))
                .remedy("remove the old portal with one reload, and add the new one with the next")
        }
        _ => cannot_listen(address, error),
    }
}

impl Node {
    /// Grows a unit to `bytes`, or to the size of its block device if `bytes` is `None`. Returns its size in bytes.
    pub async fn resize(&self, target: &str, lun: u16, bytes: Option<u64>) -> Result<u64, Failure> {
        let _one_at_a_time = self.changing.lock().await;
        let (opened, unit) = self.unit(target, lun)?;
        let sized = |layer: &Layer| matches!(layer, Layer::File(File { size: Some(_), .. }));
        if unit.stack.iter().any(sized) {
            return Err(Failure::new("the settings specify the size of its file")
                .remedy("set the new `size` there, and `forebay reload`"));
        }
        if let Some(why) = plan::fixed_size(&unit) {
            return Err(Failure::new(why));
        }
        let grown = opened.grow(bytes).await?;
        self.grow_drive(target, lun).await?;
        Ok(grown)
    }

    /// Gives the end of the volume to the unit, if the unit is an object drive.
    async fn grow_drive(&self, target: &str, lun: u16) -> Result<(), Failure> {
        let drive = {
            let inner = self.inner.lock();
            let served = inner.targets.iter().find(|served| served.name == target);
            let unit = served.and_then(|served| served.units.iter().find(|unit| unit.lun == lun));
            unit.and_then(|unit| unit.drive.clone())
        };
        match drive {
            Some(drive) => drive.grow().await,
            None => Ok(()),
        }
    }

    pub(super) fn unit(&self, target: &str, lun: u16) -> Result<(Arc<OpenedStack>, Unit), Failure> {
        let inner = self.inner.lock();
        let served = inner.targets.iter().find(|served| served.name == target);
        let unit = served.and_then(|served| served.units.iter().find(|unit| unit.lun == lun));
        let settings = inner.settings.target.iter().find(|settings| settings.name.0 == target);
        let settings =
            settings.and_then(|settings| settings.unit.iter().find(|unit| unit.lun == lun));
        let found =
            unit.zip(settings).map(|(u, settings)| (Arc::clone(&u.opened), settings.clone()));
        found.ok_or_else(|| {
            Failure::new(format!("there is no LUN {lun} of a target {target}"))
                .remedy("`forebay status` shows the targets and units")
        })
    }
}
