//! Captures the packets that arrive at either end in a file for packet analysers (pcap with nanoseconds).

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// A capture file. A thread of its own writes it, so that the disk does not delay the link.
#[derive(Debug)]
pub(crate) struct Capture {
    records: Option<SyncSender<CapturedPacket>>,
    writer: Option<JoinHandle<()>>,
    missed: u64,
}

#[derive(Debug)]
struct CapturedPacket {
    at: Instant,
    /// Length of the whole IP packet in bytes.
    bytes: u32,
    /// The first bytes of the packet, at most [`SNAP`].
    begin: Vec<u8>,
}

/// Maximum number of records that wait for the disk. They take 1 MiB of memory (`SNAP` bytes each), and are as many as
/// packets pass in 50 ms at 1 Gbit/s.
const WAITING: usize = 4096;
/// Maximum number of bytes of a packet that are captured: IP and TCP headers with all options, and an iSCSI header.
const SNAP: usize = 256;
/// Maximum time for which a captured packet stays in a buffer before it is written to the file.
const FLUSH: Duration = Duration::from_secs(1);
/// The magic number of a file with nanoseconds.
const MAGIC: u32 = 0xa1b2_3c4d;
/// LINKTYPE_RAW: a record begins with the IP header.
const RAW_IP: u32 = 101;

impl Capture {
    /// Creates the capture file, or truncates an existing one.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(&file_header())?;
        file.flush()?;
        let (records, receiver) = sync_channel(WAITING);
        let (start, wall) = (Instant::now(), SystemTime::now());
        let since_epoch = wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        let writer = std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || write_all(&receiver, file, start, since_epoch))?;
        Ok(Self { records: Some(records), writer: Some(writer), missed: 0 })
    }

    /// Records an IP packet that has arrived. The bytes of the packet are in `pieces`.
    pub fn record(&mut self, at: Instant, pieces: [&[u8]; 2]) {
        let bytes = (pieces[0].len() + pieces[1].len()) as u32;
        let mut begin = Vec::with_capacity(SNAP);
        for piece in pieces {
            let room = SNAP - begin.len();
            begin.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        let record = CapturedPacket { at, bytes, begin };
        let taken = self.records.as_ref().is_some_and(|records| records.try_send(record).is_ok());
        self.missed += u64::from(!taken);
    }

    /// Returns the number of packets that are missing in the file because the disk was too slow or full.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.records = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Writes the records that it receives to the file, until the sender of the records is dropped. After an error no more
/// records are written; these count as missing.
fn write_all(
    records: &Receiver<CapturedPacket>,
    mut file: BufWriter<File>,
    start: Instant,
    since_epoch: Duration,
) {
    loop {
        let written = match records.recv_timeout(FLUSH) {
            Ok(record) => {
                let at = since_epoch + record.at.saturating_duration_since(start);
                let header = record_header(at, record.begin.len() as u32, record.bytes);
                file.write_all(&header).and_then(|()| file.write_all(&record.begin))
            }
            Err(RecvTimeoutError::Timeout) => file.flush(),
            Err(RecvTimeoutError::Disconnected) => {
                let _ = file.flush();
                return;
            }
        };
        if written.is_err() {
            return;
        }
    }
}

/// The file header: magic, version 2.4, time zone and accuracy (zero), longest record, kind of link.
fn file_header() -> Vec<u8> {
    let words = [MAGIC, 2 | 4 << 16, 0, 0, SNAP as u32, RAW_IP];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn record_header(at: Duration, kept: u32, bytes: u32) -> Vec<u8> {
    let words = [at.as_secs() as u32, at.subsec_nanos(), kept, bytes];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_beginning_of_each_packet() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        let mut capture = Capture::create(&path).unwrap();
        let now = Instant::now();
        capture.record(now, [&[1; 40], &[2; 10]]);
        capture.record(now, [&[3; 40], &[4; 1400]]);
        drop(capture);
        let file = std::fs::read(&path).unwrap();
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(20)), (MAGIC, 0x0004_0002, RAW_IP));
        assert_eq!((word(24 + 8), word(24 + 12)), (50, 50));
        let second = 24 + 16 + 50;
        assert_eq!((word(second + 8), word(second + 12)), (256, 1440));
        assert_eq!(file.len(), second + 16 + 256);
        assert_eq!(file[second + 16 + 39..second + 16 + 41], [3, 4]);
    }
}
