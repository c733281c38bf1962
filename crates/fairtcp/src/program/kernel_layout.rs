//! Reads from the running kernel's BTF where the fields are that the programs use.

use crate::{
    Error,
    btf::{Btf, TypeId},
};

/// The position of a bit field within one byte of a kernel structure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bits {
    /// The offset of the byte in the structure.
    pub byte: i16,
    /// Position of the field's lowest bit in its byte.
    pub shift: u8,
    /// The mask of the bits, to be applied after the shift to the right.
    pub mask: u8,
}

/// Offsets in bytes in `struct tcp_sock`; from `acked_sacked` on, in `struct rate_sample`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Fields {
    pub snd_cwnd: i16,
    pub snd_ssthresh: i16,
    pub snd_cwnd_clamp: i16,
    pub prior_cwnd: i16,
    pub prr_out: i16,
    pub packets_out: i16,
    pub sacked_out: i16,
    pub lost_out: i16,
    pub retrans_out: i16,
    pub max_packets_out: i16,
    pub srtt_us: i16,
    pub rttvar_us: i16,
    pub mss_cache: i16,
    pub write_seq: i16,
    pub snd_nxt: i16,
    /// Says if the kernel paces the socket by `pacing_rate`, and which component of the kernel does
    /// so.
    pub pacing_status: i16,
    /// The offset of a field of 8 bytes; so are the next two offsets.
    pub pacing_rate: i16,
    pub max_pacing_rate: i16,
    /// The time of the last acknowledgment, in microseconds.
    pub tcp_mstamp: i16,
    pub is_cwnd_limited: Bits,
    pub ca_state: Bits,
    /// Offset of the congestion control's private state in a socket (`icsk_ca_priv`).
    pub private: i16,
    pub acked_sacked: i16,
    pub losses: i16,
    pub prior_in_flight: i16,
    pub delivered: i16,
    /// The offset of a field of 8 bytes; so are the next two offsets.
    pub prior_mstamp: i16,
    pub interval_us: i16,
    pub rtt_us: i16,
    /// The offset of a field of 1 byte.
    pub is_app_limited: i16,
}

/// The properties of the kernel for which programs are assembled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Kernel {
    pub fields: Fields,
    /// True if `cong_control` gets the acknowledged sequence number and the flags of the
    /// acknowledgment (since Linux 6.10).
    pub control_gets_flags: bool,
    /// The BTF number of the kernel's `tcp_reno_ssthresh`.
    pub reno_ssthresh: u32,
    /// The BTF number of the kernel's `tcp_reno_cong_avoid`.
    pub reno_cong_avoid: u32,
}

impl Kernel {
    /// Reads the layout of the structures from the kernel's BTF.
    ///
    /// # Errors
    /// [`Error::OtherTcp`]: a field is missing or has another size than the programs expect.
    pub fn read(btf: &Btf) -> Result<Self, Error> {
        let function = |name: &str| btf.function(name).ok_or_else(|| other(name));
        let operations = structure(btf, "tcp_congestion_ops")?;
        let arguments = btf.arguments(operations, "cong_control");
        Ok(Self {
            fields: Fields::read(btf)?,
            control_gets_flags: match arguments {
                Some(4) => true,
                Some(2) => false,
                _ => return Err(other("tcp_congestion_ops.cong_control")),
            },
            reno_ssthresh: function("tcp_reno_ssthresh")?,
            reno_cong_avoid: function("tcp_reno_cong_avoid")?,
        })
    }
}

