//! A node: the targets, units and portals that one process serves.
//!
//! - `start` opens units, targets and portals, and closes them at the end of the process. `reload` changes them while
//!   they are in use, after `plan` has compared the settings.
//! - `pair` does the work for the member of a pair of gateways: it opens and closes the unit when the pair hands it
//!   over.
//! - `move_out` moves a volume to another node, `move_in` receives one; `moves` has the records and messages.
//! - `naming` finds volumes and nodes by name, `announcements` announces the volumes of this node.
//! - `claims` and `cache_commands` execute commands from the control socket, `node_status` reports the state.
//!
//! The settings in force are those of the file, with the volumes that have moved here, and without the volumes that
//! have moved away and the units that were refused because of their storage.
//!
//! Lock order: `changing`, which a change of the settings holds across awaits, before `inner`, which is never held
//! across an await.

pub mod plan;
pub mod naming;
pub mod moves;
mod cache_commands;
mod claims;
mod announcements;
mod refused_units;
mod reload;
mod partner_link;
mod pair;
mod copy_in;
mod move_accept;
mod move_outcome;
mod move_in;
mod outgoing_move;
mod move_checks;
mod copy_out;
mod move_switchover;
mod move_out;
mod stale_copy;
mod start;
mod node_status;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use ::names::VolumeName;
use config::{
    Address, CacheLayerSettings, HostPort, Iscsi, IscsiTargetSettings, Layer, LogLevel,
    PortalGroupSettings, PortalSettings, PortalTls, Settings, Unit, UnitKind, login_rules,
};
use control::{Failure, ServingPhase, UnitName};
use parking_lot::Mutex;
use scsi::ClaimReport;
use stack::{
    NotOpened, OpenedStack, SlicedFiles, StackContext, StackInput, object_drive::ServedDrive,
    records::Records, unit_state,
};
use target::{PortalGroup, Redirect, TargetServer};
use tokio::task::JoinSet;
use unit::{LogicalUnit, MovableUnit, UnitIdentity};

use crate::{moves::Moves, naming::Naming};

/// Time for the logout of initiators when the node stops.
const LOGOUT_WITHIN: Duration = Duration::from_secs(1);

/// The output of the program's log events, which a node can flush and whose level it can change.
pub trait EventLog: Send + Sync {
    /// Shows events of this level and of more important ones; `None` for the usual level. The command line takes
    /// precedence.
    fn set_level(&self, level: Option<&LogLevel>);

    /// Returns the number of events that were dropped since the start because their reader took no text.
    fn dropped(&self) -> u64;

    /// Waits until the reader of the event output has received all events, but at most one second.
    fn flush(&self);
}

pub struct Node {
    since: Instant,
    config: PathBuf,
    server: TargetServer,
    events: Box<dyn EventLog>,
    /// The naming service; `None` if the settings do not configure it.
    naming: Option<Arc<Naming>>,
    /// The files in which several units have slices.
    files: SlicedFiles,
    moves: Moves,
    moving: Mutex<Moving>,
    /// Locked while a volume is admitted: space and names are assigned to one volume at a time.
    admitting: Mutex<()>,
    inner: Mutex<NodeLockedState>,
    changing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Moving {
    leaving: BTreeMap<VolumeName, Arc<outgoing_move::Leaving>>,
    /// Volumes that are being received, or whose copies must be kept or discarded.
    arriving: BTreeSet<VolumeName>,
    /// Complete copies whose source node does not know the move, with the reason and a remedy.
    unknown: BTreeMap<VolumeName, String>,
}

struct NodeLockedState {
    state: ServingPhase,
    base: Arc<Settings>,
    /// The settings in force: those of the file without volumes that have moved away, and with those that have moved
    /// here.
    settings: Arc<Settings>,
    targets: Vec<ServedTarget>,
    /// Units that the node does not serve because their storage is refused, with the reasons.
    refused: Vec<refused_units::RefusedUnit>,
    /// Units that were opened with others of their common cache, and are not served yet.
    waiting: Vec<(UnitName, OpenedStack)>,
    pairs: Vec<pair::Paired>,
    portals: Vec<Listening>,
    /// The addresses on which the naming service listens.
    naming: Vec<SocketAddr>,
    /// The tasks of the naming service. Dropping this set ends them.
    naming_tasks: JoinSet<()>,
    /// All portal groups since the start: a group keeps its tag during the lifetime of the process.
    groups: Vec<(u16, Option<Vec<Address>>)>,
}

struct ServedTarget {
    name: String,
    units: Vec<ServedUnit>,
}

#[derive(Clone)]
struct ServedUnit {
    lun: u16,
    serial: String,
    opened: Arc<OpenedStack>,
    unit: Arc<dyn LogicalUnit>,
    /// The object drive on the stack; `None` for a disk.
    drive: Option<Arc<ServedDrive>>,
}

impl ServedUnit {
    /// Saves all data that must not be lost: of the drive first, because it uses the stack.
    async fn stop(&self) -> Result<(), Failure> {
        let closed = match &self.drive {
            Some(drive) => drive.close().await,
            None => Ok(()),
        };
        closed.and(self.opened.stop().await)
    }

