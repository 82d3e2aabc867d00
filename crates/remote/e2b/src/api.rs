//! The calls of E2B's control API that this provider makes.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_model::{InstanceId, SandboxId, SnapshotId};
use atoll_provider::ProviderError;
use atoll_remote::{
    CallError, Measurement, OWNER_LABEL, Repeat, SANDBOX_LABEL, VendorAnswer, VendorCall, VendorClient,
    object_labels, parsed_answer, read_labels, unless_missing, unreadable_answer,
};
use http::{HeaderName, HeaderValue, Method};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::settings::E2bSettings;

/// LIMIT: pages of a list of own objects; a hundred objects each.
const PAGES_MAX: usize = 200;
/// LIMIT: a sandbox starts within seconds.
const CREATE_WITHIN: Duration = Duration::from_secs(40);
/// LIMIT: a snapshot copies the files of a sandbox.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(120);
/// LIMIT: an id of a snapshot has the name of the account and the name of the snapshot.
const SNAPSHOT_ID_MAX: usize = 256;

/// What the service answers about a new or woken object. Contains secrets.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Opened {
    #[serde(rename = "sandboxID")]
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) domain: Option<String>,
    #[serde(default)]
    pub(crate) envd_access_token: Option<String>,
    #[serde(default)]
    pub(crate) traffic_access_token: Option<String>,
}

/// What an object does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ServiceState {
    Running,
    Paused,
}

/// An object in a list.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    #[serde(rename = "sandboxID")]
    id: String,
    state: ServiceState,
    started_at: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
}

/// An object of this server. Its instance is the one that it was made as.
pub(crate) type OwnedObject = atoll_remote::OwnedObject<ServiceState>;

/// A snapshot in a list, or a new one.
#[derive(Debug, Deserialize)]
struct ListedSnapshot {
    #[serde(rename = "snapshotID")]
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

/// A snapshot of this server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OwnedSnapshot {
    /// The service's id, which is the name of a template, too.
    pub(crate) id: String,
    pub(crate) snapshot: SnapshotId,
}

/// The snapshot of a name that this owner gives; `NAMESPACE/` and `:TAG` may stand around it.
fn own_snapshot(listed: ListedSnapshot, owner: &str) -> Option<OwnedSnapshot> {
    let ListedSnapshot { id, names } = listed;
    let own = |name: &str| {
        let name = name.rsplit_once('/').map_or(name, |(_, name)| name);
        let name = name.split_once(':').map_or(name, |(name, _)| name);
        name.strip_prefix("atoll-")?.strip_prefix(owner)?.strip_prefix('-')?.parse::<SnapshotId>().ok()
    };
    let snapshot = names.iter().map(String::as_str).chain([id.as_str()]).find_map(own)?;
    is_snapshot_id(&id).then_some(OwnedSnapshot { id, snapshot })
}

/// An id becomes a part of paths, escaped.
fn is_snapshot_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= SNAPSHOT_ID_MAX && id.bytes().all(|b| b.is_ascii_graphic())
}

/// The body of a create.
pub(crate) struct NewObject<'a> {
    pub(crate) template: &'a str,
    pub(crate) sandbox: &'a SandboxId,
    pub(crate) instance: &'a InstanceId,
    pub(crate) internet: bool,
    /// A service that knows it answers a second create of the same key with the object of the first.
    pub(crate) key: String,
}

/// The API of one account.
#[derive(Debug)]
pub(crate) struct E2bApi {
    client: VendorClient,
    owner: String,
    timeout: u64,
}

/// An id becomes a part of paths and host names.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 63 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn opened(answer: &VendorAnswer) -> Result<Opened, CallError> {
    let opened: Opened = parsed_answer(answer)?;
    if is_id(&opened.id) { Ok(opened) } else { Err(unreadable_answer()) }
}

/// The parameter of the query for the next page of a list, if there is one.
fn next_page(answer: &VendorAnswer) -> Option<String> {
    let token = answer.headers.get("x-next-token").and_then(|token| token.to_str().ok());
    let token = token.filter(|token| !token.is_empty())?;
    Some(format!("&nextToken={}", utf8_percent_encode(token, NON_ALPHANUMERIC)))
}

