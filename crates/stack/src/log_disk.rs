//! The disk of a cache's log: a file or device, or a mirror of two (`log_mirror`). The mirror of a pair's log is opened
//! by the member of the pair, and only wrapped here.
//!
//! To grow a log, its files grow first and then the log; to shrink it, the log shrinks first and then the files are
//! cut. A mirror with one missing leg works with the other one; [`LogDisk::renew`] fills a leg again.

use std::{
    path::Path,
    sync::{Arc, Weak},
    time::Duration,
};

use config::{CacheLayerSettings, UNMOUNT_REMEDY};
use control::{Failure, LogMirrorFigures};
use parking_lot::Mutex;
use volume::{
    FileVolume, FileVolumeOptions, Holding, Mirror, MirrorError, MirrorLegStatus, Stack, Volume,
};

use super::{file, watch};
use crate::not_opened::NotOpened;

/// The open file or device of a log. For a mirrored log there is one entry for each leg, `None` for a missing
/// one.
type LogDiskFiles = Arc<Mutex<Vec<Option<Arc<FileVolume>>>>>;

pub struct LogDisk {
    volume: Stack,
    mirror: Option<Arc<Mirror>>,
    files: LogDiskFiles,
    settings: CacheLayerSettings,
}

impl LogDisk {
    /// Opens or creates the log disk. One leg of a mirror may be missing. If the disk cannot be used, only the units of
    /// this cache are not served.
    pub async fn open(settings: &CacheLayerSettings) -> Result<Self, NotOpened> {
        let settings = settings.clone();
        let Some(second) = &settings.log_mirror else {
            let opened = file::open(file::log_options(&settings, &settings.log)).await;
            let volume = Arc::new(opened.map_err(NotOpened::Refused)?);
            let files = Arc::new(Mutex::new(vec![Some(Arc::clone(&volume))]));
            return Ok(Self { volume, mirror: None, files, settings });
        };
        let mut opened = Vec::new();
        for path in [&settings.log, second] {
            opened.push(file::open(file::log_options(&settings, path)).await);
        }
        let files = there(opened).map_err(NotOpened::Refused)?;
        files.iter().flatten().for_each(watch::fence);
        let opened = files.clone().map(|file| file.map(|file| file as Stack));
        let mut id = [0; 16];
        getrandom::fill(&mut id)
            .map_err(|error| Failure::new(format!("the system has no random bytes: {error}")))?;
        let mirror = Mirror::open(opened, id, settings.log_degraded).await;
        let refused = |error| NotOpened::Refused(refusal(&settings, &error));
        let mirror = Arc::new(mirror.map_err(refused)?);
        let volume = Arc::clone(&mirror) as Stack;
        Ok(Self {
            volume,
            mirror: Some(mirror),
            files: Arc::new(Mutex::new(files.into())),
            settings,
        })
    }

    /// Returns the log disk of a pair, over the open mirror of its two legs.
    pub fn of_pair(settings: &CacheLayerSettings, mirror: Arc<Mirror>) -> Self {
        let (files, settings) = (LogDiskFiles::default(), settings.clone());
        Self { volume: Arc::clone(&mirror) as Stack, mirror: Some(mirror), files, settings }
    }

    pub fn settings(&self) -> &CacheLayerSettings {
        &self.settings
    }

    /// Returns the log disk as a volume of blocks; for a mirrored log, the mirror.
    pub fn volume(&self) -> Stack {
        Arc::clone(&self.volume)
    }

    /// Opens a leg of a mirror again, under its path in the settings, and fills it.
    pub async fn renew(&self, half: usize) -> Result<(), Failure> {
        let (Some(mirror), Some(second)) = (&self.mirror, &self.settings.log_mirror) else {
            return Err(Failure::new("the log is not mirrored")
                .remedy("set `log_mirror`; the leg of a pair's partner is filled automatically"));
        };
        let path = if half == 0 { &self.settings.log } else { second };
        let told = |error: MirrorError| {
            Failure::new(error).remedy("see `log_halves` in `forebay status --all`")
        };
        mirror.release(half).await.map_err(told)?;
        self.files.lock()[half] = None;
        let opened = Arc::new(file::open(file::log_options(&self.settings, path)).await?);
        watch::fence(&opened);
        mirror.replace(half, Arc::clone(&opened) as Stack).await.map_err(told)?;
        self.files.lock()[half] = Some(opened);
        Ok(())
    }

    /// Returns the number of bytes of each file or device that hold the mirror's labels and not the log.
    pub fn bytes_beside(&self) -> u64 {
        if self.mirror.is_some() { Mirror::reserved_bytes() } else { 0 }
    }