    /// Returns the unit's ability to move to another node.
    ///
    /// # Errors
    /// Units of this device type cannot move.
    fn movable(&self) -> Result<&dyn MovableUnit, Failure> {
        self.unit.abilities().moves.ok_or_else(|| {
            if self.drive.is_some() {
                return Failure::new(format!(
                    "LUN {} is an object drive, which cannot move to another node",
                    self.lun
                ))
                .remedy("serve another drive at the other node, and let a client copy the objects to it");
            }
            Failure::new(format!("LUN {} cannot move to another node", self.lun))
                .remedy("its device type does not support moves")
        })
    }

    /// Returns the claim on the unit that was granted last; `None` if there was none, or if the unit does not support
    /// claims.
    fn claim_report(&self) -> Option<ClaimReport> {
        self.unit.abilities().claims?.claim_report()
    }
}

/// A portal on which the node listens: its address in the settings, and the address to which the socket is bound.
#[derive(Clone, Copy)]
struct Listening {
    wanted: Address,
    bound: SocketAddr,
}

impl Node {
    /// Creates a node that does not serve initiators yet.
    pub fn new(
        config: PathBuf,
        settings: Settings,
        iscsi: impl Fn(&Iscsi) -> target::Settings,
        events: Box<dyn EventLog>,
    ) -> Result<Self, Failure> {
        let security = login_rules::security(&settings);
        let server = target::Settings { security, ..iscsi(&settings.iscsi) };
        let server = TargetServer::new(server, Vec::new());
        let naming = Naming::open(&settings)?.map(Arc::new);
        let moves = Moves::open(&settings)?;
        let base = Arc::new(settings.clone());
        let mut settings = settings;
        // Log the moved volumes that cannot be served. All other units are served.
        for (volume, failure) in moves.apply(&mut settings) {
            tracing::error!(%volume, %failure, "a moved volume is not served");
        }
        let inner = NodeLockedState {
            state: ServingPhase::Starting,
            base,
            settings: Arc::new(settings),
            targets: Vec::new(),
            refused: Vec::new(),
            waiting: Vec::new(),
            pairs: Vec::new(),
            portals: Vec::new(),
            naming: Vec::new(),
            naming_tasks: JoinSet::new(),
            groups: Vec::new(),
        };
        Ok(Self {
            since: Instant::now(),
            config,
            server: server.map_err(Failure::settings)?,
            events,
            naming,
            files: SlicedFiles::default(),
            moves,
            moving: Mutex::default(),
            admitting: Mutex::default(),
            inner: Mutex::new(inner),
            changing: tokio::sync::Mutex::default(),
        })
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.inner.lock().settings)
    }

    /// Returns a target with its open units, in the form in which the server offers it to initiators.
    fn shown(&self, settings: &Settings, target: &IscsiTargetSettings) -> target::Target {
        let mut inner = self.inner.lock();
        let served = inner.targets.iter().find(|served| served.name == target.name.0);
        let units = served.iter().flat_map(|served| &served.units);
        let units: Vec<_> = units.map(|unit| (unit.lun, Arc::clone(&unit.unit))).collect();
        let is_paired = target.unit.iter().any(|unit| unit.pair().is_some());
        // A target without units and redirect does not come from the settings file: its volume is being received.
        let is_coming = target.unit.is_empty() && target.redirect.is_none();
        // A login covers all units of a target. If all units were refused, it fails with "service
        // unavailable". If some are served, hosts log in and do not find the refused ones.
        let is_refused = inner.refused.iter().any(|refused| refused.unit.target == target.name.0);
        let groups = settings.groups();
        let reached = groups.iter().filter(|group| target.is_reached_through(group));
        target::Target {
            alias: target.alias.clone(),
            access: login_rules::access(target),
            groups: reached.map(|group| inner.group(group)).collect(),
            redirect: redirect(target.redirect.as_ref(), target.redirect_permanently),
            is_unavailable: units.is_empty() && (is_paired || is_coming || is_refused),
            ..target::Target::new(target.name.0.clone(), units)
        }
    }

