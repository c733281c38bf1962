//! Epochs: the units in which destage sends the log to the lower volume. A flush follows each of them.
//!
//! An epoch is a run of segments. When it ends, it is *sealed*. The lower volume then gets the content as of its last
//! segment, even of slots that were overwritten since. For that, the place that such a slot had in a sealed epoch is
//! kept in addition to its place in the table.
//!
//! ```text
//!   segments   5 6 7 │ 8 9 │ 10 11 …
//!              sealed  sealed  open
//! ```

use std::collections::{HashMap, HashSet, VecDeque};

use crate::slots::{
    sectors::runs,
    table::{LogAddress, SlotTable},
};

/// The version of a slot that a round sends to the lower volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub slot: u64,
    pub index: u32,
    pub incarnation: u32,
    pub place: LogAddress,
}

impl Item {
    /// Returns the number of writes that the slot takes: one for each run of its sectors.
    pub fn weight(&self) -> u64 {
        weight(&self.place)
    }
}

pub(crate) struct Epochs {
    /// The complete (sealed) epochs of the log that are not in the lower volume yet, oldest first.
    sealed: VecDeque<Sealed>,
    /// The newest segment of any sealed epoch. Later segments belong to the open epoch.
    end: u64,
    /// An upper bound of the number of destage writes that the open epoch needs (its weight).
    open: u64,
    /// The largest weight of an epoch; see [`Item::weight`].
    limit: u64,
    /// The number of items in `Sealed::older`, in all epochs.
    kept: usize,
    /// The last segment of the newest epoch that was destaged.
    completed: u64,
    /// For each slot whose newest log address is in the open epoch, by index in the table: its log address in the
    /// newest sealed epoch. Addresses in segments up to `completed` are void: the lower volume has their content, and
    /// the log may have overwritten them. The field is `None` if an epoch can end without a flush.
    replaced: Option<HashMap<u32, LogAddress>>,
}

struct Sealed {
    /// The last segment of the epoch.
    end: u64,
    /// An upper bound of the number of destage writes that the epoch needs.
    weight: u64,
    /// Log addresses in this epoch of slots that a later epoch has overwritten: destage of this epoch still needs
    /// them.
    older: Vec<Item>,
}

impl Epochs {
    /// Creates the list without epochs. The open epoch begins with the segment after `end`.
    pub fn new(end: u64) -> Self {
        Self {
            sealed: VecDeque::new(),
            end,
            open: 0,
            limit: u64::MAX,
            kept: 0,
            completed: end,
            replaced: None,
        }
    }

    /// Starts without epochs, in the mode in which only a flush ends an epoch. In this mode the open epoch
    /// can be rolled back, and reads can ignore it.
    pub fn by_flush(end: u64) -> Self {
        Self { replaced: Some(HashMap::new()), ..Self::new(end) }
    }

