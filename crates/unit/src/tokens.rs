//! ROD tokens: each represents blocks of a unit with the content that they had when the token was made.
//!
//! A token becomes void as soon as one of its blocks is written, because the unit keeps no copy of the old
//! content (SPC-4's type "point in time copy, change vulnerable"). Windows then copies the data itself.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use scsi::{
    Sense,
    copy::{Cscd, RodToken, TOKEN_BYTES, TokenRange},
};
use tokio::time::Instant;
use volume::{Extent, Lba};

/// The ROD tokens (ODX in Windows) that one unit has created.
#[derive(Default)]
pub(crate) struct UnitRodTokens {
    /// Number of valid ROD tokens. While it is 0, a write need not take the lock.
    live: AtomicUsize,
    rods: Mutex<HashMap<u64, StoredRodToken>>,
}

struct StoredRodToken {
    token: [u8; TOKEN_BYTES],
    rod: Arc<Rod>,
    timeout: Duration,
    expires: Instant,
}

/// The blocks that a token represents.
pub struct Rod {
    ranges: Vec<TokenRange>,
    void: AtomicBool,
}

impl UnitRodTokens {
    /// Makes a token for these blocks. The token is valid for every nexus that presents it. From now on a
    /// write to the blocks voids it.
    ///
    /// # Errors
    /// The unit has too many tokens, or the system gives no random bytes.
    pub(crate) fn make(
        &self,
        creator: Cscd,
        ranges: Vec<TokenRange>,
        timeout: Duration,
    ) -> Result<([u8; TOKEN_BYTES], Arc<Rod>), Sense> {
        let mut random = [0; 40];
        getrandom::fill(&mut random).map_err(|_| Sense::INTERNAL_TARGET_FAILURE)?;
        let (identifier, secret) = random.split_at(8);
        let identifier = u64::from_be_bytes(identifier.try_into().expect("eight bytes"));
        let secret = secret.try_into().expect("the other thirty-two");
        let blocks: u64 = ranges.iter().map(|range| u64::from(range.blocks)).sum();
        let bytes = blocks * u64::from(creator.block_size);
        let token = RodToken { identifier, creator, bytes, secret }.to_bytes();
        let rod = Arc::new(Rod { ranges, void: AtomicBool::new(false) });
        let now = Instant::now();
        let mut rods = self.rods.lock();
        // Remove void and expired tokens to make room.
        if rods.len() >= MOST {
            rods.retain(|_, kept| kept.expires > now && !kept.rod.is_void());
        }
        if rods.len() >= MOST || rods.contains_key(&identifier) {
            self.live.store(rods.len(), Ordering::SeqCst);
            return Err(Sense::INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN);
        }
        let kept = StoredRodToken { token, rod: Arc::clone(&rod), timeout, expires: now + timeout };
        rods.insert(identifier, kept);
        self.live.store(rods.len(), Ordering::SeqCst);
        Ok((token, rod))
    }

    /// Returns the blocks that a token represents, and restarts its timeout.
    ///
    /// # Errors
    /// The token is not of this unit, has expired, or its blocks were written.
    pub(crate) fn find(&self, token: &[u8; TOKEN_BYTES]) -> Result<Arc<Rod>, Sense> {
        let (identifier, _) = RodToken::origin(token).ok_or(Sense::TOKEN_UNKNOWN)?;
        let mut rods = self.rods.lock();
        let kept = rods.get_mut(&identifier).ok_or(Sense::TOKEN_UNKNOWN)?;
        if !is_equal(&kept.token, token) {
            return Err(Sense::TOKEN_UNKNOWN);
        }
        if kept.rod.is_void() {
            return Err(Sense::TOKEN_REVOKED);
        }
        let now = Instant::now();
        if kept.expires <= now {
            return Err(Sense::TOKEN_EXPIRED);
        }
        kept.expires = now + kept.timeout;
        Ok(Arc::clone(&kept.rod))
    }

    /// Removes a token that is no longer needed.
    pub(crate) fn forget(&self, token: &[u8; TOKEN_BYTES]) {
        let mut rods = self.rods.lock();
        if let Some((identifier, _)) = RodToken::origin(token)
            && rods.get(&identifier).is_some_and(|kept| is_equal(&kept.token, token))
        {
            rods.remove(&identifier);
            self.live.store(rods.len(), Ordering::SeqCst);
        }
    }

    /// Voids the tokens of these blocks, which are about to be written. Call this with the blocks locked:
    /// `make_token` locks the blocks of a new token once, and relies on every later write to void it.
    pub(crate) fn note_write(&self, extent: Extent) {
        self.void_where(|rod| rod.touches(extent));
    }

    /// Voids all tokens. Used if all blocks of the unit are overwritten, which may be more than an extent can
    /// have.
    pub(crate) fn note_overwritten(&self) {
        self.void_where(|_| true);
    }

