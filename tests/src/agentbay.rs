//! A service with AgentBay's API, written from what its own SDK sends and reads; that SDK checks it in `tests/tests/remote_agentbay.rs`.
//! Behind each session is a sandbox of the world's server, so that commands, files and pauses are real.
//!
//! ```text
//! client ═ TLS ═► FaultProxy ─► AgentbayService ─► the world's server
//! ```
//!
//! The image `linux_latest` answers the tool `shell` in its raw form, `code_latest` in the wrapped one. A pause, a resume and a
//! deletion take some looks.

mod tools;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::Client;

/// The key of the account.
pub const KEY: &str = "akm-0123-test-secret-key";
/// The images that there are.
pub const IMAGES: [&str; 2] = ["linux_latest", "code_latest"];
/// Looks that a change of a session takes.
const LOOKS: u32 = 2;
/// LIMIT: bytes of a message, as the service carries them.
const MESSAGE_MAX: usize = 63 << 10;

/// The parameters of a request.
type Fields = BTreeMap<String, String>;
/// A refusal: status, code, message.
type Refusal = (u16, &'static str, String);

/// One session.
#[derive(Debug, Clone)]
struct SessionRecord {
    /// The sandbox behind it.
    sandbox: String,
    image: String,
    labels: BTreeMap<String, String>,
    status: &'static str,
    /// Looks until a change is done, and what it is then.
    pending: Option<(u32, &'static str)>,
    idle: Option<Duration>,
    used_at: Instant,
}

#[derive(Default)]
struct ServiceState {
    sessions: BTreeMap<String, SessionRecord>,
    /// Ports by the secret part of their links.
    links: HashMap<String, (String, u16)>,
    actions: Vec<String>,
    made: u64,
    /// Where clients reach it, as it is written in links.
    public: String,
    /// What is told instead of the link of a port.
    false_link: Option<String>,
}

/// A running service; it ends with its value.
pub struct AgentbayService {
    /// Where it listens, without TLS.
    pub address: SocketAddr,
    shared: Arc<ServiceShared>,
    _tasks: JoinSet<()>,
}

struct ServiceShared {
    account: Client,
    state: Mutex<ServiceState>,
    http: reqwest::Client,
}

impl AgentbayService {
    /// A service whose sandboxes are those of an account of the world's server.
    pub async fn start(account: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, http) = (Mutex::default(), reqwest::Client::new());
        let shared = Arc::new(ServiceShared { account, state, http });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, shared, _tasks: tasks }
    }

    /// Where clients reach it, as it is written in links.
    pub fn set_public(&self, authority: &str) {
        self.shared.lock().public = authority.to_owned();
    }

    /// From now on this is told as the link of every port.
    pub fn set_false_link(&self, url: &str) {
        self.shared.lock().false_link = Some(url.to_owned());
    }

    /// The sessions with a label of this value: their ids and labels.
    pub fn sessions(&self, label: &str, value: &str) -> Vec<(String, BTreeMap<String, String>)> {
        let state = self.shared.lock();
        let has = |record: &SessionRecord| record.labels.get(label).is_some_and(|found| found == value);
        let found = state.sessions.iter().filter(|(_, record)| has(record));
        found.map(|(id, record)| (id.clone(), record.labels.clone())).collect()
    }

    /// The values of a label, once for each session that is not being deleted.
    pub fn labels(&self, label: &str) -> Vec<String> {
        let state = self.shared.lock();
        let stay = state.sessions.values().filter(|record| record.status != "DELETING");
        stay.map(|record| record.labels.get(label).cloned().unwrap_or_default()).collect()
    }

    /// What a session does.
    pub fn status(&self, id: &str) -> Option<&'static str> {
        self.shared.lock().sessions.get(id).map(|record| record.status)
    }

    /// How often an action was called.
    pub fn count(&self, action: &str) -> usize {
        self.shared.lock().actions.iter().filter(|seen| *seen == action).count()
    }

    /// Forgets a session, as if it had ended by itself.
    pub async fn forget(&self, id: &str) {
        let record = self.shared.lock().sessions.remove(id);
        self.shared.account.remove(&record.unwrap().sandbox).await;
    }

    /// Pauses a session, as if somebody else had done it.
    pub async fn pause(&self, id: &str) {
        self.shared.begin_change(id, "pause", "PAUSING", "PAUSED").await.unwrap();
    }
}

