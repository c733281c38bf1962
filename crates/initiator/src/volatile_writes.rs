//! Records which acknowledged writes the next flush must make stable, and which of them may be lost.

/// The writes that were acknowledged, may still be only in the unit's volatile cache, and are not flushed. They are
/// numbered in the order of their acknowledgments.
#[derive(Debug, Default)]
pub(crate) struct VolatileWrites {
    answered: u64,
    generation: u64,
    /// Writes that were acknowledged in the current generation.
    current: Option<WriteNumberRange>,
    /// Writes that were acknowledged in earlier generations and that may be lost.
    lost: Option<WriteNumberRange>,
}

/// The writes with the numbers `first..=last`. Some of these numbers may belong to the other range
/// of [`VolatileWrites`].
#[derive(Clone, Copy, Debug)]
struct WriteNumberRange {
    first: u64,
    last: u64,
}

impl VolatileWrites {
    /// Notes the acknowledgment of a volatile write or discard.
    pub(crate) fn note_write(&mut self, generation: u64) {
        self.advance(generation);
        self.answered += 1;
        let write = WriteNumberRange { first: self.answered, last: self.answered };
        let span = if generation < self.generation { &mut self.lost } else { &mut self.current };
        *span = Some(join(*span, write));
    }

    /// Forgets all unflushed writes, because the unit discards their data.
    pub(crate) fn forget(&mut self) {
        (self.current, self.lost) = (None, None);
    }

    /// Returns true if no write needs a flush, and no loss is left to report.
    pub(crate) fn is_clean(&self) -> bool {
        self.current.is_none() && self.lost.is_none()
    }

    /// Begins a flush. Returns a number to pass to [`Self::end_flush`].
    pub(crate) fn begin_flush(&self) -> u64 {
        self.answered
    }

    /// Returns true if writes that were acknowledged before the flush `begun` may be lost. Reports each loss once. The
    /// flush is useless then, and must not be sent to a unit with epochs: it would end an epoch that lacks some of its
    /// writes.
    pub(crate) fn take_lost(&mut self, begun: u64) -> bool {
        let lost = self.lost.is_some_and(|lost| lost.first <= begun);
        if lost {
            self.lost = after(self.lost, begun);
        }
        lost
    }

    /// Ends a flush that the unit has answered. Returns true if all writes that were acknowledged before the flush
    /// began are stable. Reports a loss once: the caller then writes everything again that it has written since its
    /// last successful flush.
    pub(crate) fn end_flush(&mut self, begun: u64, generation: u64) -> bool {
        self.advance(generation);
        let lost = self.take_lost(begun);
        if !lost && generation == self.generation {
            self.current = after(self.current, begun);
        }
        !lost
    }

    fn advance(&mut self, generation: u64) {
        if generation > self.generation {
            self.generation = generation;
            if let Some(span) = self.current.take() {
                self.lost = Some(join(self.lost, span));
            }
        }
    }
}

fn join(span: Option<WriteNumberRange>, other: WriteNumberRange) -> WriteNumberRange {
    span.map_or(other, |span| WriteNumberRange {
        first: span.first.min(other.first),
        last: span.last.max(other.last),
    })
}

/// Returns the part of the range after the write `number`.
fn after(span: Option<WriteNumberRange>, number: u64) -> Option<WriteNumberRange> {
    let span = span.filter(|span| span.last > number)?;
    Some(WriteNumberRange { first: span.first.max(number + 1), ..span })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_of_the_same_generation_is_good() {
        let mut stability = VolatileWrites::default();
        stability.note_write(1);
        let begun = stability.begin_flush();
        assert!(!stability.is_clean());
        assert!(stability.end_flush(begun, 1));
        assert!(stability.is_clean());
        // The flush has made these writes stable, so a later generation does not make them count as lost.
        let begun = stability.begin_flush();
        assert!(stability.end_flush(begun, 2));
    }

    #[test]
    fn writes_of_an_earlier_generation_make_one_flush_fail() {
        let mut stability = VolatileWrites::default();
        stability.note_write(1);
        stability.note_write(2);
        let begun = stability.begin_flush();
        assert!(!stability.is_clean());
        assert!(!stability.end_flush(begun, 2));
        stability.note_write(2);
        let begun = stability.begin_flush();
        assert!(stability.end_flush(begun, 2));
    }

    #[test]
    fn a_reset_between_write_and_flush_is_noticed() {
        let mut stability = VolatileWrites::default();
        stability.note_write(1);
        let begun = stability.begin_flush();
        assert!(!stability.end_flush(begun, 2));
    }

    #[test]
    fn a_write_acknowledged_after_a_flush_began_belongs_to_the_next_flush() {
        let mut stability = VolatileWrites::default();
        stability.note_write(1);
        let begun = stability.begin_flush();
        stability.note_write(1);
        assert!(stability.end_flush(begun, 1));
        let begun = stability.begin_flush();
        assert!(!stability.end_flush(begun, 2));
    }

    #[test]
    fn a_late_answer_of_an_earlier_generation_counts_as_lost() {
        let mut stability = VolatileWrites::default();
        stability.note_write(2);
        stability.note_write(1);
        let begun = stability.begin_flush();
        assert!(!stability.end_flush(begun, 2));
    }

    #[test]
    fn failed_flushes_report_each_loss_once() {
        let mut stability = VolatileWrites::default();
        stability.note_write(1);
        let first = stability.begin_flush();
        stability.note_write(1);
        assert!(!stability.end_flush(first, 2));
        let second = stability.begin_flush();
        assert!(!stability.end_flush(second, 2));
        assert!(stability.end_flush(second, 2));
    }
}
