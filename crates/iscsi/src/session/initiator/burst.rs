//! Sequences of Data-Out PDUs: unsolicited data that follows a command, and solicited data that an
//! R2T requests.

use super::{InitiatorSessionError, task::InitiatorTask};
use crate::{
    Itt, Ttt,
    keys::Parameters,
    pdu::{DataOut, ReadyToTransfer, ScsiCommand},
};

/// A sequence of Data-Out PDUs that is being sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct DataOutBurst {
    pub(super) itt: Itt,
    /// The tag of the R2T; NONE if unsolicited.
    pub(super) ttt: Ttt,
    lun: scsi::Lun,
    next: u32,
    end: u32,
    data_sn: u32,
}

impl DataOutBurst {
    /// Moves at most `segment` bytes of `data` into `command` as immediate data. Returns the burst
    /// of unsolicited data that follows the command, if any.
    pub(super) fn begin(
        command: &mut ScsiCommand,
        data: &bytes::Bytes,
        parameters: &Parameters,
        segment: u32,
    ) -> Option<Self> {
        let length = data.len() as u32;
        let first = length.min(parameters.first_burst_length);
        let mut next = 0;
        if parameters.immediate_data {
            next = first.min(segment);
            command.data = data.slice(..next as usize);
        }
        let end = if parameters.initial_r2t { next } else { first };
        command.is_final = next == end;
        (next < end).then_some(Self {
            itt: command.itt,
            ttt: Ttt::NONE,
            lun: scsi::Lun(0),
            next,
            end,
            data_sn: 0,
        })
    }

    /// Returns the burst that an R2T requests, or an error if the R2T is invalid.
    pub(super) fn solicited(
        r2t: &ReadyToTransfer,
        task: &InitiatorTask,
        parameters: &Parameters,
    ) -> Result<Self, InitiatorSessionError> {
        let Some(data) = task.request.transfer.data_out() else {
            return Err(InitiatorSessionError::Protocol("an R2T for a command that sends no data"));
        };
        let length = r2t.desired_data_transfer_length;
        let end = r2t.buffer_offset.checked_add(length);
        if r2t.ttt == Ttt::NONE {
            return Err(InitiatorSessionError::Protocol("an R2T without a tag"));
        }
        if length == 0 || length > parameters.max_burst_length {
            return Err(InitiatorSessionError::Protocol(
                "an R2T for zero bytes or more than MaxBurstLength",
            ));
        }
        // From error recovery level 1 on, a target may request lost data again (recovery R2T, RFC
        // 7143, 7.8).
        if r2t.buffer_offset != task.sent && parameters.error_recovery_level == 0 {
            return Err(InitiatorSessionError::Protocol("an R2T out of order"));
        }
        let Some(end) = end.filter(|&end| end as usize <= data.len()) else {
            return Err(InitiatorSessionError::Protocol("an R2T beyond the end of the data"));
        };
        if task.open_r2ts >= parameters.max_outstanding_r2t {
            return Err(InitiatorSessionError::Protocol("more R2Ts than MaxOutstandingR2T"));
        }
        Ok(Self {
            itt: r2t.itt,
            ttt: r2t.ttt,
            lun: r2t.lun,
            next: r2t.buffer_offset,
            end,
            data_sn: 0,
        })
    }

    /// Returns the byte offset in the command's data at which this burst ends.
    pub(super) fn end(&self) -> u32 {
        self.end
    }

    /// Returns the next PDU, with at most `limit` bytes of data. The caller sets `exp_stat_sn`. The
    /// last PDU of the burst has the F bit.
    pub(super) fn next_pdu(&mut self, data: &bytes::Bytes, limit: u32) -> DataOut {
        let stop = self.end.min(self.next.saturating_add(limit));
        let pdu = DataOut {
            is_final: stop == self.end,
            lun: self.lun,
            itt: self.itt,
            ttt: self.ttt,
            exp_stat_sn: crate::Serial(0),
            data_sn: self.data_sn,
            buffer_offset: self.next,
            data: data.slice(self.next as usize..stop as usize),
        };
        self.next = stop;
        self.data_sn += 1;
        pdu
    }
}
