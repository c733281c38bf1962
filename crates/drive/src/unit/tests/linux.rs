//! The commands of the OSD test of the Linux kernel, byte for byte as its initiator writes them: a
//! capability of OSD-1 at the place of that of OSD-2, lists whose headers have no length, the flush
//! scope in byte 11.

use object::{ListRequest, ScatterEntry};
use osd::{CAPABILITY, ServiceAction};

use super::*;

const PID: u64 = 0x1717_1717;

/// A CDB and its Data-Out, as libosd (the initiator of Linux) makes them.
struct Libosd {
    cdb: [u8; 236],
    out: Vec<u8>,
}

impl Libosd {
    fn new(action: ServiceAction, partition: u64, object: u64) -> Self {
        let mut cdb = [0; 236];
        cdb[0] = 0x7f;
        cdb[7] = 228;
        cdb[8..10].copy_from_slice(&(action as u16).to_be_bytes());
        // Lists without entries have the offset FFFFFFFFh.
        cdb[11] = 3 << 4;
        for at in [56, 64, 72] {
            cdb[at..at + 4].fill(0xff);
        }
        cdb[16..24].copy_from_slice(&partition.to_be_bytes());
        cdb[24..32].copy_from_slice(&object.to_be_bytes());
        // The capability of a client without security: format 1, permissions FFE0h.
        cdb[CAPABILITY] = 1;
        cdb[CAPABILITY + 48] = 0x80;
        cdb[CAPABILITY + 49..CAPABILITY + 51].copy_from_slice(&[0xff, 0xe0]);
        cdb[CAPABILITY + 55] = 1 << 4;
        Self { cdb, out: Vec::new() }
    }

