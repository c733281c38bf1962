//! Orders for the caches that a node serves.

use super::Node;
use crate::{
    failure::Failure,
    orders::{Order, Standing, UnitName},
};

impl Node {
    /// Does what is asked of the cache of a unit.
    pub async fn order(&self, name: &UnitName, order: Order) -> Result<Standing, Failure> {
        let (opened, _) = self.unit(&name.target, name.lun)?;
        let cache = opened.cache().ok_or_else(|| {
            Failure::new(format!("{name} has no cache"))
                .remedy("name a unit that `forebay status` shows with one")
        })?;
        let obeyed = cache.obey(order).await;
        match order {
            Order::Flush { .. } | Order::Drain => {}
            Order::Pause | Order::Resume | Order::Rate(_) => {
                tracing::info!(unit = %name, ?order, "as was asked on the control socket");
            }
        }
        obeyed.map_err(|error| {
            let remedy = match error {
                volume::Error::Busy(_) => format!(
                    "`forebay gateway resume {name}` ends a pause, `forebay gateway rate {name} unlimited` \
                     a rate of nothing"
                ),
                _ => "`forebay status` shows what else is known".to_owned(),
            };
            Failure::new(format!("{name}: {error}")).remedy(remedy)
        })
    }
}
