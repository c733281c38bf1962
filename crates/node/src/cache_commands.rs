//! Commands for the caches that a node serves.

use std::sync::Arc;

use control::{CacheControlCommand, CacheControlStatus, Exported, Failure, UnitName};

use super::Node;

impl Node {
    /// Performs a command on the cache of a unit.
    pub async fn order(
        &self,
        name: &UnitName,
        order: CacheControlCommand,
    ) -> Result<CacheControlStatus, Failure> {
        let (opened, _) = self.unit(&name.target, name.lun)?;
        opened.order(name, order).await
    }

    /// Closes the log of a unit, so that another host can adopt it. The unit stays and answers its hosts with NOT
    /// READY.
    pub async fn export(&self, name: &UnitName) -> Result<Exported, Failure> {
        let _one_at_a_time = self.changing.lock().await;
        let (opened, serial) = {
            let inner = self.inner.lock();
            let served = inner.targets.iter().find(|served| served.name == name.target);
            let unit = served.and_then(|served| served.units.iter().find(|u| u.lun == name.lun));
            let found = unit.map(|unit| (Arc::clone(&unit.opened), unit.serial.clone()));
            found.ok_or_else(|| Failure::new(format!("there is no {name} here")))?
        };
        let exported = opened.export(&serial).await?;
        // Close the other units of the common cache as well: their shared log has just been closed.
        let others: Vec<_> = {
            let inner = self.inner.lock();
            let units = inner.targets.iter().flat_map(|target| &target.units);
            units.map(|unit| Arc::clone(&unit.opened)).collect()
        };
        for other in others.iter().filter(|other| other.shares_cache_with(&opened)) {
            other.close().await;
        }
        tracing::warn!(
            unit = %name, log = exported.log,
            remedy = "adopt the log there with `forebay gateway adopt`, and remove the unit from these \
             settings; see docs/guide/move.md",
            "the unit is exported; another host can adopt its log now"
        );
        Ok(exported)
    }
}
