//! The description of a unit: INQUIRY data, vital product data, capacity and mode pages (SPC-4, SBC-3, OSD-2). All of
//! this data comes from the target and may be wrong.

use bytes::Bytes;
use scsi::Sense;
use volume::Geometry;

use crate::Error;

/// The properties of a unit that the initiator needs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnitDescription {
    /// The unique identity of the unit: `naa.…`, `eui.…` or `t10.…` from VPD page 83h. If that page has none of them,
    /// `serial.…` from page 80h.
    pub identity: String,
    pub vendor: String,
    pub product: String,
    /// Size and capabilities of a disk. An object drive has no blocks.
    pub geometry: Geometry,
    /// The properties of an object drive; `None` for a disk.
    pub object_drive: Option<ObjectDriveDescription>,
    /// True if the unit supports FUA.
    pub fua: bool,
    /// Maximum number of blocks in one command; `None` if the unit does not report a limit.
    pub max_transfer_blocks: Option<u32>,
    /// True if the unit keeps the order of flushes and writes: a write of its claim's owner that arrives after a
    /// SYNCHRONIZE CACHE is performed after it.
    pub orders_flushes: bool,
    /// Maximum number of blocks of a WRITE SAME (16) with UNMAP; `None` if the unit does not support it.
    pub write_same_unmap_blocks: Option<u32>,
}

/// The properties of an object drive (OSD-2), device type 11h.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ObjectDriveDescription {
    /// The security token of the session, from VPD page B1h, which the security method CAPKEY signs; empty if the drive
    /// has none.
    pub security_token: Bytes,
    /// OSD SYSTEM ID, from VPD page B0h; `None` if the drive does not report it.
    pub system_id: Option<[u8; 20]>,
}

/// The device types that the initiator knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UnitKind {
    /// A unit of device type 00h (block device).
    Disk,
    /// A unit of device type 11h (object storage device).
    ObjectDrive,
}

impl UnitDescription {
    /// Returns the description of an object drive.
    pub(crate) fn of_object_drive(
        identity: String,
        inquiry: Inquiry,
        object_drive: ObjectDriveDescription,
    ) -> Self {
        Self {
            identity,
            vendor: inquiry.vendor,
            product: inquiry.product,
            // With a size of 0 blocks, no caller can write to the unit or flush it.
            geometry: Geometry { blocks: 0, ..Geometry::with_blocks(1) },
            object_drive: Some(object_drive),
            fua: true,
            max_transfer_blocks: None,
            orders_flushes: false,
            write_same_unmap_blocks: None,
        }
    }

    #[must_use]
    pub fn kind(&self) -> UnitKind {
        if self.object_drive.is_some() { UnitKind::ObjectDrive } else { UnitKind::Disk }
    }

    /// Fails if the unit is not of the kind `wanted`.
    pub(crate) fn check_kind(&self, wanted: UnitKind) -> Result<(), Error> {
        match (wanted, self.kind()) {
            (UnitKind::Disk, UnitKind::ObjectDrive) => {
                Err(Error::unit("it is not a disk but has device type 17 (object drive)"))
            }
            (UnitKind::ObjectDrive, UnitKind::Disk) => {
                Err(Error::unit("it is not an object drive but a disk"))
            }
            _ => Ok(()),
        }
    }
}

/// The standard INQUIRY data of the unit (SPC-4, 6.6.2).
#[derive(Debug, Eq, PartialEq)]
pub(crate) struct Inquiry {
    pub(crate) kind: UnitKind,
    pub(crate) vendor: String,
    pub(crate) product: String,
}

impl Inquiry {
    /// Parses standard INQUIRY data. Returns an error if the unit is neither a disk nor an object drive.
    pub(crate) fn parse(data: &[u8]) -> Result<Self, Error> {
        let first = *data.first().ok_or_else(|| Error::unit("INQUIRY returned nothing"))?;
        let kind = match (first >> 5, first & 0x1f) {
            (0, 0x00) => UnitKind::Disk,
            (0, 0x11) => UnitKind::ObjectDrive,
            (0, kind) => {
                return Err(Error::unit(format!("it is not a disk but has device type {kind}")));
            }
            _ => return Err(Error::unit("there is no such logical unit")),
        };
        let text = |range: std::ops::Range<usize>| text(data.get(range).unwrap_or_default());
        Ok(Self { kind, vendor: text(8..16), product: text(16..32) })
    }
}

/// Returns the body of a VPD page, which follows the four bytes of the header; for page 00h, the list of pages. Returns
/// `None` if `data` is another page.
pub(crate) fn vpd_body(page: u8, data: &[u8]) -> Option<&[u8]> {
    let header = data.first_chunk::<4>()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let body = &data[4..];
    (header[1] == page).then(|| &body[..length.min(body.len())])
}

