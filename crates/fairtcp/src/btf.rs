//! Parses BTF, the kernel's description of its own types (Documentation/bpf/btf.rst). This parser only finds the
//! offsets of fields and the numbers of functions. It checks all offsets in the data and returns an error if one of
//! them is invalid.

use std::{fs, ops::Range};

use crate::Error;

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedBtf(pub &'static str);

/// The BTF of a kernel: the bytes, and where each type is described in them.
pub struct Btf {
    bytes: Vec<u8>,
    strings: Range<usize>,
    /// The offset of the description of each type in `bytes`. Type 0, `void`, has no description.
    types: Vec<usize>,
}

/// The number of a type. Zero is `void`.
pub type TypeId = u32;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Field {
    /// The offset in bits from the start of the structure.
    pub offset_bits: u32,
    pub length_bits: u32,
}

#[derive(Clone, Copy)]
struct BtfMember {
    index: u32,
    type_id: TypeId,
    offset_bits: u32,
    /// The length in bits if the member is a bit field, otherwise zero.
    bit_field_bits: u32,
}

impl Btf {
    /// Reads the BTF of the running kernel.
    ///
    /// # Errors
    /// [`Error::NoTypes`], [`Error::Types`].
    pub fn of_this_kernel() -> Result<Self, Error> {
        let bytes = fs::read("/sys/kernel/btf/vmlinux").map_err(Error::NoTypes)?;
        Self::parse(bytes).map_err(|MalformedBtf(what)| Error::Types(what))
    }

    /// Parses the header and finds the start of each type.
    ///
    /// # Errors
    /// The bytes are not BTF in this machine's byte order, are truncated, or have an unknown kind of type.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, MalformedBtf> {
        if bytes.get(..3) != Some(&MAGIC_AND_VERSION) {
            return Err(MalformedBtf("not BTF, version 1, little-endian"));
        }
        let header = word(&bytes, 4)? as usize;
        let section = |at: usize| -> Result<Range<usize>, MalformedBtf> {
            let start = header.saturating_add(word(&bytes, at)? as usize);
            let end = start.saturating_add(word(&bytes, at + 4)? as usize);
            if header < HEADER_BYTES || end > bytes.len() {
                return Err(MalformedBtf("a section ends beyond the file"));
            }
            Ok(start..end)
        };
        let (type_section, strings) = (section(8)?, section(16)?);
        let mut types = vec![0];
        let mut at = type_section.start;
        while at < type_section.end {
            types.push(at);
            at += type_bytes(word(&bytes, at + 4)?)?;
        }
        if at > type_section.end {
            return Err(MalformedBtf("the last type is cut off"));
        }
        Ok(Self { bytes, strings, types })
    }

    /// Returns the number of the kernel's structure type `name`.
    #[must_use]
    pub fn structure(&self, name: &str) -> Option<TypeId> {
        self.find(STRUCT, name)
    }

    /// Returns the BTF type number of the kernel's function `name`.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<TypeId> {
        self.find(FUNC, name)
    }

    /// Returns a field of a structure by its path, for example `inet_conn.icsk_ca_priv`. As in C, the path leaves out
    /// anonymous structures and unions.
    #[must_use]
    pub fn field(&self, structure: TypeId, path: &str) -> Option<Field> {
        let (mut id, mut offset_bits, mut length_bits) = (structure, 0u32, 0);
        for name in path.split('.') {
            let member = self.member(id, name)?;
            offset_bits = offset_bits.checked_add(member.offset_bits)?;
            id = member.type_id;
            length_bits = match member.bit_field_bits {
                0 => self.size_bytes(id)?.checked_mul(8)?,
                bits => bits,
            };
        }
        Some(Field { offset_bits, length_bits })
    }

    /// Returns the index of the structure's member `name`, counted from 0.
    #[must_use]
    pub fn member_index(&self, structure: TypeId, name: &str) -> Option<u32> {
        Some(self.member(structure, name)?.index)
    }

    /// Returns the number of arguments of a member that is a function pointer.
    #[must_use]
    pub fn arguments(&self, structure: TypeId, name: &str) -> Option<u32> {
        let pointer = self.resolve(self.member(structure, name)?.type_id)?;
        if self.kind(pointer)? != PTR {
            return None;
        }
        let function = self.resolve(self.size_or_type(pointer)?)?;
        (self.kind(function)? == FUNC_PROTO).then(|| self.count(function))?
    }

    /// Returns the size of a type in bytes; `None` if the type has no size, such as a function.
    #[must_use]
    pub fn size_bytes(&self, id: TypeId) -> Option<u32> {
        let mut id = self.resolve(id)?;
        let mut elements = 1u32;
        for _ in 0..MAX_NESTING {
            let size = match self.kind(id)? {
                PTR => 8,
                INT | STRUCT | UNION | ENUM | ENUM64 | FLOAT => self.size_or_type(id)?,
                ARRAY => {
                    elements = elements.checked_mul(self.word(id, 20)?)?;
                    id = self.resolve(self.word(id, 12)?)?;
                    continue;
                }
                _ => return None,
            };
            return elements.checked_mul(size);
        }
        None
    }

    fn find(&self, kind: u32, name: &str) -> Option<TypeId> {
        let is_it = |&id: &TypeId| {
            self.kind(id) == Some(kind) && self.name(id).is_some_and(|it| it == name.as_bytes())
        };
        (1..self.types.len() as TypeId).find(is_it)
    }

    fn member(&self, structure: TypeId, name: &str) -> Option<BtfMember> {
        self.member_within(structure, name, MAX_NESTING, &mut { MAX_MEMBERS })
    }

    /// Finds a member as `member` does. Examines at most `left` members, and limits the depth of nested structures.
    fn member_within(
        &self,
        structure: TypeId,
        name: &str,
        nesting: u32,
        left: &mut u32,
    ) -> Option<BtfMember> {
        let structure = self.resolve(structure)?;
        if !matches!(self.kind(structure)?, STRUCT | UNION) {
            return None;
        }
        let has_bit_fields = self.word(structure, 4)? >> 31 == 1;
        for index in 0..self.count(structure)? {
            *left = left.checked_sub(1)?;
            let at = 12 + 12 * index as usize;
            let offset = self.word(structure, at + 8)?;
            let member = BtfMember {
                index,
                type_id: self.word(structure, at + 4)?,
                offset_bits: if has_bit_fields { offset & 0x00ff_ffff } else { offset },
                bit_field_bits: if has_bit_fields { offset >> 24 } else { 0 },
            };
            let its_name = self.string(self.word(structure, at)?)?;
            if its_name == name.as_bytes() {
                return Some(member);
            }
            if its_name.is_empty()
                && nesting > 0
                && let Some(below) = self.member_within(member.type_id, name, nesting - 1, left)
            {
                let offset_bits = member.offset_bits.checked_add(below.offset_bits)?;
                return Some(BtfMember { index, offset_bits, ..below });
            }
        }
        None
    }

    /// Returns the type that a chain of typedefs, qualifiers and tags stands for.
    fn resolve(&self, mut id: TypeId) -> Option<TypeId> {
        for _ in 0..MAX_NESTING {
            match self.kind(id)? {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => id = self.size_or_type(id)?,
                _ => return Some(id),
            }
        }
        None
    }

    fn kind(&self, id: TypeId) -> Option<u32> {
        Some(kind(self.word(id, 4)?))
    }

    fn count(&self, id: TypeId) -> Option<u32> {
        Some(self.word(id, 4)? & 0xffff)
    }

    fn size_or_type(&self, id: TypeId) -> Option<u32> {
        self.word(id, 8)
    }

    fn name(&self, id: TypeId) -> Option<&[u8]> {
        self.string(self.word(id, 0)?)
    }

    fn word(&self, id: TypeId, at: usize) -> Option<u32> {
        let start = *self.types.get(id as usize).filter(|_| id != 0)?;
        word(&self.bytes, start + at).ok()
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        let from = self.bytes[self.strings.clone()].get(offset as usize..)?;
        let end = from.iter().position(|&byte| byte == 0)?;
        Some(&from[..end])
    }
}