    /// Sets the largest weight of an epoch. Only an epoch of a single slot may weigh more.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit.max(1);
    }

    /// Returns how many slots of the largest weight fit into an epoch.
    pub fn limit(&self) -> u64 {
        self.limit / MOST_WEIGHT + u64::from(self.limit < MOST_WEIGHT)
    }

    /// Returns the last segment of the newest sealed epoch.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of the last segment of the oldest sealed epoch; `None` without sealed epochs.
    pub fn oldest(&self) -> Option<u64> {
        self.sealed.front().map(|epoch| epoch.end)
    }

    /// Returns the last segment of the sealed epoch that follows the one that ends with segment `end`.
    pub fn following(&self, end: u64) -> Option<u64> {
        self.sealed.iter().map(|epoch| epoch.end).find(|next| *next > end)
    }

    /// Ends the open epoch with segment `end`, so that destage may send it as a whole.
    pub fn seal(&mut self, end: u64) {
        let weight = self.open;
        self.close(end);
        self.sealed.push_back(Sealed { end, weight, older: Vec::new() });
    }

    fn close(&mut self, end: u64) {
        (self.end, self.open) = (end, 0);
        self.replaced = self.replaced.take().map(|_| HashMap::new());
    }

    /// Seals the open epoch, which ends with segment `end`, and joins it with the newest sealed epoch, unless
    /// that is the one that is being sent now.
    pub fn seal_together(&mut self, end: u64, going_down: Option<u64>) {
        match self.sealed.back_mut().filter(|newest| Some(newest.end) != going_down) {
            Some(newest) => {
                // The joined epoch does not need the older versions of the newest sealed epoch: it sends newer
                // content of these slots.
                self.kept -= newest.older.len();
                newest.older.clear();
                newest.end = end;
                newest.weight += self.open;
                self.close(end);
            }
            None => self.seal(end),
        }
    }

    /// Joins the oldest epoch with the next one, or with the open one up to segment `newest`. The joined
    /// epoch has the newer content of each slot. Returns false if no epoch follows.
    pub fn join_oldest(&mut self, table: &SlotTable, newest: Option<u64>) -> bool {
        if self.sealed.len() > 1 {
            self.join(0, table);
            return true;
        }
        match (self.oldest(), newest) {
            (Some(oldest), Some(newest)) if newest > oldest => {
                self.seal_together(newest, None);
                true
            }
            _ => false,
        }
    }

    /// Joins the sealed epoch at index `at` with the next one: the lower volume receives both as one epoch.
    fn join(&mut self, at: usize, table: &SlotTable) {
        let first = self.sealed.remove(at).expect("the caller has looked");
        let next = self.sealed.get_mut(at).expect("the caller has looked");
        self.kept -= first.older.len();
        let again: HashSet<u32> = next.older.iter().map(|item| item.index).collect();
        // Keep the log address of a slot that the next epoch does not write: destage of the joined epoch needs it,
        // since a crash or a rollback may discard the slot's later content.
        let is_kept = |item: &Item| {
            let is_behind = |place: LogAddress| place.segment > next.end;
            table.is_alive(item.index, item.incarnation)
                && !again.contains(&item.index)
                && table.entry(item.index).place.is_some_and(is_behind)
        };
        next.weight += first.weight;
        let before = next.older.len();
        next.older.extend(first.older.into_iter().filter(is_kept));
        self.kept += next.older.len() - before;
    }

    /// Joins the oldest epoch that ends behind segment `after` with the sealed epochs that follow it, up to a
    /// joint weight of `most`.
    pub fn join_up_to(&mut self, after: u64, table: &SlotTable, most: u64) {
        let Some(at) = self.sealed.iter().position(|epoch| epoch.end > after) else { return };
        while let (Some(first), Some(next)) = (self.sealed.get(at), self.sealed.get(at + 1))
            && first.weight.saturating_add(next.weight) <= most
        {
            self.join(at, table);
        }
    }

    /// Joins everything up to segment `newest` into one epoch. Since that is the newest segment of the log, no older
    /// log addresses are kept.
    pub fn join_all(&mut self, newest: u64) {
        self.sealed.clear();
        self.kept = 0;
        self.seal(newest);
    }

    /// Returns the number of older versions of overwritten slots that destage still needs, in all epochs.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Seals the open epoch if it could exceed the limit together with the segment `next`, which has `slots`
    /// slots and is added after this call.
    pub fn make_room(&mut self, next: u64, slots: usize) {
        let most = (slots as u64).saturating_mul(MOST_WEIGHT);
        if self.open > 0 && self.open.saturating_add(most) > self.limit {
            self.seal(next - 1);
        }
    }

    /// Sets the newest log address of a slot, which is in the open epoch.
    pub fn supersede(&mut self, table: &mut SlotTable, index: u32, place: LogAddress) {
        let entry = table.entry(index);
        let old = entry.place;
        if let Some(old) = old.filter(|old| old.segment <= self.end) {
            let at = self.sealed.partition_point(|epoch| epoch.end < old.segment);
            let item = Item { slot: entry.slot, index, incarnation: entry.incarnation, place: old };
            // If no sealed epoch has the old segment, the lower volume has the old content.
            if let Some(epoch) = self.sealed.get_mut(at) {
                epoch.older.push(item);
                self.kept += 1;
                if let Some(replaced) = &mut self.replaced {
                    replaced.insert(index, old);
                }
            }
        }
        let again = old.is_some_and(|old| old.segment > self.end && old.mask == place.mask);
        self.open += if again { 0 } else { weight(&place) };
        table.set_place(index, place);
    }

    /// Returns the log addresses in the oldest epoch of slots that were overwritten since. Skips the first `from`.
    pub fn older(&self, from: usize) -> &[Item] {
        self.sealed.front().map_or(&[], |epoch| &epoch.older[from.min(epoch.older.len())..])
    }

    /// Returns the older versions that the epoch ending with segment `end` needs, because hosts have
    /// overwritten these slots since. Skips the first `from`.
    pub fn older_of(&self, end: u64, from: usize) -> &[Item] {
        let epoch = self.sealed.iter().find(|epoch| epoch.end == end);
        epoch.map_or(&[], |epoch| &epoch.older[from.min(epoch.older.len())..])
    }

    /// Returns the log addresses in sealed epochs of slots that were overwritten since; those of the newest epoch
    /// come last.
    pub fn sealed_places(&self) -> impl Iterator<Item = &Item> {
        self.sealed.iter().flat_map(|epoch| &epoch.older)
    }

    /// Returns the log address that a slot had at the end of the newest sealed epoch, if its newest log address is in
    /// the open epoch. `None` means that the lower volume has the content as of that time.
    pub fn replaced(&self, index: u32) -> Option<LogAddress> {
        let place = *self.replaced.as_ref()?.get(&index)?;
        (place.segment > self.completed).then_some(place)
    }

    /// Rolls the open epoch back. Returns the log addresses that its slots had before, by index in the table. A slot
    /// without such an address is clean.
    pub fn void_open(&mut self) -> HashMap<u32, LogAddress> {
        let mut replaced = self.replaced.take().unwrap_or_default();
        replaced.retain(|_, place| place.segment > self.completed);
        self.open = 0;
        self.replaced = Some(HashMap::new());
        replaced
    }

    /// Removes the epochs up to the one that ends with segment `end`: the lower volume has them.
    pub fn complete(&mut self, end: u64) {
        while self.oldest().is_some_and(|oldest| oldest <= end) {
            let epoch = self.sealed.pop_front().expect("it is the oldest");
            self.kept -= epoch.older.len();
        }
        self.completed = self.completed.max(end);
    }
}

