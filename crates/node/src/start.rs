//! Starts a node (opens its units and portals) and stops it.

use std::{future::Future, process::exit, sync::Arc, time::Duration};

use config::{Address, IscsiTargetSettings, PortalGroupSettings, PortalSettings, Settings, Unit};
use control::{FAILED, Failure, ServingPhase, UnitName};
use stack::{NotOpened, OpenedStack};

use super::{
    LOGOUT_WITHIN, Listening, Node, ServedTarget, ServedUnit, cannot_listen, open_common,
    open_unit, shown_unit, stop_units,
};

/// Longest duration of a stop. systemd waits longer, and a person about as long.
const STOP_WITHIN: Duration = Duration::from_secs(5);

impl Node {
    /// Opens all units and portals. Targets without a remote volume are opened first, and so are the portals that lead
    /// only to these: their units may be the remote volumes of other targets.
    pub async fn start(self: &Arc<Self>) -> Result<(), Failure> {
        let settings = self.settings();
        self.events.set_level(settings.log_level.as_ref());
        self.check_portals(&settings)?;
        self.open_naming(&settings).await?;
        if self.note_newer(true).await? {
            self.leave_out_newer();
        }
        let settings = self.settings();
        self.open_halves(&settings).await?;
        let groups = settings.groups();
        for remote in [false, true] {
            let is_its = |target: &&IscsiTargetSettings| settings.needs_another(target) == remote;
            for target in settings.target.iter().filter(is_its) {
                self.open_target(&settings, target).await?;
            }
            for group in &groups {
                let reached = || settings.target.iter().filter(|t| t.is_reached_through(group));
                if reached().any(|target| settings.needs_another(target)) == remote {
                    for (address, portal) in &group.portals {
                        self.open_portal(group, *address, portal).await?;
                    }
                }
            }
            // Announce the names after each pass: a unit of the first pass may be the remote volume of a unit in the
            // second pass, which then finds it by name.
            self.tell_names();
        }
        self.settle_refused(&settings)?;
        self.start_pairs();
        let mut inner = self.inner.lock();
        // List targets and portals in the order of the settings.
        inner.targets.sort_by_key(|served| {
            settings.target.iter().position(|target| target.name.0 == served.name)
        });
        let wanted: Vec<Address> =
            groups.iter().flat_map(|group| &group.portals).map(|(address, _)| *address).collect();
        inner.portals.sort_by_key(|portal| wanted.iter().position(|w| *w == portal.wanted));
        inner.state = ServingPhase::Serving;
        drop(inner);
        self.tell_names();
        self.open_moves();
        self.look_for_newer();
        Ok(())
    }

    async fn open_target(
        &self,
        settings: &Settings,
        target: &IscsiTargetSettings,
    ) -> Result<(), Failure> {
        let name = target.name.0.clone();
        self.inner.lock().targets.push(ServedTarget { name: name.clone(), units: Vec::new() });
        // Skip the unit of a pair: the member of the pair opens it when it is to serve.
        for unit in target.unit.iter().filter(|unit| unit.pair().is_none()) {
            if self.is_refused(target, unit) {
                continue;
            }
            let opened = match self.open_one(settings, target, unit).await {
                Ok(opened) => opened,
                Err(NotOpened::Refused(failure)) => {
                    self.refuse(settings, target, unit, &failure);
                    continue;
                }
                Err(NotOpened::Failed(failure)) => return Err(failure),
            };
            // Register each unit as soon as it is open, so that a stop of the node closes it.
            let mut inner = self.inner.lock();
            if let Some(served) = inner.targets.iter_mut().find(|served| served.name == name) {
                served.units.push(opened);
            }
        }
        self.server.add(self.shown(settings, target)).map_err(Failure::settings)
    }