fn word(bytes: &[u8], at: usize) -> Result<u32, MalformedBtf> {
    let word = bytes.get(at..).and_then(|from| from.first_chunk());
    Ok(u32::from_le_bytes(*word.ok_or(MalformedBtf("a type is cut off"))?))
}

const fn kind(info: u32) -> u32 {
    (info >> 24) & 0x1f
}

/// Returns the length in bytes of the description of a type. `info` is the second word of the description.
fn type_bytes(info: u32) -> Result<usize, MalformedBtf> {
    let count = (info & 0xffff) as usize;
    let after = match kind(info) {
        PTR | FWD | TYPEDEF | VOLATILE | CONST | RESTRICT | FUNC | FLOAT | TYPE_TAG => 0,
        INT | VAR | DECL_TAG => 4,
        ARRAY => 12,
        STRUCT | UNION | DATASEC | ENUM64 => 12 * count,
        ENUM | FUNC_PROTO => 8 * count,
        _ => return Err(MalformedBtf("an unknown kind of type")),
    };
    Ok(12 + after)
}

/// The first bytes of BTF: the magic number 0xeB9F in this machine's byte order, and version 1.
const MAGIC_AND_VERSION: [u8; 3] = [0x9f, 0xeb, 1];
/// The length of `struct btf_header` in bytes, without the fields of later versions.
const HEADER_BYTES: usize = 24;
/// The limit for nested structures and for chains of typedefs. The kernel has at most five; a longer chain is a loop.
const MAX_NESTING: u32 = 16;
/// The most members that one search examines. The kernel's largest structure has some hundreds. Without a limit, the
/// search would not end if anonymous structures contain each other.
const MAX_MEMBERS: u32 = 10_000;

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const FLOAT: u32 = 16;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

