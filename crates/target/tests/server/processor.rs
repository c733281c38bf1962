//! Tests a unit that is no block device: a processor device (device type 03h of SPC-2), which keeps the last message
//! that was sent to it. Reservations, unit attention conditions and the commands of SPC come from `unit::PrimaryUnit`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use iscsi::{
    Itt, Pdu,
    pdu::{ReadyToTransfer, TaskFunction},
};
use parking_lot::Mutex;
use scsi::{
    AdmittedCommand, Cdb, Command, Lun, OperationCodeEntry, OperationRow, OperationTable,
    ParsedCommand, PersistentReserveOut, PrimaryCommand, ScsiStatus, Sense,
    inquiry::{StandardInquiry, ascii},
    persistent::{OutParameters, ReservationType, ReserveAction},
    unknown_operation,
    vpd::DeviceIdentification,
};
use target::{Settings, TargetServer};
use unit::{
    AttentionChange, Completion, DeviceCommand, DeviceType, LogicalUnit, Nexus,
    PrimaryCommandInput, PrimaryUnit, ReservationEffect, Task, TaskManagement, TaskTurn,
    UnitIdentity, UnitReply,
    gate::{self, GatedDevice},
};
use volume::Data;

use crate::client::{Client, server};

/// PERIPHERAL DEVICE TYPE of a processor device.
const PROCESSOR: u8 = 0x03;

struct Processor {
    primary: PrimaryUnit,
    message: Mutex<Data>,
    /// Number of CDBs of SEND that were parsed.
    sends_parsed: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
enum ProcessorCommand {
    Primary(PrimaryCommand),
    /// The command RECEIVE returns the stored message.
    Receive {
        allocation_length: u32,
    },
    /// The command SEND replaces the stored message.
    Send {
        length: u32,
    },
}

static OWN_COMMANDS: OperationTable<ProcessorCommand> = OperationTable::new(ROWS);

const ROWS: &[OperationRow<ProcessorCommand>] = &[
    OperationRow::new(OperationCodeEntry::new(&[0x08, 0, 0xff, 0xff, 0xff, 4], 1, 30), |cdb| {
        Ok(ProcessorCommand::Receive { allocation_length: length_of(cdb) })
    }),
    OperationRow::new(OperationCodeEntry::new(&[0x0a, 0, 0xff, 0xff, 0xff, 4], 1, 30), |cdb| {
        Ok(ProcessorCommand::Send { length: length_of(cdb) })
    }),
];

fn length_of(cdb: &[u8]) -> u32 {
    u32::from_be_bytes([0, cdb[2], cdb[3], cdb[4]])
}

impl DeviceCommand for ProcessorCommand {
    fn primary(&self) -> Option<&PrimaryCommand> {
        match self {
            Self::Primary(command) => Some(command),
            Self::Receive { .. } | Self::Send { .. } => None,
        }
    }

    fn effect(&self) -> ReservationEffect {
        match self {
            Self::Primary(command) => command.effect(),
            Self::Receive { .. } => ReservationEffect::Reads,
            Self::Send { .. } => ReservationEffect::Changes,
        }
    }

    fn to_parsed(&self) -> ParsedCommand {
        match self {
            Self::Primary(command) => ParsedCommand::Known(Command::Primary(*command)),
            own => ParsedCommand::Other(Arc::new(*own)),
        }
    }

    fn from_parsed(parsed: &ParsedCommand) -> Option<Self> {
        match parsed {
            ParsedCommand::Known(Command::Primary(command)) => Some(Self::Primary(*command)),
            ParsedCommand::Known(_) => None,
            ParsedCommand::Other(own) => own.downcast_ref().copied(),
        }
    }
}

impl GatedDevice for Processor {
    type Command = ProcessorCommand;

    fn parse(&self, cdb: &[u8]) -> Result<ProcessorCommand, Sense> {
        if let Some(own) = OWN_COMMANDS.parse(cdb) {
            if let Ok(ProcessorCommand::Send { .. }) = own {
                self.sends_parsed.fetch_add(1, Ordering::Relaxed);
            }
            return own;
        }
        let primary = PrimaryCommand::parse_known(cdb);
        let unknown = || unknown_operation(cdb, PrimaryCommand::has_opcode);
        Ok(ProcessorCommand::Primary(primary.unwrap_or_else(|| Err(unknown()))?))
    }

