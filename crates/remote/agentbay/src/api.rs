//! The actions of AgentBay's API that this provider calls.
//!
//! Every action is a `POST` of a form with the key in a field. Answers have the fields `Success`, `Code`, `Message` and `Data`;
//! an answer with status 200 can be a refusal.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_model::{InstanceId, SandboxId};
use atoll_provider::ProviderError;
use atoll_remote::{CallError, KeyPlace, Repeat, VendorAnswer, VendorCall, VendorClient};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::settings::{AgentbaySettings, unusable};

const VERSION: &str = "2025-05-06";
/// LIMIT: pages of one list, and sessions of a page.
const PAGES_MAX: usize = 200;
const PAGE: usize = 50;
/// LIMIT: a session starts within seconds.
const CREATE_WITHIN: Duration = Duration::from_secs(60);
/// The names of the labels.
const OWNER: &str = "atoll.owner";
const SANDBOX: &str = "atoll.sandbox";
const INSTANCE: &str = "atoll.instance";
/// The states in which a session is there, as a list is asked for them. They are in the order in which a session goes through them, so
/// that one that changes meanwhile is in one of the lists.
const LISTED_STATES: [&str; 5] = ["RUNNING", "PAUSING", "PAUSED", "RESUMING", "RUNNING"];

/// What a session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionState {
    Running,
    Pausing,
    Paused,
    Resuming,
}

impl SessionState {
    /// `None`: the session is being deleted, or is gone.
    fn parse(text: &str) -> Option<Self> {
        match text {
            "PAUSING" => Some(Self::Pausing),
            "PAUSED" => Some(Self::Paused),
            "RESUMING" => Some(Self::Resuming),
            "DELETING" | "DELETED" | "FINISH" => None,
            // A state that this version does not know is that of a session which is there.
            _ => Some(Self::Running),
        }
    }
}

/// A session of this server.
pub(crate) type OwnedSession = atoll_remote::OwnedObject<SessionState>;

/// The result of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolAnswer {
    pub(crate) text: String,
    /// The tool failed; the text says why.
    pub(crate) is_error: bool,
}

/// The outer part of every answer.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Envelope {
    success: Option<bool>,
    code: Option<String>,
    message: Option<String>,
    http_status_code: Option<u16>,
    data: Value,
    next_token: Option<String>,
}

/// The API of one account.
#[derive(Debug)]
pub(crate) struct AgentbayApi {
    /// Calls about sessions.
    control: VendorClient,
    /// Calls into sessions: commands that take long must not keep the others waiting.
    tools: VendorClient,
    owner: String,
    region: String,
    timeout: Option<u64>,
}

/// Why an answer cannot be used, without its text: that may contain tokens.
fn unreadable() -> CallError {
    CallError::Unanswered { why: "the answer is not what the API promises".to_owned() }
}

/// The service's word for too many calls comes with several statuses.
fn is_throttled(answer: &VendorAnswer) -> bool {
    let refusal = || serde_json::from_slice::<Envelope>(&answer.body).ok();
    let is_throttling = |code: String| code.starts_with("Throttling");
    answer.body.len() < 4_096 && refusal().and_then(|body| body.code).is_some_and(is_throttling)
}

/// Whether the service does not have the session.
pub(crate) fn is_missing(error: &CallError) -> bool {
    matches!(error, CallError::Refused { message, .. } if message.contains("InvalidMcpSession.NotFound"))
}

fn unless_missing<T>(outcome: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match outcome {
        Err(error) if is_missing(&error) => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// `Data` is an object, or an object as a text.
fn object(data: &Value) -> Value {
    match data {
        Value::String(text) => serde_json::from_str(text).unwrap_or_default(),
        other => other.clone(),
    }
}

/// An id goes into forms and log lines.
fn is_id(id: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !id.is_empty() && id.len() <= 128 && id.bytes().all(is_plain)
}

/// The service refuses requests of another day.
#[expect(
    clippy::disallowed_methods,
    reason = "the vendor compares it with its own clock; nothing here depends on it"
)]
fn timestamp() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

