//! Translates network settings from and to E2B's form. The core decides what they allow. Responses show the settings as
//! they were requested, without secrets; an annotation keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use atoll_front_kit::{ApiError, Caller, Json, Path};
use atoll_model::policy::egress::vendor_policies::{E2bWords, from_e2b, network};
use atoll_model::{HeaderText, NetworkPolicy, Principal, SandboxProxy, UpdateSandbox};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::put;
use serde::{Deserialize, Serialize};

use crate::annotations;
use crate::error::not_here;
use crate::sandboxes::find;
use crate::{E2bApp, Hosts, secrets};

pub(crate) fn routes() -> Router<E2bApp> {
    Router::new().route("/sandboxes/{id}/network", put(replace))
}

/// What a sandbox may reach and who may reach it, as requested.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NetworkBody {
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    dns_servers: Option<Vec<String>>,
    egress_proxy: Option<ProxyBody>,
    allow_public_traffic: Option<bool>,
    mask_request_host: Option<String>,
    https_ports: Option<BTreeSet<u16>>,
    rules: Option<BTreeMap<String, Vec<RuleBody>>>,
    // COMPAT(e2b): this field alone is in snake case, and only in the body of an update.
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    /// The hosts of sandboxes, which are accepted with their port.
    #[serde(skip)]
    hosts: Option<Hosts>,
    /// The names of the caller's secrets, which rules may write in other capitals.
    #[serde(skip)]
    secrets: Vec<String>,
}

/// Leaves out the values of headers, which are secrets.
impl std::fmt::Debug for NetworkBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NetworkBody").finish_non_exhaustive()
    }
}

/// A SOCKS5 proxy for everything that the sandbox sends.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProxyBody {
    address: String,
    username: Option<String>,
    password: Option<String>,
    tls: Option<ProxyTlsBody>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct ProxyTlsBody {
    enabled: bool,
}