    fn portal(
        &self,
        group: &PortalGroupSettings,
        address: SocketAddr,
        portal: &PortalSettings,
    ) -> target::Portal {
        target::Portal {
            address,
            group: self.inner.lock().group(group),
            advertise: portal.advertise.as_ref().map(|told| told.0.clone()),
            redirect: redirect(portal.redirect.as_ref(), portal.redirect_permanently),
            tls: portal.tls.as_ref().map(PortalTls::server),
        }
    }

    /// Returns the portals' addresses in the order of the settings.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.inner.lock().portals.iter().map(|portal| portal.bound).collect()
    }
}

impl NodeLockedState {
    fn group(&mut self, group: &PortalGroupSettings) -> PortalGroup {
        let is_it =
            |(tag, own): &(u16, Option<Vec<Address>>)| *tag == group.tag && *own == group.own;
        let number = self.groups.iter().position(is_it).unwrap_or_else(|| {
            self.groups.push((group.tag, group.own.clone()));
            self.groups.len() - 1
        });
        PortalGroup { number: number as u32, tag: group.tag }
    }
}

/// Opens the stack of layers of a unit, and creates the logical unit over it.
async fn open_unit(
    settings: &Settings,
    target: &IscsiTargetSettings,
    unit: &Unit,
    naming: Option<&Arc<Naming>>,
    files: &SlicedFiles,
    given: StackInput,
) -> Result<ServedUnit, NotOpened> {
    match unit.kind {
        UnitKind::Block => {
            let opened = open_with(settings, target, unit, naming, files, given).await?;
            Ok(shown_unit(settings, target, unit, opened)?)
        }
        UnitKind::Object => {
            let opened = open_with(settings, target, unit, naming, files, given).await?;
            shown_drive(settings, target, unit, opened).await
        }
    }
}

/// Makes the unit on top of an opened stack.
fn shown_unit(
    settings: &Settings,
    target: &IscsiTargetSettings,
    unit: &Unit,
    opened: OpenedStack,
) -> Result<ServedUnit, Failure> {
    if matches!(unit.stack.first(), Some(Layer::Half(_))) {
        return shown_half(target, unit, Arc::new(opened));
    }
    let serial = serial(target, unit);
    let mut identity = UnitIdentity::new(&serial).with_target(&target.name.0);
    identity.product.clone_from(&unit.product);
    let top = Arc::clone(&opened.top);
    let shown = unit_state::open_unit(unit, top, identity, settings.state.as_deref())?;
    Ok(ServedUnit { lun: unit.lun, serial, opened: Arc::new(opened), unit: shown, drive: None })
}

/// Opens the object drive on top of an opened stack.
async fn shown_drive(
    settings: &Settings,
    target: &IscsiTargetSettings,
    unit: &Unit,
    opened: OpenedStack,
) -> Result<ServedUnit, NotOpened> {
    let identity = drive_identity(target, unit);
    let serial = identity.serial.clone();
    let top = Arc::clone(&opened.top);
    let drive = match ServedDrive::open(unit, top, identity, settings.state.as_deref()).await {
        Ok(drive) => Arc::new(drive),
        Err(refused) => {
            if let Err(failure) = opened.stop().await {
                tracing::error!(serial, %failure, "the layers below a refused drive cannot be closed");
            }
            return Err(refused);
        }
    };
    let shown = drive.unit();
    let opened = Arc::new(opened);
    Ok(ServedUnit { lun: unit.lun, serial, opened, unit: shown, drive: Some(drive) })
}

/// Returns the names of a unit that is an object drive.
pub fn drive_identity(target: &IscsiTargetSettings, unit: &Unit) -> UnitIdentity {
    let identity = UnitIdentity::new(&serial(target, unit)).with_target(&target.name.0);
    let product = match unit.product == Unit::default().product {
        true => "OBJECT DRIVE".to_owned(),
        false => unit.product.clone(),
    };
    UnitIdentity { product, ..identity }
}

/// Makes the unit that exports the leg of a pair's log to the partner. Each call makes a unit with another serial
/// number. The unit keeps no reservations over a restart.
fn shown_half(
    target: &IscsiTargetSettings,
    unit: &Unit,
    opened: Arc<OpenedStack>,
) -> Result<ServedUnit, Failure> {
    let mut drawn = [0; 8];
    getrandom::fill(&mut drawn)
        .map_err(|error| Failure::new(format!("the system has no random bytes: {error}")))?;
    let serial = format!("{:016X}", u64::from_le_bytes(drawn));
    let mut identity = UnitIdentity::new(&serial).with_target(&target.name.0);
    identity.product.clone_from(&unit.product);
    let shown = unit_state::open_unit(unit, Arc::clone(&opened.top), identity, None)?;
    Ok(ServedUnit { lun: unit.lun, serial, opened, unit: shown, drive: None })
}

