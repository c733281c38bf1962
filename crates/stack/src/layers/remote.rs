//! The layer `remote`: the volume of another target. Opens the log of the cache above first, because the log may know
//! the volume.

use std::{sync::Arc, time::Duration};

use config::{CacheLayerSettings, IscsiName, RemoteLayerSettings, quantity::TimeSpan};
use control::LayerFigures;
use initiator::RemoteVolume;
use volume::{Mirror, Stack, Volume};

use super::running::{LayerFuture, OpenedLayer, RunningLayer, StackLayer};
use crate::{
    cache_log::{UnopenedCacheLog, log_of_pair, open_recorded_log},
    log_disk,
    not_opened::NotOpened,
    records::Recorder,
    remote::{self, FindFarVolume, RecordedFarVolume, Us},
    remote_figures,
    resend::Resend,
    write_through::WriteThrough,
};

pub struct FarVolume<'a> {
    pub settings: &'a RemoteLayerSettings,
    /// The cache whose log is opened before the far volume, because the log may know its size and name. `None` if
    /// there is no cache.
    pub log: Option<&'a CacheLayerSettings>,
    /// The log of a pair, which the node has opened.
    pub pair_log: Option<Arc<Mirror>>,
    /// The record of the volume in the log of a common cache.
    pub known: Option<RecordedFarVolume>,
    pub initiator_name: &'a IscsiName,
    /// The name of the session, by which the node recognizes this process after a restart.
    pub lasting: String,
    pub writes: FarWrites,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FarWrites {
    /// A cache above is the only writer. It flushes the writes that must survive a restart of the node.
    UnderCache,
    /// There is one writer and no cache. The writer flushes the writes that must survive a restart of the node.
    OneWriter,
    /// No cache is above the far volume, and several initiators may write to it.
    ManyWriters,
}

/// A far volume that is connected, or that is known only from the log of a cache so far.
pub struct OpenedFarVolume {
    pub opened: OpenedLayer,
    pub session: Arc<RemoteVolume>,
    /// The log of the cache above this volume, if this function has opened it.
    pub log: Option<UnopenedCacheLog>,
}

/// Opens the log of the cache above, if there is one, and then the far volume.
///
/// # Errors
/// The log cannot be used. Or the far volume cannot be used, and no log has a record of it.
pub async fn open(
    far: FarVolume<'_>,
    names: Option<Arc<dyn FindFarVolume>>,
    recorder: &Recorder,
) -> Result<OpenedFarVolume, NotOpened> {
    let mut settings = far.settings.clone();
    let us = Us { initiator_name: far.initiator_name.clone(), lasting: Some(far.lasting) };
    let (mut known, mut connected, mut log) = (far.known, None, None);
    if let Some(cache) = far.log {
        let opened = match far.pair_log {
            Some(mirror) => {
                let opened = log_of_pair(cache, Arc::clone(&mirror)).await?;
                // With only one leg of the pair's log, another gateway may have newer writes. Do not start without the
                // node, which decides whether this log may be used.
                if mirror.alone().is_some() {
                    settings.start_timeout = TimeSpan::default();
                } else {
                    known = opened.known();
                }
                opened
            }
            None => {
                if !log_disk::exists(cache) {
                    // Connect to the node before the log is created, which may take minutes: the node may not admit
                    // this gateway.
                    recorder.look_at_log(cache)?;
                    let opened = remote::open(&settings, &us, None, names.clone()).await?;
                    connected = Some(opened);
                }
                let opened = open_recorded_log(cache, recorder).await?;
                known = opened.known();
                opened
            }
        };
        log = Some(opened);
    }
    let session = match connected {
        Some(session) => session,
        None => remote::open(&settings, &us, known, names).await?,
    };
    let opened = OpenedLayer {
        volume: volume(&session, far.writes),
        layer: StackLayer::new(
            "remote",
            settings.url.clone(),
            Arc::new(RemoteLayer(Arc::clone(&session))),
        ),
        identity: Some(session.identity().to_owned()),
    };
    Ok(OpenedFarVolume { opened, session, log })
}

/// Returns the volume for the layers above. The node may lose writes that were not flushed, and can report the loss to
/// one caller only. A cache is one caller, and a single writer is one. If several hosts write, every write must be
/// stable when it is acknowledged.
fn volume(session: &Arc<RemoteVolume>, writes: FarWrites) -> Stack {
    let far = Arc::clone(session);
    match writes {
        FarWrites::UnderCache => far,
        // `Resend` needs a node without epochs: the writes that it sends again can exceed an epoch, and a node with
        // atomic epochs may refuse them.
        FarWrites::OneWriter if far.geometry().epoch_blocks == 0 => Arc::new(Resend::new(far)),
        FarWrites::OneWriter | FarWrites::ManyWriters => Arc::new(WriteThrough::new(far)),
    }
}

struct RemoteLayer(Arc<RemoteVolume>);

/// Longest time for the logout of a session whose volume has another owner. The session is fenced, so none of its
/// commands is worth waiting for.
const CLOSE_WITHIN: Duration = Duration::from_millis(300);

impl RunningLayer for RemoteLayer {
    fn figures(&self) -> LayerFigures {
        LayerFigures::Remote(Box::new(remote_figures::of(&self.0)))
    }

    fn stop(&self) -> LayerFuture<'_, Result<(), control::Failure>> {
        Box::pin(async {
            self.0.close().await;
            Ok(())
        })
    }

    fn abandon<'a>(&'a self, _reason: &'a str) -> LayerFuture<'a, ()> {
        Box::pin(async {
            let _ = tokio::time::timeout(CLOSE_WITHIN, self.0.close()).await;
        })
    }
}
