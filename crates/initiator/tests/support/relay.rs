//! Passes bytes between an initiator and a node, until the test pulls the plug.

use std::net::SocketAddr;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

pub struct Relay {
    pub address: SocketAddr,
    /// Counts the cuts.
    plug: watch::Sender<u32>,
}

impl Relay {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let plug = watch::Sender::new(0);
        let cuts = plug.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut cut = cuts.subscribe();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(to).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { address, plug }
    }

    /// Drops all connections; new ones are taken.
    pub fn cut(&self) {
        self.plug.send_modify(|cuts| *cuts += 1);
    }
}
