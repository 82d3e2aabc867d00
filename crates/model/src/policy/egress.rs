//! Combines the network policies (operator, tenant, sandbox) into one that is enforced.
//!
//! ```text
//! check: is this policy allowed at all?            compile: operator ∧ tenant ∧ sandbox ─► Egress
//! Egress: the kernel's part (direct mode, ranges, limits) and the gate's part (names, transforms)
//! ```
//!
//! Layers only restrict. An address is allowed if every layer allows it; a name is allowed if every layer allows it and
//! its address is in no deny list and not in a range that is never reachable.

use std::net::{IpAddr, Ipv4Addr};

use crate::{Cidr, DomainPattern, NetworkLimits, NetworkMode, NetworkPolicy, ProxyUrl};

mod check;
#[cfg(test)]
mod compile_tests;
mod explain;
pub mod learn;
pub mod ranges;
pub mod vendor_policies;

pub use check::{BadPolicy, CIDRS_MAX, DOMAINS_MAX, TRANSFORMS_MAX, check, check_layer};
pub use explain::EgressExplanation;
use ranges::{Ranges, Ranges4, Ranges6};

/// The operator's settings for the sandboxes of one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantFloor {
    /// Whether private ranges are reachable if a policy names them.
    pub private_when_named: bool,
    /// Restricts every sandbox.
    pub policy: Option<NetworkPolicy>,
}

/// The tenants that may reach private ranges named in the allow list of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrivateRanges {
    /// No tenant.
    Never,
    /// The tenant that the server made at its first start: on a server for one user, that user.
    #[default]
    FirstTenant,
    /// Every tenant.
    AllTenants,
}

/// The operator's settings for all tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorFloors {
    first: TenantFloor,
    others: TenantFloor,
}

impl OperatorFloors {
    /// `policy` restricts the sandboxes of every tenant.
    #[must_use]
    pub fn new(private: PrivateRanges, policy: Option<NetworkPolicy>) -> Self {
        let first =
            TenantFloor { private_when_named: private != PrivateRanges::Never, policy: policy.clone() };
        let others = TenantFloor { private_when_named: private == PrivateRanges::AllTenants, policy };
        Self { first, others }
    }

    /// The settings for the first tenant, or for any other one.
    #[must_use]
    pub const fn of(&self, is_first_tenant: bool) -> &TenantFloor {
        if is_first_tenant { &self.first } else { &self.others }
    }

    /// The policy that restricts every sandbox.
    #[must_use]
    pub const fn policy(&self) -> Option<&NetworkPolicy> {
        self.others.policy.as_ref()
    }
}

impl Default for OperatorFloors {
    fn default() -> Self {
        Self::new(PrivateRanges::default(), None)
    }
}

/// Where packets may go without the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DirectMode {
    /// Nowhere.
    #[default]
    Closed,
    /// To every public address.
    Open,
    /// Only to the addresses in [`Egress::direct`].
    Listed,
}

/// Which DNS queries are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dns {
    /// None.
    #[default]
    Closed,
    /// All.
    Free,
    /// Queries for names that [`Egress::judge`] allows, and for addresses only.
    Gated,
}

/// A header and its value, ready to be injected. Never shown or stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Injected {
    /// The header's name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl std::fmt::Debug for Injected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Injected({}: ..)", self.name)
    }
}

/// The secret from which a certificate authority is derived. Never shown or stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Seed(pub [u8; 32]);

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// A transform with its values unsealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedTransform {
    /// The domain of the requests.
    pub domain: DomainPattern,
    /// Headers to set.
    pub inject: Vec<Injected>,
    /// Headers to remove.
    pub strip: Vec<String>,
    /// Also over plain HTTP.
    pub plain_http: bool,
}

/// A secret that programs of a sandbox see only as a placeholder. Its value is never shown or stored.
#[derive(Clone, PartialEq, Eq)]
pub struct Replacement {
    /// The hosts of the requests.
    pub hosts: Vec<DomainPattern>,
    /// The text that the sandbox sends.
    pub placeholder: String,
    /// The text that the server receives instead.
    pub value: String,
}

