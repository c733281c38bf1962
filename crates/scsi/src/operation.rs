//! Tables of commands. A command family uses its table both to parse CDBs and to answer REPORT
//! SUPPORTED OPERATION CODES. The report therefore always agrees with the commands that are served.

use crate::{Sense, field::u16_at};

/// The facts about one command that do not depend on the contents of its CDB.
#[derive(Clone, Copy, Debug)]
pub struct OperationCodeEntry {
    /// Operation code, which is byte 0 of the CDB.
    pub opcode: u8,
    /// The service action; `None` if the operation code has no service actions. It is in bits 4-0
    /// of byte 1, and of a variable-length CDB ([`VARIABLE_LENGTH_CDB`]) in bytes 8 and 9.
    pub service_action: Option<u16>,
    /// NOMINAL COMMAND PROCESSING TIMEOUT in seconds: how long the command usually takes.
    pub nominal_s: u32,
    /// RECOMMENDED COMMAND TIMEOUT in seconds: how long an initiator should wait.
    pub recommended_s: u32,
    usage: CdbUsage,
}

/// The CDB usage data of a command, with a bit set for each CDB bit that the unit evaluates (SPC-4, 6.35.3).
#[derive(Clone, Copy, Debug)]
enum CdbUsage {
    /// The usage data of a CDB of at most 16 bytes, and its length.
    Short([u8; 16], u8),
    /// The usage data of a variable-length CDB.
    Long(&'static [u8]),
}

/// A row of an [`OperationTable`]: a command, with the function that parses its CDB.
#[derive(Debug)]
pub struct OperationRow<C> {
    pub(crate) entry: OperationCodeEntry,
    /// Parses a CDB that has exactly the length of the command.
    parse: CdbParser<C>,
}

/// Parses a CDB, which must have exactly the length of its command.
pub type CdbParser<C> = fn(&[u8]) -> Result<C, Sense>;

/// The commands of one family (such as block commands), in the order of operation code and service action.
#[derive(Debug)]
pub struct OperationTable<C: 'static> {
    rows: &'static [OperationRow<C>],
    /// For each operation code, the index of its first row in `rows`, or [`NO_ROW`].
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
        let usage = CdbUsage::Short(usage, bytes.len() as u8);
        Self { opcode: bytes[0], service_action: None, nominal_s, recommended_s, usage }
    }

    /// Makes the entry of a command with a variable-length CDB. `usage` is its CDB usage data as in
    /// [`Self::new`], with ones in the service action.
    ///
    /// # Panics
    /// If the operation code is another than [`VARIABLE_LENGTH_CDB`], or if the length is not one
    /// of such a CDB: a multiple of 4 from 12 to 260 (SPC-4, 4.2.3).
    #[must_use]
    pub const fn variable_length(
        service_action: u16,
        usage: &'static [u8],
        nominal_s: u32,
        recommended_s: u32,
    ) -> Self {
        assert!(usage[0] == VARIABLE_LENGTH_CDB, "another operation code");
        let length = usage.len();
        assert!(length >= 12 && length <= 260 && length.is_multiple_of(4), "no length of a CDB");
        Self {
            opcode: VARIABLE_LENGTH_CDB,
            service_action: Some(service_action),
            nominal_s,
            recommended_s,
            usage: CdbUsage::Long(usage),
        }
    }

    /// Returns the CDB usage data (SPC-4, 6.35.3): the operation code, then a one for every bit
    /// that the parser evaluates. The length is that of the CDB.
    #[must_use]
    pub fn usage(&self) -> &[u8] {
        match &self.usage {
            CdbUsage::Short(bytes, length) => &bytes[..usize::from(*length)],
            CdbUsage::Long(bytes) => bytes,
        }
    }

    /// Returns the sort key of this command in a table: its operation code, then its service action.
    pub(crate) const fn key(&self) -> u32 {
        let action = match self.service_action {
            Some(action) => action,
            None => 0,
        };
        key(self.opcode, action)
    }
}

const fn key(opcode: u8, service_action: u16) -> u32 {
    (opcode as u32) << 16 | service_action as u32
}

/// Returns the service action of a CDB whose operation code has service actions; `None` if the CDB
/// ends before it.
pub(crate) fn service_action(cdb: &[u8]) -> Option<u16> {
    match *cdb.first()? {
        VARIABLE_LENGTH_CDB => u16_at(cdb, VARIABLE_SERVICE_ACTION),
        _ => Some(u16::from(cdb.get(1)? & 0x1f)),
    }
}

impl<C> OperationRow<C> {
    /// Makes a table row. `parse` receives a CDB with as many bytes as the usage data has.
    #[must_use]
    pub const fn new(entry: OperationCodeEntry, parse: CdbParser<C>) -> Self {
        Self { entry, parse }
    }

