//! Loads the BPF programs, and registers them with the kernel as a congestion control.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use crate::{
    Error,
    bpf::{self, Map},
    btf::Btf,
    control_block::{BLOCK_BYTES, EnsembleControlBlock, MODEL_BLOCK_BYTES, Mapped},
    program::{CongestionOperation, EnsembleAlgorithm, Kernel, Maps, assemble},
};

/// A registered congestion control. It stays registered as long as this value exists, or until the process ends for any
/// reason, since the kernel then closes the descriptors. Sockets that use the congestion control keep it until they are
/// closed.
pub struct LoadedCongestionControl {
    pub name: String,
    pub blocks: Mapped,
    blocks_map: OwnedFd,
    members_map: OwnedFd,
    /// The attributes with which `blocks_map` was created.
    shape: Map<'static>,
    /// The registration with the kernel, which ends when this descriptor is closed.
    _link: OwnedFd,
}

impl LoadedCongestionControl {
    /// Loads the programs and registers them as `name`, or as `name_2` and so on if other processes use that name.
    pub fn load(name: &str, block_count: u32, algorithm: EnsembleAlgorithm) -> Result<Self, Error> {
        let btf = Btf::of_this_kernel()?;
        let kernel = Kernel::read(&btf)?;
        let types = bpf::load_btf(&types()).map_err(|it| Error::of_step("BPF_BTF_LOAD", it))?;
        let shape = blocks(block_count, algorithm);
        let blocks_map = create("the map of control blocks", &shape)?;
        let members_map = create("the map of members", &members(types.as_fd()))?;
        let mapped = Mapped::new(&blocks_map, block_count as usize, shape.value_bytes as usize)
            .map_err(|it| Error::of_step("mapping the control blocks", it))?;
        let maps = Maps { blocks: blocks_map.as_raw_fd(), members: members_map.as_raw_fd() };
        let registration = Registration::new(&btf, &kernel, algorithm, maps, types)?;
        let (name, link) = registration.register_beside_others(name)?;
        Ok(Self { name, blocks: mapped, blocks_map, members_map, shape, _link: link })
    }

    /// Resets control block `number` to the state of a new ensemble.
    pub fn clear_block(&self, number: u32, per_ack: bool) -> Result<(), Error> {
        let value = EnsembleControlBlock::fresh(per_ack, self.shape.value_bytes as usize);
        bpf::update(self.blocks_map.as_fd(), &self.shape, number, &value)
            .map_err(|error| Error::Kernel { step: "writing a control block", error })
    }

    /// Sets the ensemble that `socket` joins when it selects this congestion control.
    pub fn assign(&self, socket: BorrowedFd<'_>, ensemble: u32) -> Result<(), Error> {
        let key = socket.as_raw_fd() as u32;
        bpf::update(self.members_map.as_fd(), &ASSIGNED, key, &ensemble.to_le_bytes())
            .map_err(|error| Error::Kernel { step: "assigning a socket to an ensemble", error })
    }

    /// Removes the ensemble that [`Self::assign`] has set for `socket`.
    pub fn unassign(&self, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let key = socket.as_raw_fd() as u32;
        bpf::remove(self.members_map.as_fd(), &ASSIGNED, key)
            .map_err(|error| Error::Kernel { step: "removing a socket's ensemble", error })
    }

    /// Returns the number of the ensemble that is assigned to a socket, if there is one.
    pub fn assigned(&self, socket: BorrowedFd<'_>) -> Result<Option<u32>, Error> {
        let key = socket.as_raw_fd() as u32;
        bpf::look_up(self.members_map.as_fd(), &ASSIGNED, key)
            .map_err(|error| Error::Kernel { step: "reading a socket's ensemble", error })
    }

    /// From now on, makes the kernel refuse to assign sockets to ensembles (for tests).
    #[cfg(test)]
    pub fn refuse_assignments(&mut self) {
        // Make the assignment fail: replace the socket storage by an array map, in which only key 0 is valid. The
        // descriptor of the socket is another number.
        let map = Map { kind: MAP_TYPE_ARRAY, max_entries: 1, flags: 0, ..ASSIGNED };
        self.members_map = bpf::create_map(&map).expect("as the others were made");
    }
}

