//! The iSCSI sessions, one after the other, with the leg of the log that the partner gateway holds.

use std::sync::Arc;

use initiator::{Error, RemoteVolume, Settings};
use parking_lot::Mutex;

/// The last session with the partner's leg.
#[derive(Default)]
pub(super) struct PartnerLink {
    last: Mutex<Option<Arc<RemoteVolume>>>,
}

impl PartnerLink {
    /// Closes the last session with the partner's leg, even if it is still in use, and then starts a new one. Without
    /// the close, the last session could log in again, replace the new one, and send old commands.
    pub async fn begin(&self, settings: Settings) -> Result<Arc<RemoteVolume>, Error> {
        let last = self.last.lock().clone();
        if let Some(last) = last {
            // Close in a task of its own, so that the close completes even if the caller drops this call. Once the
            // close has begun, the session does not log in again.
            let _ = tokio::spawn(async move { last.close().await }).await;
        }
        let session = Arc::new(RemoteVolume::connect(settings).await?);
        *self.last.lock() = Some(Arc::clone(&session));
        Ok(session)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use target::{Target, TargetServer};
    use unit::{BlockUnit, UnitIdentity};
    use volume::{Extent, Geometry, Lba, MemVolume, Volume};

    use super::*;

    /// A second session is started while the first one is in use. Calls on the first session must fail from then on,
    /// and it must not log in again and thereby disturb the second one.
    #[tokio::test]
    async fn a_new_session_ends_the_previous_session_permanently() {
        const NAME: &str = "iqn.2026-11.test:half";
        let disk = Arc::new(MemVolume::new(Geometry::with_blocks(100)));
        let unit = BlockUnit::new(disk, UnitIdentity::new("half"), unit::Settings::default());
        let target = Target::new(NAME, vec![(0, Arc::new(unit) as _)]);
        let server =
            TargetServer::new(target::Settings::default(), vec![target]).expect("a target");
        let address: std::net::SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let address = server.open_portal(address.into()).await.expect("it listens");
        let mut settings = Settings::new(address.to_string(), NAME, 0);
        settings.isid = Settings::lasting_isid("a partner");
        let link = PartnerLink::default();
        let first = link.begin(settings.clone()).await.expect("a session");
        let extent = Extent { lba: Lba(0), blocks: 1 };
        first.read(extent).await.expect("read");
        let second = link.begin(settings).await.expect("another one");
        // Check for one second that the old session stays closed; a new login would take much less.
        for _ in 0..20 {
            assert!(first.read(extent).await.is_err(), "it has come back");
            second.read(extent).await.expect("read");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let counted = second.statistics();
        assert_eq!((counted.recovery.connections_lost, counted.recovery.reconnects), (0, 0));
        second.close().await;
        server.shutdown(Duration::ZERO).await;
    }
}
