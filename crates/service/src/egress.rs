//! The network policies of sandboxes: checked and encrypted when they are received, and combined for the provider.
//!
//! ```text
//! request ─► check ─► encrypt values ─► lease                       operator ∧ tenant ∧ lease ─► provider
//!                                        └─► decrypt values, insert secrets ────────┘ (in memory only)
//! ```
//!
//! An injected value is in plain text only in a request and in what is passed to a provider; everywhere else it is
//! encrypted, or only a name.

mod attached;
pub(crate) mod log;
mod reload;
pub(crate) mod trust;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use atoll_model::policy::egress::{
    self, BadPolicy, Egress, EgressExplanation, EgressProxy, Injected, OpenedTransform, PolicyLayer, Seed,
    TenantFloor,
};
use atoll_model::{
    HeaderText, Lease, LimitsAsk, NetworkMode, NetworkPolicy, Principal, ProxyCredentials, ProxyKind,
    ProxyUrl, SECRET_BYTES_MAX, SandboxProxy, TenantId, Transform, fill_secrets, secrets_in,
};
use atoll_provider::{Capability, InstanceDemands, Provider};
use atoll_store::SecretValues;

pub(crate) use attached::{attached, placeholder};

use crate::ServiceError;
use crate::sandboxes::{Sandboxes, SandboxesState};

/// The purpose for which the certificate authority of a sandbox is derived.
const AUTHORITY: &str = "egress-ca";

/// The policies of tenants, in memory, because every boot reads them. The service is the only writer.
#[derive(Default)]
pub(crate) struct Layers {
    tenants: RwLock<HashMap<TenantId, Arc<NetworkPolicy>>>,
}

impl Layers {
    pub(crate) fn put(&self, tenant: &TenantId, policy: Option<NetworkPolicy>) {
        let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
        match policy {
            Some(policy) => tenants.insert(tenant.clone(), Arc::new(policy)),
            None => tenants.remove(tenant),
        };
    }

    fn of(&self, tenant: &TenantId) -> Option<Arc<NetworkPolicy>> {
        self.tenants.read().unwrap_or_else(PoisonError::into_inner).get(tenant).cloned()
    }
}

/// The operator's settings for the sandboxes of a tenant.
pub(crate) fn floor<'a>(inner: &'a SandboxesState, tenant: &TenantId) -> &'a TenantFloor {
    inner.config.egress.of(inner.first_tenant.get() == Some(tenant))
}

/// Refuses rules about destinations, and secrets in requests, at a provider that does not enforce them. A bare `deny-all` is
/// left to the provider: an instance without a network keeps it.
pub(crate) fn check_enforced(
    provider: &dyn Provider,
    policy: &NetworkPolicy,
    has_secrets: bool,
) -> Result<(), ServiceError> {
    let has_rules = policy.mode == NetworkMode::Custom || !policy.is_plain() || has_secrets;
    if has_rules && !provider.capabilities().has(Capability::Egress) {
        return Err(provider.missing(Capability::Egress).into());
    }
    Ok(())
}

/// Refuses a sandbox that its provider cannot make as it was requested, before it is recorded. A provider that enforces policies
/// can: it is not asked.
pub(crate) async fn check_demands(
    inner: &SandboxesState,
    provider: &dyn Provider,
    lease: &Lease,
    limits: &LimitsAsk,
) -> Result<(), ServiceError> {
    if provider.capabilities().has(Capability::Egress) {
        return Ok(());
    }
    let network = compiled(inner, lease).await?;
    let limits_asked = *limits != LimitsAsk::default();
    let demands =
        InstanceDemands { network: &network, made_with: None, storage: lease.storage, limits_asked };
    Ok(provider.check_demands(&demands)?)
}