impl ServiceShared {
    fn lock(&self) -> MutexGuard<'_, ServiceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, id: &str) -> Result<SessionRecord, Refusal> {
        let missing = || (400, "InvalidMcpSession.NotFound", format!("session {id} not found"));
        self.lock().sessions.get(id).cloned().ok_or_else(missing)
    }

    /// Ends sessions whose idle time is over.
    async fn end_idle(&self) {
        let is_over =
            |record: &SessionRecord| record.idle.is_some_and(|idle| record.used_at.elapsed() > idle);
        let over: Vec<_> = self.lock().sessions.extract_if(.., |_, record| is_over(record)).collect();
        for (_, record) in over {
            self.account.remove(&record.sandbox).await;
        }
    }

    async fn begin_change(
        &self,
        id: &str,
        verb: &str,
        passing: &'static str,
        then: &'static str,
    ) -> Result<Value, Refusal> {
        let record = self.session(id)?;
        let needed = if verb == "pause" { "RUNNING" } else { "PAUSED" };
        if record.status != needed {
            return Err((400, "InvalidSessionStatus", format!("the session is {}", record.status)));
        }
        self.account.act(&record.sandbox, verb).await.ok();
        if let Some(record) = self.lock().sessions.get_mut(id) {
            (record.status, record.pending) = (passing, Some((LOOKS, then)));
        }
        Ok(json!({}))
    }

    /// One look brings a change nearer to its end.
    fn look(&self, id: &str) -> Result<&'static str, Refusal> {
        self.session(id)?;
        let mut state = self.lock();
        let Some(record) = state.sessions.get_mut(id) else { return Ok("FINISH") };
        match record.pending {
            Some((0, "FINISH")) => {
                state.sessions.remove(id);
                return Ok("FINISH");
            }
            Some((0, then)) => (record.status, record.pending) = (then, None),
            Some((looks, then)) => record.pending = Some((looks - 1, then)),
            None => {}
        }
        Ok(record.status)
    }

    async fn create(&self, fields: &Fields) -> Result<Value, Refusal> {
        let image = fields.get("ImageId").map_or("linux_latest", String::as_str);
        if !IMAGES.contains(&image) {
            return Ok(json!({ "Success": false, "ErrMsg": format!("image {image} not found") }));
        }
        let labels =
            fields.get("Labels").map_or_else(BTreeMap::new, |text| serde_json::from_str(text).unwrap());
        let seconds = fields.get("Timeout").map(|text| text.parse().unwrap());
        let is_manual = fields.get("ManualRelease").is_some_and(|word| word == "True");
        assert!(!(is_manual && seconds.is_some()), "both kinds of lifetime");
        let sandbox = self.account.create(json!({ "network": { "mode": "allow-all" } })).await;
        let mut state = self.lock();
        state.made += 1;
        let id = format!("session-{:06x}", state.made);
        let record = SessionRecord {
            sandbox,
            image: image.to_owned(),
            labels,
            status: "RUNNING",
            pending: None,
            idle: seconds.map(Duration::from_secs),
            used_at: Instant::now(),
        };
        state.sessions.insert(id.clone(), record);
        Ok(
            json!({ "Success": true, "SessionId": id, "AppInstanceId": "ai-1", "ResourceUrl": "https://resource.invalid/" }),
        )
    }

    fn list(&self, fields: &Fields) -> Value {
        let labels: BTreeMap<String, String> = serde_json::from_str(&fields["Labels"]).unwrap();
        let limit: usize = fields["MaxResults"].parse().unwrap();
        let from: usize = fields.get("NextToken").map_or(0, |token| token.parse().unwrap());
        let state = self.lock();
        let is_wanted = |record: &&SessionRecord| {
            labels.iter().all(|(name, value)| record.labels.get(name) == Some(value))
                && fields.get("Status").is_none_or(|status| status == record.status)
                && fields.get("ImageId").is_none_or(|image| *image == record.image)
        };
        let all: Vec<Value> = state
            .sessions
            .iter()
            .filter(|(_, record)| is_wanted(record))
            .map(|(id, record)| json!({ "SessionId": id, "SessionStatus": record.status, "ImageId": record.image }))
            .collect();
        let page: Vec<&Value> = all.iter().skip(from).take(limit).collect();
        let next =
            if from + page.len() < all.len() { (from + page.len()).to_string() } else { String::new() };
        json!({ "Data": page, "NextToken": next, "MaxResults": limit, "TotalCount": all.len() })
    }

    fn link(&self, id: &str, fields: &Fields) -> Result<Value, Refusal> {
        self.session(id)?;
        let port: u16 = fields.get("Port").map_or(30100, |port| port.parse().unwrap());
        let mut state = self.lock();
        if let Some(url) = &state.false_link {
            return Ok(json!({ "Url": url }));
        }
        let secret = format!("00_{id}_{port}");
        state.links.insert(secret.clone(), (id.to_owned(), port));
        Ok(json!({ "Url": format!("https://{}/request_ai/{secret}/path/?token=link-token", state.public) }))
    }

    async fn act(&self, action: &str, fields: &Fields) -> Result<Value, Refusal> {
        let id = fields.get("SessionId").map_or("", String::as_str);
        let data = |data: Value| json!({ "Data": data });
        let touch = || {
            if let Some(record) = self.lock().sessions.get_mut(id) {
                record.used_at = Instant::now();
            }
        };
        match action {
            "CreateMcpSession" => self.create(fields).await.map(data),
            "GetSession" => self
                .look(id)
                .map(|status| data(json!({ "SessionId": id, "Status": status, "Success": true }))),
            "GetSessionDetail" => self.look(id).map(|status| data(json!({ "Status": status }))),
            "ListSession" => Ok(self.list(fields)),
            "PauseSessionAsync" => self.begin_change(id, "pause", "PAUSING", "PAUSED").await.map(data),
            "ResumeSessionAsync" => self.begin_change(id, "resume", "RESUMING", "RUNNING").await.map(data),
            "RefreshSessionIdleTime" => self.session(id).map(|_| touch()).map(|()| data(json!({}))),
            "DeleteSessionAsync" => self.delete(id).await.map(data),
            "GetLabel" => {
                self.session(id).map(|found| data(json!({ "Labels": json!(found.labels).to_string() })))
            }
            "SetLabel" => self.set_labels(id, fields).map(data),
            "GetLink" => self.link(id, fields).map(data),
            "ListMcpTools" => tools::list(&fields["ImageId"]).map(data),
            "CallMcpTool" => {
                touch();
                self.call_tool(id, fields).await.map(data)
            }
            other => Err((404, "InvalidAction.NotFound", format!("there is no action {other}"))),
        }
    }

    fn set_labels(&self, id: &str, fields: &Fields) -> Result<Value, Refusal> {
        self.session(id)?;
        let labels = serde_json::from_str(&fields["Labels"]).unwrap();
        self.lock().sessions.get_mut(id).unwrap().labels = labels;
        Ok(json!({}))
    }

    async fn delete(&self, id: &str) -> Result<Value, Refusal> {
        let record = self.session(id)?;
        if record.status != "DELETING" {
            if let Some(record) = self.lock().sessions.get_mut(id) {
                (record.status, record.pending) = ("DELETING", Some((LOOKS, "FINISH")));
            }
            self.account.remove(&record.sandbox).await;
        }
        Ok(json!({}))
    }

    /// A request to a port, by its link. An upgrade becomes a tunnel.
    async fn forward(&self, mut request: Request) -> Response {
        let near = hyper::upgrade::on(&mut request);
        let (uri, headers) = (request.uri().clone(), request.headers().clone());
        let path = uri.path().trim_start_matches("/request_ai/");
        let (secret, path) = path.split_once("/path/").unwrap_or((path, ""));
        let found = self.lock().links.get(secret).cloned();
        let found = found.and_then(|(id, port)| Some((self.lock().sessions.get(&id)?.sandbox.clone(), port)));
        let query = uri.query().unwrap_or_default();
        let (Some((sandbox, port)), true) = (found, query.contains("token=link-token")) else {
            return StatusCode::FORBIDDEN.into_response();
        };
        assert!(!headers.contains_key("x-atoll-key"), "a credential of the server left it");
        let query = query.replace("token=link-token", "");
        let url = format!("{}/{path}?{}", self.account.base(), query.trim_start_matches('&'));
        let mut request = self.http.get(url).header("host", format!("{port}-{sandbox}.localhost:7070"));
        let is_passed =
            |name: &str| name.starts_with("sec-websocket-") || name == "upgrade" || name == "connection";
        for (name, value) in headers.iter().filter(|(name, _)| is_passed(name.as_str())) {
            request = request.header(name, value);
        }
        let answer = request.bearer_auth(self.account.key()).send().await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return (status, Body::from(answer.bytes().await.unwrap())).into_response();
        }
        tokio::spawn(async move {
            let (near, mut far) = (near.await.unwrap(), answer.upgrade().await.unwrap());
            let _ = tokio::io::copy_bidirectional(&mut hyper_util::rt::TokioIo::new(near), &mut far).await;
        });
        (status, headers).into_response()
    }
}

