//! Compares the chapter "Objects" of `docs/protocols.md` with the code.

use std::collections::BTreeMap;

use object::{Command, KeyToSet, SetKeyRequest};
use osd::{
    CDB_BYTES, CURRENT_COMMAND_BYTES, INTEGRITY, NONCE, OsdCdb, Permissions, ServiceAction,
    security::{CODE_BYTES, DATA_IN_INTEGRITY_BYTES, DATA_OUT_INTEGRITY_BYTES, NONCE_BYTES},
};

use crate::commands::{self, PARTITION};

const PAGE: &str = include_str!("../../../../docs/protocols.md");

fn chapter() -> &'static str {
    PAGE.split_once("\n## Objects\n").expect("the chapter").1
}

/// Returns the cells of each row of the table of service actions.
fn rows() -> Vec<Vec<&'static str>> {
    let lines = chapter().lines().skip_while(|line| !line.starts_with('|'));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// Returns each permission whose absence alone makes the drive refuse the command.
fn needed(command: &Command) -> Permissions {
    let all = Permissions::NAMES.iter().fold(Permissions::NONE, |sum, (one, _)| sum | *one);
    let needed = Permissions::NAMES.iter().map(|(one, _)| *one);
    let needed = needed.filter(|one| !Permissions(all.0 & !one.0).suffice_for(command));
    needed.fold(Permissions::NONE, |sum, one| sum | one)
}

#[test]
fn the_page_lists_every_service_action() {
    let listed: Vec<_> = rows().iter().map(|row| (row[0], row[1])).collect();
    let codes: Vec<_> = ServiceAction::ALL
        .iter()
        .map(|action| (format!("{:04X}", *action as u16), action.name()))
        .collect();
    assert_eq!(listed, codes.iter().map(|(code, name)| (&**code, *name)).collect::<Vec<_>>());
}

#[test]
fn the_page_has_the_permissions_that_each_command_needs() {
    let mut commands: Vec<Command> =
        commands::all().into_iter().map(|(command, _)| command).collect();
    commands.push(Command::RemovePartition { partition: PARTITION, with_contents: false });
    let key = KeyToSet::Working { partition: PARTITION, version: 0 };
    commands.push(Command::SetKey(SetKeyRequest { key, key_identifier: [0; 7], seed: [0; 20] }));
    // For each service action: the permissions that all its commands need, and those that any of
    // them needs.
    let mut least = BTreeMap::new();
    for command in &commands {
        let needed = needed(command);
        let both = least.entry(OsdCdb::new(*command).service_action()).or_insert((needed, needed));
        *both = (Permissions(both.0.0 & needed.0), both.1 | needed);
    }
    for (row, action) in rows().iter().zip(ServiceAction::ALL) {
        if *action == ServiceAction::Append {
            assert_eq!(row[4], "append or write");
            continue;
        }
        let (always, in_some_cases) = row[4].split_once("; ").unwrap_or((row[4], ""));
        let (least, most) = least[action];
        let named = Permissions::NAMES.iter().filter(|(one, _)| least.contain(*one));
        let expected: Vec<&str> = named.map(|(_, name)| *name).collect();
        assert_eq!(always, expected.join(", "), "{}", row[1]);
        let more = Permissions(most.0 & !least.0);
        for (_, name) in Permissions::NAMES.iter().filter(|(one, _)| !more.0 & one.0 == 0) {
            assert!(in_some_cases.contains(name), "{} needs {name} in some cases", row[1]);
        }
    }
}

#[test]
fn the_page_has_the_sizes_and_places_of_the_code() {
    let last = INTEGRITY + CODE_BYTES - 1;
    for text in [
        format!("{CDB_BYTES} bytes"),
        format!("bytes {INTEGRITY} to {last} of the CDB: MAC(capability key, CDB"),
        format!("bytes {NONCE} to {} of the CDB: milliseconds", NONCE + 5),
        format!("{} to {}: random", NONCE + 6, NONCE + NONCE_BYTES - 1),
        format!("current command page of {CURRENT_COMMAND_BYTES} bytes"),
        format!("information of {DATA_OUT_INTEGRITY_BYTES} bytes: length of the data 8"),
        format!("information of {DATA_IN_INTEGRITY_BYTES} bytes: length of the data 8"),
    ] {
        let is_there = chapter().split_whitespace().collect::<Vec<_>>().join(" ").contains(&text);
        assert!(is_there, "no '{text}'");
    }
}
