//! The calls of Daytona's control API that this provider makes.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_model::{InstanceId, SandboxId};
use atoll_provider::ProviderError;
use atoll_remote::{
    CallError, OWNER_LABEL, Repeat, SANDBOX_LABEL, VendorAnswer, VendorCall, VendorClient, object_labels,
    parsed_answer, read_labels, unless_missing, unreadable_answer,
};
use http::{HeaderName, HeaderValue, Method, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::settings::{DaytonaSettings, unusable};

/// LIMIT: pages of a list of own objects; a hundred objects each.
const PAGES_MAX: usize = 200;
/// LIMIT: a sandbox starts within seconds.
const CREATE_WITHIN: Duration = Duration::from_secs(60);

/// What an object does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServiceState {
    /// Its processes run.
    Started,
    /// It will run.
    Starting,
    /// It will be stopped.
    Stopping,
    /// It will be paused.
    Pausing,
    /// Its processes stand still, with their memory.
    Paused,
    /// Only its files are there, perhaps in an archive.
    Stopped,
    /// It could not be made or kept.
    Failed,
    /// It is removed, or will be.
    Destroyed,
}

impl ServiceState {
    fn of(word: &str) -> Self {
        match word {
            "started" | "resizing" | "snapshotting" | "forking" => Self::Started,
            "stopped" | "archived" | "archiving" => Self::Stopped,
            "stopping" => Self::Stopping,
            "pausing" => Self::Pausing,
            "paused" => Self::Paused,
            "error" | "build_failed" => Self::Failed,
            "destroyed" | "destroying" => Self::Destroyed,
            // A state of a newer service is one that passes: whoever waits for its end has a deadline.
            _ => Self::Starting,
        }
    }
}

/// An object, as far as it is read.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answered {
    id: String,
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    toolbox_proxy_url: Option<String>,
    #[serde(default)]
    created_at: Option<String>,
    #[serde(default)]
    error_reason: Option<String>,
}

/// An object of the service.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    pub(crate) id: String,
    pub(crate) state: ServiceState,
    /// The base address of its toolbox, without its id.
    pub(crate) toolbox_url: Option<String>,
    /// Why it failed.
    pub(crate) reason: Option<String>,
}

/// An object of this server.
pub(crate) type OwnedObject = atoll_remote::OwnedObject<ServiceState>;

/// The way to a port. Contains a token.
#[derive(Clone, Deserialize)]
pub(crate) struct PortLink {
    pub(crate) url: String,
    #[serde(default)]
    pub(crate) token: String,
}

/// What a new object is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ObjectBase<'a> {
    /// The default of the account.
    Default,
    /// A snapshot of the account.
    Snapshot(&'a str),
    /// An image of a registry, which the service builds a sandbox from.
    Image(&'a str),
}

/// The body of a create.
pub(crate) struct NewObject<'a> {
    pub(crate) base: ObjectBase<'a>,
    pub(crate) sandbox: &'a SandboxId,
    pub(crate) instance: &'a InstanceId,
    pub(crate) internet: bool,
}

/// The API of one account.
#[derive(Debug)]
pub(crate) struct DaytonaApi {
    client: VendorClient,
    owner: String,
    target: Option<String>,
    user: Option<String>,
    organization: Option<HeaderValue>,
    auto_stop_minutes: u64,
}

/// An id becomes a part of paths.
fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 63 && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn described(answer: &VendorAnswer) -> Result<Described, CallError> {
    let object: Answered = parsed_answer(answer)?;
    if !is_id(&object.id) {
        return Err(unreadable_answer());
    }
    Ok(Described {
        id: object.id,
        state: ServiceState::of(object.state.as_deref().unwrap_or_default()),
        toolbox_url: object.toolbox_proxy_url.filter(|url| !url.is_empty()),
        reason: object.error_reason,
    })
}

