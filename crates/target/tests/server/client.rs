//! A small initiator that sends what a test specifies, and units that tests can inspect.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use iscsi::{
    Cid, Isid, Itt, Pdu, Serial, Tsih, Ttt,
    codec::{Decoder, Digests, PduOutput},
    keys::NegotiationOffer,
    login::{InitiatorLogin, InitiatorNames, InitiatorStep, LoginFailure},
    pdu::{
        DataOut, LoginStatus, NopIn, NopOut, ReadyToTransfer, ScsiCommand, ScsiResponse,
        TaskFunction, TaskRequest, TextRequest,
    },
};
use parking_lot::Mutex;
use scsi::{AdmittedCommand, Cdb, Lun, Sense};
use target::{Settings, Target, TargetServer};
use tokio::{net::TcpStream, runtime::Handle, sync::Notify, time::timeout};
use transport::{ConnectionStream, Received, SendProgress, receive, send};
use unit::{
    AttentionChange, BlockUnit, Completion, LogicalUnit, Nexus, Task, TaskManagement, UnitIdentity,
    UnitReply,
};
use volume::{Data, Geometry, MemVolume};

pub const TARGET: &str = "iqn.2026-11.io.forebay:node";
/// The loopback address with port 0, which stands for any free port.
pub const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The time after which a step of a test counts as hanging; each step takes much less.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for an event that must happen; fails the test if it takes too long.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("this hangs")
}

