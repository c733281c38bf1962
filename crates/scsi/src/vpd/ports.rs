//! Page 88h: SCSI ports (SPC-4, 7.8.13).

use super::{identification::Designator, page::framed};

/// The target ports through which the unit is reached.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScsiPorts(pub Vec<TargetPort>);

/// A target port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetPort {
    /// RELATIVE PORT IDENTIFIER, 1 to 65,535.
    pub number: u16,
    /// Its names.
    pub names: Vec<Designator>,
}

impl ScsiPorts {
    /// The page's code.
    pub const PAGE: u8 = 0x88;

    /// The page, header included.
    ///
    /// # Panics
    /// If the page has more than 65,535 bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        for port in &self.0 {
            let mut names = Vec::new();
            port.names.iter().for_each(|name| name.append_to(&mut names));
            let [high, low] = port.number.to_be_bytes();
            // No TransportID of an initiator port: none of ours is one.
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
