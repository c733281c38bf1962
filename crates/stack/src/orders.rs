//! Commands for the cache of a unit, from the control socket.

use config::quantity::Size;
use control::{CacheControlCommand, CacheControlStatus, Failure, Rate, UnitName};

use crate::opened_stack::OpenedStack;

impl OpenedStack {
    /// Executes a command for the cache of this unit. `name` names the unit in messages.
    pub async fn order(
        &self,
        name: &UnitName,
        order: CacheControlCommand,
    ) -> Result<CacheControlStatus, Failure> {
        let cache = self.cache().ok_or_else(|| {
            Failure::new(format!("{name} has no cache"))
                .remedy("name a unit that has a cache in `forebay status`")
        })?;
        if let CacheControlCommand::Renew { half } = order {
            cache.renew(half).await?;
        }
        if let CacheControlCommand::LogResize { bytes } = order {
            return cache.resize(bytes).await;
        }
        let obeyed = cache.obey(order).await;
        // Report the command as an operator types it after `forebay gateway`, where legs count from 1. Flush, drain and
        // resize are not reported: their clients repeat them.
        let typed = match order {
            CacheControlCommand::Flush { .. }
            | CacheControlCommand::Drain
            | CacheControlCommand::LogResize { .. } => None,
            CacheControlCommand::Pause => Some("pause".to_owned()),
            CacheControlCommand::Resume => Some("resume".to_owned()),
            CacheControlCommand::Rate(Rate::Bytes(bytes)) => Some(format!("rate {}", Size(bytes))),
            CacheControlCommand::Rate(Rate::Settings) => Some("rate settings".to_owned()),
            CacheControlCommand::Rate(Rate::Unlimited) => Some("rate unlimited".to_owned()),
            CacheControlCommand::Renew { half } => Some(format!("renew {}", u16::from(half) + 1)),
        };
        if let Some(order) = typed {
            tracing::info!(unit = %name, %order, "a command arrived on the control socket");
        }
        obeyed.map_err(|error| {
            let remedy = match error {
                volume::Error::Busy(_) => format!(
                    "`forebay gateway resume {name}` ends a pause, `forebay gateway rate {name} unlimited` \
                     removes a rate of 0"
                ),
                _ => "see `forebay status`".to_owned(),
            };
            Failure::new(format!("{name}: {error}")).remedy(remedy)
        })
    }
}
