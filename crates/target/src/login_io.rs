//! Serves a connection from its first byte to the end of its login, within limits of time and memory.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use iscsi::{
    Tsih,
    codec::Decoder,
    login::{
        EstablishedLogin, SessionType,
        chap::{CHALLENGE_BYTES, Challenge},
    },
    pdu::LoginStatus,
    session::target::{LoginPhase, LoginProgress, NotJoined, Session, TargetSessionError},
};
use tokio::{
    net::TcpStream,
    sync::oneshot,
    time::{sleep_until, timeout_at},
};
use tracing::{debug, info, warn};
use transport::{ConnectionPermit, ConnectionStream, Received, SendProgress, receive, send};

use crate::{
    connection_io::Socket,
    counted_limit::Permit,
    driver,
    end_reason::ConnectionEndReason,
    portal_view::PortalView,
    server_context::ServerContext,
    session_registry::{DriverMessage, JoiningConnection, RefusedJoin, SessionRegistration},
    statistics::count,
};

/// Size of the receive buffer of a connection that has not logged in: the longest login PDU (8192 bytes of text, RFC
/// 7143, 6.2) with its headers, twice, so that its bytes need not be moved.
const RECEIVE_BUFFER: usize = 16 * 1024;
/// The longest data segment that a PDU may have during the login (RFC 7143, 6.2).
const DATA_SEGMENT: u32 = 8192;
/// How long a login waits for the session that it replaces to end. The driver of that session closes at once unless a
/// unit blocks its thread.
const REPLACEMENT: Duration = Duration::from_secs(5);
/// How long a login waits for the other sessions of its initiator to check their connections. Their drivers do so
/// within microseconds unless a unit blocks their threads.
const SETTLING: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
enum LoginAttemptError {
    #[error("login status {0:?}")]
    Refused(LoginStatus),
    #[error("the first PDU is not a login request")]
    NoLogin,
    #[error(
        "login status {:?}: the session of this initiator belongs to another CHAP user",
        LoginStatus::AuthenticationFailure
    )]
    OtherUser,
    #[error(transparent)]
    Protocol(#[from] TargetSessionError),
    #[error("closed by the initiator")]
    Closed,
    #[error("the session has ended in the meantime")]
    SessionGone,
    #[error("the server is stopping")]
    Stopping,
    #[error(transparent)]
    Socket(#[from] io::Error),
    #[error("TLS: {0}")]
    Tls(io::Error),
    #[error("the portal was closed")]
    NoPortal,
    #[error("closed before its login to make room for newer connections")]
    Displaced,
}

/// The result of a successful login.
enum Entered {
    /// The connection leads a new session.
    Leading(Box<(Socket, Session, SessionRegistration)>),
    /// The connection has joined an existing session, whose driver now serves it.
    Joined,
}

/// Serves a connection from its first byte. If it leads a new session, serves that session until it ends.
pub(crate) async fn serve(
    server: &ServerContext,
    stream: TcpStream,
    address: SocketAddr,
    login: ConnectionPermit,
    connection: Permit,
) {
    let events = &server.registry.events;
    let mut stopping = server.stopping.subscribe();
    let entered = tokio::select! {
        entered = log_in(server, stream, address, connection, &login) => entered,
        () = login.lost() => Err(LoginAttemptError::Displaced),
        _ = stopping.wait_for(|stopping| *stopping) => Err(LoginAttemptError::Stopping),
    };
    drop(login);
    let (socket, session, seat) = match entered {
        Ok(Entered::Leading(leading)) => *leading,
        Ok(Entered::Joined) => return,
        Err(failure) => {
            count(&events.failed_logins);
            if matches!(failure, LoginAttemptError::Displaced) {
                count(&events.displaced_connections);
                if let Some(unreported) = server.report(address) {
                    warn!(%address, %failure, unreported, "login failed");
                }
            }
            debug!(%address, %failure, "no login");
            return;
        }
    };
    if session.is_discovery() {
        return discover(server, socket, session, seat).await;
    }
    let initiator = session.initiator_name().to_owned();
    let target = session.target_name().unwrap_or("(discovery)").to_owned();
    let user = seat.user.as_deref().map(printable);
    server.repeated_refusals.end((address.ip(), &initiator, &target));
    let tsih = seat.tsih.0;
    match server.session_report(address.ip()) {
        Some(unreported) => {
            info!(%address, %initiator, %target, user, tsih, unreported, "session opened");
        }
        None => debug!(%address, %initiator, %target, user, tsih, "session opened"),
    }
    let end = driver::run(server, socket, session, seat).await;
    match server.session_report(address.ip()) {
        Some(unreported) if end.is_expected() => {
            info!(%address, %initiator, %target, %end, unreported, "session closed");
        }
        Some(unreported) => {
            warn!(%address, %initiator, %target, %end, unreported, "session dropped");
        }
        None => debug!(%address, %initiator, %target, %end, "session ended"),
    }
}

/// Serves a discovery session. If there are too many, it is closed in favour of a newer one.
async fn discover(
    server: &ServerContext,
    socket: Socket,
    session: Session,
    seat: SessionRegistration,
) {
    let ServerContext { settings, discoveries, discovery_reports, registry, .. } = server;
    let address = socket.address;
    let initiator = session.initiator_name().to_owned();
    let user = seat.user.as_deref().map(printable);
    let (limit, own) =
        (settings.max_discovery_sessions, settings.max_discovery_sessions_per_address);
    let Some(place) = discoveries.enter(address.ip(), limit, own) else { return };
    if let Some(unreported) = discovery_reports.report(address.ip(), Instant::now()) {
        info!(%address, %initiator, user, unreported, "discovery session");
    }
    let end = tokio::select! {
        end = driver::run(server, socket, session, seat) => end,
        () = place.lost() => {
            count(&registry.events.displaced_connections);
            ConnectionEndReason::Displaced
        }
    };
    debug!(%address, %initiator, %end, "discovery session closed");
}

async fn log_in(
    server: &ServerContext,
    stream: TcpStream,
    address: SocketAddr,
    permit: Permit,
    place: &ConnectionPermit,
) -> Result<Entered, LoginAttemptError> {
    let settings = &server.settings;
    let local = stream.local_addr()?;
    let view = server.view(local, address.ip());
    let mut phase = LoginPhase::new(
        settings.offer.clone(),
        Arc::new(view.clone()),
        settings.session.clone(),
        Instant::now(),
    );
    if let Some(challenge) = challenge() {
        phase = phase.with_challenge(challenge);
    }
    let deadline = phase.poll_timeout().into();
    let stream = match timeout_at(deadline, secure(server, stream, local)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(failure)) => return Err(report_failure(server, address, &view, &phase, failure)),
        Err(_) => {
            let failure = LoginAttemptError::Protocol(TargetSessionError::LoginTimeout);
            return Err(report_failure(server, address, &view, &phase, failure));
        }
    };
    let decoder = Decoder::new(RECEIVE_BUFFER, DATA_SEGMENT);
    let mut socket = Socket { stream, decoder, address, local, permit, membership: None };
    let conversation = converse(&mut socket, &mut phase);
    let failure = match timeout_at(deadline, conversation).await {
        // Mark the permit as kept before `enter`, so that newer logins do not displace this one: it may have to wait
        // for an older session to end.
        Ok(Ok(_)) if !place.keep() => return Err(LoginAttemptError::Displaced),
        Ok(Ok(login)) => {
            let entering = enter(server, &view, &login, socket, phase);
            match timeout_at(deadline, entering).await {
                Ok(Ok(entered)) => return Ok(entered),
                Ok(Err((failure, refused))) => {
                    let Some(refused) = refused else { return Err(failure) };
                    (socket, phase) = refused;
                    failure
                }
                Err(_) => {
                    return Err(LoginAttemptError::Protocol(TargetSessionError::LoginTimeout));
                }
            }
        }
        Ok(Err(LoginAttemptError::Refused(LoginStatus::AuthenticationFailure))) => {
            let failure = LoginAttemptError::Refused(LoginStatus::AuthenticationFailure);
            let until = phase.claims().user.map_or_else(Instant::now, |user| {
                // Count a failure only if the initiator sent a user name: without one it did not guess a secret.
                server.chap_delay.failed(address.ip(), &user, Instant::now())
            });
            let failure = report_failure(server, address, &view, &phase, failure);
            place.fail();
            let is_answered = timeout_at(deadline, sleep_until(until.into())).await.is_ok();
            if is_answered {
                let _ = timeout_at(deadline, flush(&mut socket.stream, &mut phase)).await;
            }
            return Err(failure);
        }
        Ok(Err(failure)) => failure,
        Err(_) => LoginAttemptError::Protocol(TargetSessionError::LoginTimeout),
    };
    let _ = timeout_at(deadline, flush(&mut socket.stream, &mut phase)).await;
    Err(report_failure(server, address, &view, &phase, failure))
}