/// What the provider is to enforce for a lease. Holds opened values: it goes to the provider and nowhere else.
pub(crate) async fn compiled(inner: &SandboxesState, lease: &Lease) -> Result<Arc<Egress>, ServiceError> {
    let opened = opened(inner, lease).await?;
    let tenant = inner.layers.of(&lease.tenant);
    let floor = floor(inner, &lease.tenant);
    let mut egress = egress::compile(floor, tenant.as_deref(), &lease.network, &opened);
    if egress.denied_by.is_none() {
        egress.replacements = attached::replacements(inner, lease).await?;
    }
    if egress.rewrites() {
        egress.seed = Some(Seed(inner.store.derive(AUTHORITY, lease.id.as_str())));
    }
    Ok(Arc::new(through_proxies(inner, lease, egress)))
}

/// The policy with the operator's proxy and the sandbox's own on the way out, where the provider has our network.
fn through_proxies(inner: &SandboxesState, lease: &Lease, egress: Egress) -> Egress {
    let enforces =
        inner.providers.of(lease).is_ok_and(|provider| provider.capabilities().has(Capability::Egress));
    if !enforces {
        return egress;
    }
    let operators = inner.config.egress_proxy.clone().map(|url| EgressProxy { url, is_operators: true });
    let egress = operators.into_iter().fold(egress, Egress::through);
    let Some(proxy) = &lease.network.egress_proxy else { return egress };
    let url = opened_proxy(inner, &lease.tenant, proxy);
    let url = url.filter(|url| may_use_proxy(inner, &lease.tenant, &lease.network, url)).unwrap_or_else(|| {
        tracing::error!(sandbox = %lease.id, "its egress proxy cannot be used: the policies above do not allow it any more, or another server encrypted its password");
        // Nothing answers there: without its proxy the sandbox reaches nothing.
        ProxyUrl { kind: ProxyKind::Socks5, host: "proxy.invalid".to_owned(), port: 1, credentials: None }
    });
    egress.through(EgressProxy { url, is_operators: false })
}

/// Whether the policies of operator and tenant allow the proxy itself. Otherwise the bytes for an allowed name could be led anywhere.
fn may_use_proxy(inner: &SandboxesState, tenant: &TenantId, policy: &NetworkPolicy, url: &ProxyUrl) -> bool {
    let own = NetworkPolicy {
        allow_cidrs: policy.allow_cidrs.clone(),
        deny_cidrs: policy.deny_cidrs.clone(),
        ..NetworkPolicy::allow_all()
    };
    let above = egress::compile(floor(inner, tenant), inner.layers.of(tenant).as_deref(), &own, &[]);
    above.explain(&url.host).allowed
}

fn opened_proxy(inner: &SandboxesState, tenant: &TenantId, proxy: &SandboxProxy) -> Option<ProxyUrl> {
    let url: ProxyUrl = format!("socks5://{}", proxy.address).parse().ok()?;
    let Some(user) = proxy.username.clone() else { return Some(url) };
    let password = match &proxy.password {
        Some(text) => text_of(inner, tenant, text)?,
        None => String::new(),
    };
    Some(ProxyUrl { credentials: Some(ProxyCredentials { user, password }), ..url })
}

async fn opened(inner: &SandboxesState, lease: &Lease) -> Result<Vec<OpenedTransform>, ServiceError> {
    let transforms = &lease.network.transforms;
    if transforms.is_empty() {
        return Ok(Vec::new());
    }
    let secrets = if uses(inner, lease).is_empty() {
        SecretValues::default()
    } else {
        inner.store.secret_values(&lease.tenant).await?
    };
    Ok(transforms.iter().map(|transform| open(inner, lease, transform, &secrets)).collect())
}

