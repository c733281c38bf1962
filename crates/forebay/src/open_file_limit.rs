//! Raises the limit of open files of this process (RLIMIT_NOFILE, setrlimit(2)).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files besides the sockets of initiators: volumes, logs, NVRAM and state files of some 50 units with four files each,
/// portals, sessions to far targets, the control socket and those of the runtime.
const RESERVE: u64 = 256;

/// Raises the soft limit to the hard one, and warns if that is not enough for this many connections. Many systems have
/// a soft limit of 1,024 for programs that use select(2), which this one does not. `serve` starts no other programs
/// that would inherit the new limit.
pub fn raise(connections: usize) {
    let former = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: former.maximum, maximum: former.maximum };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            tracing::warn!(
                %error,
                remedy = "nothing has to be done unless the limit is too low: then raise it \
                 (LimitNOFILE= of systemd, `ulimit -n`), or lower `max_connections`",
                "cannot raise the limit of open files"
            );
            former.current
        }
    };
    let needed = (connections as u64).saturating_add(RESERVE);
    // A limit of `None` means that the process has no limit.
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            remedy = "raise it (LimitNOFILE= of systemd, `ulimit -n`), or lower `max_connections`",
            "the limit of open files is too low for the connections that the settings allow"
        );
    }
}
