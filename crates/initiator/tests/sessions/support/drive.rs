//! An object drive for tests: a logical unit that keeps objects in memory, checks signatures with CMDRSP and ALLDATA,
//! and can lie.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use initiator::{Credential, KeyChain, Settings};
use object::{
    Attribute, AttributeId, AttributeSelection, CURRENT_COMMAND, Command, CurrentCommand,
    ListedObject, ObjectAddress, ObjectList, ObjectType, Timestamp,
};
use osd::{
    AttributeParameters, BOOT_EPOCH, Capability, ListKind, OsdCdb, REQUEST_HORIZON, REQUEST_RESULT,
    REQUEST_TAG, RequestResult, RequestTag, current_command_page, encode_list, list,
    security::{
        Algorithm, CapabilityKey, DataInIntegrity, DataOutIntegrity, IntegrityCheckValue,
        SecurityMethod, SigningKey, SystemId, response_of_page, response_of_zeroed_sense,
    },
};
use parking_lot::Mutex;
use scsi::{AdmittedCommand, Cdb, ObjectSense, ScsiStatus, Sense, SenseKey, inquiry};
use target::{Target, TargetServer};
use tokio::sync::Notify;
use unit::{Completion, LogicalUnit, Nexus, Task, TaskManagement, UnitAbilities, UnitReply};
use volume::Data;

use super::node::NAME;

pub const SYSTEM: SystemId = *b"test drive system id";
pub const TOKEN: [u8; 16] = [0x5a; 16];

/// The way in which the drive lies.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Lie {
    #[default]
    None,
    /// The response integrity check value of a GOOD status has a wrong bit.
    StatusProof,
    /// The integrity check value of the Data-In buffer has a wrong bit.
    DataProof,
    /// READ returns one byte less than it announces.
    ShortRead,
    /// GET ATTRIBUTES returns an attribute that was not requested.
    OtherAttribute,
    /// GET ATTRIBUTES returns a logical length of 3 bytes.
    AttributeLength,
    /// Every command fails with "no such object", without a signature of the drive.
    UnsignedRefusal,
    /// LIST returns the objects in descending order.
    ListOrder,
    /// CREATE returns the address of an object in another partition.
    OtherObject,
    /// Attribute lists announce more bytes than they contain.
    ListLength,
}

/// The moment at which a command of the drive waits until the test lets it continue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StopAt {
    /// The command waits before it changes the drive.
    Begin,
    /// After the effect, before the answer.
    End,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<(u64, u64), Vec<u8>>,
    attributes: BTreeMap<(u64, u64, u32, u32), Bytes>,
    results: BTreeMap<RequestTag, RequestResult>,
    horizon: Option<RequestTag>,
    nonces: std::collections::HashSet<[u8; 12]>,
    next: u64,
    stop: Option<(u16, StopAt)>,
    answered: BTreeMap<u16, u64>,
}

pub struct DriveUnit {
    state: Mutex<State>,
    pub chain: Option<KeyChain>,
    pub lie: Mutex<Lie>,
    pub boot_epoch: AtomicU64,
    /// Milliseconds by which the drive's clock is ahead of the host's.
    pub ahead_ms: AtomicU64,
    /// True if the drive keeps no results of tags.
    pub forgets: AtomicBool,
    pub stopped: Notify,
    pub resume: Notify,
}

