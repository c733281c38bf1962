//! Tables of commands. A command family uses its table both to parse CDBs and to answer REPORT
//! SUPPORTED OPERATION CODES. The report therefore always agrees with the commands that are served.

use crate::Sense;

/// The facts about one command that do not depend on the contents of its CDB.
#[derive(Clone, Copy, Debug)]
pub struct OperationCodeEntry {
    /// Byte 0 of the CDB.
    pub opcode: u8,
    /// The service action in bits 4-0 of byte 1; `None` if the operation code has no service
    /// actions.
    pub service_action: Option<u16>,
    /// NOMINAL COMMAND PROCESSING TIMEOUT in seconds: how long the command usually takes.
    pub nominal_s: u32,
    /// RECOMMENDED COMMAND TIMEOUT in seconds: how long an initiator should wait.
    pub recommended_s: u32,
    /// CDB usage data (SPC-4, 6.35.3); only the first `length` bytes are valid.
    usage: [u8; 16],
    length: u8,
}

/// One row of an [`OperationTable`]: a command with the parser of its CDB.
#[derive(Debug)]
pub struct OperationRow<C> {
    pub(crate) entry: OperationCodeEntry,
    /// Parses a CDB that has exactly the length of the command.
    parse: CdbParser<C>,
}

/// A function that parses a CDB of exactly the length of its command.
pub type CdbParser<C> = fn(&[u8]) -> Result<C, Sense>;

/// All commands of one family, ascending by operation code and service action.
#[derive(Debug)]
pub struct OperationTable<C: 'static> {
    rows: &'static [OperationRow<C>],
    /// For each operation code, the index of its first row, or [`NO_ROW`].
    first: [u8; 256],
}

impl OperationCodeEntry {
    /// Makes the entry of a command. `bytes` is its CDB usage data (SPC-4, 6.35.3) with the
    /// operation code first; `nominal_s` and `recommended_s` are times in seconds.
    ///
    /// # Panics
    /// If `bytes` is empty or longer than 16.
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

    /// Returns the CDB usage data (SPC-4, 6.35.3): the operation code, then a one for every bit
    /// that the parser evaluates. The length is that of the CDB.
    #[must_use]
    pub fn usage(&self) -> &[u8] {
        &self.usage[..self.length as usize]
    }

    /// Returns the key by which tables sort this command: operation code, then service action.
    pub(crate) const fn key(&self) -> u32 {
        let action = match self.service_action {
            Some(action) => action,
            None => 0,
        };
        (self.opcode as u32) << 16 | action as u32
    }
}

impl<C> OperationRow<C> {
    /// Makes a table row. `parse` receives a CDB with as many bytes as the usage data has.
    #[must_use]
    pub const fn new(entry: OperationCodeEntry, parse: CdbParser<C>) -> Self {
        Self { entry, parse }
    }

    /// Sets the service action of the command, which is in bits 4-0 of byte 1 of its CDB.
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
        // Refuse NACA (auto contingent allegiance): standard INQUIRY data says NORMACA=0.
        if cdb[length - 1] & NACA != 0 {
            return Err(Sense::invalid_bit_in_cdb(length as u16 - 1, 2));
        }
        (self.parse)(cdb)
    }
}

impl<C: 'static> OperationTable<C> {
    /// Makes a table. `rows` must ascend by operation code and service action.
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

    /// Parses a CDB, which may be longer than its command requires, because iSCSI always sends 16
    /// bytes. Returns `None` if the table has no command of this operation code and service action.
    ///
    /// # Errors
    /// 5/24/00 for a CDB that is too short, and for a field that requests something unsupported:
    /// ACA, protection information, reserved values.
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

    /// Returns true if the table has a command with this operation code.
    #[must_use]
    pub fn has_opcode(&self, opcode: u8) -> bool {
        self.first[usize::from(opcode)] != NO_ROW
    }

    /// Returns the entries of all commands in the table, ascending by operation code and service
    /// action.
    pub fn entries(&self) -> impl Iterator<Item = &'static OperationCodeEntry> + use<C> {
        self.rows.iter().map(|row| &row.entry)
    }

    /// Returns the rows from the first row of `opcode` to the end of the table; an empty slice for
    /// an unknown operation code.
    fn rows_of(&self, opcode: u8) -> &'static [OperationRow<C>] {
        self.rows.get(usize::from(self.first[usize::from(opcode)])..).unwrap_or_default()
    }
}

/// Returns the sense data for a CDB that is in no table of a device type. If `has_opcode` returns
/// true, only the service action is unknown, which is 5/24/00 (SPC-4, 4.2.5.2). Otherwise it is
/// 5/20/00.
#[must_use]
pub fn unknown_operation(cdb: &[u8], has_opcode: impl FnOnce(u8) -> bool) -> Sense {
    if cdb.first().is_some_and(|opcode| has_opcode(*opcode)) {
        Sense::invalid_bit_in_cdb(1, 4)
    } else {
        Sense::INVALID_COMMAND_OPERATION_CODE
    }
}

/// Makes a row for a command that touches no blocks. The recommended 10 s are the time-out of the
/// Linux initiator for INQUIRY.
pub(crate) const fn quick<C>(usage: &[u8], parse: CdbParser<C>) -> OperationRow<C> {
    OperationRow::new(OperationCodeEntry::new(usage, 1, 10), parse)
}

/// Makes a row for a command that transfers blocks. The recommended 30 s are the SCSI disk time-out
/// of Linux.
pub(crate) const fn moving<C>(usage: &[u8], parse: CdbParser<C>) -> OperationRow<C> {
    OperationRow::new(OperationCodeEntry::new(usage, 1, 30), parse)
}

/// Makes a row for a command that may wait for the storage. The recommended 60 s are the time-out
/// of Linux for a flush.
pub(crate) const fn slow<C>(usage: &[u8], parse: CdbParser<C>) -> OperationRow<C> {
    OperationRow::new(OperationCodeEntry::new(usage, 5, 60), parse)
}

/// Makes a row for a command that processes the whole unit before it answers, unless IMMED=1. A day
/// is recommended.
pub(crate) const fn long<C>(usage: &[u8], parse: CdbParser<C>) -> OperationRow<C> {
    OperationRow::new(OperationCodeEntry::new(usage, 60, 24 * 3600), parse)
}

/// Returns the CDB usage data of THIRD-PARTY COPY OUT. `list` is 0xff if the CDB has a list
/// identifier, otherwise 0.
pub(crate) const fn copy_out(list: u8) -> [u8; 16] {
    let f = 0xff;
    [0x83, 0x1f, 0, 0, 0, 0, list, list, list, list, f, f, f, f, 0, NACA]
}

/// The NACA bit of the CONTROL byte, which requests auto contingent allegiance (SAM-5, 5.2).
pub(crate) const NACA: u8 = 0x04;
/// The index of an operation code that has no row.
const NO_ROW: u8 = u8::MAX;
