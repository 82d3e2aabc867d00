//! Authorisation. A key sees the objects of its tenant, the admin key sees all.

use crate::{Lease, Principal, Scope, TenantId};

/// The caller may not do this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It belongs to another tenant; the response is the same as for an object that does not exist.
    #[error("not visible to this key")]
    Invisible,
    /// The admin scope is required.
    #[error("this request needs a key with scope admin")]
    NeedsAdmin,
    /// It gives rights on the machine, which membership of a group does not.
    #[error(
        "members of the group atoll may not use sandboxes without isolation or folders of the host; this needs root or an admin key"
    )]
    NeedsRoot,
}

/// May `who` see and use this sandbox?
pub fn sandbox(who: &Principal, lease: &Lease) -> Result<(), Denied> {
    tenant(who, &lease.tenant)
}

/// May `who` act for this tenant?
pub fn tenant(who: &Principal, tenant: &TenantId) -> Result<(), Denied> {
    match who.scope {
        Scope::Admin => Ok(()),
        Scope::User | Scope::Member if who.tenant == *tenant => Ok(()),
        Scope::User | Scope::Member => Err(Denied::Invisible),
    }
}

/// May `who` do operations of the whole server?
pub fn admin(who: &Principal) -> Result<(), Denied> {
    match who.scope {
        Scope::Admin => Ok(()),
        Scope::User | Scope::Member => Err(Denied::NeedsAdmin),
    }
}

/// May `who` use what gives rights on the machine of the server: sandboxes without isolation, and folders of the host?
pub fn host(who: &Principal) -> Result<(), Denied> {
    match who.scope {
        Scope::Admin | Scope::User => Ok(()),
        Scope::Member => Err(Denied::NeedsRoot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyId;

    fn who(scope: Scope, tenant: u8) -> Principal {
        Principal {
            key: KeyId::from_entropy([9; 20]),
            key_name: None,
            tenant: TenantId::from_entropy([tenant; 20]),
            scope,
        }
    }

    #[test]
    fn a_user_key_sees_its_own_tenant_and_an_admin_key_all() {
        let other = TenantId::from_entropy([2; 20]);
        assert_eq!(tenant(&who(Scope::User, 1), &other), Err(Denied::Invisible));
        assert_eq!(tenant(&who(Scope::User, 2), &other), Ok(()));
        assert_eq!(tenant(&who(Scope::Admin, 1), &other), Ok(()));
        assert_eq!(admin(&who(Scope::User, 1)), Err(Denied::NeedsAdmin));
    }

    #[test]
    fn a_member_is_a_user_without_rights_on_the_machine() {
        let member = who(Scope::Member, 2);
        assert_eq!(tenant(&member, &member.tenant), Ok(()));
        assert_eq!(tenant(&member, &TenantId::from_entropy([1; 20])), Err(Denied::Invisible));
        assert_eq!((admin(&member), host(&member)), (Err(Denied::NeedsAdmin), Err(Denied::NeedsRoot)));
        assert_eq!((host(&who(Scope::User, 1)), host(&who(Scope::Admin, 1))), (Ok(()), Ok(())));
    }
}
