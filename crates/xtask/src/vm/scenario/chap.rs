//! CHAP between open-iscsi and the target, one-way and mutual, with every hash; and logins that
//! must be refused.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::vm::guest::{HOSTS, Hardware};
use crate::vm::stage::{INITIATOR, LONG, SHORT, VmScenarioStage, file, settings};

const TARGET: &str = "iqn.2026-11.forebay.vm:chap";

/// The secrets with which the machine and the target authenticate themselves.
const SECRET: &str = "correct horse 1";
const TARGETS_SECRET: &str = "battery staple 2";

/// All CHAP hashes that open-iscsi supports, strongest first.
const HASHES: &[&str] = &["SHA3-256", "SHA256", "SHA1", "MD5"];

pub fn play(stage: &mut VmScenarioStage<'_>) -> Result<()> {
    write_secret(&stage.folder.join("guest.secret"), SECRET)?;
    write_secret(&stage.folder.join("target.secret"), TARGETS_SECRET)?;
    let users = "[[user]]\nname = \"guest\"\nsecret_file = \"guest.secret\"\n";
    let target = "[[target.allow]]\nuser = \"guest\"\n\
        [target.mutual]\nname = \"forebay\"\nsecret_file = \"target.secret\"\n[[target.unit]]\n";
    let settings =
        settings(TARGET, &[0], &file("unit.img", 64)).replace("[[target.unit]]\n", target);
    let (listen, targets) = settings.split_at(settings.find("[[target]]").unwrap_or(0));
    let node = stage.serve("target", &format!("{listen}{users}{targets}"))?;
    let mut guest = stage.boot(Hardware::default())?;
    let unit = format!("{TARGET} {}:{}", HOSTS[0], node.portal().port());
    let record = format!("-T {TARGET} -p {}:{}", HOSTS[0], node.portal().port());
    guest.run("start", SHORT, &format!("start_initiator {INITIATOR}"))?;
    for hash in HASHES {
        for mutual in [None, Some(TARGETS_SECRET)] {
            let keys = keys(SECRET, mutual, hash);
            let kind = if mutual.is_some() { "mutual" } else { "one-way" };
            guest.run(
                &format!("{kind} CHAP with {hash}"),
                LONG,
                &format!(
                    "record {unit} {keys}\niscsiadm -m node {record} --login\n\
                     iscsiadm -m session | grep {TARGET}\niscsiadm -m node {record} --logout"
                ),
            )?;
        }
        stage.held(format!("one-way and mutual CHAP with {hash}"));
    }
    // Test refused logins last: after wrong secrets the target answers more slowly.
    let mut refused = |what: &str, keys: &str| -> Result<()> {
        // Fail on exit status 8, which means that no target answered in time, and not that the target refused the login
        // (`iscsiadm(8)`, EXIT STATUS).
        let script = format!(
            "record {unit} {keys}\ncode=0\nlogin {unit} || code=$?\n\
             [ $code -ne 0 ] && [ $code -ne 8 ]"
        );
        guest.run(&format!("{what} is refused"), SHORT, &script).map(|_| ())
    };
    refused("no proof", "node.session.auth.authmethod=None")?;
    refused("a wrong secret", &keys("wrong secret 33", None, "SHA256"))?;
    refused("a wrong secret of the target", &keys(SECRET, Some("wrong secret 44"), "SHA256"))?;
    stage.held("no proof, a wrong secret and a target's wrong secret end the login");
    ensure!(!node.events().contains(SECRET), "the events show a secret");
    node.stop()?;
    Ok(())
}

/// Returns settings of open-iscsi: the initiator's own secret, and the secret that it expects from
/// the target.
fn keys(secret: &str, targets: Option<&str>, hash: &str) -> String {
    let mut keys = format!(
        "node.session.auth.authmethod=CHAP node.session.auth.chap_algs={hash} \
         node.session.auth.username=guest 'node.session.auth.password={secret}'"
    );
    if let Some(secret) = targets {
        keys += &format!(
            " node.session.auth.username_in=forebay 'node.session.auth.password_in={secret}'"
        );
    }
    keys
}

/// Writes a secret to a file that only its owner can read, since `forebay` refuses other secret files.
fn write_secret(path: &Path, secret: &str) -> Result<()> {
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(path)?;
    Ok(file.write_all(secret.as_bytes())?)
}
