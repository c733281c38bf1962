//! The table of a family of commands: it reads CDBs and answers REPORT SUPPORTED OPERATION CODES, so that what is
//! reported is what is served.

use crate::Sense;

/// The facts about one command that do not depend on its CDB.
#[derive(Clone, Copy, Debug)]
pub struct OperationCodeEntry {
    /// Byte 0 of the CDB.
    pub opcode: u8,
    /// The service action in bits 4-0 of byte 1, for the opcodes that have some.
    pub service_action: Option<u16>,
    /// How long the command takes as a rule, in seconds.
    pub nominal_s: u32,
    /// How long to wait before giving up, in seconds: an initiator's time-out.
    pub recommended_s: u32,
    /// Only the first `length` bytes count.
    usage: [u8; 16],
    length: u8,
}

/// One row of an [`OperationTable`]: a command with the parser of its CDB.
#[derive(Debug)]
pub struct OperationRow<C> {
    pub(crate) entry: OperationCodeEntry,
    /// Gets a CDB of exactly the command's length.
    parse: CdbParser<C>,
}

/// Reads a CDB of exactly its command's length.
pub type CdbParser<C> = fn(&[u8]) -> Result<C, Sense>;

/// All commands of one family, ascending by operation code and service action.
#[derive(Debug)]
pub struct OperationTable<C: 'static> {
    rows: &'static [OperationRow<C>],
    /// For every operation code the index of its first row, or [`NO_ROW`].
    first: [u8; 256],
}

impl OperationCodeEntry {
    /// A command whose CDB usage data (SPC-4, 6.35.3) is `bytes`, opcode first; `nominal_s` and `recommended_s` are
    /// times in seconds.
    ///
    /// # Panics
    /// If there are no bytes or more than 16.
    #[must_use]
    pub const fn new(bytes: &[u8], nominal_s: u32, recommended_s: u32) -> Self {
        let mut usage = [0; 16];
        let mut at = 0;
        while at < bytes.len() {
            usage[at] = bytes[at];
            at += 1;
        }
        let length = bytes.len() as u8;
        Self { opcode: bytes[0], service_action: None, nominal_s, recommended_s, usage, length }
    }

    /// CDB usage data (SPC-4, 6.35.3): the opcode, then a one for every bit that the parser looks at; as long as the
    /// CDB.
    #[must_use]
    pub fn usage(&self) -> &[u8] {
        &self.usage[..self.length as usize]
    }

    /// The position of the command in a table.
    pub(crate) const fn key(&self) -> u32 {
        let action = match self.service_action {
            Some(action) => action,
            None => 0,
        };
        (self.opcode as u32) << 16 | action as u32
    }
}

impl<C> OperationRow<C> {
    /// A command and the parser of its CDB, which gets exactly as many bytes as the usage data has.
    #[must_use]
    pub const fn new(entry: OperationCodeEntry, parse: CdbParser<C>) -> Self {
        Self { entry, parse }
    }

    /// The same command with a service action in bits 4-0 of byte 1.
    #[must_use]
    pub const fn with_service_action(mut self, action: u16) -> Self {
        self.entry.service_action = Some(action);
        self
    }

    fn read(&self, cdb: &[u8]) -> Result<C, Sense> {
        let length = usize::from(self.entry.length);
        let Some(cdb) = cdb.get(..length) else {
            return Err(Sense::invalid_field_in_cdb(cdb.len() as u16));
        };
        // NACA: auto contingent allegiance, which standard INQUIRY data denies (NORMACA=0).
        if cdb[length - 1] & NACA != 0 {
            return Err(Sense::invalid_bit_in_cdb(length as u16 - 1, 2));
        }
        (self.parse)(cdb)
    }
}