/// Returns the largest weight of an epoch. `log_blocks` is the size of the log, `lower_slots` the size of an epoch of
/// the lower volume (0 if it has none), and `link_slots` what the link holds in one round trip.
pub(crate) fn limit(log_blocks: u32, lower_slots: u64, link_slots: u64) -> u64 {
    let usual = u64::from(log_blocks / EPOCHS_IN_LOG).clamp(1, LARGEST);
    // The link is idle for one or two round trips between two epochs, so a link that holds much gets long
    // epochs.
    let wanted = link_slots.saturating_mul(TRIPS_IN_EPOCH);
    let most = u64::from(log_blocks / LEAST_EPOCHS_IN_LOG).max(usual);
    let limit = wanted.clamp(usual, most).min(LARGEST);
    if lower_slots > 0 { limit.min(lower_slots) } else { limit }
}

fn weight(place: &LogAddress) -> u64 {
    runs(place.mask).count() as u64
}

/// The usual number of epochs in a full log. With fewer, hosts that meet a full log wait longer; with more,
/// fewer overwritten blocks are left out.
const EPOCHS_IN_LOG: u32 = 8;
/// The least number of epochs in a full log. This number applies to links with a large bandwidth × delay
/// product.
const LEAST_EPOCHS_IN_LOG: u32 = 4;
/// The length of an epoch in round trips of the full link, if the log is large enough. The two idle round
/// trips between two epochs are then a fortieth of the time.
const TRIPS_IN_EPOCH: u64 = 80;
/// Number of slots in the largest epoch, 256 MiB: 20 s at 100 Mbit/s, which is less than hosts wait when they get BUSY.
const LARGEST: u64 = 1 << 16;
/// The largest weight of a slot: four runs, made of every other of its eight sectors.
const MOST_WEIGHT: u64 = 4;

#[cfg(test)]
mod tests {
    use journal::segment::LogRecordKind;

    use super::*;
    use crate::slots::sectors::WHOLE;

    fn place(segment: u64) -> LogAddress {
        LogAddress {
            segment,
            block: segment as u32,
            checksum: 0,
            mask: WHOLE,
            kind: LogRecordKind::Data,
        }
    }

    fn segments(items: &[Item]) -> Vec<(u64, u64)> {
        items.iter().map(|item| (item.slot, item.place.segment)).collect()
    }

    #[test]
    fn an_epoch_keeps_versions_that_were_overwritten_after_its_end() {
        let (mut table, mut epochs) = (SlotTable::new(64), Epochs::new(0));
        let a = table.find_or_insert(70);
        epochs.supersede(&mut table, a, place(1));
        epochs.supersede(&mut table, a, place(2));
        assert_eq!(epochs.oldest(), None);
        epochs.seal(2);
        epochs.supersede(&mut table, a, place(3));
        epochs.supersede(&mut table, a, place(4));
        epochs.seal(4);
        epochs.supersede(&mut table, a, place(5));
        assert_eq!(segments(epochs.older(0)), [(70, 2)]);
        epochs.complete(2);
        assert_eq!((epochs.oldest(), segments(epochs.older(0))), (Some(4), vec![(70, 4)]));
        assert_eq!(table.entry(a).place, Some(place(5)));
    }

    #[test]
    fn flushes_join_epochs_except_the_one_that_is_being_destaged() {
        let (mut table, mut epochs) = (SlotTable::new(64), Epochs::new(0));
        let a = table.find_or_insert(70);
        epochs.supersede(&mut table, a, place(1));
        epochs.seal_together(1, None);
        epochs.supersede(&mut table, a, place(2));
        epochs.seal_together(2, None);
        assert_eq!((epochs.oldest(), epochs.older(0).len()), (Some(2), 0));
        epochs.supersede(&mut table, a, place(3));
        epochs.seal_together(3, Some(2));
        assert_eq!((epochs.oldest(), segments(epochs.older(0))), (Some(2), vec![(70, 2)]));
    }

