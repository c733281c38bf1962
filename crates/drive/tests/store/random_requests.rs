//! Random requests that fit the content of a model.

use object::{
    Attribute, AttributeId, AttributeSelection, Command, Continuation, CopyMethod, CopySource,
    ObjectAddress, ObjectRequest, Query, QueryCriterion, QueryMatch, ScatterEntry, Timestamp,
};
use sim::Rng;
use volume::Data;

use crate::drive_model::*;

/// The sizes of what a script makes.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Bytes behind which no request begins.
    pub longest: u64,
    /// Bytes of the longest data of a request.
    pub data: u64,
    pub partitions: usize,
    /// User objects of one partition.
    pub objects: usize,
}

/// Objects for the next request.
struct Choice {
    /// A partition that may change.
    partition: u64,
    any_partition: u64,
    object: Option<ObjectAddress>,
    collection: Option<ObjectAddress>,
}

/// Returns a request that a drive with the content of `model` performs, unless it concerns frozen objects or a quota.
pub fn random_request(rng: &mut Rng, model: &DriveModel, sizes: Sizes) -> ObjectRequest {
    let Some(choice) = choose(rng, model) else {
        return ObjectRequest::new(Command::CreatePartition { requested: 0 });
    };
    let partitions = model.content.partitions.len();
    let known = &model.content.partitions[&choice.partition];
    match rng.below(100) {
        0..3 if partitions < sizes.partitions => {
            ObjectRequest::new(Command::CreatePartition { requested: 0 })
        }
        3..7 => partition_request(rng, &choice, partitions < sizes.partitions),
        7..30 => collection_request(rng, model, &choice),
        30..40 if known.objects.len() < sizes.objects => create_request(rng, &choice, sizes),
        _ => match choice.object {
            Some(object) => object_request(rng, model, object, sizes),
            None => create_request(rng, &choice, sizes),
        },
    }
}

fn choose(rng: &mut Rng, model: &DriveModel) -> Option<Choice> {
    let all: Vec<_> = model.content.partitions.keys().copied().collect();
    let is_live = |id: &u64| !model.frozen.contains(&ObjectAddress::partition(*id));
    let live: Vec<_> = all.iter().copied().filter(is_live).collect();
    let partition = *rng.pick(&live)?;
    let any_partition = *rng.pick(&all)?;
    // One request in 16 may concern what is frozen.
    let home = if rng.chance(6) { any_partition } else { partition };
    let known = &model.content.partitions[&home];
    let objects: Vec<_> = known.objects.keys().copied().collect();
    let collections: Vec<_> = known.collections.iter().copied().collect();
    let address = |id: &u64| ObjectAddress::new(home, *id);
    let object = rng.pick(&objects).map(address);
    let collection = rng.pick(&collections).map(address);
    Some(Choice { partition, any_partition, object, collection })
}

fn partition_request(rng: &mut Rng, choice: &Choice, has_room: bool) -> ObjectRequest {
    let source = choice.any_partition;
    let (requested, method) = (0, CopyMethod(0));
    match rng.below(8) {
        0 => {
            let partition = choice.any_partition;
            ObjectRequest::new(Command::RemovePartition { partition, with_contents: true })
        }
        1 | 2 if has_room => {
            ObjectRequest::new(Command::CreateSnapshot { source, requested, method })
        }
        3 | 4 if has_room => ObjectRequest::new(Command::CreateClone { source, requested, method }),
        _ => {
            let object = ObjectAddress::partition(choice.partition);
            let attribute = match rng.chance(50) {
                true => Attribute::new(PARTITION_PAGE, 1, bytes(rng, 50)),
                false => {
                    let quota = if rng.chance(70) { 0 } else { 4096 * rng.below(300) };
                    Attribute { id: QUOTA, value: quota.to_be_bytes().to_vec().into() }
                }
            };
            ObjectRequest::new(Command::SetAttributes { object }).setting(attribute)
        }
    }
}

fn collection_request(rng: &mut Rng, model: &DriveModel, choice: &Choice) -> ObjectRequest {
    let partition = choice.partition;
    let (Some(collection), false) = (choice.collection, rng.chance(10)) else {
        return ObjectRequest::new(Command::CreateCollection { partition, requested: 0 });
    };
    match rng.below(10) {
        0 => ObjectRequest::new(Command::RemoveCollection { collection, force: rng.chance(70) }),
        1 if rng.chance(30) => ObjectRequest::new(Command::RemoveMemberObjects { collection }),
        2 => ObjectRequest::new(Command::GetMemberAttributes { collection })
            .getting(AttributeSelection::One(AttributeId::new(OWN_PAGE, 1))),
        3 => {
            let attribute = own_attribute(rng);
            ObjectRequest::new(Command::SetMemberAttributes { collection }).setting(attribute)
        }
        4 | 5 => query_request(rng, model, collection),
        _ => match choice.object {
            Some(object) => {
                let number = rng.below(3) as u32 + 1;
                let value = match rng.chance(80) {
                    true => collection.object.to_be_bytes().to_vec(),
                    false => Vec::new(),
                };
                ObjectRequest::new(Command::SetAttributes { object }).setting(Attribute::new(
                    MEMBERSHIP_PAGE,
                    number,
                    value,
                ))
            }
            None => ObjectRequest::new(Command::CreateCollection { partition, requested: 0 }),
        },
    }
}