    /// Returns a constant, because the unit adds no checks to the gate whose result could change.
    fn generation(&self, _: u64) -> Option<u64> {
        Some(0)
    }
}

impl DeviceType for Processor {
    fn inquiry(&self) -> StandardInquiry {
        StandardInquiry::device(PROCESSOR, ascii("TEST"), ascii("PROCESSOR"), ascii("1"))
    }

    fn operations(&self) -> Vec<&'static OperationCodeEntry> {
        let mut all: Vec<_> = self.primary.operations().chain(OWN_COMMANDS.entries()).collect();
        all.sort_by_key(|operation| (operation.opcode, operation.service_action));
        all
    }
}

impl Processor {
    fn start<'a>(&'a self, task: Task, turn: TaskTurn<'a>) -> Result<UnitReply<'a>, Completion> {
        match gate::begin(&self.primary, self, &task)? {
            ProcessorCommand::Primary(command) => {
                let input = PrimaryCommandInput { nexus: task.nexus, data: task.data_out, turn };
                self.primary.start(self, &command, input)
            }
            ProcessorCommand::Receive { allocation_length } => {
                let message = self.message.lock().clone();
                let length = message.len().min(allocation_length as usize);
                Err(Completion::good(message.slice(0, length)))
            }
            ProcessorCommand::Send { length } => {
                *self.message.lock() = task.data_out;
                let taken = Some(length);
                Err(Completion { data_out_length: taken, ..Completion::good(Data::new()) })
            }
        }
    }
}

impl LogicalUnit for Processor {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        self.primary.in_turn(task, |task, turn| self.start(task, turn))
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &Cdb,
        _: u32,
    ) -> Result<Option<AdmittedCommand>, Completion> {
        gate::admit(&self.primary, self, nexus, cdb).map(|(_, admitted)| Some(admitted))
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        self.primary.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.primary.nexus_opened(nexus);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.primary.nexus_closed(nexus);
    }

    fn change_attention(&self, nexus: &Nexus, condition: Sense, change: AttentionChange) {
        self.primary.change_attention(nexus, condition, change);
    }
}

async fn processor() -> (TargetServer, SocketAddr) {
    serve(new_processor()).await
}

fn new_processor() -> Arc<Processor> {
    let primary = PrimaryUnit::new(UnitIdentity::new("processor"));
    let (message, sends_parsed) = (Mutex::default(), AtomicU64::new(0));
    Arc::new(Processor { primary, message, sends_parsed })
}

async fn serve(unit: Arc<Processor>) -> (TargetServer, SocketAddr) {
    server(Settings::default(), unit).await
}

const READY: [u8; 1] = [0x00];
const RECEIVE: [u8; 5] = [0x08, 0, 0, 0, 64];
const HELLO: &[u8] = b"hello";
const GOOD: ScsiStatus = ScsiStatus::Good;
const CONFLICT: ScsiStatus = ScsiStatus::ReservationConflict;

fn send_of(length: usize) -> [u8; 5] {
    [0x0a, 0, 0, 0, length as u8]
}

impl Client {
    /// Runs a command with `data` as Data-Out and without Data-In.
    async fn ends(&mut self, cdb: &[u8], data: &[u8]) -> (ScsiStatus, Option<Sense>) {
        let mut command = self.command(cdb, data.len() as u32);
        if !data.is_empty() {
            (command.read, command.write, command.data) = (false, true, data.to_vec().into());
        }
        self.send(Pdu::ScsiCommand(command)).await;
        let response = self.response().await;
        (ScsiStatus::from_byte(response.status).unwrap(), Sense::from_bytes(&response.sense))
    }

