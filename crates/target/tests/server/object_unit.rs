//! Tests a unit of the device type of object storage devices (11h), with commands of 236 bytes. The unit stores nothing:
//! object READ returns zeros, CREATE fails, and no other command of OSD-2 is known.

use std::{net::SocketAddr, sync::Arc};

use iscsi::{
    Pdu,
    pdu::{ScsiCommand, ScsiResponse},
};
use scsi::{
    AdmittedCommand, Cdb, Command, CommandCode, ObjectIdentification, ObjectSense,
    OperationCodeEntry, OperationRow, OperationTable, ParsedCommand, PrimaryCommand,
    ReceivedObjectSense, ScsiStatus, Sense, VARIABLE_LENGTH_CDB,
    inquiry::{StandardInquiry, ascii},
    unknown_operation,
    vpd::SupportedPages,
};
use target::{CommandKind, Settings, TargetServer};
use unit::{
    AttentionChange, Completion, DeviceCommand, DeviceType, LogicalUnit, Nexus,
    PrimaryCommandInput, PrimaryUnit, ReservationEffect, Task, TaskManagement, TaskTurn,
    UnitAbilities, UnitIdentity, UnitReply,
    gate::{self, GatedDevice},
};

use crate::client::{Client, server};

const CDB_BYTES: usize = 236;
const CREATE: u16 = 0x8882;
const READ: u16 = 0x8885;
/// VPD pages of type 11h: OSD Information and Security Token.
const OSD_INFORMATION: u8 = 0xb0;
const SECURITY_TOKEN: u8 = 0xb1;

static USAGE: [u8; CDB_BYTES] = {
    let mut usage = [0xff; CDB_BYTES];
    (usage[0], usage[1]) = (VARIABLE_LENGTH_CDB, 0x04);
    usage
};

struct Objects(PrimaryUnit);

#[derive(Clone, Copy, Debug)]
enum ObjectCommand {
    Primary(PrimaryCommand),
    Create,
    Read { length: u8 },
}

static OBJECT_COMMANDS: OperationTable<ObjectCommand> = OperationTable::new(&[
    OperationRow::new(entry(CREATE), |_| Ok(ObjectCommand::Create)),
    OperationRow::new(entry(READ), |cdb| Ok(ObjectCommand::Read { length: cdb[39] })),
]);

const fn entry(action: u16) -> OperationCodeEntry {
    OperationCodeEntry::variable_length(action, &USAGE, 1, 30)
}

impl DeviceCommand for ObjectCommand {
    fn primary(&self) -> Option<&PrimaryCommand> {
        match self {
            Self::Primary(command) => Some(command),
            _ => None,
        }
    }

    fn effect(&self) -> ReservationEffect {
        match self {
            Self::Primary(command) => command.effect(),
            Self::Create => ReservationEffect::Changes,
            Self::Read { .. } => ReservationEffect::Reads,
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

impl GatedDevice for Objects {
    type Command = ObjectCommand;

    fn parse(&self, cdb: &[u8]) -> Result<ObjectCommand, Sense> {
        if let Some(own) = OBJECT_COMMANDS.parse(cdb) {
            return own;
        }
        let has_opcode =
            |opcode| OBJECT_COMMANDS.has_opcode(opcode) || PrimaryCommand::has_opcode(opcode);
        let primary = PrimaryCommand::parse_known(cdb);
        let unknown = || unknown_operation(cdb, has_opcode);
        Ok(ObjectCommand::Primary(primary.unwrap_or_else(|| Err(unknown()))?))
    }
}

impl DeviceType for Objects {
    fn inquiry(&self) -> StandardInquiry {
        StandardInquiry::object_storage(ascii("TEST"), ascii("OBJECTS"), ascii("1"))
    }

    fn vpd_pages(&self) -> Vec<u8> {
        vec![OSD_INFORMATION, SECURITY_TOKEN]
    }

    fn vpd_page(&self, page: u8) -> Option<Vec<u8>> {
        let is_own = [OSD_INFORMATION, SECURITY_TOKEN].contains(&page);
        is_own.then(|| vec![0, page, 0, 2, 0xca, 0xfe])
    }

    fn operations(&self) -> Vec<&'static OperationCodeEntry> {
        let mut all: Vec<_> = self.0.operations().chain(OBJECT_COMMANDS.entries()).collect();
        all.sort_by_key(|operation| (operation.opcode, operation.service_action));
        all
    }
}

/// Returns the sense data of CREATE, with all descriptors of object storage devices.
fn failure() -> (Sense, ObjectSense) {
    let object =
        ObjectIdentification { partition: 0x1_0000, object: 0x1_0001, ..Default::default() };
    let descriptors = ObjectSense {
        object: Some(object),
        response_integrity: Some([0xab; 32]),
        attributes: vec![(1, 0x82)],
    };
    (Sense::invalid_field_in_cdb(24), descriptors)
}

impl Objects {
    fn start<'a>(&'a self, task: Task, turn: TaskTurn<'a>) -> Result<UnitReply<'a>, Completion> {
        match gate::begin(&self.0, self, &task)? {
            ObjectCommand::Primary(command) => {
                let input = PrimaryCommandInput { nexus: task.nexus, data: task.data_out, turn };
                self.0.start(self, &command, input)
            }
            ObjectCommand::Create => {
                let (sense, descriptors) = failure();
                let object_sense = Some(Box::new(descriptors));
                Err(Completion { object_sense, ..Completion::check_condition(sense) })
            }
            ObjectCommand::Read { length } => {
                Err(Completion::good(vec![0; usize::from(length)].into()))
            }
        }
    }
}

impl LogicalUnit for Objects {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        self.0.in_turn(task, |task, turn| self.start(task, turn))
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &Cdb,
        _: u32,
    ) -> Result<Option<AdmittedCommand>, Completion> {
        gate::admit(&self.0, self, nexus, cdb).map(|(_, admitted)| Some(admitted))
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        self.0.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.0.nexus_opened(nexus);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.0.nexus_closed(nexus);
    }

    fn change_attention(&self, nexus: &Nexus, condition: Sense, change: AttentionChange) {
        self.0.change_attention(nexus, condition, change);
    }

    fn abilities(&self) -> UnitAbilities<'_> {
        UnitAbilities { descriptor_sense_only: true, ..UnitAbilities::default() }
    }
}