    /// Grows the files to `bytes`, or takes the present size of the devices. Returns the number of blocks of
    /// 4096 bytes that the log then has. If a file system has no room, the log keeps its size.
    pub async fn grow(&self, bytes: Option<u64>) -> Result<u64, Failure> {
        let files = self.present();
        let before: Vec<u64> = files.iter().map(|file| file.geometry().bytes()).collect();
        for (at, file) in files.iter().enumerate() {
            let bytes = bytes.filter(|bytes| *bytes > file.geometry().bytes());
            let growing = Arc::clone(file);
            let grown = tokio::task::spawn_blocking(move || growing.grow(bytes)).await;
            if let Err(error) = grown.map_err(Failure::new)? {
                for (file, before) in files.iter().zip(&before).take(at) {
                    cut(file, *before).await?;
                }
                return Err(Failure::new(format!("the log cannot grow: {error}"))
                    .remedy(file::io_remedy(&error, &self.settings.log)));
            }
        }
        if let Some(mirror) = &self.mirror {
            let least = files.iter().map(|file| file.geometry().bytes()).min().unwrap_or(0);
            let blocks = least.saturating_sub(self.bytes_beside()) / 4096;
            mirror.resize(blocks).await.map_err(|error| self.not_resized(&error))?;
        }
        Ok(self.volume.geometry().blocks)
    }

    /// Cuts the files behind `bytes` bytes of the log, which frees space in the file system. Devices are not
    /// changed.
    pub async fn shrink(&self, bytes: u64) -> Result<(), Failure> {
        if let Some(mirror) = &self.mirror {
            mirror.resize(bytes / 4096).await.map_err(|error| self.not_resized(&error))?;
        }
        for file in self.present() {
            cut(&file, bytes + self.bytes_beside()).await?;
        }
        Ok(())
    }

    fn not_resized(&self, error: &MirrorError) -> Failure {
        Failure::new(format!("the legs of the log keep their size: {error}")).remedy(
            "see `log_halves` in `forebay status --all`, renew the lost leg, and repeat the command",
        )
    }

    /// Starts the check of the log's file, which reports a lost file to the cache. If one leg of a mirror is
    /// lost, only its writes are refused, and the mirror continues with the other leg; the cache is notified
    /// when the last leg is lost.
    pub fn watch(&self, cache: &Arc<::cache::Cache>) {
        match &self.mirror {
            None => self.present().iter().for_each(|file| watch::log(cache, file)),
            // Start no check here for the log of a pair: each gateway checks its own leg where it opens it.
            Some(_) if self.present().is_empty() => {}
            Some(mirror) => {
                let halves = (Arc::downgrade(mirror), Arc::clone(&self.files));
                tokio::spawn(watch_halves(Arc::downgrade(cache), halves));
            }
        }
    }

    fn present(&self) -> Vec<Arc<FileVolume>> {
        self.files.lock().iter().flatten().cloned().collect()
    }

    /// Fails if the log cannot be resized while it is in use.
    pub fn can_be_resized(&self) -> Result<(), Failure> {
        let Some(mirror) = &self.mirror else { return Ok(()) };
        if self.present().is_empty() {
            return Err(Failure::new(
                "the log of a pair cannot be resized while it is in use",
            )
            .remedy(
                "drain it (`forebay gateway drain`), stop both gateways, move both legs away, and start with \
                 the new `log_size`",
            ));
        }
        if mirror.standings() != [MirrorLegStatus::InSync, MirrorLegStatus::InSync] {
            return Err(Failure::new(
                "a leg of the log is lost or being filled and keeps its size",
            )
            .remedy(
                "see `log_halves` in `forebay status --all`, and repeat the command when both are in sync",
            ));
        }
        Ok(())
    }

    /// Returns the state of the log's mirror; `None` for a log on one disk.
    pub fn figures(&self) -> Option<LogMirrorFigures> {
        let mirror = self.mirror.as_ref()?;
        let log_halves = mirror.standings().map(|standing| standing.to_string()).into();
        Some(LogMirrorFigures { log_halves, log_zeroed_blocks: mirror.zeroed() })
    }
}

