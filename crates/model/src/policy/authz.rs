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
}

/// May `who` see and use this sandbox?
pub fn sandbox(who: &Principal, lease: &Lease) -> Result<(), Denied> {
    tenant(who, &lease.tenant)
}

/// May `who` act for this tenant?
pub fn tenant(who: &Principal, tenant: &TenantId) -> Result<(), Denied> {
    match who.scope {
        Scope::Admin => Ok(()),
        Scope::User if who.tenant == *tenant => Ok(()),
        Scope::User => Err(Denied::Invisible),
    }
}

/// May `who` do operations of the whole server?
pub fn admin(who: &Principal) -> Result<(), Denied> {
    match who.scope {
        Scope::Admin => Ok(()),
        Scope::User => Err(Denied::NeedsAdmin),
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
}
