//! Ranges of attribute pages: the kind of object that a page belongs to (OSD-2, 7.2.1).

use crate::ObjectType;

/// The attributes page, of every object, that describes the command which is being processed (OSD-2, 7.2.27).
pub const CURRENT_COMMAND: u32 = 0xffff_fffe;
/// The page of a collection that reports the progress of a long command.
pub const COMMAND_TRACKING: u32 = 0x6000_0004;

/// The type of the objects that have an attributes page. The page's number decides it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PageFamily {
    /// The page belongs to objects of this type only.
    Of(ObjectType),
    /// The page belongs to objects of every type.
    Any,
    CurrentCommand,
    /// A reserved number, or FFFFFFFFh, which means "all pages" and is not a page.
    Reserved,
}

/// Returns the type of the objects that may have the attributes page number `page`.
#[must_use]
pub const fn family_of(page: u32) -> PageFamily {
    match page {
        0..=0x2fff_ffff => PageFamily::Of(ObjectType::UserObject),
        0x3000_0000..=0x5fff_ffff => PageFamily::Of(ObjectType::Partition),
        0x6000_0000..=0x8fff_ffff => PageFamily::Of(ObjectType::Collection),
        0x9000_0000..=0xbfff_ffff => PageFamily::Of(ObjectType::Root),
        0xf000_0000..=0xffff_fffd => PageFamily::Any,
        CURRENT_COMMAND => PageFamily::CurrentCommand,
        _ => PageFamily::Reserved,
    }
}

/// Returns true if clients may define attributes in page `page`: its number is in a range for other standards,
/// manufacturers, applications or vendors. All other pages have the attributes of OSD-2 only.
#[must_use]
pub const fn is_vendor_number(page: u32) -> bool {
    let within = match page {
        0..=0xbfff_ffff => page % 0x3000_0000,
        0xf000_0000..=0xffff_fffd => page - 0xf000_0000,
        _ => return false,
    };
    matches!(within, 0x8000..=0x2fff_ffff)
}

/// The attributes pages of OSD-2 that several types of object have. The value is the distance of a page from the first
/// page number of the type.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum StandardPage {
    Directory = 0,
    Information = 1,
    Quotas = 2,
    Timestamps = 3,
    /// The collections that a user object is a member of. For a collection, the page [`COMMAND_TRACKING`].
    Collections = 4,
    PolicySecurity = 5,
    ErrorRecovery = 6,
}

impl StandardPage {
    /// Returns the page number for objects of `object_type`.
    #[must_use]
    pub const fn of(self, object_type: ObjectType) -> u32 {
        let first = match object_type {
            ObjectType::UserObject => 0,
            ObjectType::Partition => 0x3000_0000,
            ObjectType::Collection => 0x6000_0000,
            ObjectType::Root => 0x9000_0000,
        };
        first + self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_ranges_end_where_osd_2_says() {
        assert_eq!(family_of(0x2fff_ffff), PageFamily::Of(ObjectType::UserObject));
        assert_eq!(family_of(0x3000_0000), PageFamily::Of(ObjectType::Partition));
        assert_eq!(family_of(0x9000_0001), PageFamily::Of(ObjectType::Root));
        assert_eq!(family_of(0xc000_0000), PageFamily::Reserved);
        assert_eq!(family_of(0xffff_fffd), PageFamily::Any);
        assert_eq!(family_of(u32::MAX), PageFamily::Reserved);
        assert_eq!(StandardPage::PolicySecurity.of(ObjectType::Collection), 0x6000_0005);
    }

    #[test]
    fn clients_define_attributes_outside_the_standard_pages_only() {
        for page in [0x8000, 0x1_0000, 0x2000_0000, 0x3001_0000, 0x9001_0000, 0xf001_0000] {
            assert!(is_vendor_number(page), "{page:x}");
        }
        for page in [0, 1, 0x7fff, 0x3000_0001, 0x9000_0005, 0xc001_0000, CURRENT_COMMAND] {
            assert!(!is_vendor_number(page), "{page:x}");
        }
    }
}
