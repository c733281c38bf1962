//! Selects the congestion control of the connections of a session, and reports the state that they share.

use std::{
    fmt, io,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use fairtcp::{Ensemble, EnsembleControlBlock, Fair};
use parking_lot::Mutex;
use socket2::SockRef;

use crate::stream::ConnectionStream;

/// The congestion control that sessions use. The default is the kernel's default.
#[derive(Clone, Debug, Default)]
pub struct CongestionControl(Option<Arc<WantedCongestion>>);

struct WantedCongestion {
    how: CongestionMethod,
    /// Set once a caller has received the reason why this congestion control is unavailable, to report it only once.
    is_reported: AtomicBool,
}

enum CongestionMethod {
    /// A congestion control of the kernel, by name.
    Named(String),
    /// All connections of a session share one congestion window.
    Ensemble(Arc<Fair>),
}

impl fmt::Debug for WantedCongestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            CongestionMethod::Named(name) => f.write_str(name),
            CongestionMethod::Ensemble(fair) => write!(f, "ensemble by {}", fair.name()),
        }
    }
}

impl CongestionControl {
    /// Selects the congestion control `name` of the kernel, which must be listed in `tcp_available_congestion_control`.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self::wanted(CongestionMethod::Named(name.into()))
    }

    /// Selects an ensemble: all connections of a session share one congestion window.
    #[must_use]
    pub fn ensemble(fair: Arc<Fair>) -> Self {
        Self::wanted(CongestionMethod::Ensemble(fair))
    }

    fn wanted(how: CongestionMethod) -> Self {
        Self(Some(Arc::new(WantedCongestion { how, is_reported: AtomicBool::new(false) })))
    }

    /// Selects the congestion control of a socket before it connects or listens; accepted connections inherit it from
    /// the listening socket. Selecting it later is not enough: if the kernel's default is BBR, the kernel continues to
    /// pace a connection that began with it. With a small congestion window, pacing delays the third packet of a
    /// response of 4 KiB by a twentieth of the round trip time. Failures are ignored here, since
    /// [`SessionCongestion::take_in`] reports them. Connections of an ensemble begin with the kernel's default.
    pub fn prepare(&self, socket: impl AsFd) {
        if let Some(CongestionMethod::Named(name)) = self.0.as_ref().map(|wanted| &wanted.how) {
            let _ = SockRef::from(&socket).set_tcp_congestion(name.as_bytes());
        }
    }

    #[must_use]
    pub fn session(&self) -> SessionCongestion {
        let ensemble = self.0.as_ref().and_then(|wanted| match &wanted.how {
            CongestionMethod::Named(_) => None,
            CongestionMethod::Ensemble(fair) => Some(Ensemble::new(fair)),
        });
        SessionCongestion { wanted: self.0.clone(), ensemble, newest: Mutex::default() }
    }
}

/// The congestion control of a session, and the state that its connections share.
pub struct SessionCongestion {
    wanted: Option<Arc<WantedCongestion>>,
    ensemble: Option<Result<Ensemble, fairtcp::Error>>,
    newest: Mutex<Newest>,
}

/// Properties of the newest connection, which `take_in` has read from its socket.
#[derive(Default)]
struct Newest {
    name: String,
    segment_bytes: u32,
}

/// The congestion control of a session and its present state, for status reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CongestionStatistics {
    /// The kernel's name for the congestion control of the session's newest connection.
    pub name: String,
    /// The payload of a full segment in bytes, read when the newest connection was added. It converts the segments in
    /// the state of an ensemble into bytes. Zero if the kernel does not report it.
    pub segment_bytes: u32,
    /// The state that the connections of the session share; `None` if each has its own.
    pub ensemble: Option<EnsembleControlBlock>,
}

impl SessionCongestion {
    /// Sets the congestion control of a connection of this session. If that fails, the connection keeps the kernel's
    /// default. Returns the reason, but only for the first failure of all sessions.
    pub fn take_in(&self, stream: &ConnectionStream) -> Option<String> {
        let socket = SockRef::from(stream.tcp());
        let failed = self.select(stream).err();
        // Ignore an error, since Linux before 2.6.13 does not have the option TCP_CONGESTION.
        let name = socket.tcp_congestion().unwrap_or_default();
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        *self.newest.lock() = Newest {
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
            segment_bytes: socket.tcp_mss().unwrap_or_default(),
        };
        let wanted = self.wanted.as_ref()?;
        failed.filter(|_| !wanted.is_reported.swap(true, Ordering::Relaxed))
    }