/// A header whose value is not available is removed: what the sandbox would send in its place must not be taken for it.
fn open(
    inner: &SandboxesState,
    lease: &Lease,
    transform: &Transform,
    secrets: &SecretValues,
) -> OpenedTransform {
    let mut change = OpenedTransform {
        domain: transform.domain.clone(),
        inject: Vec::with_capacity(transform.inject_headers.len()),
        strip: transform.strip_headers.clone(),
        plain_http: transform.plain_http,
    };
    for (name, text) in &transform.inject_headers {
        let value = text_of(inner, &lease.tenant, text)
            .and_then(|text| fill_secrets(&text, |secret| secrets.get(secret)));
        match value {
            Some(value) => change.inject.push(Injected { name: name.clone(), value }),
            None => {
                tracing::error!(sandbox = %lease.id, domain = %transform.domain, header = name, "a header cannot be injected: its secret was deleted or is too long, or another server encrypted it");
                change.strip.push(name.clone());
            }
        }
    }
    change
}

fn text_of(inner: &SandboxesState, tenant: &TenantId, text: &HeaderText) -> Option<String> {
    match text {
        HeaderText::Plain(text) => Some(text.clone()),
        HeaderText::Sealed(sealed) => inner.store.unseal_text(tenant, sealed).ok(),
    }
}

/// The secrets that a lease's headers and variables name.
pub(crate) fn uses(inner: &SandboxesState, lease: &Lease) -> BTreeSet<String> {
    let texts = lease.network.transforms.iter().flat_map(|transform| transform.inject_headers.values());
    let texts = texts.filter_map(|text| text_of(inner, &lease.tenant, text));
    let attached = lease.secrets.values().map(|secret| secret.name.clone());
    texts
        .flat_map(|text| {
            secrets_in(&text).unwrap_or_default().into_iter().map(str::to_owned).collect::<Vec<_>>()
        })
        .chain(attached)
        .collect()
}

impl Sandboxes {
    /// The layers that narrow a sandbox beyond its own policy.
    #[must_use]
    pub fn narrowed_by(&self, lease: &Lease) -> Vec<PolicyLayer> {
        let tenant = self.inner.layers.of(&lease.tenant);
        let narrows = |policy: &NetworkPolicy| *policy != NetworkPolicy::allow_all();
        let tenant = tenant.is_some_and(|policy| narrows(&policy)).then_some(PolicyLayer::Tenant);
        let operator =
            self.inner.config.egress.policy().is_some_and(narrows).then_some(PolicyLayer::Operator);
        tenant.into_iter().chain(operator).collect()
    }

    /// Whether a sandbox may reach a destination, which is a name or an address, and the rule that decides. Opens no connection
    /// and never wakes the sandbox.
    pub async fn explain_egress(
        &self,
        who: &Principal,
        ident: &str,
        destination: &str,
    ) -> Result<EgressExplanation, ServiceError> {
        let lease = self.get(who, ident).await?;
        let is_name =
            destination.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        let is_address = destination.parse::<std::net::IpAddr>().is_ok();
        let is_possible = is_address || (is_name && (1..=253).contains(&destination.len()));
        if !is_possible {
            return Err(ServiceError::field("destination", "must be a host name or an address")
                .hint("write it like pypi.org or 203.0.113.7, without scheme, port and path"));
        }
        let name = destination.trim_end_matches('.').to_ascii_lowercase();
        Ok(compiled(&self.inner, &lease).await?.explain(&name))
    }

    /// A policy from a request, a snapshot or a sibling, as a lease may contain it: allowed by the operator, its values
    /// encrypted, its secrets existing. `had` is the current policy of the sandbox.
    pub(crate) async fn admitted(
        &self,
        tenant: &TenantId,
        mut asked: NetworkPolicy,
        had: Option<&NetworkPolicy>,
    ) -> Result<NetworkPolicy, ServiceError> {
        egress::check(&asked, floor(&self.inner, tenant))?;
        if let Some(url) =
            asked.egress_proxy.as_ref().and_then(|proxy| opened_proxy(&self.inner, tenant, proxy))
            && !may_use_proxy(&self.inner, tenant, &asked, &url)
        {
            let why = "is not allowed by the policies of the operator and the tenant, or not public";
            return Err(ServiceError::field("network.egress_proxy", why));
        }
        let before = had.and_then(|had| had.egress_proxy.as_ref());
        if let Some(password) = asked.egress_proxy.as_mut().and_then(|proxy| proxy.password.as_mut()) {
            let before = before.and_then(|before| before.password.as_ref());
            *password = self.sealed_password(tenant, password, before)?;
        }
        if asked.transforms.is_empty() {
            return Ok(asked);
        }
        let secrets = self.inner.store.secret_values(tenant).await?;
        for transform in &mut asked.transforms {
            let domain = transform.domain.to_string();
            for (name, text) in &mut transform.inject_headers {
                let before = had.and_then(|had| header_of(had, &domain, name));
                *text = self.sealed(tenant, name, text, before, &secrets)?;
            }
        }
        Ok(asked)
    }