/// Lets other tasks run until `holds` returns true. Fails the test if that takes too long.
pub async fn until(holds: impl Fn() -> bool) {
    soon(async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub fn memory() -> Arc<dyn LogicalUnit> {
    let volume = Arc::new(MemVolume::new(Geometry::with_blocks(16 * 2048)));
    Arc::new(BlockUnit::new(volume, UnitIdentity::new("test"), unit::Settings::default()))
}

pub async fn server(settings: Settings, unit: Arc<dyn LogicalUnit>) -> (TargetServer, SocketAddr) {
    let target = Target::new(TARGET, vec![(0, unit)]);
    let server = TargetServer::new(settings, vec![target]).unwrap();
    let address = server.listen(LOOPBACK).await.unwrap();
    (server, address)
}

pub struct Client {
    stream: ConnectionStream,
    decoder: Decoder,
    output: PduOutput,
    digests: Digests,
    /// Number of the next command; shared by all connections of a session.
    pub cmd_sn: Serial,
    /// The StatSN up to which all responses have arrived.
    pub exp_stat_sn: Serial,
    pub tsih: Tsih,
    itt: u32,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::on(soon(TcpStream::connect(address)).await.unwrap())
    }

    /// Makes a client of an open connection that has not logged in.
    pub fn on(stream: impl Into<ConnectionStream>) -> Self {
        Self {
            stream: stream.into(),
            decoder: Decoder::new(65_536, 262_144),
            output: PduOutput::default(),
            digests: Digests::default(),
            cmd_sn: Serial(1),
            exp_stat_sn: Serial(0),
            tsih: Tsih(0),
            itt: 0,
        }
    }

    /// Returns the socket, for data that is not a PDU.
    pub fn socket(&mut self) -> &mut TcpStream {
        match &mut self.stream {
            ConnectionStream::Plain(tcp) => tcp.stream_mut(),
            ConnectionStream::Tls(_) | ConnectionStream::Compressed(_) => panic!("not through TLS"),
        }
    }

    /// Logs in as initiator number `who`.
    pub async fn log_in(address: SocketAddr, who: u8) -> Self {
        Self::try_log_in(address, who, NegotiationOffer::initiator(), Tsih(0), Some(TARGET))
            .await
            .unwrap()
    }

    pub async fn try_log_in(
        address: SocketAddr,
        who: u8,
        offer: NegotiationOffer,
        tsih: Tsih,
        target: Option<&str>,
    ) -> Result<Self, LoginFailure> {
        let client = Self::connect(address).await;
        let login = login(who, offer, tsih, target, Cid(1), client.cmd_sn);
        client.run(login).await
    }

    /// Logs in with a new connection to the session of this client, with the present command number.
    pub async fn try_join(
        &self,
        address: SocketAddr,
        who: u8,
        offer: NegotiationOffer,
        cid: Cid,
    ) -> Result<Self, LoginFailure> {
        let mut client = Self::connect(address).await;
        client.cmd_sn = self.cmd_sn;
        client.itt = u32::from(cid.0) << 16;
        let login = login(who, offer, self.tsih, Some(TARGET), cid, self.cmd_sn);
        client.run(login).await
    }

    /// Performs the login on this connection. Returns the client, which can then send commands.
    pub async fn run(mut self, mut login: InitiatorLogin) -> Result<Self, LoginFailure> {
        let mut request = login.start();
        loop {
            self.send(Pdu::LoginRequest(request)).await;
            let Some(Pdu::LoginResponse(response)) = self.receive().await else {
                panic!("no login response");
            };
            match login.handle_response(response) {
                InitiatorStep::Send(next) => request = next,
                InitiatorStep::Established(established) => {
                    self.digests = established.parameters.digests;
                    (self.tsih, self.exp_stat_sn) = (established.tsih, established.exp_stat_sn);
                    self.decoder.configure(65_536, 262_144, self.digests);
                    return Ok(self);
                }
                InitiatorStep::Failed(failure) => return Err(failure),
                step => panic!("{step:?}"),
            }
        }
    }

    pub async fn send(&mut self, pdu: Pdu) {
        self.output.push(pdu, self.digests);
        while send(&mut self.stream, &mut self.output).unwrap() == SendProgress::Blocked {
            soon(self.stream.writable()).await.unwrap();
        }
    }

    /// Returns the next PDU; `None` if the target has closed the connection.
    pub async fn receive(&mut self) -> Option<Pdu> {
        loop {
            if let Some(frame) = self.decoder.next().unwrap() {
                assert!(!frame.data_digest_error);
                let pdu = Pdu::parse(&frame.bhs, &frame.ahs, frame.data).unwrap();
                self.note_status(&pdu);
                return Some(pdu);
            }
            match receive(&mut self.stream, &mut self.decoder) {
                Ok(Received::Bytes(_)) => {}
                Ok(Received::Nothing) => soon(self.stream.readable()).await.unwrap(),
                Ok(Received::Closed) | Err(_) => return None,
            }
        }
    }

    fn note_status(&mut self, pdu: &Pdu) {
        let numbers = match pdu {
            Pdu::ScsiResponse(pdu) => pdu.numbers,
            Pdu::DataIn(pdu) if pdu.status.is_some() => pdu.numbers,
            Pdu::TaskResponse(pdu) => pdu.numbers,
            Pdu::LogoutResponse(pdu) => pdu.numbers,
            Pdu::Async(pdu) => pdu.numbers,
            _ => return,
        };
        self.exp_stat_sn = numbers.stat_sn.next();
    }

    pub async fn send_targets(&mut self, which: &str) -> String {
        let request = TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: Lun(0),
            itt: self.next_itt(),
            ttt: Ttt::NONE,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial(1),
            text: format!("SendTargets={which}\0").into(),
        };
        self.send(Pdu::TextRequest(request)).await;
        let Some(Pdu::TextResponse(response)) = self.receive().await else { panic!("no text") };
        String::from_utf8(response.text.to_vec()).unwrap()
    }

    pub fn next_itt(&mut self) -> Itt {
        self.itt += 1;
        Itt(self.itt)
    }

    pub fn command(&mut self, cdb: &[u8], expected: u32) -> ScsiCommand {
        let mut padded = [0; 16];
        padded[..cdb.len()].copy_from_slice(cdb);
        let cmd_sn = self.cmd_sn;
        self.cmd_sn = cmd_sn.next();
        ScsiCommand {
            is_final: true,
            read: true,
            attribute: 1,
            lun: Lun(0),
            itt: self.next_itt(),
            expected_data_transfer_length: expected,
            cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            cdb: Cdb::new(&padded),
            ..Default::default()
        }
    }

    /// Executes a command that returns data. Returns its status and this data.
    pub async fn read(&mut self, command: ScsiCommand) -> (u8, Vec<u8>) {
        let itt = self.begin(command).await;
        self.answer(itt).await
    }

    /// Waits for the response to the command `itt`. Returns its status and its data.
    pub async fn answer(&mut self, itt: Itt) -> (u8, Vec<u8>) {
        let mut data = Vec::new();
        loop {
            match self.receive().await.expect("open") {
                Pdu::DataIn(data_in) if data_in.itt == itt => {
                    data.extend(data_in.data.concat());
                    if let Some(status) = data_in.status {
                        return (status.status, data);
                    }
                }
                Pdu::ScsiResponse(response) if response.itt == itt => {
                    return (response.status, data);
                }
                pdu => panic!("{pdu:?}"),
            }
        }
    }

    /// Sends a command, and returns its task tag without waiting for the response.
    pub async fn begin(&mut self, command: ScsiCommand) -> Itt {
        let itt = command.itt;
        self.send(Pdu::ScsiCommand(command)).await;
        itt
    }

    /// Takes the unit attention condition of a new nexus.
    pub async fn settle(&mut self) {
        loop {
            let command = self.command(&[0], 0);
            if self.read(command).await.0 == 0 {
                return;
            }
        }
    }

    /// Sends a command without data, and returns its task tag without waiting for the response.
    pub async fn start(&mut self, cdb: &[u8]) -> Itt {
        let command = self.command(cdb, 0);
        self.begin(command).await
    }

    /// Returns a Data-Out PDU with data that an R2T asked for.
    pub fn data_out(&self, r2t: &ReadyToTransfer, data: impl Into<Bytes>) -> DataOut {
        DataOut {
            is_final: true,
            lun: r2t.lun,
            itt: r2t.itt,
            ttt: r2t.ttt,
            exp_stat_sn: self.exp_stat_sn,
            data_sn: 0,
            buffer_offset: r2t.buffer_offset,
            data: data.into(),
        }
    }

    /// Returns all R2Ts for the commands sent so far. Sends a ping and collects R2Ts until its answer, which arrives
    /// after them.
    pub async fn asked(&mut self) -> Vec<ReadyToTransfer> {
        let ping = NopOut {
            immediate: true,
            lun: Lun(0),
            itt: self.next_itt(),
            ttt: Ttt::NONE,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            data: Bytes::new(),
        };
        self.send(Pdu::NopOut(ping)).await;
        let mut r2ts = Vec::new();
        loop {
            match self.receive().await {
                Some(Pdu::ReadyToTransfer(r2t)) => r2ts.push(r2t),
                Some(Pdu::NopIn(_)) => return r2ts,
                pdu => panic!("{pdu:?}"),
            }
        }
    }

    pub async fn answer_ping(&mut self, ping: &NopIn) {
        let answer = NopOut {
            immediate: true,
            lun: ping.lun,
            itt: Itt::NONE,
            ttt: ping.ttt,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            data: Bytes::new(),
        };
        self.send(Pdu::NopOut(answer)).await;
    }

    pub async fn manage(&mut self, function: TaskFunction, lun: Lun, meant: Itt) {
        let itt = self.next_itt();
        let request = TaskRequest {
            immediate: true,
            function: Ok(function),
            lun,
            itt,
            referenced_itt: meant,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: Serial(0),
            ref_cmd_sn: Serial(0),
            exp_data_sn: 0,
        };
        self.send(Pdu::TaskRequest(request)).await;
    }

    /// Receives the response to a command that returns no data.
    pub async fn response(&mut self) -> ScsiResponse {
        match self.receive().await {
            Some(Pdu::ScsiResponse(response)) => response,
            pdu => panic!("{pdu:?}"),
        }
    }
}

