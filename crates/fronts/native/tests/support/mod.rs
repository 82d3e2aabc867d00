//! The front over a real service and a real store. Only the provider is a fake: its agent accepts its settings and
//! serves one file.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    reason = "a module of tests, each of which uses a part"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_front_kit::Dispatch;
use atoll_front_native::testing::{Contract, Exchange};
use atoll_front_native::{Native, Options, Shutdown};
use atoll_model::policy::placement::Node;
use atoll_model::{Code, SnapshotId};
use atoll_provider::fake::{self, FakeProvider};
use atoll_provider::{
    Adopted, ArchiveSupport, Booted, ByteStream, Capabilities, CheckpointSupport, DialSupport, EgressSupport,
    InstanceSpec, InstanceUsage, KnownSandbox, Notice, OwnedSandbox, PauseSupport, Provider,
    ProviderDescription, ProviderError, ResizeSupport, SnapshotSupport, Target, VolumeSupport,
};
use atoll_proxy::{Closing, Domain, HttpServer, Proxy};
use atoll_service::{
    BuildProvider, MakeProgress, ProviderFiles, ProviderRegistry, ProviderRequest, Service, ServiceConfig,
    ServiceError, SystemClock, TemplateRecord, TemplateSource,
};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tower::ServiceExt;

pub const CONTENT: &str = "0123456789";

/// A front with its keys.
pub struct World {
    pub service: Service,
    pub router: Router,
    pub contract: Contract,
    pub shutdown: Shutdown,
    pub admin: String,
    /// The provider in memory.
    pub fake: Arc<FakeProvider>,
    /// It is removed with the world.
    _data: tempfile::TempDir,
}

/// A complete response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The status and the code of a refusal.
    pub fn refusal(&self) -> (u16, String) {
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }
}

/// Opens no provider: this server knows kinds that it cannot drive.
struct NoKind;

#[async_trait]
impl BuildProvider for NoKind {
    async fn build(&self, request: ProviderRequest) -> Result<Arc<dyn Provider>, ServiceError> {
        Err(ServiceError::new(Code::Unsupported, format!("no {} here", request.kind.as_str())))
    }
}

impl World {
    pub async fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let store = Arc::new(atoll_store::SqliteStore::open(data.path()).unwrap());
        let fake = FakeProvider::new();
        let provider = Arc::new(Pretend { fake: Arc::clone(&fake) });
        let clock = SystemClock::open().unwrap();
        let files = ProviderFiles::new(data.path(), Arc::new(NoKind), BTreeMap::new());
        let service = Service::open(
            ServiceConfig::new(data.path()),
            store,
            ProviderRegistry::new(provider).with_files(files).await,
            Arc::new(OneTemplate),
            clock,
        )
        .await
        .unwrap();
        let admin = std::fs::read_to_string(data.path().join("admin.key")).unwrap().trim().to_owned();
        let shutdown = Shutdown::default();
        let native =
            Native::new(service.clone(), Options { shutdown: shutdown.clone(), ..Default::default() });
        let router = Dispatch::default().front(native).into_router();
        Self { service, router, contract: Contract::new(), shutdown, admin, fake, _data: data }
    }

    /// The server of `atoll serve` with these routes.
    pub fn server(&self, router: Router, limits: atoll_proxy::Limits) -> HttpServer {
        let (draining, forced) = self.shutdown.tokens();
        let (_, closing) = tokio::sync::watch::channel(false);
        let proxy = Proxy::new(self.service.clone(), Domain::parse("localhost").unwrap(), closing);
        HttpServer::new(proxy, router, limits, Closing { draining, forced }, Vec::new())
    }

    /// A new tenant with a key of scope user.
    pub async fn tenant(&self, name: &str) -> String {
        let made = self.ask("POST", "/v1/tenants", Some(&self.admin), Some(json!({ "name": name }))).await;
        assert_eq!(made.status, 201, "{}", made.text());
        let key = self.ask("POST", "/v1/keys", Some(&self.admin), Some(json!({ "tenant": name }))).await;
        key.json()["secret"].as_str().unwrap_or_else(|| panic!("{}", key.text())).to_owned()
    }

    /// Sends a JSON request; the exchange is checked against the document.
    pub async fn ask(&self, method: &str, path: &str, key: Option<&str>, body: Option<Value>) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let bytes = body.as_ref().map(|body| body.to_string()).unwrap_or_default();
        self.send_judged(request.body(Body::from(bytes)).unwrap(), body.as_ref()).await
    }

    /// Sends any request; the exchange is checked against the document.
    pub async fn send(&self, request: Request<Body>) -> Answer {
        self.send_judged(request, None).await
    }

    async fn send_judged(&self, request: Request<Body>, sent: Option<&Value>) -> Answer {
        let (method, path) = (request.method().to_string(), request.uri().to_string());
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 16 << 20).await.unwrap().to_vec();
        let content_type = parts.headers.get(header::CONTENT_TYPE).map(|v| v.to_str().unwrap().to_owned());
        let exchange = Exchange {
            method: &method,
            path: &path,
            request: sent,
            status: parts.status.as_u16(),
            content_type: content_type.as_deref(),
            response: &body,
        };
        if let Err(fault) = self.contract.check(&exchange) {
            panic!("{fault}\n{}", String::from_utf8_lossy(&body));
        }
        assert!(parts.headers.contains_key("x-request-id"), "{method} {path}");
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }
}