/// Performs the TLS handshake if the portal requires TLS.
async fn secure(
    server: &ServerContext,
    stream: TcpStream,
    local: SocketAddr,
) -> Result<ConnectionStream, LoginAttemptError> {
    let portal = server.portals.entered(local).ok_or(LoginAttemptError::NoPortal)?;
    let Some(tls) = portal.tls else { return Ok(stream.into()) };
    tls.accept(stream).await.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => LoginAttemptError::Closed,
        _ => LoginAttemptError::Tls(error),
    })
}

/// A login that failed after its negotiation: the reason, and the connection if a response still has to be sent.
type Turned = (LoginAttemptError, Option<(Socket, LoginPhase)>);

/// Registers the connection: as a new session, or as a connection of the session that its TSIH names.
async fn enter(
    server: &ServerContext,
    view: &PortalView,
    login: &EstablishedLogin,
    socket: Socket,
    mut phase: LoginPhase,
) -> Result<Entered, Turned> {
    if login.tsih != Tsih(0) {
        return join(server, login, socket, phase).await;
    }
    let mut socket = socket;
    match take_seat(server, view, login, &socket).await {
        Ok((seat, membership)) => {
            socket.membership = membership;
            // `accept` returns a session for every established login, so the error below cannot occur.
            let session = phase.accept(seat.tsih, Instant::now());
            let session =
                session.ok_or((LoginAttemptError::Refused(LoginStatus::TargetError), None))?;
            Ok(Entered::Leading(Box::new((socket, session, seat))))
        }
        Err(status) => {
            phase.refuse(status);
            Err((turned_away(status), Some((socket, phase))))
        }
    }
}