impl<C: 'static> OperationTable<C> {
    /// The table of these rows, which ascend by operation code and service action.
    ///
    /// # Panics
    /// If there are more than 254 rows.
    #[must_use]
    pub const fn new(rows: &'static [OperationRow<C>]) -> Self {
        assert!(rows.len() < NO_ROW as usize, "an index has one byte");
        let mut first = [NO_ROW; 256];
        let mut row = rows.len();
        while row > 0 {
            row -= 1;
            first[rows[row].entry.opcode as usize] = row as u8;
        }
        Self { rows, first }
    }

    /// Reads a CDB. A CDB longer than the command's (iSCSI always sends 16 bytes) is fine. Returns `None` if the
    /// family has no command of this operation code and service action.
    ///
    /// # Errors
    /// 5/24/00 for a CDB that is too short, and for a field that asks for something that is not supported: ACA,
    /// protection information, reserved values.
    #[must_use]
    pub fn parse(&self, cdb: &[u8]) -> Option<Result<C, Sense>> {
        let opcode = *cdb.first()?;
        let rows = self.rows_of(opcode);
        let mut row = rows.first()?;
        if row.entry.service_action.is_some() {
            let asked = Some(u16::from(cdb.get(1)? & 0x1f));
            let mut same_opcode = rows.iter().take_while(|row| row.entry.opcode == opcode);
            row = same_opcode.find(|row| row.entry.service_action == asked)?;
        }
        Some(row.read(cdb))
    }

    /// Returns true if the family has a command of this operation code.
    #[must_use]
    pub fn has_opcode(&self, opcode: u8) -> bool {
        self.first[usize::from(opcode)] != NO_ROW
    }

    /// All commands of the family, ascending by operation code and service action.
    pub fn entries(&self) -> impl Iterator<Item = &'static OperationCodeEntry> + use<C> {
        self.rows.iter().map(|row| &row.entry)
    }

    /// The rows from the first one of `opcode` on; none if there is none.
    fn rows_of(&self, opcode: u8) -> &'static [OperationRow<C>] {
        self.rows.get(usize::from(self.first[usize::from(opcode)])..).unwrap_or_default()
    }
}

/// Sense data for a CDB that no table of a device type knows: 5/24/00 if `has_opcode` says that the operation code is
/// known and only its service action is not (SPC-4, 4.2.5.2), 5/20/00 otherwise.
#[must_use]
pub fn unknown_operation(cdb: &[u8], has_opcode: impl FnOnce(u8) -> bool) -> Sense {
    if cdb.first().is_some_and(|opcode| has_opcode(*opcode)) {
        Sense::invalid_bit_in_cdb(1, 4)
    } else {
        Sense::INVALID_COMMAND_OPERATION_CODE
    }
}

/// A row whose command touches no block: nominally done at once; 10 s is what the Linux initiator
/// gives its inquiries.
pub(crate) const fn quick<C>(usage: &[u8], parse: CdbParser<C>) -> OperationRow<C> {
    OperationRow::new(OperationCodeEntry::new(usage, 1, 10), parse)
}

/// A row whose command moves blocks: 30 s is the SCSI disk time-out of Linux.
pub(crate) const fn moving<C>(usage: &[u8], parse: CdbParser<C>) -> OperationRow<C> {
    OperationRow::new(OperationCodeEntry::new(usage, 1, 30), parse)
}

/// A row whose command may have much to do below: 60 s is Linux's time-out for a flush.
pub(crate) const fn slow<C>(usage: &[u8], parse: CdbParser<C>) -> OperationRow<C> {
    OperationRow::new(OperationCodeEntry::new(usage, 5, 60), parse)
}

/// A row whose command goes through the whole unit when it does not answer at once (IMMED).
pub(crate) const fn long<C>(usage: &[u8], parse: CdbParser<C>) -> OperationRow<C> {
    OperationRow::new(OperationCodeEntry::new(usage, 60, 24 * 3600), parse)
}

/// Usage data of THIRD-PARTY COPY OUT; `list`: 0xff with a list identifier.
pub(crate) const fn copy_out(list: u8) -> [u8; 16] {
    let f = 0xff;
    [0x83, 0x1f, 0, 0, 0, 0, list, list, list, list, f, f, f, f, 0, NACA]
}

/// The bit of the CONTROL byte that asks for auto contingent allegiance (SAM-5, 5.2).
pub(crate) const NACA: u8 = 0x04;
/// No row has this index.
const NO_ROW: u8 = u8::MAX;
