//! One exchange of names on a socket, from either end. It is bounded in time and in bytes.

use std::{io, sync::Arc, time::Duration, time::Instant};

use ::names::{
    Channel, ChannelEnd, ChannelError, HELLO_BYTES, Hello, NONCE_BYTES, NamesRequest,
    NamesResponse, answer, begin, finish,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use transport::ConnectionPermit;

use super::Naming;

/// Time-out of an exchange: a few round trips and at most three megabytes.
const PATIENCE: Duration = Duration::from_secs(5);

/// The reason why an exchange has failed.
#[derive(Debug, thiserror::Error)]
pub enum NamingTalkError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Wrong(#[from] ChannelError),
    #[error("it timed out")]
    TimedOut,
    #[error("closed before authentication, to make room for newer connections")]
    Displaced,
    #[error("it refused: {0}")]
    Refused(String),
    #[error(
        "the node {0} has the same number (GLN) as this one: one is a copy of the other; stop this one, delete \
         `gln` in its `state` folder, and start it again"
    )]
    Twin(String),
    #[error("{0}")]
    Refusal(#[from] ::names::NodeRecordRefusal),
}

/// Exchanges naming records with the node at `address`.
pub async fn call(naming: &Naming, address: &str) -> Result<(), NamingTalkError> {
    let calling = async {
        let stream = TcpStream::connect(address).await?;
        let mut line = NamingConnection::call(naming, stream).await?;
        let first = begin(&naming.table.lock());
        line.say(&first).await?;
        let (known, told) = match line.hear().await? {
            NamesResponse::Exchanged { known, told } => (known, told),
            // The address leads to this node itself: no error, because all nodes may have the same list of seeds.
            NamesResponse::Yourself => return Ok(()),
            NamesResponse::Twin { node } => {
                naming.table.lock().meet_twin(Instant::now());
                return Err(NamingTalkError::Twin(node.to_string()));
            }
            NamesResponse::Refused { reason } => return Err(NamingTalkError::Refused(reason)),
            NamesResponse::Taken => return Err(ChannelError::Payload.into()),
        };
        let more = finish(&mut naming.table.lock(), &known, told, Instant::now())?;
        let Some(more) = more.filter(|_| naming.kept.is_some()) else { return Ok(()) };
        line.say(&more).await?;
        match line.hear().await? {
            NamesResponse::Taken => Ok(()),
            NamesResponse::Refused { reason } => Err(NamingTalkError::Refused(reason)),
            _ => Err(ChannelError::Payload.into()),
        }
    };
    timeout(PATIENCE, calling).await.unwrap_or(Err(NamingTalkError::TimedOut))
}

/// Answers a caller, or passes the connection to another handler if its hello is not about names. Once the caller has
/// proved that it knows the secret, newer connections do not displace this one, which holds the permit `place`.
pub async fn respond(
    naming: &Naming,
    mut stream: TcpStream,
    place: &Arc<ConnectionPermit>,
) -> Result<(), NamingTalkError> {
    let mut hello = [0; HELLO_BYTES];
    let heard = timeout(PATIENCE, stream.read_exact(&mut hello)).await;
    heard.map_err(|_| NamingTalkError::TimedOut)??;
    if let (Err(_), Some(other)) = (Hello::parse(&hello), naming.other.get()) {
        other(stream, hello, Arc::clone(place)).await;
        return Ok(());
    }
    let responding = async {
        let mut line = NamingConnection::answer(naming, stream, Hello::parse(&hello)?).await?;
        // The caller first sends the versions of the records that it knows, and then its newer records, if it has any.
        for _ in 0..2 {
            let request: NamesRequest = match line.hear().await {
                Ok(request) => request,
                // The caller has closed the connection, because it has no records for this node.
                Err(NamingTalkError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    break;
                }
                Err(error) => return Err(error),
            };
            if !place.keep() {
                return Err(NamingTalkError::Displaced);
            }
            let answer = answer(&mut naming.table.lock(), request, Instant::now());
            line.say(&answer).await?;
            match answer {
                NamesResponse::Refused { reason } => return Err(NamingTalkError::Refused(reason)),
                NamesResponse::Twin { node } => {
                    return Err(NamingTalkError::Twin(node.to_string()));
                }
                NamesResponse::Yourself => break,
                NamesResponse::Exchanged { .. } | NamesResponse::Taken => {}
            }
        }
        Ok(())
    };
    timeout(PATIENCE, responding).await.unwrap_or(Err(NamingTalkError::TimedOut))
}

/// A connection of the naming service: its socket, and the channel that seals and opens its messages.
struct NamingConnection {
    stream: TcpStream,
    channel: Channel,
}

impl NamingConnection {
    async fn call(naming: &Naming, mut stream: TcpStream) -> Result<Self, NamingTalkError> {
        let ours = greet(&mut stream).await?;
        let mut bytes = [0; HELLO_BYTES];
        stream.read_exact(&mut bytes).await?;
        let channel =
            Channel::new(&naming.secret, ChannelEnd::Caller, ours, Hello::parse(&bytes)?)?;
        Ok(Self { stream, channel })
    }

    async fn answer(
        naming: &Naming,
        mut stream: TcpStream,
        theirs: Hello,
    ) -> Result<Self, NamingTalkError> {
        let ours = greet(&mut stream).await?;
        let channel = Channel::new(&naming.secret, ChannelEnd::Called, ours, theirs)?;
        Ok(Self { stream, channel })
    }

    async fn say(&mut self, message: &impl serde::Serialize) -> Result<(), NamingTalkError> {
        let payload = serde_json::to_vec(message).map_err(io::Error::other)?;
        Ok(self.stream.write_all(&self.channel.seal(&payload)).await?)
    }

    async fn hear<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, NamingTalkError> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).await?;
        let mut rest = vec![0; self.channel.rest(length)?];
        self.stream.read_exact(&mut rest).await?;
        let payload = self.channel.open(&rest)?;
        serde_json::from_slice(payload).map_err(|_| ChannelError::Payload.into())
    }
}

/// Sends a hello with a random nonce to the other node, and returns that hello.
async fn greet(stream: &mut TcpStream) -> Result<Hello, NamingTalkError> {
    stream.set_nodelay(true)?;
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    stream.write_all(&Hello(nonce).encode()).await?;
    Ok(Hello(nonce))
}
