//! Answers of a `forebay attach` process on its control sockets. The process has a socket for the volume, on which
//! `forebay detach` calls it. If the volume is a unit of a settings file, the process also answers on the socket that
//! the settings name, as a gateway does.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use control::{
    AttachedVolumeStatus, CacheControlStatus, ControlRequest, ControlResponse, Detached, Failure,
    LogLeft, ProcessCounters, ServingPhase, ServingStatus, TargetStatus, UnitName, UnitStatus,
};
use parking_lot::Mutex;
use stack::OpenedStack;
use tokio::sync::{mpsc, oneshot};

use super::source::AttachmentSource;

/// The conditions under which a device is detached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Manner {
    /// Detach when the device is not in use, after making all written data stable.
    Usual,
    /// As `Usual`, and the cache has destaged all dirty data.
    Drained,
    /// Detach at once, even if the device is in use or data is lost.
    Force,
}

pub struct DetachRequest {
    pub manner: Manner,
    pub answer: oneshot::Sender<Result<DetachAnswer, Failure>>,
}

pub enum DetachAnswer {
    Detached(Box<Detached>),
    /// The device is still attached, because the cache has to destage more data; holds the state of the cache.
    Draining(CacheControlStatus),
}

/// Answers requests on the control sockets about the state of an attached device.
pub struct AttachmentResponder {
    since: Instant,
    unit: UnitName,
    serial: String,
    config: Option<PathBuf>,
    /// The reason why the volume cannot be resized on request; `None` if it can be.
    fixed_size: Option<String>,
    opened: OnceLock<Arc<OpenedStack>>,
    attached: Mutex<Option<AttachedVolumeStatus>>,
    is_stopping: AtomicBool,
    ask: mpsc::Sender<DetachRequest>,
}

impl AttachmentResponder {
    /// Makes the responder for a volume that is not open yet. The responder sends detach requests to `ask`.
    pub fn new(source: &AttachmentSource, ask: mpsc::Sender<DetachRequest>) -> Self {
        Self {
            since: Instant::now(),
            unit: source.unit_name(),
            serial: source.serial(),
            config: source.config().map(Into::into),
            fixed_size: source.fixed_size(),
            opened: OnceLock::new(),
            attached: Mutex::new(None),
            is_stopping: AtomicBool::new(false),
            ask,
        }
    }

    pub fn set_opened(&self, opened: &Arc<OpenedStack>) {
        let _ = self.opened.set(Arc::clone(opened));
    }

    /// Stores the state of the attached device, after attaching or resizing it.
    pub fn set_attached(&self, attached: &AttachedVolumeStatus) {
        *self.attached.lock() = Some(attached.clone());
    }

