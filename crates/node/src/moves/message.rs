//! The messages of two nodes about a volume that moves.

use ::names::{Gln, NodeName, VolumeName};
use bytes::{Buf, BufMut, Bytes};
use control::Failure;
use serde::{Deserialize, Serialize};

use super::{record::MoveId, volume_description::Described};

/// A message on the channel between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum MoveFrame {
    /// A request of the node that has connected.
    Request(MoveRequest),
    /// The other node's response to a request.
    Answer(MoveResponse),
    /// The content of blocks of the volume, from the block `lba` on.
    Write { lba: u64, data: Bytes },
    /// Tells that `blocks` blocks of the volume, from the block `lba` on, are all zeros.
    Zeros { lba: u64, blocks: u32 },
    /// A record of the unit's state, such as its reservations.
    Record { name: String, bytes: Bytes },
}

/// A request between the nodes of a move. The destination sends `Ask`, the source all others.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveRequest {
    /// Asks the node to accept this volume. If the node accepts, the blocks follow. Without a later `Prepare` the copy
    /// is incomplete and is discarded.
    Begin {
        /// The GLN of the destination node.
        to: Gln,
        /// The GLN of the source node.
        from: Gln,
        from_node: NodeName,
        id: MoveId,
        volume: Box<Described>,
    },
    /// Asks the node to make all data stable that was sent before, and to answer then.
    Flush,
    /// The copy is complete: the node has to keep it until it knows the outcome.
    Prepare,
    /// Makes the receiving node the owner of the volume.
    Commit,
    Ask {
        /// The GLN of the source node.
        to: Gln,
        id: MoveId,
        volume: VolumeName,
    },
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveResponse {
    /// The request is done: the volume is accepted, the data is stable, or the volume is served.
    Done,
    /// The answer to `Prepare`: the destination keeps its copy of the volume until the source decides about the move.
    Kept {
        /// The address, as `host:port`, to which the source redirects initiators after a decision for the move.
        redirect: String,
    },
    /// The request is refused, and the move ends.
    Refused(Failure),
    Fate(MoveOutcome),
}

/// The decision of the source node about a move.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MoveOutcome {
    /// The volume has moved and belongs to the destination.
    Yours,
    /// The move has not taken place: the volume stays at the source, and the destination discards its copy.
    Undone,
    /// The source has not decided yet whether the move takes place: the destination asks again.
    Undecided,
    /// The source node does not know the move: its record is lost, or older than the move.
    Unknown,
}

const REQUEST: u8 = 1;
const ANSWER: u8 = 2;
const WRITE: u8 = 3;
const ZEROS: u8 = 4;
const RECORD: u8 = 5;

impl MoveFrame {
    /// Encodes the frame before its encryption, with room for the authentication tag at its end.
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

    /// Decodes a frame after its decryption; returns `None` if its content is invalid.
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