#[cfg(test)]
mod tests {
    use super::*;

    struct Writer {
        types: Vec<u8>,
        strings: Vec<u8>,
        count: TypeId,
    }

    impl Writer {
        fn new() -> Self {
            Self { types: vec![], strings: vec![0], count: 0 }
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend(name.as_bytes());
            self.strings.push(0);
            at
        }

        fn write(&mut self, name: &str, kind: u32, count: u32, third: u32, after: &[u32]) -> u32 {
            let info = count | (kind & 0x1f) << 24 | (kind >> 5) << 31;
            let name = self.name(name);
            for word in [name, info, third].iter().chain(after) {
                self.types.extend(word.to_le_bytes());
            }
            self.count += 1;
            self.count
        }

        /// Appends the description of a structure. Each member is (name, type, offset); the upper bits of the offset
        /// hold the length of a bit field.
        fn structure(
            &mut self,
            kind: u32,
            name: &str,
            size: u32,
            members: &[(&str, u32, u32)],
        ) -> u32 {
            let mut after = vec![];
            for (name, id, offset) in members {
                after.extend([self.name(name), *id, *offset]);
            }
            self.write(name, kind, members.len() as u32, size, &after)
        }

        fn bytes(self) -> Vec<u8> {
            let mut bytes = MAGIC_AND_VERSION.to_vec();
            bytes.push(0);
            let lengths = [self.types.len() as u32, self.strings.len() as u32];
            for word in [24, 0, lengths[0], lengths[0], lengths[1]] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(self.types);
            bytes.extend(self.strings);
            bytes
        }
    }

    const BIT_FIELDS: u32 = 1 << 5;