    /// Records that the device is detached and the stack is about to be stopped.
    pub fn set_stopping(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Describes the detached device and the log that its cache has left, for the answer to `forebay detach`.
    pub fn detached(&self, attached: AttachedVolumeStatus) -> Detached {
        let cache = self.opened.get().and_then(|opened| opened.cache());
        let log = cache.zip(self.config.as_ref()).map(|(cache, config)| LogLeft {
            path: cache.log().to_owned(),
            dirty_bytes: cache.dirty_bytes(),
            config: config.clone(),
            unit: self.unit.to_string(),
        });
        Detached { attached, log }
    }

    pub async fn answer(self: Arc<Self>, request: ControlRequest) -> ControlResponse {
        let done = match request {
            ControlRequest::Status => Ok(ControlResponse::Status(Box::new(self.status()))),
            ControlRequest::Attachment => self.device().map(ControlResponse::Attachment),
            ControlRequest::Detach { force: false } => self.take_away(Manner::Usual).await,
            ControlRequest::Detach { force: true } => self.take_away(Manner::Force).await,
            ControlRequest::DrainAndDetach => self.take_away(Manner::Drained).await,
            ControlRequest::Cache { unit, order } => match self.opened(&unit) {
                Ok(opened) => opened.order(&self.unit, order).await.map(ControlResponse::Cache),
                Err(failure) => Err(failure),
            },
            ControlRequest::Resize { target, lun, bytes } => {
                let resized = self.resize(&UnitName { target, lun }, bytes).await;
                resized.map(|bytes| ControlResponse::Resized { bytes })
            }
            other => Err(self.cannot(&other)),
        };
        done.unwrap_or_else(ControlResponse::Failure)
    }

    async fn take_away(&self, manner: Manner) -> Result<ControlResponse, Failure> {
        let gone = || {
            Failure::new("the process ended before it completed the request").remedy(
                "`forebay status` shows whether it is still attached; if not, check the \
                 volume, and attach it again",
            )
        };
        // Refuse to detach while there is no device yet: otherwise the process would create the device after it has
        // answered that the device is detached.
        self.device()?;
        let (answer, answered) = oneshot::channel();
        self.ask.send(DetachRequest { manner, answer }).await.map_err(|_| gone())?;
        match answered.await.map_err(|_| gone())?? {
            DetachAnswer::Detached(detached) => Ok(ControlResponse::Detached(*detached)),
            DetachAnswer::Draining(standing) => Ok(ControlResponse::Cache(standing)),
        }
    }

    fn device(&self) -> Result<AttachedVolumeStatus, Failure> {
        let attached = self.attached.lock().clone();
        attached.ok_or_else(|| {
            Failure::new(format!("{} is being attached, and has no device yet", self.unit))
                .remedy("try again when `forebay status` shows that it is attached")
        })
    }

    fn opened(&self, unit: &UnitName) -> Result<&Arc<OpenedStack>, Failure> {
        if *unit != self.unit {
            let message =
                format!("this process does not serve {unit}: it has attached {}", self.unit);
            return Err(Failure::new(message).remedy("`forebay status` names the unit"));
        }
        self.opened.get().ok_or_else(|| {
            Failure::new(format!("{unit} is not open yet"))
                .remedy("try again when `forebay status` shows it")
        })
    }

    async fn resize(&self, unit: &UnitName, bytes: Option<u64>) -> Result<u64, Failure> {
        let opened = self.opened(unit)?;
        match &self.fixed_size {
            Some(why) => Err(Failure::new(why).remedy(self.attach_again())),
            None => opened.grow(bytes).await,
        }
    }

    fn status(&self) -> ServingStatus {
        let units = self.opened.get().map(|opened| {
            opened.top.extensions().refresh();
            let geometry = opened.top.geometry();
            UnitStatus {
                lun: self.unit.lun,
                serial: self.serial.clone(),
                bytes: geometry.bytes(),
                block_size: geometry.block_size,
                claim: None,
                drive: None,
                layers: opened.status(),
            }
        });
        let attached = self.attached.lock().clone();
        let state = match (self.is_stopping.load(Ordering::Relaxed), &attached) {
            (true, _) => ServingPhase::Stopping,
            (false, None) => ServingPhase::Starting,
            (false, Some(_)) => ServingPhase::Serving,
        };
        ServingStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            gln: None,
            naming_troubles: Vec::new(),
            pid: std::process::id(),
            state,
            uptime_seconds: self.since.elapsed().as_secs(),
            portals: Vec::new(),
            targets: vec![TargetStatus {
                name: self.unit.target.clone(),
                redirect: None,
                sessions: 0,
                commands: 0,
                data_out_bytes: 0,
                data_in_bytes: 0,
                pair: None,
                units: units.into_iter().collect(),
                refused: Vec::new(),
            }],
            attached,
            sessions: Vec::new(),
            counters: ProcessCounters::default(),
        }
    }

    /// Returns the failure for a request that only a gateway can perform, with the reason.
    fn cannot(&self, request: &ControlRequest) -> Failure {
        let unit = &self.unit;
        let no = |what: &str| {
            Failure::new(format!("this process has attached {unit} as a block device, and {what}"))
        };
        match request {
            ControlRequest::Reload | ControlRequest::Compare { .. } => {
                no("reads its settings at the start only").remedy(self.attach_again())
            }
            ControlRequest::Export { .. } => {
                no("uses its log").remedy("detach it (`forebay detach`), and export the log then")
            }
            ControlRequest::Claim { .. } | ControlRequest::DropClaim { .. } => {
                no("has no units that a gateway could claim")
                    .remedy("send the command to the node that has the volume")
            }
            _ => no("serves no hosts, names or pairs")
                .remedy("send the command to a process of `forebay serve`"),
        }
    }

    /// Returns the remedy that tells the user how changed settings take effect.
    fn attach_again(&self) -> String {
        let config = self.config.as_ref().map(|config| format!("--config {} ", config.display()));
        format!(
            "change the settings, then `forebay detach` it, and `forebay attach {}{}` again",
            config.unwrap_or_default(),
            self.unit
        )
    }
}