pub fn login(
    who: u8,
    offer: NegotiationOffer,
    tsih: Tsih,
    target: Option<&str>,
    cid: Cid,
    cmd_sn: Serial,
) -> InitiatorLogin {
    let names = InitiatorNames {
        initiator_name: format!("iqn.2026-11.io.forebay:initiator-{who}"),
        initiator_alias: None,
        target_name: target.map(str::to_owned),
    };
    let isid = Isid([0x80, 0, 0, 0, 0, who]);
    InitiatorLogin::new(offer, names, isid, tsih, cid, cmd_sn)
}

pub fn refused(failure: LoginFailure) -> LoginStatus {
    match failure {
        LoginFailure::Refused(status) => status,
        failure => panic!("{failure:?}"),
    }
}

/// A logical unit whose commands wait until the test releases them.
#[derive(Default)]
pub struct Stalling {
    /// Number of commands in progress: those that were neither answered nor aborted, so that their futures still exist.
    pub alive: Arc<AtomicUsize>,
    pub go: Notify,
    pub functions: Mutex<Vec<TaskManagement>>,
    /// Unit attention conditions that were raised for the nexuses of this unit.
    pub attentions: Mutex<Vec<Sense>>,
    pub nexuses: AtomicUsize,
    /// While a test holds this, the end of a nexus takes 200 ms; the test needs several threads.
    pub slow_end: tokio::sync::Mutex<()>,
    /// The Data-In with which every command completes.
    pub data: Mutex<Data>,
}

struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Stalling {
    pub fn alive(&self) -> usize {
        self.alive.load(Ordering::SeqCst)
    }
}

impl LogicalUnit for Stalling {
    fn execute(&self, _: Task) -> UnitReply<'_> {
        self.alive.fetch_add(1, Ordering::SeqCst);
        let alive = Alive(self.alive.clone());
        UnitReply::new(async move {
            let _alive = alive;
            self.go.notified().await;
            Completion::good(self.data.lock().clone())
        })
    }

    fn admit(&self, _: &Nexus, _: &Cdb, _: u32) -> Result<Option<AdmittedCommand>, Completion> {
        Ok(None)
    }

    fn task_management(&self, _: &Nexus, function: TaskManagement) {
        self.functions.lock().push(function);
    }

    fn nexus_opened(&self, _: &Nexus) {
        self.nexuses.fetch_add(1, Ordering::SeqCst);
    }

    fn change_attention(&self, _: &Nexus, condition: Sense, change: AttentionChange) {
        if change == AttentionChange::Raise {
            self.attentions.lock().push(condition);
        }
    }

    fn nexus_closed(&self, _: &Nexus) {
        if self.slow_end.try_lock().is_err() {
            let end = timeout(Duration::from_millis(200), self.slow_end.lock());
            tokio::task::block_in_place(|| Handle::current().block_on(end).is_ok());
        }
        self.nexuses.fetch_sub(1, Ordering::SeqCst);
    }
}