/// Passes the connection to the driver of the session that has the TSIH of the login.
async fn join(
    server: &ServerContext,
    login: &EstablishedLogin,
    mut socket: Socket,
    mut phase: LoginPhase,
) -> Result<Entered, Turned> {
    let found = server
        .registry
        .find(login)
        .and_then(|driver| Ok((driver, server.membership(login, socket.stream.is_tls())?)));
    let driver = match found {
        Ok((driver, membership)) => {
            socket.membership = Some(membership);
            driver
        }
        Err(status) => {
            phase.refuse(status);
            return Err((turned_away(status), Some((socket, phase))));
        }
    };
    let (reply, answer) = oneshot::channel();
    let order = DriverMessage::Join(Box::new(JoiningConnection { socket, phase, reply }));
    driver.send(order).await.map_err(|_| (LoginAttemptError::SessionGone, None))?;
    match answer.await {
        Ok(None) => Ok(Entered::Joined),
        Ok(Some(RefusedJoin { socket, refused })) => {
            let NotJoined { phase, status } = *refused;
            Err((LoginAttemptError::Refused(status), Some((socket, phase))))
        }
        Err(_) => Err((LoginAttemptError::SessionGone, None)),
    }
}

/// Returns the error for a login that is refused although the initiator has authenticated itself.
fn turned_away(status: LoginStatus) -> LoginAttemptError {
    match status {
        LoginStatus::AuthenticationFailure => LoginAttemptError::OtherUser,
        status => LoginAttemptError::Refused(status),
    }
}