/// The value of the query parameter `metadata`. The names and values have only characters that need no escape, so the several
/// layers of escapes that the API expects are one.
fn label_query(owner: &str, sandbox: Option<&SandboxId>) -> String {
    let sandbox = sandbox.map_or_else(String::new, |sandbox| format!("%26{SANDBOX_LABEL}%3D{sandbox}"));
    format!("{OWNER_LABEL}%3D{owner}{sandbox}")
}

impl E2bApi {
    pub(crate) fn new(settings: &E2bSettings, owner: String) -> Result<Self, ProviderError> {
        let header = HeaderName::from_static("x-api-key");
        let client = VendorClient::new(&settings.api_url, header, "", settings.api_key.expose());
        let client = client.map_err(|why| ProviderError::Unsupported {
            what: format!("the section e2b: {why}"),
            hint: "correct the settings of this provider".to_owned(),
        })?;
        Ok(Self { client, owner, timeout: settings.timeout })
    }

    /// Makes an object. After [`CallError::Unanswered`] it may be there; it is not asked for again here.
    pub(crate) async fn create(&self, new: &NewObject<'_>) -> Result<Opened, CallError> {
        let body = json!({
            "templateID": new.template,
            "timeout": self.timeout,
            "metadata": object_labels(&self.owner, new.sandbox, new.instance),
            // When this server is away for longer than the lifetime, nothing is lost.
            "autoPause": true,
            "allow_internet_access": new.internet,
            // Ports are reached through this server, which knows who may.
            "network": { "allowPublicTraffic": false },
        });
        let key = HeaderValue::try_from(new.key.as_str());
        let key = key.map_err(|_| CallError::NotSent { why: "the ids cannot be sent".to_owned() })?;
        let call = VendorCall {
            headers: vec![(HeaderName::from_static("idempotency-key"), key)],
            repeat: Repeat::Unsent,
            attempt_within: CREATE_WITHIN,
            within: CREATE_WITHIN * 2,
            ..VendorCall::new(Method::POST, "/v2/sandboxes".to_owned()).body(body)
        };
        opened(&self.client.call(call).await?)
    }

    /// Wakes a paused object, or extends the lifetime of a running one; `None`: it is not there. Without `memory` it boots from its
    /// files.
    pub(crate) async fn connect(&self, id: &str, memory: bool) -> Result<Option<Opened>, CallError> {
        let mut body = json!({ "timeout": self.timeout });
        if !memory {
            body["memory"] = Value::from(false);
        }
        let call = VendorCall {
            attempt_within: CREATE_WITHIN,
            within: CREATE_WITHIN * 2,
            ..VendorCall::new(Method::POST, format!("/v2/sandboxes/{id}/connect")).body(body)
        };
        unless_missing(self.client.call(call).await)?.map(|answer| opened(&answer)).transpose()
    }

    /// Pauses an object; without `memory` only its files are kept. `None`: it is not there. Idempotent.
    pub(crate) async fn pause(&self, id: &str, memory: bool) -> Result<Option<()>, CallError> {
        let body = if memory { json!({}) } else { json!({ "memory": false }) };
        let call = VendorCall {
            attempt_within: CREATE_WITHIN,
            within: CREATE_WITHIN * 2,
            ..VendorCall::new(Method::POST, format!("/sandboxes/{id}/pause")).body(body)
        };
        match unless_missing(self.client.call(call).await) {
            Err(error) if error.is_status(409) => match self.state(id).await? {
                Some(ServiceState::Paused) => Ok(Some(())),
                Some(ServiceState::Running) => Err(error),
                None => Ok(None),
            },
            outcome => Ok(outcome?.map(drop)),
        }
    }