    /// Starts a SEND of 100 bytes without unsolicited data. Returns its tag and the R2T of the target.
    async fn begins_to_send(&mut self) -> (Itt, ReadyToTransfer) {
        let mut solicited = self.command(&send_of(100), 100);
        (solicited.read, solicited.write) = (false, true);
        let itt = self.begin(solicited).await;
        let Some(Pdu::ReadyToTransfer(r2t)) = self.receive().await else { panic!("no R2T") };
        (itt, r2t)
    }

    async fn unit_attention(&mut self) -> Option<Sense> {
        self.ends(&READY, &[]).await.1
    }

    async fn receives(&mut self) -> (u8, Vec<u8>) {
        let command = self.command(&RECEIVE, 64);
        self.read(command).await
    }

    async fn reserves(&mut self, action: ReserveAction, key: u64, action_key: u64) -> ScsiStatus {
        let list = OutParameters { key, action_key, ..OutParameters::default() }.to_bytes();
        let parameter_list_length = list.len() as u32;
        let out = PersistentReserveOut { action, parameter_list_length };
        self.ends(&PrimaryCommand::PersistentReserveOut(out).encode(), &list).await.0
    }
}

#[tokio::test]
async fn a_unit_of_another_device_type_stores_a_message() {
    let (_server, address) = processor().await;
    let mut client = Client::log_in(address, 1).await;
    // INQUIRY must be answered although the nexus still has to receive a unit attention condition.
    let inquiry = PrimaryCommand::Inquiry { page: None, allocation_length: 96 }.encode();
    let inquiry = client.command(&inquiry, 96);
    let inquiry = StandardInquiry::from_bytes(&client.read(inquiry).await.1).unwrap();
    assert_eq!((inquiry.device_type, &inquiry.product), (PROCESSOR, b"PROCESSOR       "));
    let page = Some(DeviceIdentification::PAGE);
    let page = PrimaryCommand::Inquiry { page, allocation_length: 252 }.encode();
    let page = client.command(&page, 252);
    assert_eq!(client.read(page).await.1[..2], [PROCESSOR, DeviceIdentification::PAGE]);
    assert_eq!(client.unit_attention().await, Some(Sense::POWER_ON_OCCURRED));
    assert_eq!(client.unit_attention().await, None);
    assert_eq!(client.ends(&send_of(HELLO.len()), HELLO).await, (GOOD, None));
    assert_eq!(client.receives().await, (0, HELLO.to_vec()));
    // READ (10) is not a command of this device type. The unit does not support MODE SENSE, a command of SPC.
    for cdb in [&[0x28, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0x1a, 0, 0x3f, 0, 255]] {
        let (status, sense) = client.ends(cdb, &[]).await;
        assert_eq!(status, ScsiStatus::CheckCondition);
        assert!(sense.unwrap().is(Sense::INVALID_COMMAND_OPERATION_CODE));
    }
    let all = client.command(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 4, 0], 1024);
    let (status, all) = client.read(all).await;
    let opcodes: Vec<u8> = all[4..].chunks(8).map(|descriptor| descriptor[0]).collect();
    assert_eq!(status, 0);
    assert!(opcodes.is_sorted());
    for (opcode, is_served) in [(0x08, true), (0x0a, true), (0x5f, true), (0x1a, false)] {
        assert_eq!(opcodes.contains(&opcode), is_served, "{opcode:02x}");
    }
}

