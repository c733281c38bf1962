//! REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4, 6.36).

/// The supported task management functions. Forebay never supports QUERY TASK, QUERY TASK SET,
/// QUERY ASYNCHRONOUS EVENT and I_T NEXUS RESET, so they have no field.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TaskFunctions {
    pub abort_task: bool,
    pub abort_task_set: bool,
    pub clear_task_set: bool,
    pub logical_unit_reset: bool,
    pub target_reset: bool,
}

impl TaskFunctions {
    /// Encodes the parameter data of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS. With `extended`
    /// (REPD=1), the timeouts follow, which are zero for "not specified".
    #[must_use]
    pub fn to_bytes(self, extended: bool) -> Vec<u8> {
        let flags = u8::from(self.abort_task) << 7
            | u8::from(self.abort_task_set) << 6
            | u8::from(self.clear_task_set) << 4
            | u8::from(self.logical_unit_reset) << 3
            | u8::from(self.target_reset) << 1;
        let mut bytes = vec![flags, 0, 0, 0];
        if extended {
            bytes[3] = 12;
            bytes.resize(16, 0);
        }
        bytes
    }
}
