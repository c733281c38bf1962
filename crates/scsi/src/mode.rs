//! Mode parameters: header, block descriptor, pages (SPC-4, 7.5; SBC-3, 6.5).

use crate::{
    Sense,
    field::{body, u8_at, u16_at, u32_at, u64_at},
};

/// Mode parameters: the data that MODE SENSE returns, and the parameter list of MODE SELECT.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModeParameters {
    /// WP bit: the unit refuses writes.
    pub write_protected: bool,
    /// DPOFUA: the unit supports the bits DPO and FUA.
    pub dpo_fua: bool,
    /// `None` if the data has no block descriptor.
    pub block: Option<BlockDescriptor>,
    /// The pages, ascending by page code and subpage code.
    pub pages: Vec<ModePage>,
}

/// A mode parameter block descriptor (SBC-3, 6.5.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockDescriptor {
    /// The number of blocks. The short form holds `u32::MAX` if the number is larger than that.
    pub blocks: u64,
    /// Bytes per block; below 2^24 in the short form.
    pub block_size: u32,
    /// True for the long form of 16 bytes, which only MODE SENSE (10) with LLBAA returns.
    pub long: bool,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ModePage {
    /// PAGE CODE of the mode page, 0 to 62.
    pub code: u8,
    /// SUBPAGE CODE; 0 for a page without subpage format.
    pub subpage: u8,
    /// PS: the page can be saved. Reserved in MODE SELECT.
    pub saveable: bool,
    /// The bytes after the page header.
    pub parameters: Vec<u8>,
}

/// The fields of page 08h, Caching (SBC-3, 6.5.5), that we use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CachingModePage {
    /// WCE bit: the unit may acknowledge a write before the data is stable.
    pub write_cache: bool,
    /// RCD: reads do not come from a cache.
    pub read_cache_disabled: bool,
}

/// The fields of page 0Ah, Control (SPC-4, 7.5.8), that we use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ControlModePage {
    /// D_SENSE: the unit returns sense data in descriptor format.
    pub descriptor_sense: bool,
    /// QUEUE ALGORITHM MODIFIER 1: simple tasks may be executed in any order.
    pub unrestricted_reordering: bool,
    /// SWP bit (software write protect): the unit refuses writes.
    pub write_protect: bool,
    /// BUSY TIMEOUT PERIOD in units of 100 ms. 0: not specified; FFFFh: no limit.
    pub busy_timeout: u16,
}

/// Page 1Ch/02h, Logical Block Provisioning (SBC-3, 6.5.9), with one armed threshold: the unit
/// reports a unit attention when the used space grows beyond it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProvisioningThreshold {
    /// THRESHOLD COUNT: used space in threshold sets.
    pub used: u32,
}

impl ProvisioningThreshold {
    #[must_use]
    pub fn to_page(self) -> ModePage {
        let mut parameters = vec![0; 12];
        // The fields say: ENABLED, soft threshold (type 000b), armed increasing (001b), for the
        // used space (parameter 02h).
        parameters.extend_from_slice(&[0x81, 0x02, 0, 0]);
        parameters.extend_from_slice(&self.used.to_be_bytes());
        ModePage { code: 0x1c, subpage: 0x02, saveable: false, parameters }
    }
}

impl CachingModePage {
    pub const PAGE: u8 = 0x08;

    #[must_use]
    pub fn to_page(self) -> ModePage {
        let mut parameters = vec![0; 18];
        parameters[0] = u8::from(self.write_cache) << 2 | u8::from(self.read_cache_disabled);
        ModePage { code: Self::PAGE, subpage: 0, saveable: false, parameters }
    }

    /// Parses the Caching page. Returns `None` for another page, or if the page has no parameters.
    #[must_use]
    pub fn from_page(page: &ModePage) -> Option<Self> {
        let flags = page.first_of(Self::PAGE)?;
        Some(Self { write_cache: flags & 0x04 != 0, read_cache_disabled: flags & 0x01 != 0 })
    }
}

impl ControlModePage {
    pub const PAGE: u8 = 0x0a;

    #[must_use]
    pub fn to_page(self) -> ModePage {
        let mut parameters = vec![0; 10];
        // Bit 1 is GLTSD: the unit does not save log parameters implicitly.
        parameters[0] = u8::from(self.descriptor_sense) << 2 | 0x02;
        parameters[1] = u8::from(self.unrestricted_reordering) << 4;
        parameters[2] = u8::from(self.write_protect) << 3;
        parameters[6..8].copy_from_slice(&self.busy_timeout.to_be_bytes());
        ModePage { code: Self::PAGE, subpage: 0, saveable: false, parameters }
    }

