//! One TCP connection with a logged-in session on it: a socket around the protocol's machine.

use std::time::Instant;

use bytes::Bytes;
use iscsi::{
    Cid, Pdu, Serial, Tsih,
    codec::{Decoder, Digests, Frame, Output},
    login::{
        Established, InitiatorLogin, InitiatorNames, InitiatorStep, LoginFailure,
        chap::{CHALLENGE_BYTES, Challenge},
    },
    pdu::{LoginRequest, LoginResponse},
    session::initiator::{self, Connection, Event, Failure, Outcome, Request, Transfer, Window},
};
use scsi::{Cdb, Lun};
use tokio::{
    io::Interest,
    net::TcpStream,
    time::{sleep_until, timeout},
};

use transport::{Received, Sent, receive, send};

use crate::{CommandError, Error, Settings, url::parse_portal};

/// A connection in full feature phase. Whoever holds it runs it: [`Wire::pump`], then wait for
/// [`Wire::readiness`] or [`Wire::deadline`], then [`Wire::receive`] or [`Wire::handle_timeout`];
/// events come from `connection`.
pub(crate) struct Wire {
    stream: TcpStream,
    decoder: Decoder,
    pub(crate) connection: Connection,
    pub(crate) session: initiator::Session,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
}

/// Receive buffer for small PDUs in full feature phase, as the decoder recommends.
const BUFFER_BYTES: usize = 64 * 1024;

/// The same during login, when RFC 7143 (13.12) lets a data segment have 8192 bytes.
const LOGIN_BUFFER_BYTES: usize = 16 * 1024;
const LOGIN_DATA_SEGMENT: u32 = 8192;

/// Reads of the socket in one turn, so that a fast target cannot keep timers from running.
const READS_PER_TURN: usize = 16;

/// With more output than this, nothing is read: a target that sends pings and takes no answers
/// would make us hold them all. Above what the machine queues by itself.
const OUTPUT_STUCK: usize = 4 << 20;

/// A target may send a login elsewhere (RFC 7143, 11.13.5); circles end here.
const REDIRECTIONS: usize = 4;

impl Wire {
    /// Connects and logs in to the settings' target, or for discovery. Bounded by the settings.
    pub(crate) async fn open(settings: &Settings, discovery: bool) -> Result<Self, Error> {
        let mut portal = settings.portal.clone();
        for _ in 0..=REDIRECTIONS {
            let stream = connect(&portal, settings).await?;
            let logging_in = log_in(stream, settings, discovery);
            let login = timeout(settings.login_time_out, logging_in).await;
            match login.map_err(|_| Error::TimedOut("login"))?? {
                Login::Done(wire) => return Ok(*wire),
                Login::Elsewhere(address) => portal = address,
            }
        }
        Err(Error::Redirected(portal.into()))
    }

    /// Makes output and writes what the socket takes.
    pub(crate) fn pump(&mut self) -> Result<(), Error> {
        loop {
            self.connection.transmit(&mut self.session);
            let output = self.connection.output();
            let before = output.len();
            if before == 0 {
                return Ok(());
            }
            let sent = send(&self.stream, output)?;
            self.bytes_out += (before - output.len()) as u64;
            if sent == Sent::Blocked {
                return Ok(());
            }
        }
    }

    /// Waits until the socket has something for us, or takes what it did not take before.
    pub(crate) async fn readiness(&mut self) -> Result<(), Error> {
        let output = self.connection.output().len();
        let interest = match output {
            0 => Interest::READABLE,
            1..OUTPUT_STUCK => Interest::READABLE | Interest::WRITABLE,
            _ => Interest::WRITABLE,
        };
        self.stream.ready(interest).await?;
        Ok(())
    }

    /// Reads what is there and runs every PDU. Events of PDUs before an error are still good.
    pub(crate) fn receive(&mut self, now: Instant) -> Result<(), Error> {
        for _ in 0..READS_PER_TURN {
            if self.connection.output().len() >= OUTPUT_STUCK {
                break;
            }
            match receive(&self.stream, &mut self.decoder)? {
                Received::Bytes(count) => self.bytes_in += count as u64,
                Received::Nothing => break,
                Received::Closed => return Err(Error::Closed),
            }
            while let Some(frame) = self.decoder.next()? {
                self.connection.handle_frame(&mut self.session, frame, now)?;
            }
        }
        Ok(())
    }

    /// When [`Wire::handle_timeout`] is due.
    pub(crate) fn deadline(&self) -> Instant {
        self.connection.poll_timeout(&self.session)
    }

