//! Commands of a session as PDUs: each with its Data-Out, its Data-In and its status.

use bytes::Bytes;
use iscsi::pdu::{DataIn, Numbers, ScsiCommand, ScsiResponse};
use iscsi::{Itt, Pdu, Serial, Ttt};
use scsi::{Cdb, Lun, inquiry::StandardInquiry};

use crate::capture::{Capture, Sender};

/// A command, and the drive's answer to it.
#[derive(Clone, Debug, Default)]
pub struct Exchange {
    pub cdb: Vec<u8>,
    /// The Data-Out buffer, which is sent with the command as immediate data.
    pub data_out: Vec<u8>,
    /// The Data-In buffer. The command says that the initiator expects this length.
    pub data_in: Vec<u8>,
    pub status: u8,
    pub sense: Vec<u8>,
}

/// A capture of a session with an object drive. The first command is an INQUIRY, from whose answer
/// Wireshark learns the type of the logical unit.
pub struct Session {
    pub capture: Capture,
    next: u32,
}

impl Session {
    pub fn new() -> Self {
        let mut session = Self { capture: Capture::new(), next: 1 };
        let text = StandardInquiry::object_storage(*b"FOREBAY ", *b"OSD             ", *b"0001");
        let data_in = text.to_bytes().to_vec();
        let cdb = vec![0x12, 0, 0, 0, data_in.len() as u8, 0];
        session.perform(&Exchange { cdb, data_in, ..Exchange::default() });
        session
    }

    /// Adds the PDUs of a command to the capture. Returns the number of the command's frame.
    pub fn perform(&mut self, exchange: &Exchange) -> usize {
        let number = self.next;
        self.next += 1;
        let (out, back) = (exchange.data_out.len() as u32, exchange.data_in.len() as u32);
        let both = out > 0 && back > 0;
        let command = ScsiCommand {
            is_final: true,
            read: back > 0,
            write: out > 0,
            attribute: 1,
            lun: Lun(0),
            itt: Itt(number),
            expected_data_transfer_length: if out > 0 { out } else { back },
            cmd_sn: Serial(number),
            exp_stat_sn: Serial(number),
            cdb: Cdb::new(&exchange.cdb),
            bidirectional_read_length: both.then_some(back),
            data: Bytes::copy_from_slice(&exchange.data_out),
            ..ScsiCommand::default()
        };
        let frame = self.capture.send(Sender::Initiator, Pdu::ScsiCommand(command));
        let numbers = Numbers {
            stat_sn: Serial(number),
            exp_cmd_sn: Serial(number + 1),
            max_cmd_sn: Serial(number + 32),
        };
        if back > 0 {
            self.data_in(number, numbers, &exchange.data_in);
        }
        let response = ScsiResponse {
            itt: Itt(number),
            status: exchange.status,
            numbers,
            exp_data_sn: u32::from(back > 0),
            sense: Bytes::copy_from_slice(&exchange.sense),
            ..ScsiResponse::default()
        };
        self.capture.send(Sender::Target, Pdu::ScsiResponse(response));
        frame
    }

    fn data_in(&mut self, number: u32, numbers: Numbers, data: &[u8]) {
        let data_in = DataIn {
            is_final: true,
            acknowledge: false,
            status: None,
            lun: Lun(0),
            itt: Itt(number),
            ttt: Ttt(u32::MAX),
            numbers: Numbers { stat_sn: Serial(0), ..numbers },
            data_sn: 0,
            buffer_offset: 0,
            data: [Bytes::copy_from_slice(data)].into_iter().collect(),
        };
        self.capture.send(Sender::Target, Pdu::DataIn(data_in));
    }
}
