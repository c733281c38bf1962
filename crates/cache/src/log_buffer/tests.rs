use std::sync::atomic::{AtomicBool, Ordering};

use sim::{AbilityProbe, Rng};
use volume::{DelayVolume, FaultCallKind, FaultRule, FaultVolume, Latency, MemVolume, Symptom};

use super::*;
use crate::MappedFile;

/// The memory of an NVRAM. The bytes survive when a buffer that uses the memory is dropped; a test can make
/// the memory fail.
#[derive(Clone)]
struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    is_broken: Arc<AtomicBool>,
}

impl Memory {
    fn new(blocks: usize) -> Self {
        let bytes = vec![0; 4096 + blocks * 4160];
        Self { bytes: Arc::new(Mutex::new(bytes)), is_broken: Arc::default() }
    }

    fn part(&self) -> Box<dyn StableMemory> {
        Box::new(Part { memory: self.clone(), error: std::io::Error::other("broken") })
    }

    fn clear(&self) {
        self.bytes.lock().fill(0);
    }
}

struct Part {
    memory: Memory,
    error: std::io::Error,
}

impl StableMemory for Part {
    fn len(&self) -> usize {
        self.memory.bytes.lock().len()
    }
    fn read(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.memory.bytes.lock()[offset..offset + to.len()]);
    }
    fn write(&mut self, offset: usize, from: &[u8]) {
        self.memory.bytes.lock()[offset..offset + from.len()].copy_from_slice(from);
    }
    fn error(&self) -> Option<&std::io::Error> {
        self.memory.is_broken.load(Ordering::Relaxed).then_some(&self.error)
    }
}

const BOOT: Option<BootId> = Some(BootId([1; 16]));
const PROMISE: NvramPromise = NvramPromise { survives: NvramSurvival::Restart, boot: BOOT };

fn disk() -> Stack {
    let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(65) };
    Arc::new(MemVolume::new(geometry))
}

/// Returns the disk with a latency of ten milliseconds for each write.
fn slow(disk: &Stack) -> Stack {
    let latency = Latency { write: std::time::Duration::from_millis(10), ..Latency::default() };
    Arc::new(DelayVolume::new(Arc::clone(disk), latency))
}

async fn found(disk: &Stack, memory: &Memory) -> FoundBuffer {
    FoundBuffer::open(Arc::clone(disk), memory.part(), PROMISE).await.expect("it opens")
}

async fn open(disk: &Stack, memory: &Memory) -> LogBuffer {
    let found = found(disk, memory).await;
    assert_eq!(found.loss(), None);
    found.begin().await.expect("it begins")
}

async fn put(volume: &dyn Volume, block: u64, byte: u8, blocks: usize) -> Result<(), Error> {
    volume.write(Lba(block), vec![byte; blocks * 4096].into(), Durability::Stable).await
}

async fn get(volume: &dyn Volume, block: u64, blocks: u32) -> Vec<u8> {
    let data = volume.read(Extent { lba: Lba(block), blocks }).await.expect("read").into_bytes();
    data.chunks(4096)
        .map(|block| {
            assert!(block.iter().all(|byte| *byte == block[0]), "a torn block");
            block[0]
        })
        .collect()
}

/// Ends the process of the buffer: pending writes do not arrive on the disk any more.
fn end(buffer: LogBuffer) {
    buffer.shared.state.lock().pending.clear();
}