    fn select(&self, stream: &ConnectionStream) -> Result<(), String> {
        let told = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => {
                "the kernel has no congestion control of this name".to_owned()
            }
            io::ErrorKind::PermissionDenied => format!(
                "{error}: it is not in tcp_allowed_congestion_control, and CAP_NET_ADMIN is missing"
            ),
            _ => error.to_string(),
        };
        match (self.wanted.as_deref(), &self.ensemble) {
            (_, Some(Ok(ensemble))) => ensemble.join(stream.tcp()).map_err(|it| it.to_string()),
            (_, Some(Err(error))) => Err(error.to_string()),
            (Some(WantedCongestion { how: CongestionMethod::Named(name), .. }), None) => {
                SockRef::from(stream.tcp()).set_tcp_congestion(name.as_bytes()).map_err(told)
            }
            _ => Ok(()),
        }
    }

    /// Returns the present state of the session's congestion control.
    #[must_use]
    pub fn statistics(&self) -> CongestionStatistics {
        let ensemble = self.ensemble.as_ref().and_then(|it| it.as_ref().ok());
        let newest = self.newest.lock();
        CongestionStatistics {
            name: newest.name.clone(),
            segment_bytes: newest.segment_bytes,
            ensemble: ensemble.and_then(|it| it.blocks().first().copied()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn connection() -> (ConnectionStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (near.into(), listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn an_unavailable_congestion_control_is_reported_once_and_changes_nothing() {
        let (stream, _far) = connection().await;
        let default = CongestionControl::default().session();
        assert_eq!(default.take_in(&stream), None);
        let before = default.statistics();
        assert!(!before.name.is_empty() && before.ensemble.is_none(), "{before:?}");
        // Every IPv4 host must accept TCP segments of this size (RFC 9293, 3.7.1).
        assert!(before.segment_bytes >= 536, "{before:?}");
        let wanted = CongestionControl::named("no_such_thing");
        let told = wanted.session().take_in(&stream).expect("told");
        assert!(
            told.contains("no congestion control of this name") || told.contains("CAP_NET_ADMIN"),
            "{told}"
        );
        let session = wanted.session();
        assert_eq!(session.take_in(&stream), None, "once");
        assert_eq!(session.statistics(), before);
    }

    #[tokio::test]
    async fn a_name_is_selected() {
        let (stream, _far) = connection().await;
        // Reno is in every kernel and allowed for all users.
        let session = CongestionControl::named("reno").session();
        assert_eq!(session.take_in(&stream), None);
        assert_eq!(session.statistics().name, "reno");
    }

    #[tokio::test]
    async fn a_connection_begins_with_the_congestion_control_that_was_selected() {
        let name = |socket: SockRef<'_>| {
            let name = socket.tcp_congestion().unwrap();
            String::from_utf8_lossy(&name[..name.iter().position(|&byte| byte == 0).unwrap()])
                .into_owned()
        };
        let wanted = CongestionControl::named("reno");
        let listening = tokio::net::TcpSocket::new_v4().unwrap();
        wanted.prepare(&listening);
        listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = listening.listen(8).unwrap();
        let port = listener.local_addr().unwrap().port();
        let options = crate::SocketOptions::default();
        let near =
            options.connect("127.0.0.1", port, |socket| wanted.prepare(socket)).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        assert_eq!([name(SockRef::from(&near)), name(SockRef::from(&far))], ["reno", "reno"]);
    }

    /// This test needs the permission to load BPF programs. Without it, the test prints the reason and passes.
    #[tokio::test]
    async fn connections_of_a_session_share_an_ensemble() {
        let options = fairtcp::EnsembleOptions { name: "fairtest_t".into(), ..Default::default() };
        let fair = match Fair::load(&options) {
            Ok(fair) => Arc::new(fair),
            Err(error) => return println!("not run: {error}"),
        };
        let wanted = CongestionControl::ensemble(fair.clone());
        let (one, other) = (wanted.session(), wanted.session());
        let [(a, _a), (b, _b), (c, _c)] =
            [connection().await, connection().await, connection().await];
        for (session, stream) in [(&one, &a), (&one, &b), (&other, &c)] {
            assert_eq!(session.take_in(stream), None);
        }
        let members = |it: &SessionCongestion| it.statistics().ensemble.unwrap().members;
        assert_eq!((members(&one), members(&other)), (2, 1));
        assert_eq!(one.statistics().name, fair.name());
    }
}