impl std::fmt::Debug for Replacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replacement").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// All changes of requests for one name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rewrite {
    /// The transform of the policy.
    pub change: Option<OpenedTransform>,
    /// Placeholders of secrets whose hosts include the name.
    pub replacements: Vec<Replacement>,
}

/// The level of a policy, from the widest to the narrowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyLayer {
    /// For every sandbox of this server.
    Operator,
    /// For every sandbox of a tenant.
    Tenant,
    /// For this sandbox.
    #[default]
    Sandbox,
}

impl PolicyLayer {
    /// The name of the level in rules and responses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Tenant => "tenant",
            Self::Sandbox => "sandbox",
        }
    }

    /// A rule with its level; a rule of the sandbox has no prefix.
    fn says(self, rule: &str) -> String {
        match self {
            Self::Sandbox => rule.to_owned(),
            Self::Operator | Self::Tenant => format!("{}: {rule}", self.as_str()),
        }
    }
}

/// The names that one level lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerDomains {
    pub whose: PolicyLayer,
    /// The allowed patterns.
    pub patterns: Vec<DomainPattern>,
}

/// The combined policy that is enforced for one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Egress {
    pub direct_mode: DirectMode,
    /// The destinations for [`DirectMode::Listed`]. Never contains unreachable ranges.
    pub direct: Ranges4,
    /// The same for IPv6; empty means that the sandbox has no IPv6.
    pub direct6: Ranges6,
    /// Which DNS queries are answered.
    pub dns: Dns,
    /// The lists of names, one per level that has one; a name must be in each.
    pub names: Vec<LayerDomains>,
    /// The level that denies everything, if one does.
    pub denied_by: Option<PolicyLayer>,
    /// Changes of requests.
    pub changes: Vec<OpenedTransform>,
    /// Placeholders to replace. They allow no name.
    pub replacements: Vec<Replacement>,
    /// Addresses that are refused for every name.
    pub shut: Ranges4,
    pub limits: NetworkLimits,
    /// Record what a policy would need.
    pub learn: bool,
    /// The seed of the sandbox's certificate authority; set if [`Egress::rewrites`].
    pub seed: Option<Seed>,
    /// The proxies that every allowed connection is passed on through, the nearest first; none: directly.
    pub proxies: Vec<EgressProxy>,
}

/// A proxy on the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressProxy {
    /// Where it is, with its credentials.
    pub url: ProxyUrl,
    /// Whether the operator named it. The server then reaches it itself; a proxy that a user named is reached as the sandbox could.
    pub is_operators: bool,
}

/// The decision about a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameVerdict {
    /// The name is refused.
    Refused { rule: String },
    /// The name is allowed; bytes are forwarded unchanged.
    Allowed { rule: String },
    /// The name is allowed, and requests are changed.
    Changed { rule: String },
}

impl Egress {
    /// Allows everything public.
    #[must_use]
    pub fn open() -> Self {
        compile(&TenantFloor::default(), None, &NetworkPolicy::allow_all(), &[])
    }

    /// Allows nothing.
    #[must_use]
    pub fn closed() -> Self {
        Self::default()
    }

    /// Whether names have to be checked: if not, the kernel does everything.
    #[must_use]
    pub fn needs_gate(&self) -> bool {
        self.dns == Dns::Gated || self.rewrites() || self.is_proxied()
    }

    /// The same policy, enforced for connections that are passed on through one more proxy. Only TCP by IPv4 is carried then, and all
    /// of it by the gate.
    #[must_use]
    pub fn through(mut self, proxy: EgressProxy) -> Self {
        // Nothing leaves: the kernel refuses it at once, without the gate.
        if self.dns == Dns::Closed && self.direct_mode == DirectMode::Closed {
            return Self { direct6: Ranges6::default(), ..self };
        }
        self.proxies.push(proxy);
        self.direct6 = Ranges6::default();
        self
    }

    /// Whether connections are passed on through a proxy.
    #[must_use]
    pub fn is_proxied(&self) -> bool {
        !self.proxies.is_empty()
    }

