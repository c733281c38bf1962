//! Attributes whose values the unit knows and the store does not: the clock, and the policy/security pages of root and
//! partitions.

use bytes::Bytes;
use object::{
    Attribute, AttributeId, AttributeSelection, ObjectAddress, ObjectError, ObjectReply,
    ObjectType, StandardPage,
};
use osd::security::Algorithm;

use crate::{
    backing::DriveBacking,
    security::{KeyStoreError, Security},
};

/// Attributes of the policy/security pages that OSD-2 lets clients set, but the unit refuses: the settings of the unit
/// decide instead, so a value that a client sets would have no effect.
const FIXED: [AttributeId; 6] = [
    AttributeId::new(ROOT, 0x1),
    AttributeId::new(ROOT, 0x6),
    AttributeId::new(ROOT, 0x9),
    AttributeId::new(PARTITION, 0x1),
    AttributeId::new(PARTITION, 0x2),
    AttributeId::new(PARTITION, 0x3),
];

/// Refuses to set an attribute that the settings of the unit decide.
///
/// # Errors
/// [`ObjectError::InvalidAttribute`].
pub fn check_set(set: &[Attribute]) -> Result<(), ObjectError> {
    match set.iter().find(|attribute| FIXED.contains(&attribute.id)) {
        Some(Attribute { id: AttributeId { page, number }, .. }) => {
            Err(ObjectError::InvalidAttribute { page: *page, number: *number })
        }
        None => Ok(()),
    }
}

/// Adds the values that the unit knows to the reply to a command on `object`, if `get` selects them.
///
/// # Errors
/// The keys of the partition cannot be read.
pub async fn put(
    security: &Security,
    store: &impl DriveBacking,
    object: ObjectAddress,
    get: &[AttributeSelection],
    reply: &mut ObjectReply,
) -> Result<(), ObjectError> {
    let pages: &[u32] = match object.known_type() {
        Some(ObjectType::Root) => &[ROOT, CLOCK.page],
        Some(ObjectType::Partition) => &[PARTITION],
        _ => return Ok(()),
    };
    let is_asked = get.iter().any(|selection| match selection {
        AttributeSelection::One(id) => pages.contains(&id.page),
        AttributeSelection::Page(page) => pages.contains(page),
        AttributeSelection::All | AttributeSelection::NumberInAllPages(_) => true,
        AttributeSelection::PageFormat(_) => false,
    });
    if !is_asked {
        return Ok(());
    }
    let own = values(security, store, object).await?;
    for own in own {
        let mut found = reply.attributes.iter_mut().filter(|attribute| attribute.id == own.id);
        if let Some(attribute) = found.next() {
            attribute.value = own.value;
            continue;
        }
        let is_missing = get.iter().any(|selection| match selection {
            AttributeSelection::One(_) | AttributeSelection::PageFormat(_) => false,
            AttributeSelection::Page(page) => *page == own.id.page,
            AttributeSelection::All => true,
            AttributeSelection::NumberInAllPages(number) => *number == own.id.number,
        });
        if is_missing {
            reply.attributes.push(own);
        }
    }
    Ok(())
}

/// Returns the values that the unit knows about the root or a partition.
async fn values(
    security: &Security,
    store: &impl DriveBacking,
    object: ObjectAddress,
) -> Result<Vec<Attribute>, ObjectError> {
    let settings = security.settings();
    let now = security.clock().now();
    let page = if object.is_root() { ROOT } else { PARTITION };
    let mut values = Vec::new();
    let mut add = |page, number, value: &[u8]| {
        values.push(Attribute::new(page, number, Bytes::copy_from_slice(value)));
    };
    add(page, 0x1, &[settings.least as u8]);
    let window = security.window();
    add(page, 0x2, &window.oldest.to_bytes());
    add(page, 0x3, &window.newest.to_bytes());
    if object.is_root() {
        add(page, 0x6, &[settings.least as u8]);
        add(page, 0x7, &METHODS.to_be_bytes());
        add(page, 0x9, &now.to_bytes());
        add(CLOCK.page, CLOCK.number, &now.to_bytes());
        if let Some(identifier) = security.keys().root_identifier() {
            add(page, 0x7ffe, &identifier);
        }
        for algorithm in Algorithm::ALL {
            add(page, 0x8000_0000 + algorithm as u32, &[algorithm as u8]);
        }
        return Ok(values);
    }
    let nonces = u16::try_from(settings.nonces).unwrap_or(u16::MAX);
    add(page, 0x4, &nonces.to_be_bytes());
    let guard = security.keys().partition(store, object.partition).await;
    let guard = guard.map_err(|error| match error {
        KeyStoreError::Store(error) => error,
        KeyStoreError::Sealed => ObjectError::Storage(error.to_string()),
    })?;
    if let Some(keys) = &guard.keys {
        add(page, 0x7fff, &keys.partition.identifier);
        for (working, number) in keys.working.iter().zip(0x8000..) {
            if let Some(working) = working {
                add(page, number, &working.identifier);
            }
        }
    }
    Ok(values)
}

const ROOT: u32 = StandardPage::PolicySecurity.of(ObjectType::Root);
const PARTITION: u32 = StandardPage::PolicySecurity.of(ObjectType::Partition);
/// The attribute "clock" of the root, from which clients take the time of nonces.
const CLOCK: AttributeId = AttributeId::new(StandardPage::Information.of(ObjectType::Root), 0x100);
/// Bits of the supported security methods: bit n stands for method n.
const METHODS: u16 = 0x000f;