/// Opens the stack of a unit for a command; its volume is not announced. The first stack in the result is that of the
/// requested unit, the others are those of its common cache. `takes_over` is true if the administrator has brought the
/// log here.
pub async fn open_stack(
    settings: &Settings,
    target: &IscsiTargetSettings,
    unit: &Unit,
    takes_over: bool,
) -> Result<Vec<OpenedStack>, Failure> {
    let naming = Naming::guest(settings)?.map(Arc::new);
    let files = SlicedFiles::default();
    if let Some(common) = unit.in_common() {
        let name = UnitName { target: target.name.0.clone(), lun: unit.lun };
        let mut opened = open_common(settings, common, naming.as_ref(), &files, takes_over).await?;
        opened.sort_by_key(|(other, _)| *other != name);
        return Ok(opened.into_iter().map(|(_, opened)| opened).collect());
    }
    let mut unit = unit.clone();
    for layer in &mut unit.stack {
        if let Layer::Cache(cache) = layer {
            cache.takes_over = takes_over;
        }
    }
    Ok(vec![
        open_with(settings, target, &unit, naming.as_ref(), &files, StackInput::Nothing).await?,
    ])
}

async fn open_common(
    settings: &Settings,
    name: &str,
    naming: Option<&Arc<Naming>>,
    files: &SlicedFiles,
    takes_over: bool,
) -> Result<Vec<(UnitName, OpenedStack)>, NotOpened> {
    let cache = settings.common_cache(name).ok_or_else(|| {
        Failure::settings(format!("there is no common cache {name}"))
            .remedy("add a [[common_cache]] table with that name")
    })?;
    let cache = CacheLayerSettings { takes_over, ..cache.clone() };
    let units = settings.units_of(name);
    let initiator_name = settings.initiator_name.clone().unwrap_or_else(config::name_of_host);
    let records = Records::of(settings);
    let context = StackContext {
        initiator_name: &initiator_name,
        names: Naming::for_stacks(naming),
        files,
        records: &records,
    };
    let opened = stack::open_common(&cache, &units, &context).await?;
    let names = units
        .iter()
        .map(|(target, unit)| UnitName { target: target.name.0.clone(), lun: unit.lun });
    Ok(names.zip(opened).collect())
}

async fn open_with(
    settings: &Settings,
    target: &IscsiTargetSettings,
    unit: &Unit,
    naming: Option<&Arc<Naming>>,
    files: &SlicedFiles,
    given: StackInput,
) -> Result<OpenedStack, NotOpened> {
    let initiator_name = settings.initiator_name.clone().unwrap_or_else(config::name_of_host);
    let records = Records::of(settings);
    let context = StackContext {
        initiator_name: &initiator_name,
        names: Naming::for_stacks(naming),
        files,
        records: &records,
    };
    stack::open(&target.name, unit, &context, given).await
}

/// Returns the serial number that hosts see.
pub fn serial(target: &IscsiTargetSettings, unit: &Unit) -> String {
    unit.serial.clone().unwrap_or_else(|| serial_of(target, unit))
}

/// Closes units concurrently, so that no acknowledged write is lost. Returns the first failure.
async fn stop_units(units: &[ServedUnit]) -> Result<(), Failure> {
    let stopped = units.iter().map(ServedUnit::stop);
    futures_util::future::join_all(stopped).await.into_iter().collect()
}

/// Derives a serial number of sixteen hexadecimal digits from the target's name and the LUN, and from nothing else.
fn serial_of(target: &IscsiTargetSettings, unit: &Unit) -> String {
    format!("{:016X}", stack::known_by(target, unit))
}

fn redirect(to: Option<&HostPort>, permanent: bool) -> Option<Redirect> {
    to.map(|to| Redirect { address: to.0.clone(), permanent })
}

/// Returns the remedy for a portal that cannot be opened.
pub fn cannot_listen(address: Address, error: &std::io::Error) -> Failure {
    let remedy = match error.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "stop the process that uses it (`ss -ltnp 'sport = :{}'` names the process), or change `listen`",
            address.0.port()
        ),
        std::io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address (`ip addr` lists those it has): change `listen`"
                .into()
        }
        std::io::ErrorKind::PermissionDenied => {
            "ports below 1024 need a privilege: change `listen`".into()
        }
        _ => "change `listen`".into(),
    };
    Failure::new(format!("cannot listen on {address}: {error}")).remedy(remedy)
}