    /// Whether some requests are changed.
    #[must_use]
    pub fn rewrites(&self) -> bool {
        !self.changes.is_empty() || !self.replacements.is_empty()
    }

    /// Whether a name may be resolved and reached through the gate.
    #[must_use]
    pub fn judge(&self, name: &str) -> NameVerdict {
        let mut rule = "allow-all".to_owned();
        for LayerDomains { whose, patterns } in &self.names {
            match patterns.iter().find(|pattern| pattern.matches(name)) {
                Some(pattern) => rule = whose.says(&format!("allow_domains: {pattern}")),
                None => return NameVerdict::Refused { rule: whose.says("not in allow_domains") },
            }
        }
        if let Some(change) = self.change_for(name) {
            return NameVerdict::Changed { rule: format!("transforms: {}", change.domain) };
        }
        match self.replacements_for(name).next() {
            Some((host, _)) => NameVerdict::Changed { rule: format!("secrets: {host}") },
            None => NameVerdict::Allowed { rule },
        }
    }

    /// The changes of requests for a name; `None` if there are none.
    #[must_use]
    pub fn rewrite_for(&self, name: &str) -> Option<Rewrite> {
        let change = self.change_for(name).cloned();
        let replacements: Vec<_> = self.replacements_for(name).map(|(_, one)| one.clone()).collect();
        (change.is_some() || !replacements.is_empty()).then_some(Rewrite { change, replacements })
    }

    /// The placeholders that are replaced for a name, each with the matching host.
    fn replacements_for(&self, name: &str) -> impl Iterator<Item = (&DomainPattern, &Replacement)> {
        self.replacements
            .iter()
            .filter_map(move |one| one.hosts.iter().find(|host| host.matches(name)).map(|host| (host, one)))
    }

    /// Why DNS is closed, if [`Egress::dns`] is.
    #[must_use]
    pub fn no_name(&self) -> String {
        let nameless = || self.names.iter().find(|layer| layer.patterns.is_empty()).map(|layer| layer.whose);
        self.denied_by.or_else(nameless).unwrap_or_default().says("no name is allowed")
    }

    /// Whether an address from a DNS answer may be opened; the reason if not.
    pub fn judge_address(&self, address: IpAddr) -> Result<(), String> {
        match address {
            IpAddr::V4(v4) if self.is_proxied() && ranges::is_stand_in(v4) => Ok(()),
            IpAddr::V4(v4) if self.shut.contains(v4.into()) => Err(why_shut(v4)),
            IpAddr::V4(_) => Ok(()),
            IpAddr::V6(_) => Err("no ipv6".to_owned()),
        }
    }

    /// The most specific transform for a name.
    fn change_for(&self, name: &str) -> Option<&OpenedTransform> {
        let matching = || self.changes.iter().filter(|change| change.domain.matches(name));
        matching()
            .find(|change| change.domain.is_exact())
            .or_else(|| matching().max_by_key(|change| change.domain.to_string().len()))
    }
}

fn why_shut(address: Ipv4Addr) -> String {
    match ranges::class_of(address) {
        Some(class) => format!("never: {class}"),
        None => "deny_cidrs".to_owned(),
    }
}

