//! Adds connections to a session until it has the configured number.

use std::{future::Future, pin::Pin, sync::Arc, time::Instant};

use crate::{
    Error, Settings,
    backoff::{Backoff, GOOD_CONNECTION},
    clock::now,
    login::{LoggedIn, log_in},
    session_io::SessionIo,
};

/// Adds connections to a session while it has fewer than the configured number.
pub(crate) struct MissingConnections {
    settings: Arc<Settings>,
    wanted: usize,
    /// The largest number of connections that the session has had. A connection that exceeds this number does not
    /// replace a lost one.
    most: usize,
    joining: Option<ConnectionJoinFuture>,
    backoff: Backoff,
    added: Instant,
    /// The earliest time of the next attempt to add a connection.
    next: Instant,
    present: usize,
    /// True if the session is being closed, so that no connections are added.
    closing: bool,
}

/// The login of a further connection, which is in progress.
type ConnectionJoinFuture = Pin<Box<dyn Future<Output = Result<LoggedIn, Error>> + Send>>;

impl MissingConnections {
    pub(crate) fn new(settings: &Arc<Settings>, io: &SessionIo) -> Self {
        let offered = io.session.parameters().max_connections;
        Self {
            settings: settings.clone(),
            wanted: usize::from(settings.offer().max_connections.min(offered).max(1)),
            most: io.len(),
            joining: None,
            backoff: Backoff::new(settings),
            added: now(),
            next: now(),
            present: io.len(),
            closing: false,
        }
    }

    /// Begins the login of a further connection if the session lacks one and the pause before the next attempt is over.
    pub(crate) fn look(&mut self, io: &SessionIo, closing: bool) {
        self.closing = closing;
        if io.len() < self.present {
            // If a connection is lost soon after it was added, do not reset the pauses, so that they grow.
            if now().saturating_duration_since(self.added) >= GOOD_CONNECTION {
                self.backoff = Backoff::new(&self.settings);
            }
            self.next = self.next.max(now() + self.backoff.next());
        }
        self.present = io.len();
        if io.len() == 0
            && let Some(at) = io.session.reinstate_at()
        {
            self.next = self.next.max(at);
        }
        if self.joining.is_some() || closing || self.present >= self.wanted || now() < self.next {
            return;
        }
        let (settings, purpose) = (self.settings.clone(), io.next_join());
        self.joining = Some(Box::pin(async move { log_in(&settings, purpose).await }));
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let wants = !self.closing && self.joining.is_none() && self.present < self.wanted;
        wants.then_some(self.next)
    }

    /// Waits for the result of the login that is in progress. Waits forever if there is none.
    pub(crate) async fn joined(&mut self) -> Result<LoggedIn, Error> {
        match &mut self.joining {
            Some(joining) => {
                let joined = joining.await;
                self.joining = None;
                joined
            }
            None => std::future::pending().await,
        }
    }

    pub(crate) fn succeeded(&mut self) {
        self.present += 1;
        self.added = now();
    }

    /// Returns true if the connection that was added last replaces one that was lost.
    pub(crate) fn replaces(&mut self) -> bool {
        let replaces = self.present <= self.most;
        self.most = self.most.max(self.present);
        replaces
    }

    pub(crate) fn failed(&mut self) {
        self.next = now() + self.backoff.next();
    }
}
