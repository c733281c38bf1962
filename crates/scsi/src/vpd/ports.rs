//! Page 88h: SCSI ports (SPC-4, 7.8.13).

use super::{identification::Designator, page::framed};

/// The target ports through which the unit can be accessed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScsiPorts(pub Vec<TargetPort>);

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetPort {
    /// RELATIVE PORT IDENTIFIER, 1 to 65,535.
    pub number: u16,
    pub names: Vec<Designator>,
}

impl ScsiPorts {
    pub const PAGE: u8 = 0x88;

    /// Encodes page 88h with its header.
    ///
    /// # Panics
    /// If the page is longer than 65,535 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        for port in &self.0 {
            let mut names = Vec::new();
            port.names.iter().for_each(|name| name.append_to(&mut names));
            let [high, low] = port.number.to_be_bytes();
            // The descriptor has no initiator port TransportID: our ports are target ports only.
            rest.extend_from_slice(&[0, 0, high, low, 0, 0, 0, 0, 0, 0]);
            rest.extend_from_slice(&(names.len() as u16).to_be_bytes());
            rest.extend_from_slice(&names);
        }
        framed(Self::PAGE, &rest)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Association, *};

    #[test]
    fn ports_with_their_names() {
        let names = vec![Designator::iscsi_name(Association::TargetPort, "iqn.a,t,0x0001")];
        let bytes = ScsiPorts(vec![TargetPort { number: 1, names }]).to_bytes();
        assert_eq!(
            bytes[..20],
            [0, 0x88, 0, 32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 20, 0x53, 0x98, 0, 16]
        );
        assert_eq!(bytes.len(), 36);
    }
}
