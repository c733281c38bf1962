//! Converts a refusal, or an error of the store, to a status and sense data. No other module does this.

use object::{ObjectAddress, ObjectError};
use osd::{
    Refusal,
    security::{SecurityMethod, response_of_sense},
};
use scsi::{ObjectIdentification, ObjectSense, ScsiStatus, Sense, SenseKey};
use unit::Completion;
use volume::Data;

use crate::{
    error_sense::sense_of,
    security::{Proof, Refused, SetKeyError},
};

/// The reason why a command does not end with status GOOD.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Failure {
    pub sense: Sense,
    /// Page and number of each attribute that has caused the error.
    pub attributes: Vec<(u32, u32)>,
    /// True if the command had its effect although it ends with sense data.
    pub is_completed: bool,
}

impl Failure {
    #[must_use]
    pub const fn new(sense: Sense) -> Self {
        Self { sense, attributes: Vec::new(), is_completed: false }
    }

    /// Returns the sense data of a READ beyond the end of the object, which returned `read` bytes.
    #[must_use]
    pub fn read_past_end(read: u64) -> Self {
        let mut sense = Sense::new(SenseKey::RecoveredError, 0x3b, 0x17);
        sense.command_specific = Some(read);
        Self { is_completed: true, ..Self::new(sense) }
    }

    /// Returns the completion of a command, with `data_in` and, if the security method requires one, a response
    /// integrity check value for this nonce.
    #[must_use]
    pub fn completion(
        self,
        object: ObjectAddress,
        proof: Option<(&Proof, osd::security::Nonce)>,
        data_in: Data,
    ) -> Completion {
        let sense = Sense { descriptor_format: true, ..self.sense };
        let (not_initiated, completed) =
            if self.is_completed { (0, ALL_FUNCTIONS) } else { (ALL_FUNCTIONS, 0) };
        let ObjectAddress { partition, object } = object;
        let object = ObjectIdentification { not_initiated, completed, partition, object };
        let mut descriptors = ObjectSense {
            object: Some(object),
            response_integrity: None,
            attributes: self.attributes,
        };
        if let Some((Proof { method, signed: Some(signed) }, nonce)) = proof
            && *method >= SecurityMethod::CmdRsp
        {
            descriptors.response_integrity = Some([0; 32]);
            if let (bytes, Some(at)) = descriptors.encode(&sense) {
                let status = ScsiStatus::CheckCondition as u8;
                let value = response_of_sense(&signed.key, nonce, status, &bytes, at);
                descriptors.response_integrity = Some(value.0);
            }
        }
        Completion {
            object_sense: Some(Box::new(descriptors)),
            data_in,
            ..Completion::check_condition(sense)
        }
    }
}

impl From<Sense> for Failure {
    fn from(sense: Sense) -> Self {
        Self::new(sense)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        refusal.sense().into()
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Capability(_, refusal) => refusal.into(),
            Refused::Store(error) => error.into(),
        }
    }
}

impl From<SetKeyError> for Failure {
    fn from(error: SetKeyError) -> Self {
        match error {
            // Point to KEY TO SET: the key from which the new key is derived is not set.
            SetKeyError::NoParent => Sense::invalid_field_in_cdb(11).into(),
            SetKeyError::Store(error) => error.into(),
        }
    }
}

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        let attributes = match error {
            ObjectError::InvalidAttribute { page, number } => vec![(page, number)],
            _ => Vec::new(),
        };
        Self { attributes, ..sense_of(&error).into() }
    }
}

/// The bits of the OSD object identification descriptor for all functions of a command: its validation, the command
/// itself, its attributes lists and their checks.
const ALL_FUNCTIONS: u32 = 0xb010_3030;

#[cfg(test)]
mod tests {
    use object::RefusedField;

    use super::*;

    #[test]
    fn each_error_of_the_store_has_its_sense_data() {
        let object = ObjectAddress::new(0x10000, 0x10001);
        let partition = ObjectAddress::partition(0x10000);
        let sense = |error: ObjectError| {
            let sense = Failure::from(error).sense;
            (sense.key as u8, sense.asc, sense.ascq, sense.field.map(|field| field.byte))
        };
        let no_such = |object| ObjectError::NoSuchObject { object };
        assert_eq!(sense(no_such(object)), (5, 0x24, 0, Some(24)));
        assert_eq!(sense(no_such(partition)), (5, 0x24, 0, Some(16)));
        assert_eq!(sense(ObjectError::Exists { object }), (5, 0x24, 0, Some(24)));
        assert_eq!(sense(ObjectError::NotEmpty { object }), (5, 0x2c, 0x0a, None));
        let field = RefusedField::Start;
        assert_eq!(sense(ObjectError::InvalidField { field }), (5, 0x24, 0, Some(40)));
        let quota = ObjectError::Quota { used: 1, limit: 1 };
        assert_eq!(sense(quota), (5, 0x55, 0x07, None));
        let damaged = ObjectError::Damaged { object, range: 4096..8192 };
        assert_eq!(sense(damaged.clone()), (3, 0x11, 0, None));
        assert_eq!(Failure::from(damaged).sense.information, Some(4096));
        assert_eq!(sense(ObjectError::FormatInProgress), (2, 0x04, 0x04, None));
        assert_eq!(sense(ObjectError::Storage("x".into())), (4, 0x44, 0, None));
        assert_eq!(sense(ObjectError::Unsupported), (5, 0x20, 0, None));
        let attribute = Failure::from(ObjectError::InvalidAttribute { page: 1, number: 2 });
        assert_eq!((attribute.sense.asc, attribute.attributes), (0x26, vec![(1, 2)]));
    }

    #[test]
    fn a_read_past_the_end_reports_the_bytes_read_as_recovered_error() {
        let object = ObjectAddress::new(0x10000, 0x10001);
        let completion = Failure::read_past_end(7).completion(object, None, Data::from(vec![1; 7]));
        let sense = completion.sense.unwrap();
        assert_eq!((sense.key, sense.asc, sense.ascq), (SenseKey::RecoveredError, 0x3b, 0x17));
        assert_eq!(sense.command_specific, Some(7));
        assert!(sense.descriptor_format);
        let object = completion.object_sense.unwrap().object.unwrap();
        assert_eq!((object.not_initiated, object.completed), (0, ALL_FUNCTIONS));
        assert_eq!((object.partition, object.object), (0x10000, 0x10001));
        assert_eq!(completion.data_in.len(), 7);
    }
}
