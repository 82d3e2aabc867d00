//! Secrets that programs know by a placeholder: a variable of the sandbox contains it, and the egress proxy replaces it
//! by the value in headers of requests to the hosts of the secret.
//!
//! ```text
//! inside: API_KEY=atoll_secret_4f…  ─► Authorization: Bearer atoll_secret_4f…  ─► gate ─► Bearer the-value   (api.example.com)
//!                                                                              └─────► as it is             (every other host)
//! ```

use std::collections::BTreeMap;

use atoll_model::policy::egress::Replacement;
use atoll_model::{AttachedSecret, Code, DomainPattern, Lease, SecretId, TenantId};
use atoll_store::SecretRecord;

use crate::ServiceError;
use crate::base::ServiceBase;

const PURPOSE: &str = "secret-placeholder";
const PREFIX: &str = "atoll_secret_";

/// The secrets of a sandbox as its lease may contain them.
pub(crate) async fn attached(
    inner: &ServiceBase,
    tenant: &TenantId,
    asked: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, AttachedSecret>, ServiceError> {
    if asked.is_empty() {
        return Ok(BTreeMap::new());
    }
    let bad = |message: String, hint: &str| ServiceError::new(Code::InvalidRequest, message).hint(hint);
    let known = inner.store.secrets(tenant).await?;
    let mut attached = BTreeMap::new();
    for (variable, name) in asked {
        let record = known.iter().find(|record| record.name == *name).ok_or_else(|| {
            let hint = "create it first: POST /v1/secrets, or atoll secret create";
            bad(format!("secrets: there is no secret {name}"), hint)
        })?;
        if hosts(record).is_none_or(|hosts| hosts.is_empty()) {
            let message = format!("secrets: {name} does not say which hosts may get its value");
            return Err(bad(message, "give the secret hosts such as api.example.com or *.example.com"));
        }
        let placeholder = placeholder(inner, &record.id);
        attached.insert(variable.clone(), AttachedSecret { name: name.clone(), placeholder });
    }
    Ok(attached)
}

pub(crate) fn placeholder(inner: &ServiceBase, secret: &SecretId) -> String {
    let key = inner.store.derive(PURPOSE, secret.as_str());
    format!("{PREFIX}{}", hex::encode(&key[..20]))
}

/// The hosts that may get the value; `None` if one of them is not a host, or matches all hosts.
fn hosts(record: &SecretRecord) -> Option<Vec<DomainPattern>> {
    let parsed = record.about.hosts.iter().map(|host| host.parse().ok().filter(|host| !is_every(host)));
    parsed.collect()
}

fn is_every(host: &DomainPattern) -> bool {
    host.to_string() == "*"
}

/// The replacements for a lease. A secret that was deleted, or has no valid hosts any more, is not replaced.
pub(super) async fn replacements(
    inner: &ServiceBase,
    lease: &Lease,
) -> Result<Vec<Replacement>, ServiceError> {
    if lease.secrets.is_empty() {
        return Ok(Vec::new());
    }
    let known = inner.store.secrets(&lease.tenant).await?;
    let values = inner.store.secret_values(&lease.tenant).await?;
    let mut all: Vec<Replacement> = Vec::with_capacity(lease.secrets.len());
    for AttachedSecret { name, placeholder } in lease.secrets.values() {
        if all.iter().any(|one| one.placeholder == *placeholder) {
            continue;
        }
        let hosts = known.iter().find(|record| record.name == *name).and_then(hosts);
        match (hosts, values.get(name)) {
            (Some(hosts), Some(value)) => {
                all.push(Replacement { hosts, placeholder: placeholder.clone(), value: value.to_owned() });
            }
            _ => {
                tracing::warn!(sandbox = %lease.id, secret = name, "a placeholder is not replaced: its secret was deleted, or a host of the secret is not a valid name");
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_goes_to_named_hosts_only() {
        let of = |names: &[&str]| {
            let about = atoll_store::SecretAbout {
                hosts: names.iter().map(|name| (*name).to_owned()).collect(),
                ..atoll_store::SecretAbout::default()
            };
            let record = SecretRecord {
                name: "A".to_owned(),
                created_at_ms: 0,
                rotated_at_ms: None,
                id: SecretId::from_entropy([1; 20]),
                version: 1,
                changed_at_ms: 0,
                about,
                used_by: 0,
            };
            hosts(&record).map(|hosts| hosts.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(
            of(&["API.example.com", "*.example.org"]).as_deref(),
            Some(&["api.example.com".to_owned(), "*.example.org".to_owned()][..])
        );
        for bad in [&["*"][..], &["api.example.com", "*"], &["10.0.0.1"], &["example.com:443"], &["com"]] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }
}
