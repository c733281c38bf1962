//! Tests the access to targets: authentication, rules, discovery, delays against guessing secrets, and limits on the
//! number of connections.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use iscsi::{
    Cid, Isid, Pdu, Serial, Tsih,
    keys::NegotiationOffer,
    login::{
        InitiatorLogin, InitiatorNames, LoginFailure,
        chap::{Challenge, ChapAlgorithm, ChapSecret, Credential, InitiatorChap},
    },
    pdu::LoginStatus,
};
use target::{
    LoginAccess, LoginAccessRule, Portal, PortalGroup, Redirect, Security, Settings, Target,
    TargetServer,
};
use tokio::{
    io::AsyncReadExt,
    net::{TcpSocket, TcpStream},
};

use crate::{
    client::{Client, memory, refused, soon, until},
    events::Log,
};

/// The next five targets admit: every initiator, only alice, alice from another host only, only bob, and initiators of
/// another network only.
const OPEN: &str = "iqn.2026-11.io.forebay:open";
const ALICES: &str = "iqn.2026-11.io.forebay:alices";
const HOSTS: &str = "iqn.2026-11.io.forebay:hosts";
const BOBS: &str = "iqn.2026-11.io.forebay:bobs";
const FAR: &str = "iqn.2026-11.io.forebay:far";
const UNKNOWN: &str = "iqn.2026-11.io.forebay:unknown";
const HOST: &str = "iqn.2026-11.com.example:host";
const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

fn credential(name: &str) -> Credential {
    let secret = format!("the secret of {name}");
    Credential { name: name.to_owned(), secret: ChapSecret::new(secret.as_bytes()).unwrap() }
}

fn rule(initiator: &str, network: &str, user: &str) -> LoginAccessRule {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let network = some(network).map(|text| text.parse().unwrap());
    LoginAccessRule { initiator: some(initiator), network, user: some(user) }
}

fn target(name: &str, rules: Option<Vec<LoginAccessRule>>) -> Target {
    let mutual = (name == ALICES).then(|| credential("storage"));
    let access = LoginAccess { rules, mutual };
    Target { access, alias: Some("a disk".into()), ..Target::new(name, vec![(0, memory())]) }
}

fn targets() -> Vec<Target> {
    vec![
        target(OPEN, None),
        target(ALICES, Some(vec![rule("", "", "alice")])),
        target(HOSTS, Some(vec![rule("iqn.2026-11.com.other:*", "", "alice")])),
        target(BOBS, Some(vec![rule("", "", "bob")])),
        target(FAR, Some(vec![rule("", "127.0.0.2", "")])),
    ]
}

fn security() -> Security {
    let users = [credential("alice"), credential("bob")];
    Security { users: users.into(), ..Security::default() }
}

async fn serve(settings: Settings, targets: Vec<Target>) -> (TargetServer, SocketAddr) {
    let server = TargetServer::new(settings, targets).unwrap();
    let address = server.listen((HERE, 0).into()).await.unwrap();
    (server, address)
}

async fn guarded() -> (TargetServer, SocketAddr) {
    serve(Settings { security: security(), ..Settings::default() }, targets()).await
}

/// Connects from `from`, which is an address of this machine.
async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    soon(socket.connect(to)).await.unwrap()
}

async fn log_in(
    (from, to): (Ipv4Addr, SocketAddr),
    target: Option<&str>,
    chap: Option<InitiatorChap>,
) -> Result<Client, LoginFailure> {
    join((from, to), target, chap, Tsih(0), Cid(1)).await
}