fn escaped(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

impl DaytonaApi {
    pub(crate) fn new(settings: &DaytonaSettings, owner: String) -> Result<Self, ProviderError> {
        let key = settings.api_key.expose();
        let client = VendorClient::new(&settings.api_url, header::AUTHORIZATION, "Bearer ", key);
        let organization = settings.organization.as_deref().map(HeaderValue::from_str).transpose();
        Ok(Self {
            client: client.map_err(|why| unusable(&why))?,
            owner,
            target: settings.target.clone(),
            user: settings.user.clone(),
            organization: organization.map_err(|_| unusable("organization cannot be sent"))?,
            auto_stop_minutes: settings.auto_stop_minutes(),
        })
    }

    /// A client of the toolbox at this address.
    pub(crate) fn toolbox(&self, base: &str) -> Result<VendorClient, String> {
        self.client.sibling(base)
    }

    /// The headers that every request has beside the key.
    pub(crate) fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let name = HeaderName::from_static("x-daytona-organization-id");
        let organization = self.organization.clone().map(|value| (name, value));
        let source = (HeaderName::from_static("x-daytona-source"), HeaderValue::from_static("atoll"));
        std::iter::once(source).chain(organization).collect()
    }

    fn request(&self, method: Method, path: String) -> VendorCall {
        VendorCall { headers: self.headers(), ..VendorCall::new(method, path) }
    }

    fn slow(&self, method: Method, path: String) -> VendorCall {
        let call = self.request(method, path);
        VendorCall { attempt_within: CREATE_WITHIN, within: CREATE_WITHIN * 2, ..call }
    }

    /// A text of the service that may be shown.
    pub(crate) fn redacted(&self, text: &str) -> String {
        self.client.redacted(text)
    }

    /// Makes an object. After [`CallError::Unanswered`], and after a refusal with 409, it may be there: its name is taken.
    pub(crate) async fn create(&self, new: &NewObject<'_>) -> Result<Described, CallError> {
        let call = self.slow(Method::POST, "/sandbox".to_owned()).body(self.new_body(new));
        described(&self.client.call(VendorCall { repeat: Repeat::Unsent, ..call }).await?)
    }

    fn new_body(&self, new: &NewObject<'_>) -> Value {
        let mut body = json!({
            // Unique in the account: a second create for the same instance is refused there.
            "name": format!("atoll-{}-{}", new.sandbox, new.instance),
            "labels": object_labels(&self.owner, new.sandbox, new.instance),
            "autoStopInterval": self.auto_stop_minutes,
            "autoDeleteInterval": -1,
            // Ports are reached through this server, which knows who may.
            "public": false,
            "networkBlockAll": !new.internet,
        });
        match new.base {
            ObjectBase::Default => {}
            ObjectBase::Snapshot(name) => body["snapshot"] = Value::from(name),
            ObjectBase::Image(name) => {
                body["buildInfo"] = json!({ "dockerfileContent": format!("FROM {name}\n") });
            }
        }
        for (name, value) in [("target", &self.target), ("user", &self.user)] {
            if let Some(value) = value {
                body[name] = Value::from(value.as_str());
            }
        }
        body
    }

    /// An object; `None`: it is not there.
    pub(crate) async fn find(&self, id: &str) -> Result<Option<Described>, CallError> {
        let answer = self.client.call(self.request(Method::GET, format!("/sandbox/{id}"))).await;
        let found = unless_missing(answer)?.map(|answer| described(&answer)).transpose()?;
        Ok(found.filter(|found| found.state != ServiceState::Destroyed))
    }

    /// Asks that an object starts; `None`: it is not there. Idempotent.
    pub(crate) async fn start(&self, id: &str) -> Result<Option<()>, CallError> {
        self.act(id, "start").await
    }

    /// Asks that an object stops; `None`: it is not there.
    pub(crate) async fn stop(&self, id: &str) -> Result<Option<()>, CallError> {
        self.act(id, "stop?force=true").await
    }

    /// Asks that an object is paused with its memory; `None`: it is not there, or the service has no such call.
    pub(crate) async fn pause(&self, id: &str) -> Result<Option<()>, CallError> {
        self.act(id, "pause").await
    }

    async fn act(&self, id: &str, verb: &str) -> Result<Option<()>, CallError> {
        let call = self.slow(Method::POST, format!("/sandbox/{id}/{verb}"));
        Ok(unless_missing(self.client.call(call).await)?.map(drop))
    }

    /// Asks that an object is removed. Idempotent.
    pub(crate) async fn delete(&self, id: &str) -> Result<(), CallError> {
        let call = self.slow(Method::DELETE, format!("/sandbox/{id}"));
        unless_missing(self.client.call(call).await).map(drop)
    }

    /// Writes the labels of an object anew; `None`: it is not there.
    pub(crate) async fn label(
        &self,
        id: &str,
        sandbox: &SandboxId,
        instance: &InstanceId,
    ) -> Result<Option<()>, CallError> {
        let body = json!({ "labels": object_labels(&self.owner, sandbox, instance) });
        let call = self.request(Method::PUT, format!("/sandbox/{id}/labels")).body(body);
        Ok(unless_missing(self.client.call(call).await)?.map(drop))
    }

    /// Tells the service that an object is in use; `None`: it is not there.
    pub(crate) async fn sign_of_life(&self, id: &str) -> Result<Option<()>, CallError> {
        self.act(id, "last-activity").await
    }

    /// The way to a port of an object; `None`: it is not there.
    pub(crate) async fn port_link(&self, id: &str, port: u16) -> Result<Option<PortLink>, CallError> {
        let call = self.request(Method::GET, format!("/sandbox/{id}/ports/{port}/preview-url"));
        unless_missing(self.client.call(call).await)?.map(|answer| parsed_answer(&answer)).transpose()
    }

    /// The address of an object's toolbox, where its description has none.
    pub(crate) async fn toolbox_url(&self, id: &str) -> Result<Option<String>, CallError> {
        #[derive(Deserialize)]
        struct Address {
            url: String,
        }
        let call = self.request(Method::GET, format!("/sandbox/{id}/toolbox-proxy-url"));
        let answer = unless_missing(self.client.call(call).await)?;
        answer.map(|answer| parsed_answer::<Address>(&answer).map(|address| address.url)).transpose()
    }

    /// Whether there is a snapshot of this name.
    pub(crate) async fn has_snapshot(&self, name: &str) -> Result<bool, CallError> {
        let call = self.request(Method::GET, format!("/snapshots/{}", escaped(name)));
        match self.client.call(call).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_status(404) || error.is_status(400) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The objects of this server, or those of one of its sandboxes.
    pub(crate) async fn owned(&self, sandbox: Option<&SandboxId>) -> Result<Vec<OwnedObject>, CallError> {
        let mut labels = json!({ OWNER_LABEL: self.owner });
        if let Some(sandbox) = sandbox {
            labels[SANDBOX_LABEL] = Value::from(sandbox.as_str());
        }
        let labels = escaped(&labels.to_string());
        let mut found: BTreeMap<String, OwnedObject> = BTreeMap::new();
        let mut next = String::new();
        for _ in 0..PAGES_MAX {
            let path = format!("/sandbox?limit=100&labels={labels}{next}");
            let answer = self.client.call(self.request(Method::GET, path)).await?;
            let ListPage { items, next_cursor } = page(&answer)?;
            // The filter is the service's; that an object is ours is decided here.
            let own = items.into_iter().filter_map(|listed| self.own(listed));
            let wanted = own.filter(|object| sandbox.is_none_or(|sandbox| *sandbox == object.sandbox));
            found.extend(wanted.map(|object| (object.id.clone(), object)));
            match next_cursor.filter(|cursor| !cursor.is_empty()) {
                Some(cursor) => next = format!("&cursor={}", escaped(&cursor)),
                None => return Ok(found.into_values().collect()),
            }
        }
        Err(unreadable_answer())
    }

    fn own(&self, listed: Answered) -> Option<OwnedObject> {
        let (sandbox, instance) = read_labels(&listed.labels?, &self.owner)?;
        let state = ServiceState::of(listed.state.as_deref().unwrap_or_default());
        let started_at = listed.created_at.unwrap_or_default();
        let is_there = is_id(&listed.id) && state != ServiceState::Destroyed;
        is_there.then_some(OwnedObject { id: listed.id, sandbox, instance, state, started_at })
    }

    /// Whether the service answers and accepts the key.
    pub(crate) async fn check(&self) -> Result<(), CallError> {
        let labels = escaped(&json!({ OWNER_LABEL: self.owner }).to_string());
        let call = self.request(Method::GET, format!("/sandbox?limit=1&labels={labels}"));
        let answer = self.client.call(VendorCall { within: Duration::from_secs(8), ..call }).await?;
        page(&answer).map(drop)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListPage {
    items: Vec<Answered>,
    #[serde(default)]
    next_cursor: Option<String>,
}

/// A page of a list. COMPAT(daytona): older services answer with all objects in one array.
fn page(answer: &VendorAnswer) -> Result<ListPage, CallError> {
    if answer.body.first() == Some(&b'[') {
        return Ok(ListPage { items: parsed_answer(answer)?, next_cursor: None });
    }
    parsed_answer(answer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn answer(body: &'static str) -> VendorAnswer {
        VendorAnswer { status: http::StatusCode::OK, headers: Default::default(), body: body.into() }
    }

    #[test]
    fn both_forms_of_a_list_are_read() {
        let new =
            page(&answer(r#"{"items": [{"id": "a", "state": "started"}], "nextCursor": "x"}"#)).unwrap();
        assert_eq!((new.items.len(), new.next_cursor.as_deref()), (1, Some("x")));
        let old = page(&answer(r#"[{"id": "a"}, {"id": "b"}]"#)).unwrap();
        assert_eq!((old.items.len(), old.next_cursor), (2, None));
        assert!(page(&answer("{}")).is_err());
    }

    #[test]
    fn an_image_is_built_by_the_service_and_a_snapshot_is_named() {
        let settings = DaytonaSettings {
            api_key: crate::ApiKey::new("k".to_owned()),
            api_url: "http://127.0.0.1:1".to_owned(),
            target: None,
            organization: None,
            snapshot: None,
            user: None,
            cwd: None,
            timeout: 300,
        };
        let api = DaytonaApi::new(&settings, "owner".to_owned()).unwrap();
        let (sandbox, instance) = (SandboxId::from_entropy([1; 20]), InstanceId::from_entropy([2; 20]));
        let body = |base| {
            let body =
                api.new_body(&NewObject { base, sandbox: &sandbox, instance: &instance, internet: true });
            (body["snapshot"].clone(), body["buildInfo"].clone())
        };
        assert_eq!(body(ObjectBase::Default), (Value::Null, Value::Null));
        assert_eq!(body(ObjectBase::Snapshot("mine")), (json!("mine"), Value::Null));
        let built = json!({ "dockerfileContent": "FROM python:3.12-slim\n" });
        assert_eq!(body(ObjectBase::Image("python:3.12-slim")), (Value::Null, built));
    }

    #[test]
    fn ids_become_parts_of_paths_only_if_they_are_plain() {
        assert!(described(&answer(r#"{"id": "a-1", "state": "stopped"}"#)).is_ok());
        for bad in [r#"{"id": ""}"#, r#"{"id": "../x"}"#, r#"{"id": "a?b"}"#, "[]"] {
            let body = bad.to_owned().into();
            let answer = VendorAnswer { body, ..answer("") };
            assert!(described(&answer).is_err(), "{bad}");
        }
        assert_eq!(ServiceState::of("archived"), ServiceState::Stopped);
        assert_eq!(ServiceState::of("paused"), ServiceState::Paused);
        assert_eq!(ServiceState::of("some new state"), ServiceState::Starting);
    }
}