async fn answer(State(shared): State<Arc<ServiceShared>>, request: Request) -> Response {
    if request.uri().path().starts_with("/request_ai/") {
        return shared.forward(request).await;
    }
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    shared.end_idle().await;
    let (status, answer) = match shared.checked(&head.uri, &head.headers, &body) {
        Ok((action, fields)) => match shared.act(&action, &fields).await {
            Ok(mut answer) => {
                let more =
                    json!({ "Success": true, "Code": "ok", "HttpStatusCode": 200, "RequestId": "request-1" });
                answer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                (200, answer)
            }
            Err(refusal) => refused(refusal),
        },
        Err(refusal) => refused(refusal),
    };
    (StatusCode::from_u16(status).unwrap(), axum::Json(answer)).into_response()
}

fn refused((status, code, message): Refusal) -> (u16, Value) {
    let body = json!({
        "Success": false, "Code": code, "Message": message, "HttpStatusCode": status, "RequestId": "request-1",
    });
    (status, body)
}

impl ServiceShared {
    /// The action and the fields of a request of the right form and with the right key.
    fn checked(&self, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Result<(String, Fields), Refusal> {
        let parse = |bytes: &[u8]| -> Fields { url::form_urlencoded::parse(bytes).into_owned().collect() };
        let query = parse(uri.query().unwrap_or_default().as_bytes());
        let mut fields = parse(body);
        let wrong = |what: &str| (400, "InvalidParameter", format!("{what} is missing or wrong"));
        let action = query.get("Action").cloned().ok_or_else(|| wrong("Action"))?;
        if headers.get("x-acs-action").is_none_or(|named| *named != *action) {
            return Err(wrong("x-acs-action"));
        }
        let is_form = |kind: &axum::http::HeaderValue| {
            kind.as_bytes().starts_with(b"application/x-www-form-urlencoded")
        };
        if !headers.get("content-type").is_some_and(is_form) {
            return Err(wrong("Content-Type"));
        }
        for (name, value) in [("Version", "2025-05-06"), ("Format", "json")] {
            if query.get(name).is_none_or(|found| found != value) {
                return Err(wrong(name));
            }
        }
        for name in ["Timestamp", "SignatureNonce"] {
            query.get(name).filter(|value| !value.is_empty()).ok_or_else(|| wrong(name))?;
        }
        if fields.get("Authorization").is_none_or(|key| *key != format!("Bearer {KEY}")) {
            return Err((401, "InvalidApiKey", "the API key is not valid".to_owned()));
        }
        if fields.get("Args").is_some_and(|args| args.len() > MESSAGE_MAX) {
            return Err((400, "MessageTooLarge", "the message has more than 63 KiB".to_owned()));
        }
        self.lock().actions.push(action.clone());
        // This action takes its session in the query, all others in the form.
        if action == "GetSessionDetail" {
            fields.extend(query.get_key_value("SessionId").map(|(name, id)| (name.clone(), id.clone())));
        }
        Ok((action, fields))
    }
}