/// Logs in a connection that joins an existing session, or creates one with TSIH 0.
async fn join(
    (from, to): (Ipv4Addr, SocketAddr),
    target: Option<&str>,
    chap: Option<InitiatorChap>,
    tsih: Tsih,
    cid: Cid,
) -> Result<Client, LoginFailure> {
    let names = InitiatorNames {
        initiator_name: HOST.to_owned(),
        initiator_alias: None,
        target_name: target.map(str::to_owned),
    };
    let isid = Isid([0x80, 0, 0, 0, 0, 1]);
    let mut login = InitiatorLogin::new(
        NegotiationOffer { max_connections: 4, ..NegotiationOffer::initiator() },
        names,
        isid,
        tsih,
        cid,
        Serial(1),
    );
    if let Some(chap) = chap {
        login = login.with_chap(chap, Challenge { identifier: 3, value: [3; 32] });
    }
    Client::on(connect(from, to).await).run(login).await
}

fn chap(name: &str) -> Option<InitiatorChap> {
    let algorithms = ChapAlgorithm::ALL.to_vec();
    Some(InitiatorChap { user: credential(name), target: None, algorithms })
}

fn wrong(name: &str) -> Option<InitiatorChap> {
    let secret = credential("somebody else").secret;
    let user = Credential { name: name.to_owned(), secret };
    Some(InitiatorChap { user, target: None, algorithms: vec![ChapAlgorithm::Md5] })
}

/// Logs in to `target` and drops the connection. Returns the login status if the login is refused.
async fn end(to: SocketAddr, target: &str, chap: Option<InitiatorChap>) -> Result<(), LoginStatus> {
    let login = log_in((HERE, to), Some(target), chap).await;
    login.map(|_| ()).map_err(refused)
}

/// Returns the names of the targets that a discovery session gets.
async fn seen(to: SocketAddr, chap: Option<InitiatorChap>) -> Result<Vec<String>, LoginStatus> {
    let mut client = log_in((HERE, to), None, chap).await.map_err(refused)?;
    let text = client.send_targets("All").await;
    let pairs = iscsi::keys::pairs(text.as_bytes()).map(Result::unwrap);
    let names = pairs.filter(|(key, _)| *key == "TargetName").map(|(_, name)| name.to_owned());
    Ok(names.collect())
}

#[tokio::test]
async fn each_target_admits_only_the_initiators_in_its_rules() {
    let (server, address) = guarded().await;
    assert_eq!(end(address, OPEN, None).await, Ok(()));
    assert_eq!(end(address, OPEN, chap("alice")).await, Ok(()), "None is enough, and chosen");
    assert_eq!(end(address, ALICES, chap("alice")).await, Ok(()));
    assert_eq!(end(address, BOBS, chap("bob")).await, Ok(()));
    assert_eq!(end(address, ALICES, None).await, Err(LoginStatus::AuthenticationFailure));
    let both = InitiatorChap { target: Some(credential("storage")), ..chap("alice").unwrap() };
    assert_eq!(end(address, ALICES, Some(both)).await, Ok(()), "mutual");
    assert!(log_in((THERE, address), Some(FAR), None).await.is_ok());
    until(|| server.statistics().failed_logins == 1).await;
}

/// RFC 7143 has 0202 for forbidden and 0203 for unknown targets; different answers would reveal the existence of a
/// target.
#[tokio::test]
async fn a_forbidden_target_looks_like_an_unknown_one() {
    let (_server, address) = guarded().await;
    let failure = Err(LoginStatus::AuthenticationFailure);
    for target in [ALICES, HOSTS, BOBS, FAR, UNKNOWN] {
        assert_eq!(end(address, target, None).await, failure, "{target}");
    }
    for target in [BOBS, HOSTS, FAR, UNKNOWN] {
        let end = end(address, target, chap("alice")).await;
        assert_eq!(end, Err(LoginStatus::NotFound), "{target}");
    }
    // Without CHAP users, logins to a forbidden and to an unknown target are refused at once.
    let open = vec![target(FAR, Some(vec![rule("", "127.0.0.2", "")]))];
    let (_server, address) = serve(Settings::default(), open).await;
    for target in [FAR, UNKNOWN] {
        assert_eq!(end(address, target, None).await, Err(LoginStatus::NotFound));
    }
}