/// Returns the best identity among the designators of VPD page 83h (SPC-4, 7.8.6) that belong to the logical unit.
pub(crate) fn designator(mut body: &[u8]) -> Option<String> {
    let mut best: Option<(u8, String)> = None;
    while let Some(header) = body.first_chunk::<4>() {
        let length = usize::from(header[3]);
        let Some(value) = body.get(4..4 + length) else { break };
        body = &body[4 + length..];
        let association = header[1] >> 4 & 3;
        if association != 0 || value.is_empty() {
            continue;
        }
        let found = match header[1] & 0x0f {
            3 => (3, format!("naa.{}", hex(value))),
            2 => (2, format!("eui.{}", hex(value))),
            1 => (1, format!("t10.{}", text(value))),
            _ => continue,
        };
        if best.as_ref().is_none_or(|best| best.0 < found.0) {
            best = Some(found);
        }
    }
    best.map(|(_, name)| name)
}

/// Returns an identity made of the serial number in VPD page 80h, for units without a designator in page 83h.
pub(crate) fn serial_identity(inquiry: &Inquiry, body: &[u8]) -> String {
    format!("serial.{}.{}.{}", inquiry.vendor, inquiry.product, text(body))
}

/// Capacity data of READ CAPACITY (10) or (16).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Capacity {
    pub(crate) blocks: u64,
    pub(crate) block_size: u32,
    pub(crate) physical_block_size: u32,
    /// LBPME: True if the unit supports provisioning management.
    pub(crate) thin: bool,
    /// LBPRZ: True if unmapped blocks read as zeros.
    pub(crate) reads_zeros: bool,
}

impl Capacity {
    /// Parses READ CAPACITY (16) parameter data (SBC-3, 5.16.2).
    pub(crate) fn parse16(data: &[u8]) -> Result<Self, Error> {
        let short = || Error::unit("READ CAPACITY (16) returned too little");
        let last = u64::from_be_bytes(*data.first_chunk().ok_or_else(short)?);
        let size = u32::from_be_bytes(*data[8..].first_chunk().ok_or_else(short)?);
        let byte = |at: usize| data.get(at).copied().unwrap_or(0);
        Self::new(last, size, byte(13) & 0x0f, byte(14) & 0x80 != 0, byte(14) & 0x40 != 0)
    }

    /// Parses READ CAPACITY (10) parameter data (SBC-3, 5.15.2).
    pub(crate) fn parse10(data: &[u8]) -> Result<Self, Error> {
        let short = || Error::unit("READ CAPACITY (10) returned too little");
        let last = u32::from_be_bytes(*data.first_chunk().ok_or_else(short)?);
        let size = u32::from_be_bytes(*data[4..].first_chunk().ok_or_else(short)?);
        if last == u32::MAX {
            return Err(Error::unit(
                "READ CAPACITY (10) cannot report its size, and it does not support READ CAPACITY (16)",
            ));
        }
        Self::new(last.into(), size, 0, false, false)
    }

    fn new(
        last: u64,
        block_size: u32,
        physical_exponent: u8,
        thin: bool,
        reads_zeros: bool,
    ) -> Result<Self, Error> {
        if !matches!(block_size, 512 | 4096) {
            return Err(Error::unit(format!(
                "its blocks have {block_size} bytes, not 512 or 4096"
            )));
        }
        // Allow at most 2^50 blocks: the size in bytes then fits into 64 bits, and sums do not overflow.
        let Some(blocks) = last.checked_add(1).filter(|&blocks| blocks <= 1 << 50) else {
            return Err(Error::unit(format!(
                "it reports more than 2^50 blocks (last block {last})"
            )));
        };
        // The shift cannot overflow: 4096 << 15 fits. No disk has larger physical blocks than 1 MiB, so limit a larger
        // size to that.
        let physical_block_size = (block_size << physical_exponent).min(1 << 20);
        Ok(Self { blocks, block_size, physical_block_size, thin, reads_zeros })
    }
}

/// The Block Limits VPD page of the unit (B0h; SBC-3, 6.6.4), without the header of the page.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct RemoteBlockLimits {
    pub(crate) max_transfer_blocks: Option<u32>,
    pub(crate) max_write_same_blocks: Option<u64>,
}

impl RemoteBlockLimits {
    pub(crate) fn parse(body: &[u8]) -> Self {
        let max_transfer =
            body.get(4..).and_then(<[u8]>::first_chunk).map(|&bytes| u32::from_be_bytes(bytes));
        let max_write_same =
            body.get(32..).and_then(<[u8]>::first_chunk).map(|&bytes| u64::from_be_bytes(bytes));
        Self {
            max_transfer_blocks: max_transfer.filter(|&blocks| blocks != 0),
            max_write_same_blocks: max_write_same.filter(|&blocks| blocks != 0),
        }
    }
}

/// Returns LBPWS of VPD page B2h (SBC-3, 6.6.6): the unit supports WRITE SAME (16) with UNMAP.
pub(crate) fn provisioning_has_write_same(body: &[u8]) -> bool {
    body.get(1).is_some_and(|flags| flags & 0x40 != 0)
}

/// The flags of the Caching mode page, read by MODE SENSE (6).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct CachingPageFlags {
    pub(crate) read_only: bool,
    pub(crate) fua: bool,
    pub(crate) volatile_cache: bool,
}

impl CachingPageFlags {
    /// The assumption about a unit that does not report the Caching page: it has a volatile cache and no FUA.
    pub(crate) const UNKNOWN: Self = Self { read_only: false, fua: false, volatile_cache: true };

