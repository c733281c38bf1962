//! The channel on which a volume moves: encrypted frames that only nodes with the secret of the naming service can
//! make or read. `docs/formats/network.md` describes their bytes.
//!
//! Each end sends a hello with 32 random bytes. The keys of both directions are derived from them (HKDF-SHA-256).
//! Each frame is sealed with AES-256-GCM under its number: it cannot be changed, dropped, reordered or replayed.

use std::{io, time::Duration};

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, Salt},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use super::message::MoveFrame;

const MAGIC: &[u8; 8] = b"FBYMOVES";
/// Length of a hello in bytes: magic number, version, random bytes.
pub const HELLO_BYTES: usize = 8 + 4 + NONCE_BYTES;

const VERSION: u32 = 2;
const NONCE_BYTES: usize = 32;
/// Maximum length of a frame in bytes: a piece of the volume, or all registrations of a unit, with their headers.
const FRAME_BYTES: usize = 2 << 20;
/// Maximum length of a frame in bytes before the other end has authenticated itself with a frame.
const FIRST_BYTES: usize = 64 << 10;
const TAG_BYTES: usize = 16;
/// Time limit for connecting to the other node and exchanging hellos.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Time-out of an answer: a disk may need as long for a flush, or the link for the data in flight.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum MoveChannelError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it timed out")]
    TimedOut,
    /// The other node speaks another protocol or version.
    #[error("the peer uses another protocol, or a newer version of it")]
    Hello,
    /// A frame was not sealed with a key of the shared secret, or was changed on the way.
    #[error("the peer has another secret, or its messages were changed on the way")]
    Seal,
    /// A frame has an invalid content.
    #[error("the peer sent an invalid message")]
    Payload,
}

/// The sending direction of a channel.
pub struct Says {
    stream: OwnedWriteHalf,
    key: LessSafeKey,
    number: u64,
}

/// The receiving direction of a channel.
pub struct Hears {
    stream: BufReader<OwnedReadHalf>,
    key: LessSafeKey,
    number: u64,
}

pub async fn call(secret: &[u8], address: &str) -> Result<(Says, Hears), MoveChannelError> {
    let calling = async {
        let mut stream = TcpStream::connect(address).await?;
        let ours = hello()?;
        stream.write_all(&ours).await?;
        let mut theirs = [0; HELLO_BYTES];
        stream.read_exact(&mut theirs).await?;
        open(secret, stream, &ours, &theirs, &ours, &theirs)
    };
    timeout(CONNECT_WITHIN, calling).await.unwrap_or(Err(MoveChannelError::TimedOut))
}

/// Answers a node that has connected and sent the hello `theirs`. Returns both directions of the channel.
pub async fn respond(
    secret: &[u8],
    mut stream: TcpStream,
    theirs: &[u8; HELLO_BYTES],
) -> Result<(Says, Hears), MoveChannelError> {
    let ours = hello()?;
    timeout(CONNECT_WITHIN, stream.write_all(&ours))
        .await
        .map_err(|_| MoveChannelError::TimedOut)??;
    open(secret, stream, &ours, theirs, theirs, &ours)
}

fn hello() -> io::Result<[u8; HELLO_BYTES]> {
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(MAGIC);
    hello[8..12].copy_from_slice(&VERSION.to_be_bytes());
    getrandom::fill(&mut hello[12..]).map_err(io::Error::other)?;
    Ok(hello)
}

fn open(
    secret: &[u8],
    stream: TcpStream,
    ours: &[u8; HELLO_BYTES],
    theirs: &[u8; HELLO_BYTES],
    caller: &[u8; HELLO_BYTES],
    called: &[u8; HELLO_BYTES],
) -> Result<(Says, Hears), MoveChannelError> {
    // An end that receives its own hello is connected to itself, or to an attacker who reflects it.
    if theirs[..12] != ours[..12] || theirs == ours {
        return Err(MoveChannelError::Hello);
    }
    stream.set_nodelay(true)?;
    let key = |label: &[u8]| {
        let known = Salt::new(HKDF_SHA256, b"forebay moves 1").extract(secret);
        let parts = [label, &caller[12..], &called[12..]];
        let expanded = known.expand(&parts, &AES_256_GCM).map_err(|_| MoveChannelError::Seal)?;
        Ok::<_, MoveChannelError>(LessSafeKey::new(UnboundKey::from(expanded)))
    };
    let (down, up) = (key(b"caller")?, key(b"called")?);
    let (said, heard) = if ours == caller { (down, up) } else { (up, down) };
    let (read, write) = stream.into_split();
    let says = Says { stream: write, key: said, number: 0 };
    Ok((says, Hears { stream: BufReader::new(read), key: heard, number: 0 }))
}