#[tokio::test]
async fn a_wrong_chap_response_reveals_no_targets_and_users() {
    let (_server, address) = guarded().await;
    for (target, user) in [(ALICES, "alice"), (UNKNOWN, "alice"), (ALICES, "unknown")] {
        let end = end(address, target, wrong(user)).await;
        assert_eq!(end, Err(LoginStatus::AuthenticationFailure), "{target} {user}");
    }
}

#[tokio::test]
async fn discovery_lists_only_targets_that_the_initiator_may_use() {
    let (server, address) = guarded().await;
    assert_eq!(seen(address, None).await.unwrap(), [OPEN]);
    assert_eq!(seen(address, chap("alice")).await.unwrap(), [OPEN, ALICES]);
    assert_eq!(seen(address, chap("bob")).await.unwrap(), [OPEN, BOBS]);
    assert_eq!(seen(address, wrong("bob")).await, Err(LoginStatus::AuthenticationFailure));
    // From now on the rules require authentication for discovery. They apply to connections that are made later.
    let discovery = LoginAccess { rules: Some(vec![rule("", "", "bob")]), mutual: None };
    server.change_security(Security { discovery, ..security() });
    assert_eq!(seen(address, None).await, Err(LoginStatus::AuthenticationFailure));
    assert_eq!(seen(address, chap("alice")).await, Err(LoginStatus::AuthorizationFailure));
    assert_eq!(seen(address, chap("bob")).await.unwrap(), [OPEN, BOBS]);
    let closed = LoginAccess { rules: Some(Vec::new()), mutual: None };
    server.change_security(Security { discovery: closed, ..security() });
    assert_eq!(seen(address, chap("bob")).await, Err(LoginStatus::AuthorizationFailure));
}

#[tokio::test]
async fn changed_access_rules_apply_to_the_next_login() {
    let (server, address) = guarded().await;
    let mut inside = log_in((HERE, address), Some(ALICES), chap("alice")).await.unwrap();
    let access = LoginAccess { rules: Some(vec![rule("", "", "bob")]), mutual: None };
    assert!(server.change_access(ALICES, access));
    assert_eq!(end(address, ALICES, chap("alice")).await, Err(LoginStatus::NotFound));
    inside.settle().await;
    assert!(!server.change_access(UNKNOWN, LoginAccess::default()));
}

#[tokio::test]
async fn another_user_cannot_end_a_session_by_the_name_of_its_initiator() {
    let both = vec![rule("", "", "alice"), rule("", "", "bob")];
    let settings = Settings { security: security(), ..Settings::default() };
    let (server, address) = serve(settings, vec![target(ALICES, Some(both.clone()))]).await;
    let mut alice = log_in((HERE, address), Some(ALICES), chap("alice")).await.unwrap();
    alice.settle().await;
    let bob = end(address, ALICES, chap("bob")).await;
    assert_eq!(bob, Err(LoginStatus::AuthenticationFailure));
    alice.settle().await;
    // A user may replace a session of their own, as after a lost connection.
    let mut again = log_in((HERE, address), Some(ALICES), chap("alice")).await.unwrap();
    again.settle().await;
    assert_eq!(server.statistics().sessions.len(), 1);
    // After alice was removed from the settings, her session does not keep bob from logging in.
    let users = [credential("bob")];
    server.change_security(Security { users: users.into(), ..security() });
    log_in((HERE, address), Some(ALICES), chap("bob")).await.unwrap();
}

#[tokio::test]
async fn an_initiator_is_redirected_only_after_authentication() {
    let redirect = Some(Redirect { address: "10.0.0.9:3260".into(), permanent: false });
    let moved = Target { redirect, ..target(ALICES, Some(vec![rule("", "", "alice")])) };
    let settings = Settings { security: security(), ..Settings::default() };
    let (_server, address) = serve(settings, vec![moved]).await;
    assert_eq!(end(address, ALICES, None).await, Err(LoginStatus::AuthenticationFailure));
    assert_eq!(end(address, ALICES, chap("bob")).await, Err(LoginStatus::NotFound));
    let sent = tokio::spawn(async move { end(address, ALICES, chap("alice")).await });
    // The redirect makes the client of these tests panic.
    assert!(sent.await.unwrap_err().is_panic());
}

