//! The permissions that a command needs for its lists of attributes, besides those for the command itself.

use object::{
    Attribute, AttributeId, AttributeSelection, CURRENT_COMMAND, ObjectType, StandardPage,
};
use osd::{Capability, PERMISSIONS_IN_CDB, Permissions};

use super::{
    key_store::FROZEN_AUDITS,
    refused::{Refused, RefusedReason},
};

/// The attributes page of request tags, by which a client finds the result of a command after it has lost its session.
pub const REQUEST_TAGS: u32 = 0xf001_0000;
/// The attribute whose value is the request tag of the command that sets it.
pub const REQUEST_TAG: AttributeId = AttributeId::new(REQUEST_TAGS, 1);

/// The attributes page of a user object that lists the collections of which it is a member.
const MEMBERSHIP: u32 = StandardPage::Collections.of(ObjectType::UserObject);

/// Checks that a capability permits to set and to return these attributes.
///
/// # Errors
/// 5/24/00 with a pointer to the permissions.
pub fn check(
    capability: &Capability,
    set: &[Attribute],
    get: &[AttributeSelection],
) -> Result<(), Refused> {
    let needed = set.iter().map(|attribute| needed_to_set(attribute.id));
    let needed = needed.chain(get.iter().copied().map(needed_to_get));
    let missing = |needed| !capability.permissions.contain(needed);
    if needed.into_iter().any(missing) {
        return Err(Refused::at(RefusedReason::Permissions, usize::from(PERMISSIONS_IN_CDB)));
    }
    Ok(())
}

fn needed_to_set(id: AttributeId) -> Permissions {
    match id {
        // A request tag only names the command, and changes no attribute.
        REQUEST_TAG => Permissions::NONE,
        id if is_security_page(id.page) => {
            Permissions::SET_ATTRIBUTES | Permissions::POLICY_SECURITY
        }
        // Setting this attribute changes the members of a collection that the capability does not name, and the answer
        // shows whether the collection exists.
        id if id.page == MEMBERSHIP => Permissions::SET_ATTRIBUTES | Permissions::GLOBAL,
        _ => Permissions::SET_ATTRIBUTES,
    }
}

fn needed_to_get(selection: AttributeSelection) -> Permissions {
    match selection {
        AttributeSelection::One(AttributeId { page, .. })
        | AttributeSelection::Page(page)
        | AttributeSelection::PageFormat(page) => match page {
            // These pages only have results of this command, or of a command whose random tag the client knows.
            CURRENT_COMMAND | REQUEST_TAGS => Permissions::NONE,
            page if is_security_page(page) => {
                Permissions::GET_ATTRIBUTES | Permissions::POLICY_SECURITY
            }
            _ => Permissions::GET_ATTRIBUTES,
        },
        // These selections include the policy/security pages.
        AttributeSelection::All | AttributeSelection::NumberInAllPages(_) => {
            Permissions::GET_ATTRIBUTES | Permissions::POLICY_SECURITY
        }
    }
}

/// Returns true for the policy/security page of any object type, and for frozen audit values.
fn is_security_page(page: u32) -> bool {
    let types =
        [ObjectType::Root, ObjectType::Partition, ObjectType::Collection, ObjectType::UserObject];
    page == FROZEN_AUDITS || types.map(|kind| StandardPage::PolicySecurity.of(kind)).contains(&page)
}