#[tokio::test]
async fn reservations_hold_at_a_unit_of_another_device_type() {
    let (_server, address) = processor().await;
    let mut holder = Client::log_in(address, 1).await;
    let mut other = Client::log_in(address, 2).await;
    for client in [&mut holder, &mut other] {
        client.settle().await;
    }
    assert_eq!(holder.ends(&send_of(HELLO.len()), HELLO).await, (GOOD, None));
    assert_eq!(holder.reserves(ReserveAction::Register, 0, 1).await, GOOD);
    assert_eq!(other.reserves(ReserveAction::Register, 0, 2).await, GOOD);
    let exclusive = ReserveAction::Reserve(ReservationType::ExclusiveAccess);
    assert_eq!(holder.reserves(exclusive, 1, 0).await, GOOD);
    assert_eq!(other.reserves(exclusive, 2, 0).await, CONFLICT);
    assert_eq!(other.ends(&RECEIVE, &[]).await.0, CONFLICT);
    assert_eq!(other.unit_attention().await, None, "TEST UNIT READY is allowed");
    // The unit refuses the command SEND before the target requests its data.
    let mut solicited = other.command(&send_of(100), 100);
    (solicited.read, solicited.write) = (false, true);
    let itt = other.begin(solicited).await;
    let refused = other.response().await;
    assert_eq!((refused.itt, refused.status), (itt, CONFLICT as u8));
    assert_eq!(holder.receives().await, (0, HELLO.to_vec()));

    assert_eq!(holder.reserves(ReserveAction::Clear, 1, 0).await, GOOD);
    assert_eq!(other.unit_attention().await, Some(Sense::RESERVATIONS_PREEMPTED));
    assert_eq!(holder.unit_attention().await, None);
    let (itt, r2t) = other.begins_to_send().await;
    let data = other.data_out(&r2t, vec![7; 100]);
    other.send(Pdu::DataOut(data)).await;
    assert_eq!(other.answer(itt).await.0, 0);
    assert_eq!(holder.receives().await, (0, vec![7; 64]), "as much as was asked for");
}

#[tokio::test]
async fn a_solicited_command_is_parsed_once_and_ends_in_conflict_if_it_was_preempted() {
    let unit = new_processor();
    let (_server, address) = serve(Arc::clone(&unit)).await;
    let mut one = Client::log_in(address, 1).await;
    let mut two = Client::log_in(address, 2).await;
    for client in [&mut one, &mut two] {
        client.settle().await;
    }
    assert_eq!(one.reserves(ReserveAction::Register, 0, 1).await, GOOD);
    assert_eq!(two.reserves(ReserveAction::Register, 0, 2).await, GOOD);
    let exclusive = ReservationType::ExclusiveAccess;
    assert_eq!(one.reserves(ReserveAction::Reserve(exclusive), 1, 0).await, GOOD);
    let parsed = || unit.sends_parsed.swap(0, Ordering::Relaxed);

    let (itt, r2t) = one.begins_to_send().await;
    assert_eq!(parsed(), 1);
    let data = one.data_out(&r2t, vec![7; 100]);
    one.send(Pdu::DataOut(data)).await;
    assert_eq!(one.answer(itt).await.0, GOOD as u8);
    assert_eq!(parsed(), 0, "the result was kept until the data came");
    assert_eq!(one.receives().await, (0, vec![7; 64]));

    let (itt, r2t) = one.begins_to_send().await;
    assert_eq!(two.reserves(ReserveAction::Preempt(exclusive), 2, 1).await, GOOD);
    let data = one.data_out(&r2t, vec![8; 100]);
    one.send(Pdu::DataOut(data)).await;
    let refused = one.response().await;
    assert_eq!((refused.itt, refused.status), (itt, CONFLICT as u8));
    assert_eq!(parsed(), 1);
    assert_eq!(two.receives().await, (0, vec![7; 64]), "the preempted write did nothing");
}

#[tokio::test]
async fn a_reset_of_a_unit_of_another_device_type_is_reported_to_all_sessions() {
    let (_server, address) = processor().await;
    let mut asks = Client::log_in(address, 1).await;
    let mut other = Client::log_in(address, 2).await;
    for client in [&mut asks, &mut other] {
        client.settle().await;
    }
    let reserve = PrimaryCommand::Reserve { ten: false }.encode();
    assert_eq!(other.ends(&reserve, &[]).await, (GOOD, None));
    assert_eq!(asks.ends(&RECEIVE, &[]).await.0, CONFLICT);
    asks.manage(TaskFunction::LogicalUnitReset, Lun(0), Itt::NONE).await;
    let Some(Pdu::TaskResponse(_)) = asks.receive().await else { panic!("no answer") };
    for client in [&mut asks, &mut other] {
        assert_eq!(client.unit_attention().await, Some(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED));
        assert_eq!(client.unit_attention().await, None);
    }
    // The reset has ended the reservation.
    assert_eq!(asks.receives().await, (0, Vec::new()));
}