/// Regression: 40 guesses that arrived together were each answered immediately.
#[tokio::test]
async fn wrong_chap_responses_are_delayed_and_right_ones_are_not() {
    let (_server, address) = guarded().await;
    let begun = Instant::now();
    // Guess the secret of one user from four addresses, and of four users from one address.
    let guesses = (1..=4).flat_map(|n| {
        let (there, unknown) = (Ipv4Addr::new(127, 0, 0, 10 + n), format!("unknown{n}"));
        [(there, "alice".to_owned()), (HERE, unknown)]
    });
    let mut guessing = tokio::task::JoinSet::new();
    for (from, user) in guesses {
        guessing.spawn(async move {
            let login = log_in((from, address), Some(ALICES), wrong(&user)).await;
            assert_eq!(login.err().map(refused), Some(LoginStatus::AuthenticationFailure));
            (user == "alice", begun.elapsed())
        });
    }
    let waiting = Duration::from_millis(200);
    while begun.elapsed() < waiting {
        tokio::task::yield_now().await;
    }
    for (from, user) in [(HERE, "alice"), (Ipv4Addr::new(127, 0, 0, 11), "alice")] {
        let asked = Instant::now();
        log_in((from, address), Some(ALICES), chap(user)).await.unwrap();
        // The second wrong proof of an address or a user waits 750 ms, and later ones wait longer.
        assert!(asked.elapsed() < Duration::from_millis(750), "{:?}", asked.elapsed());
    }
    let mut answered: [Vec<Duration>; 2] = Default::default();
    while let Some(done) = guessing.join_next().await {
        let (is_alice, elapsed) = done.unwrap();
        answered[usize::from(is_alice)].push(elapsed);
    }
    for times in answered {
        for (answer, due) in times.iter().zip([250, 750, 1750, 3750]) {
            assert!(*answer >= Duration::from_millis(due), "{times:?}");
        }
    }
}

#[tokio::test]
async fn one_address_cannot_use_all_login_slots() {
    let settings = Settings { max_logins: 4, max_logins_per_address: 2, ..Settings::default() };
    let (server, address) = serve(settings, targets()).await;
    let [mut longest, _other] = [connect(HERE, address).await, connect(HERE, address).await];
    until(|| server.statistics().logins_in_progress == 2).await;
    let _third = connect(HERE, address).await;
    assert_eq!(soon(longest.read(&mut [0; 1])).await.unwrap_or(0), 0, "it gives way");
    until(|| server.statistics().displaced_connections == 1).await;
    assert!(log_in((THERE, address), Some(OPEN), None).await.is_ok());
}

/// Regression test: 64 silent connections from each of two addresses blocked all other initiators.
#[tokio::test]
async fn half_open_logins_of_two_addresses_block_no_other_initiator() {
    let (server, address) = guarded().await;
    let mut waiting = Vec::new();
    for from in [8, 9] {
        for _ in 0..64 {
            waiting.push(connect(Ipv4Addr::new(127, 0, 0, from), address).await);
        }
    }
    until(|| server.statistics().logins_in_progress == 128).await;
    for target in [ALICES, OPEN] {
        log_in((HERE, address), Some(target), chap("alice")).await.unwrap();
    }
    assert_eq!(server.statistics().refused_connections, 0);
}

/// Logs in to the open target as initiator number `who`.
async fn log_in_as(
    who: u8,
    to: SocketAddr,
    chap: Option<InitiatorChap>,
) -> Result<Client, LoginStatus> {
    log_in_as_to(who, (HERE, to), Some(OPEN), chap).await
}