    /// Sets the service action of a command whose CDB has it in bits 4-0 of byte 1. The row of a
    /// variable-length CDB has its service action from the entry.
    #[must_use]
    pub const fn with_service_action(mut self, action: u16) -> Self {
        self.entry.service_action = Some(action);
        self
    }

    fn read(&self, cdb: &[u8]) -> Result<C, Sense> {
        let length = self.entry.usage().len();
        let Some(cdb) = cdb.get(..length) else {
            return Err(Sense::invalid_field_in_cdb(cdb.len() as u16));
        };
        if let CdbUsage::Long(_) = self.entry.usage {
            return self.read_variable_length(cdb);
        }
        // Refuse NACA (auto contingent allegiance): standard INQUIRY data says NORMACA=0.
        if cdb[length - 1] & NACA != 0 {
            return Err(Sense::invalid_bit_in_cdb(length as u16 - 1, 2));
        }
        (self.parse)(cdb)
    }

    /// Parses a variable-length CDB. `cdb` has exactly as many bytes as the command requires.
    fn read_variable_length(&self, cdb: &[u8]) -> Result<C, Sense> {
        // A CDB that says another length is one of another command, or of another version of the
        // standard, whose fields are at other offsets.
        if usize::from(cdb[ADDITIONAL_CDB_LENGTH]) + ADDITIONAL_CDB_LENGTH + 1 != cdb.len() {
            return Err(Sense::invalid_field_in_cdb(ADDITIONAL_CDB_LENGTH as u16));
        }
        if cdb[1] & NACA != 0 {
            return Err(Sense::invalid_bit_in_cdb(1, 2));
        }
        (self.parse)(cdb)
    }
}

impl<C: 'static> OperationTable<C> {
    /// Makes a table. `rows` must ascend by operation code and service action.
    ///
    /// # Panics
    /// If there are more than 254 rows, or if they do not ascend.
    #[must_use]
    pub const fn new(rows: &'static [OperationRow<C>]) -> Self {
        assert!(rows.len() < NO_ROW as usize, "an index has one byte");
        let mut first = [NO_ROW; 256];
        let mut row = rows.len();
        while row > 0 {
            row -= 1;
            // `parse` finds a service action by binary search.
            let ascends = row == 0 || rows[row - 1].entry.key() < rows[row].entry.key();
            assert!(ascends, "rows ascend by operation code and service action");
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
            let asked = key(opcode, service_action(cdb)?);
            row = &rows[rows.binary_search_by_key(&asked, |row| row.entry.key()).ok()?];
        }
        Some(row.read(cdb))
    }

    /// Returns true if the table contains a command with this operation code.
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
    match cdb.first() {
        Some(opcode) if !has_opcode(*opcode) => Sense::INVALID_COMMAND_OPERATION_CODE,
        Some(&VARIABLE_LENGTH_CDB) => Sense::invalid_field_in_cdb(VARIABLE_SERVICE_ACTION as u16),
        Some(_) => Sense::invalid_bit_in_cdb(1, 4),
        None => Sense::INVALID_COMMAND_OPERATION_CODE,
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

/// Makes a row for a command that processes the whole unit before it answers, unless IMMED=1. The
/// recommended time-out is one day.
pub(crate) const fn long<C>(usage: &[u8], parse: CdbParser<C>) -> OperationRow<C> {
    OperationRow::new(OperationCodeEntry::new(usage, 60, 24 * 3600), parse)
}

/// Returns the CDB usage data of THIRD-PARTY COPY OUT. `list` is 0xff if the CDB has a list
/// identifier, otherwise 0.
pub(crate) const fn copy_out(list: u8) -> [u8; 16] {
    let f = 0xff;
    [0x83, 0x1f, 0, 0, 0, 0, list, list, list, list, f, f, f, f, 0, NACA]
}

/// VARIABLE LENGTH CDB: the operation code of CDBs with up to 260 bytes (SPC-4, 4.2.3). CONTROL is
/// byte 1, ADDITIONAL CDB LENGTH byte 7, and the service action bytes 8 and 9.
pub const VARIABLE_LENGTH_CDB: u8 = 0x7f;
/// Index of the byte in a variable-length CDB that counts the bytes after it.
const ADDITIONAL_CDB_LENGTH: usize = 7;
/// The first byte of the service action of a variable-length CDB.
const VARIABLE_SERVICE_ACTION: usize = 8;
/// The NACA bit of the CONTROL byte, which requests auto contingent allegiance (SAM-5, 5.2).
pub(crate) const NACA: u8 = 0x04;
/// The index of an operation code that has no row.
const NO_ROW: u8 = u8::MAX;
