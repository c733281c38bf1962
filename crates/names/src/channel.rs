//! An authenticated channel between two nodes that share a secret: no one else can make, change, drop,
//! reorder or replay its frames. The channel does not encrypt: names and addresses can be read on the way.
//!
//! Each end sends a hello with 32 random bytes. The key of the channel is HMAC-SHA-256(secret, label, both random
//! values); every frame ends with HMAC-SHA-256(key, end, number, length, payload). The hellos are not authenticated
//! themselves: a peer without the secret cannot make a valid frame, and gets no answer.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Maximum payload of a frame in bytes. The longest record fits into it together with the stamps of all nodes.
pub const FRAME_BYTES: usize = 1 << 20;
/// Maximum payload of the first frame that the accepting end receives, which carries the stamps of all nodes. At that
/// time the other end has not yet proved that it has the secret. With this limit, a stranger cannot make a node
/// allocate more memory.
pub const FIRST_BYTES: usize = 64 << 10;
/// Length in bytes of the random value in a hello.
pub const NONCE_BYTES: usize = 32;
/// Length of a hello in bytes: magic, version, random value.
pub const HELLO_BYTES: usize = MAGIC.len() + 4 + NONCE_BYTES;
/// Length in bytes of the length field before a payload.
pub const LENGTH_BYTES: usize = 4;
/// Length in bytes of the HMAC after a payload.
pub const TAG_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"FBYNAMES";
const VERSION: u32 = 1;
const LABEL: &[u8] = b"forebay names 1\0";

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChannelEnd {
    /// The node that has opened the connection.
    Caller = 1,
    /// The node that has accepted the connection.
    Called = 2,
}

/// The first message that each of the two nodes sends on a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Hello(pub [u8; NONCE_BYTES]);

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ChannelError {
    /// The peer uses another protocol, or another version of this one.
    #[error("the peer uses another protocol")]
    Hello,
    /// A frame exceeds the maximum length.
    #[error("a frame exceeds the maximum length")]
    Length,
    /// The peer has another shared secret, or the frame was changed on the way.
    #[error("the peer has another secret, or its messages were changed on the way")]
    Tag,
    /// The frame is authentic, but cannot be parsed.
    #[error("the peer sent an invalid message")]
    Payload,
}

impl Hello {
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_be_bytes());
        bytes[12..].copy_from_slice(&self.0);
        bytes
    }

    pub fn parse(bytes: &[u8; HELLO_BYTES]) -> Result<Self, ChannelError> {
        let (head, nonce) = bytes.split_at(12);
        if head[..8] != *MAGIC || head[8..] != VERSION.to_be_bytes() {
            return Err(ChannelError::Hello);
        }
        nonce.try_into().map(Self).map_err(|_| ChannelError::Hello)
    }
}

/// One end of a channel after both hellos. It makes the frames to send, and checks the received ones.
pub struct Channel {
    key: Zeroizing<[u8; TAG_BYTES]>,
    end: ChannelEnd,
    sent: u64,
    received: u64,
}

impl Channel {
    /// Makes a channel after both hellos. They have to differ: an end that receives its own hello is
    /// connected to itself, or an attacker sends its messages back.
    pub fn new(
        secret: &[u8],
        end: ChannelEnd,
        ours: Hello,
        theirs: Hello,
    ) -> Result<Self, ChannelError> {
        if ours == theirs {
            return Err(ChannelError::Hello);
        }
        let (caller, called) = match end {
            ChannelEnd::Caller => (ours, theirs),
            ChannelEnd::Called => (theirs, ours),
        };
        let key = hash(secret, &[LABEL, &caller.0, &called.0]).finalize().into_bytes();
        Ok(Self { key: Zeroizing::new(key.into()), end, sent: 0, received: 0 })
    }

    /// Makes the next frame to send.
    ///
    /// # Panics
    /// If the payload is longer than [`FRAME_BYTES`].
    pub fn seal(&mut self, payload: &[u8]) -> Vec<u8> {
        assert!(payload.len() <= FRAME_BYTES, "a message is as long as messages get");
        let length = (payload.len() as u32).to_be_bytes();
        let tag = self.tag(self.end, self.sent, &length, payload).finalize().into_bytes();
        self.sent += 1;
        [&length[..], payload, &tag].concat()
    }

    /// Returns the number of bytes that follow the length field of a frame, including its HMAC.
    pub fn rest(&self, length: [u8; LENGTH_BYTES]) -> Result<usize, ChannelError> {
        let most = if self.received == 0 { FIRST_BYTES } else { FRAME_BYTES };
        let is_caller = self.end == ChannelEnd::Caller;
        // The caller accepts long frames from the start: this end has chosen its peer itself, and the first response
        // already contains records.
        let most = if is_caller { FRAME_BYTES } else { most };
        match u32::from_be_bytes(length) as usize {
            length if length <= most => Ok(length + TAG_BYTES),
            _ => Err(ChannelError::Length),
        }
    }

