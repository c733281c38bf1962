//! Tests the program with foreign initiators and targets: libiscsi's tools and tests, QEMU, and tgt
//! as the target behind a gateway.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rawclient::ClientLogin;
use rig::node::{RelayProcess, ServeProcess};
use rig::tgt::{self, ReferenceTgtd};

use crate::step_list::StepList;
use crate::steps::StepTally;
use crate::suite::conformance::{self, Setup};
use crate::suite::pass::{self, StampedPass};
use crate::suite::tools;
use crate::suite::under_load;

/// A size just below 1 GiB: on larger units some tests of the suite skip themselves.
const SUITE_UNIT: &str = "1023MiB";
const SUITE_BLOCKS: u64 = 1023 * 2048;

/// The set-ups of the units for libiscsi's test suite. Each unit runs one test at a time. There are
/// more units than processors, since most tests wait more than they compute.
const SUITE: [Setup; 8] = [
    Setup::Default,
    Setup::Default,
    Setup::Removable,
    Setup::Removable,
    Setup::Encrypted,
    Setup::Slow,
    Setup::Physical,
    Setup::ReadOnly,
];

/// Adds every step that needs foreign tools.
pub fn steps<'a>(list: &mut StepList<'a>, program: &'a Path) {
    list.add("interop: libiscsi tools", move || libiscsi(program));
    list.add("interop: libiscsi tools with CHAP", move || chap(program));
    list.add("interop: iscsi-test-cu", move || test_suite(program));
    list.add("interop: qemu on a target", move || qemu_on_target(program));
    list.add("interop: qemu through a gateway", move || qemu_on_gateway(program));
    list.add("interop: qemu through a restart", move || under_load::restart(program));
    list.add("interop: qemu while units come and go", move || under_load::units(program));
    list.add("interop: our initiator on tgt", move || gateway_over_tgt(program));
}

fn libiscsi(program: &Path) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    volume_key(program, folder.path())?;
    let node = ServeProcess::start(program, folder.path(), "target", &suite_settings())?;
    let portal = format!("iscsi://{}", node.portal());
    let tally = tools::libiscsi(program, &portal, &suite_target(0), SUITE_BLOCKS)?;
    node.stop()?;
    Ok(tally)
}

fn chap(program: &Path) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let (user, mutual) = (("alice", "alices-secret-1"), ("storage", "storages-secret"));
    for (name, secret) in [user, mutual] {
        let file = folder.path().join(name);
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(file)?;
        file.write_all(secret.as_bytes())?;
    }
    let target = suite_target(0);
    let settings = format!(
        "listen = [\"127.0.0.1:0\"]\n[[user]]\nname = \"alice\"\nsecret_file = \"alice\"\n\
         [[target]]\nname = \"{target}\"\nallow = [{{ user = \"alice\" }}]\n\
         mutual = {{ name = \"storage\", secret_file = \"storage\" }}\n\
         [[target.unit]]\nstack = [{{ memory = {{ size = \"16MiB\" }} }}]\n"
    );
    let node = ServeProcess::start(program, folder.path(), "target", &settings)?;
    let portal = node.portal().to_string();
    let guarded = tools::Guarded { portal: &portal, target: &target, user, mutual };
    let tally = tools::chap(&guarded)?;
    node.stop()?;
    Ok(tally)
}

fn test_suite(program: &Path) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    volume_key(program, folder.path())?;
    let node = ServeProcess::start(program, folder.path(), "target", &suite_settings())?;
    let url = |number| node.url(&suite_target(number), 0);
    let units = SUITE.iter().enumerate().map(|(number, setup)| (*setup, url(number))).collect();
    let tally = conformance::run(&units)?;
    node.stop()?;
    Ok(StepTally { left_out: conformance::exceptions(), ..tally })
}

/// Creates `volume.key`, protected by the secret in `volume.secret`.
fn volume_key(program: &Path, folder: &Path) -> Result<()> {
    for arguments in [
        &["secret", "volume.secret", "--characters", "64"][..],
        &["key", "volume.key", "--secret-file", "volume.secret"],
    ] {
        let status = Command::new(program).args(arguments).current_dir(folder).status()?;
        ensure!(status.success(), "forebay {}: {status}", arguments.join(" "));
    }
    Ok(())
}

fn suite_target(number: usize) -> String {
    format!("iqn.2026-11.forebay.test:suite{number}")
}