    /// Time passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<(), Error> {
        Ok(self.connection.handle_timeout(&mut self.session, now)?)
    }

    /// Performs one command while nothing else is under way; what its status says is the caller's.
    pub(crate) async fn execute(
        &mut self,
        settings: &Settings,
        cdb: Cdb,
        transfer: Transfer,
    ) -> Result<Outcome, Error> {
        let lun = Lun::from_number(settings.lun);
        let lun = lun.ok_or_else(|| Error::unit("LUNs end at 16383"))?;
        let time_out = settings.command_time_out;
        let request = Request { tag: 0, lun, cdb, transfer, time_out };
        let submitted = self.session.submit(request, now());
        submitted.map_err(|_| Error::unit("the queue depth is zero"))?;
        loop {
            match self.turn().await? {
                Event::Completed { result: Ok(outcome), .. } => return Ok(outcome),
                Event::Completed { result: Err(Failure::TimedOut), .. } => {
                    return Err(Error::TimedOut("a command"));
                }
                Event::Completed { result: Err(failure), .. } => {
                    return Err(Error::unit(CommandError::from(failure).to_string()));
                }
                _ => {}
            }
        }
    }

    /// Exchanges text while nothing else is under way.
    pub(crate) async fn text(&mut self, text: Bytes) -> Result<Bytes, Error> {
        if !self.connection.text(&mut self.session, text, now()) {
            let wrong = initiator::Error::Protocol("a wish to negotiate, in the middle of things");
            return Err(wrong.into());
        }
        loop {
            if let Event::Text(answer) = self.turn().await? {
                return Ok(answer);
            }
        }
    }

    /// Leaves politely while nothing else is under way; bounded by the machine. Whether the
    /// target answers is of no interest any more.
    pub(crate) async fn log_out(mut self) {
        self.connection.logout(&mut self.session, now());
        while let Ok(event) = self.turn().await {
            if matches!(event, Event::LoggedOut { .. }) {
                break;
            }
        }
    }

    /// Runs the connection until there is an event.
    async fn turn(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.connection.poll_event() {
                return Ok(event);
            }
            self.pump()?;
            let deadline = self.deadline().into();
            tokio::select! {
                biased;
                ready = self.readiness() => {
                    ready?;
                    self.receive(now())?;
                }
                () = sleep_until(deadline) => self.handle_timeout(now())?,
            }
        }
    }
}

/// The time, from the clock that a test can pause.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

enum Login {
    Done(Box<Wire>),
    Elsewhere(String),
}

async fn connect(portal: &str, settings: &Settings) -> Result<TcpStream, Error> {
    let failed = |reason: String| Error::Connect { portal: portal.into(), reason: reason.into() };
    let (host, port) = parse_portal(portal).map_err(|reason| failed(reason.to_owned()))?;
    let connecting = TcpStream::connect((host.as_str(), port));
    let stream = match timeout(settings.connect_time_out, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(format!("no answer in {:?}", settings.connect_time_out))),
    };
    settings.socket.apply(&stream)?;
    Ok(stream)
}

async fn log_in(stream: TcpStream, settings: &Settings, discovery: bool) -> Result<Login, Error> {
    let names = InitiatorNames {
        initiator_name: settings.initiator_name.clone(),
        initiator_alias: settings.initiator_alias.clone(),
        target_name: (!discovery).then(|| settings.target.clone()),
    };
    let (cid, cmd_sn) = (Cid(0), Serial(1));
    let mut login =
        InitiatorLogin::new(settings.offer.clone(), names, settings.isid, Tsih(0), cid, cmd_sn);
    if let Some(chap) = &settings.chap {
        login = login.with_chap(chap.clone(), challenge()?);
    }
    let mut decoder = Decoder::new(LOGIN_BUFFER_BYTES, LOGIN_DATA_SEGMENT);
    let mut request = login.start();
    loop {
        send_login(&stream, request).await?;
        match login.handle_response(receive_login(&stream, &mut decoder).await?) {
            InitiatorStep::Send(next) => request = next,
            InitiatorStep::Established(established) => {
                return Ok(Login::Done(Box::new(begin(stream, decoder, settings, *established))));
            }
            InitiatorStep::Redirected { address, .. } => return Ok(Login::Elsewhere(address)),
            InitiatorStep::Failed(failure) => return Err(failure.into()),
        }
    }
}

fn begin(
    stream: TcpStream,
    mut decoder: Decoder,
    settings: &Settings,
    established: Established,
) -> Wire {
    let parameters = established.parameters;
    let digests = parameters.digests;
    decoder.configure(BUFFER_BYTES, parameters.max_recv_data_segment_length, digests);
    let timing = settings.timing;
    let connection =
        Connection::new(established.cid, digests, established.exp_stat_sn, timing, now());
    let window = Window::new(established.cmd_sn, established.max_cmd_sn);
    let session = initiator::Session::new(parameters, window, settings.queue_depth);
    Wire { stream, decoder, connection, session, bytes_in: 0, bytes_out: 0 }
}

async fn send_login(stream: &TcpStream, request: LoginRequest) -> Result<(), Error> {
    let mut output = Output::default();
    output.push(Pdu::LoginRequest(request), Digests::default());
    while !output.is_empty() {
        stream.writable().await?;
        send(stream, &mut output)?;
    }
    Ok(())
}

async fn receive_login(stream: &TcpStream, decoder: &mut Decoder) -> Result<LoginResponse, Error> {
    loop {
        if let Some(Frame { bhs, ahs, data, .. }) = decoder.next()? {
            let pdu = Pdu::parse(&bhs, &ahs, data).map_err(initiator::Error::from)?;
            let Pdu::LoginResponse(response) = pdu else {
                return Err(LoginFailure::Protocol("a PDU that is no login response").into());
            };
            return Ok(response);
        }
        stream.readable().await?;
        if receive(stream, decoder)? == Received::Closed {
            return Err(Error::Closed);
        }
    }
}

/// Random bytes of the operating system, for a target that has to prove who it is.
fn challenge() -> Result<Challenge, Error> {
    let mut random = [0; 1 + CHALLENGE_BYTES];
    let filled = getrandom::fill(&mut random);
    filled.map_err(|error| Error::Io(error.to_string().into()))?;
    let [identifier, value @ ..] = random;
    Ok(Challenge { identifier, value })
}
