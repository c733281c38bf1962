//! What two nodes say to each other of a volume that moves.

use ::names::{Gln, NodeName, VolumeName};
use bytes::{Buf, BufMut, Bytes};
use serde::{Deserialize, Serialize};

use super::{record::MoveId, volume_description::Described};
use crate::failure::Failure;

/// One thing that is said.
#[derive(Clone, Debug, PartialEq)]
pub enum MoveFrame {
    /// By who called.
    Request(MoveRequest),
    /// By who was called.
    Answer(MoveResponse),
    /// Blocks of the volume.
    Write { lba: u64, data: Bytes },
    /// Blocks that are zeros.
    Zeros { lba: u64, blocks: u32 },
    /// A record that its unit keeps.
    Record { name: String, bytes: Bytes },
}

/// What the node that has the volume asks, and the last by the one that it goes to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveRequest {
    /// Take this volume. Blocks follow; nothing counts before `Prepare`.
    Begin {
        /// Whom this is for.
        to: Gln,
        /// Who asks.
        from: Gln,
        /// What people call the one who asks.
        from_node: NodeName,
        /// The move.
        id: MoveId,
        /// What comes.
        volume: Box<Described>,
    },
    /// Make stable what was sent until now, and say when it is.
    Flush,
    /// This was all: keep it until you hear what becomes of it.
    Prepare,
    /// It is yours.
    Commit,
    /// What has become of this move of yours?
    Ask {
        /// Whom this is for.
        to: Gln,
        /// The move.
        id: MoveId,
        /// What moved.
        volume: VolumeName,
    },
}

/// What is answered.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveResponse {
    /// It is taken; with `Prepare`, it is kept, and with `Commit` served.
    Done,
    /// It is kept; initiators are to be sent there once it is decided.
    Kept {
        /// `host:port`.
        redirect: String,
    },
    /// It is not, and the move ends.
    Refused(Failure),
    /// What has become of a move.
    Fate(MoveOutcome),
}

/// What the node that a volume leaves has decided.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveOutcome {
    /// It is not here any more: it is yours.
    Yours,
    /// It is here, and stays: throw the copy away.
    Undone,
    /// Ask again.
    Undecided,
    /// Nothing is known of such a move: what was kept of it is lost, or older than it.
    Unknown,
}

const REQUEST: u8 = 1;
const ANSWER: u8 = 2;
const WRITE: u8 = 3;
const ZEROS: u8 = 4;
const RECORD: u8 = 5;

impl MoveFrame {
    /// As it is sealed, with room for the proof behind it.
    pub fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let json = |kind: u8, json: Vec<u8>| [&[kind], &json[..]].concat();
        Ok(match self {
            Self::Request(request) => json(REQUEST, serde_json::to_vec(request)?),
            Self::Answer(answer) => json(ANSWER, serde_json::to_vec(answer)?),
            Self::Write { lba, data } => {
                let mut bytes = Vec::with_capacity(data.len() + 32);
                bytes.push(WRITE);
                bytes.put_u64(*lba);
                bytes.extend_from_slice(data);
                bytes
            }
            Self::Zeros { lba, blocks } => {
                let mut bytes = vec![ZEROS];
                bytes.put_u64(*lba);
                bytes.put_u32(*blocks);
                bytes
            }
            Self::Record { name, bytes: record } => {
                let mut bytes = vec![RECORD, name.len() as u8];
                bytes.extend_from_slice(name.as_bytes());
                bytes.extend_from_slice(record);
                bytes
            }
        })
    }

    /// What was sealed; `None` if it is nothing of the kind.
    pub fn parse(bytes: Vec<u8>) -> Option<Self> {
        let mut bytes = Bytes::from(bytes);
        let kind = bytes.try_get_u8().ok()?;
        Some(match kind {
            REQUEST => Self::Request(serde_json::from_slice(&bytes).ok()?),
            ANSWER => Self::Answer(serde_json::from_slice(&bytes).ok()?),
            WRITE => Self::Write { lba: bytes.try_get_u64().ok()?, data: bytes },
            ZEROS => {
                let (lba, blocks) = (bytes.try_get_u64().ok()?, bytes.try_get_u32().ok()?);
                bytes.is_empty().then_some(Self::Zeros { lba, blocks })?
            }
            RECORD => {
                let length = usize::from(bytes.try_get_u8().ok()?);
                let name = (length <= bytes.len()).then(|| bytes.split_to(length))?;
                Self::Record { name: String::from_utf8(name.to_vec()).ok()?, bytes }
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_byte_by_byte_and_back() {
        let frames = [
            (MoveFrame::Zeros { lba: 1, blocks: 2 }, &b"\x04\0\0\0\0\0\0\0\x01\0\0\0\x02"[..]),
            (
                MoveFrame::Write { lba: 258, data: Bytes::from_static(b"ab") },
                b"\x03\0\0\0\0\0\0\x01\x02ab",
            ),
            (
                MoveFrame::Record { name: "claim".into(), bytes: Bytes::from_static(b"x") },
                b"\x05\x05claimx",
            ),
            (MoveFrame::Request(MoveRequest::Prepare), b"\x01\"prepare\""),
            (
                MoveFrame::Answer(MoveResponse::Fate(MoveOutcome::Yours)),
                b"\x02{\"fate\":\"yours\"}",
            ),
        ];
        for (frame, bytes) in frames {
            assert_eq!(frame.encode().unwrap(), bytes);
            assert_eq!(MoveFrame::parse(bytes.to_vec()), Some(frame));
        }
        for wrong in [
            &b""[..],
            b"\x01x",
            b"\x03abc",
            b"\x04\0\0\0\0\0\0\0\x01\0\0\0\x02\0",
            b"\x05\x09claim",
            b"\x09",
        ] {
            assert_eq!(MoveFrame::parse(wrong.to_vec()), None, "{wrong:?}");
        }
    }
}