impl DriveUnit {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        Timestamp::from_ms(since.as_millis() as u64 + self.ahead_ms.load(Ordering::Relaxed))
    }

    /// Makes the next command with the service action `action` wait at the moment `at`.
    pub fn stop_at(&self, action: osd::ServiceAction, at: StopAt) {
        self.state.lock().stop = Some((action as u16, at));
    }

    pub fn content(&self, object: ObjectAddress) -> Option<Vec<u8>> {
        self.state.lock().objects.get(&(object.partition, object.object)).cloned()
    }

    /// Returns the number of commands with the service action `action` that were executed.
    pub fn performed(&self, action: osd::ServiceAction) -> u64 {
        self.state.lock().answered.get(&(action as u16)).copied().unwrap_or(0)
    }

    /// Forgets the results of all command tags, as a drive forgets the oldest ones.
    pub fn forget_results(&self) {
        let mut state = self.state.lock();
        state.horizon = state.results.keys().next_back().copied();
        state.results.clear();
    }

    async fn perform(&self, task: Task) -> Completion {
        if task.cdb[0] != 0x7f {
            return primary(&task);
        }
        let cdb = match OsdCdb::parse(&task.cdb) {
            Ok(cdb) => cdb,
            Err(refusal) => return Completion::check_condition(refusal.sense()),
        };
        if *self.lie.lock() == Lie::UnsignedRefusal {
            return Completion::check_condition(Sense::invalid_field_in_cdb(24));
        }
        let data_out = task.data_out.clone().into_bytes();
        let key = match self.check(&task.cdb, &cdb, &data_out) {
            Ok(key) => key,
            Err(sense) => return Completion::check_condition(sense),
        };
        let action = cdb.service_action() as u16;
        let stop = self.state.lock().stop.take_if(|stop| stop.0 == action).map(|stop| stop.1);
        if stop == Some(StopAt::Begin) {
            self.stopped.notify_one();
            self.resume.notified().await;
        }
        let done = self.execute(&cdb, &data_out);
        if stop == Some(StopAt::End) {
            self.stopped.notify_one();
            self.resume.notified().await;
        }
        match done {
            Ok(done) => self.answer(&cdb, done, key.as_ref()),
            Err(sense) => refused(sense, &cdb, key.as_ref()),
        }
    }

    /// Checks the signature of a command. Returns the key that signs the answer.
    fn check(
        &self,
        bytes: &[u8],
        cdb: &OsdCdb,
        data_out: &[u8],
    ) -> Result<Option<CapabilityKey>, Sense> {
        let Some(chain) = &self.chain else { return Ok(None) };
        let wrong = Sense::invalid_field_in_cdb(184);
        let capability = Capability::parse(&cdb.capability).ok().flatten().ok_or(wrong)?;
        let (_, key) = chain.sign(&capability, SigningKey::for_command(&cdb.command), &SYSTEM);
        if capability.method == SecurityMethod::CapKey {
            return (key.of_token(&TOKEN) == cdb.integrity).then_some(None).ok_or(wrong);
        }
        if key.of_cdb(bytes.try_into().map_err(|_| wrong)?) != cdb.integrity {
            return Err(wrong);
        }
        let (now, time) = (self.now().as_ms(), cdb.nonce.time.as_ms());
        if time + 60_000 < now || time > now + 60_000 {
            return Err(Sense::new(SenseKey::IllegalRequest, 0x24, 0x07));
        }
        if !self.state.lock().nonces.insert(cdb.nonce.to_bytes()) {
            return Err(Sense::new(SenseKey::IllegalRequest, 0x24, 0x06));
        }
        let continuation = cdb.continuation_length as usize;
        if continuation > 0 {
            let value = key.of_continuation(cdb.nonce, &data_out[..continuation]);
            assert_eq!(value.0, data_out[8..40], "the continuation segment is signed");
        }
        if capability.method == SecurityMethod::AllData {
            let at = cdb.data_out_integrity.ok_or(wrong)? as usize;
            let info = DataOutIntegrity::parse(&data_out[at..]).ok_or(wrong)?;
            let lengths = [info.data_bytes, info.set_attributes_bytes, info.get_attributes_bytes];
            if DataOutIntegrity::new(&key, cdb.nonce, [&data_out[..at]], lengths) != info {
                return Err(Sense::new(SenseKey::IllegalRequest, 0x26, 0x0f));
            }
        }
        Ok(Some(key))
    }

    fn execute(&self, cdb: &OsdCdb, data_out: &Bytes) -> Result<Done, Sense> {
        let (set, get) = lists(cdb, data_out);
        let tag = set.iter().find(|set| set.id == REQUEST_TAG);
        let tag = tag.and_then(|tag| RequestTag::parse(&tag.value));
        let mut state = self.state.lock();
        let mut done = Done { get, ..Done::default() };
        let address = cdb.command.object();
        let key = (address.partition, address.object);
        let missing = Sense::invalid_field_in_cdb(24);
        done.current = CurrentCommand { object: address, ..CurrentCommand::default() };
        let data = |length: u64| {
            let begin = cdb.continuation_length as usize;
            data_out.slice(begin..begin + length as usize)
        };
        match cdb.command {
            Command::CreatePartition { .. } | Command::Create { .. } => {
                done.current = create(&mut state, cdb.command)?;
            }
            Command::Write { length, start, .. } => {
                let object = state.objects.get_mut(&key).ok_or(missing)?;
                let end = (start + length) as usize;
                object.resize(object.len().max(end), 0);
                object[start as usize..end].copy_from_slice(&data(length));
            }
            Command::Append { length, .. } => {
                let object = state.objects.get_mut(&key).ok_or(missing)?;
                done.current.append_start = object.len() as u64;
                object.extend_from_slice(&data(length));
            }
            Command::Read { length, start, .. } => {
                let object = state.objects.get(&key).ok_or(missing)?;
                let begin = (start as usize).min(object.len());
                let end = ((start + length) as usize).min(object.len());
                done.data = object[begin..end].to_vec();
                done.past_end =
                    (done.data.len() < length as usize).then_some(done.data.len() as u64);
            }
            Command::Remove { .. } => {
                state.objects.remove(&key).ok_or(missing)?;
            }
            Command::List { partition, list } => {
                done.data = self.list(&state, partition, list.first);
            }
            Command::GetAttributes { .. } | Command::SetAttributes { .. }
                if address.object != 0 && !state.objects.contains_key(&key) =>
            {
                return Err(missing);
            }
            _ => {}
        }
        for set in set.iter().filter(|set| set.id.page != osd::REQUEST_TAG_PAGE) {
            let object = done.current.object;
            let key = (object.partition, object.object, set.id.page, set.id.number);
            state.attributes.insert(key, set.value.clone());
        }
        *state.answered.entry(cdb.service_action() as u16).or_default() += 1;
        if let Some(tag) = tag
            && cdb.command.is_unrepeatable()
            && !self.forgets.load(Ordering::Relaxed)
        {
            let CurrentCommand { object_type, object, append_start, .. } = done.current;
            state
                .results
                .insert(tag, RequestResult { sequence: 0, object_type, object, append_start });
        }
        done.attributes = self.attributes(&state, &done, tag);
        Ok(done)
    }

    fn list(&self, state: &State, partition: u64, first: u64) -> Vec<u8> {
        let range = (partition, first.max(1))..=(partition, u64::MAX);
        let listed =
            |id| ListedObject { id, object_type: ObjectType::UserObject, attributes: Vec::new() };
        let mut objects: Vec<_> =
            state.objects.range(range).map(|(key, _)| listed(key.1)).collect();
        if *self.lie.lock() == Lie::ListOrder {
            objects.reverse();
        }
        let total_bytes = 8 * objects.len() as u64;
        let list = ObjectList { objects, total_bytes, ..ObjectList::default() };
        encode_list(&list, ListKind::UserObjects, false)
    }

    /// Returns the values of the requested attributes.
    fn attributes(&self, state: &State, done: &Done, tag: Option<RequestTag>) -> Vec<Attribute> {
        let object = done.current.object;
        let length = || state.objects.get(&(object.partition, object.object)).map(Vec::len);
        let value = |id: AttributeId| match id {
            BOOT_EPOCH => {
                let epoch = self.boot_epoch.load(Ordering::Relaxed) as u16;
                epoch.to_be_bytes().to_vec().into()
            }
            REQUEST_RESULT => {
                let result = tag.and_then(|tag| state.results.get(&tag));
                result.map(|result| result.to_bytes().to_vec().into()).unwrap_or_default()
            }
            REQUEST_HORIZON => {
                let horizon = state.horizon.map_or([0; 16], RequestTag::to_bytes);
                horizon.to_vec().into()
            }
            AttributeId { page: 0x9000_0001, number: 0x3 } => Bytes::from_static(&SYSTEM),
            AttributeId { page: 0x9000_0001, number: 0x100 } => {
                self.now().to_bytes().to_vec().into()
            }
            AttributeId { page: 0x1, number: 0x82 } if *self.lie.lock() == Lie::AttributeLength => {
                Bytes::from_static(b"abc")
            }
            AttributeId { page: 0x1, number: 0x82 } => {
                let length = length().map(|length| (length as u64).to_be_bytes().to_vec().into());
                length.unwrap_or_default()
            }
            AttributeId { page, number } => {
                let key = (object.partition, object.object, page, number);
                state.attributes.get(&key).cloned().unwrap_or_default()
            }
        };
        let ids = done.get.iter().filter_map(|selection| match *selection {
            AttributeSelection::One(id) => Some(id),
            _ => None,
        });
        ids.map(|id| Attribute { id, value: value(id) }).collect()
    }

    fn answer(&self, cdb: &OsdCdb, mut done: Done, key: Option<&CapabilityKey>) -> Completion {
        let lie = *self.lie.lock();
        if lie == Lie::OtherObject {
            done.current.object.partition += 1;
        }
        if lie == Lie::OtherAttribute {
            done.attributes.push(Attribute::new(0x10000, 77, b"x".to_vec()));
        }
        if lie == Lie::ShortRead {
            done.data.pop();
        }
        let mut value = IntegrityCheckValue::ZERO;
        if let Some(key) = key {
            let page = current_command_page(&done.current, &IntegrityCheckValue::ZERO);
            value = response_of_page(key, cdb.nonce, &page);
        }
        if lie == Lie::StatusProof {
            value.0[3] ^= 1;
        }
        let page = current_command_page(&done.current, &value);
        let mut retrieved = match cdb.attributes {
            AttributeParameters::Page { get: Some(_), .. } => page.to_vec(),
            AttributeParameters::Lists { get: Some(_), .. } => {
                if done.get.contains(&AttributeSelection::Page(CURRENT_COMMAND)) {
                    done.attributes.extend(current_attributes(&page));
                }
                list::encode_attributes(&done.attributes)
            }
            _ => Vec::new(),
        };
        if lie == Lie::ListLength && retrieved.len() > 8 {
            retrieved[4..8].copy_from_slice(&0x00ff_fff0u32.to_be_bytes());
        }
        let retrieved_length = retrieved.len() as u64;
        let mut data_in = done.data;
        if let Some(space) = cdb.attributes.space() {
            data_in.resize(space.offset as usize, 0);
            data_in.extend_from_slice(&retrieved);
        }
        if let (Some(key), Some(at)) = (key, cdb.data_in_integrity) {
            data_in.resize(at as usize, 0);
            let lengths = [0, retrieved_length];
            let mut info = DataInIntegrity::new(key, cdb.nonce, [&data_in[..]], lengths);
            info.value.0[0] ^= u8::from(lie == Lie::DataProof);
            data_in.extend_from_slice(&info.to_bytes());
        }
        let completion = Completion::good(Data::from(data_in));
        let Some(count) = done.past_end else { return completion };
        let sense = Sense::new(SenseKey::RecoveredError, 0x3b, 0x17).with_command_specific(count);
        Completion { data_in: completion.data_in, ..refused(sense, cdb, key) }
    }
}