/// Reports a mirrored log as lost to its cache, if no complete leg is left under its path in the file system. The open
/// files then accept writes again, so that destage can send all data of the log. The cache knows of the loss and
/// acknowledges no write because of these files.
async fn watch_halves(cache: Weak<::cache::Cache>, (mirror, files): (Weak<Mirror>, LogDiskFiles)) {
    let mut is_lost = false;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let (Some(cache), Some(mirror)) = (cache.upgrade(), mirror.upgrade()) else { return };
        // Skip the check of an exported log: it takes no more writes, and its files are about to be moved away.
        if matches!(cache.holding(), Holding::Refused(_)) {
            continue;
        }
        let halves = files.lock().clone();
        let look = move || {
            let changed = |file: Option<&Arc<FileVolume>>| {
                Some((file?.path().display().to_string(), file?.change()?))
            };
            let changes = halves.iter().map(|half| changed(half.as_ref())).collect::<Vec<_>>();
            (changes, halves)
        };
        let Ok((changes, halves)) = tokio::task::spawn_blocking(look).await else { return };
        if !is_lost {
            let standings = mirror.standings();
            let is_whole = |(standing, change): (&MirrorLegStatus, &Option<_>)| {
                *standing == MirrorLegStatus::InSync && change.is_none()
            };
            let mut lost = changes.iter().flatten();
            let Some((path, change)) = lost.next() else { continue };
            if standings.iter().zip(&changes).any(is_whole) {
                continue;
            }
            is_lost = true;
            cache.lose_log(&format!("the log {path}, and its other leg is missing, too: {change}"));
            tracing::error!(
                log = path, what = %change, dirty_bytes = cache.statistics().destage.dirty_bytes,
                remedy = "let this process run until an event says that the far volume has everything, and \
                 restart it then; see docs/guide/recover.md#log-lost-while-in-use",
                "both legs of the log are lost: no more writes are acknowledged, and destage sends the \
                 data of the log to the far volume"
            );
        }
        // Allow writes at each check and not only once: the check of a single leg may fence its file after this check
        // has noticed the loss.
        halves.iter().flatten().for_each(|file| file.unfence());
    }
}

/// Two checks a second: a file that is lost must be noticed within one second.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Cuts a file to `bytes`, which frees space in the file system.
async fn cut(file: &Arc<FileVolume>, bytes: u64) -> Result<(), Failure> {
    let file = Arc::clone(file);
    let shrunk = tokio::task::spawn_blocking(move || file.shrink(bytes)).await;
    shrunk.map_err(Failure::new)?.map_err(|error| {
        Failure::new(format!("the log has its new size, but its file could not be cut: {error}"))
            .remedy("repeat the command")
    })
}

/// Opens the log for reading only; `None` if another process serves it. `open` opens a file or a leg.
pub async fn look(
    settings: &CacheLayerSettings,
    open: impl Fn(&FileVolumeOptions) -> Result<Option<Stack>, Failure>,
) -> Result<Option<Stack>, Failure> {
    let options = |path: &Path| {
        let options = file::log_options(settings, path);
        FileVolumeOptions { preallocate: false, read_only: true, ..options }
    };
    let first = options(&settings.log);
    let Some(path) = &settings.log_mirror else { return open(&first) };
    let second = open(&options(path));
    let (first, second) = match (open(&first), second) {
        (Ok(None), _) | (_, Ok(None)) => return Ok(None),
        (Err(error), Err(_)) => return Err(error),
        (first, second) => (first.ok().flatten(), second.ok().flatten()),
    };
    let looked = Mirror::look([first, second], settings.log_degraded).await;
    looked.map(Some).map_err(|error| refusal(settings, &error))
}

/// Returns the legs that could be opened. Fails if none could.
fn there(
    opened: Vec<Result<FileVolume, Failure>>,
) -> Result<[Option<Arc<FileVolume>>; 2], Failure> {
    let mut halves = [None, None];
    let mut failed = None;
    for (half, opened) in halves.iter_mut().zip(opened) {
        match opened {
            Ok(volume) => *half = Some(Arc::new(volume)),
            Err(failure) => {
                tracing::error!(%failure, "a leg of the log's mirror cannot be opened");
                failed = Some(failure);
            }
        }
    }
    match failed {
        Some(error) if halves.iter().all(Option::is_none) => Err(error),
        _ => Ok(halves),
    }
}

