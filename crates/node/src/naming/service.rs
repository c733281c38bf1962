//! The tasks of the naming service, which answer other nodes and call them.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use control::Failure;
use transport::{ConnectionQuota, ReportLimiter};

use super::{Naming, conversation, conversation::NamingTalkError};

/// Interval at which a node announces that it is alive. By default it is stale after fifteen lost
/// announcements.
const BEAT: Duration = Duration::from_secs(2);
/// Maximum number of concurrent conversations, in all (`CALLERS`) and with one address (`CALLERS_PER_ADDRESS`). One
/// takes milliseconds; one with an unauthorized caller at most 5 s and 64 KiB. Beyond that, the address with the
/// most conversations loses the oldest one whose caller has not proved that it knows the secret.
const CALLERS: usize = 64;
const CALLERS_PER_ADDRESS: usize = 32;
/// Maximum number of events about refused callers in ten seconds: for one address (`REPORTS`) and for all addresses
/// (`REPORTS_IN_ALL`).
const REPORTS: u32 = 1;
const REPORTS_IN_ALL: u32 = 10;

/// Listens for callers, and starts to call other nodes. Returns the tasks, which end when they are dropped, and the
/// bound addresses.
pub async fn serve(
    naming: &Arc<Naming>,
    listen: &[SocketAddr],
) -> Result<(JoinSet<()>, Vec<SocketAddr>), Failure> {
    let mut tasks = JoinSet::new();
    let mut bound = Vec::new();
    for address in listen {
        let cannot = |error: std::io::Error| cannot_listen(*address, &error);
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        bound.push(listener.local_addr().map_err(cannot)?);
        tasks.spawn(accept(Arc::clone(naming), listener));
    }
    tasks.spawn(tell(Arc::clone(naming)));
    Ok((tasks, bound))
}

/// Returns the failure, with its remedy, for a port of the naming service that cannot be opened.
pub fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot listen for naming queries on {address}: {error}"))
        .remedy("change `listen` of [names]")
}

async fn accept(naming: Arc<Naming>, listener: TcpListener) {
    let callers = Arc::new(ConnectionQuota::default());
    let reports = Arc::new(ReportLimiter::new(REPORTS, REPORTS_IN_ALL));
    let mut conversations = JoinSet::new();
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            // Wait before the next `accept`: the process has probably no free file descriptor until other connections
            // are closed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        while conversations.try_join_next().is_some() {}
        // Without a place, the new connection is closed: all callers in progress have proved that they know the secret,
        // and so none is displaced.
        let place = callers.enter(address.ip(), CALLERS, CALLERS_PER_ADDRESS);
        let Some(place) = place.map(Arc::new) else { continue };
        let (naming, reports) = (Arc::clone(&naming), Arc::clone(&reports));
        conversations.spawn(async move {
            let responded = tokio::select! {
                responded = conversation::respond(&naming, stream, &place) => responded,
                () = place.lost() => Err(NamingTalkError::Displaced),
            };
            if let Err(error) = responded
                && let Some(unreported) = reports.report(address.ip(), Instant::now())
            {
                tracing::warn!(
                    %address, %error, unreported,
                    remedy = "nothing has to be done if it is none of your nodes; otherwise give both \
                     the same secret (`secret_file` in [names])",
                    "a caller at the naming port was refused"
                );
            }
        });
    }
}

/// Calls one seed and one other node with every beat, and all seeds when there is something new.
async fn tell(naming: Arc<Naming>) {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_kept = true;
    let mut known = Vec::new();
    loop {
        let is_new = tokio::select! {
            _ = beats.tick() => false,
            () = naming.news.notified() => true,
        };
        if is_new {
            let calls = naming.seeds.iter().map(|seed| naming.call(seed));
            futures_util::future::join_all(calls).await;
        } else {
            naming.table.lock().beat();
            let others = naming.others();
            let callees = [pick(&naming.seeds), pick(&others)].into_iter().flatten();
            futures_util::future::join_all(callees.map(|address| naming.call(address))).await;
        }
        // Save the version again: an exchange raises it if another node has a newer record of this node.
        let kept = naming.keep();
        if let (Err(failure), true) = (&kept, is_kept) {
            tracing::error!(%failure, "cannot save the sequence number of announcements");
        }
        is_kept = kept.is_ok();
        let troubles = naming.troubles();
        for trouble in troubles.iter().filter(|trouble| !known.contains(*trouble)) {
            tracing::error!(
                remedy =
                    "do what the event says; `forebay names` shows the nodes and these problems",
                "{trouble}"
            );
        }
        known = troubles;
    }
}

impl Naming {
    fn others(&self) -> Vec<String> {
        let table = self.table.lock();
        let nodes = table.nodes(Instant::now()).skip(1);
        nodes.flat_map(|listed| listed.record.addresses.clone()).collect()
    }
}

/// Returns a random element of `addresses`; `None` if the list is empty.
fn pick(addresses: &[String]) -> Option<&String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).ok()?;
    let at = u64::from_ne_bytes(random).checked_rem(addresses.len() as u64)?;
    addresses.get(at as usize)
}