async fn log_in_as_to(
    who: u8,
    (from, to): (Ipv4Addr, SocketAddr),
    target: Option<&str>,
    chap: Option<InitiatorChap>,
) -> Result<Client, LoginStatus> {
    let names = InitiatorNames {
        initiator_name: format!("{HOST}{who}"),
        initiator_alias: None,
        target_name: target.map(str::to_owned),
    };
    let isid = Isid([0x80, 0, 0, 0, 0, who]);
    let mut login =
        InitiatorLogin::new(NegotiationOffer::initiator(), names, isid, Tsih(0), Cid(1), Serial(1));
    if let Some(chap) = chap {
        login = login.with_chap(chap, Challenge { identifier: 3, value: [3; 32] });
    }
    Client::on(connect(from, to).await).run(login).await.map_err(refused)
}

#[tokio::test]
async fn a_quarter_of_the_connections_is_reserved_for_authenticated_users() {
    // The first rule admits the strangers without authentication (AuthMethod None). The second one admits `user`, who
    // has to authenticate.
    let open = |user| {
        vec![target(OPEN, Some(vec![rule(&format!("{HOST}1*"), "", ""), rule("", "", user)]))]
    };
    let settings = Settings { max_connections: 4, security: security(), ..Settings::default() };
    let (server, address) = serve(settings, open("alice")).await;
    let mut strangers = Vec::new();
    for who in 10..13 {
        strangers.push(log_in_as(who, address, None).await.unwrap());
    }
    let refusal = log_in_as(13, address, None).await.err();
    assert_eq!(refusal, Some(LoginStatus::OutOfResources));
    let mut alice = log_in_as(2, address, chap("alice")).await.unwrap();
    alice.settle().await;
    let refusal = log_in_as(3, address, chap("alice")).await.err();
    assert_eq!(refusal, Some(LoginStatus::OutOfResources));
    assert_eq!(server.statistics().refused_connections, 2);
}

/// Regression: discovery sessions without authentication took all places.
#[tokio::test]
async fn discovery_sessions_block_no_other_initiator() {
    let settings = Settings {
        max_connections: 4,
        max_discovery_sessions: 6,
        max_discovery_sessions_per_address: 4,
        security: security(),
        ..Settings::default()
    };
    let (server, address) = serve(settings, targets()).await;
    let mut discoveries = Vec::new();
    for (who, from) in (1..).zip([HERE, HERE, HERE, HERE, HERE, THERE, THERE, THERE]) {
        discoveries.push(log_in_as_to(who, (from, address), None, None).await.unwrap());
        if who == 5 {
            // The server has room for one more discovery session, but this address has reached its own limit.
            until(|| server.statistics().displaced_connections == 1).await;
            assert_eq!(server.statistics().discovery_sessions, 4);
        }
    }
    let open = || server.statistics().sessions.len();
    until(|| open() == 6).await;
    assert_eq!(server.statistics().discovery_sessions, 6);
    assert_eq!(server.statistics().displaced_connections, 2);
    // The first session was closed when its address opened a fifth one, and the second when the other address opened
    // its third one.
    for displaced in &mut discoveries[..2] {
        assert!(soon(displaced.receive()).await.is_none());
    }
    assert!(discoveries[7].send_targets("All").await.contains(OPEN));
    let mut alice = log_in((HERE, address), Some(ALICES), chap("alice")).await.unwrap();
    alice.settle().await;
    assert_eq!(seen(address, chap("alice")).await.unwrap(), [OPEN, ALICES]);
}

#[tokio::test]
async fn an_idle_discovery_session_is_closed_soon() {
    let idle = Duration::from_millis(300);
    let mut settings = Settings { discovery_idle: idle, ..Settings::default() };
    settings.session.ping_after = Duration::from_millis(20);
    let (server, address) = serve(settings, targets()).await;
    let begun = Instant::now();
    let mut client = log_in((HERE, address), None, None).await.unwrap();
    // The initiator answers pings, but that must not keep the discovery session open.
    let mut pings = 0;
    while let Some(pdu) = soon(client.receive()).await {
        let Pdu::NopIn(ping) = pdu else { panic!("{pdu:?}") };
        client.answer_ping(&ping).await;
        pings += 1;
    }
    assert!(pings > 1 && begun.elapsed() >= idle, "{pings} pings");
    until(|| server.statistics().sessions.is_empty()).await;
}