fn suite_settings() -> String {
    let mut settings = format!("listen = [\"127.0.0.1:0\"]\n{COMPRESSION}");
    for (number, setup) in SUITE.iter().enumerate() {
        let name = suite_target(number);
        let (unit, stack) = suite_unit(*setup);
        settings += &format!(
            "[[target]]\nname = \"{name}\"\n[[target.unit]]\n{unit}\
             stack = [{{ memory = {{ size = \"{SUITE_UNIT}\" }} }}{stack}]\n"
        );
    }
    settings
}

/// Returns the settings of a unit with this set-up, and the layers above the memory layer in its
/// stack.
fn suite_unit(setup: Setup) -> (&'static str, &'static str) {
    const REMOVABLE: &str = "removable = true\nphysical_block_size = \"512B\"\n\
                             write_same_to_end = true\nspc = 3\n";
    match setup {
        Setup::Removable => (REMOVABLE, ""),
        Setup::Encrypted => {
            (REMOVABLE, ", { encrypt = { key = \"volume.key\", secret_file = \"volume.secret\" } }")
        }
        // This delay makes a SANITIZE of the whole unit (1,023 MiB) take ten seconds.
        Setup::Slow => (REMOVABLE, ", { delay = { write = \"10ms\" } }"),
        Setup::Physical | Setup::Default => ("", ""),
        Setup::ReadOnly => ("", ", \"read-only\""),
    }
}

const FILE: &str = "iqn.2026-11.forebay.test:file";
const GATEWAY: &str = "iqn.2026-11.forebay.test:gateway";

/// Settings of a target that offers compression. Our gateway asks for it; foreign initiators do
/// not.
const COMPRESSION: &str = "[iscsi]\ncompression = [\"lz4\", \"zstd\"]\n";

fn file_settings() -> String {
    format!(
        "listen = [\"127.0.0.1:0\"]\n{COMPRESSION}[[target]]\nname = \"{FILE}\"\n[[target.unit]]\n\
         stack = [{{ file = {{ path = \"unit.img\", size = \"64MiB\" }} }}]\n"
    )
}

fn gateway_settings(url: &str) -> String {
    format!(
        "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{GATEWAY}\"\n[[target.unit]]\nstack = [\n\
         {{ remote = {{ url = \"{url}\", compression = \"lz4\" }} }},\n\
         {{ cache = {{ log = \"log\", log_size = \"64MiB\", nvram = \"nvram\", dram = \"16MiB\", \
         destage_idle = \"1ms\", dirty_age = \"100ms\" }} }},\n]\n"
    )
}

fn qemu_on_target(program: &Path) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let node = ServeProcess::start(program, folder.path(), "target", &file_settings())?;
    let tally = tools::qemu(&node.url(FILE, 0), folder.path())?;
    node.stop()?;
    Ok(tally)
}

fn qemu_on_gateway(program: &Path) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let node = ServeProcess::start(program, folder.path(), "node", &file_settings())?;
    let line = RelayProcess::start(program, node.portal(), 1.0)?;
    let url = format!("iscsi://{}/{FILE}/0", line.address());
    let gateway = ServeProcess::start(program, folder.path(), "gateway", &gateway_settings(&url))?;
    let tally = tools::qemu(&gateway.url(GATEWAY, 0), folder.path())?;
    gateway.stop()?;
    node.stop()?;
    Ok(tally)
}

/// The writes that go through a gateway to tgt: 8 MiB in blocks of 4 KiB.
const WRITTEN: StampedPass = StampedPass { each: 8, commands: 2048, depth: 32 };

fn gateway_over_tgt(program: &Path) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let tgt = ReferenceTgtd::start(64 << 20)?;
    let far = &ClientLogin::new(tgt.portal(), tgt::NAME, tgt::LUN);
    let url = format!("iscsi://{}/{}/{}", far.portal, far.target, far.lun);
    let gateway = ServeProcess::start(program, folder.path(), "gateway", &gateway_settings(&url))?;
    let near = ClientLogin::new(gateway.portal(), GATEWAY, 0);
    pass::write(&near, WRITTEN, 1)?;
    let mut tally = StepTally::one();
    tally.count(held(pass::read(&near, WRITTEN, 1)?));
    // Read tgt's unit directly, without the gateway, until the unit holds all data that was written to the gateway.
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut missing = pass::read(far, WRITTEN, 1)?;
    while missing > 0 && Instant::now() < deadline {
        missing = pass::read(far, WRITTEN, 1)?;
    }
    tally.count(held(missing));
    gateway.stop()?;
    Ok(tally)
}

fn held(wrong: u64) -> bool {
    if wrong > 0 {
        println!("{wrong} of {} blocks differ from what was written", WRITTEN.commands);
    }
    wrong == 0
}
