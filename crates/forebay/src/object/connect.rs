//! Logs in to an object drive with the credentials of the command line.

use control::Failure;
use initiator::{Credential, OwnKeys, RemoteObjects, Settings, Url};
use object::{
    AttributeId, AttributeSelection, Command, ObjectAddress, ObjectReply, ObjectRequest,
    ObjectType, StandardPage,
};
use osd::security::{Algorithm, SecurityMethod, SystemId};

use super::{credential_file, errors::failed, hex, key_file};
use crate::{
    cli::{DriveArgs, IntegrityAlgorithm, Method},
    credentials,
};

/// An object drive to which this command of the program is logged in.
pub struct Drive<'a> {
    pub args: &'a DriveArgs,
    pub objects: RemoteObjects,
}

pub async fn connect(args: &DriveArgs) -> Result<Drive<'_>, Failure> {
    let wrong = |reason: String| {
        Failure::settings(reason).remedy("write iscsi://HOST[:PORT]/TARGET-NAME[/LUN]")
    };
    let url: Url = args.url.parse().map_err(|error| wrong(format!("{}: {error}", args.url)))?;
    let settings = Settings::from_url(&url);
    let mut settings = settings.ok_or_else(|| wrong(format!("{} names no target", args.url)))?;
    settings.initiator_name.clone_from(&args.initiator_name);
    settings.chap = credentials::chap(&args.login)?;
    settings.tls = credentials::tls(&args.login)?;
    let system = args.system_id.as_deref().map(parse_system).transpose()?;
    let connected = RemoteObjects::connect(settings, credential(args)?, system).await;
    let objects = connected.map_err(|error| {
        Failure::new(format!("cannot use {}: {error}", args.url)).remedy(format!(
            "check that the node of the drive runs, which units it has, and whether they admit this host: `forebay ls \
             {}`",
            args.url
        ))
    })?;
    Ok(Drive { args, objects })
}

fn credential(args: &DriveArgs) -> Result<Credential, Failure> {
    if let Some(file) = &args.credential {
        return Ok(Credential::Capabilities(credential_file::read(file)?));
    }
    let Some(file) = &args.key_file else { return Ok(Credential::None) };
    let method = match args.security {
        Method::Capkey => SecurityMethod::CapKey,
        Method::Cmdrsp => SecurityMethod::CmdRsp,
        Method::Alldata => SecurityMethod::AllData,
    };
    let algorithm = match args.algorithm {
        IntegrityAlgorithm::HmacSha1 => Algorithm::HmacSha1,
        IntegrityAlgorithm::HmacSha256 => Algorithm::HmacSha256,
        IntegrityAlgorithm::Blake3 => Algorithm::Blake3,
    };
    Ok(Credential::keys(key_file::read(file)?, method, algorithm, args.key_version))
}

fn parse_system(text: &str) -> Result<SystemId, Failure> {
    let parsed = hex::decode(text).and_then(|bytes| bytes.try_into().ok());
    parsed.ok_or_else(|| {
        Failure::settings(format!("--system-id {text} has not 40 hexadecimal digits"))
            .remedy("copy `system_id` of the drive's settings, or leave it out")
    })
}

impl Drive<'_> {
    /// Performs a request. `action` names the user's goal in error messages, such as "list 10000h".
    pub async fn perform(
        &self,
        action: &str,
        request: ObjectRequest,
    ) -> Result<ObjectReply, Failure> {
        let performed = self.objects.request(request).await;
        performed.map_err(|error| failed(self.args, action, error))
    }

    pub async fn command(&self, action: &str, command: Command) -> Result<ObjectReply, Failure> {
        self.perform(action, ObjectRequest::new(command)).await
    }

    /// Returns the type of an object. The identifiers of user objects and collections do not differ: an object is
    /// treated as a user object unless the drive shows that it is a collection.
    pub async fn type_of(&self, object: ObjectAddress) -> ObjectType {
        if let Some(known) = object.known_type() {
            return known;
        }
        let kind = AttributeId::new(StandardPage::Information.of(ObjectType::Collection), 0xa);
        let get = ObjectRequest::new(Command::GetAttributes { object })
            .getting(AttributeSelection::One(kind));
        match self.objects.request(get).await {
            Ok(reply) if reply.attributes.iter().any(|one| !one.value.is_empty()) => {
                ObjectType::Collection
            }
            _ => ObjectType::UserObject,
        }
    }

    /// Returns the keys of the drive's owner.
    pub fn owner(&self) -> Result<&OwnKeys, Failure> {
        self.objects.credential().owner().ok_or_else(|| {
            Failure::settings("only the owner of a drive can do this")
                .remedy("sign: --key-file FILE")
        })
    }

    /// Returns OSD SYSTEM ID of the drive, which is a part of each signature.
    pub fn system(&self) -> Result<SystemId, Failure> {
        self.objects.system_id().ok_or_else(|| {
            Failure::new("the drive does not report its system ID")
                .remedy("name it: --system-id DIGITS")
        })
    }

    pub async fn close(self) {
        self.objects.close().await;
    }
}
