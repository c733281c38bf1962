//! Tests every way in which data travels: immediate, unsolicited and solicited, with and without
//! digests, in commands of all sizes. The initiator shares no code with the target.

use std::path::Path;

use anyhow::{Context, Result};
use rawclient::ClientLogin;
use rig::node::ServeProcess;

use crate::steps::StepTally;
use crate::suite::pass::{self, StampedPass};

const NAME: &str = "iqn.2026-11.forebay.test:transfers";

/// Sizes of commands in sectors of 512 bytes: a single one, a block of 4 KiB, an odd number,
/// numbers around the first burst (64 KiB here), and around the longest burst (256 KiB here), above
/// which a command needs more than one R2T.
const SIZES: &[u16] = &[1, 8, 17, 127, 128, 129, 512, 513, 1500];

/// The values of InitialR2T and ImmediateData. InitialR2T: the target solicits all data.
/// ImmediateData: a command may carry data.
const WAYS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

/// Runs one case for each size, each value of [`WAYS`], and with and without digests.
pub fn check(program: &Path) -> Result<StepTally> {
    let folder = tempfile::tempdir()?;
    let mut tally = StepTally::default();
    for (initial_r2t, immediate_data) in WAYS {
        let settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[iscsi]\ninitial_r2t = {initial_r2t}\n\
             immediate_data = {immediate_data}\nfirst_burst_length = \"64KiB\"\n\
             max_burst_length = \"256KiB\"\nmax_recv_data_segment_length = \"32KiB\"\n\
             [[target]]\nname = \"{NAME}\"\n[[target.unit]]\n\
             stack = [{{ memory = {{ size = \"64MiB\" }} }}]\n"
        );
        let node = ServeProcess::start(program, folder.path(), "target", &settings)?;
        for digests in [false, true] {
            let login = ClientLogin { digests, ..ClientLogin::new(node.portal(), NAME, 0) };
            for (version, &each) in (1..).zip(SIZES) {
                let range = StampedPass { each, commands: 80, depth: 16 };
                let case = round_trip(&login, range, version + u64::from(digests) * 1000);
                if let Err(error) = &case {
                    println!(
                        "InitialR2T {initial_r2t}, ImmediateData {immediate_data}, digests {digests}, \
                         {each} sectors: {error:#}"
                    );
                }
                tally.count(case.is_ok());
            }
        }
        node.stop()?;
    }
    Ok(tally)
}

fn round_trip(login: &ClientLogin, range: StampedPass, version: u64) -> Result<()> {
    pass::write(login, range, version)?;
    let wrong = pass::read(login, range, version)?;
    (wrong == 0)
        .then_some(())
        .with_context(|| format!("{wrong} of {} reads are wrong", range.commands))
}
