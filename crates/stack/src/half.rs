//! The leg of a pair's log that this gateway holds, with the NVRAM in front of it.

use std::sync::Arc;

use ::cache::{BufferError, FoundBuffer, LogBuffer, NvramPromise, needs_buffer};
use config::{CacheLayerSettings, quoted};
use control::Failure;
use volume::{MirrorError, Stack};

use super::{file, nvram, watch};
use crate::confirmed_writes;

/// The open leg of a pair's log that is on a disk of this gateway.
#[derive(Clone)]
pub struct LocalHalf {
    pub volume: Stack,
    /// The NVRAM in front of the leg; `None` if the settings name none.
    pub buffer: Option<Arc<LogBuffer>>,
}

impl LocalHalf {
    /// Opens or creates the leg and its NVRAM. If the file of the leg is removed or replaced later, writes fail.
    ///
    /// # Errors
    /// The disk or the NVRAM cannot be used, or the disk needs an NVRAM that the settings do not name.
    pub async fn open(settings: &CacheLayerSettings) -> Result<Self, Failure> {
        let disk = Arc::new(file::open(file::log_options(settings, &settings.log)).await?);
        watch::fence(&disk);
        let nvram = nvram::open(settings).map_err(Failure::from)?;
        let Some((memory, watched)) = nvram else {
            if needs_buffer(&(Arc::clone(&disk) as Stack)).await.map_err(Failure::new)? {
                return Err(refusal(settings, &BufferError::Needed));
            }
            return Ok(Self { volume: disk, buffer: None });
        };
        let promise =
            NvramPromise { survives: settings.nvram_survives, boot: confirmed_writes::boot_id() };
        let refused = |error| refusal(settings, &error);
        let found = FoundBuffer::open(disk as Stack, memory, promise).await.map_err(refused)?;
        if let Some(loss) = found.loss() {
            tracing::warn!(
                log = %settings.log.display(), reason = loss.reason,
                remedy = "start the partner: it has them, and fills this leg; see docs/guide/pair.md",
                "this leg of the log may lack acknowledged writes: the partner has them"
            );
        }
        found
            .note_loss(settings.accept_loss)
            .await
            .map_err(|error| not_a_half(settings, &error))?;
        let buffer = Arc::new(found.begin().await.map_err(refused)?);
        if let Some(path) = &settings.nvram {
            watch::nvram(&buffer, watched, path, LogBuffer::is_closed);
        }
        Ok(Self { volume: Arc::clone(&buffer) as Stack, buffer: Some(buffer) })
    }

    /// Writes everything in the NVRAM to the disk, at a clean end of the process. If that fails, an event reports it,
    /// and the NVRAM keeps the rest for the next start.
    pub async fn close(&self) {
        let Some(buffer) = &self.buffer else { return };
        if let Err(error) = buffer.close().await {
            tracing::warn!(
                %error,
                remedy = "keep the NVRAM file, check the disk of the log, and start again with the \
                 same `nvram`",
                "writes in the NVRAM could not be written to the log disk: the next start needs the \
                 NVRAM"
            );
        }
    }
}

/// Fails if the leg needs an NVRAM that the settings do not name. Changes nothing.
pub async fn check(settings: &CacheLayerSettings, half: &Stack) -> Result<(), Failure> {
    if settings.nvram.is_none() && needs_buffer(half).await.map_err(Failure::new)? {
        return Err(refusal(settings, &BufferError::Needed));
    }
    Ok(())
}

fn not_a_half(settings: &CacheLayerSettings, error: &MirrorError) -> Failure {
    let path = settings.log.display();
    Failure::new(format!("{path} cannot be the leg of a log: {error}"))
        .remedy("name the right file or device")
}

/// Returns the message and the remedy for a leg that cannot be used with the NVRAM of the settings, or needs one that
/// they do not name.
fn refusal(settings: &CacheLayerSettings, error: &BufferError) -> Failure {
    let log = settings.log.display();
    let nvram = settings.nvram.as_deref().map(quoted).unwrap_or_default();
    let remedy = match error {
        BufferError::Disk(_) => "check the disk of the log; its content may be needed".to_owned(),
        BufferError::Needed => {
            "name the NVRAM file as before (`nvram`), and keep `report = \"immediate\"`; after a clean stop of \
             this gateway both may be removed from the settings"
                .into()
        }
        BufferError::OthersMemory => format!(
            "name the NVRAM file of this log; if the content of {nvram} is not needed, remove the file: this \
             leg of the log is then filled from the partner's"
        ),
        BufferError::Half(_) => "name the right file or device".into(),
        BufferError::NoPlace => {
            "start without `nvram` and with `report = \"after-complete\"`; to use an NVRAM, drain the log \
             (`forebay gateway drain`), stop both gateways, move both legs away, and start with `nvram`"
                .into()
        }
        BufferError::Version(_) => "use the newer Forebay".into(),
        BufferError::Memory(_) => {
            "put the NVRAM file on storage that works; this leg of the log is then filled from the partner's"
                .into()
        }
    };
    Failure::new(format!("cannot use the leg of the log {log}: {error}")).remedy(remedy)
}
