//! REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4, 6.36).

/// Which functions there are; QUERY TASK and its like and I_T NEXUS RESET are not among them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TaskFunctions {
    /// ATS: ABORT TASK.
    pub abort_task: bool,
    /// ATSS: ABORT TASK SET.
    pub abort_task_set: bool,
    /// CTSS: CLEAR TASK SET.
    pub clear_task_set: bool,
    /// LURS: LOGICAL UNIT RESET.
    pub logical_unit_reset: bool,
    /// TRS: TARGET RESET.
    pub target_reset: bool,
}

impl TaskFunctions {
    /// The answer; `extended` (REPD) with time-outs, which are not said.
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