impl Says {
    /// Sends a frame to the other node; waits while that node does not read.
    pub async fn say(&mut self, frame: &MoveFrame) -> Result<(), MoveChannelError> {
        let mut bytes = frame.encode().map_err(io::Error::other)?;
        let length = ((bytes.len() + TAG_BYTES) as u32).to_be_bytes();
        let nonce = nonce(self.number);
        self.number += 1;
        let sealed = self.key.seal_in_place_append_tag(nonce, Aad::from(length), &mut bytes);
        sealed.map_err(|_| MoveChannelError::Seal)?;
        let sending = async {
            self.stream.write_all(&length).await?;
            self.stream.write_all(&bytes).await
        };
        Ok(timeout(PATIENCE, sending).await.map_err(|_| MoveChannelError::TimedOut)??)
    }
}

impl Hears {
    pub async fn hear(&mut self) -> Result<MoveFrame, MoveChannelError> {
        timeout(PATIENCE, self.next()).await.unwrap_or(Err(MoveChannelError::TimedOut))
    }

    async fn next(&mut self) -> Result<MoveFrame, MoveChannelError> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).await?;
        let most = if self.number == 0 { FIRST_BYTES } else { FRAME_BYTES };
        let bytes = u32::from_be_bytes(length) as usize;
        if bytes > most {
            return Err(MoveChannelError::Payload);
        }
        let mut sealed = vec![0; bytes];
        self.stream.read_exact(&mut sealed).await?;
        let nonce = nonce(self.number);
        let opened = self.key.open_in_place(nonce, Aad::from(length), &mut sealed);
        let plain = opened.map_err(|_| MoveChannelError::Seal)?.len();
        self.number += 1;
        sealed.truncate(plain);
        MoveFrame::parse(sealed).ok_or(MoveChannelError::Payload)
    }
}

/// Returns the nonce of the frame with this number. No two frames with one key have the same nonce.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::{
        super::message::{MoveRequest, MoveResponse},
        *,
    };

    const SECRET: &[u8] = b"a secret of theirs";

    async fn pair(
        other: &[u8],
        change: impl Fn(usize, &mut u8) + Send + Sync + 'static,
    ) -> ((Says, Hears), (Says, Hears)) {
        let (front, back) = (
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        );
        let (at, behind) = (front.local_addr().unwrap(), back.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut caller, _) = front.accept().await.unwrap();
            let mut called = TcpStream::connect(behind).await.unwrap();
            let (mut from, mut to) = caller.split();
            let (mut back, mut forth) = called.split();
            let there = async {
                let mut place = 0;
                let mut byte = [0];
                while from.read_exact(&mut byte).await.is_ok() {
                    change(place, &mut byte[0]);
                    place += 1;
                    if forth.write_all(&byte).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = there => {}
                _ = tokio::io::copy(&mut back, &mut to) => {}
            }
        });
        let called = async {
            let (mut stream, _) = back.accept().await.unwrap();
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello).await.unwrap();
            respond(other, stream, &hello).await
        };
        let address = at.to_string();
        let (caller, called) = tokio::join!(call(SECRET, &address), called);
        (caller.unwrap(), called.unwrap())
    }

    #[tokio::test]
    async fn both_ends_decode_the_frames_of_each_other() {
        let (mut a, mut b) = pair(SECRET, |_, _| {}).await;
        for bytes in [1, 64 << 10, 1 << 20] {
            a.0.say(&MoveFrame::Request(MoveRequest::Flush)).await.unwrap();
            assert_eq!(b.1.hear().await.unwrap(), MoveFrame::Request(MoveRequest::Flush));
            let data = MoveFrame::Write { lba: 7, data: vec![bytes as u8; bytes].into() };
            a.0.say(&data).await.unwrap();
            assert_eq!(b.1.hear().await.unwrap(), data);
            b.0.say(&MoveFrame::Answer(MoveResponse::Done)).await.unwrap();
            assert_eq!(a.1.hear().await.unwrap(), MoveFrame::Answer(MoveResponse::Done));
        }
    }

    #[tokio::test]
    async fn frames_without_the_secret_or_with_changes_are_refused() {
        let (mut a, mut b) = pair(b"another secret of x", |_, _| {}).await;
        a.0.say(&MoveFrame::Request(MoveRequest::Flush)).await.unwrap();
        assert!(matches!(b.1.hear().await, Err(MoveChannelError::Seal)));
        for at in [HELLO_BYTES + 3, HELLO_BYTES + 4, HELLO_BYTES + 8] {
            let (mut a, mut b) =
                pair(SECRET, move |place, byte| *byte ^= u8::from(place == at)).await;
            a.0.say(&MoveFrame::Request(MoveRequest::Flush)).await.unwrap();
            a.0.say(&MoveFrame::Request(MoveRequest::Flush)).await.unwrap();
            assert!(matches!(b.1.hear().await, Err(MoveChannelError::Seal)), "{at}");
        }
        // The changed byte makes the length exceed the limit for a peer that has not authenticated itself.
        let (mut a, mut b) =
            pair(SECRET, |place, byte| *byte |= u8::from(place == HELLO_BYTES)).await;
        a.0.say(&MoveFrame::Request(MoveRequest::Flush)).await.unwrap();
        assert!(matches!(b.1.hear().await, Err(MoveChannelError::Payload)));
    }
}
