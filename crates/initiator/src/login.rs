//! Login: from the address of a portal to a connection in full feature phase.

use iscsi::{
    Cid, Pdu, Serial, Tsih,
    codec::{Decoder, Digests, PduFrame, PduOutput},
    login::{
        EstablishedLogin, InitiatorLogin, InitiatorNames, InitiatorStep, LoginFailure,
        chap::{CHALLENGE_BYTES, Challenge},
    },
    pdu::{LoginRequest, LoginResponse},
    session::initiator,
};
use tokio::{net::TcpStream, time::timeout};
use transport::{ConnectionStream, Received, receive, send};

use crate::{Error, Settings, connection_io::InitiatorConnectionIo, url::parse_portal};

/// The purpose of a login: the kind of session for which the connection logs in.
#[derive(Clone, Debug)]
pub(crate) enum LoginPurpose {
    Discovery,
    Session,
    /// Adds a connection to an existing session.
    Join {
        portal: String,
        tsih: Tsih,
        cid: Cid,
        cmd_sn: Serial,
    },
}

pub(crate) struct LoggedIn {
    pub(crate) socket: InitiatorConnectionIo,
    pub(crate) established: EstablishedLogin,
    /// The address of the portal that accepted the login, after redirects.
    pub(crate) portal: String,
}

/// The size of the receive buffer during the login, in which data segments have at most 8192 bytes (RFC 7143, 13.12).
const LOGIN_BUFFER_BYTES: usize = 16 * 1024;
const LOGIN_DATA_SEGMENT: u32 = 8192;

/// The maximum number of redirections of one login (RFC 7143, 11.13.5). It ends a loop of redirections.
const REDIRECTIONS: usize = 4;

/// Connects and logs in to the target of the settings, within the time-outs of the settings.
pub(crate) async fn log_in(settings: &Settings, purpose: LoginPurpose) -> Result<LoggedIn, Error> {
    let mut portal = match &purpose {
        LoginPurpose::Join { portal, .. } => portal.clone(),
        _ => settings.portal.clone(),
    };
    for _ in 0..=REDIRECTIONS {
        let (stream, host) = connect(&portal, settings).await?;
        let exchange = async {
            let stream = secure(stream, &host, settings).await?;
            exchange(stream, settings, &purpose).await
        };
        let login = timeout(settings.login_time_out, exchange).await;
        match login.map_err(|_| Error::TimedOut("login"))?? {
            LoginOrRedirect::Done(socket, established) => {
                return Ok(LoggedIn { socket: *socket, established: *established, portal });
            }
            LoginOrRedirect::Elsewhere(address) => portal = address,
        }
    }
    Err(Error::Redirected(portal.into()))
}

enum LoginOrRedirect {
    Done(Box<InitiatorConnectionIo>, Box<EstablishedLogin>),
    Elsewhere(String),
}

/// Connects to a portal. Returns the socket and the host name of the portal.
async fn connect(portal: &str, settings: &Settings) -> Result<(TcpStream, String), Error> {
    let failed = |reason: String| Error::Connect { portal: portal.into(), reason: reason.into() };
    let (host, port) = parse_portal(portal).map_err(|reason| failed(reason.to_owned()))?;
    let connecting =
        settings.socket.connect(&host, port, |socket| settings.congestion.prepare(socket));
    let stream = match timeout(settings.connect_time_out, connecting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) => return Err(failed(format!("no answer in {:?}", settings.connect_time_out))),
    };
    Ok((stream, host))
}

/// Performs the TLS handshake if the settings require TLS.
async fn secure(
    stream: TcpStream,
    host: &str,
    settings: &Settings,
) -> Result<ConnectionStream, Error> {
    match &settings.tls {
        None => Ok(stream.into()),
        Some(tls) => Ok(tls.connect(host, stream).await?),
    }
}

async fn exchange(
    mut stream: ConnectionStream,
    settings: &Settings,
    purpose: &LoginPurpose,
) -> Result<LoginOrRedirect, Error> {
    let discovery = matches!(purpose, LoginPurpose::Discovery);
    let names = InitiatorNames {
        initiator_name: settings.initiator_name.clone(),
        initiator_alias: settings.initiator_alias.clone(),
        target_name: (!discovery).then(|| settings.target.clone()),
    };
    let (tsih, cid, cmd_sn) = match purpose {
        LoginPurpose::Join { tsih, cid, cmd_sn, .. } => (*tsih, *cid, *cmd_sn),
        _ => (Tsih(0), Cid(0), Serial(1)),
    };
    let offer = settings.offer();
    let mut login = InitiatorLogin::new(offer, names, settings.isid, tsih, cid, cmd_sn);
    if let Some(chap) = &settings.chap {
        login = login.with_chap(chap.clone(), challenge()?);
    }
    let mut decoder = Decoder::new(LOGIN_BUFFER_BYTES, LOGIN_DATA_SEGMENT);
    let mut request = login.start();
    loop {
        send_request(&mut stream, request).await?;
        match login.handle_response(receive_response(&mut stream, &mut decoder).await?) {
            InitiatorStep::Send(next) => request = next,
            InitiatorStep::Established(established) => {
                let socket = Box::new(InitiatorConnectionIo::new(stream, decoder, &established));
                return Ok(LoginOrRedirect::Done(socket, established));
            }
            InitiatorStep::Redirected { address, .. } => {
                return Ok(LoginOrRedirect::Elsewhere(address));
            }
            InitiatorStep::Failed(failure) => return Err(failure.into()),
        }
    }
}

async fn send_request(stream: &mut ConnectionStream, request: LoginRequest) -> Result<(), Error> {
    let mut output = PduOutput::default();
    output.push(Pdu::LoginRequest(request), Digests::default());
    while !output.is_empty() {
        stream.writable().await?;
        send(stream, &mut output)?;
    }
    Ok(())
}

async fn receive_response(
    stream: &mut ConnectionStream,
    decoder: &mut Decoder,
) -> Result<LoginResponse, Error> {
    loop {
        if let Some(PduFrame { bhs, ahs, data, .. }) = decoder.next()? {
            let pdu =
                Pdu::parse(&bhs, &ahs, data).map_err(initiator::InitiatorSessionError::from)?;
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

/// Returns random bytes of the operating system for CHAP: the challenge to a target that must authenticate itself.
fn challenge() -> Result<Challenge, Error> {
    let mut random = [0; 1 + CHALLENGE_BYTES];
    let filled = getrandom::fill(&mut random);
    filled.map_err(|error| Error::Io(error.to_string().into()))?;
    let [identifier, value @ ..] = random;
    Ok(Challenge { identifier, value })
}