/// Creates a partition or user objects.
fn create(state: &mut State, command: Command) -> Result<CurrentCommand, Sense> {
    let mut current = CurrentCommand::default();
    match command {
        Command::CreatePartition { requested } => {
            state.next = state.next.max(0x10000) + 1;
            let partition = if requested == 0 { state.next } else { requested };
            if state.objects.insert((partition, 0), Vec::new()).is_some() {
                return Err(Sense::invalid_field_in_cdb(16));
            }
            current.object = ObjectAddress::partition(partition);
            current.object_type = Some(ObjectType::Partition);
        }
        Command::Create { partition, requested, count } => {
            state.next = state.next.max(0x10000) + u64::from(count);
            let first = if requested == 0 { state.next - u64::from(count) + 1 } else { requested };
            if state.objects.contains_key(&(partition, first)) {
                return Err(Sense::invalid_field_in_cdb(24));
            }
            for id in first..first + u64::from(count) {
                state.objects.insert((partition, id), Vec::new());
            }
            current.object = ObjectAddress::new(partition, first);
            current.object_type = Some(ObjectType::UserObject);
        }
        _ => {}
    }
    Ok(current)
}

/// The result of executing a command.
#[derive(Default)]
struct Done {
    data: Vec<u8>,
    past_end: Option<u64>,
    current: CurrentCommand,
    get: Vec<AttributeSelection>,
    attributes: Vec<Attribute>,
}