struct OneTemplate;

fn template() -> TemplateRecord {
    TemplateRecord {
        name: "host".to_owned(),
        version: "1".to_owned(),
        aliases: vec!["base".to_owned()],
        kind: "host".to_owned(),
        user: "user".to_owned(),
        workdir: "/home/user".to_owned(),
        env: BTreeMap::new(),
        sudo: false,
        command: None,
        created_at_ms: 1_780_000_000_000,
        ..TemplateRecord::default()
    }
}

impl TemplateSource for OneTemplate {
    fn resolve(&self, name: &str) -> Result<TemplateRecord, ServiceError> {
        match name {
            "host" | "base" => Ok(template()),
            other => Err(ServiceError::new(Code::TemplateNotFound, format!("there is no template {other}"))),
        }
    }
    fn pinned(&self, name: &str, version: &str) -> Result<TemplateRecord, ServiceError> {
        let found = self.resolve(name)?;
        if found.version == version {
            return Ok(found);
        }
        Err(ServiceError::new(Code::TemplateNotFound, "another version"))
    }

    fn list(&self) -> Result<Vec<TemplateRecord>, ServiceError> {
        Ok(vec![template()])
    }
    fn make(&self, name: &str, mut progress: MakeProgress) -> Result<TemplateRecord, ServiceError> {
        let _ = progress("one step");
        self.resolve(name)
    }
    fn remove(&self, name: &str) -> Result<(), ServiceError> {
        self.resolve(name).map(|_| ())
    }
}

/// The provider in memory, with a test agent behind every instance.
struct Pretend {
    fake: Arc<FakeProvider>,
}

type Done<T> = Result<T, ProviderError>;

/// The only template of the provider in memory has another name.
fn known(spec: &InstanceSpec) -> InstanceSpec {
    InstanceSpec { template: fake::TEMPLATE.to_owned(), ..spec.clone() }
}

