//! `forebay object list` and `forebay object map`: show objects, and where an object has data.

use control::Failure;
use object::{
    AttributeId, AttributeSelection, Command, ListRequest, ListedObject, MapRun, MapRunKind,
    MapType, ObjectAddress, ObjectList, ObjectRequest, ReplyData,
};
use serde_json::json;

use super::{
    connect::{Drive, connect},
    errors::OTHER_VERSION_REMEDY,
};
use crate::{
    cli::{DriveArgs, ObjectName},
    output::{print, print_line},
    table::table,
};

/// Maximum number of bytes of one answer to LIST or READ MAP.
const ALLOCATION: u64 = 64 << 10;
const LENGTH: AttributeId = AttributeId::new(0x1, 0x82);
const NAME: AttributeId = AttributeId::new(0x1, 0x9);

pub async fn list(
    args: &DriveArgs,
    partition: Option<ObjectName>,
    long: bool,
    collections: bool,
) -> Result<(), Failure> {
    let partition = partition.map_or(0, |name| name.0.partition);
    if partition == 0 && collections {
        return Err(Failure::settings("--collections needs a partition")
            .remedy(format!("`forebay object list {} PID --collections`", args.url)));
    }
    let drive = connect(args).await?;
    let mut rows = Vec::new();
    let mut lister = Lister::new(partition, collections);
    while let Some(objects) = lister.next(&drive).await? {
        for object in objects {
            let address = match partition {
                0 => ObjectAddress::partition(object.id),
                _ => ObjectAddress::new(partition, object.id),
            };
            let details = long && partition != 0 && !collections;
            rows.push((
                address,
                if details { Some(details_of(&drive, address).await?) } else { None },
            ));
        }
    }
    drive.close().await;
    if args.json {
        let row = |(address, details): &(ObjectAddress, Option<(u64, String)>)| {
            let (length, name) = details.clone().unzip();
            json!({ "partition": address.partition, "object": address.object, "length": length, "name": name })
        };
        return print_line(json!({ "objects": rows.iter().map(row).collect::<Vec<_>>() }));
    }
    let mut shown = table(if long { &["object", "length", "name"] } else { &["object"] });
    for (address, details) in rows {
        let mut row = vec![address.to_string()];
        if long {
            let (length, name) = details.unwrap_or_default();
            row.extend([length.to_string(), name.escape_debug().to_string()]);
        }
        shown.add_row(row);
    }
    if shown.is_empty() { print_line("no objects") } else { print_line(shown) }
}

async fn details_of(drive: &Drive<'_>, address: ObjectAddress) -> Result<(u64, String), Failure> {
    let mut get = ObjectRequest::new(Command::GetAttributes { object: address });
    get.get = [LENGTH, NAME].map(AttributeSelection::One).into();
    let reply = drive.perform(&format!("read the attributes of {address}"), get).await?;
    let value =
        |at: usize| reply.attributes.get(at).map(|one| one.value.clone()).unwrap_or_default();
    let length = value(0).as_ref().try_into().map_or(0, u64::from_be_bytes);
    Ok((length, String::from_utf8_lossy(&value(1)).into_owned()))
}

/// Reads a list of objects or partitions from a drive, one answer of LIST after the other.
pub struct Lister {
    partition: u64,
    collections: bool,
    next: Option<ListRequest>,
}

impl Lister {
    /// Begins a list: of the drive's partitions if `partition` is zero, or of the user objects or collections of a
    /// partition.
    pub fn new(partition: u64, collections: bool) -> Self {
        let next = ListRequest { allocation_length: ALLOCATION, ..ListRequest::default() };
        Self { partition, collections, next: Some(next) }
    }

    /// Returns the next objects of the list; `None` at its end.
    pub async fn next(&mut self, drive: &Drive<'_>) -> Result<Option<Vec<ListedObject>>, Failure> {
        let Some(list) = self.next.take() else { return Ok(None) };
        let partition = ObjectAddress::partition(self.partition);
        let command = if self.collections {
            Command::ListCollection { collection: partition, list }
        } else {
            Command::List { partition: self.partition, list }
        };
        let reply = drive.command(&format!("list {partition}"), command).await?;
        let ReplyData::List(ObjectList { objects, continuation, identifier, .. }) = reply.data
        else {
            return Err(Failure::new("the drive returned no list").remedy(OTHER_VERSION_REMEDY));
        };
        if continuation != 0 {
            self.next = Some(ListRequest { first: continuation, identifier, ..list });
        }
        Ok(Some(objects))
    }
}

pub async fn map(args: &DriveArgs, object: ObjectName) -> Result<(), Failure> {
    let drive = connect(args).await?;
    let runs = runs_of(&drive, object.0, MapType::All).await?;
    drive.close().await;
    let kind = |run: &MapRun| match run.kind {
        MapRunKind::Written => "written",
        MapRunKind::Hole => "hole",
        MapRunKind::DamagedData => "damaged",
    };
    if args.json {
        let row =
            |run: &MapRun| json!({ "kind": kind(run), "start": run.start, "length": run.length });
        return print_line(json!({ "runs": runs.iter().map(row).collect::<Vec<_>>() }));
    }
    let mut shown = table(&["kind", "start", "length"]);
    for run in &runs {
        shown.add_row([kind(run).to_owned(), run.start.to_string(), run.length.to_string()]);
    }
    print(format!("{shown}\n"))
}

/// Returns the runs of data, holes or damage of an object.
pub async fn runs_of(
    drive: &Drive<'_>,
    object: ObjectAddress,
    map_type: MapType,
) -> Result<Vec<MapRun>, Failure> {
    let (mut runs, mut start) = (Vec::new(), 0);
    loop {
        let command = Command::ReadMap { object, allocation_length: ALLOCATION, start, map_type };
        let reply = drive.command(&format!("read the map of {object}"), command).await?;
        let ReplyData::Map(part) = reply.data else {
            return Err(Failure::new("the drive returned no map").remedy(OTHER_VERSION_REMEDY));
        };
        let is_last = part.len() < osd::runs_within(ALLOCATION);
        let end = part.last().map(|run| run.start.saturating_add(run.length));
        runs.extend(part);
        match end {
            Some(end) if !is_last && end > start => start = end,
            _ => return Ok(runs),
        }
    }
}
