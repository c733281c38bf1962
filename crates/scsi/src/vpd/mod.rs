//! Vital product data pages (SPC-4, 7.8; SBC-3, 6.6), one per file.
//!
//! The `from_bytes` functions parse data from another target, so every length may be wrong. If a
//! page is shorter than its current definition, the missing fields become zero, which the standards
//! define as "not reported".

mod page;
mod serial_number;
mod identification;
mod extended;
mod policy;
mod ports;
mod limits;
mod characteristics;
mod provisioning;
mod third_party;
mod forebay_volume;

pub use characteristics::BlockDeviceCharacteristics;
pub use extended::ExtendedInquiry;
pub use forebay_volume::ForebayVolume;
pub use identification::{Association, Designator, DesignatorKind, DeviceIdentification};
pub use limits::BlockLimitsPage;
pub use page::SupportedPages;
pub use policy::SharedModePages;
pub use ports::{ScsiPorts, TargetPort};
pub use provisioning::{LogicalBlockProvisioning, ProvisioningType};
pub use serial_number::UnitSerialNumber;
pub use third_party::ThirdPartyCopy;