/// The struct_ops map that registers the congestion control, before its name is set.
struct Registration {
    value: Vec<u8>,
    value_type: u32,
    name: std::ops::Range<usize>,
    types: OwnedFd,
    /// The descriptors of the programs, which must stay open until the kernel has registered the operations; then the
    /// kernel itself keeps the programs.
    _programs: Vec<OwnedFd>,
}

impl Registration {
    fn new(
        btf: &Btf,
        kernel: &Kernel,
        algorithm: EnsembleAlgorithm,
        maps: Maps,
        types: OwnedFd,
    ) -> Result<Self, Error> {
        let other = |what: &str| Error::OtherTcp(what.to_owned());
        let find = |name: &str| btf.structure(name).ok_or_else(|| other(name));
        let operations = find("tcp_congestion_ops")?;
        let value_type = find("bpf_struct_ops_tcp_congestion_ops")?;
        let length = btf.size_bytes(value_type).ok_or_else(|| other("its size"))? as usize;
        let mut value = vec![0; length];
        // Returns where a member is in `value`, if the member has the expected length.
        let place = |name: &str, bytes: usize| {
            let data = btf.field(value_type, "data")?.offset_bits as usize / 8;
            let field = btf.field(operations, name)?;
            let start = data + field.offset_bits as usize / 8;
            let fits = field.length_bits as usize == 8 * bytes && start + bytes <= length;
            fits.then_some(start..start + bytes)
        };
        let mut programs = vec![];
        for operation in CongestionOperation::ALL {
            let name = operation.name();
            let at = place(name, 8).ok_or_else(|| other(name))?;
            let member = btf.member_index(operations, name).ok_or_else(|| other(name))?;
            let code = assemble(algorithm, operation, kernel, maps).map_err(|it| {
                Error::Refused { program: name, error: io::Error::other(it), log: String::new() }
            })?;
            let program = load_program(&code, name, operations, member)?;
            value[at].copy_from_slice(&(program.as_raw_fd() as u64).to_le_bytes());
            programs.push(program);
        }
        // Permit unprivileged processes to select this congestion control, for instance a process that dropped its
        // privileges after loading. All other sockets that select it get plain Reno, because they are in no ensemble.
        let flags = place("flags", 4).ok_or_else(|| other("flags"))?;
        value[flags].copy_from_slice(&TCP_CONG_NON_RESTRICTED.to_le_bytes());
        let name = place("name", TCP_CA_NAME_MAX).ok_or_else(|| other("name"))?;
        Ok(Self { value, value_type, name, types, _programs: programs })
    }

    /// Registers the congestion control under `name`, or under the first name with a number that is free.
    fn register_beside_others(mut self, name: &str) -> Result<(String, OwnedFd), Error> {
        if !is_name(name) {
            return Err(Error::Name(name.to_owned()));
        }
        for number in 1..=MAX_BESIDE {
            let full = if number == 1 { name.to_owned() } else { format!("{name}_{number}") };
            match self.register(&full) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(error) => {
                    return Err(Error::of_step("registering the congestion control", error));
                }
                Ok(link) => return Ok((full, link)),
            }
        }
        Err(Error::NameTaken(name.to_owned()))
    }

    fn register(&mut self, name: &str) -> io::Result<OwnedFd> {
        let field = &mut self.value[self.name.clone()];
        field.fill(0);
        field[..name.len()].copy_from_slice(name.as_bytes());
        let map = Map {
            kind: MAP_TYPE_STRUCT_OPS,
            key_bytes: 4,
            value_bytes: self.value.len() as u32,
            max_entries: 1,
            flags: F_LINK,
            name: "fairtcp",
            // The kernel requires a BTF object here, but does not use it.
            types: Some((self.types.as_fd(), 0, 0)),
            kernel_value: self.value_type,
        };
        let operations = bpf::create_map(&map)?;
        bpf::update(operations.as_fd(), &map, 0, &self.value)?;
        bpf::register(operations.as_fd())
    }
}

/// Returns true if a name is valid for BPF (`bpf_obj_name_cpy`) and short enough for a number after it.
fn is_name(name: &str) -> bool {
    let is_sign = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '_' | '.');
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_sign)
}