    fn void_where(&self, is_meant: impl Fn(&Rod) -> bool) {
        if self.live.load(Ordering::SeqCst) > 0 {
            let rods = self.rods.lock();
            for kept in rods.values().filter(|kept| is_meant(&kept.rod)) {
                kept.rod.void.store(true, Ordering::SeqCst);
            }
        }
    }
}

impl Rod {
    /// Returns the ranges of blocks that the token represents, in the order of the token.
    #[must_use]
    pub fn ranges(&self) -> &[TokenRange] {
        &self.ranges
    }

    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.ranges.iter().map(|range| u64::from(range.blocks)).sum()
    }

    /// Returns true if a block of the token was written after the token was created.
    #[must_use]
    pub fn is_void(&self) -> bool {
        self.void.load(Ordering::SeqCst)
    }

    /// Returns the address of the block with this number in the token, and the number of blocks that follow
    /// it without a gap.
    #[must_use]
    pub fn locate(&self, mut number: u64) -> Option<Extent> {
        for range in &self.ranges {
            let blocks = u64::from(range.blocks);
            if number < blocks {
                let lba = Lba(range.lba + number);
                return Some(Extent { lba, blocks: (blocks - number) as u32 });
            }
            number -= blocks;
        }
        None
    }

    fn touches(&self, extent: Extent) -> bool {
        self.ranges.iter().any(|range| {
            let end = range.lba.saturating_add(u64::from(range.blocks));
            range.lba < extent.end().0 && extent.lba.0 < end
        })
    }
}

/// Compares in constant time, so that the time does not reveal how many bytes of a guess are right.
fn is_equal(a: &[u8; TOKEN_BYTES], b: &[u8; TOKEN_BYTES]) -> bool {
    let difference = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(difference) == 0
}

/// Maximum number of tokens that a unit keeps. Each has some kilobytes, and a host has few copies
/// in progress.
const MOST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn make(tokens: &UnitRodTokens, lba: u64) -> Result<[u8; TOKEN_BYTES], Sense> {
        let ranges = vec![TokenRange { lba, blocks: 8 }, TokenRange { lba: lba + 100, blocks: 2 }];
        let made = tokens.make(Cscd::naa([0x60; 16], 512), ranges, Duration::from_secs(60));
        made.map(|(token, _)| token)
    }

    fn write(tokens: &UnitRodTokens, lba: u64) {
        tokens.note_write(Extent { lba: Lba(lba), blocks: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_valid_until_its_blocks_are_written_or_it_expires() {
        let tokens = UnitRodTokens::default();
        let token = make(&tokens, 10).expect("made");
        write(&tokens, 9);
        write(&tokens, 18);
        let rod = tokens.find(&token).expect("good");
        assert_eq!(
            (rod.blocks(), rod.locate(9).map(|e| (e.lba, e.blocks))),
            (10, Some((Lba(111), 1)))
        );
        assert_eq!(rod.locate(10), None);
        write(&tokens, 110);
        assert!(rod.is_void());
        assert_eq!(tokens.find(&token).err(), Some(Sense::TOKEN_REVOKED));
        let other = make(&tokens, 10).expect("made");
        tokio::time::advance(Duration::from_secs(59)).await;
        tokens.find(&other).expect("used in time");
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(tokens.find(&other).err(), Some(Sense::TOKEN_EXPIRED));
    }

    #[tokio::test(start_paused = true)]
    async fn overwriting_all_blocks_revokes_every_token() {
        let tokens = UnitRodTokens::default();
        let made = [0, u64::from(u32::MAX) + 1].map(|lba| make(&tokens, lba).expect("made"));
        tokens.note_overwritten();
        for token in made {
            assert_eq!(tokens.find(&token).err(), Some(Sense::TOKEN_REVOKED));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_cannot_be_guessed_from_another_and_their_number_is_bounded() {
        let tokens = UnitRodTokens::default();
        let token = make(&tokens, 0).expect("made");
        for at in 0..TOKEN_BYTES {
            let mut guess = token;
            guess[at] ^= 1;
            assert_eq!(tokens.find(&guess).err(), Some(Sense::TOKEN_UNKNOWN), "{at}");
            tokens.forget(&guess);
        }
        tokens.find(&token).expect("still there");
        assert!((1..MOST as u64).all(|n| make(&tokens, 1000 * n).is_ok()));
        let full = Err(Sense::INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN);
        assert_eq!(make(&tokens, 5), full);
        tokens.forget(&token);
        assert!(make(&tokens, 5).is_ok());
        assert_eq!(make(&tokens, 6), full);
        write(&tokens, 1000);
        assert!(make(&tokens, 6).is_ok(), "a void one made room");
    }
}