fn call(action: &str, fields: Vec<(&'static str, String)>) -> VendorCall {
    let query = format!("/?Action={action}&Format=json&Version={VERSION}&Timestamp={}", timestamp());
    let header = |name, value: &str| http::HeaderValue::from_str(value).ok().map(|value| (name, value));
    let headers = [
        header(http::HeaderName::from_static("x-acs-action"), action),
        header(http::HeaderName::from_static("x-acs-version"), VERSION),
    ];
    VendorCall {
        nonce: Some("SignatureNonce"),
        is_limited: is_throttled,
        headers: headers.into_iter().flatten().collect(),
        ..VendorCall::new(Method::POST, query.replace(':', "%3A")).form(fields)
    }
}

fn session_field(id: &str) -> Vec<(&'static str, String)> {
    vec![("SessionId", id.to_owned())]
}

impl AgentbayApi {
    pub(crate) fn new(
        settings: &AgentbaySettings,
        owner: String,
        authorities: &[Vec<u8>],
    ) -> Result<Self, ProviderError> {
        let client = || {
            let place = KeyPlace::FormField("Authorization");
            VendorClient::open(&settings.base(), place, "Bearer ", settings.api_key.expose(), authorities)
                .map_err(|why| unusable(&why))
        };
        let region = settings.region().to_owned();
        Ok(Self { control: client()?, tools: client()?, owner, region, timeout: settings.timeout })
    }

    async fn send(&self, client: &VendorClient, call: VendorCall) -> Result<Envelope, CallError> {
        let answer = client.call(call).await?;
        let envelope: Envelope = serde_json::from_slice(&answer.body).map_err(|_| unreadable())?;
        if envelope.success == Some(false) {
            let (code, message) = (envelope.code.unwrap_or_default(), envelope.message.unwrap_or_default());
            let status = envelope.http_status_code.filter(|status| *status >= 400).unwrap_or(400);
            let message = client.redacted(&format!("[{code}] {message}"));
            return Err(CallError::Refused { status, message });
        }
        Ok(envelope)
    }

    async fn control(&self, call: VendorCall) -> Result<Envelope, CallError> {
        self.send(&self.control, call).await
    }

    fn labels(&self, sandbox: Option<&SandboxId>, instance: Option<&InstanceId>) -> String {
        let mut labels = BTreeMap::from([(OWNER, self.owner.as_str())]);
        labels.extend(sandbox.map(|sandbox| (SANDBOX, sandbox.as_str())));
        labels.extend(instance.map(|instance| (INSTANCE, instance.as_str())));
        json!(labels).to_string()
    }

    /// Makes a session. After [`CallError::Unanswered`] it may be there; it is not asked for again here.
    pub(crate) async fn create(
        &self,
        image: &str,
        sandbox: &SandboxId,
        instance: &InstanceId,
    ) -> Result<String, CallError> {
        let about =
            json!({ "source": "atoll", "sdk_language": "rust", "sdk_version": env!("CARGO_PKG_VERSION") });
        let lifetime = match self.timeout {
            Some(seconds) => ("Timeout", seconds.to_string()),
            None => ("ManualRelease", "True".to_owned()),
        };
        let fields = vec![
            ("ImageId", image.to_owned()),
            ("Labels", self.labels(Some(sandbox), Some(instance))),
            ("LoginRegionId", self.region.clone()),
            ("SdkStats", about.to_string()),
            lifetime,
        ];
        let call = VendorCall {
            repeat: Repeat::Unsent,
            attempt_within: CREATE_WITHIN,
            within: CREATE_WITHIN * 2,
            ..call("CreateMcpSession", fields)
        };
        let data = object(&self.control(call).await?.data);
        if data["Success"] == Value::Bool(false) {
            let message = self.control.redacted(data["ErrMsg"].as_str().unwrap_or("no session was made"));
            return Err(CallError::Refused { status: 400, message });
        }
        let id = data["SessionId"].as_str().filter(|id| is_id(id)).ok_or_else(unreadable)?;
        Ok(id.to_owned())
    }

    /// What a session does; `None`: it is not there.
    pub(crate) async fn state(&self, id: &str) -> Result<Option<SessionState>, CallError> {
        let found = unless_missing(self.control(call("GetSession", session_field(id))).await)?;
        let state = |data: Value| data["Status"].as_str().map(SessionState::parse);
        match found.map(|found| state(object(&found.data))) {
            None => Ok(None),
            Some(state) => state.ok_or_else(unreadable),
        }
    }

    /// Whether a session that was deleted is gone.
    pub(crate) async fn is_deleted(&self, id: &str) -> Result<bool, CallError> {
        // COMPAT(agentbay): this action takes the id in the query.
        let mut detail = call("GetSessionDetail", Vec::new());
        detail.path.push_str(&format!("&SessionId={id}"));
        let found = unless_missing(self.control(detail).await)?;
        let is_finished = |found: Envelope| object(&found.data)["Status"] == "FINISH";
        Ok(found.is_none_or(is_finished))
    }

    /// Asks the service to delete a session. Idempotent.
    pub(crate) async fn delete(&self, id: &str) -> Result<(), CallError> {
        unless_missing(self.control(call("DeleteSessionAsync", session_field(id))).await).map(drop)
    }

    /// Asks for a pause; `None`: the session is not there.
    pub(crate) async fn pause(&self, id: &str) -> Result<Option<()>, CallError> {
        let asked = self.control(call("PauseSessionAsync", session_field(id))).await;
        Ok(unless_missing(asked)?.map(drop))
    }

    /// Asks for a resume; `None`: the session is not there.
    pub(crate) async fn resume(&self, id: &str) -> Result<Option<()>, CallError> {
        let asked = self.control(call("ResumeSessionAsync", session_field(id))).await;
        Ok(unless_missing(asked)?.map(drop))
    }

    /// Begins the idle time of a session anew; `None`: it is not there.
    pub(crate) async fn refresh(&self, id: &str) -> Result<Option<()>, CallError> {
        let done = self.control(call("RefreshSessionIdleTime", session_field(id))).await;
        Ok(unless_missing(done)?.map(drop))
    }

    /// The address at which the service serves a port. It may contain tokens.
    pub(crate) async fn link(&self, id: &str, port: u16) -> Result<String, CallError> {
        let fields = vec![
            ("SessionId", id.to_owned()),
            ("ProtocolType", "https".to_owned()),
            ("Port", port.to_string()),
        ];
        let data = object(&self.control(call("GetLink", fields)).await?.data);
        data["Url"].as_str().map(str::to_owned).ok_or_else(unreadable)
    }

    /// Whether sandboxes can be made from an image: the service knows its tools.
    pub(crate) async fn has_image(&self, image: &str) -> Result<bool, CallError> {
        match self.control(call("ListMcpTools", vec![("ImageId", image.to_owned())])).await {
            Ok(_) => Ok(true),
            Err(CallError::Refused { status: 400 | 404, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Calls a tool in a session.
    pub(crate) async fn tool(
        &self,
        id: &str,
        name: &str,
        args: &Value,
        repeat: Repeat,
    ) -> Result<ToolAnswer, CallError> {
        let fields = vec![
            ("SessionId", id.to_owned()),
            ("Name", name.to_owned()),
            ("Args", args.to_string()),
            ("AutoGenSession", "False".to_owned()),
        ];
        let within = Duration::from_secs(70);
        let call =
            VendorCall { repeat, attempt_within: within, within: within * 2, ..call("CallMcpTool", fields) };
        let data = object(&self.send(&self.tools, call).await?.data);
        let text = data["content"][0]["text"].as_str();
        let is_error = data["isError"].as_bool().unwrap_or(false);
        text.map(|text| ToolAnswer { text: text.to_owned(), is_error }).ok_or_else(unreadable)
    }

    /// One page after another of the sessions with these labels, in one state or in any.
    async fn listed(
        &self,
        labels: &str,
        state: Option<&str>,
    ) -> Result<Vec<(String, SessionState)>, CallError> {
        let mut found = Vec::new();
        let mut next: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut fields = vec![("Labels", labels.to_owned()), ("MaxResults", PAGE.to_string())];
            fields.extend(next.take().map(|token| ("NextToken", token)));
            fields.extend(state.map(|state| ("Status", state.to_owned())));
            let page = self.control(call("ListSession", fields)).await?;
            for item in page.data.as_array().into_iter().flatten() {
                let (id, state) = (item["SessionId"].as_str(), item["SessionStatus"].as_str());
                let state = SessionState::parse(state.unwrap_or_default());
                found.extend(id.filter(|id| is_id(id)).map(str::to_owned).zip(state));
            }
            match page.next_token.filter(|token| !token.is_empty()) {
                Some(token) => next = Some(token),
                None => return Ok(found),
            }
        }
        Err(unreadable())
    }

    /// The sessions that the service lists under the owner of this server, or under one of its sandboxes. Their labels are not in
    /// the list: see [`Self::identity`].
    pub(crate) async fn candidates(
        &self,
        sandbox: Option<&SandboxId>,
    ) -> Result<Vec<(String, SessionState)>, CallError> {
        let labels = self.labels(sandbox, None);
        if sandbox.is_some() {
            return self.listed(&labels, None).await;
        }
        // State by state: a list of all states has every session that there ever was.
        let mut found = BTreeMap::new();
        for state in LISTED_STATES {
            found.extend(self.listed(&labels, Some(state)).await?);
        }
        Ok(found.into_iter().collect())
    }

    /// Which sandbox and instance a session is, by its labels; `None`: it is somebody else's, or gone.
    pub(crate) async fn identity(&self, id: &str) -> Result<Option<(SandboxId, InstanceId)>, CallError> {
        let found = unless_missing(self.control(call("GetLabel", session_field(id))).await)?;
        let Some(found) = found else { return Ok(None) };
        let labels = object(&object(&found.data)["Labels"]);
        let is_ours = labels[OWNER] == self.owner.as_str();
        let sandbox = labels[SANDBOX].as_str().and_then(|text| text.parse().ok());
        let instance = labels[INSTANCE].as_str().and_then(|text| text.parse().ok());
        Ok(sandbox.zip(instance).filter(|_| is_ours))
    }

    /// Whether the service answers and accepts the key.
    pub(crate) async fn check(&self) -> Result<(), CallError> {
        let fields = vec![("Labels", self.labels(None, None)), ("MaxResults", "1".to_owned())];
        let call = VendorCall { within: Duration::from_secs(8), ..call("ListSession", fields) };
        self.control(call).await.map(drop)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_is_not_there_is_known_by_its_code() {
        let refused = |message: &str| CallError::Refused { status: 400, message: message.to_owned() };
        assert!(is_missing(&refused("[InvalidMcpSession.NotFound] no such session")));
        assert!(!is_missing(&refused("[InvalidParameter] the image was NotFound")));
        assert_eq!(unless_missing::<()>(Err(refused("[InvalidMcpSession.NotFound] x"))), Ok(None));
    }

    #[test]
    fn data_is_read_as_an_object_and_as_a_text() {
        assert_eq!(object(&json!({ "a": 1 }))["a"], 1);
        assert_eq!(object(&json!("{\"a\": 1}"))["a"], 1);
        assert_eq!(object(&json!("no object"))["a"], Value::Null);
    }

    #[test]
    fn a_request_has_the_form_of_the_api() {
        let call = call("GetSession", session_field("s-1"));
        assert!(
            call.path.starts_with("/?Action=GetSession&Format=json&Version=2025-05-06&Timestamp=2"),
            "{}",
            call.path
        );
        assert!(call.path.ends_with('Z') && !call.path.contains(':'), "{}", call.path);
        assert_eq!(call.form.unwrap(), [("SessionId", "s-1".to_owned())]);
    }

    #[test]
    fn words_of_states_are_read() {
        assert_eq!(SessionState::parse("RUNNING"), Some(SessionState::Running));
        assert_eq!(SessionState::parse("PAUSED"), Some(SessionState::Paused));
        for gone in ["DELETING", "DELETED", "FINISH"] {
            assert_eq!(SessionState::parse(gone), None);
        }
    }
}