/// The proxy without its password, which is never returned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProxyShown {
    address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    username: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct RuleBody {
    transform: Option<TransformBody>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct TransformBody {
    headers: BTreeMap<String, String>,
}

/// The requested settings, without secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NetworkShown {
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deny_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dns_servers: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    egress_proxy: Option<ProxyShown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_public_traffic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mask_request_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) https_ports: Option<BTreeSet<u16>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<BTreeMap<String, Vec<RuleShown>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RuleShown {
    transform: TransformShown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TransformShown {
    headers: BTreeMap<String, String>,
}

/// The settings of the core for a body.
#[derive(Debug, Clone)]
pub(crate) struct Meant {
    pub(crate) policy: NetworkPolicy,
    pub(crate) public: bool,
    /// The host name that apps in the sandbox see.
    pub(crate) mask_host: Option<String>,
    /// Ports on which apps in the sandbox use TLS.
    pub(crate) https_ports: BTreeSet<u16>,
    pub(crate) internet: Option<bool>,
    pub(crate) shown: NetworkShown,
}

impl NetworkBody {
    /// The body with what its words refer to: the hosts of sandboxes and the caller's secrets.
    pub(crate) async fn resolved(self, app: &E2bApp, who: &Principal) -> Result<Self, ApiError> {
        let mut rules = self.rules.iter().flatten().flat_map(|(_, rules)| rules);
        let names_one = rules.any(|rule| {
            let headers = rule.transform.iter().flat_map(|transform| transform.headers.values());
            headers.into_iter().any(|value| value.contains(SECRET))
        });
        let secrets = if names_one { secrets::names(app, who).await? } else { Vec::new() };
        Ok(Self { secrets, ..self }.with_hosts((app.options.hosts)()))
    }

    /// Accepts destinations as `get_host()` returns them: with the port of the sandbox hosts.
    fn with_hosts(self, hosts: Hosts) -> Self {
        Self { hosts: Some(hosts), ..self }
    }

    /// A destination without the port, if it is a host of a sandbox. A rule counts for its host at the ports that the gate reads.
    fn without_port(&self, destination: &str) -> String {
        let own = self.hosts.iter().flat_map(|hosts| [Some(&hosts.plain), hosts.tls.as_ref()]).flatten();
        let is_own = own.into_iter().any(|host| {
            let rest = destination.to_lowercase();
            rest.strip_suffix(host.as_str()).is_some_and(|label| label.ends_with('.'))
        });
        match destination.rsplit_once(':') {
            Some((name, _)) if is_own => name.to_owned(),
            _ => destination.to_owned(),
        }
    }

    /// `internet` is the field of the same name beside the body.
    pub(crate) fn meant(self, internet: Option<bool>) -> Result<Meant, ApiError> {
        self.refuse_what_is_not_here()?;
        let internet = internet.or(self.allow_internet_access);
        let words = E2bWords {
            allow_internet_access: internet,
            allow_out: self.allowed()?,
            deny_out: self.deny_out.clone().unwrap_or_default(),
            rules: (self.rules.iter().flatten())
                .map(|(host, rules)| {
                    Ok((self.without_port(host).to_lowercase(), headers_of(rules, &self.secrets)?))
                })
                .collect::<Result<_, ApiError>>()?,
        };
        let policy = from_e2b(&words).map_err(|bad| {
            let message = format!("network.{}: {}", camel(bad.field), bad.why);
            match bad.hint {
                Some(hint) => ApiError::invalid(format!("{message} ({hint})")),
                None => ApiError::invalid(message),
            }
        })?;
        let policy = NetworkPolicy { egress_proxy: self.egress_proxy.clone().map(Into::into), ..policy };
        Ok(Meant {
            policy,
            public: self.allow_public_traffic != Some(false),
            mask_host: self.mask_request_host.clone().filter(|host| !host.is_empty()),
            https_ports: self.https_ports.clone().unwrap_or_default(),
            internet,
            shown: self.shown(),
        })
    }

    fn refuse_what_is_not_here(&self) -> Result<(), ApiError> {
        let has_tls = |proxy: &ProxyBody| proxy.tls.as_ref().is_some_and(|tls| tls.enabled);
        if self.egress_proxy.as_ref().is_some_and(has_tls) {
            return Err(not_here("network.egressProxy.tls", "Atoll speaks to a SOCKS5 proxy without TLS"));
        }
        Ok(())
    }

    /// The permitted destinations. If names are allowed, the sandbox may use name servers of its own choice; E2B's
    /// implicit permission for one name server is not needed, since every sandbox here has one.
    fn allowed(&self) -> Result<Vec<String>, ApiError> {
        let mut allowed: Vec<String> =
            self.allow_out.iter().flatten().map(|entry| self.without_port(entry)).collect();
        let servers = self.dns_servers.as_deref().unwrap_or_default();
        if let Some(odd) = servers.iter().find(|server| server.parse::<Ipv4Addr>().is_err()) {
            let odd: String = odd.chars().take(64).collect();
            return Err(ApiError::field("network.dnsServers", format!("{odd:?} is not an IPv4 address")));
        }
        let is_name = |entry: &String| network(entry).is_none();
        if allowed.iter().any(is_name) {
            allowed.extend(servers.iter().cloned());
        }
        Ok(allowed)
    }

    fn shown(self) -> NetworkShown {
        let hidden = |rules: Vec<RuleBody>| {
            let names = rules.into_iter().filter_map(|rule| rule.transform).map(|transform| {
                let headers = transform.headers.into_keys();
                let headers = headers.map(|name| (name, HeaderText::SHOWN.to_owned())).collect();
                RuleShown { transform: TransformShown { headers } }
            });
            names.collect::<Vec<_>>()
        };
        NetworkShown {
            allow_out: self.allow_out,
            deny_out: self.deny_out,
            dns_servers: self.dns_servers,
            egress_proxy: self
                .egress_proxy
                .map(|ProxyBody { address, username, .. }| ProxyShown { address, username }),
            allow_public_traffic: self.allow_public_traffic,
            mask_request_host: self.mask_request_host,
            https_ports: self.https_ports,
            rules: self
                .rules
                .map(|rules| rules.into_iter().map(|(host, rules)| (host, hidden(rules))).collect()),
        }
    }
}

impl From<ProxyBody> for SandboxProxy {
    fn from(proxy: ProxyBody) -> Self {
        // COMPAT(e2b): clients send an empty text for a user that there is not.
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        Self {
            address: proxy.address,
            username: given(proxy.username),
            password: given(proxy.password).map(HeaderText::Plain),
        }
    }
}

/// The headers that the rules of a host set; later rules replace earlier ones.
fn headers_of(rules: &[RuleBody], secrets: &[String]) -> Result<BTreeMap<String, String>, ApiError> {
    let mut headers = BTreeMap::new();
    for (name, value) in rules.iter().filter_map(|rule| rule.transform.as_ref()).flat_map(|t| &t.headers) {
        headers.insert(name.clone(), placeholders(value, secrets)?);
    }
    Ok(headers)
}

/// The begin of a placeholder for a secret.
const SECRET: &str = "${e2b.secrets.";

/// Translates E2B's `${e2b.secrets.NAME}` to Atoll's `{secret:NAME}`.
fn placeholders(text: &str, secrets: &[String]) -> Result<String, ApiError> {
    if text.contains("${e2b.identity.") {
        return Err(crate::sandboxes::no_iam());
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(SECRET) {
        let (name, behind) = after.split_once('}').ok_or_else(|| {
            ApiError::field("network.rules", "a placeholder ${e2b.secrets.NAME} has no end")
        })?;
        out.push_str(before);
        // An unknown name is refused by the core.
        let known = secrets::position(secrets.iter().map(String::as_str), name);
        let name = known.map_or_else(|| name.to_lowercase(), |at| secrets[at].clone());
        out.push_str(&format!("{{secret:{name}}}"));
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

/// E2B's name for a field of the core.
fn camel(field: &str) -> &str {
    match field {
        "allow_out" => "allowOut",
        "deny_out" => "denyOut",
        "transforms" => "rules",
        "egress_proxy" => "egressProxy",
        other => other,
    }
}

/// Replaces the permitted destinations; who may reach the sandbox stays as it was set at its creation.
async fn replace(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<NetworkBody>,
) -> Result<StatusCode, ApiError> {
    let lease = find(&app, &who, &id).await?;
    let mut meant = body.resolved(&app, &who).await?.meant(None)?;
    let before = annotations::network(&lease).unwrap_or_default();
    meant.shown.allow_public_traffic = before.allow_public_traffic;
    meant.shown.mask_request_host = before.mask_request_host;
    meant.shown.https_ports = before.https_ports;
    let annotations = annotations::with_network(&lease, &meant);
    let change = UpdateSandbox {
        network: Some(meant.policy),
        annotations: Some(annotations),
        ..UpdateSandbox::default()
    };
    app.service.sandboxes().update(&who, lease.id.as_str(), change).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::NetworkMode;
    use serde_json::json;

    fn meant(body: serde_json::Value) -> Result<Meant, ApiError> {
        serde_json::from_value::<NetworkBody>(body).unwrap().meant(None)
    }

    #[test]
    fn a_network_goes_in_whole_and_comes_out_without_its_secrets() {
        let asked = json!({
            "allowOut": ["api.example.com", "203.0.113.7"], "denyOut": ["0.0.0.0/0"], "allowPublicTraffic": false,
            "maskRequestHost": "app-${PORT}.test", "httpsPorts": [8443],
            "rules": { "API.example.com": [
                { "transform": { "headers": { "Authorization": "Bearer ${e2b.secrets.My-Key}!" } } },
            ] },
        });
        let meant = meant(asked).unwrap();
        assert!(!meant.public);
        assert_eq!(meant.policy.mode, NetworkMode::Custom);
        assert_eq!(meant.mask_host.as_deref(), Some("app-${PORT}.test"));
        assert_eq!(meant.https_ports, [8443].into());
        let value = &meant.policy.transforms[0].inject_headers["Authorization"];
        assert_eq!(*value, HeaderText::Plain("Bearer {secret:my-key}!".to_owned()));
        assert_eq!(
            serde_json::to_value(&meant.shown).unwrap(),
            json!({
                "allowOut": ["api.example.com", "203.0.113.7"], "denyOut": ["0.0.0.0/0"], "allowPublicTraffic": false,
            "maskRequestHost": "app-${PORT}.test", "httpsPorts": [8443],
                "rules": { "API.example.com": [{ "transform": { "headers": { "Authorization": "…" } } }] },
            })
        );
    }

    #[test]
    fn a_proxy_goes_in_with_its_password_and_comes_out_without() {
        let proxy = json!({ "address": "proxy.test:1080", "username": "me", "password": "canary" });
        let meant = meant(json!({ "egressProxy": proxy })).unwrap();
        let own = meant.policy.egress_proxy.unwrap();
        assert_eq!((own.address.as_str(), own.username.as_deref()), ("proxy.test:1080", Some("me")));
        assert_eq!(own.password, Some(HeaderText::Plain("canary".to_owned())));
        let shown = serde_json::to_value(&meant.shown).unwrap();
        assert_eq!(shown, json!({ "egressProxy": { "address": "proxy.test:1080", "username": "me" } }));
    }

    #[test]
    fn no_internet_is_a_deny_of_everything() {
        let none = meant(json!({ "allow_internet_access": false })).unwrap();
        assert_eq!((none.policy, none.public), (NetworkPolicy::deny_all(), true));
        assert_eq!(meant(json!({})).unwrap().policy, NetworkPolicy::allow_all());
    }

    #[test]
    fn what_is_wrong_or_not_here_is_named() {
        for (body, status, word) in [
            (json!({ "allowOut": ["a b"] }), 400, "network.allowOut"),
            (json!({ "denyOut": ["example.com"] }), 400, "network.denyOut"),
            (
                json!({ "rules": { "x.com": [{ "transform": { "headers": { "A": "${e2b.secrets.x" } } }] } }),
                400,
                "rules",
            ),
            (
                json!({ "egressProxy": { "address": "p:1", "tls": { "enabled": true } } }),
                501,
                "egressProxy.tls",
            ),
            (json!({ "dnsServers": ["one.one.one.one"] }), 400, "dnsServers"),
        ] {
            let refused = meant(body).unwrap_err();
            assert_eq!(refused.status().as_u16(), status, "{}", refused.message);
            assert!(refused.message.contains(word), "{}", refused.message);
        }
        let hosts = || Hosts { plain: "localhost:7070".into(), tls: Some("atoll.localhost:7443".into()) };
        for (host, named) in [
            ("8080-abc.localhost:7070", Some("8080-abc.localhost")),
            ("8080-abc.atoll.localhost:7443", Some("8080-abc.atoll.localhost")),
            ("8080-abc.localhost:8080", None),
            ("example.com:443", None),
            ("localhost:7070", None),
        ] {
            let body = json!({ "rules": { host: [{ "transform": { "headers": { "A": "b" } } }] } });
            let body = serde_json::from_value::<NetworkBody>(body).unwrap().with_hosts(hosts());
            let meant = body.meant(None).map(|meant| meant.policy.transforms[0].domain.to_string());
            assert_eq!(meant.ok().as_deref(), named, "{host}");
        }
        for fine in [
            json!({ "dnsServers": [] }),
            json!({ "dnsServers": ["8.8.8.8"] }),
            json!({ "egressProxy": null }),
        ] {
            assert!(meant(fine).is_ok());
        }
    }
}
