//! The layer `remote`: the volume of another target, with the log of a cache above that may know it.

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

/// A far volume that is to be opened.
pub struct FarVolume<'a> {
    /// The settings of the layer.
    pub settings: &'a RemoteLayerSettings,
    /// The cache whose log is opened before the far volume: the log may know it. `None` if there is none.
    pub log: Option<&'a CacheLayerSettings>,
    /// The log of a pair, which the node has opened.
    pub pair_log: Option<Arc<Mirror>>,
    /// What the log of a common cache knows of the volume.
    pub known: Option<RecordedFarVolume>,
    /// Our iSCSI name.
    pub initiator_name: &'a IscsiName,
    /// The name of the session, by which the far side knows it again.
    pub lasting: String,
    /// How writes reach the far volume.
    pub writes: FarWrites,
}

/// How writes reach a far volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FarWrites {
    /// A cache above is the only writer, and flushes what has to last.
    UnderCache,
    /// One writer without a cache, which flushes what has to last.
    OneWriter,
    /// Many writers without a cache.
    ManyWriters,
}

/// A far volume that is open, or that its log knows.
pub struct OpenedFarVolume {
    /// The layer.
    pub opened: OpenedLayer,
    /// The session.
    pub session: Arc<RemoteVolume>,
    /// The log that was opened first.
    pub log: Option<UnopenedCacheLog>,
}

/// Opens the log of the cache above, if there is one, and then the far volume.
///
/// # Errors
/// The log cannot be used, or the far volume cannot, and no log knows it.
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
                // A log without its other half is opened only if the node knows of it.
                if mirror.alone().is_some() {
                    settings.start_timeout = TimeSpan::default();
                } else {
                    known = opened.known();
                }
                opened
            }
            None => {
                if !log_disk::exists(cache) {
                    // Making a log may take minutes, so first find out whether the far side admits us.
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

/// Returns the volume as the layers above see it. The far side may lose what it did not flush, and can report that to one
/// caller only: a cache is one, and so is an only writer; hosts are many.
fn volume(session: &Arc<RemoteVolume>, writes: FarWrites) -> Stack {
    let far = Arc::clone(session);
    match writes {
        FarWrites::UnderCache => far,
        // A node at which what is between two flushes counts as a whole may refuse too much of it.
        FarWrites::OneWriter if far.geometry().epoch_blocks == 0 => Arc::new(Resend::new(far)),
        FarWrites::OneWriter | FarWrites::ManyWriters => Arc::new(WriteThrough::new(far)),
    }
}

/// A far volume as it runs.
struct RemoteLayer(Arc<RemoteVolume>);

/// The time that a session gets for its logout after the volume has got another owner. A fenced session has nothing to
/// wait for.
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
