//! POPULATE TOKEN and WRITE USING TOKEN: copy offload as Windows does it (ODX).
//!
//! A token is a bearer token: an initiator that knows it may write the blocks that it represents to another
//! unit. The nexus that presents it must have access to the unit that made it, and the right to read there.

use std::{sync::Arc, time::Duration};

use scsi::{
    Sense,
    copy::{Cscd, PopulateToken, ROD_TYPE, RodToken, TOKEN_BYTES, TokenRange, WriteUsingToken},
};
use volume::{Extent, Geometry, Lba};

use super::{
    BlockCommandInput, BlockUnit,
    bounds::{in_range, list_to_do, writable},
    copy::{PIECE, aborted, run_copy},
};
use crate::{
    Completion, Nexus, Rod, UnitReply,
    abilities::CopyMember,
    block::{
        copies::RunningCopy,
        limits::{TOKEN_BYTES_MOST, TOKEN_TIMEOUT_S, TOKEN_TIMEOUT_S_MOST},
        patience::StepRetryWait,
    },
    primary::reply::taking_with,
    sense::UnitCommandFailure,
};

impl BlockUnit {
    pub(super) fn populate_token<'a>(
        &'a self,
        nexus: Nexus,
        list: u32,
        length: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { data, geometry, turn, .. } = work;
        let bytes = list_to_do(&data, length as usize)?;
        let refused = |sense: Sense| taking_with(length, sense.into());
        // Make no token of blocks with an open epoch of another nexus. A write voids a token, but the next flush of the
        // epoch's owner would change the data that this nexus reads there without any write.
        if self.is_anothers_epoch(nexus.number, &geometry) {
            return Err(refused(Sense::INSUFFICIENT_RESOURCES_TO_CREATE_ROD_TOKEN));
        }
        let asked = PopulateToken::parse(&bytes);
        let asked = asked.map_err(refused)?;
        check_populate(&asked, &geometry).map_err(refused)?;
        let running = self.begin_copy(&nexus, Some(list), 0x10)?;
        Ok(UnitReply::new(async move {
            let _turn = turn;
            let made = self.make_token(asked, &geometry, &running);
            run_copy(made, &running, length).await
        }))
    }

    async fn make_token(
        &self,
        asked: PopulateToken,
        geometry: &Geometry,
        running: &RunningCopy,
    ) -> Result<(), UnitCommandFailure> {
        let seconds = if asked.timeout_s == 0 { TOKEN_TIMEOUT_S } else { asked.timeout_s };
        let timeout = Duration::from_secs(seconds.into());
        let creator = Cscd::naa(self.primary.identity().naa, geometry.block_size);
        let (token, rod) = self.tokens.make(creator, asked.ranges, timeout)?;
        // A write that began before the token existed does not void it. Wait for such writes: the token then
        // represents the data that they wrote.
        for range in rod.ranges().iter().filter(|range| range.blocks > 0) {
            let extent = Extent { lba: Lba(range.lba), blocks: range.blocks };
            drop(self.claims.alone(extent, geometry.block_size).await);
        }
        running.note(|status| {
            status.token = Some(token);
            status.blocks = rod.blocks();
            status.segments = rod.ranges().len() as u16;
        });
        Ok(())
    }

    pub(super) fn write_using_token<'a>(
        &'a self,
        nexus: Nexus,
        list: u32,
        length: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { data, geometry, turn, .. } = work;
        let bytes = list_to_do(&data, length as usize)?;
        let refused = |sense: Sense| taking_with(length, sense.into());
        writable(&geometry)?;
        let asked = WriteUsingToken::parse(&bytes);
        let asked = asked.map_err(refused)?;
        check_ranges(&asked.ranges, 536, &geometry).map_err(refused)?;
        let running = self.begin_copy(&nexus, Some(list), 0x11)?;
        Ok(UnitReply::new(async move {
            let _turn = turn;
            let used = self.use_token(&nexus, &asked, &geometry, &running);
            run_copy(used, &running, length).await
        }))
    }

    async fn use_token(
        &self,
        nexus: &Nexus,
        asked: &WriteUsingToken,
        geometry: &Geometry,
        running: &RunningCopy,
    ) -> Result<(), UnitCommandFailure> {
        let (_, creator) = RodToken::origin(&asked.token).ok_or(Sense::TOKEN_UNKNOWN)?;
        let source = self.reach(nexus, &Cscd::naa(creator, geometry.block_size));
        let source = source.ok_or(Sense::TOKEN_UNKNOWN)?;
        let rod = source.rod(&asked.token)?;
        let own = Cscd::naa(self.primary.identity().naa, geometry.block_size);
        let destination = self.reach(nexus, &own).ok_or(Sense::TOKEN_UNKNOWN)?;
        if source.capacity().await?.block_size != geometry.block_size {
            return Err(Sense::INCORRECT_COPY_TARGET_DEVICE_TYPE.into());
        }
        let wanted: u64 = asked.ranges.iter().map(|range| u64::from(range.blocks)).sum();
        if asked.offset.checked_add(wanted).is_none_or(|end| end > rod.blocks()) {
            return Err(Sense::invalid_field_in_parameter_list(8).into());
        }
        let step = PIECE / geometry.block_size;
        let mut number = asked.offset;
        let mut patience = StepRetryWait::default();
        for range in &asked.ranges {
            let mut done = 0;
            while done < range.blocks {
                let from = rod.locate(number).ok_or(Sense::COPY_ABORTED)?;
                let blocks = from.blocks.min(range.blocks - done).min(step);
                let lba = range.lba + u64::from(done);
                let piece = || async {
                    let data = source.read(from.lba.0, blocks).await?;
                    // Check this after the read: a write that began before the read ended has voided the
                    // token by now.
                    if rod.is_void() {
                        return Err(Sense::TOKEN_REVOKED.into());
                    }
                    destination.write(lba, blocks, data).await
                };
                patience.step(lba, piece).await.map_err(aborted)?;
                running.note(|status| status.blocks += u64::from(blocks));
                (done, number) = (done + blocks, number + u64::from(blocks));
            }
            running.note(|status| status.segments += 1);
        }
        if asked.delete {
            self.tokens.forget(&asked.token);
        }
        Ok(())
    }
}