    #[test]
    fn the_oldest_epoch_is_joined_with_the_epoch_after_it() {
        let (mut table, mut epochs) = (SlotTable::new(64), Epochs::new(0));
        let a = table.find_or_insert(70);
        for segment in 1..=4 {
            epochs.supersede(&mut table, a, place(segment));
            if segment < 4 {
                epochs.seal(segment);
            }
        }
        assert_eq!((segments(epochs.older(0)), epochs.kept()), (vec![(70, 1)], 3));
        assert!(epochs.join_oldest(&table, None));
        assert_eq!((epochs.oldest(), segments(epochs.older(0))), (Some(2), vec![(70, 2)]));
        assert!(epochs.join_oldest(&table, None));
        assert_eq!((segments(epochs.older(0)), epochs.kept()), (vec![(70, 3)], 1));
        assert!(!epochs.join_oldest(&table, None) && !epochs.join_oldest(&table, Some(3)));
        assert!(epochs.join_oldest(&table, Some(4)));
        assert_eq!((epochs.oldest(), epochs.end(), epochs.kept()), (Some(4), 4, 0));
    }

    #[test]
    fn a_joined_epoch_keeps_slots_that_the_next_epoch_does_not_write() {
        let (mut table, mut epochs) = (SlotTable::new(64), Epochs::new(0));
        let [twice, late, once] = [70, 71, 72].map(|slot| table.find_or_insert(slot));
        for index in [twice, late, once] {
            epochs.supersede(&mut table, index, place(1));
        }
        epochs.seal(1);
        epochs.supersede(&mut table, twice, place(2));
        epochs.supersede(&mut table, once, place(2));
        epochs.seal(2);
        epochs.supersede(&mut table, twice, place(3));
        epochs.supersede(&mut table, late, place(3));
        assert_eq!(segments(epochs.older(0)), [(70, 1), (72, 1), (71, 1)]);
        assert!(epochs.join_oldest(&table, None));
        assert_eq!(segments(epochs.older(0)), [(70, 2), (71, 1)]);
        assert_eq!((epochs.oldest(), epochs.kept()), (Some(2), 2));
        epochs.join_all(3);
        assert_eq!((epochs.oldest(), epochs.end(), epochs.kept()), (Some(3), 3, 0));
    }

    #[test]
    fn a_larger_bandwidth_delay_product_allows_larger_epochs() {
        assert_eq!(limit(8000, 0, 0), 1000);
        assert_eq!(limit(8000, 0, 15), 1200);
        assert_eq!(limit(8000, 0, 500), 2000);
        assert_eq!(limit(8000, 600, 500), 600, "the lower volume has smaller epochs");
        assert_eq!(limit(8000, 1500, 500), 1500);
        assert_eq!(limit(8000, 5000, 500), 2000);
        assert_eq!(limit(u32::MAX, 0, u64::MAX), LARGEST);
        assert_eq!(limit(1, 0, 1), 1);
    }

    #[test]
    fn epochs_are_joined_up_to_a_limit_on_their_size() {
        let (mut table, mut epochs) = (SlotTable::new(64), Epochs::new(0));
        for segment in 1..=5 {
            for slot in 0..10 {
                let index = table.find_or_insert(segment * 100 + slot);
                epochs.supersede(&mut table, index, place(segment));
            }
            epochs.seal(segment);
        }
        epochs.join_up_to(0, &table, 9);
        assert_eq!(epochs.oldest(), Some(1));
        epochs.join_up_to(1, &table, 20);
        assert_eq!((epochs.oldest(), epochs.following(1)), (Some(1), Some(3)));
        epochs.join_up_to(0, &table, 39);
        assert_eq!(epochs.oldest(), Some(3));
        epochs.join_up_to(0, &table, u64::MAX);
        assert_eq!((epochs.oldest(), epochs.end()), (Some(5), 5));
    }

    #[test]
    fn an_epoch_is_sealed_before_a_write_would_exceed_its_limit() {
        let (mut table, mut epochs) = (SlotTable::new(64), Epochs::new(0));
        epochs.set_limit(12);
        assert_eq!(epochs.limit(), 3);
        for segment in 1..=10 {
            epochs.make_room(segment, 1);
            let index = table.find_or_insert(segment);
            epochs.supersede(&mut table, index, place(segment));
        }
        assert_eq!((epochs.oldest(), epochs.end()), (Some(9), 9));
    }
}