    /// The password of a proxy as a lease may contain it. The same one keeps its text, so that nothing counts as changed.
    fn sealed_password(
        &self,
        tenant: &TenantId,
        text: &HeaderText,
        before: Option<&HeaderText>,
    ) -> Result<HeaderText, ServiceError> {
        let plain = match text {
            HeaderText::Sealed(_) => return Ok(text.clone()),
            HeaderText::Plain(plain) => plain,
        };
        let is_same =
            |had: &&HeaderText| text_of(&self.inner, tenant, had).as_deref() == Some(plain.as_str());
        match before.filter(is_same) {
            Some(before) => Ok(before.clone()),
            None => Ok(HeaderText::Sealed(self.inner.store.seal_text(tenant, plain)?)),
        }
    }

    fn sealed(
        &self,
        tenant: &TenantId,
        header: &str,
        text: &HeaderText,
        before: Option<&HeaderText>,
        secrets: &SecretValues,
    ) -> Result<HeaderText, ServiceError> {
        let bad =
            |why: &str| ServiceError::field("network.transforms", format!("the header {header}: {why}"));
        let store = &self.inner.store;
        let text = match (text, before) {
            (HeaderText::Plain(shown), Some(before)) if shown == HeaderText::SHOWN => before,
            (HeaderText::Plain(shown), None) if shown == HeaderText::SHOWN => {
                return Err(bad("… stands for a hidden value; write the value itself"));
            }
            (text, _) => text,
        };
        let plain = match text {
            HeaderText::Plain(plain) => plain.clone(),
            HeaderText::Sealed(sealed) => store
                .unseal_text(tenant, sealed)
                .map_err(|_| bad("its value was encrypted for another tenant or server"))?,
        };
        for name in secrets_in(&plain).map_err(|why| bad(&why.to_string()))? {
            if secrets.get(name).is_none() {
                return Err(bad(&format!("there is no secret {name}"))
                    .hint("create it first: POST /v1/secrets, or atoll secret create"));
            }
        }
        if fill_secrets(&plain, |name| secrets.get(name)).is_none() {
            return Err(bad(&format!("its value is longer than {SECRET_BYTES_MAX} bytes")));
        }
        // The same value encrypted again would give another text, and an update without a change would become one.
        let is_same =
            |sealed: &&HeaderText| text_of(&self.inner, tenant, sealed).as_deref() == Some(plain.as_str());
        match (text, before.filter(is_same)) {
            (HeaderText::Sealed(_), _) => Ok(text.clone()),
            (HeaderText::Plain(_), Some(before)) => Ok(before.clone()),
            (HeaderText::Plain(_), None) => Ok(HeaderText::Sealed(store.seal_text(tenant, &plain)?)),
        }
    }
}

fn header_of<'a>(policy: &'a NetworkPolicy, domain: &str, name: &str) -> Option<&'a HeaderText> {
    let transform = policy.transforms.iter().find(|transform| transform.domain.to_string() == domain)?;
    transform.inject_headers.iter().find(|(had, _)| had.eq_ignore_ascii_case(name)).map(|(_, text)| text)
}

impl From<BadPolicy> for ServiceError {
    fn from(bad: BadPolicy) -> Self {
        let error = Self::field(&format!("network.{}", bad.field), bad.why);
        match bad.hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}