    /// Parses the Control page. Returns `None` for another page, or if the page has no parameters.
    /// Missing fields become zero.
    #[must_use]
    pub fn from_page(page: &ModePage) -> Option<Self> {
        let flags = page.first_of(Self::PAGE)?;
        let byte = |at| u8_at(&page.parameters, at).unwrap_or(0);
        Some(Self {
            descriptor_sense: flags & 0x04 != 0,
            unrestricted_reordering: byte(1) >> 4 == 1,
            write_protect: byte(2) & 0x08 != 0,
            busy_timeout: u16_at(&page.parameters, 6).unwrap_or(0),
        })
    }
}

impl ModePage {
    /// Returns page 01h, Read-Write Error Recovery (SBC-3, 6.5.8), with zeros only: the unit has no
    /// retries and no reallocation that an initiator could configure.
    #[must_use]
    pub fn error_recovery() -> Self {
        Self { code: 0x01, subpage: 0, saveable: false, parameters: vec![0; 10] }
    }

    /// Returns page 1Ch, Informational Exceptions Control (SPC-4, 7.5.11), with DEXCPT=1: the unit
    /// reports no informational exceptions.
    #[must_use]
    pub fn no_informational_exceptions() -> Self {
        let mut parameters = vec![0; 10];
        parameters[0] = 0x08;
        Self { code: 0x1c, subpage: 0, saveable: false, parameters }
    }

    fn first_of(&self, code: u8) -> Option<u8> {
        if (self.code, self.subpage) == (code, 0) { self.parameters.first().copied() } else { None }
    }

    /// Returns the length in bytes of the encoded page, including its header.
    fn length(&self) -> usize {
        self.parameters.len() + if self.subpage == 0 { 2 } else { 4 }
    }

    fn append_to(&self, bytes: &mut Vec<u8>) {
        let length = u16::try_from(self.parameters.len()).expect("a page is shorter than 64 KiB");
        let [high, low] = length.to_be_bytes();
        let first = self.code & 0x3f | if self.saveable { SAVEABLE } else { 0 };
        if self.subpage == 0 {
            assert!(high == 0, "a page without subpage has at most 255 bytes");
            bytes.extend_from_slice(&[first, low]);
        } else {
            bytes.extend_from_slice(&[first | SUBPAGE_FORMAT, self.subpage, high, low]);
        }
        bytes.extend_from_slice(&self.parameters);
    }
}

impl ModeParameters {
    /// Encodes the data for MODE SENSE (6).
    ///
    /// # Panics
    /// If the data is longer than 256 bytes or a page is longer than its header can express.
    #[must_use]
    pub fn to_bytes_6(&self) -> Vec<u8> {
        let block = self.block.map(|b| b.to_bytes(false)).unwrap_or_default();
        let mut bytes = vec![0, 0, self.flags(), block.len() as u8];
        bytes.extend_from_slice(&block);
        self.pages.iter().for_each(|page| page.append_to(&mut bytes));
        bytes[0] = u8::try_from(bytes.len() - 1).expect("MODE SENSE (6) holds 256 bytes");
        bytes
    }