async fn serve() -> (TargetServer, SocketAddr) {
    let unit = Objects(PrimaryUnit::new(UnitIdentity::new("objects")));
    server(Settings::default(), Arc::new(unit)).await
}

fn cdb(action: u16, length: u8) -> Cdb {
    let mut cdb = [0; CDB_BYTES];
    (cdb[0], cdb[7], cdb[39]) = (VARIABLE_LENGTH_CDB, (CDB_BYTES - 8) as u8, length);
    cdb[8..10].copy_from_slice(&action.to_be_bytes());
    Cdb::new(&cdb)
}

impl Client {
    async fn object_read(&mut self, length: u8) -> (u8, Vec<u8>) {
        let command = self.command(&[], u32::from(length));
        self.read(ScsiCommand { cdb: cdb(READ, length), ..command }).await
    }

    async fn fails(&mut self, cdb: Cdb) -> ScsiResponse {
        let command = self.command(&[], 0);
        self.send(Pdu::ScsiCommand(ScsiCommand { cdb, ..command })).await;
        let response = self.response().await;
        assert_eq!(response.status, ScsiStatus::CheckCondition as u8);
        response
    }

    async fn data_of(&mut self, command: PrimaryCommand) -> Vec<u8> {
        let command = self.command(&command.encode(), 4096);
        let (status, data) = self.read(command).await;
        assert_eq!(status, 0);
        data
    }

    async fn inquiry(&mut self, page: Option<u8>) -> Vec<u8> {
        self.data_of(PrimaryCommand::Inquiry { page, allocation_length: 255 }).await
    }
}

#[tokio::test]
async fn sense_data_of_an_object_unit_has_descriptor_format_and_its_descriptors() {
    let (_server, address) = serve().await;
    let mut client = Client::log_in(address, 1).await;
    // The first command of the nexus is answered with the unit attention condition of the power on.
    let attention = client.fails(cdb(CREATE, 0)).await.sense;
    assert_eq!(attention[..4], [0x72, 6, 0x29, 0]);
    let sense = client.fails(cdb(CREATE, 0)).await.sense;
    let (expected, descriptors) = failure();
    assert_eq!(Sense::from_bytes(&sense), Some(expected));
    let received = ReceivedObjectSense::from_bytes(&sense).expect("descriptors of objects");
    assert_eq!(received.descriptors, descriptors);
    // Sense data that the target itself creates must have descriptor format, too.
    let unknown = client.fails(cdb(0x8805, 0)).await.sense;
    assert_eq!(unknown[0], 0x72);
    assert_eq!(Sense::from_bytes(&unknown), Some(Sense::invalid_field_in_cdb(8)));
    let fixed = PrimaryCommand::RequestSense { descriptor_format: false, allocation_length: 252 };
    assert_eq!(client.data_of(fixed).await[..8], [0x72, 0, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test]
async fn an_object_unit_reports_its_type_its_pages_and_its_commands() {
    let (server, address) = serve().await;
    let mut client = Client::log_in(address, 1).await;
    client.settle().await;
    let inquiry = StandardInquiry::from_bytes(&client.inquiry(None).await).unwrap();
    assert_eq!(inquiry.device_type, 0x11);
    assert_eq!(inquiry.version_descriptors[..5], [0xa0, 0x960, 0x460, 0x440, 0]);
    let pages = SupportedPages::from_bytes(&client.inquiry(Some(0)).await).unwrap();
    assert_eq!(pages.0, [0x00, 0x80, 0x83, 0x88, 0xb0, 0xb1]);
    assert_eq!(client.inquiry(Some(OSD_INFORMATION)).await, [0x11, 0xb0, 0, 2, 0xca, 0xfe]);

    // REPORT SUPPORTED OPERATION CODES with the service action of object READ, of 16 bits.
    let asked = [0xa3, 0x0c, 0x02, 0x7f, 0x88, 0x85, 0, 0, 4, 0, 0, 0];
    let asked = client.command(&asked, 1024);
    let (_, one) = client.read(asked).await;
    assert_eq!((&one[..4], &one[4..]), (&[0, 3, 0, 236][..], &USAGE[..]));
    let all = client.command(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 4, 0], 1024);
    let (_, all) = client.read(all).await;
    let objects: Vec<_> = all[4..].chunks_exact(8).filter(|one| one[0] == 0x7f).collect();
    assert_eq!(objects, [[0x7f, 0, 0x88, 0x82, 0, 1, 0, 236], [0x7f, 0, 0x88, 0x85, 0, 1, 0, 236]]);

    for _ in 0..16 {
        assert_eq!(client.object_read(100).await, (0, vec![0; 100]));
    }
    let statistics = server.statistics();
    let read = CommandCode::VariableLength(READ);
    assert!(statistics.commands.contains(&(read, 16)), "{:?}", statistics.commands);
    let (_, reads) = &statistics.times[CommandKind::Read as usize];
    assert_eq!(reads.count(), 16, "one of 16 is measured");
}