fn query_request(rng: &mut Rng, model: &DriveModel, collection: ObjectAddress) -> ObjectRequest {
    let others = &model.content.partitions[&collection.partition].collections;
    let others: Vec<_> = others.iter().copied().collect();
    let other = *rng.pick(&others).expect("there is a collection");
    // The matches cannot become the members of a linked collection, so the drive must refuse that.
    let matches = if rng.chance(20) { other } else { 0 };
    let immediate = matches != 0 && rng.chance(50);
    let whole = if rng.chance(20) { 0 } else { collection.object };
    let collection = ObjectAddress::new(collection.partition, whole);
    let command = Command::Query { collection, allocation_length: 1 << 16, matches, immediate };
    let criterion = |rng: &mut Rng| {
        let (low, high) = (rng.below(200) as u8, rng.below(250) as u8);
        let id = AttributeId::new(OWN_PAGE, rng.below(3) as u32 + 1);
        QueryCriterion { id, minimum: vec![low].into(), maximum: vec![low.max(high)].into() }
    };
    let criteria = (0..rng.below(3)).map(|_| criterion(rng)).collect();
    let match_type = if rng.chance(50) { QueryMatch::Any } else { QueryMatch::All };
    let mut request = ObjectRequest::new(command);
    request.continuation = Continuation::Query(Query { match_type, criteria });
    request
}

fn create_request(rng: &mut Rng, choice: &Choice, sizes: Sizes) -> ObjectRequest {
    let (partition, requested) = (choice.partition, 0);
    let mut request = match (rng.below(4), choice.object) {
        (0, _) => {
            let count = rng.below(3) as u16 + 1;
            ObjectRequest::new(Command::Create { partition, requested, count })
        }
        (1 | 2, Some(object)) => {
            let command = Command::CopyUserObjects { partition, requested, method: CopyMethod(0) };
            let (with_attributes, freeze) = (rng.chance(50), rng.chance(15));
            let time = Timestamp::ZERO;
            let mut request = ObjectRequest::new(command);
            let source = CopySource { object, with_attributes, freeze, time };
            request.continuation = Continuation::CopySource(source);
            request
        }
        _ => {
            let (start, length) = range(rng, 0, sizes);
            let length = length.max(1);
            let data = data(rng, length);
            let command = Command::CreateAndWrite { partition, requested, length, start };
            ObjectRequest::new(command).with_data(data)
        }
    };
    if rng.chance(30) {
        request.set.push(own_attribute(rng));
    }
    request
}

fn object_request(
    rng: &mut Rng,
    model: &DriveModel,
    object: ObjectAddress,
    sizes: Sizes,
) -> ObjectRequest {
    let known = &model.content.partitions[&object.partition].objects[&object.object];
    let now = known.bytes.len() as u64;
    let (start, length) = range(rng, now, sizes);
    let mut request = match rng.below(20) {
        0..4 => write_request(rng, object, start, length),
        4 => scattered(rng, object, now, sizes),
        5 | 6 if now < sizes.longest => {
            let data = data(rng, length);
            ObjectRequest::new(Command::Append { object, length }).with_data(data)
        }
        7 | 8 => ObjectRequest::new(Command::Clear { object, length, start }),
        9 | 10 => ObjectRequest::new(Command::Punch { object, length, start }),
        11 => ObjectRequest::new(Command::SetAttributes { object })
            .setting(Attribute { id: LOGICAL_LENGTH, value: start.to_be_bytes().to_vec().into() }),
        12 => ObjectRequest::new(Command::Remove { object }),
        13 => ObjectRequest::new(Command::ReadMap {
            object,
            allocation_length: 1 << 20,
            start,
            map_type: object::MapType::All,
        }),
        14 => ObjectRequest::new(Command::GetAttributes { object }),
        15 | 16 => ObjectRequest::new(Command::SetAttributes { object }),
        _ => ObjectRequest::new(Command::Read { object, length, start }),
    };
    let is_setting = matches!(request.command, Command::SetAttributes { .. });
    if (is_setting && request.set.is_empty()) || rng.chance(10) {
        (0..=rng.below(3)).for_each(|_| request.set.push(own_attribute(rng)));
    }
    request
}

fn write_request(rng: &mut Rng, object: ObjectAddress, start: u64, length: u64) -> ObjectRequest {
    let data = data(rng, length);
    ObjectRequest::new(Command::Write { object, length, start }).with_data(data)
}

/// Returns a READ or WRITE with a scatter/gather list, whose ranges may overlap.
fn scattered(rng: &mut Rng, object: ObjectAddress, now: u64, sizes: Sizes) -> ObjectRequest {
    let count = rng.below(4) + 1;
    let entries: Vec<_> = (0..count)
        .map(|_| range(rng, now, sizes))
        .map(|(start, length)| ScatterEntry { start, length })
        .collect();
    let length = entries.iter().map(|entry| entry.length).sum();
    let mut request = match rng.chance(70) {
        true => write_request(rng, object, 0, length),
        false => ObjectRequest::new(Command::Read { object, length, start: 0 }),
    };
    request.continuation = Continuation::ScatterGather(entries);
    request
}

fn range(rng: &mut Rng, length: u64, sizes: Sizes) -> (u64, u64) {
    let start = match rng.below(4) {
        0 => length,
        1 => rng.below(length / 4096 + 2) * 4096,
        _ => rng.below(length + 5000),
    };
    let most = [10, 4096, 20_000, sizes.data][rng.below(4) as usize].min(sizes.data);
    let count = match rng.below(3) {
        0 => (rng.below(most / 4096 + 2)) * 4096,
        _ => rng.below(most) + 1,
    };
    (start.min(sizes.longest), count)
}

fn own_attribute(rng: &mut Rng) -> Attribute {
    let number = rng.below(4) as u32 + 1;
    Attribute::new(OWN_PAGE, number, bytes(rng, 300))
}

/// Returns up to `most` equal bytes.
fn bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    vec![rng.next_u64() as u8; rng.below(most) as usize]
}

fn data(rng: &mut Rng, length: u64) -> Data {
    Data::from(vec![rng.next_u64() as u8 | 1; length as usize])
}