    pub(crate) fn parse(data: &[u8]) -> Self {
        let Some(header) = data.first_chunk::<4>() else { return Self::UNKNOWN };
        let page = data.get(4 + usize::from(header[3])..).unwrap_or_default();
        let is_caching = page.first().is_some_and(|code| code & 0x7f == 0x08);
        let flags = page.get(2).copied().filter(|_| is_caching);
        Self {
            read_only: header[2] & 0x80 != 0,
            fua: header[2] & 0x10 != 0,
            volatile_cache: flags.is_none_or(|flags| flags & 0x04 != 0),
        }
    }
}

/// Returns true for a unit attention about a reset, after which writes that were not flushed may be lost. 29h/07h (I_T
/// nexus loss) does not count, since it reports only the end of a connection.
pub(crate) fn reports_reset(sense: &Sense) -> bool {
    sense.asc == 0x29 && sense.ascq != 0x07
}

/// Returns true for a unit attention which says that mode parameters, INQUIRY data or the identity have changed. The
/// description of the unit must then be read again.
pub(crate) fn reports_change(sense: &Sense) -> bool {
    matches!((sense.asc, sense.ascq), (0x2a, 0x01) | (0x3f, 0x03 | 0x05))
}

/// Returns true for the unit attention CAPACITY DATA HAS CHANGED.
pub(crate) fn reports_size(sense: &Sense) -> bool {
    (sense.asc, sense.ascq) == (0x2a, 0x09)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the text of a field without blanks at its ends. Characters other than printable ASCII become full stops,
/// because messages show the text.
fn text(bytes: &[u8]) -> String {
    let printable = |&byte: &u8| if (0x20..0x7f).contains(&byte) { byte as char } else { '.' };
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    bytes[..end].iter().map(printable).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_name_of_the_unit_wins() {
        let t10 = [&[2, 1, 0, 8][..], b"FOREBAY "].concat();
        let naa = [0x01, 0x03, 0, 4, 0x60, 0x01, 0x02, 0x03];
        let port = [0x61, 0x13, 0, 4, 9, 9, 9, 9];
        let all = [&t10[..], &naa, &port].concat();
        assert_eq!(designator(&all).as_deref(), Some("naa.60010203"));
        assert_eq!(designator(&t10).as_deref(), Some("t10.FOREBAY"));
        assert_eq!(designator(&port), None);
    }

    #[test]
    fn a_designator_with_a_wrong_length_ends_the_list() {
        assert_eq!(designator(&[1, 3, 0, 200, 1, 2]), None);
        assert_eq!(designator(&[1, 3, 0]), None);
        assert_eq!(vpd_body(0x83, &[0, 0x83, 0xff, 0xff, 1, 2]), Some(&[1, 2][..]));
        assert_eq!(vpd_body(0x83, &[0, 0x80, 0, 0]), None);
        assert_eq!(vpd_body(0x83, &[0]), None);
    }

    #[test]
    fn an_impossible_capacity_is_refused() {
        let capacity = |last: u64, size: u32, exponent: u8| {
            let mut data = [0; 32];
            data[..8].copy_from_slice(&last.to_be_bytes());
            data[8..12].copy_from_slice(&size.to_be_bytes());
            data[13] = exponent;
            data[14] = 0xc0;
            Capacity::parse16(&data)
        };
        let good = capacity(2047, 512, 3).unwrap();
        assert_eq!((good.blocks, good.physical_block_size), (2048, 4096));
        assert!(good.thin && good.reads_zeros);
        for (last, size) in
            [(1, 0), (1, 1), (1, 520), (1, 1 << 31), (u64::MAX, 512), (1 << 60, 512)]
        {
            assert!(capacity(last, size, 0).is_err(), "{last} {size}");
        }
        assert_eq!(capacity(1, 4096, 15).unwrap().physical_block_size, 1 << 20);
        assert!(Capacity::parse16(&[0; 8]).is_err());
        assert!(Capacity::parse10(&[0xff; 8]).is_err());
    }

    #[test]
    fn without_a_caching_page_a_cache_is_assumed() {
        assert_eq!(CachingPageFlags::parse(&[]), CachingPageFlags::UNKNOWN);
        assert_eq!(CachingPageFlags::parse(&[3, 0, 0, 0]), CachingPageFlags::UNKNOWN);
        let off = [7, 0, 0x90, 0, 0x08, 0x12, 0, 0];
        let expected = CachingPageFlags { read_only: true, fua: true, volatile_cache: false };
        assert_eq!(CachingPageFlags::parse(&off), expected);
        let behind_a_descriptor = [15, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x12, 0x04, 0];
        assert!(CachingPageFlags::parse(&behind_a_descriptor).volatile_cache);
        let descriptor_lies = [15, 0, 0, 200, 0x88, 0x12, 0, 0];
        assert!(CachingPageFlags::parse(&descriptor_lies).volatile_cache);
    }

    #[test]
    fn text_from_a_target_is_made_printable() {
        assert_eq!(text(b" a\nb\x1b[0m \0\0"), "a.b.[0m");
    }
}