    /// Opens a unit of a target, together with the other units of its common cache.
    async fn open_one(
        &self,
        settings: &Settings,
        target: &IscsiTargetSettings,
        unit: &Unit,
    ) -> Result<ServedUnit, NotOpened> {
        let Some(common) = unit.in_common() else {
            let given = self.given(unit);
            let naming = self.naming.as_ref();
            return open_unit(settings, target, unit, naming, &self.files, given).await;
        };
        let opened = self.open_in_common(settings, common, target, unit).await?;
        Ok(shown_unit(settings, target, unit, opened)?)
    }

    /// Opens a unit together with the other units of its common cache. If these have been opened already, returns the
    /// stack that was opened with them.
    async fn open_in_common(
        &self,
        settings: &Settings,
        common: &str,
        target: &IscsiTargetSettings,
        unit: &Unit,
    ) -> Result<OpenedStack, NotOpened> {
        let name = UnitName { target: target.name.0.clone(), lun: unit.lun };
        let take = || {
            let mut inner = self.inner.lock();
            let at = inner.waiting.iter().position(|(waiting, _)| *waiting == name);
            at.map(|at| inner.waiting.swap_remove(at).1)
        };
        if let Some(opened) = take() {
            return Ok(opened);
        }
        let opened =
            open_common(settings, common, self.naming.as_ref(), &self.files, false).await?;
        self.inner.lock().waiting.extend(opened);
        let missing = || {
            Failure::new(format!("{name} is not one of the common cache {common}")).remedy(
                "restart this process; if that does not help, give the unit a cache of its \
                 own, and report the settings",
            )
        };
        Ok(take().ok_or_else(missing)?)
    }

    /// Fails if an address of a portal cannot be listened on. This is checked before any log is created or filled,
    /// which may take minutes: a start that fails must leave nothing changed. The sockets are closed again, so a host
    /// that connects before its targets are served is refused.
    fn check_portals(&self, settings: &Settings) -> Result<(), Failure> {
        let groups = settings.groups();
        let addresses = groups.iter().flat_map(|group| &group.portals).map(|(address, _)| *address);
        let bound = addresses.map(|address| {
            self.server.bind(address.0.into()).map_err(|error| cannot_listen(address, &error))
        });
        // Keep all sockets open until the last check: two of the addresses may conflict with each other.
        bound.collect::<Result<Vec<_>, _>>().map(drop)
    }

    async fn open_portal(
        &self,
        group: &PortalGroupSettings,
        address: Address,
        portal: &PortalSettings,
    ) -> Result<(), Failure> {
        let portal = self.portal(group, address.0, portal);
        let bound = self.server.open_portal(portal).await;
        let bound = bound.map_err(|error| cannot_listen(address, &error))?;
        self.inner.lock().portals.push(Listening { wanted: address, bound });
        Ok(())
    }

    /// Logs initiators out, and then closes the units. A second signal ends the process at once: all acknowledged
    /// writes are in the log by then.
    pub async fn stop(&self, signal: impl Future<Output = &'static str>) -> Result<(), Failure> {
        self.inner.lock().state = ServingPhase::Stopping;
        let closed = async {
            self.server.shutdown(LOGOUT_WITHIN).await;
            let units: Vec<_> = {
                let inner = self.inner.lock();
                inner.targets.iter().flat_map(|target| target.units.clone()).collect()
            };
            let waiting = std::mem::take(&mut self.inner.lock().waiting);
            let others = waiting.iter().map(|(_, opened)| opened.stop());
            let others = futures_util::future::join_all(others);
            let (stopped, others) = tokio::join!(stop_units(&units), others);
            self.close_halves().await;
            stopped.and(others.into_iter().collect())
        };
        tokio::select! {
            stopped = closed => stopped,
            () = tokio::time::sleep(STOP_WITHIN - Duration::from_millis(300)) => {
                tracing::warn!("not all units could be closed in time; the log has all acknowledged writes");
                Ok(())
            }
            name = signal => {
                tracing::warn!(signal = name, "exiting immediately");
                self.events.flush();
                exit(FAILED.into());
            }
        }
    }
}