    /// Returns BTF with this type: `struct outer { int first; union { struct inner in; word *at[3]; }; int bit : 2;
    /// void (*call)(..); }`
    fn example() -> Vec<u8> {
        let mut w = Writer::new();
        let int = w.write("int", INT, 0, 4, &[32]);
        let word = w.write("word", TYPEDEF, 0, int, &[]);
        let inner = w.structure(STRUCT, "inner", 8, &[("a", int, 0), ("b", word, 32)]);
        let pointer = w.write("", PTR, 0, word, &[]);
        let array = w.write("", ARRAY, 0, 0, &[pointer, int, 3]);
        let union = w.structure(UNION, "", 24, &[("in", inner, 0), ("at", array, 0)]);
        let call = w.write("", FUNC_PROTO, 2, 0, &[0, int, 0, int]);
        let call = w.write("", PTR, 0, call, &[]);
        let members =
            [("first", int, 0), ("", union, 64), ("bit", int, 260 | 2 << 24), ("call", call, 320)];
        w.structure(STRUCT | BIT_FIELDS, "outer", 48, &members);
        w.write("act", FUNC, 0, 0, &[]);
        w.bytes()
    }

    #[test]
    fn fields_are_found_by_path_and_through_nameless_members() {
        let btf = Btf::parse(example()).unwrap();
        let outer = btf.structure("outer").unwrap();
        let field = |path| btf.field(outer, path).map(|it| (it.offset_bits, it.length_bits));
        assert_eq!(field("first"), Some((0, 32)));
        assert_eq!(field("in.b"), Some((64 + 32, 32)));
        assert_eq!(field("at"), Some((64, 3 * 64)));
        assert_eq!(field("bit"), Some((260, 2)));
        assert_eq!(field("nothing"), None);
        assert_eq!(field("first.a"), None, "an int has no members");
        assert_eq!(btf.member_index(outer, "call"), Some(3));
        assert_eq!(btf.arguments(outer, "call"), Some(2));
        assert_eq!(btf.arguments(outer, "first"), None);
        assert_eq!(btf.size_bytes(outer), Some(48));
        assert_eq!((btf.function("act"), btf.function("outer")), (Some(outer + 1), None));
    }

    #[test]
    fn truncated_or_changed_bytes_never_cause_a_panic() {
        let whole = example();
        let ask = |bytes: Vec<u8>| {
            let Ok(btf) = Btf::parse(bytes) else { return };
            for id in 0..16 {
                let _ = (btf.field(id, "in.b"), btf.arguments(id, "call"), btf.size_bytes(id));
            }
            let _ = (btf.structure("outer"), btf.function("act"));
        };
        for end in 0..whole.len() {
            assert!(Btf::parse(whole[..end].to_vec()).is_err(), "{end} bytes");
        }
        for at in 0..whole.len() {
            for change in [0x01, 0x04, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= change;
                ask(bytes);
            }
        }
    }

    #[test]
    fn a_type_that_contains_itself_does_not_loop_forever() {
        let mut w = Writer::new();
        w.structure(STRUCT, "loop", 4, &[("", 1, 0), ("", 1, 0), ("", 1, 0), ("", 1, 0)]);
        w.write("name", TYPEDEF, 0, 2, &[]);
        w.write("", ARRAY, 0, 0, &[3, 3, 1]);
        let btf = Btf::parse(w.bytes()).unwrap();
        assert_eq!(btf.field(1, "a"), None);
        assert_eq!((btf.size_bytes(2), btf.size_bytes(3)), (None, None));
    }

    #[test]
    fn unknown_kinds_versions_and_byte_orders_are_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = example();
            bytes[at] = byte;
            Btf::parse(bytes).err()
        };
        let other = Some(MalformedBtf("not BTF, version 1, little-endian"));
        assert_eq!((with(0, 0xeb), with(2, 2)), (other, other));
        assert_eq!(with(24 + 7, 20), Some(MalformedBtf("an unknown kind of type")));
        assert_eq!(with(4, 20), Some(MalformedBtf("a section ends beyond the file")));
    }
}