/// Returns the lists of attributes to set and to return.
fn lists(cdb: &OsdCdb, data_out: &Bytes) -> (Vec<Attribute>, Vec<AttributeSelection>) {
    let at = |offset: u64, length: u32| {
        data_out.slice(offset as usize..offset as usize + length as usize)
    };
    match cdb.attributes {
        AttributeParameters::Page { set: Some(set), .. } => {
            let value = at(set.offset, set.length);
            (vec![Attribute { id: set.id, value }], Vec::new())
        }
        AttributeParameters::Lists { get, set, .. } => {
            let set = set.map(|set| list::parse_attributes(&at(set.offset, set.length), 99));
            let get = get.map(|get| list::parse_selections(&at(get.offset, get.length), 99));
            let set = set.transpose().expect("a list").unwrap_or_default();
            (set, get.transpose().expect("a list").unwrap_or_default())
        }
        _ => (Vec::new(), Vec::new()),
    }
}

fn current_attributes(page: &[u8]) -> impl Iterator<Item = Attribute> {
    let fields = [(8, 32), (40, 1), (44, 8), (52, 8), (60, 8), (68, 8)];
    (1..).zip(fields).map(|(number, (at, length))| {
        Attribute::new(CURRENT_COMMAND, number, page[at..at + length].to_vec())
    })
}

