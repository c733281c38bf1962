//! Relays connections PDU by PDU, records them, and cuts them after a chosen PDU. The connections have no digests.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
};

/// A PDU that was relayed.
#[derive(Clone)]
pub struct Relayed {
    /// The number of its connection, from 0 on.
    pub connection: usize,
    pub is_from_initiator: bool,
    pub bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    connections: usize,
    /// PDUs that still pass before all connections are cut; `None`: they are not cut.
    left: Option<u64>,
    /// The PDUs so far, if they are recorded.
    record: Option<Vec<Relayed>>,
}

pub struct PduProxy {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    accepting: JoinHandle<()>,
}

impl PduProxy {
    pub async fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let state: Arc<Mutex<State>> = Arc::default();
        let its_state = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let connection = {
                    let mut state = its_state.lock();
                    state.connections += 1;
                    state.connections - 1
                };
                let state = Arc::clone(&its_state);
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(to).await else { return };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let ((near_in, near_out), (far_in, far_out)) =
                        (near.into_split(), far.into_split());
                    let there = Line { connection, is_from_initiator: true, state: &state };
                    let back = Line { is_from_initiator: false, ..there };
                    // When one direction ends, end the other one, too.
                    tokio::select! {
                        () = there.pass(near_in, far_out) => {}
                        () = back.pass(far_in, near_out) => {}
                    }
                });
            }
        });
        Self { address, state, accepting }
    }

    /// Cuts the connection behind the next `pdus` PDUs, in either direction. With 0, the next PDU does not pass.
    pub fn cut_after(&self, pdus: u64) {
        self.state.lock().left = Some(pdus);
    }

    /// Relays everything from now on. Returns true if a connection was cut since [`PduProxy::cut_after`].
    pub fn stop_cutting(&self) -> bool {
        self.state.lock().left.take().is_none()
    }

    pub fn record(&self) {
        self.state.lock().record = Some(Vec::new());
    }

    pub fn recorded(&self) -> Vec<Relayed> {
        self.state.lock().record.take().unwrap_or_default()
    }
}

impl Drop for PduProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// One direction of a connection.
#[derive(Clone, Copy)]
struct Line<'a> {
    connection: usize,
    is_from_initiator: bool,
    state: &'a Mutex<State>,
}

impl Line<'_> {
    /// Relays PDUs until the sender closes the connection or it is cut.
    async fn pass(self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        while let Some(bytes) = read_pdu(&mut from).await {
            let is_last = match self.note(&bytes) {
                Some(0) => return,
                left => left == Some(1),
            };
            if to.write_all(&bytes).await.is_err() || is_last {
                return;
            }
        }
    }

    /// Records a PDU. Returns how many PDUs still passed before it was counted.
    fn note(self, bytes: &[u8]) -> Option<u64> {
        let mut state = self.state.lock();
        let left = state.left;
        match left {
            // The connection ends here. The next one is not cut.
            Some(0 | 1) => state.left = None,
            Some(more) => state.left = Some(more - 1),
            None => {}
        }
        if let Some(record) = &mut state.record {
            let (connection, is_from_initiator) = (self.connection, self.is_from_initiator);
            record.push(Relayed { connection, is_from_initiator, bytes: bytes.to_vec() });
        }
        left
    }
}

/// Reads one PDU (RFC 7143, 11.2): 48 bytes, additional headers, and data padded to four bytes.
async fn read_pdu(from: &mut OwnedReadHalf) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 48];
    from.read_exact(&mut bytes).await.ok()?;
    let headers = usize::from(bytes[4]) * 4;
    let data = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize;
    bytes.resize(48 + headers + data.next_multiple_of(4), 0);
    from.read_exact(&mut bytes[48..]).await.ok()?;
    Some(bytes)
}
