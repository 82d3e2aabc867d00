//! The key of the one kind of object that there is: `ORGANISATION/HASH/context.tar`.

use atoll_model::TenantId;
use atoll_service::UploadHash;

use super::Refused;

/// The context of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectKey {
    tenant: TenantId,
    hash: UploadHash,
}

impl ObjectKey {
    /// A key of this tenant.
    pub(super) fn parse(key: &str, tenant: &TenantId) -> Result<Self, Refused> {
        Self::of_prefix(key.strip_suffix("context.tar").ok_or(Refused::BadKey)?, tenant)
    }

    /// `ORGANISATION/HASH/`.
    pub(super) fn of_prefix(prefix: &str, tenant: &TenantId) -> Result<Self, Refused> {
        let mut parts = prefix.split('/');
        let (Some(organisation), Some(hash), Some(""), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Refused::BadKey);
        };
        if organisation != tenant.as_str() {
            return Err(Refused::Denied);
        }
        let hash = hash.parse().map_err(|_| Refused::BadKey)?;
        Ok(Self { tenant: tenant.clone(), hash })
    }

    pub(super) fn hash(&self) -> &UploadHash {
        &self.hash
    }

    pub(super) fn text(&self) -> String {
        format!("{}/{}/context.tar", self.tenant, self.hash.as_str())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_of_its_tenant_and_leads_nowhere_else() {
        let tenant = TenantId::from_entropy([3; 20]);
        let hash = "ab".repeat(16);
        assert!(ObjectKey::parse(&format!("{tenant}/{hash}/context.tar"), &tenant).is_ok());
        for (key, wanted) in [
            (format!("{tenant}/{hash}/other"), Refused::BadKey),
            (format!("x/{hash}/context.tar"), Refused::Denied),
            (format!("{tenant}/../context.tar"), Refused::BadKey),
            (format!("{tenant}/{hash}/a/context.tar"), Refused::BadKey),
            (format!("{tenant}//context.tar"), Refused::BadKey),
            ("context.tar".to_owned(), Refused::BadKey),
        ] {
            assert_eq!(ObjectKey::parse(&key, &tenant), Err(wanted), "{key}");
        }
    }

    #[test]
    fn a_key_that_is_read_is_written_back_the_same() {
        let tenant: TenantId = "abcdefghij0123456789".parse().unwrap();
        atoll_robustness::check("object_key", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(key) = ObjectKey::parse(&text, &tenant) {
                assert_eq!(key.text(), text);
            }
        });
    }
}