impl Fields {
    fn read(btf: &Btf) -> Result<Self, Error> {
        let tcp_sock = structure(btf, "tcp_sock")?;
        let rate_sample = structure(btf, "rate_sample")?;
        let word = |name| bytes(btf, tcp_sock, name, 4);
        let bits = |name| bits(btf, tcp_sock, name);
        Ok(Self {
            snd_cwnd: word("snd_cwnd")?,
            snd_ssthresh: word("snd_ssthresh")?,
            snd_cwnd_clamp: word("snd_cwnd_clamp")?,
            prior_cwnd: word("prior_cwnd")?,
            prr_out: word("prr_out")?,
            packets_out: word("packets_out")?,
            sacked_out: word("sacked_out")?,
            lost_out: word("lost_out")?,
            retrans_out: word("retrans_out")?,
            max_packets_out: word("max_packets_out")?,
            srtt_us: word("srtt_us")?,
            rttvar_us: word("rttvar_us")?,
            mss_cache: word("mss_cache")?,
            write_seq: word("write_seq")?,
            snd_nxt: word("snd_nxt")?,
            pacing_status: word("inet_conn.icsk_inet.sk.sk_pacing_status")?,
            pacing_rate: bytes(btf, tcp_sock, "inet_conn.icsk_inet.sk.sk_pacing_rate", 8)?,
            max_pacing_rate: bytes(btf, tcp_sock, "inet_conn.icsk_inet.sk.sk_max_pacing_rate", 8)?,
            tcp_mstamp: bytes(btf, tcp_sock, "tcp_mstamp", 8)?,
            is_cwnd_limited: bits("is_cwnd_limited")?,
            ca_state: bits("inet_conn.icsk_ca_state")?,
            // Since Linux 4.12 the private state has 104 bytes (ICSK_CA_PRIV_SIZE).
            private: bytes(btf, tcp_sock, "inet_conn.icsk_ca_priv", 104)?,
            acked_sacked: bytes(btf, rate_sample, "acked_sacked", 4)?,
            losses: bytes(btf, rate_sample, "losses", 4)?,
            prior_in_flight: bytes(btf, rate_sample, "prior_in_flight", 4)?,
            delivered: bytes(btf, rate_sample, "delivered", 4)?,
            prior_mstamp: bytes(btf, rate_sample, "prior_mstamp", 8)?,
            interval_us: bytes(btf, rate_sample, "interval_us", 8)?,
            rtt_us: bytes(btf, rate_sample, "rtt_us", 8)?,
            is_app_limited: bytes(btf, rate_sample, "is_app_limited", 1)?,
        })
    }
}

fn other(what: &str) -> Error {
    Error::OtherTcp(what.to_owned())
}

pub(crate) fn structure(btf: &Btf, name: &str) -> Result<TypeId, Error> {
    btf.structure(name).ok_or_else(|| other(name))
}

/// Returns the offset of a field that consists of `length` whole bytes.
fn bytes(btf: &Btf, id: TypeId, path: &str, length: u32) -> Result<i16, Error> {
    let field = btf.field(id, path).filter(|it| it.length_bits == 8 * length);
    let field = field.filter(|it| it.offset_bits % 8 == 0).ok_or_else(|| other(path))?;
    i16::try_from(field.offset_bits / 8).map_err(|_| other(path))
}

/// Finds a bit field of a kernel structure, which must lie within one byte.
fn bits(btf: &Btf, id: TypeId, path: &str) -> Result<Bits, Error> {
    let field = btf.field(id, path).ok_or_else(|| other(path))?;
    let shift = field.offset_bits % 8;
    if field.length_bits == 0 || shift + field.length_bits > 8 {
        return Err(other(path));
    }
    Ok(Bits {
        byte: i16::try_from(field.offset_bits / 8).map_err(|_| other(path))?,
        shift: shift as u8,
        mask: (0xffu16 >> (8 - field.length_bits)) as u8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test needs no privileges, only a kernel with BTF. Without BTF it prints a message and
    /// passes.
    #[test]
    fn the_running_kernel_has_all_required_fields() {
        match Btf::of_this_kernel() {
            Ok(btf) => {
                let kernel = Kernel::read(&btf).unwrap();
                assert_eq!(kernel.fields.ca_state.mask.count_ones(), 5);
                assert_eq!(kernel.fields.is_cwnd_limited.mask, 1);
            }
            Err(error) => println!("not run: {error}"),
        }
    }
}