#[tokio::test(start_paused = true)]
async fn a_write_is_acknowledged_before_the_disk_has_it_and_read_back_at_once() {
    let (disk, memory) = (disk(), Memory::new(16));
    let buffer = open(&slow(&disk), &memory).await;
    let begun = tokio::time::Instant::now();
    put(&buffer, 3, 1, 2).await.expect("written");
    put(&buffer, 4, 2, 1).await.expect("written");
    assert_eq!(begun.elapsed().as_millis(), 0);
    assert_eq!(get(&*disk, 3, 2).await, [0, 0]);
    assert_eq!(get(&buffer, 2, 4).await, [0, 1, 2, 0]);
    buffer.flush().await.expect("flushed");
    assert_eq!(get(&*disk, 3, 2).await, [1, 2]);
    assert_eq!(get(&buffer, 3, 2).await, [1, 2]);
    assert_eq!(buffer.pending_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_loses_no_acknowledged_write() {
    let (disk, memory) = (disk(), Memory::new(16));
    let mut rng = Rng::new(7);
    let mut model = [0; 64];
    for life in 0..50 {
        let buffer = open(&slow(&disk), &memory).await;
        for turn in 0..rng.below(30) {
            let (block, blocks) = (rng.below(60), 1 + rng.below(4));
            let byte = (life * 31 + turn) as u8;
            put(&buffer, block, byte, blocks as usize).await.expect("written");
            model[block as usize..(block + blocks) as usize].fill(byte);
            assert_eq!(get(&buffer, 0, 64).await, model, "life {life}, turn {turn}");
        }
        end(buffer);
        // The write that was in flight at the end arrives on the disk before the next process opens it.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let buffer = open(&disk, &memory).await;
    assert_eq!(get(&buffer, 0, 64).await, model);
    assert_eq!(get(&*disk, 0, 64).await, model, "an opening brings the disk up to date");
}

#[tokio::test(start_paused = true)]
async fn without_the_nvram_the_disk_has_a_prefix_and_the_loss_is_detected() {
    let other_boot = Some(BootId([2; 16]));
    for (clears, boot, is_declared) in
        [(true, BOOT, false), (false, other_boot, true), (false, None, true)]
    {
        let (disk, memory) = (disk(), Memory::new(40));
        let buffer = open(&slow(&disk), &memory).await;
        let id = buffer.shared.buffer;
        // No two of the writes below are adjacent, so the buffer writes each of them to the disk
        // separately.
        for turn in 0..30_u8 {
            put(&buffer, u64::from(turn) * 2, turn + 1, 1).await.expect("written");
        }
        tokio::time::sleep(std::time::Duration::from_millis(105)).await;
        end(buffer);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        if clears {
            memory.clear();
        }
        let promise = NvramPromise { boot, ..PROMISE };
        let found =
            FoundBuffer::open(Arc::clone(&disk), memory.part(), promise).await.expect("opens");
        assert_eq!(found.loss().map(|loss| loss.is_declared), Some(is_declared));
        let kept: Vec<u8> = get(&*disk, 0, 60).await.into_iter().step_by(2).collect();
        let prefix = kept.iter().take_while(|byte| **byte > 0).count();
        assert!((5..29).contains(&prefix), "{kept:?}");
        assert!(kept[prefix..].iter().all(|byte| *byte == 0), "{kept:?}");
        assert_ne!(found.begin().await.expect("begun").shared.buffer, id);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_room_while_the_buffer_is_closed_is_refused() {
    let (disk, memory) = (disk(), Memory::new(8));
    let buffer = open(&slow(&disk), &memory).await;
    let (written, closed) = tokio::join!(put(&buffer, 0, 1, 40), buffer.close());
    closed.expect("closed");
    assert!(written.is_err(), "the NVRAM would not be read again");
}

#[tokio::test]
async fn an_nvram_file_that_is_overwritten_in_use_is_detected() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("nvram");
    let memory = MappedFile::open(&path, 64 << 10).expect("made");
    let mut watch = memory.watch(&path).expect("watched");
    let found = FoundBuffer::open(disk(), Box::new(memory), PROMISE).await.expect("it opens");
    let buffer = found.begin().await.expect("it begins");
    put(&buffer, 1, 1, 1).await.expect("written");
    assert_eq!(watch.look(), None);
    let mut bytes = std::fs::read(&path).expect("read");
    bytes[20] ^= 1;
    std::fs::write(&path, &bytes).expect("overwritten");
    assert!(watch.look().is_some_and(|why| why.contains("overwritten")));
    assert!(!buffer.is_fast());
}

#[tokio::test(start_paused = true)]
async fn an_nvram_of_an_unknown_boot_is_not_used_again() {
    let (disk, memory) = (disk(), Memory::new(16));
    for (survives, is_lost) in [(NvramSurvival::PowerLoss, false), (NvramSurvival::Restart, true)] {
        let promise = NvramPromise { survives, boot: None };
        let open = || FoundBuffer::open(Arc::clone(&disk), memory.part(), promise);
        let buffer = open().await.expect("it opens").begin().await.expect("it begins");
        put(&buffer, 1, 1, 1).await.expect("written");
        end(buffer);
        assert_eq!(open().await.expect("it opens").loss().is_some(), is_lost, "{survives:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_clean_end_the_nvram_is_not_needed() {
    let (disk, memory) = (disk(), Memory::new(16));
    let buffer = open(&disk, &memory).await;
    put(&buffer, 3, 1, 2).await.expect("written");
    assert!(needs_buffer(&disk).await.expect("readable"));
    buffer.close().await.expect("closed");
    assert!(put(&buffer, 5, 1, 1).await.is_err(), "the NVRAM would not be read again");
    assert!(!needs_buffer(&disk).await.expect("readable"));
    let buffer = open(&disk, &Memory::new(32)).await;
    assert_eq!(get(&buffer, 3, 2).await, [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn an_nvram_with_writes_of_another_log_is_never_cleared() {
    let (disk, other) = (disk(), disk());
    let (memory, others) = (Memory::new(16), Memory::new(16));
    end(open(&disk, &memory).await);
    let buffer = open(&slow(&other), &others).await;
    put(&buffer, 3, 1, 2).await.expect("written");
    end(buffer);
    for disk in [&disk, &self::disk()] {
        let refused = FoundBuffer::open(Arc::clone(disk), others.part(), PROMISE).await;
        assert!(matches!(refused, Err(BufferError::OthersMemory)));
    }
    let buffer = open(&other, &others).await;
    assert_eq!(get(&buffer, 3, 2).await, [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_buffer_writes_to_no_mirror_leg_made_without_an_nvram_and_to_no_foreign_file() {
    let half = disk();
    let halves = [Some(Arc::clone(&half)), Some(disk())];
    drop(Mirror::open(halves, [1; 16], false).await.expect("made"));
    let file = disk();
    put(&*file, 0, 7, 1).await.expect("written");
    for disk in [half, file] {
        let all = Extent { lba: Lba(0), blocks: 65 };
        let before = disk.read(all).await.expect("read");
        let refused = FoundBuffer::open(Arc::clone(&disk), Memory::new(16).part(), PROMISE).await;
        assert!(matches!(refused, Err(BufferError::NoPlace | BufferError::Half(_))));
        assert_eq!(disk.read(all).await.expect("read"), before);
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_nvram_makes_writes_wait_for_the_disk_and_long_writes_go_in_pieces() {
    let (disk, memory) = (disk(), Memory::new(8));
    let buffer = open(&slow(&disk), &memory).await;
    let begun = tokio::time::Instant::now();
    put(&buffer, 0, 1, 40).await.expect("written");
    assert!(begun.elapsed().as_millis() >= 40, "{:?}", begun.elapsed());
    assert_eq!(get(&buffer, 0, 41).await, [[1; 40].as_slice(), &[0]].concat());
    end(buffer);
}

#[tokio::test(start_paused = true)]
async fn a_failed_disk_fails_writes_until_it_works_again_and_then_has_every_write() {
    let disk = disk();
    let fault = FaultVolume::new(Arc::clone(&disk));
    let faults = Arc::clone(fault.faults());
    let buffer = open(&(Arc::new(fault) as Stack), &Memory::new(16)).await;
    faults.add(FaultRule::always(
        FaultCallKind::Write,
        Symptom::Fails(Error::Device("no medium".into())),
    ));
    put(&buffer, 0, 1, 1).await.expect("the NVRAM has it");
    assert!(buffer.flush().await.is_err());
    assert!(!buffer.is_fast());
    assert!(put(&buffer, 1, 2, 1).await.is_err());
    assert_eq!(get(&buffer, 0, 1).await, [1]);
    faults.clear();
    put(&buffer, 2, 3, 1).await.expect("the disk works again");
    assert!(buffer.is_fast());
    assert_eq!(get(&*disk, 0, 3).await, [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn after_a_failure_of_the_nvram_writes_wait_for_the_disk_and_its_old_content_is_not_used() {
    let (disk, memory) = (disk(), Memory::new(16));
    let buffer = open(&slow(&disk), &memory).await;
    put(&buffer, 0, 1, 1).await.expect("written");
    memory.is_broken.store(true, Ordering::Relaxed);
    put(&buffer, 0, 2, 1).await.expect("written");
    assert_eq!(get(&*disk, 0, 1).await, [2], "it has waited for the disk");
    assert!(!needs_buffer(&disk).await.expect("readable"));
    end(buffer);
    // The memory works again and still holds the record of the first write.
    memory.is_broken.store(false, Ordering::Relaxed);
    let buffer = open(&disk, &memory).await;
    assert_eq!(get(&buffer, 0, 1).await, [2]);
}

#[tokio::test]
async fn a_log_disk_behind_an_nvram_passes_no_optional_call() {
    let geometry = Geometry { block_size: 4096, ..Geometry::with_blocks(65) };
    let probe = Arc::new(AbilityProbe::new(geometry));
    let disk: Stack = probe.clone();
    let buffer = open(&disk, &Memory::new(8)).await;
    assert_eq!(probe.calls_through(&buffer).await, ["flush_ahead -> flush", "examine -> read"]);
}
