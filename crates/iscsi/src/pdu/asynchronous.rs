//! The PDU Asynchronous Message (RFC 7143, 11.9).

use bytes::Bytes;
use scsi::Lun;

use super::command::{join_sense, split_sense};
use super::header::{self, Encoded, FINAL, put_lun, put_numbers, put_u16};
use super::{Bhs, Cid, Itt, Numbers, ParseError};

/// The events that an asynchronous message reports (AsyncEvent; RFC 7143, 11.9.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AsyncEvent {
    /// Code 0: a SCSI event, whose sense data is in the data segment.
    Scsi,
    /// Code 1: the target requests that the initiator logs out this connection.
    LogoutRequested {
        /// Seconds within which the target expects the logout.
        time: u16,
    },
    /// Code 2: the target will close, or has closed, a connection.
    ConnectionDropped {
        cid: Cid,
        /// Seconds to wait before a reconnect.
        time2wait: u16,
        /// Seconds after `time2wait` for which the target keeps the tasks of the connection.
        time2retain: u16,
    },
    /// Code 3: the target will close, or has closed, all connections of the session.
    SessionDropped {
        /// Seconds to wait before a reconnect.
        time2wait: u16,
        /// Seconds after `time2wait` for which the target keeps the tasks of the session.
        time2retain: u16,
    },
    /// Code 4: the target requests a negotiation.
    NegotiationRequested {
        /// Seconds within which the target expects the negotiation.
        time: u16,
    },
    /// Code 5: another session has terminated all tasks of this session for this unit.
    TasksTerminated,
    /// A vendor specific code (248 to 255), or one that the standard does not define.
    Other(u8),
}

/// A message that the target sends without a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AsyncMessage {
    /// The unit of a SCSI event or of terminated tasks; reserved otherwise.
    pub lun: Lun,
    pub event: AsyncEvent,
    /// The sequence numbers of the message, which consumes `stat_sn`.
    pub numbers: Numbers,
    /// Sense data of a SCSI event without the SenseLength field, or vendor specific data.
    pub data: Bytes,
}

impl AsyncMessage {
    pub(super) const OPCODE: u8 = 0x32;

    pub(super) fn parse(bhs: &Bhs, data: Bytes) -> Result<Self, ParseError> {
        let event = AsyncEvent::parse(bhs);
        let data = match (event, split_sense(data)) {
            (AsyncEvent::Scsi, Some((sense, _))) => sense,
            (AsyncEvent::Scsi, None) => return Err(ParseError::Field("SenseLength")),
            (_, Some((_, event_data))) => event_data,
            // Ignore malformed event data (RFC 7143, 11.9.4).
            (_, None) => Bytes::new(),
        };
        let lun = if event.has_lun() { header::lun(bhs) } else { Lun::default() };
        Ok(Self { lun, event, numbers: header::numbers(bhs), data })
    }

    pub(super) fn encode(self) -> Encoded {
        let mut bhs = header::header(Self::OPCODE, FINAL, Itt::NONE);
        if self.event.has_lun() {
            put_lun(&mut bhs, self.lun);
        }
        put_numbers(&mut bhs, self.numbers);
        let (code, parameters) = self.event.encode();
        bhs[36] = code;
        for (at, parameter) in [38, 40, 42].into_iter().zip(parameters) {
            put_u16(&mut bhs, at, parameter);
        }
        let data = match self.event {
            _ if self.data.is_empty() => Bytes::new(),
            AsyncEvent::Scsi => join_sense(&self.data, &[]),
            _ => join_sense(&[], &self.data),
        };
        header::with_data(bhs, data)
    }
}

impl AsyncEvent {
    fn parse(bhs: &Bhs) -> Self {
        let [first, second, third] = [38, 40, 42].map(|at| header::u16_at(bhs, at));
        match bhs[36] {
            0 => Self::Scsi,
            1 => Self::LogoutRequested { time: third },
            2 => Self::ConnectionDropped { cid: Cid(first), time2wait: second, time2retain: third },
            3 => Self::SessionDropped { time2wait: second, time2retain: third },
            4 => Self::NegotiationRequested { time: third },
            5 => Self::TasksTerminated,
            code => Self::Other(code),
        }
    }

    /// Returns AsyncEvent (the code of the event) and the fields Parameter1 to Parameter3.
    fn encode(self) -> (u8, [u16; 3]) {
        match self {
            Self::Scsi => (0, [0; 3]),
            Self::LogoutRequested { time } => (1, [0, 0, time]),
            Self::ConnectionDropped { cid, time2wait, time2retain } => {
                (2, [cid.0, time2wait, time2retain])
            }
            Self::SessionDropped { time2wait, time2retain } => (3, [0, time2wait, time2retain]),
            Self::NegotiationRequested { time } => (4, [0, 0, time]),
            Self::TasksTerminated => (5, [0; 3]),
            Self::Other(code) => (code, [0; 3]),
        }
    }

    /// Returns true if the event is about a unit. The LUN field is reserved otherwise.
    fn has_lun(self) -> bool {
        matches!(self, Self::Scsi | Self::TasksTerminated)
    }
}