    fn word(mut self, at: usize, value: u32) -> Self {
        self.cdb[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    fn long(mut self, at: usize, value: u64) -> Self {
        self.cdb[at..at + 8].copy_from_slice(&value.to_be_bytes());
        self
    }

    /// Sets bytes 32 to 47 of the CDB: length and start of a transfer.
    fn range(self, length: u64, start: u64) -> Self {
        self.long(32, length).long(40, start)
    }

    fn data(mut self, data: &[u8]) -> Self {
        self.out.extend_from_slice(data);
        self
    }

    /// Appends a list to the Data-Out buffer, and returns its encoded offset and its length.
    fn list(&mut self, list_type: u8, entries: &[u8]) -> (u32, u32) {
        self.out.resize(self.out.len().next_multiple_of(8), 0);
        let offset = osd::offset::encode(self.out.len() as u64).unwrap();
        self.out.extend_from_slice(&[list_type, 0, 0, 0, 0, 0, 0, 0]);
        self.out.extend_from_slice(entries);
        (offset, 8 + entries.len() as u32)
    }

    fn set(mut self, page: u32, number: u32, value: &[u8]) -> Self {
        let mut entry = [page.to_be_bytes(), number.to_be_bytes()].concat();
        entry.extend_from_slice(&[0; 6]);
        entry.extend_from_slice(&(value.len() as u16).to_be_bytes());
        entry.extend_from_slice(value);
        entry.resize(entry.len().next_multiple_of(8), 0);
        let (offset, length) = self.list(9, &entry);
        self.word(68, length).word(72, offset)
    }

    fn get(mut self, ids: &[(u32, u32)], allocation: u32, data_in: u64) -> Self {
        let entries: Vec<u8> = ids
            .iter()
            .flat_map(|(page, number)| [page.to_be_bytes(), number.to_be_bytes()].concat())
            .collect();
        let (offset, length) = self.list(1, &entries);
        let retrieved = osd::offset::encode(data_in.next_multiple_of(8)).unwrap();
        self.word(52, length).word(56, offset).word(60, allocation).word(64, retrieved)
    }

    /// Puts a continuation segment with a scatter/gather list before the data.
    fn scatter(self, entries: &[ScatterEntry]) -> Self {
        let mut segment = vec![0; 40];
        segment[0] = 1;
        segment[2..4].copy_from_slice(&self.cdb[8..10]);
        segment.extend_from_slice(&[0, 1, 0, 0]);
        segment.extend_from_slice(&(16 * entries.len() as u32).to_be_bytes());
        for entry in entries {
            segment.extend_from_slice(&entry.start.to_be_bytes());
            segment.extend_from_slice(&entry.length.to_be_bytes());
        }
        let length = segment.len() as u32;
        self.word(48, length).data(&segment)
    }

    async fn run<S: DriveBacking>(self, bench: &Bench<S>) -> Completion {
        bench.run(&self.cdb, self.out).await
    }
}

#[tokio::test]
async fn the_osd_test_of_the_linux_kernel_passes() {
    osd_test(&Bench::empty(SecurityMethod::NoSec).await).await;
}

/// Performs the commands of the Linux kernel's osd_test in their order.
pub(super) async fn osd_test<S: DriveBacking>(bench: &Bench<S>) {
    use ServiceAction::*;
    let first: Vec<(u32, u32)> =
        [4, 5, 6, 7, 8, 9, 0x80, 0x81, 0xc0, 0x100, 3].map(|number| (0x9000_0001, number)).into();
    let info = Libosd::new(GetAttributes, 0, 0).get(&first, 432, 0).run(bench).await;
    let info = data_in(info);
    assert_eq!(info[0], 9);
    assert_eq!(&info[8..16], &[0x90, 0, 0, 1, 0, 0, 0, 4]);
    let good = async |command: Libosd| data_in(command.run(bench).await);
    good(Libosd::new(FormatOsd, 0, 0).long(32, 1 << 30)).await;
    good(Libosd::new(CreatePartition, PID, 0)).await;
    for id in [0x1_0000, 0x1_0001] {
        good(Libosd::new(Create, PID, id)).await;
    }
    let list = good(Libosd::new(List, PID, 0).long(32, 4096)).await;
    assert_eq!(list[..8], 32u64.to_be_bytes(), "ADDITIONAL LENGTH");
    assert_eq!(list[24..40], [0x1_0000u64.to_be_bytes(), 0x1_0001u64.to_be_bytes()].concat());

    let data: Vec<u8> = (0..4096u32).map(|at| (at % 251) as u8).collect();
    good(Libosd::new(Write, PID, 0x1_0000).range(4096, 0).data(&data)).await;
    let read = good(Libosd::new(Read, PID, 0x1_0000).range(4096, 0)).await;
    assert_eq!(read, data);

    let entries = [
        ScatterEntry { start: 8192, length: 1024 },
        ScatterEntry { start: 0, length: 512 },
        ScatterEntry { start: 16384, length: 2048 },
        ScatterEntry { start: 4096, length: 512 },
    ];
    let scattered = Libosd::new(Write, PID, 0x1_0001).range(4096, 0).scatter(&entries).data(&data);
    assert_eq!(scattered.out.len(), 112 + 4096);
    good(scattered).await;
    let gathered = Libosd::new(Read, PID, 0x1_0001).range(4096, 0).scatter(&entries);
    assert_eq!(good(gathered).await, data);
    let stored = good(Libosd::new(Read, PID, 0x1_0001).range(18432, 0)).await;
    assert_eq!(stored[8192..9216], data[..1024]);
    assert_eq!(stored[4096..4608], data[3584..]);
    assert_eq!(stored[512..4096], [0; 3584], "never written");

    osd_test_attributes(bench, &data).await;

    let mut flush = Libosd::new(Flush, PID, 0x1_0000);
    flush.cdb[11] |= 1;
    good(flush).await;
    for id in [0x1_0000, 0x1_0001] {
        good(Libosd::new(Remove, PID, id)).await;
    }
    good(Libosd::new(RemovePartition, PID, 0)).await;
    let gone = Libosd::new(Write, PID, 0x1_0000).range(4096, 0).data(&data).run(bench).await;
    assert_eq!(codes(&gone), Some((0x24, 0x00, Some(24))));
    assert_eq!(gone.sense.map(|sense| sense.key as u8), Some(5));
}

/// Performs the attribute commands of osd_test, on an object of 4096 bytes that is written again with `data`.
async fn osd_test_attributes<S: DriveBacking>(bench: &Bench<S>, data: &[u8]) {
    use ServiceAction::*;
    let good = async |command: Libosd| data_in(command.run(bench).await);
    let write = Libosd::new(Write, PID, 0x1_0000)
        .range(4096, 0)
        .data(data)
        .set(1, 9, b"the name of the object")
        .get(&[(1, 0x81), (1, 0x82)], 64, 0);
    let retrieved = good(write).await;
    assert_eq!(retrieved.len(), 8 + 2 * 24);
    assert_eq!(retrieved[24..32], 4096u64.to_be_bytes());
    let read = Libosd::new(Read, PID, 0x1_0000)
        .range(4096, 0)
        .set(2, 1, &[0, 0, 0, 0, 1, 0, 0, 0])
        .get(&[(3, 5), (3, 3)], 64, 4096);
    let read = good(read).await;
    assert_eq!(read[..4096], *data);
    assert_eq!(read[4096], 9, "the list of attributes follows the data");
    good(Libosd::new(SetAttributes, PID, 0x1_0000).set(0x1_0000, 1, &[7; 16])).await;
    let both = [(0x1_0000, 1), (1, 9)];
    let values = good(Libosd::new(GetAttributes, PID, 0x1_0000).get(&both, 128, 0)).await;
    assert_eq!(values[24..40], [7; 16]);
    assert_eq!(values[56..78], *b"the name of the object");
}

#[tokio::test]
async fn exofs_can_make_its_file_system() {
    use ServiceAction::*;
    let bench = Bench::empty(SecurityMethod::NoSec).await;
    let good = async |command: Libosd| data_in(command.run(&bench).await);
    good(Libosd::new(FormatOsd, 0, 0).set(0x9000_0001, 9, b"exofs")).await;
    good(Libosd::new(CreatePartition, PID, 0)).await;
    for id in 0x1_0000..0x1_0003 {
        good(Libosd::new(Create, PID, id)).await;
        good(Libosd::new(SetAttributes, PID, id).set(0x1_0003, 1, &[5; 64])).await;
    }
    let root = ObjectAddress::ROOT;
    let name = bench.unit.store().attribute(root, 0x9000_0001, 9).unwrap();
    assert_eq!(name.as_ref(), b"exofs");
}

#[tokio::test]
async fn lists_without_length_may_have_offsets_of_zero() {
    let bench = Bench::new(SecurityMethod::NoSec).await;
    let mut read = Libosd::new(ServiceAction::Read, PARTITION, OBJECT.object).range(0, 0);
    for at in [56, 64, 72] {
        read = read.word(at, 0);
    }
    assert!(data_in(read.run(&bench).await).is_empty());
    // In a CDB without attributes, CDBFMT may also be zero.
    let mut plain =
        OsdCdb::new(Command::List { partition: 0, list: ListRequest::default() }).encode();
    plain[11] = 0;
    plain[52..80].fill(0);
    assert!(data_in(bench.run(&plain, Vec::new()).await).is_empty());
}