fn refused(sense: Sense, cdb: &OsdCdb, key: Option<&CapabilityKey>) -> Completion {
    let mut completion = Completion::check_condition(sense);
    if let Some(key) = key {
        let mut descriptors =
            ObjectSense { response_integrity: Some([0; 32]), ..ObjectSense::default() };
        let (bytes, _) = descriptors.encode(&sense);
        let status = ScsiStatus::CheckCondition as u8;
        let value = response_of_zeroed_sense(key, cdb.nonce, status, &bytes);
        descriptors.response_integrity = Some(value.0);
        completion.object_sense = Some(Box::new(descriptors));
    }
    completion
}

/// Answers the commands of SPC that the initiator sends to an object drive.
fn primary(task: &Task) -> Completion {
    let vpd = |body: &[u8]| [&[0x11, task.cdb[2], 0, body.len() as u8], body].concat();
    let data = match (task.cdb[0], task.cdb[1] & 1, task.cdb[2]) {
        (0x00, ..) => Vec::new(),
        (0x12, 0, _) => {
            inquiry::StandardInquiry::object_storage(*b"FOREBAY ", *b"TEST DRIVE      ", *b"0001")
                .to_bytes()
                .to_vec()
        }
        (0x12, 1, 0x00) => vpd(&[0x00, 0x80, 0xb0, 0xb1]),
        (0x12, 1, 0x80) => vpd(b"drive-1"),
        (0x12, 1, 0xb0) => vpd(&[&[0, 0x0f, 0, 0][..], &SYSTEM].concat()),
        (0x12, 1, 0xb1) => vpd(&TOKEN),
        _ => return Completion::check_condition(Sense::INVALID_COMMAND_OPERATION_CODE),
    };
    Completion::good(Data::from(data))
}

/// The unit of a target, shared with the test.
struct SharedUnit(Arc<DriveUnit>);

impl LogicalUnit for SharedUnit {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        UnitReply::new(self.0.perform(task))
    }

    fn admit(&self, _: &Nexus, _: &Cdb, _: u32) -> Result<Option<AdmittedCommand>, Completion> {
        Ok(None)
    }

    fn task_management(&self, _: &Nexus, _: TaskManagement) {}

    fn nexus_opened(&self, _: &Nexus) {}

    fn nexus_closed(&self, _: &Nexus) {}

    fn abilities(&self) -> UnitAbilities<'_> {
        UnitAbilities { descriptor_sense_only: true, ..UnitAbilities::default() }
    }
}

/// A target with an object drive.
pub struct Drive {
    pub unit: Arc<DriveUnit>,
    pub address: SocketAddr,
    server: TargetServer,
}

pub fn chain() -> KeyChain {
    let file = format!("{}\n{}\n", "01".repeat(32), "02".repeat(32));
    KeyChain::parse(file.as_bytes()).expect("a key file")
}

pub fn owner(method: SecurityMethod) -> Credential {
    Credential::keys(chain(), method, Algorithm::HmacSha256, 0)
}

impl Drive {
    /// Starts an object drive. With `signed`, the drive requires signed commands.
    pub async fn start(signed: bool) -> Self {
        let unit = Arc::new(DriveUnit {
            state: Mutex::default(),
            chain: signed.then(chain),
            lie: Mutex::default(),
            boot_epoch: AtomicU64::new(1),
            ahead_ms: AtomicU64::new(0),
            forgets: AtomicBool::new(false),
            stopped: Notify::new(),
            resume: Notify::new(),
        });
        let target = Target::new(NAME, vec![(0, Arc::new(SharedUnit(unit.clone())))]);
        let mut settings = target::Settings::default();
        settings.offer.default_time2wait = 0;
        let server = TargetServer::new(settings, vec![target]).expect("a target");
        let address = server.listen("127.0.0.1:0".parse().expect("an address")).await;
        Self { unit, address: address.expect("loopback"), server }
    }

    /// Returns settings for an initiator that reconnects without pauses, by way of `address`.
    pub fn settings(address: SocketAddr) -> Settings {
        let mut settings = Settings::new(address.to_string(), NAME, 0);
        settings.back_off = std::time::Duration::from_millis(5);
        // Cut connections in a row must not make the pauses longer.
        settings.back_off_max = settings.back_off;
        settings.offer.default_time2wait = 0;
        settings
    }

    pub async fn stop(self) {
        self.server.shutdown(std::time::Duration::ZERO).await;
    }
}
