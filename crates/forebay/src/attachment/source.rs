//! The volume to attach: makes a stack from a URL or from a unit of a settings file.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use config::{
    FarVolumeAddress, File, IscsiName, Layer, RemoteLayerSettings, Settings, Unit,
    quantity::TimeSpan,
};
use control::{Failure, UnitName};
use node::{moves::Moves, naming::Naming, plan};
use stack::{OpenedStack, StackContext, records::Records};

use crate::{cli::Attach, control_socket, credentials, handover};

/// The volume that `forebay attach` is to attach, before it is opened.
pub struct AttachmentSource {
    /// Name of the volume in messages. All addresses of one volume lead to the same name.
    pub name: String,
    target: IscsiName,
    unit: Unit,
    /// Settings file of the unit; `None` if the command line names a far volume.
    of_settings: Option<OfSettings>,
    initiator_name: IscsiName,
    /// Finds a volume that is named by `gln:` and not by an address.
    naming: Option<Arc<Naming>>,
    /// True if other hosts write to the volume as well (`--shared`).
    is_shared: bool,
    /// Records which storage was used at which path. The stack of a URL uses no local storage, so its records are
    /// empty.
    records: Records,
}

struct OfSettings {
    config: PathBuf,
    /// Control socket of the process that serves these settings.
    control: PathBuf,
    /// Serial number by which hosts recognize the unit.
    serial: String,
}

impl AttachmentSource {
    pub fn of(args: &Attach) -> Result<Self, Failure> {
        let mut source = match &args.config {
            Some(config) => Self::of_settings(args, config)?,
            None => Self::far(args, Self::address(args)?, None, config::name_of_host())?,
        };
        if args.read_only {
            source.unit.stack.push(Layer::ReadOnly);
        }
        Ok(source)
    }

    fn of_settings(args: &Attach, config: &Path) -> Result<Self, Failure> {
        let mut settings = Settings::load(config)?;
        // Do not open a volume that has moved to another node: its data here is outdated.
        for (volume, failure) in Moves::open(&settings)?.apply(&mut settings) {
            tracing::warn!(%volume, %failure, "a volume that was moved here cannot be used");
        }
        let naming = Naming::guest(&settings)?.map(Arc::new);
        let initiator_name = settings.initiator_name.clone().unwrap_or_else(config::name_of_host);
        if args.volume.parse().is_ok_and(|far| matches!(far, FarVolumeAddress::Named(_))) {
            return Self::far(args, args.volume.clone(), naming, initiator_name);
        }
        let name: UnitName = args.volume.parse().map_err(Failure::settings)?;
        let (target, unit) = handover::find(&settings, &name)?;
        let path = config.canonicalize().unwrap_or_else(|_| config.to_owned());
        let of_settings = OfSettings {
            config: path.clone(),
            control: control_socket::path(&settings)?,
            serial: node::serial(target, unit),
        };
        Ok(Self {
            name: format!("{name} of {}", path.display()),
            target: target.name.clone(),
            unit: unit.clone(),
            of_settings: Some(of_settings),
            initiator_name,
            naming,
            is_shared: args.shared,
            records: Records::of(&settings),
        })
    }

    /// Returns the URL of the command line, with LUN 0 if the user has named no LUN.
    fn address(args: &Attach) -> Result<String, Failure> {
        let remedy = "write iscsi://HOST[:PORT][,HOST[:PORT]]/TARGET-NAME/LUN, or name settings with --config";
        let wrong = |error: &dyn std::fmt::Display| Failure::settings(error).remedy(remedy);
        let url: initiator::Url = args.volume.parse().map_err(|error| wrong(&error))?;
        if url.target.is_none() {
            return Err(wrong(&format!("{url} names no target")));
        }
        Ok(initiator::Url { lun: Some(url.lun.unwrap_or(0)), ..url }.to_string())
    }

    fn far(
        args: &Attach,
        name: String,
        naming: Option<Arc<Naming>>,
        initiator_name: IscsiName,
    ) -> Result<Self, Failure> {
        let initiator_name = match &args.initiator_name {
            Some(name) => IscsiName::parse(name).map_err(Failure::settings)?,
            None => initiator_name,
        };
        let remote = RemoteLayerSettings {
            give_up_after: args.give_up_after,
            compression: args.compression,
            congestion: args.congestion.clone(),
            connections: args.connections,
            socket_buffer: args.socket_buffer,
            // Do not wait for the target: the user sees at once that it does not answer.
            start_timeout: TimeSpan::seconds(0),
            ..credentials::remote(&name, &args.credentials)?
        };
        Ok(Self {
            // A session name that no unit of a settings file has.
            target: IscsiName(format!("attach:{name}")),
            unit: Unit { stack: vec![Layer::Remote(remote)], ..Unit::default() },
            of_settings: None,
            name,
            initiator_name,
            naming,
            is_shared: args.shared,
            records: Records::of(&Settings::default()),
        })
    }

    pub async fn open(&self) -> Result<OpenedStack, Failure> {
        // Without `--shared`, this host's kernel is the only writer of the volume, and it sends flushes. Layers may
        // rely on that.
        let given =
            if self.is_shared { stack::StackInput::Nothing } else { stack::StackInput::OneWriter };
        let context = StackContext {
            initiator_name: &self.initiator_name,
            names: Naming::for_stacks(self.naming.as_ref()),
            files: &stack::SlicedFiles::default(),
            records: &self.records,
        };
        Ok(stack::open(&self.target, &self.unit, &context, given).await?)
    }

    /// Returns how long calls are repeated while the volume is busy.
    pub fn patience(&self) -> std::time::Duration {
        let give_up = self.unit.stack.iter().find_map(|layer| match layer {
            Layer::Remote(remote) => Some(remote.give_up_after),
            _ => None,
        });
        give_up.unwrap_or(LOCAL_PATIENCE).0
    }

    pub fn config(&self) -> Option<&Path> {
        self.of_settings.as_ref().map(|settings| &*settings.config)
    }

    pub fn control(&self) -> Option<&Path> {
        self.of_settings.as_ref().map(|settings| &*settings.control)
    }

    pub fn unit_name(&self) -> UnitName {
        UnitName { target: self.target.0.clone(), lun: self.unit.lun }
    }

    /// Returns the serial number of the unit; empty if only the remote target has it.
    pub fn serial(&self) -> String {
        self.of_settings.as_ref().map(|settings| settings.serial.clone()).unwrap_or_default()
    }

    /// Returns the reason why a request cannot change the size of the volume; `None` if it can.
    pub fn fixed_size(&self) -> Option<String> {
        let sized = |layer: &Layer| matches!(layer, Layer::File(File { size: Some(_), .. }));
        match self.unit.stack.iter().any(sized) {
            true => Some("the settings specify the size of its file".to_owned()),
            false => plan::fixed_size(&self.unit),
        }
    }

    /// Returns the part of the volume's name that is shown in the name of the FUSE file.
    pub fn about(&self) -> &str {
        let target = self.name.strip_prefix("iscsi://").unwrap_or(&self.name);
        target.split(" of ").next().unwrap_or_default()
    }
}

/// How long calls to a local volume are repeated. Such a volume is busy while its log is full.
const LOCAL_PATIENCE: TimeSpan = TimeSpan::seconds(120);
