//! A model of the correct content: the writes of every sector, when each was submitted, and when it
//! was answered.

use std::collections::HashMap;

pub const SECTOR: usize = 512;

/// A write or discard of some sectors.
pub struct Write {
    /// The number of the write; 0 if the write writes zeros.
    pub value: u64,
    pub submitted: u64,
    /// The time at which the write was answered or cancelled; `None` while it is in progress.
    ended: Option<u64>,
    acknowledged: bool,
}

/// The record of all writes. Times are a counter that grows with every event.
pub struct Model {
    clock: u64,
    /// The writes of all hosts, indexed by their numbers.
    writes: Vec<Write>,
    /// For each sector, the writes whose data a read may still return.
    sectors: Vec<Vec<u64>>,
    /// For a sector and a write: when a read first returned the write, if such a read guarantees that
    /// the write is kept.
    shown: HashMap<(usize, u64), u64>,
}

impl Model {
    /// Returns the model of a volume of zeros.
    pub fn new(sectors: usize) -> Self {
        let first = Write { value: 0, submitted: 0, ended: Some(0), acknowledged: true };
        let shown = HashMap::new();
        Self { clock: 1, writes: vec![first], sectors: vec![vec![0]; sectors], shown }
    }

    pub fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn sectors(&self) -> usize {
        self.sectors.len()
    }

    /// Records that a write is submitted. Its number is also its value, unless it writes zeros.
    pub fn submit(&mut self, first: usize, count: usize, zeros: bool) -> u64 {
        let id = self.writes.len() as u64;
        let submitted = self.now();
        let value = if zeros { 0 } else { id };
        self.writes.push(Write { value, submitted, ended: None, acknowledged: false });
        self.sectors[first..first + count].iter_mut().for_each(|history| history.push(id));
        id
    }

    /// Records that a write was answered or cancelled.
    pub fn end(&mut self, id: u64, first: usize, count: usize, acknowledged: bool) {
        let now = self.now();
        let write = &mut self.writes[id as usize];
        (write.ended, write.acknowledged) = (Some(now), acknowledged);
        // Remove writes that were superseded some time ago.
        for sector in first..first + count {
            let history = &self.sectors[sector];
            if history.len() > 24 {
                let keep: Vec<_> = history
                    .iter()
                    .copied()
                    .filter(|&id| !self.superseded(sector, id, now.saturating_sub(400)))
                    .collect();
                self.sectors[sector] = keep;
            }
        }
    }

    /// Records that a read has returned `value` for this sector; ignores zeros.
    pub fn show(&mut self, sector: usize, value: u64) {
        let now = self.now();
        if value != 0 && self.writes[value as usize].value == value {
            self.shown.entry((sector, value)).or_insert(now);
        }
    }

    /// Returns the time from which the content of a write must not be lost: its acknowledgment, or the
    /// first read of it.
    fn kept_since(&self, sector: usize, id: u64) -> Option<u64> {
        let write = &self.writes[id as usize];
        let acknowledged = write.ended.filter(|_| write.acknowledged);
        acknowledged.into_iter().chain(self.shown.get(&(sector, id)).copied()).min()
    }

    /// Returns true if a read submitted at `as_of` must not return write `id` any more: a newer write
    /// was submitted after `id` had ended, and the newer content had to be kept before `as_of`.
    fn superseded(&self, sector: usize, id: u64, as_of: u64) -> bool {
        let Some(ended) = self.writes[id as usize].ended else { return false };
        self.sectors[sector].iter().any(|&other| {
            self.writes[other as usize].submitted > ended
                && self.kept_since(sector, other).is_some_and(|since| since < as_of)
        })
    }

    /// Checks the bytes that a read submitted at `as_of` returned for a sector.
    pub fn check(&self, sector: usize, bytes: &[u8], as_of: u64) -> Result<u64, String> {
        let value = value_of(sector, bytes)?;
        let history = &self.sectors[sector];
        let fits = |id: &&u64| {
            self.writes[**id as usize].value == value && !self.superseded(sector, **id, as_of)
        };
        if history.iter().rev().any(|id| fits(&id)) {
            return Ok(value);
        }
        let known: Vec<_> = history
            .iter()
            .map(|id| {
                let w = &self.writes[*id as usize];
                (w.value, w.submitted, w.ended, w.acknowledged)
            })
            .collect();
        Err(format!("sector {sector} holds {value} at {as_of}, but its writes are {known:?}"))
    }

