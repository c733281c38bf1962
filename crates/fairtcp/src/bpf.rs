//! Calls bpf(2) without a library, with only those commands that load and register a congestion control. Each structure
//! of attributes has the layout of the member of the kernel's `union bpf_attr` for its command.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use crate::asm::Instruction;

/// The attributes of a BPF map.
#[derive(Clone, Copy, Debug, Default)]
pub struct Map<'a> {
    /// The type of the map, `BPF_MAP_TYPE_…`.
    pub kind: u32,
    pub key_bytes: u32,
    pub value_bytes: u32,
    /// The maximum number of entries; zero for socket storage.
    pub max_entries: u32,
    /// The flags of the map, `BPF_F_…`.
    pub flags: u32,
    /// A name of up to 15 letters, digits and `_`.
    pub name: &'a str,
    /// A BTF object (type information), and the numbers in it of the type of the map's keys and of the type of its
    /// values.
    pub types: Option<(BorrowedFd<'a>, u32, u32)>,
    /// Only for a struct_ops map, which holds a table of the kernel's callbacks: the number of the map's value type in
    /// the kernel's own BTF.
    pub kernel_value: u32,
}

/// Loads BTF into the kernel.
///
/// # Errors
/// The error of the kernel.
pub fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes =
        LoadBtf { btf: btf.as_ptr() as u64, size: btf.len() as u32, ..LoadBtf::default() };
    // SAFETY: `LoadBtf` is the layout of this command; `btf` has the given length and outlives the call.
    let descriptor = unsafe { call(BTF_LOAD, &mut attributes) }?;
    Ok(owned(descriptor))
}

/// Creates a map.
///
/// # Errors
/// The error of the kernel.
pub fn create_map(map: &Map<'_>) -> io::Result<OwnedFd> {
    let (btf, key_type, value_type) =
        map.types.map_or((0, 0, 0), |(btf, key, value)| (btf.as_raw_fd() as u32, key, value));
    let mut attributes = CreateMap {
        kind: map.kind,
        key_bytes: map.key_bytes,
        value_bytes: map.value_bytes,
        max_entries: map.max_entries,
        flags: map.flags,
        name: name(map.name),
        btf,
        key_type,
        value_type,
        kernel_value: map.kernel_value,
        ..CreateMap::default()
    };
    // SAFETY: `CreateMap` is the layout of this command and contains no pointer.
    let descriptor = unsafe { call(MAP_CREATE, &mut attributes) }?;
    Ok(owned(descriptor))
}

