//! What units keep in the state folder, by the binary: it is killed and started again.

mod support;

use std::{net::SocketAddr, time::Duration};

use initiator::{CommandError, Session, Settings};
use iscsi::session::initiator::Transfer;
use scsi::{
    Command, Overwrite, PersistentReserveIn, PersistentReserveOut, Sanitize, SanitizeAction, Sense,
    Status,
    persistent::{OutParameters, ReservationType, ReserveAction, ReserveReport},
};
use support::{Place, Serving, eventually};

const NODE: &str = "iqn.2026-11.test:node";
const KEY: u64 = 0x5ec2_e7a1;

/// A node with a state folder and one file behind more layers; always on the same port.
fn node(place: &Place, port: u16, layers: &str) -> Serving {
    let (state, file) = (place.path("state"), place.path("disk.img"));
    let text = format!(
        r#"
listen = ["127.0.0.1:{port}"]
state = "{}"
[[target]]
name = "{NODE}"
[[target.unit]]
stack = [ {{ file = {{ path = "{}", size = "16MiB" }} }}{layers} ]
"#,
        state.display(),
        file.display()
    );
    place.serve("node", &text)
}

/// A session of an initiator port that is the same each time.
async fn session(address: SocketAddr, who: &str) -> Session {
    let mut settings = Settings::new(address.to_string(), NODE, 0);
    settings.initiator_name = format!("iqn.2026-11.test:{who}");
    settings.isid = Settings::lasting_isid(who);
    settings.give_up_after = Duration::from_secs(5);
    Session::open(settings).await.expect("a login")
}

async fn ask(session: &Session, command: Command, transfer: Transfer) -> Result<(), CommandError> {
    session.execute(command.encode(), transfer).await.map(drop)
}

async fn reserve(session: &Session, action: ReserveAction, list: &OutParameters) {
    let list = list.to_bytes();
    let asked = PersistentReserveOut { action, parameter_list_length: list.len() as u32 };
    let command = Command::PersistentReserveOut(asked);
    ask(session, command, Transfer::Out(list.into())).await.expect("reserved");
}

async fn write(session: &Session) -> Result<(), CommandError> {
    let command = Command::write(0, 1, false);
    ask(session, command, Transfer::Out(vec![7; 512].into())).await
}

/// The holder's key, as anybody may read it.
async fn holder(session: &Session) -> Vec<u8> {
    let asked = PersistentReserveIn { report: ReserveReport::Reservation, allocation_length: 24 };
    let command = Command::PersistentReserveIn(asked).encode();
    let answer = session.execute(command, Transfer::In(24)).await.expect("answered");
    let data: volume::Data = answer.data_in.into_iter().collect();
    data.into_bytes().get(8..16).map(<[u8]>::to_vec).unwrap_or_default()
}

fn is_conflict(result: Result<(), CommandError>) -> bool {
    matches!(result, Err(CommandError::Status(Status::ReservationConflict)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_that_is_to_last_is_in_force_after_a_kill() {
    let place = Place::new();
    let mut serving = node(&place, 0, "");
    let address = serving.address;
    for persist in [false, true] {
        let holding = session(address, "holder").await;
        let register = OutParameters { action_key: KEY, persist, ..OutParameters::default() };
        reserve(&holding, ReserveAction::RegisterAndIgnoreExistingKey, &register).await;
        let held = OutParameters { key: KEY, ..OutParameters::default() };
        let kind = ReservationType::WriteExclusive;
        reserve(&holding, ReserveAction::Reserve(kind), &held).await;
        assert!(is_conflict(write(&session(address, "other").await).await));
        // It would come back, and take the place of who calls itself the same.
        holding.close().await;
        serving.kill();
        serving = node(&place, address.port(), "");
        let other = session(address, "other").await;
        if persist {
            assert!(is_conflict(write(&other).await), "APTPL: still reserved");
            assert_eq!(holder(&other).await, KEY.to_be_bytes());
            write(&session(address, "holder").await).await.expect("the holder's own");
        } else {
            write(&other).await.expect("nothing was to last");
            assert!(holder(&other).await.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sanitize_goes_on_after_a_kill() {
    let place = Place::new();
    let slow = ", { delay = { write = '200ms' } }";
    let mut serving = node(&place, 0, slow);
    let address = serving.address;
    let list = Overwrite { invert: false, passes: 1, pattern: vec![0x5a] }.to_bytes();
    let command = Command::Sanitize(Sanitize {
        action: SanitizeAction::Overwrite,
        immediate: true,
        unrestricted_exit: false,
        parameter_list_length: list.len() as u16,
    });
    let asking = session(address, "host").await;
    ask(&asking, command, Transfer::Out(list.into())).await.expect("begun");
    asking.close().await;
    serving.kill();
    let disk = || std::fs::read(place.path("disk.img")).expect("there");
    let is_done = || disk().iter().all(|byte| *byte == 0x5a);
    assert!(!is_done(), "sixteen writes of 200 ms");
    let _serving = node(&place, address.port(), slow);
    let host = session(address, "host").await;
    match ask(&host, Command::read(0, 1), Transfer::In(512)).await {
        Err(CommandError::Check(sense)) => {
            let told = (sense.key, sense.asc, sense.ascq);
            let going = Sense::SANITIZE_IN_PROGRESS;
            assert_eq!(told, (going.key, going.asc, going.ascq));
        }
        // Our initiator is patient with what is not ready; then it was done meanwhile.
        Err(CommandError::Busy) => {}
        Ok(()) => assert!(is_done(), "nobody reads what is half overwritten"),
        Err(other) => panic!("{other}"),
    }
    eventually("the end", is_done).await;
}
