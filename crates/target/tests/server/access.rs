//! Who is let in: proofs, rules, discovery, guesses, places.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use iscsi::{
    Cid, Isid, Serial, Tsih,
    keys::Offer,
    login::{
        InitiatorLogin, InitiatorNames, LoginFailure,
        chap::{Algorithm, Challenge, Chap, Credential, Secret},
    },
    pdu::LoginStatus,
};
use target::{Access, Portal, PortalGroup, Redirect, Rule, Security, Server, Settings, Target};
use tokio::{
    io::AsyncReadExt,
    net::{TcpSocket, TcpStream},
};

use crate::client::{Client, memory, refused, soon, until};

/// Open to everybody, to alice, to alice from another host, to bob, to one other network.
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
    Credential { name: name.to_owned(), secret: Secret::new(secret.as_bytes()).unwrap() }
}

fn rule(initiator: &str, network: &str, user: &str) -> Rule {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let network = some(network).map(|text| text.parse().unwrap());
    Rule { initiator: some(initiator), network, user: some(user) }
}

fn target(name: &str, rules: Option<Vec<Rule>>) -> Target {
    let mutual = (name == ALICES).then(|| credential("storage"));
    let access = Access { rules, mutual };
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

async fn serve(settings: Settings, targets: Vec<Target>) -> (Server, SocketAddr) {
    let server = Server::new(settings, targets).unwrap();
    let address = server.listen((HERE, 0).into()).await.unwrap();
    (server, address)
}

async fn guarded() -> (Server, SocketAddr) {
    serve(Settings { security: security(), ..Settings::default() }, targets()).await
}

/// A connection from one of our own addresses.
async fn connect(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    soon(socket.connect(to)).await.unwrap()
}

async fn log_in(
    (from, to): (Ipv4Addr, SocketAddr),
    target: Option<&str>,
    chap: Option<Chap>,
) -> Result<Client, LoginFailure> {
    join((from, to), target, chap, Tsih(0), Cid(1)).await
}

/// A connection of a session that is there, or with TSIH 0 of a new one.
async fn join(
    (from, to): (Ipv4Addr, SocketAddr),
    target: Option<&str>,
    chap: Option<Chap>,
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
        Offer { max_connections: 4, ..Offer::initiator() },
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

fn chap(name: &str) -> Option<Chap> {
    let algorithms = Algorithm::ALL.to_vec();
    Some(Chap { user: credential(name), target: None, algorithms })
}

fn wrong(name: &str) -> Option<Chap> {
    let secret = credential("somebody else").secret;
    let user = Credential { name: name.to_owned(), secret };
    Some(Chap { user, target: None, algorithms: vec![Algorithm::Md5] })
}

/// How a login ends; `Ok` if it succeeds.
async fn end(to: SocketAddr, target: &str, chap: Option<Chap>) -> Result<(), LoginStatus> {
    let login = log_in((HERE, to), Some(target), chap).await;
    login.map(|_| ()).map_err(refused)
}

/// The names that discovery tells.
async fn seen(to: SocketAddr, chap: Option<Chap>) -> Result<Vec<String>, LoginStatus> {
    let mut client = log_in((HERE, to), None, chap).await.map_err(refused)?;
    let text = client.send_targets("All").await;
    let pairs = iscsi::keys::pairs(text.as_bytes()).map(Result::unwrap);
    let names = pairs.filter(|(key, _)| *key == "TargetName").map(|(_, name)| name.to_owned());
    Ok(names.collect())
}

#[tokio::test]
async fn each_target_lets_in_who_is_meant() {
    let (server, address) = guarded().await;
    assert_eq!(end(address, OPEN, None).await, Ok(()));
    assert_eq!(end(address, OPEN, chap("alice")).await, Ok(()), "None is enough, and chosen");
    assert_eq!(end(address, ALICES, chap("alice")).await, Ok(()));
    assert_eq!(end(address, BOBS, chap("bob")).await, Ok(()));
    assert_eq!(end(address, ALICES, None).await, Err(LoginStatus::AuthenticationFailure));
    let both = Chap { target: Some(credential("storage")), ..chap("alice").unwrap() };
    assert_eq!(end(address, ALICES, Some(both)).await, Ok(()), "mutual");
    assert!(log_in((THERE, address), Some(FAR), None).await.is_ok());
    until(|| server.statistics().failed_logins == 1).await;
}

/// RFC 7143 has 0202 for the forbidden and 0203 for the unknown, which would tell them apart.
#[tokio::test]
async fn what_is_not_for_somebody_looks_like_what_is_not_there() {
    let (_server, address) = guarded().await;
    let failure = Err(LoginStatus::AuthenticationFailure);
    for target in [ALICES, HOSTS, BOBS, FAR, UNKNOWN] {
        assert_eq!(end(address, target, None).await, failure, "{target}");
    }
    for target in [BOBS, HOSTS, FAR, UNKNOWN] {
        let end = end(address, target, chap("alice")).await;
        assert_eq!(end, Err(LoginStatus::NotFound), "{target}");
    }
    // Where nobody can prove anything, both are refused at once.
    let open = vec![target(FAR, Some(vec![rule("", "127.0.0.2", "")]))];
    let (_server, address) = serve(Settings::default(), open).await;
    for target in [FAR, UNKNOWN] {
        assert_eq!(end(address, target, None).await, Err(LoginStatus::NotFound));
    }
}

#[tokio::test]
async fn a_wrong_proof_says_nothing_about_targets_and_users() {
    let (_server, address) = guarded().await;
    for (target, user) in [(ALICES, "alice"), (UNKNOWN, "alice"), (ALICES, "nobody")] {
        let end = end(address, target, wrong(user)).await;
        assert_eq!(end, Err(LoginStatus::AuthenticationFailure), "{target} {user}");
    }
}

#[tokio::test]
async fn discovery_tells_what_the_asker_may_log_in_to() {
    let (server, address) = guarded().await;
    assert_eq!(seen(address, None).await.unwrap(), [OPEN]);
    assert_eq!(seen(address, chap("alice")).await.unwrap(), [OPEN, ALICES]);
    assert_eq!(seen(address, chap("bob")).await.unwrap(), [OPEN, BOBS]);
    assert_eq!(seen(address, wrong("bob")).await, Err(LoginStatus::AuthenticationFailure));
    // Only who has proved something may ask, from the next connection on.
    let discovery = Access { rules: Some(vec![rule("", "", "bob")]), mutual: None };
    server.change_security(Security { discovery, ..security() });
    assert_eq!(seen(address, None).await, Err(LoginStatus::AuthenticationFailure));
    assert_eq!(seen(address, chap("alice")).await, Err(LoginStatus::AuthorizationFailure));
    assert_eq!(seen(address, chap("bob")).await.unwrap(), [OPEN, BOBS]);
    let nobody = Access { rules: Some(Vec::new()), mutual: None };
    server.change_security(Security { discovery: nobody, ..security() });
    assert_eq!(seen(address, chap("bob")).await, Err(LoginStatus::AuthorizationFailure));
}

#[tokio::test]
async fn rules_change_for_the_next_login() {
    let (server, address) = guarded().await;
    let mut inside = log_in((HERE, address), Some(ALICES), chap("alice")).await.unwrap();
    let access = Access { rules: Some(vec![rule("", "", "bob")]), mutual: None };
    assert!(server.change_access(ALICES, access));
    assert_eq!(end(address, ALICES, chap("alice")).await, Err(LoginStatus::NotFound));
    inside.settle().await;
    assert!(!server.change_access(UNKNOWN, Access::default()));
}

#[tokio::test]
async fn who_is_sent_elsewhere_has_proved_himself_first() {
    let redirect = Some(Redirect { address: "10.0.0.9:3260".into(), permanent: false });
    let moved = Target { redirect, ..target(ALICES, Some(vec![rule("", "", "alice")])) };
    let settings = Settings { security: security(), ..Settings::default() };
    let (_server, address) = serve(settings, vec![moved]).await;
    assert_eq!(end(address, ALICES, None).await, Err(LoginStatus::AuthenticationFailure));
    assert_eq!(end(address, ALICES, chap("bob")).await, Err(LoginStatus::NotFound));
    let sent = tokio::spawn(async move { end(address, ALICES, chap("alice")).await });
    // The client of these tests does not follow: it gives up.
    assert!(sent.await.unwrap_err().is_panic());
}

#[tokio::test]
async fn after_a_wrong_proof_an_address_has_to_wait() {
    let (_server, address) = guarded().await;
    let elapsed = async |chap: Option<Chap>| {
        let begun = Instant::now();
        let login = log_in((HERE, address), Some(ALICES), chap).await;
        (login.is_ok(), begun.elapsed())
    };
    assert!(!elapsed(wrong("alice")).await.0);
    let (is_in, took) = elapsed(wrong("alice")).await;
    assert!(!is_in && took >= Duration::from_millis(200), "{took:?}");
    let (is_in, took) = elapsed(chap("alice")).await;
    assert!(is_in && took >= Duration::from_millis(450), "{took:?}");
    let begun = Instant::now();
    log_in((THERE, address), Some(ALICES), chap("alice")).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "another address does not wait");
}

#[tokio::test]
async fn one_address_cannot_take_all_places() {
    let settings = Settings { max_logins: 4, max_logins_per_address: 2, ..Settings::default() };
    let (server, address) = serve(settings, targets()).await;
    let _waiting = [connect(HERE, address).await, connect(HERE, address).await];
    until(|| server.statistics().logins_in_progress == 2).await;
    let mut third = connect(HERE, address).await;
    assert_eq!(soon(third.read(&mut [0; 1])).await.unwrap_or(0), 0, "closed at once");
    assert_eq!(server.statistics().refused_connections, 1);
    assert!(log_in((THERE, address), Some(OPEN), None).await.is_ok());
}

/// Groups and rules together: a target that is reached elsewhere is not there at all.
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

/// RFC 7143, 9.2: the identities do not vary among the connections of a session.
/// A session ends for a newcomer of its name only when the newcomer may be there (RFC 7143, 6.3.5).
#[tokio::test]
async fn who_is_not_let_in_replaces_no_session() {
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
