//! Tests how the remote volume splits an extent into the pieces of several commands.

use super::*;

#[test]
fn pieces_cover_the_extent() {
    let extent = Extent { lba: Lba(10), blocks: 7 };
    let all: Vec<_> = pieces(extent, 3).map(|piece| (piece.lba.0, piece.blocks)).collect();
    assert_eq!(all, [(10, 3), (13, 3), (16, 1)]);
    assert_eq!(pieces(extent, 7).count(), 1);
    assert_eq!(pieces(extent, u32::MAX).count(), 1);
}
