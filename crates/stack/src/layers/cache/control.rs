//! Commands for a cache from the control socket: pause, rate, flush, drain, and the size and the mirror of its log.

use std::time::Duration;

use ::cache::{ResizeError, WriteOrderMark};
use ::control::{CacheControlCommand, CacheControlStatus, Failure};
use config::quantity::Size;
use volume::Holding;

use super::CacheLayer;
use crate::cache_figures;

impl CacheLayer {
    /// Opens a leg of the log's mirror again and fills it. `half` is 0 or 1.
    pub async fn renew(&self, half: u8) -> Result<(), Failure> {
        self.disk.renew(half.into()).await
    }

    /// Executes a command. A flush or a drain ends after [`WORK_AT_ONCE`] even if it is not done; the caller then
    /// sends the command again.
    pub async fn obey(
        &self,
        order: CacheControlCommand,
    ) -> Result<CacheControlStatus, volume::Error> {
        let (mut done, mut reached) = (true, None);
        if let (
            CacheControlCommand::Flush { .. } | CacheControlCommand::Drain,
            Holding::Refused(reason),
        ) = (order, self.cache.holding())
        {
            return Err(volume::Error::Fenced(reason));
        }
        match order {
            // The caller has executed these two commands already.
            CacheControlCommand::Renew { .. } | CacheControlCommand::LogResize { .. } => {}
            CacheControlCommand::Pause => self.cache.pause(),
            CacheControlCommand::Resume => self.cache.resume(),
            CacheControlCommand::Rate(rate) => self.pacing.tell(rate),
            CacheControlCommand::Flush { mark } => {
                reached = mark;
                let flush = self.flush(&mut reached);
                done = tokio::time::timeout(WORK_AT_ONCE, flush).await.unwrap_or(Ok(false))?;
            }
            CacheControlCommand::Drain => {
                let drain = self.drain();
                done = tokio::time::timeout(WORK_AT_ONCE, drain).await.unwrap_or(Ok(false))?;
            }
        }
        Ok(self.standing(done, reached).await)
    }

    async fn standing(&self, done: bool, mark: Option<u64>) -> CacheControlStatus {
        let counted = self.cache.statistics();
        CacheControlStatus {
            done,
            dirty_bytes: counted.destage.dirty_bytes,
            sent_bytes: counted.destage.round_sent_bytes,
            paused_since: counted.destage.paused_ms.map(cache_figures::since),
            rate_limit: counted.destage.rate_limit,
            rate: counted.destage.rate,
            lower_error: counted.lower.error,
            mark,
            log_bytes: self.cache.log_blocks().await * 4096,
        }
    }

    /// Resizes the log to `bytes`, or to the size of its device. The resize ends after [`WORK_AT_ONCE`] even if it
    /// is not done; the caller then sends the command again.
    pub async fn resize(&self, bytes: Option<u64>) -> Result<CacheControlStatus, Failure> {
        let _turn = self.resizing.lock().await;
        self.disk.can_be_resized()?;
        let wrong = |bytes: &u64| {
            !bytes.is_multiple_of(4096) || !(LEAST_LOG..=MOST_LOG).contains(&Size(*bytes))
        };
        if let Some(bytes) = bytes.filter(wrong) {
            let asked = Size(bytes);
            let message = format!("a log of {asked} is not between {LEAST_LOG} and {MOST_LOG}");
            return Err(Failure::new(message).remedy("name another size, a multiple of 4KiB"));
        }
        // Subtract the mirror's labels: `bytes` is the size of the file, or of each leg of a mirror, as in `log_size`.
        let beside = self.disk.bytes_beside();
        let now = self.cache.log_blocks().await * 4096 + beside;
        let blocks = match bytes {
            Some(bytes) if bytes < now => (bytes - beside) / 4096,
            bytes => {
                let there = self.disk.grow(bytes).await?;
                bytes.map_or(there, |bytes| (bytes - beside) / 4096)
            }
        };
        let resized = tokio::time::timeout(WORK_AT_ONCE, self.cache.resize(blocks)).await;
        let done = match resized {
            Ok(Ok(())) => true,
            Ok(Err(error)) => return Err(self.not_resized(error).await),
            Err(_) => false,
        };
        if done {
            self.disk.shrink(blocks * 4096).await?;
            tracing::info!(log = %self.log.display(), bytes = blocks * 4096, "the log has another size");
        }
        Ok(self.standing(done, None).await)
    }

    /// Cuts the file back to the size that the log uses, and returns the failure of the resize.
    async fn not_resized(&self, error: ResizeError) -> Failure {
        let remedy = match &error {
            ResizeError::Size { .. } => "name another size",
            ResizeError::TooOften => {
                "drain it with `forebay gateway drain`, then repeat the command"
            }
            ResizeError::AtFlush => "drain and stop, and create a new log",
            ResizeError::Volume(_) => "see `forebay status`, then repeat the command",
        };
        let mut text = format!("the log {} cannot be resized: {error}", self.log.display());
        // Read the size of the log again: an earlier resize that its client did not wait for may have ended since.
        if let Err(shrunk) = self.disk.shrink(self.cache.log_blocks().await * 4096).await {
            text += &format!("; {shrunk}");
        }
        Failure::new(text).remedy(remedy)
    }

    async fn flush(&self, mark: &mut Option<u64>) -> Result<bool, volume::Error> {
        let to = match *mark {
            Some(number) => WriteOrderMark(number),
            None => self.cache.mark().await?,
        };
        *mark = Some(to.0);
        self.cache.drain_to(to).await?;
        Ok(true)
    }

    async fn drain(&self) -> Result<bool, volume::Error> {
        loop {
            self.cache.drain().await?;
            if self.cache.is_drained() {
                return Ok(true);
            }
        }
    }
}

/// Smallest size of a log, as for `log_size`.
const LEAST_LOG: Size = Size::mib(8);

/// Maximum size of a log in bytes: log blocks are counted with 31 bits.
const MOST_LOG: Size = Size(1 << 42);

/// Longest time for which one request on the control socket works at a flush, drain or resize. The client shows the
/// progress and sends the request again. If the client has ended, destage runs at the higher speed no longer than this.
const WORK_AT_ONCE: Duration = Duration::from_millis(500);