    /// Removes an object. Idempotent.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), CallError> {
        let call = VendorCall::new(Method::DELETE, format!("/sandboxes/{id}"));
        unless_missing(self.client.call(call).await).map(drop)
    }

    /// Sets the lifetime of a running object anew; `None`: it does not run.
    pub(crate) async fn extend(&self, id: &str) -> Result<Option<()>, CallError> {
        let call = VendorCall::new(Method::POST, format!("/sandboxes/{id}/timeout"));
        let done = self.client.call(call.body(json!({ "timeout": self.timeout }))).await;
        Ok(unless_missing(done)?.map(drop))
    }

    /// What an object does; `None`: it is not there.
    pub(crate) async fn state(&self, id: &str) -> Result<Option<ServiceState>, CallError> {
        #[derive(Deserialize)]
        struct Detail {
            state: ServiceState,
        }
        let call = VendorCall::new(Method::GET, format!("/sandboxes/{id}"));
        let answer = unless_missing(self.client.call(call).await)?;
        answer.map(|answer| parsed_answer::<Detail>(&answer).map(|detail| detail.state)).transpose()
    }

    /// The newest measurement; `None`: the object is not there.
    pub(crate) async fn measure(&self, id: &str) -> Result<Option<Measurement>, CallError> {
        let call = VendorCall::new(Method::GET, format!("/sandboxes/{id}/metrics"));
        let Some(answer) = unless_missing(self.client.call(call).await)? else { return Ok(None) };
        let all: Vec<Measurement> = parsed_answer(&answer)?;
        Ok(Some(all.last().copied().unwrap_or_default()))
    }

    /// Whether there is a template or alias of this name.
    pub(crate) async fn has_template(&self, name: &str) -> Result<bool, CallError> {
        let escaped = utf8_percent_encode(name, NON_ALPHANUMERIC).to_string();
        for path in [format!("/templates/aliases/{escaped}"), format!("/templates/{escaped}")] {
            match self.client.call(VendorCall::new(Method::GET, path)).await {
                Ok(_) => return Ok(true),
                // It exists and belongs to somebody else, who may have published it.
                Err(error) if error.is_status(403) => return Ok(true),
                Err(error) if error.is_status(404) || error.is_status(400) || error.is_status(405) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// The objects of this server, or those of one of its sandboxes.
    pub(crate) async fn owned(&self, sandbox: Option<&SandboxId>) -> Result<Vec<OwnedObject>, CallError> {
        let mut found: BTreeMap<String, OwnedObject> = BTreeMap::new();
        let mut next = String::new();
        for _ in 0..PAGES_MAX {
            let labels = label_query(&self.owner, sandbox);
            let path = format!("/v2/sandboxes?metadata={labels}&state=running%2Cpaused&limit=100{next}");
            let answer = self.client.call(VendorCall::new(Method::GET, path)).await?;
            let page: Vec<Listed> = parsed_answer(&answer)?;
            // The filter is the service's; that an object is ours is decided here.
            let own = page.into_iter().filter_map(|listed| self.own(listed));
            let wanted = own.filter(|object| sandbox.is_none_or(|sandbox| *sandbox == object.sandbox));
            found.extend(wanted.map(|object| (object.id.clone(), object)));
            match next_page(&answer) {
                Some(token) => next = token,
                None => return Ok(found.into_values().collect()),
            }
        }
        Err(unreadable_answer())
    }

    fn own(&self, listed: Listed) -> Option<OwnedObject> {
        let (sandbox, instance) = read_labels(&listed.metadata?, &self.owner)?;
        let Listed { id, state, started_at, .. } = listed;
        is_id(&id).then_some(OwnedObject { id, sandbox, instance, state, started_at })
    }

    fn snapshot_name(&self, snapshot: &SnapshotId) -> String {
        format!("atoll-{}-{snapshot}", self.owner)
    }

    /// Takes a snapshot of the files of an object; the service's id of it. After [`CallError::Unanswered`] it may be there; it is
    /// not asked for again here.
    pub(crate) async fn snapshot(&self, object: &str, snapshot: &SnapshotId) -> Result<String, CallError> {
        let body = json!({ "name": self.snapshot_name(snapshot), "memory": false });
        let call = VendorCall {
            repeat: Repeat::Unsent,
            attempt_within: SNAPSHOT_WITHIN,
            within: SNAPSHOT_WITHIN,
            ..VendorCall::new(Method::POST, format!("/sandboxes/{object}/snapshots")).body(body)
        };
        let made: ListedSnapshot = parsed_answer(&self.client.call(call).await?)?;
        if is_snapshot_id(&made.id) { Ok(made.id) } else { Err(unreadable_answer()) }
    }

    /// The snapshots of this server, or one of them.
    pub(crate) async fn snapshots(&self, one: Option<&SnapshotId>) -> Result<Vec<OwnedSnapshot>, CallError> {
        let name = one.map_or_else(String::new, |one| format!("&name={}", self.snapshot_name(one)));
        let (mut found, mut next) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let path = format!("/snapshots?limit=100{name}{next}");
            let answer = self.client.call(VendorCall::new(Method::GET, path)).await?;
            let page: Vec<ListedSnapshot> = parsed_answer(&answer)?;
            // The filter is the service's; that a snapshot is ours is decided here.
            let own = page.into_iter().filter_map(|listed| own_snapshot(listed, &self.owner));
            found.extend(own.filter(|own| one.is_none_or(|one| *one == own.snapshot)));
            match next_page(&answer) {
                Some(token) => next = token,
                None => return Ok(found),
            }
        }
        Err(unreadable_answer())
    }

    /// Removes a snapshot by the service's id. Idempotent.
    pub(crate) async fn remove_snapshot(&self, id: &str) -> Result<(), CallError> {
        let escaped = utf8_percent_encode(id, NON_ALPHANUMERIC);
        let call = VendorCall::new(Method::DELETE, format!("/templates/{escaped}"));
        unless_missing(self.client.call(call).await).map(drop)
    }

    /// Whether an object reaches the internet; `None`: it is not there.
    pub(crate) async fn internet(&self, id: &str) -> Result<Option<bool>, CallError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Detail {
            #[serde(default)]
            allow_internet_access: Option<bool>,
        }
        let call = VendorCall::new(Method::GET, format!("/sandboxes/{id}"));
        let Some(answer) = unless_missing(self.client.call(call).await)? else { return Ok(None) };
        // A create says it; a service that does not tell it again cannot be asked for the same.
        parsed_answer::<Detail>(&answer)?.allow_internet_access.map(Some).ok_or_else(unreadable_answer)
    }

    /// Whether the service answers and accepts the key.
    pub(crate) async fn check(&self) -> Result<(), CallError> {
        let path = format!("/v2/sandboxes?metadata={}&limit=1", label_query(&self.owner, None));
        let call = VendorCall { within: Duration::from_secs(8), ..VendorCall::new(Method::GET, path) };
        let answer = self.client.call(call).await?;
        parsed_answer::<Vec<Listed>>(&answer).map(drop)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_snapshots_with_a_name_of_this_server_are_its_own() {
        let snapshot = SnapshotId::from_entropy([7; 20]);
        let read = |id: &str, names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            own_snapshot(ListedSnapshot { id: id.to_owned(), names }, "me")
        };
        let name = format!("atoll-me-{snapshot}");
        for (id, names) in [
            (format!("{name}:default"), vec![]),
            ("tmpl123:default".to_owned(), vec![format!("team/{name}:default")]),
            (format!("team/{name}"), vec![]),
        ] {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            assert_eq!(read(&id, &names), Some(OwnedSnapshot { id: id.clone(), snapshot: snapshot.clone() }));
        }
        let others = [
            format!("atoll-you-{snapshot}"),
            format!("atoll-me2-{snapshot}"),
            "atoll-me-x".to_owned(),
            "my-snap".to_owned(),
        ];
        for other in others {
            assert_eq!(read(&other, &[]), None, "{other}");
        }
        assert_eq!(read("an id\n", &[&name]), None);
    }
}
