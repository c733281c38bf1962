//! The simulated far end: a link with a rate and a delay, and an array of disks behind it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until},
};
use volume::{Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Stack, Volume};

/// Number of disks in the array, as in the paper (section 3.1).
const DISKS: usize = 8;
/// Service time of a disk: seek, half a revolution at 10,000 per minute, and 8 KiB from the
/// platter.
const SERVICE: Duration = Duration::from_millis(8);
/// Bytes of the headers of a message: iSCSI (48), and TCP, IP and Ethernet (54).
const HEADERS: u64 = 48 + 54;

/// Disks that serve one access at a time each. A write is acknowledged from the disk's cache at
/// once, and written to the platter at the speed of a read.
pub struct Disks {
    lower: Stack,
    free: Semaphore,
}

impl Disks {
    pub fn new(lower: Stack) -> Self {
        Self { lower, free: Semaphore::new(DISKS) }
    }

    async fn serve(&self) {
        let _disk = self.free.acquire().await.expect("never closed");
        sleep(SERVICE).await;
    }
}

impl Volume for Disks {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            self.serve().await;
            self.lower.read(extent).await
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            self.serve().await;
            self.lower.write(lba, data, durability).await
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        self.lower.flush()
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        self.lower.discard(extent)
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

/// A link. In each direction, messages leave one after the other and arrive after the delay.
pub struct Wire {
    lower: Stack,
    delay: Duration,
    /// Rate of each direction in bits per second.
    rate: u64,
    /// The reported limit of concurrent calls: see [`volume::Extensions::most_calls`].
    most_calls: Option<usize>,
    there: Mutex<Instant>,
    back: Mutex<Instant>,
}

impl Wire {
    pub fn new(lower: Stack, delay: Duration, rate: u64) -> Self {
        let free = || Mutex::new(Instant::now());
        Self { lower, delay, rate, most_calls: None, there: free(), back: free() }
    }

    /// Sets the maximum number of calls that the far volume performs at once.
    pub fn with_most_calls(self, calls: usize) -> Self {
        Self { most_calls: Some(calls), ..self }
    }

    async fn pass(&self, way: &Mutex<Instant>, bytes: usize) {
        let bits = (bytes as u64 + HEADERS) * 8;
        let arrival = {
            let mut free = way.lock();
            *free = (*free).max(Instant::now())
                + Duration::from_secs_f64(bits as f64 / self.rate as f64);
            *free + self.delay
        };
        sleep_until(arrival).await;
    }
}

impl Volume for Wire {
    fn geometry(&self) -> Geometry {
        self.lower.geometry()
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            self.pass(&self.there, 0).await;
            let data = self.lower.read(extent).await?;
            self.pass(&self.back, data.len()).await;
            Ok(data)
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            self.pass(&self.there, data.len()).await;
            self.lower.write(lba, data, durability).await?;
            self.pass(&self.back, 0).await;
            Ok(())
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(async move {
            self.pass(&self.there, 0).await;
            self.lower.flush().await?;
            self.pass(&self.back, 0).await;
            Ok(())
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            self.pass(&self.there, 0).await;
            self.lower.discard(extent).await?;
            self.pass(&self.back, 0).await;
            Ok(())
        })
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions { most_calls: self.most_calls, ..Extensions::default() }
    }
}