/// Sets the value of a key. The lengths of key and value must be those of the map.
///
/// # Errors
/// The error of the kernel.
///
/// # Panics
/// If key and value do not have the lengths of the map.
pub fn update(map: BorrowedFd<'_>, of: &Map<'_>, key: u32, value: &[u8]) -> io::Result<()> {
    assert_eq!((of.key_bytes, of.value_bytes as usize), (4, value.len()), "as the map was made");
    let mut attributes = UpdateElement {
        map: map.as_raw_fd() as u32,
        key: (&raw const key) as u64,
        value: value.as_ptr() as u64,
        ..UpdateElement::default()
    };
    // SAFETY: `UpdateElement` is the layout of this command; key and value outlive the call and have the lengths of
    // the map, which was asserted.
    unsafe { call(MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Removes a key of four bytes from a map. Does nothing if the map does not have the key.
///
/// # Errors
/// The error of the kernel.
///
/// # Panics
/// If the keys of the map do not have four bytes.
pub fn remove(map: BorrowedFd<'_>, of: &Map<'_>, key: u32) -> io::Result<()> {
    assert_eq!(of.key_bytes, 4, "as the map was made");
    let mut attributes = UpdateElement {
        map: map.as_raw_fd() as u32,
        key: (&raw const key) as u64,
        ..UpdateElement::default()
    };
    // SAFETY: `UpdateElement` begins with the layout of this command, and the rest is zero; the key outlives the call
    // and has the length of the map's keys, which was asserted.
    match unsafe { call(MAP_DELETE_ELEM, &mut attributes) } {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Returns the value of a key in a map whose keys and values have four bytes. Returns `None` if the map does not have
/// the key.
///
/// # Errors
/// The error of the kernel.
///
/// # Panics
/// If the keys or the values of the map do not have four bytes.
pub fn look_up(map: BorrowedFd<'_>, of: &Map<'_>, key: u32) -> io::Result<Option<u32>> {
    assert_eq!((of.key_bytes, of.value_bytes), (4, 4), "as the map was made");
    let mut value = 0u32;
    let mut attributes = UpdateElement {
        map: map.as_raw_fd() as u32,
        key: (&raw const key) as u64,
        value: (&raw mut value) as u64,
        ..UpdateElement::default()
    };
    // SAFETY: `UpdateElement` is also the layout of this command; key and value outlive the call and have the lengths
    // of the map, which was asserted.
    match unsafe { call(MAP_LOOKUP_ELEM, &mut attributes) } {
        Ok(_) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Loads a program for one member of a kernel structure of operations (struct_ops).
///
/// # Errors
/// The error of the kernel, with the verifier's log if there is one.
pub fn load_program(
    instructions: &[Instruction],
    program_name: &str,
    structure: u32,
    member: u32,
) -> Result<OwnedFd, (io::Error, String)> {
    let mut attributes = LoadProgram {
        kind: PROG_TYPE_STRUCT_OPS,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        // The kernel accepts a congestion control only from a program with a GPL-compatible licence.
        license: c"GPL".as_ptr() as u64,
        name: name(program_name),
        member,
        structure,
        ..LoadProgram::default()
    };
    // SAFETY: `LoadProgram` is the layout of this command; instructions and licence outlive the call.
    let first = match unsafe { call(PROG_LOAD, &mut attributes) } {
        Ok(descriptor) => return Ok(owned(descriptor)),
        Err(error) => error,
    };
    if matches!(first.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) {
        return Err((first, String::new()));
    }
    // Load the program again, this time with the log of the verifier. The first call did not request the log, because
    // writing it takes the kernel some time.
    let mut log = vec![0u8; LOG_BYTES];
    attributes.log_level = 1;
    attributes.log_bytes = log.len() as u32;
    attributes.log = log.as_mut_ptr() as u64;
    // SAFETY: as at the first call; the log has the given length and outlives the call.
    match unsafe { call(PROG_LOAD, &mut attributes) } {
        Ok(descriptor) => Ok(owned(descriptor)),
        Err(error) => {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            let text = String::from_utf8_lossy(&log[..end]);
            let lines: Vec<&str> = text.lines().collect();
            Err((error, lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")))
        }
    }
}

/// Registers the operations in a struct_ops map. They stay registered until the returned descriptor is closed.
///
/// # Errors
/// The error of the kernel; `EEXIST` means that the name is in use.
pub fn register(operations: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attributes = CreateLink {
        map: operations.as_raw_fd() as u32,
        attach_type: ATTACH_STRUCT_OPS,
        ..CreateLink::default()
    };
    // SAFETY: `CreateLink` is the layout of this command and contains no pointer.
    let descriptor = unsafe { call(LINK_CREATE, &mut attributes) }?;
    Ok(owned(descriptor))
}

/// # Safety
/// `attributes` must have the kernel's layout for `command`, and its pointers must be valid for what the command does
/// with them. Newer kernels write the necessary log length into it.
unsafe fn call<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: guaranteed by the caller; the kernel accesses `size_of::<T>()` bytes.
    let answer =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as libc::c_int) }
}

fn owned(descriptor: libc::c_int) -> OwnedFd {
    // SAFETY: the kernel has just opened the descriptor for this process, and the descriptor has no other owner. The
    // descriptor is closed on exec.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn name(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    let length = text.len().min(name.len() - 1);
    name[..length].copy_from_slice(&text.as_bytes()[..length]);
    name
}

/// The length of the buffer for the log. It is enough for the longest program; only the end of the log is needed.
const LOG_BYTES: usize = 1 << 20;
/// The number of lines at the end of the log that contain the verifier's reason.
const LOG_LINES: usize = 12;

// Constants from linux/bpf.h.
const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const BTF_LOAD: libc::c_int = 18;
const LINK_CREATE: libc::c_int = 28;
const PROG_TYPE_STRUCT_OPS: u32 = 27;
const ATTACH_STRUCT_OPS: u32 = 44;

#[derive(Default)]
#[repr(C)]
struct CreateMap {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    max_entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
    interface: u32,
    btf: u32,
    key_type: u32,
    value_type: u32,
    kernel_value: u32,
    extra: u64,
}

#[derive(Default)]
#[repr(C)]
struct UpdateElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Default)]
#[repr(C)]
struct LoadBtf {
    btf: u64,
    log: u64,
    size: u32,
    log_bytes: u32,
    log_level: u32,
    padding: u32,
}

#[derive(Default)]
#[repr(C)]
struct LoadProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    /// `expected_attach_type`: the index of the member in the structure.
    member: u32,
    btf: u32,
    function_info_bytes: u32,
    function_info: u64,
    function_info_count: u32,
    line_info_bytes: u32,
    line_info: u64,
    line_info_count: u32,
    /// `attach_btf_id`: the type of the structure.
    structure: u32,
}

#[derive(Default)]
#[repr(C)]
struct CreateLink {
    map: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn structures_are_laid_out_as_the_kernels() {
        assert_eq!((offset_of!(CreateMap, name), offset_of!(CreateMap, btf)), (28, 48));
        assert_eq!((offset_of!(CreateMap, kernel_value), size_of::<CreateMap>()), (60, 72));
        assert_eq!((offset_of!(UpdateElement, key), size_of::<UpdateElement>()), (8, 32));
        assert_eq!((offset_of!(LoadBtf, size), size_of::<LoadBtf>()), (16, 32));
        assert_eq!((offset_of!(LoadProgram, log), offset_of!(LoadProgram, name)), (32, 48));
        assert_eq!(
            (offset_of!(LoadProgram, member), offset_of!(LoadProgram, structure)),
            (68, 108)
        );
        assert_eq!(size_of::<LoadProgram>(), 112);
        assert_eq!((offset_of!(CreateLink, attach_type), size_of::<CreateLink>()), (8, 16));
    }
}
