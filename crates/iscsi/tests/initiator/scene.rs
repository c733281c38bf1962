//! Test fixture: an initiator session. The test itself plays the target.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes};
use iscsi::{
    Cid, Itt, Pdu, Serial, Ttt,
    codec::{Decoder, Digests, PduFrame},
    keys::Parameters,
    pdu::{NopIn, Numbers, ScsiCommand, ScsiResponse},
    session::initiator::{
        CommandRequest, ConnectionTiming, DataPhase, InitiatorCommandWindow, InitiatorEvent,
        InitiatorSession, InitiatorSessionError, JoinedConnection,
    },
};
use scsi::{Cdb, Lun};

pub const SECOND: Duration = Duration::from_secs(1);

pub struct Scene {
    pub now: Instant,
    pub session: InitiatorSession,
    pub decoder: Decoder,
    pub stat_sn: u32,
}

impl Scene {
    pub fn new() -> Self {
        let parameters = Parameters {
            initial_r2t: false,
            first_burst_length: 1024,
            max_burst_length: 4096,
            max_send_data_segment_length: 1024,
            max_outstanding_r2t: 2,
            ..Parameters::default()
        };
        Self::with(parameters)
    }

    pub fn with(parameters: Parameters) -> Self {
        Self::timed(parameters, ConnectionTiming::default())
    }

    pub fn timed(parameters: Parameters, timing: ConnectionTiming) -> Self {
        let now = Instant::now();
        let first = JoinedConnection {
            cid: Cid(0),
            digests: Digests::default(),
            max_send_data_segment_length: parameters.max_send_data_segment_length,
            exp_stat_sn: Serial(7),
            exp_cmd_sn: Serial(1),
            max_cmd_sn: Serial(32),
        };
        let window = InitiatorCommandWindow::new(Serial(1), Serial(32));
        let session = InitiatorSession::new(parameters, window, 32, timing, first, now);
        let decoder = Decoder::new(65536, 1 << 20);
        Self { now, session, decoder, stat_sn: 7 }
    }

    pub fn submit(&mut self, tag: u64, transfer: DataPhase) -> ScsiCommand {
        let request = CommandRequest {
            tag,
            lun: Lun(0),
            cdb: Cdb::new(&[0x28, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            transfer,
            time_out: 30 * SECOND,
        };
        self.session.submit(request, self.now).expect("there is room");
        self.sent()
            .into_iter()
            .find_map(|pdu| if let Pdu::ScsiCommand(command) = pdu { Some(command) } else { None })
            .expect("a command")
    }

    pub fn read(&mut self, length: u32) -> Itt {
        self.submit(1, DataPhase::In(length)).itt
    }

    pub fn write(&mut self, length: usize) -> Itt {
        self.submit(2, DataPhase::Out(vec![5; length].into())).itt
    }

    /// Takes and returns the PDUs that the initiator has queued.
    pub fn sent(&mut self) -> Vec<Pdu> {
        self.session.transmit();
        let Some(output) = self.session.output(Cid(0)) else { return Vec::new() };
        let mut pdus = Vec::new();
        while !output.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); 8];
            let used = output.slices(&mut slices);
            let bytes: Vec<u8> = slices[..used].iter().flat_map(|s| s.iter().copied()).collect();
            output.advance(bytes.len());
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let mut buffer = self.decoder.buffer();
                let count = buffer.remaining_mut().min(rest.len());
                buffer.put_slice(&rest[..count]);
                rest = &rest[count..];
                while let Some(frame) = self.decoder.next().expect("we write it soundly") {
                    pdus.push(Pdu::parse(&frame.bhs, &frame.ahs, frame.data).expect("and rightly"));
                }
            }
        }
        pdus
    }

    pub fn receive(&mut self, pdu: Pdu) -> Result<(), InitiatorSessionError> {
        let (bhs, ahs, data) = pdu.encode();
        let frame = PduFrame {
            bhs,
            ahs: Bytes::copy_from_slice(&ahs),
            data: data.concat().into(),
            is_shared: false,
            data_digest_error: false,
        };
        self.session.handle_frame(Cid(0), frame, self.now)
    }

    pub fn next_status(&mut self) -> Numbers {
        self.stat_sn += 1;
        Numbers { stat_sn: Serial(self.stat_sn - 1), ..numbers() }
    }

    pub fn respond(&mut self, itt: Itt) -> ScsiResponse {
        ScsiResponse { itt, numbers: self.next_status(), ..ScsiResponse::default() }
    }

    pub fn pass(&mut self, time: Duration) -> Result<(), InitiatorSessionError> {
        self.now += time;
        self.session.handle_timeout(self.now);
        self.session.error().cloned().map_or(Ok(()), Err)
    }

    /// Lets `time` pass, takes the ping that the session sends, and answers it with this ExpCmdSN.
    pub fn answer_ping(
        &mut self,
        time: Duration,
        exp_cmd_sn: Serial,
    ) -> Result<(), InitiatorSessionError> {
        self.pass(time)?;
        let pings = self.sent();
        let [Pdu::NopOut(ping)] = &pings[..] else { panic!("{pings:?}") };
        let numbers = Numbers { exp_cmd_sn, ..self.next_status() };
        let (lun, itt, ttt) = (Lun(0), ping.itt, Ttt::NONE);
        self.receive(Pdu::NopIn(NopIn { lun, itt, ttt, numbers, data: Bytes::new() }))
    }

    pub fn event(&mut self) -> Option<InitiatorEvent> {
        self.session.poll_event()
    }
}

pub fn numbers() -> Numbers {
    Numbers { stat_sn: Serial(7), exp_cmd_sn: Serial(2), max_cmd_sn: Serial(32) }
}
