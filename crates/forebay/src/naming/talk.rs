//! One conversation about names on a socket, from either end. Bounded in time and in bytes.

use std::{io, sync::Arc, time::Duration, time::Instant};

use ::names::{
    Channel, End, HELLO_BYTES, Hello, NONCE_BYTES, Request, Response, Wrong, answer, begin, finish,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use transport::Place;

use super::Naming;

/// A whole conversation: a few round trips and at most three megabytes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there was none.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Wrong(#[from] Wrong),
    #[error("it takes too long")]
    TimedOut,
    #[error("newer connections took its place before it had shown that it knows the secret")]
    Displaced,
    #[error("it refuses: {0}")]
    Refused(String),
    #[error(
        "the node {0} has the same number (GLN) as this one: one was made as a copy of the other; stop this \
         one, delete `gln` in its `state` folder, and start it again"
    )]
    Twin(String),
    #[error("{0}")]
    Refusal(#[from] ::names::Refusal),
}

/// Exchanges what is known with the node at this address.
pub async fn call(naming: &Naming, address: &str) -> Result<(), Failed> {
    let calling = async {
        let stream = TcpStream::connect(address).await?;
        let mut line = Line::call(naming, stream).await?;
        let first = begin(&naming.table.lock());
        line.say(&first).await?;
        let (known, told) = match line.hear().await? {
            Response::Exchanged { known, told } => (known, told),
            // Everybody may have the same seeds.
            Response::Yourself => return Ok(()),
            Response::Twin { node } => {
                naming.table.lock().meet_twin(Instant::now());
                return Err(Failed::Twin(node.to_string()));
            }
            Response::Refused { reason } => return Err(Failed::Refused(reason)),
            Response::Taken => return Err(Wrong::Payload.into()),
        };
        let more = finish(&mut naming.table.lock(), &known, told, Instant::now())?;
        let Some(more) = more.filter(|_| naming.kept.is_some()) else { return Ok(()) };
        line.say(&more).await?;
        match line.hear().await? {
            Response::Taken => Ok(()),
            Response::Refused { reason } => Err(Failed::Refused(reason)),
            _ => Err(Wrong::Payload.into()),
        }
    };
    timeout(PATIENCE, calling).await.unwrap_or(Err(Failed::TimedOut))
}

/// Answers a caller, or hands it on if its hello is not about names. The caller keeps `place` once it has
/// shown that it knows the secret.
pub async fn respond(
    naming: &Naming,
    mut stream: TcpStream,
    place: &Arc<Place>,
) -> Result<(), Failed> {
    let mut hello = [0; HELLO_BYTES];
    let heard = timeout(PATIENCE, stream.read_exact(&mut hello)).await;
    heard.map_err(|_| Failed::TimedOut)??;
    if let (Err(_), Some(other)) = (Hello::parse(&hello), naming.other.get()) {
        other(stream, hello, Arc::clone(place)).await;
        return Ok(());
    }
    let responding = async {
        let mut line = Line::answer(naming, stream, Hello::parse(&hello)?).await?;
        // An exchange, and what the caller has to tell then.
        for _ in 0..2 {
            let request: Request = match line.hear().await {
                Ok(request) => request,
                // There was nothing to tell.
                Err(Failed::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            };
            if !place.keep() {
                return Err(Failed::Displaced);
            }
            let answer = answer(&mut naming.table.lock(), request, Instant::now());
            line.say(&answer).await?;
            match answer {
                Response::Refused { reason } => return Err(Failed::Refused(reason)),
                Response::Twin { node } => return Err(Failed::Twin(node.to_string())),
                Response::Yourself => break,
                Response::Exchanged { .. } | Response::Taken => {}
            }
        }
        Ok(())
    };
    timeout(PATIENCE, responding).await.unwrap_or(Err(Failed::TimedOut))
}

/// A socket and the conversation on it.
struct Line {
    stream: TcpStream,
    channel: Channel,
}

impl Line {
    async fn call(naming: &Naming, mut stream: TcpStream) -> Result<Self, Failed> {
        let ours = greet(&mut stream).await?;
        let mut bytes = [0; HELLO_BYTES];
        stream.read_exact(&mut bytes).await?;
        let channel = Channel::new(&naming.secret, End::Caller, ours, Hello::parse(&bytes)?)?;
        Ok(Self { stream, channel })
    }

    async fn answer(naming: &Naming, mut stream: TcpStream, theirs: Hello) -> Result<Self, Failed> {
        let ours = greet(&mut stream).await?;
        let channel = Channel::new(&naming.secret, End::Called, ours, theirs)?;
        Ok(Self { stream, channel })
    }

    async fn say(&mut self, message: &impl serde::Serialize) -> Result<(), Failed> {
        let payload = serde_json::to_vec(message).map_err(io::Error::other)?;
        Ok(self.stream.write_all(&self.channel.seal(&payload)).await?)
    }

    async fn hear<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, Failed> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).await?;
        let mut rest = vec![0; self.channel.rest(length)?];
        self.stream.read_exact(&mut rest).await?;
        let payload = self.channel.open(&rest)?;
        serde_json::from_slice(payload).map_err(|_| Wrong::Payload.into())
    }
}

/// Says hello.
async fn greet(stream: &mut TcpStream) -> Result<Hello, Failed> {
    stream.set_nodelay(true)?;
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    stream.write_all(&Hello(nonce).encode()).await?;
    Ok(Hello(nonce))
}
