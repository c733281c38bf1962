//! A storage node for tests: the target crate with one unit on a volume in memory.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use super::certificates::Authority;
use initiator::Settings;
use iscsi::{
    keys::Compression,
    login::chap::{ChapAlgorithm, ChapSecret, Credential, InitiatorChap},
};
use target::{LoginAccess, LoginAccessRule, Portal, Security, Target, TargetServer};
use transport::{TlsClient, TlsServer};
use unit::{BlockUnit, UnitIdentity};
use volume::{DelayVolume, FaultVolume, Faults, Geometry, Latency, MemVolume, Volume};

/// Time for which a stopping node waits for logouts.
pub const GRACE: Duration = Duration::from_secs(6);

pub const NAME: &str = "iqn.2026-11.io.forebay.test:node";

/// A node for tests, which can be stopped and started again without losing the data on its disk.
pub struct Node {
    pub disk: Arc<MemVolume>,
    pub faults: Arc<Faults>,
    unit: Arc<BlockUnit>,
    server: Option<TargetServer>,
    pub address: SocketAddr,
    /// The TLS settings of the node's portal and of its initiators, valid from the next start of the node.
    pub tls: Option<(TlsServer, TlsClient)>,
    /// Compression methods that the node allows from its next start on.
    pub compression: Vec<Compression>,
    /// The CHAP secret that initiators must have, valid from the next start of the node.
    pub secret: Option<&'static str>,
}

/// Returns the CHAP user that initiators of a node with a secret use.
fn user(secret: &str) -> Credential {
    let secret = ChapSecret::new(secret.as_bytes()).expect("12 bytes and more");
    Credential { name: "gateway".into(), secret }
}

/// Returns the TLS settings of node and initiator with certificates of this authority. The node's certificate is for
/// the address of this machine.
pub fn ends(authority: &Authority) -> (TlsServer, TlsClient) {
    let (node, host) = (authority.issue("127.0.0.1"), authority.issue("host"));
    let [node, host] = [&node, &host].map(|issued| transport::TlsIdentity {
        certificate: issued.certificate.as_bytes(),
        key: issued.key.as_bytes(),
    });
    let trusted = authority.certificate.as_bytes();
    let server = TlsServer::new(node, trusted).expect("certificates");
    (server, TlsClient::new(Some(host), trusted, None).expect("certificates"))
}

impl Node {
    pub async fn start(geometry: Geometry) -> Self {
        Self::start_named(geometry, "disk-1", "127.0.0.1:0".parse().expect("an address")).await
    }

    /// Starts a node whose portal uses TLS.
    pub async fn start_secured(geometry: Geometry, tls: (TlsServer, TlsClient)) -> Self {
        let mut node = Self::start(geometry).await;
        node.drop_dead().await;
        node.tls = Some(tls);
        node.start_again().await;
        node
    }

    /// Starts a node in which each read and each write takes `latency`.
    pub async fn start_slow(geometry: Geometry, latency: Duration) -> Self {
        let disk = Arc::new(MemVolume::new(geometry));
        let latency = Latency { read: latency, write: latency, ..Latency::default() };
        let slow = Arc::new(DelayVolume::new(disk.clone(), latency));
        Self::serve(disk, slow, "disk-1", "127.0.0.1:0".parse().expect("an address")).await
    }

    pub async fn start_named(geometry: Geometry, serial: &str, address: SocketAddr) -> Self {
        let disk = Arc::new(MemVolume::new(geometry));
        Self::serve(disk.clone(), disk, serial, address).await
    }

    pub async fn serve(
        disk: Arc<MemVolume>,
        lower: Arc<dyn Volume>,
        serial: &str,
        address: SocketAddr,
    ) -> Self {
        let fault = Arc::new(FaultVolume::new(lower));
        let faults = fault.faults().clone();
        let settings = unit::Settings::default();
        let unit = Arc::new(BlockUnit::new(fault, UnitIdentity::new(serial), settings));
        let (server, tls, compression, secret) = (None, None, Vec::new(), None);
        let mut node = Self { disk, faults, unit, server, address, tls, compression, secret };
        node.start_again().await;
        node
    }

    /// Starts the stopped node again, with the same unit and address.
    pub async fn start_again(&mut self) {
        let mut target = Target::new(NAME, vec![(0, self.unit.clone() as _)]);
        let mut settings = target::Settings::default();
        if let Some(user) = self.secret.map(user) {
            let rule =
                LoginAccessRule { user: Some(user.name.clone()), ..LoginAccessRule::default() };
            target.access = LoginAccess { rules: Some(vec![rule]), mutual: None };
            settings.security = Security { users: [user].into(), ..Security::default() };
        }
        settings.offer.default_time2wait = 0;
        settings.offer.compression.clone_from(&self.compression);
        let server = TargetServer::new(settings, vec![target]).expect("a target");
        let tls = self.tls.as_ref().map(|(server, _)| server.clone());
        let portal = Portal { tls, ..self.address.into() };
        self.address = server.open_portal(portal).await.expect("shut down, it gave the port back");
        self.server = Some(server);
    }

    /// Asks the initiators to log out, and stops the node.
    pub async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown(GRACE).await;
        }
    }

    /// Closes all connections without a logout.
    pub async fn drop_dead(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown(Duration::ZERO).await;
        }
    }

    /// Returns settings for an initiator that reconnects without pauses.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::new(self.address.to_string(), NAME, 0);
        settings.back_off = Duration::from_millis(5);
        settings.offer.default_time2wait = 0;
        let algorithms = ChapAlgorithm::ALL.to_vec();
        let chap = |user| InitiatorChap { user, target: None, algorithms: algorithms.clone() };
        settings.chap = self.secret.map(user).map(chap);
        settings.tls = self.tls.as_ref().map(|(_, client)| client.clone());
        settings
    }
}