/// Combines the levels. `opened` are the sandbox's transforms with their values; tenant and operator have none. All
/// policies have passed [`check`] when they were requested.
#[must_use]
pub fn compile(
    floor: &TenantFloor,
    tenant: Option<&NetworkPolicy>,
    sandbox: &NetworkPolicy,
    opened: &[OpenedTransform],
) -> Egress {
    let learning = NetworkPolicy { limits: sandbox.limits, ..NetworkPolicy::allow_all() };
    let own = if sandbox.learn { &learning } else { sandbox };
    let above = floor.policy.iter().map(|policy| (PolicyLayer::Operator, policy));
    let above = above.chain(tenant.map(|policy| (PolicyLayer::Tenant, policy)));
    let said: Vec<(PolicyLayer, &NetworkPolicy)> = above.chain([(PolicyLayer::Sandbox, own)]).collect();
    let layers: Vec<&NetworkPolicy> = said.iter().map(|(_, policy)| *policy).collect();
    let limits = layers.iter().fold(NetworkLimits::default(), |all, layer| all.and(layer.limits));
    if let Some((whose, _)) = said.iter().find(|(_, layer)| layer.mode == NetworkMode::DenyAll) {
        return Egress { limits, learn: sandbox.learn, denied_by: Some(*whose), ..Egress::default() };
    }
    let never = ranges::never(named_private(floor, own));
    let denied = layers.iter().fold(Ranges4::default(), |all, layer| all.or(&v4(&layer.deny_cidrs)));
    let denied6 = layers.iter().fold(Ranges6::default(), |all, layer| all.or(&v6(&layer.deny_cidrs)));
    let direct = layers.iter().fold(Ranges4::all(), |all, layer| all.and(&let_by(layer, v4)));
    let direct6 = layers.iter().fold(Ranges6::all(), |all, layer| all.and(&let_by6(layer)));
    let shut = never.or(&denied);
    let direct = direct.minus(&shut);
    let is_open = direct == Ranges4::all().minus(&ranges::never(Ranges4::default()));
    let custom = said.iter().filter(|(_, layer)| layer.mode == NetworkMode::Custom);
    let names: Vec<LayerDomains> =
        custom.map(|(whose, layer)| LayerDomains { whose: *whose, patterns: names_of(layer) }).collect();
    let direct_mode = match (is_open, direct.is_empty()) {
        (true, _) => DirectMode::Open,
        (false, true) => DirectMode::Closed,
        (false, false) => DirectMode::Listed,
    };
    let dns = match (names.is_empty(), names.iter().any(|layer| layer.patterns.is_empty())) {
        (true, _) => Dns::Free,
        (false, false) => Dns::Gated,
        // A level that lists only addresses allows no name, so DNS is not needed.
        (false, true) => Dns::Closed,
    };
    Egress {
        direct_mode,
        direct: if is_open { Ranges4::default() } else { direct },
        direct6: if names_v6(own) {
            direct6.minus(&ranges::never6()).minus(&denied6)
        } else {
            Ranges6::default()
        },
        dns,
        names,
        denied_by: None,
        changes: opened.to_vec(),
        replacements: Vec::new(),
        shut,
        limits,
        learn: sandbox.learn,
        seed: None,
        proxies: Vec::new(),
    }
}

/// The private ranges that the sandbox names and the operator allows. Other levels do not count: an additional level
/// would open ranges that are closed without it.
fn named_private(floor: &TenantFloor, own: &NetworkPolicy) -> Ranges4 {
    if !floor.private_when_named {
        return Ranges4::default();
    }
    let named = own.allow_cidrs.iter().filter(|cidr| check::is_private(cidr));
    named.fold(Ranges4::default(), |all, cidr| all.or(&v4(std::slice::from_ref(cidr))))
}

fn names_v6(own: &NetworkPolicy) -> bool {
    own.allow_cidrs.iter().any(|cidr| cidr.v6().is_some())
}

fn let_by(layer: &NetworkPolicy, read: impl Fn(&[Cidr]) -> Ranges4) -> Ranges4 {
    match layer.mode {
        NetworkMode::AllowAll => Ranges::all(),
        NetworkMode::DenyAll => Ranges::default(),
        NetworkMode::Custom => read(&layer.allow_cidrs),
    }
}

fn let_by6(layer: &NetworkPolicy) -> Ranges6 {
    match layer.mode {
        NetworkMode::AllowAll => Ranges::all(),
        NetworkMode::DenyAll => Ranges::default(),
        NetworkMode::Custom => v6(&layer.allow_cidrs),
    }
}

fn names_of(layer: &NetworkPolicy) -> Vec<DomainPattern> {
    let transformed = layer.transforms.iter().map(|transform| transform.domain.clone());
    layer.allow_domains.iter().cloned().chain(transformed).collect()
}

fn v4(cidrs: &[Cidr]) -> Ranges4 {
    Ranges::new(cidrs.iter().filter_map(Cidr::v4))
}

fn v6(cidrs: &[Cidr]) -> Ranges6 {
    Ranges::new(cidrs.iter().filter_map(Cidr::v6))
}