/// Returns the message and the remedy for legs that are not a mirror.
fn refusal(settings: &CacheLayerSettings, error: &MirrorError) -> Failure {
    let [first, second] = [Some(&settings.log), settings.log_mirror.as_ref()]
        .map(|path| path.map_or_else(String::new, |path| path.display().to_string()));
    let name = |half: usize| if half == 0 { &first } else { &second };
    let zero = |path: &str| format!("dd if=/dev/zero of={path} bs=1M count=1 conv=notrunc");
    let remedy = match error {
        MirrorError::Io { half, .. } => format!("check {}, or start without it", name(*half)),
        MirrorError::NotAHalf { half, begins, .. } if ::cache::is_log(begins) => {
            return Failure::new(format!(
                "{} is the log of a cache without a mirror, and may hold dirty data",
                name(*half)
            ))
            .remedy(
                "name it as `log` and remove `log_mirror`, drain it (`forebay gateway drain`) and stop; then \
                 create both legs again",
            );
        }
        // Propose to overwrite this leg only if the other leg is valid. Otherwise this leg may be the only copy.
        MirrorError::NotAHalf { half, other_is_whole: true, .. } => format!(
            "name the right file or device; to fill {} again from the other leg, {UNMOUNT_REMEDY}; then write \
             zeros over its first MiB (`{}`), and, if the label of the other leg does not say yet that it is \
             used alone, start with `log_degraded = true` once",
            name(*half),
            zero(name(*half))
        ),
        MirrorError::NotAHalf { .. } => "name the right files or devices".into(),
        MirrorError::Version { .. } => "use the newer Forebay".into(),
        MirrorError::TooSmall { .. } => {
            "use a file or device that is as large as the other leg".into()
        }
        MirrorError::Size(_) => "see `log_halves` in `forebay status --all`".into(),
        MirrorError::Strangers => {
            format!("name the two legs of one log; {first} and {second} are not")
        }
        MirrorError::Split { .. } => format!(
            "{UNMOUNT_REMEDY}; then write zeros over the first MiB of the leg whose writes are to be discarded \
             (`{}` or `{}`), and start with `log_degraded = true` once",
            zero(&first),
            zero(&second)
        ),
        MirrorError::Absent { half, .. } => format!(
            "restore {}; if it is lost, {UNMOUNT_REMEDY}; then start with `log_degraded = true` once",
            name(*half)
        ),
    };
    Failure::new(format!("cannot use the log {first} with its mirror {second}: {error}"))
        .remedy(remedy)
}

/// Parses the number of a mirror leg on the command line.
pub fn half(number: &str) -> Result<u8, String> {
    match number {
        "1" => Ok(0),
        "2" => Ok(1),
        _ => Err(format!("`{number}` is neither 1 (`log`) nor 2 (`log_mirror`)")),
    }
}

/// Returns true if a file or device of the log exists.
pub fn exists(settings: &CacheLayerSettings) -> bool {
    settings.log.exists() || settings.log_mirror.as_deref().is_some_and(Path::exists)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ::cache::{LogVolumeIdentity, format};
    use volume::Geometry;

    use super::*;
    use config::quantity::Size;

    fn settings(folder: &Path) -> CacheLayerSettings {
        let size = Some(Size::mib(8));
        CacheLayerSettings {
            log: folder.join("first"),
            log_size: size,
            log_direct: false,
            ..CacheLayerSettings::default()
        }
    }

    async fn refused(settings: &CacheLayerSettings) -> String {
        let refused = LogDisk::open(settings).await.err().expect("it is no mirror");
        let NotOpened::Refused(refused) = refused else { panic!("it ends the start: {refused:?}") };
        format!("{refused} {}", refused.remedy.clone().unwrap_or_default())
    }

    #[tokio::test]
    async fn no_remedy_wipes_a_log_that_gets_a_mirror() {
        let folder = tempfile::tempdir().unwrap();
        let alone = settings(folder.path());
        let log = LogDisk::open(&alone).await.unwrap();
        let identity =
            LogVolumeIdentity { name: "far".into(), geometry: Geometry::with_blocks(4096) };
        format(&log.volume(), &identity, false).await.unwrap();
        drop(log);
        let before = fs::read(&alone.log).unwrap();
        let mirrored =
            CacheLayerSettings { log_mirror: Some(folder.path().join("second")), ..alone.clone() };
        let text = refused(&mirrored).await;
        assert!(text.contains("without a mirror") && !text.contains("dd "), "{text}");
        assert!(fs::read(&alone.log).unwrap() == before);
        assert!(LogDisk::open(&alone).await.is_ok());
    }

    #[tokio::test]
    async fn a_remedy_zeroes_a_mirror_leg_only_if_the_other_leg_is_intact() {
        let folder = tempfile::tempdir().unwrap();
        let second = folder.path().join("second");
        let mirrored =
            CacheLayerSettings { log_mirror: Some(second.clone()), ..settings(folder.path()) };
        drop(LogDisk::open(&mirrored).await.unwrap());
        let damage = |path: &Path| {
            let mut bytes = fs::read(path).unwrap();
            bytes[..8192].fill(7);
            fs::write(path, bytes).unwrap();
        };
        damage(&second);
        let text = refused(&mirrored).await;
        assert!(text.contains(&format!("dd if=/dev/zero of={}", second.display())), "{text}");
        damage(&mirrored.log);
        let text = refused(&mirrored).await;
        assert!(!text.contains("dd "), "{text}");
    }
}
