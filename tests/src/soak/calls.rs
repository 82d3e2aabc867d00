//! Requests to a server that dies now and then: an answer, or not knowing what became of the wish.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use tokio::sync::watch;

use crate::client::{Answer, Client};
use crate::data_folder::DataFolderView;
use crate::world::World;

/// LIMIT: how long after the death of a launcher a request may still fail of it.
const HURT: Duration = Duration::from_secs(3);

/// What all sandboxes of a soak share.
pub struct Shared {
    /// Speaks for the tenant of the soak.
    pub client: Client,
    /// Looks at what stands still.
    pub eye: DataFolderView,
    /// The template with the probe inside.
    pub template: String,
    /// Whether the server is meant to answer.
    pub up: watch::Receiver<bool>,
    /// Ends of the server so far.
    pub ends: AtomicU64,
    /// Set when it is time to end.
    pub over: AtomicBool,
    /// Steps by name.
    pub tally: Mutex<BTreeMap<&'static str, u64>>,
    /// Whether processes can be brought to disk here.
    pub memory: bool,
    /// When a launcher was last killed.
    pub hurt_at: Mutex<Option<Instant>>,
    /// Set while the server is instructed to die at a place: the time of its death is unknown.
    pub armed: AtomicBool,
    /// Requests that were refused although no process was killed. The sandbox was complete afterwards.
    pub refusals: Mutex<Vec<String>>,
}

/// The result of a request.
#[derive(Debug)]
pub enum Reply {
    /// The server answered.
    Answer(Answer),
    /// Something was killed meanwhile: it was done, or not, or will be.
    Lost,
}

/// What is wrong, for the report.
pub type Loss = String;

const REFUSED: &str = "REFUSED: ";

/// A wish that the server should have granted. Nothing is lost by it.
pub fn refusal(answer: &Answer) -> Loss {
    format!("{REFUSED}{answer}")
}

/// Whether it is one.
pub fn is_refusal(loss: &Loss) -> bool {
    loss.contains(REFUSED)
}

/// Unavailable by design: the place is full, or the node is.
const FAIR: [&str; 3] = ["no_capacity", "archive_unavailable", "disk_full"];

impl Shared {
    /// For the sandboxes of a client.
    pub fn new(w: &World, client: Client, up: watch::Receiver<bool>) -> Self {
        Self {
            client,
            eye: w.eye(),
            template: super::keeper_template(w),
            up,
            ends: AtomicU64::new(0),
            over: AtomicBool::new(false),
            tally: Mutex::default(),
            memory: true,
            hurt_at: Mutex::default(),
            armed: AtomicBool::new(false),
            refusals: Mutex::default(),
        }
    }

    /// The same without kills by the test.
    pub fn quiet(w: &World, client: Client) -> Self {
        let (_, up) = watch::channel(true);
        Self::new(w, client, up)
    }

    /// Sends a wish once.
    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Reply, Loss> {
        self.call_keyed(method, path, body, None).await
    }

    /// Sends a wish once, with a key that makes a repetition harmless.
    pub async fn call_keyed(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        key: Option<&str>,
    ) -> Result<Reply, Loss> {
        let sent = body.clone();
        let dress = |mut request: RequestBuilder| {
            if let Some(body) = &body {
                request = request.json(body);
            }
            match key {
                Some(key) => request.header("idempotency-key", key),
                None => request,
            }
        };
        self.send(method, path, sent, dress).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        sent: Option<Value>,
        dress: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<Reply, Loss> {
        self.until_up().await;
        let (ends, asked) = (self.ends.load(Ordering::SeqCst), Instant::now());
        let request = dress(self.client.raw(method.clone(), path));
        let answer = self.client.try_judged(request, &method, path, sent.as_ref()).await;
        let ended = || self.ends.load(Ordering::SeqCst) != ends || !*self.up.borrow();
        match answer {
            Err(_) if ended() || self.armed.load(Ordering::SeqCst) => Ok(Reply::Lost),
            Err(cause) => Err(format!("{method} {path}: no answer, and nobody was killed: {cause:?}")),
            Ok(answer) if answer.status >= 500 && !FAIR.contains(&answer.code().as_str()) => {
                if self.was_hurt_since(asked) || ended() {
                    return Ok(Reply::Lost);
                }
                Err(refusal(&answer))
            }
            Ok(answer) => Ok(Reply::Answer(answer)),
        }
    }

    /// Writes a file through the API, once.
    pub async fn put(&self, path: &str, bytes: Vec<u8>) -> Result<Reply, Loss> {
        self.send(Method::PUT, path, None, |request| request.body(bytes)).await
    }

    /// Sends something that may be repeated until it is answered.
    pub async fn insist(&self, method: Method, path: &str, body: Option<Value>) -> Result<Answer, Loss> {
        for _ in 0..1_000 {
            if let Reply::Answer(answer) = self.call(method.clone(), path, body.clone()).await? {
                return Ok(answer);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(format!("{method} {path}: never answered"))
    }

    /// Whether a launcher died shortly before `asked` or since.
    pub fn was_hurt_since(&self, asked: Instant) -> bool {
        let hurt = *self.hurt_at.lock().expect("no panic holds it");
        hurt.is_some_and(|hurt| hurt + HURT > asked)
    }

    async fn until_up(&self) {
        let mut up = self.up.clone();
        let _ = up.wait_for(|is| *is).await;
    }

    /// Steps so far.
    pub fn cycles(&self) -> u64 {
        self.tally.lock().expect("no panic holds it").values().sum()
    }

    /// Counts a step.
    pub fn count(&self, what: &'static str) {
        *self.tally.lock().expect("no panic holds it").entry(what).or_default() += 1;
    }
}