/// Regression: 3,000 discovery sessions wrote 2 MB of events.
#[tokio::test]
async fn many_discovery_sessions_are_reported_in_one_event() {
    let log = Log::start();
    let (server, address) = serve(Settings::default(), targets()).await;
    for _ in 0..20 {
        assert!(!seen(address, None).await.unwrap().is_empty());
    }
    until(|| server.statistics().sessions.is_empty()).await;
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("discovery session") && lines[0].contains(HOST), "{lines:?}");
    seen(address, None).await.unwrap();
    assert_eq!(server.statistics().opened_sessions, 21);
}

/// Regression: an initiator that may log in to an open target could fill the log with events, two lines for each
/// session.
#[tokio::test]
async fn sessions_that_are_opened_and_closed_repeatedly_do_not_flood_the_events() {
    let log = Log::start();
    let (server, address) = serve(Settings::default(), targets()).await;
    let begun = Instant::now();
    for _ in 0..80 {
        drop(log_in((HERE, address), Some(OPEN), None).await.unwrap());
        until(|| server.statistics().sessions.is_empty()).await;
    }
    let lines = log.lines();
    let periods = 1 + begun.elapsed().as_secs() as usize / 10;
    assert!((100..=100 * periods).contains(&lines.len()), "{} lines", lines.len());
    assert!(lines[0].contains("session opened") && lines[0].contains(HOST), "{lines:?}");
    assert!(lines[1].contains("session closed") && lines[99].contains("session closed"));
}

/// A target of another portal group is reported as not found, even to a user who may log in to it through its own
/// group.
#[tokio::test]
async fn a_target_of_another_group_is_unknown_to_its_own_user() {
    let group = PortalGroup { number: 1, tag: 2 };
    let mut bobs = target(BOBS, Some(vec![rule("", "", "bob")]));
    bobs.groups = vec![group];
    let settings = Settings { security: security(), ..Settings::default() };
    let (server, first) = serve(settings, vec![target(OPEN, None), bobs]).await;
    let portal = Portal { group, ..Portal::from(SocketAddr::from((HERE, 0))) };
    let second = server.open_portal(portal).await.unwrap();
    assert_eq!(end(first, BOBS, chap("bob")).await, Err(LoginStatus::NotFound));
    assert_eq!(end(second, BOBS, chap("bob")).await, Ok(()));
    assert_eq!(seen(first, chap("bob")).await.unwrap(), [OPEN]);
    assert_eq!(seen(second, chap("bob")).await.unwrap(), [BOBS]);
}

/// RFC 7143, 9.2: the identities are the same for all connections of a session.
/// A session is replaced by a new one of its name only when that one has been admitted (RFC 7143, 6.3.5).
#[tokio::test]
async fn a_refused_login_replaces_no_session() {
    let (server, address) = guarded().await;
    let mut bobs = log_in((HERE, address), Some(BOBS), chap("bob")).await.unwrap();
    for newcomer in [None, chap("alice"), wrong("bob")] {
        assert!(log_in((HERE, address), Some(BOBS), newcomer).await.is_err());
    }
    bobs.settle().await;
    assert_eq!(server.statistics().sessions.len(), 1);
    drop(bobs);
}

#[tokio::test]
async fn another_user_cannot_join_a_session() {
    let both = target(BOBS, Some(vec![rule("", "", "alice"), rule("", "", "bob")]));
    let settings = Settings { security: security(), ..Settings::default() };
    let (_server, address) = serve(settings, vec![both]).await;
    let bobs = log_in((HERE, address), Some(BOBS), chap("bob")).await.unwrap();
    let join = |chap| join((HERE, address), Some(BOBS), chap, bobs.tsih, Cid(2));
    let refusal = refused(join(chap("alice")).await.err().unwrap());
    assert_eq!(refusal, LoginStatus::AuthenticationFailure);
    assert!(join(chap("bob")).await.is_ok());
}
