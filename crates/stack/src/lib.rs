//! The stack of a unit: the layers that its settings name, opened bottom first.
//!
//! [`open`] plans the stack from the settings, opens the bottom, and puts the other layers on top of it. The files of
//! a unit's layers are in `layers`; the records that outlast the process are in [`records`], [`confirmed_writes`] and
//! [`unit_state`].

pub mod atomic_file;
pub mod state_folder;
mod not_opened;
mod older_content;
pub mod confirmed_writes;
pub mod unit_state;
pub mod records;
pub mod congestion;
pub mod key_file;
pub mod figures;
mod pacing;
mod cache_events;
mod cache_refusal;
mod cache_figures;
mod watch;
mod space;
mod file;
mod parts;
mod log_disk;
mod nvram;
mod half;
mod read_tier;
mod remote;
mod remote_figures;
mod unflushed;
mod resend;
mod write_through;
mod cache_settings;
mod cache_log;
mod layers;
pub mod object_drive;
mod opened_stack;
mod plan;
mod opening;
mod common;
mod orders;

pub use cache_log::{
    UnopenedCacheLog, check_nvram, describe_log, dirty_of, instance, known, open_log,
};
pub use common::open_common;
pub use file::{io_remedy, log_options, open as open_file, options, refusal};
pub use half::{LocalHalf, check as check_half};
pub use layers::CacheLayer;
pub use log_disk::{exists as log_exists, half, look as look_at_log};
pub use not_opened::NotOpened;
pub use older_content::hosts_may_be_mounted;
pub use opened_stack::OpenedStack;
pub use opening::{StackContext, StackInput, open};
pub use parts::SlicedFiles;
pub use plan::{cache_over, known_as_unit, known_by};
pub use read_tier::{options as tier_options, refusal as refused_tier};
pub use remote::{FindFarVolume, Us, digest, may_pass, refusal as refused_far_volume, session};