fn create(step: &'static str, map: &Map<'_>) -> Result<OwnedFd, Error> {
    bpf::create_map(map).map_err(|error| Error::of_step(step, error))
}

fn load_program(
    code: &[crate::asm::Instruction],
    program: &'static str,
    structure: u32,
    member: u32,
) -> Result<OwnedFd, Error> {
    bpf::load_program(code, &format!("fair_{program}"), structure, member).map_err(
        |(error, log)| {
            // If the kernel returns a log, its verifier has refused the program, and EACCES or EINVAL is the verifier's
            // result. Without a log, EACCES and EINVAL have other causes.
            if log.is_empty() {
                Error::of_step("BPF_PROG_LOAD", error)
            } else {
                Error::Refused { program, error, log }
            }
        },
    )
}

/// Returns the attributes of the array map of control blocks, which processes can map into their memory.
fn blocks(count: u32, algorithm: EnsembleAlgorithm) -> Map<'static> {
    let bytes = match algorithm {
        EnsembleAlgorithm::Model => MODEL_BLOCK_BYTES,
        EnsembleAlgorithm::Window => BLOCK_BYTES,
    };
    Map {
        kind: MAP_TYPE_ARRAY,
        key_bytes: 4,
        value_bytes: bytes as u32,
        max_entries: count,
        flags: F_MMAPABLE,
        name: "fairtcp_blocks",
        ..Map::default()
    }
}

/// Returns the attributes of the socket storage that holds the number of a socket's ensemble. The kernel frees it with
/// the socket.
fn members(types: BorrowedFd<'_>) -> Map<'_> {
    Map { types: Some((types, INT, INT)), ..ASSIGNED }
}

/// The attributes of [`members`] without the types, for reading and writing entries.
const ASSIGNED: Map<'static> = Map {
    kind: MAP_TYPE_SK_STORAGE,
    key_bytes: 4,
    value_bytes: 4,
    max_entries: 0,
    flags: F_NO_PREALLOC,
    name: "fairtcp_members",
    types: None,
    kernel_value: 0,
};

/// The number of the type `int` in [`types`].
const INT: u32 = 1;

/// Returns BTF that has the single type `int`. Socket storage needs it, since it must declare the types of its keys and
/// values.
fn types() -> Vec<u8> {
    const NAMES: &[u8] = b"\0int\0";
    // The words say: name at offset 1; kind INT; 4 bytes; signed, 32 bits.
    let int = [1u32, 1 << 24, 4, 1 << 24 | 32];
    let mut bytes = vec![0x9f, 0xeb, 1, 0];
    let int_bytes = size_of_val(&int) as u32;
    for word in [24, 0, int_bytes, int_bytes, NAMES.len() as u32].iter().chain(&int) {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(NAMES);
    bytes
}

/// The largest number that is appended to a name. This is more than the number of processes on one host that load this
/// congestion control.
const MAX_BESIDE: u32 = 64;
/// The longest name: TCP_CA_NAME_MAX (16) less the terminating zero and `_64`.
const MAX_NAME: usize = 12;

// Constants from linux/bpf.h and net/tcp.h.
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_SK_STORAGE: u32 = 24;
const MAP_TYPE_STRUCT_OPS: u32 = 26;
const F_NO_PREALLOC: u32 = 1;
const F_MMAPABLE: u32 = 1 << 10;
const F_LINK: u32 = 1 << 13;
const TCP_CA_NAME_MAX: usize = 16;
const TCP_CONG_NON_RESTRICTED: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_types_of_the_storage_are_btf() {
        let btf = Btf::parse(types()).unwrap();
        assert_eq!(btf.size_bytes(INT), Some(4));
    }

    #[test]
    fn names_leave_room_for_a_number() {
        assert!(is_name("fairtcp") && is_name("twelve_signs"));
        for wrong in ["", "thirteensigns", "two-words", "a/b", "\u{e9}"] {
            assert!(!is_name(wrong), "{wrong}");
        }
        assert!(format!("{}_{MAX_BESIDE}", "a".repeat(MAX_NAME)).len() < TCP_CA_NAME_MAX);
    }
}
