//! Which answered writes a flush can still speak for.
//!
//! A write that was answered may sit in the target's volatile cache. If the target then loses its
//! power, it is gone, and a SYNCHRONIZE CACHE after the reconnect succeeds all the same. So a
//! flush is only as good as the incarnation of the far side that answered the writes before it.

/// The volatile writes that were answered and not flushed, counted in the order of their answers.
#[derive(Debug, Default)]
pub(crate) struct VolatileWrites {
    answered: u64,
    generation: u64,
    /// Answered by this generation.
    current: Option<WriteNumberRange>,
    /// Answered by earlier ones.
    lost: Option<WriteNumberRange>,
}

/// Writes `first..=last`, and perhaps not all of those between.
#[derive(Clone, Copy, Debug)]
struct WriteNumberRange {
    first: u64,
    last: u64,
}

impl VolatileWrites {
    /// A volatile write (or discard) was answered.
    pub(crate) fn note_write(&mut self, generation: u64) {
        self.advance(generation);
        self.answered += 1;
        let write = WriteNumberRange { first: self.answered, last: self.answered };
        let span = if generation < self.generation { &mut self.lost } else { &mut self.current };
        *span = Some(join(*span, write));
    }

    /// What was answered is given up, whoever has it.
    pub(crate) fn forget(&mut self) {
        (self.current, self.lost) = (None, None);
    }

    /// No answered write waits for a flush, nor for the news that it is lost.
    pub(crate) fn is_clean(&self) -> bool {
        self.current.is_none() && self.lost.is_none()
    }

    /// A flush begins: the number to end it with.
    pub(crate) fn begin_flush(&self) -> u64 {
        self.answered
    }

    /// Whether writes before the flush `begun` are known to be lost, which is told once. The flush need
    /// not be sent then, and must not where what is between two flushes counts as a whole: it would
    /// count half of it.
    pub(crate) fn take_lost(&mut self, begun: u64) -> bool {
        let lost = self.lost.is_some_and(|lost| lost.first <= begun);
        if lost {
            self.lost = after(self.lost, begun);
        }
        lost
    }

    /// A flush was answered. True if all writes answered before it began are stable. If not, that
    /// is told once: whoever flushes then sends again what it wrote since its last good flush.
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

/// What of the span comes after the write `number`.
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
        // and covers: a later generation finds nothing lost
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
    fn a_write_answered_after_the_flush_began_is_the_next_ones() {
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
    fn a_flush_that_failed_tells_of_each_loss_once() {
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