    /// Encodes the data for MODE SENSE (10).
    ///
    /// # Panics
    /// If the data is longer than 65,537 bytes or a page is longer than its header can express.
    #[must_use]
    pub fn to_bytes_10(&self) -> Vec<u8> {
        let long = self.block.is_some_and(|b| b.long);
        let block = self.block.map(|b| b.to_bytes(long)).unwrap_or_default();
        let mut bytes = vec![0, 0, 0, self.flags(), u8::from(long), 0, 0, block.len() as u8];
        bytes.extend_from_slice(&block);
        self.pages.iter().for_each(|page| page.append_to(&mut bytes));
        let length = u16::try_from(bytes.len() - 2).expect("MODE SENSE (10) holds 64 KiB");
        bytes[..2].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    /// Parses MODE SENSE (6) data, which may be truncated. Returns `None` if the header is
    /// incomplete.
    #[must_use]
    pub fn from_bytes_6(bytes: &[u8]) -> Option<Self> {
        let [length, _, flags, block_length, ..] = *bytes else { return None };
        Some(Self::read(
            body(bytes, 4, usize::from(length).saturating_sub(3)),
            flags,
            false,
            block_length.into(),
        ))
    }

    /// Parses MODE SENSE (10) data, which may be truncated. Returns `None` if the header is
    /// incomplete.
    #[must_use]
    pub fn from_bytes_10(bytes: &[u8]) -> Option<Self> {
        let length = usize::from(u16_at(bytes, 0)?);
        let block_length = usize::from(u16_at(bytes, 6)?);
        let (flags, long) = (bytes[3], bytes[4] & 0x01 != 0);
        Some(Self::read(body(bytes, 8, length.saturating_sub(6)), flags, long, block_length))
    }

    /// Parses the complete parameter list of MODE SELECT (6), or of MODE SELECT (10) if `ten`: a
    /// header, at most one block descriptor, and pages.
    ///
    /// # Errors
    /// 5/1A/00 for a list that ends inside one of these; 5/26/00 for an impossible block descriptor
    /// length.
    pub fn from_select(bytes: &[u8], ten: bool) -> Result<Self, Sense> {
        let header = if ten { 8 } else { 4 };
        if bytes.len() < header {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        let (flags, long, block_length) = if ten {
            (bytes[3], bytes[4] & 0x01 != 0, usize::from(u16_at(bytes, 6).unwrap_or(0)))
        } else {
            (bytes[2], false, usize::from(bytes[3]))
        };
        let whole = if long { 16 } else { 8 };
        if block_length != 0 && block_length != whole {
            return Err(Sense::invalid_field_in_parameter_list(if ten { 6 } else { 3 }));
        }
        let read = Self::read(&bytes[header..], flags, long, block_length);
        let pages: usize = read.pages.iter().map(ModePage::length).sum();
        if header + block_length + pages != bytes.len() {
            return Err(Sense::PARAMETER_LIST_LENGTH_ERROR);
        }
        Ok(read)
    }

    /// Returns the mode page with the page code `code` and subpage 0, if the list contains it.
    #[must_use]
    pub fn page(&self, code: u8) -> Option<&ModePage> {
        self.pages.iter().find(|page| (page.code, page.subpage) == (code, 0))
    }

    fn read(rest: &[u8], flags: u8, long: bool, block_length: usize) -> Self {
        let (block, mut rest) = rest.split_at(block_length.min(rest.len()));
        let mut pages = Vec::new();
        while let Some((page, after)) = next_page(rest) {
            pages.push(page);
            rest = after;
        }
        Self {
            write_protected: flags & WRITE_PROTECTED != 0,
            dpo_fua: flags & DPO_FUA != 0,
            block: BlockDescriptor::from_bytes(block, long),
            pages,
        }
    }

    /// Returns DEVICE-SPECIFIC PARAMETER of a block device (SBC-3, 6.5.1).
    fn flags(&self) -> u8 {
        let write_protected = if self.write_protected { WRITE_PROTECTED } else { 0 };
        let dpo_fua = if self.dpo_fua { DPO_FUA } else { 0 };
        write_protected | dpo_fua
    }
}

/// Splits the first mode page off `bytes`. Returns `None` at the end of the list, or if the page is
/// truncated.
fn next_page(bytes: &[u8]) -> Option<(ModePage, &[u8])> {
    let first = u8_at(bytes, 0)?;
    let (subpage, at, length) = if first & SUBPAGE_FORMAT == 0 {
        (0, 2, usize::from(u8_at(bytes, 1)?))
    } else {
        (u8_at(bytes, 1)?, 4, usize::from(u16_at(bytes, 2)?))
    };
    let (parameters, after) = bytes.get(at..)?.split_at_checked(length)?;
    let page = ModePage {
        code: first & 0x3f,
        subpage,
        saveable: first & SAVEABLE != 0,
        parameters: parameters.to_vec(),
    };
    Some((page, after))
}

impl BlockDescriptor {
    fn to_bytes(self, long: bool) -> Vec<u8> {
        if long {
            let mut bytes = vec![0; 16];
            bytes[..8].copy_from_slice(&self.blocks.to_be_bytes());
            bytes[12..].copy_from_slice(&self.block_size.to_be_bytes());
            return bytes;
        }
        let blocks = u32::try_from(self.blocks).unwrap_or(u32::MAX);
        let [_, size @ ..] = self.block_size.to_be_bytes();
        let mut bytes = blocks.to_be_bytes().to_vec();
        bytes.push(0);
        bytes.extend_from_slice(&size);
        bytes
    }

    fn from_bytes(bytes: &[u8], long: bool) -> Option<Self> {
        if long {
            let (blocks, block_size) = (u64_at(bytes, 0)?, u32_at(bytes, 12)?);
            return Some(Self { blocks, block_size, long });
        }
        let blocks = u64::from(u32_at(bytes, 0)?);
        Some(Self { blocks, block_size: u32_at(bytes, 4)? & 0xff_ffff, long })
    }
}

/// Bits of the field DEVICE-SPECIFIC PARAMETER.
const WRITE_PROTECTED: u8 = 0x80;
const DPO_FUA: u8 = 0x10;
/// The PS bit in byte 0 of a mode page.
const SAVEABLE: u8 = 0x80;
/// The SPF bit in byte 0 of a mode page.
const SUBPAGE_FORMAT: u8 = 0x40;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parameters() -> ModeParameters {
        let control = ControlModePage {
            descriptor_sense: false,
            unrestricted_reordering: true,
            write_protect: false,
            busy_timeout: 0xffff,
        };
        ModeParameters {
            write_protected: false,
            dpo_fua: true,
            block: Some(BlockDescriptor { blocks: 1000, block_size: 512, long: false }),
            pages: vec![
                ModePage::error_recovery(),
                CachingModePage { write_cache: true, read_cache_disabled: false }.to_page(),
                control.to_page(),
                ModePage::no_informational_exceptions(),
            ],
        }
    }

    #[test]
    fn mode_parameters_6_are_encoded_byte_by_byte() {
        let bytes = parameters().to_bytes_6();
        assert_eq!(bytes[..12], [67, 0, 0x10, 8, 0, 0, 3, 0xe8, 0, 0, 2, 0]);
        assert_eq!(bytes[12..14], [0x01, 0x0a]);
        assert_eq!(bytes[24..27], [0x08, 0x12, 0x04]);
        assert_eq!(bytes[44..48], [0x0a, 0x0a, 0x02, 0x10]);
        assert_eq!(bytes[56..59], [0x1c, 0x0a, 0x08]);
        assert_eq!(bytes.len(), 68);
    }

    #[test]
    fn both_mode_parameter_forms_are_decoded_as_encoded() {
        let parameters = parameters();
        assert_eq!(
            ModeParameters::from_bytes_6(&parameters.to_bytes_6()),
            Some(parameters.clone())
        );
        assert_eq!(
            ModeParameters::from_bytes_10(&parameters.to_bytes_10()),
            Some(parameters.clone())
        );
        let block = Some(BlockDescriptor { blocks: 1 << 40, block_size: 4096, long: true });
        let long = ModeParameters { block, write_protected: true, ..parameters };
        assert_eq!(ModeParameters::from_bytes_10(&long.to_bytes_10()), Some(long));
    }

    #[test]
    fn mode_pages_are_interpreted() {
        let parameters = parameters();
        let caching =
            parameters.page(CachingModePage::PAGE).and_then(CachingModePage::from_page).unwrap();
        assert!(caching.write_cache && !caching.read_cache_disabled);
        let control =
            parameters.page(ControlModePage::PAGE).and_then(ControlModePage::from_page).unwrap();
        assert!(control.unrestricted_reordering && control.busy_timeout == 0xffff);
        assert_eq!(CachingModePage::from_page(&ModePage::error_recovery()), None);
        let threshold = ProvisioningThreshold { used: 7 }.to_page();
        assert_eq!((threshold.code, threshold.subpage, threshold.parameters.len()), (0x1c, 2, 20));
        assert_eq!(threshold.parameters[12..], [0x81, 2, 0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn a_size_too_large_for_the_short_block_descriptor_is_all_ones() {
        let block = BlockDescriptor { blocks: 1 << 32, block_size: 512, long: false };
        assert_eq!(block.to_bytes(false)[..4], [0xff; 4]);
    }

    #[test]
    fn mode_select_refuses_incomplete_lists() {
        let parameters = parameters();
        let bytes = parameters.to_bytes_6();
        let select = |bytes: &[u8]| ModeParameters::from_select(bytes, false);
        assert_eq!(select(&bytes), Ok(parameters.clone()));
        assert_eq!(ModeParameters::from_select(&parameters.to_bytes_10(), true), Ok(parameters));
        for length in [0, 3, 8, 20, 67] {
            assert_eq!(select(&bytes[..length]), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
        }
        assert_eq!(
            select(&[0, 0, 0, 7, 0, 0, 0, 0]),
            Err(Sense::invalid_field_in_parameter_list(3))
        );
        assert!(select(&[0; 4]).unwrap().pages.is_empty());
    }

    #[test]
    fn the_flags_are_read_from_a_header_alone() {
        let read = ModeParameters::from_bytes_6(&[67, 0, 0x90, 8]).unwrap();
        assert!(read.write_protected && read.dpo_fua && read.block.is_none());
        assert_eq!(ModeParameters::from_bytes_6(&[3, 0, 0]), None);
        assert_eq!(ModeParameters::from_bytes_10(&[0; 7]), None);
    }

    proptest! {
        #[test]
        fn hostile_mode_data_does_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            for read in [ModeParameters::from_bytes_6(&bytes), ModeParameters::from_bytes_10(&bytes)] {
                let size = read.map_or(0, |r| r.pages.iter().map(|p| p.parameters.len() + 2).sum());
                prop_assert!(size <= bytes.len());
            }
            for ten in [false, true] {
                let _ = ModeParameters::from_select(&bytes, ten);
            }
        }
    }
}