    /// Returns the payload of a frame if the frame is the next one that the other end has made.
    pub fn open<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], ChannelError> {
        let (payload, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or(ChannelError::Length)?;
        let length = (payload.len() as u32).to_be_bytes();
        let other = match self.end {
            ChannelEnd::Caller => ChannelEnd::Called,
            ChannelEnd::Called => ChannelEnd::Caller,
        };
        let expected = self.tag(other, self.received, &length, payload);
        // `verify_slice` compares in constant time, so the response time tells an attacker nothing about the right
        // tag.
        expected.verify_slice(tag).map_err(|_| ChannelError::Tag)?;
        self.received += 1;
        Ok(payload)
    }

    fn tag(&self, end: ChannelEnd, number: u64, length: &[u8], payload: &[u8]) -> Hmac<Sha256> {
        hash(&*self.key, &[&[end as u8], &number.to_be_bytes(), length, payload])
    }
}

fn hash(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut hash = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| hash.update(part));
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"a secret of theirs";

    fn pair_with(other: &[u8]) -> (Channel, Channel) {
        let (a, b) = (Hello([1; 32]), Hello([2; 32]));
        let caller = Channel::new(SECRET, ChannelEnd::Caller, a, b).unwrap();
        (caller, Channel::new(other, ChannelEnd::Called, b, a).unwrap())
    }

    fn receive<'a>(channel: &mut Channel, frame: &'a [u8]) -> Result<&'a [u8], ChannelError> {
        let (length, rest) = frame.split_first_chunk().ok_or(ChannelError::Length)?;
        if channel.rest(*length)? != rest.len() {
            return Err(ChannelError::Length);
        }
        channel.open(rest)
    }

    #[test]
    fn both_ends_decode_the_frames_of_each_other() {
        let (mut a, mut b) = pair_with(SECRET);
        for text in [&b"one"[..], b"", b"three"] {
            let frame = a.seal(text);
            assert_eq!(receive(&mut b, &frame), Ok(text));
            let frame = b.seal(text);
            assert_eq!(receive(&mut a, &frame), Ok(text));
        }
    }

    #[test]
    fn frames_of_a_peer_without_the_secret_are_refused() {
        let (mut a, mut b) = pair_with(b"another secret of x");
        let frame = a.seal(b"one");
        assert_eq!(receive(&mut b, &frame), Err(ChannelError::Tag));
        let frame = b.seal(b"one");
        assert_eq!(receive(&mut a, &frame), Err(ChannelError::Tag));
    }

    #[test]
    fn changed_repeated_reordered_and_reflected_frames_are_refused() {
        let frames = |a: &mut Channel| [a.seal(b"one"), a.seal(b"two")];
        let (mut a, mut b) = pair_with(SECRET);
        let [one, two] = frames(&mut a);
        for at in 0..one.len() {
            let mut changed = one.clone();
            changed[at] ^= 1;
            assert!(receive(&mut pair_with(SECRET).1, &changed).is_err(), "{at}");
        }
        assert_eq!(
            receive(&mut pair_with(SECRET).1, &two),
            Err(ChannelError::Tag),
            "the first left out"
        );
        assert_eq!(receive(&mut a, &one), Err(ChannelError::Tag), "sent back");
        receive(&mut b, &one).unwrap();
        assert_eq!(receive(&mut b, &one), Err(ChannelError::Tag), "played again");
        receive(&mut b, &two).unwrap();
        let mut later =
            Channel::new(SECRET, ChannelEnd::Called, Hello([3; 32]), Hello([1; 32])).unwrap();
        assert_eq!(receive(&mut later, &one), Err(ChannelError::Tag), "of another conversation");
        let mirror = Channel::new(SECRET, ChannelEnd::Caller, Hello([1; 32]), Hello([1; 32]));
        assert_eq!(mirror.err(), Some(ChannelError::Hello));
    }

    #[test]
    fn little_memory_is_held_for_an_unauthenticated_peer() {
        let (mut a, mut b) = pair_with(SECRET);
        let length = |bytes: usize| (bytes as u32).to_be_bytes();
        assert!(b.rest(length(FIRST_BYTES)).is_ok() && b.rest(length(FIRST_BYTES + 1)).is_err());
        let frame = a.seal(b"one");
        receive(&mut b, &frame).unwrap();
        assert!(b.rest(length(FRAME_BYTES)).is_ok() && b.rest(length(FRAME_BYTES + 1)).is_err());
        assert!(a.rest([0xff; 4]).is_err() && b.open(&[]).is_err());
    }

    #[test]
    fn a_hello_byte_by_byte() {
        let hello = Hello([7; 32]);
        let bytes = hello.encode();
        assert_eq!(bytes[..13], *b"FBYNAMES\0\0\0\x01\x07");
        assert_eq!(Hello::parse(&bytes), Ok(hello));
        let mut other = bytes;
        other[11] = 2;
        assert_eq!(Hello::parse(&other), Err(ChannelError::Hello));
    }
}