#[async_trait]
impl Provider for Pretend {
    fn name(&self) -> &'static str {
        "pretend"
    }
    fn description(&self) -> ProviderDescription {
        self.fake.description()
    }
    fn capabilities(&self) -> Capabilities {
        self.fake.capabilities()
    }
    async fn create(&self, spec: &InstanceSpec) -> Done<Booted> {
        self.fake.create(&known(spec)).await
    }
    async fn boot(&self, spec: &InstanceSpec) -> Done<Booted> {
        self.fake.boot(&known(spec)).await
    }
    async fn halt(&self, target: &Target) -> Done<()> {
        self.fake.halt(target).await
    }
    async fn destroy(&self, target: &Target) -> Done<()> {
        self.fake.destroy(target).await
    }
    async fn usage(&self, target: &Target) -> Done<InstanceUsage> {
        self.fake.usage(target).await
    }
    async fn owned(&self) -> Done<Vec<OwnedSandbox>> {
        self.fake.owned().await
    }
    async fn adopt(&self, known: Vec<KnownSandbox>, snapshots: Vec<SnapshotId>) -> Done<Vec<Adopted>> {
        self.fake.adopt(known, snapshots).await
    }
    fn notices(&self) -> broadcast::Receiver<Notice> {
        self.fake.notices()
    }
    async fn node(&self) -> Done<Node> {
        self.fake.node().await
    }
    async fn settle(&self, deadline: Duration) -> Done<()> {
        self.fake.settle(deadline).await
    }
    fn dial_support(&self) -> Done<&dyn DialSupport> {
        Ok(self)
    }
    fn resize_support(&self) -> Done<&dyn ResizeSupport> {
        self.fake.resize_support()
    }
    fn pause_support(&self) -> Done<&dyn PauseSupport> {
        self.fake.pause_support()
    }
    fn checkpoint_support(&self) -> Done<&dyn CheckpointSupport> {
        self.fake.checkpoint_support()
    }
    fn snapshot_support(&self) -> Done<&dyn SnapshotSupport> {
        self.fake.snapshot_support()
    }
    fn archive_support(&self) -> Done<&dyn ArchiveSupport> {
        self.fake.archive_support()
    }
    fn volume_support(&self) -> Done<&dyn VolumeSupport> {
        self.fake.volume_support()
    }
    fn egress_support(&self) -> Done<&dyn EgressSupport> {
        self.fake.egress_support()
    }
}

#[async_trait]
impl DialSupport for Pretend {
    async fn dial(&self, _: &Target, _: u16) -> Done<Box<dyn ByteStream>> {
        let (ours, theirs) = tokio::io::duplex(64 * 1_024);
        tokio::spawn(async move {
            let service = TowerToHyperService::new(agent());
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(theirs), service)
                .await;
        });
        Ok(Box::new(ours))
    }
}

fn agent() -> Router {
    let init = || async {
        axum::Json(json!({ "agentVersion": "0", "envdVersion": "0", "generation": 1, "features": [] }))
    };
    let stat = || async { ([(header::CONTENT_TYPE, "application/proto")], stat_of_the_file()) };
    Router::new()
        .route("/init", post(init))
        .route("/files", get(file))
        .route("/atoll.agent.v1.Agent/Stat", post(stat))
        .fallback(|| async { StatusCode::NOT_FOUND })
}

/// A response to `Stat`, encoded by hand: name, path, type file, size and mode.
fn stat_of_the_file() -> Vec<u8> {
    let mut entry = vec![0x0a, 6];
    entry.extend_from_slice(b"digits");
    entry.extend_from_slice(&[0x12, 11]);
    entry.extend_from_slice(b"/tmp/digits");
    entry.extend_from_slice(&[0x18, 1, 0x20, u8::try_from(CONTENT.len()).unwrap(), 0x28, 0xa4, 0x03]);
    let mut answer = vec![0x0a, u8::try_from(entry.len()).unwrap()];
    answer.append(&mut entry);
    answer
}

/// Serves one file for every path, with ranges as the agent supports them.
async fn file(headers: HeaderMap) -> Response {
    let size = CONTENT.len();
    let range =
        headers.get(header::RANGE).and_then(|v| v.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
    let (status, part) = match range {
        None => (StatusCode::OK, CONTENT),
        Some((first, last)) => {
            let first = first.parse::<usize>().unwrap_or(0);
            if first >= size {
                let refusal =
                    axum::Json(json!({ "code": "out_of_range", "message": "the range is outside the file" }));
                return (StatusCode::RANGE_NOT_SATISFIABLE, refusal).into_response();
            }
            let end = last.parse::<usize>().map_or(size, |last| (last + 1).min(size));
            (StatusCode::PARTIAL_CONTENT, &CONTENT[first..end])
        }
    };
    let mut response = (status, part).into_response();
    response.headers_mut().insert("atoll-size", HeaderValue::from(size));
    response.headers_mut().insert("atoll-mode", HeaderValue::from_static("644"));
    response
}
