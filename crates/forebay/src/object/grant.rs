//! `forebay object grant` and `revoke`: capabilities for other clients.
//!
//! A capability that is granted for an object contains the policy access tag and the created time of the object.
//! `revoke` changes the tag, and the drive refuses all capabilities with the former one. The capability to read the
//! drive's attributes has no tag: it is valid until it expires.

use std::path::Path;

use config::quantity::TimeSpan;
use control::Failure;
use object::{
    Attribute, AttributeId, AttributeSelection, Command, ObjectAddress, ObjectRequest, ObjectType,
    StandardPage, Timestamp,
};
use osd::{Capability, Permissions, security::SigningKey};
use serde_json::json;

use super::{
    connect::{Drive, connect},
    credential_file,
};
use crate::{
    cli::{DriveArgs, ObjectName},
    output::print_line,
};

/// The number of the attribute "policy access tag" on the policy/security page.
const TAG: u32 = 0x4000_0001;
/// The number of the attribute "user object policy access tag" of a partition.
const OBJECTS_TAG: u32 = 0x4000_0002;
/// The number of the attribute "created time" on the timestamps page.
const CREATED: u32 = 0x1;

pub async fn grant(
    args: &DriveArgs,
    name: ObjectName,
    names: &[String],
    expires: TimeSpan,
    out: &Path,
) -> Result<(), Failure> {
    let object = name.0;
    let permissions = parse(names)?;
    let drive = connect(args).await?;
    let (owner, system) = (drive.owner()?, drive.system()?);
    let object_type = drive.type_of(object).await;
    let (tag, created) = policy(&drive, object, object_type).await?;
    let ms = u64::try_from(expires.0.as_millis()).unwrap_or(u64::MAX);
    let expiration = Timestamp::from_ms(drive.objects.drive_time().as_ms().saturating_add(ms));
    let partition = object.partition;
    let capability = |object, object_type, permissions| Capability {
        algorithm: owner.algorithm(),
        key_version: owner.version(),
        expiration,
        ..Capability::for_object(object, object_type, permissions, owner.method())
    };
    let bound =
        Capability { policy_tag: tag, created, ..capability(object, object_type, permissions) };
    let mut grants = Vec::new();
    let about = |what: String| format!("{} on {what}", names.join(","));
    if object_type == ObjectType::Partition {
        let key = SigningKey::Partition { partition };
        grants.push((about(object.to_string()), owner.grant(&bound, key, &system)));
        if permissions.contain(Permissions::CREATE) {
            // New objects are created with a working key, and with a capability for their type. Its tag and its
            // created time are those of the partition, too.
            let key = SigningKey::Working { partition };
            for (what, object_type) in
                [("objects", ObjectType::UserObject), ("collections", ObjectType::Collection)]
            {
                let new = Capability { object_type, ..bound };
                let new = owner.grant(&new, key, &system);
                grants.push((about(format!("new {what} of {object}")), new));
            }
        }
    } else {
        let key = SigningKey::Working { partition };
        grants.push((about(object.to_string()), owner.grant(&bound, key, &system)));
    }
    // The client needs the drive's attributes: the clock, and the outcome of commands after a lost session.
    let root = capability(ObjectAddress::ROOT, ObjectType::Root, Permissions::GET_ATTRIBUTES);
    let root = owner.grant(&root, SigningKey::Root, &system);
    grants.push(("get-attributes on the drive".into(), root));
    drive.close().await;
    credential_file::write(out, &grants)?;
    if args.json {
        let shown = out.display().to_string();
        return print_line(
            json!({ "file": shown, "expires_ms": expiration.as_ms(), "policy_access_tag": tag }),
        );
    }
    print_line(format_args!(
        "{} permits {} of {object} while its policy access tag is {tag}",
        out.display(),
        names.join(", ")
    ))
}

pub async fn revoke(args: &DriveArgs, name: ObjectName) -> Result<(), Failure> {
    let object = name.0;
    let drive = connect(args).await?;
    drive.owner()?;
    let object_type = drive.type_of(object).await;
    let numbers: &[u32] = match object_type {
        ObjectType::Partition => &[TAG, OBJECTS_TAG],
        _ => &[TAG],
    };
    let page = StandardPage::PolicySecurity.of(object_type);
    for &number in numbers {
        let id = AttributeId::new(page, number);
        let tag = value(&drive, object, id).await?.wrapping_add(1).max(1);
        set_tag(&drive, object, id, tag).await?;
    }
    drive.close().await;
    if args.json {
        return print_line(json!({ "partition": object.partition, "object": object.object }));
    }
    print_line(format_args!("the capabilities for {object} are invalid"))
}

/// Returns the policy access tag and the created time of an object. An object without tag gets its first one, since a
/// capability without tag could not be revoked.
async fn policy(
    drive: &Drive<'_>,
    object: ObjectAddress,
    object_type: ObjectType,
) -> Result<(u32, Timestamp), Failure> {
    let id = AttributeId::new(StandardPage::PolicySecurity.of(object_type), TAG);
    let mut tag = value(drive, object, id).await?;
    if tag == 0 {
        tag = 1;
        set_tag(drive, object, id, tag).await?;
    }
    let created = AttributeId::new(StandardPage::Timestamps.of(object_type), CREATED);
    let get = ObjectRequest::new(Command::GetAttributes { object })
        .getting(AttributeSelection::One(created));
    let reply = drive.perform(&format!("read the created time of {object}"), get).await?;
    let created = reply.attributes.first().map(|attribute| attribute.value.as_ref());
    let created = created.and_then(|time| time.try_into().ok()).map(Timestamp::from_bytes);
    Ok((tag, created.unwrap_or_default()))
}

async fn value(drive: &Drive<'_>, object: ObjectAddress, id: AttributeId) -> Result<u32, Failure> {
    let get =
        ObjectRequest::new(Command::GetAttributes { object }).getting(AttributeSelection::One(id));
    let reply = drive.perform(&format!("read the policy access tag of {object}"), get).await?;
    let value = reply.attributes.first().map(|attribute| attribute.value.as_ref());
    Ok(value.and_then(|value| value.try_into().ok()).map_or(0, u32::from_be_bytes))
}

async fn set_tag(
    drive: &Drive<'_>,
    object: ObjectAddress,
    id: AttributeId,
    tag: u32,
) -> Result<(), Failure> {
    let value = tag.to_be_bytes().to_vec().into();
    let set = ObjectRequest::new(Command::SetAttributes { object })
        .setting(Attribute { id, value })
        .with_fua();
    drive.perform(&format!("set the policy access tag of {object}"), set).await.map(|_| ())
}

fn parse(names: &[String]) -> Result<Permissions, Failure> {
    let mut permissions = Permissions::NONE;
    for name in names {
        let found = Permissions::NAMES.iter().find(|(_, known)| known == name);
        let (one, _) = found.ok_or_else(|| {
            let known: Vec<_> = Permissions::NAMES.iter().map(|(_, known)| *known).collect();
            Failure::settings(format!("there is no permission {name}"))
                .remedy(format!("use some of {}", known.join(",")))
        })?;
        permissions |= *one;
    }
    Ok(permissions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_parsed_by_name() {
        let parsed = parse(&["read".into(), "append".into()]).unwrap();
        assert_eq!(parsed, Permissions::READ | Permissions::APPEND);
        assert!(parse(&["all".into()]).unwrap_err().remedy.unwrap().contains("read,write"));
    }
}