impl CopyMember for BlockUnit {
    fn naa(&self) -> [u8; 16] {
        self.primary.identity().naa
    }

    fn rod(&self, token: &[u8; TOKEN_BYTES]) -> Result<Arc<Rod>, Sense> {
        self.tokens.find(token)
    }
}

fn check_populate(asked: &PopulateToken, geometry: &Geometry) -> Result<(), Sense> {
    // With a ROD type of zero, the copy manager chooses the type of the token.
    if asked.rod_type.is_some_and(|kind| kind != 0 && kind != ROD_TYPE) {
        return Err(Sense::invalid_field_in_parameter_list(8));
    }
    if asked.timeout_s > TOKEN_TIMEOUT_S_MOST {
        return Err(Sense::invalid_field_in_parameter_list(4));
    }
    check_ranges(&asked.ranges, 16, geometry)
}

/// Checks the ranges of a list, which stand at offset `at` of the parameter list: inside of the unit, in
/// total at most [`TOKEN_BYTES_MOST`] bytes, and without overlap.
fn check_ranges(ranges: &[TokenRange], at: u16, geometry: &Geometry) -> Result<(), Sense> {
    let most = TOKEN_BYTES_MOST / u64::from(geometry.block_size);
    let mut all = 0;
    for range in ranges {
        in_range(range.lba, u64::from(range.blocks), geometry)?;
        all += u64::from(range.blocks);
    }
    let mut sorted: Vec<_> = ranges.iter().filter(|range| range.blocks > 0).collect();
    sorted.sort_unstable_by_key(|range| range.lba);
    let meet = |pair: &[&TokenRange]| pair[0].lba + u64::from(pair[0].blocks) > pair[1].lba;
    if all > most || sorted.windows(2).any(meet) {
        return Err(Sense::invalid_field_in_parameter_list(at));
    }
    Ok(())
}
