//! `forebay object info` and `forebay object attributes`: show and set attributes.

use control::Failure;
use object::{
    Attribute, AttributeSelection, Command, ObjectAddress, ObjectRequest, ObjectType, StandardPage,
    attributes_of, standard_attribute,
};
use serde_json::json;

use super::{
    connect::{Drive, connect},
    hex,
};
use crate::{
    cli::{AttributeName, AttributeValue, DriveArgs, ObjectName},
    output::print_line,
    table::table,
};

/// Shows the attributes that OSD-2 defines and that the drive, partition or object has.
pub async fn info(args: &DriveArgs, object: Option<ObjectName>) -> Result<(), Failure> {
    let address = object.map_or(ObjectAddress::ROOT, |name| name.0);
    let drive = connect(args).await?;
    let object_type = drive.type_of(address).await;
    let mut get = ObjectRequest::new(Command::GetAttributes { object: address });
    // Leave out the policy/security page, because a capability to read attributes may not permit it.
    let security = StandardPage::PolicySecurity.of(object_type);
    let standard = attributes_of(object_type).iter().map(|attribute| attribute.id);
    let standard = standard.filter(|id| id.page != security);
    get.get = standard.map(AttributeSelection::One).collect();
    let reply = drive.perform(&format!("read the attributes of {address}"), get).await?;
    drive.close().await;
    show(args, &reply.attributes)
}

pub async fn attributes(
    args: &DriveArgs,
    object: Option<ObjectName>,
    get: &[AttributeName],
    set: &[AttributeValue],
) -> Result<(), Failure> {
    let address = object.map_or(ObjectAddress::ROOT, |name| name.0);
    let mut values = Vec::new();
    for AttributeValue { name, value } in set {
        let value = hex::value(value).ok_or_else(|| {
            Failure::settings(format!("{value} has not pairs of hexadecimal digits after hex:"))
                .remedy(hex::HEX_REMEDY)
        })?;
        values.push(Attribute { id: name.0, value: value.into() });
    }
    let drive = connect(args).await?;
    if !values.is_empty() {
        let mut request = ObjectRequest::new(Command::SetAttributes { object: address }).with_fua();
        request.set = values;
        drive.perform(&format!("set the attributes of {address}"), request).await?;
    }
    let mut shown = Vec::new();
    if set.is_empty() || !get.is_empty() {
        shown = get_all(&drive, address, get).await?;
    }
    drive.close().await;
    if shown.is_empty() && !set.is_empty() { Ok(()) } else { show(args, &shown) }
}

async fn get_all(
    drive: &Drive<'_>,
    address: ObjectAddress,
    get: &[AttributeName],
) -> Result<Vec<Attribute>, Failure> {
    let mut request = ObjectRequest::new(Command::GetAttributes { object: address });
    let collection = ObjectType::Collection;
    request.get = match get {
        // Only the pages of a collection say that the command needs a capability for one.
        [] if drive.type_of(address).await == collection => {
            let pages =
                [StandardPage::Information, StandardPage::Timestamps, StandardPage::PolicySecurity];
            pages.map(|page| AttributeSelection::Page(page.of(collection))).to_vec()
        }
        [] => vec![AttributeSelection::All],
        get => get.iter().map(|name| AttributeSelection::One(name.0)).collect(),
    };
    Ok(drive.perform(&format!("read the attributes of {address}"), request).await?.attributes)
}

fn show(args: &DriveArgs, attributes: &[Attribute]) -> Result<(), Failure> {
    let defined = attributes.iter().filter(|attribute| !attribute.value.is_empty());
    let name = |attribute: &Attribute| standard_attribute(attribute.id).map_or("", |one| one.name);
    if args.json {
        let row = |attribute: &Attribute| {
            json!({
                "page": attribute.id.page,
                "number": attribute.id.number,
                "name": name(attribute),
                "hex": hex::encode(&attribute.value),
                "value": readable(attribute),
            })
        };
        return print_line(json!({ "attributes": defined.map(row).collect::<Vec<_>>() }));
    }
    let mut shown = table(&["attribute", "name", "value"]);
    for attribute in defined {
        let id = format!("{:X}h/{:X}h", attribute.id.page, attribute.id.number);
        shown.add_row([id, name(attribute).to_owned(), readable(attribute)]);
    }
    print_line(shown)
}

/// Returns a value in the form that a person reads: a number, a time, text, or hexadecimal digits.
fn readable(attribute: &Attribute) -> String {
    let value = &attribute.value;
    let name = standard_attribute(attribute.id).map_or("", |one| one.name);
    if value.len() == 6 && (name.contains("time") || name.contains("clock")) {
        let ms = value.iter().fold(0, |ms, &byte| ms << 8 | i64::from(byte));
        return jiff::Timestamp::from_millisecond(ms)
            .map_or_else(|_| hex::encode(value), |time| time.to_string());
    }
    let is_number = standard_attribute(attribute.id).is_some_and(|one| one.length.is_some());
    if is_number && value.len() <= 8 {
        return value.iter().fold(0u64, |number, &byte| number << 8 | u64::from(byte)).to_string();
    }
    match std::str::from_utf8(value) {
        Ok(text) if !text.trim_end().chars().any(char::is_control) => text.trim_end().to_owned(),
        _ => hex::encode(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_by_their_meaning() {
        let shown =
            |page, number, value: &[u8]| readable(&Attribute::new(page, number, value.to_vec()));
        assert_eq!(shown(0x1, 0x82, &[0, 0, 0, 0, 0, 0, 1, 0]), "256");
        assert_eq!(shown(0x1, 0x9, b"name "), "name");
        assert_eq!(shown(0x10000, 1, &[1, 2]), "0102");
        assert!(shown(0x3, 0x1, &[1, 0x94, 0x1f, 0x29, 0x7c, 0]).starts_with("202"));
    }
}