    /// Checks that the content is a consistent prefix: there is a moment, not before `least`, such
    /// that every sector holds its newest write that was acknowledged before the moment, or one that
    /// was in progress then, and nothing submitted after it. A write for which `overtaken` returns
    /// true may be there earlier.
    pub fn check_prefix(
        &self,
        bytes: &[u8],
        least: u64,
        overtaken: &dyn Fn(&Write) -> bool,
    ) -> Result<(), String> {
        self.check_prefix_from(0, bytes, least, overtaken)
    }

    /// Checks, as [`Self::check_prefix`] does, that the sectors from `first` on are a consistent
    /// prefix, whatever the others hold.
    pub fn check_prefix_from(
        &self,
        first: usize,
        bytes: &[u8],
        least: u64,
        overtaken: &dyn Fn(&Write) -> bool,
    ) -> Result<(), String> {
        let sectors: Result<Vec<_>, _> = bytes
            .chunks(SECTOR)
            .enumerate()
            .map(|(at, bytes)| {
                let sector = first + at;
                let value = value_of(sector, bytes)?;
                Ok::<_, String>((sector, value, self.spans(sector, value, overtaken)))
            })
            .collect();
        let sectors = sectors?;
        // Find the earliest moment that suits all sectors: each sector moves it forward to one that
        // suits itself.
        let (mut moment, mut mover) = (least, None);
        loop {
            let before = moment;
            for (sector, value, spans) in &sectors {
                let suits = spans.iter().filter(|span| span.1 >= moment);
                match suits.map(|span| span.0.max(moment)).min() {
                    Some(next) if next > moment => (moment, mover) = (next, Some(*sector)),
                    Some(_) => {}
                    None => {
                        return Err(format!(
                            "no consistent prefix: sector {sector} holds {value}, valid in {spans:?}, \
                             but sector {mover:?} is of {moment} or later"
                        ));
                    }
                }
            }
            if moment == before {
                return Ok(());
            }
        }
    }

    /// Returns the intervals of time in which the sector may have held this value.
    fn spans(
        &self,
        sector: usize,
        value: u64,
        overtaken: &dyn Fn(&Write) -> bool,
    ) -> Vec<(u64, u64)> {
        let writes = || self.sectors[sector].iter().map(|&id| &self.writes[id as usize]);
        let of_value = writes().filter(|write| write.value == value);
        let span = |write: &Write| {
            let first = if overtaken(write) { 0 } else { write.submitted };
            let later = writes().filter(|other| {
                other.acknowledged && write.ended.is_some_and(|ended| other.submitted > ended)
            });
            (first, later.filter_map(|other| other.ended).min().unwrap_or(u64::MAX))
        };
        of_value.map(span).collect()
    }

    /// Records the content of all sectors after a recovery. From then on the cache has to keep it.
    pub fn settle(&mut self, values: &[u64]) {
        for (sector, &value) in values.iter().enumerate() {
            let now = self.now();
            let settled = Write { value, submitted: now, ended: Some(now), acknowledged: true };
            self.sectors[sector] = vec![self.writes.len() as u64];
            self.writes.push(settled);
        }
    }
}

/// Returns the content of a sector after write `value`.
pub fn content(sector: usize, value: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if value != 0 {
        for (i, word) in bytes.chunks_mut(8).enumerate() {
            let number = value ^ ((sector as u64) << 40) ^ ((i as u64) << 56);
            word.copy_from_slice(&number.to_le_bytes());
        }
    }
    bytes
}

/// Returns the write from which the bytes of a sector come.
pub fn value_of(sector: usize, bytes: &[u8]) -> Result<u64, String> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Ok(0);
    }
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let value = word ^ ((sector as u64) << 40);
    if value >> 40 == 0 && content(sector, value) == bytes {
        return Ok(value);
    }
    Err(format!("sector {sector} holds bytes that were never written there: {:?}", &bytes[..16]))
}