/// Returns random bytes of the operating system. A weaker source must not be used for a CHAP challenge
/// (CVE-2024-45751): if there are none, logins that require authentication are refused.
fn challenge() -> Option<Challenge> {
    let mut random = [0; 1 + CHALLENGE_BYTES];
    if let Err(error) = getrandom::fill(&mut random) {
        warn!(%error, "the operating system has no random bytes");
        return None;
    }
    let [identifier, value @ ..] = random;
    Some(Challenge { identifier, value })
}

/// Reports a failed login as one event, with the names that the initiator has sent. Reports nothing if there are too
/// many events about its address, or if the same failure was reported lately.
fn report_failure(
    server: &ServerContext,
    address: SocketAddr,
    view: &PortalView,
    phase: &LoginPhase,
    failure: LoginAttemptError,
) -> LoginAttemptError {
    let claims = phase.claims();
    if matches!(failure, LoginAttemptError::Closed | LoginAttemptError::NoPortal)
        && claims.initiator.is_none()
    {
        // Log this at level debug only: a monitor may connect just to check that the port is open.
        debug!(%address, "closed without a login");
        return failure;
    }
    let initiator = claims.initiator.as_deref().unwrap_or("(no name)");
    let target = claims.target.as_deref().unwrap_or("(discovery)");
    let reason = match (&failure, &claims.target) {
        (LoginAttemptError::Refused(LoginStatus::NotFound), Some(target)) => {
            view.explain(initiator, target)
        }
        (LoginAttemptError::Refused(_), _) => phase.reason().unwrap_or_default(),
        _ => "",
    };
    let user = claims.user.as_deref().map(printable);
    if let Some(reason) = usual(&failure) {
        debug!(%address, %initiator, %target, user, %failure, reason, "login refused");
        return failure;
    }
    let refused = (address.ip(), initiator, target);
    let repeated = match &failure {
        LoginAttemptError::Refused(_)
        | LoginAttemptError::OtherUser
        | LoginAttemptError::Tls(_) => {
            let words = format!("{failure} {reason} {user:?}");
            server.repeated_refusals.note(refused, &words, Instant::now())
        }
        _ => Some(0),
    };
    let unreported = repeated.and_then(|_| server.report(address));
    let Some(unreported) = unreported else {
        if repeated.is_some() {
            // Forget this failure, since it was not reported after all: otherwise the next one would not be reported
            // either.
            server.repeated_refusals.end(refused);
        }
        debug!(%address, %initiator, %target, user, %failure, reason, "login failed");
        return failure;
    };
    let repeated = repeated.filter(|repeated| *repeated > 0);
    warn!(
        %address, %initiator, %target, user, %failure, reason, repeated, unreported, "login failed"
    );
    failure
}

/// Returns an explanation of a refusal that belongs to normal operation; `None` for other refusals. An initiator gets
/// such a refusal only if it may log in to the target, so a stranger cannot use one to avoid an event.
fn usual(failure: &LoginAttemptError) -> Option<&'static str> {
    match failure {
        LoginAttemptError::Refused(LoginStatus::SessionDoesNotExist) => Some(
            "the initiator tried to reinstate a session that has ended, as after a restart; it will open a new one",
        ),
        LoginAttemptError::Refused(LoginStatus::ServiceUnavailable) => {
            Some("the target is not served here at present, as at the standby gateway of a pair")
        }
        _ => None,
    }
}

/// Makes a name that an initiator has sent safe for a line of the event log: escapes and truncates it.
fn printable(name: &str) -> String {
    /// Most characters of a name that are shown; names in practice are shorter.
    const CHARACTERS: usize = 64;
    let cut: String = name.chars().take(CHARACTERS).collect();
    cut.escape_debug().to_string()
}

/// Exchanges login PDUs until the login is established or has failed.
async fn converse(
    socket: &mut Socket,
    phase: &mut LoginPhase,
) -> Result<EstablishedLogin, LoginAttemptError> {
    let Socket { stream, decoder, .. } = socket;
    loop {
        while let Some(frame) = decoder.next().map_err(TargetSessionError::from)? {
            match phase.handle_frame(&frame) {
                LoginProgress::Continue => {}
                LoginProgress::Established(login) => return Ok(login.clone()),
                LoginProgress::Close(status) => return Err(LoginAttemptError::Refused(status)),
                LoginProgress::NoLogin => return Err(LoginAttemptError::NoLogin),
            }
            // Send the response before the next request is read: otherwise a peer that does not read could make
            // responses pile up.
            flush(stream, phase).await?;
        }
        match receive(stream, decoder)? {
            Received::Bytes(_) => {}
            Received::Nothing => stream.readable().await?,
            Received::Closed => return Err(LoginAttemptError::Closed),
        }
    }
}

async fn flush(stream: &mut ConnectionStream, phase: &mut LoginPhase) -> io::Result<()> {
    while send(stream, phase.output_mut())? == SendProgress::Blocked {
        stream.writable().await?;
    }
    Ok(())
}

/// Registers a new session. An older session of the same name, with all of its commands, ends first: a write of the
/// old session must not be performed after one of the new session.
async fn take_seat(
    server: &ServerContext,
    view: &PortalView,
    login: &EstablishedLogin,
    socket: &Socket,
) -> Result<(SessionRegistration, Option<Permit>), LoginStatus> {
    let registry = &server.registry;
    let is_user = |name: &str| view.security.users.iter().any(|user| user.name == name);
    while let Some(predecessor) = registry.predecessor(login, is_user)? {
        if tokio::time::timeout(REPLACEMENT, predecessor.close()).await.is_err() {
            return Err(LoginStatus::OutOfResources);
        }
    }
    if login.session_type == SessionType::Normal {
        // Ignore a timeout: the wait matters only for sessions that have already ended, and the login need not fail
        // because of them.
        let _ = tokio::time::timeout(SETTLING, registry.settle(login)).await;
    }
    let membership = match login.session_type {
        SessionType::Normal => Some(server.membership(login, socket.stream.is_tls())?),
        SessionType::Discovery => None,
    };
    let seat = registry.enter(login, socket.address).ok_or(LoginStatus::OutOfResources)?;
    // Check this after the session is registered. A caller that stops the server, or removes a target, first sets a
    // flag and then closes all registered sessions. So either the caller closes this session, or this check sees the
    // flag.
    if *server.stopping.borrow() {
        return Err(LoginStatus::ServiceUnavailable);
    }
    match login.target_name.as_deref().map(|name| view.find(name)) {
        Some(None) => return Err(LoginStatus::NotFound),
        // The target was moved while the login was in progress. The initiator learns the new location when it tries
        // again.
        Some(Some(device)) if device.is_unavailable || device.redirect.is_some() => {
            return Err(LoginStatus::ServiceUnavailable);
        }
        Some(Some(_)) | None => {}
    }
    Ok((seat, membership))
}

impl ServerContext {
    /// Takes a permit for another connection of a normal session.
    fn membership(&self, login: &EstablishedLogin, is_tls: bool) -> Result<Permit, LoginStatus> {
        let Self { settings, registry, .. } = self;
        // A portal with TLS requires a client certificate. Without CHAP users no initiator can authenticate, so no
        // permits are reserved.
        let has_proved = is_tls || login.user.is_some() || self.security.read().users.is_empty();
        let limit =
            if has_proved { settings.max_connections } else { settings.unproved_connections() };
        Permit::take(&registry.members, limit).ok_or_else(|| {
            count(&registry.events.refused_connections);
            LoginStatus::OutOfResources
        })
    }

    /// Returns the number of events about logins of this address that were left out since the last report; `None` if
    /// this event must not be reported either.
    fn report(&self, address: SocketAddr) -> Option<u64> {
        self.login_reports.report(address.ip(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_chosen_by_an_initiator_cannot_forge_an_event() {
        let forged = "bob\n2026-11-21T00:00:00Z  INFO session opened\u{1b}[2J\u{202e}";
        let line = printable(forged);
        assert!(line.starts_with("bob\\n2026"), "{line}");
        assert!(!line.chars().any(char::is_control), "{line}");
        assert!(printable(&"x".repeat(10_000)).len() < 100);
    }
}
