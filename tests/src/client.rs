//! A client of the native API that holds every exchange against the emitted document.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::contract::{Contract, Exchange};
use crate::sse::Events;

/// Speaks for one key.
#[derive(Clone)]
pub struct Client {
    base: String,
    key: String,
    http: reqwest::Client,
    contract: Arc<Contract>,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// What was asked, for messages.
    pub asked: String,
    /// Its status.
    pub status: u16,
    /// Its headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub bytes: Bytes,
}

impl Answer {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| panic!("not JSON: {self}"))
    }

    /// The body of a success; anything else fails the test.
    pub fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "refused: {self}");
        if self.bytes.is_empty() { Value::Null } else { self.json() }
    }

    /// The envelope of a refusal with exactly this status and code; anything else fails the test.
    pub fn refused(&self, status: u16, code: &str) -> Value {
        let envelope = if self.bytes.starts_with(b"{") { self.json() } else { Value::Null };
        assert!(self.status == status && envelope["code"] == code, "expected {status} {code}, got {self}");
        assert!(envelope["message"].as_str().is_some_and(|m| !m.is_empty()), "no message: {self}");
        assert_eq!(
            envelope["request_id"].as_str(),
            self.headers.get("x-request-id").map(String::as_str),
            "{self}"
        );
        envelope
    }

    /// The code of a refusal, empty for a success.
    pub fn code(&self) -> String {
        if self.status < 400 {
            return String::new();
        }
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = String::from_utf8_lossy(&self.bytes);
        let shown: String = text.chars().take(600).collect();
        write!(f, "{} → {} {shown}", self.asked, self.status)
    }
}

/// What a finished command left.
#[derive(Debug, Clone)]
pub struct Ran {
    /// Its exit code.
    pub code: i64,
    /// What it printed.
    pub stdout: String,
    /// What it complained.
    pub stderr: String,
    /// The whole answer.
    pub answer: Value,
}

impl Ran {
    /// Its output without the last line end; fails unless it ended with 0.
    pub fn text(&self) -> &str {
        assert_eq!(self.code, 0, "the command failed: {self:?}");
        self.stdout.trim_end()
    }
}

impl Client {
    /// A client of the server at `base`.
    pub fn new(base: &str, key: &str, contract: Arc<Contract>) -> Self {
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(120))
            .no_proxy()
            // LIMIT: a connection that idles is a descriptor of the server, and the leak check counts those.
            .pool_idle_timeout(Duration::from_millis(500))
            .build()
            .expect("a client");
        Self { base: base.to_owned(), key: key.to_owned(), http, contract }
    }

    /// The same client with another key.
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: key.to_owned(), ..self.clone() }
    }

    /// The same client of another server.
    pub fn at(&self, base: &str, key: &str) -> Self {
        Self { base: base.to_owned(), key: key.to_owned(), ..self.clone() }
    }

    /// The key it shows.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Where the server is.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The document it judges by.
    pub fn contract(&self) -> &Contract {
        &self.contract
    }

    /// A raw request with the key; it is not checked against the document.
    pub fn raw(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        if self.key.is_empty() {
            request
        } else {
            request.header("authorization", format!("Bearer {}", self.key))
        }
    }

    /// Sends a request and judges the exchange.
    pub async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let mut request = self.raw(method.clone(), path);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.judged(request, &method, path, body).await
    }

    /// Sends a prepared request and judges the exchange.
    pub async fn judged(
        &self,
        request: RequestBuilder,
        method: &Method,
        path: &str,
        sent: Option<&Value>,
    ) -> Answer {
        let answer = self.try_judged(request, method, path, sent).await;
        answer.unwrap_or_else(|cause| panic!("{method} {path}: {cause:?}"))
    }

    /// As [`Client::judged`], for servers that may die meanwhile.
    pub async fn try_judged(
        &self,
        request: RequestBuilder,
        method: &Method,
        path: &str,
        sent: Option<&Value>,
    ) -> reqwest::Result<Answer> {
        let response = request.send().await?;
        let status = response.status().as_u16();
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers: BTreeMap<_, _> =
            response.headers().iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
        let bytes = response.bytes().await?;
        let answer = Answer { asked: format!("{method} {path}"), status, headers, bytes };
        self.judge(&answer, method, path, sent);
        Ok(answer)
    }

    fn judge(&self, answer: &Answer, method: &Method, path: &str, sent: Option<&Value>) {
        assert!(answer.headers.contains_key("x-request-id"), "no request id: {answer}");
        let content_type = answer.headers.get("content-type").cloned().unwrap_or_default();
        let is_json = content_type.starts_with("application/json");
        let received = is_json.then(|| answer.json());
        let exchange = Exchange {
            method: method.as_str(),
            path: path.split('?').next().unwrap_or_default(),
            sent,
            status: answer.status,
            content_type: &content_type,
            received: received.as_ref(),
        };
        if let Some(wrong) = self.contract.judge(&exchange) {
            panic!("against the document: {wrong}\n{answer}");
        }
    }

    /// Leon's session endpoints, which are not in the native document: the body of an answer that is a success.
    pub async fn session(&self, method: Method, path: &str) -> Value {
        let answer = self.raw(method, &format!("/api/sandbox/sessions/{path}")).send().await.unwrap();
        let (status, body) = (answer.status(), answer.text().await.unwrap());
        assert!(status.is_success(), "{path}: {status} {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// GET.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    /// POST with JSON.
    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, Some(&body)).await
    }

    /// POST without a body.
    pub async fn post_empty(&self, path: &str) -> Answer {
        self.send(Method::POST, path, None).await
    }

    /// `start`, `stop` or `restart` of a sandbox.
    pub async fn act(&self, id: &str, verb: &str) -> Answer {
        self.send(Method::POST, &format!("/v1/sandboxes/{id}/{verb}"), None).await
    }

    /// PATCH with JSON.
    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send(Method::PATCH, path, Some(&body)).await
    }

    /// DELETE.
    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, None).await
    }

    /// A streaming request; its events follow.
    pub async fn events(&self, method: Method, path: &str, body: Option<&Value>) -> Events {
        let mut request = self.raw(method, path);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.unwrap_or_else(|cause| panic!("{path}: {cause:?}"));
        let status = response.status().as_u16();
        if status != 200 {
            panic!("{path}: {status} {}", response.text().await.unwrap_or_default());
        }
        Events::of(response)
    }

    /// Creates a sandbox and answers its id.
    pub async fn create(&self, spec: Value) -> String {
        let made = self.post("/v1/sandboxes", spec).await.ok();
        assert_eq!(made["phase"], "running", "{made}");
        made["id"].as_str().expect("an id").to_owned()
    }

    /// The sandbox object.
    pub async fn sandbox(&self, id: &str) -> Value {
        self.get(&format!("/v1/sandboxes/{id}")).await.ok()
    }

    /// Deletes a sandbox; fails unless it is gone afterwards.
    pub async fn remove(&self, id: &str) -> Value {
        let gone = self.delete(&format!("/v1/sandboxes/{id}")).await.ok();
        assert_eq!(gone["phase"], "deleted", "{gone}");
        gone
    }

    /// Runs a command with the given body and waits for its end.
    pub async fn exec(&self, id: &str, body: Value) -> Ran {
        ran(&self.try_exec(id, body).await)
    }

    /// As [`Client::exec`], answering whatever came.
    pub async fn try_exec(&self, id: &str, body: Value) -> Answer {
        self.post(&format!("/v1/sandboxes/{id}/exec"), body).await
    }

    /// Runs a shell line as the default user.
    pub async fn sh(&self, id: &str, line: &str) -> Ran {
        self.exec(id, json!({ "argv": ["/bin/sh", "-c", line] })).await
    }

    /// Runs a shell line as root of the sandbox.
    pub async fn sh_root(&self, id: &str, line: &str) -> Ran {
        self.exec(id, json!({ "argv": ["/bin/sh", "-c", line], "user": "root" })).await
    }

    /// Writes a file through the API.
    pub async fn write_file(&self, id: &str, path: &str, bytes: impl Into<reqwest::Body>) -> Answer {
        self.write_file_as(id, path, bytes, "").await
    }

    /// Writes a file through the API with more query, as in `&mode=755&user=root`.
    pub async fn write_file_as(
        &self,
        id: &str,
        path: &str,
        bytes: impl Into<reqwest::Body>,
        more: &str,
    ) -> Answer {
        let path = format!("/v1/sandboxes/{id}/files?path={}{more}", escape(path));
        self.judged(self.raw(Method::PUT, &path).body(bytes), &Method::PUT, &path, None).await
    }

    /// Reads a file through the API.
    pub async fn read_file(&self, id: &str, path: &str) -> Answer {
        self.get(&format!("/v1/sandboxes/{id}/files?path={}", escape(path))).await
    }
}

/// The result of a command from its answer.
pub fn ran(answer: &Answer) -> Ran {
    let answer = answer.ok();
    let stream = |plain: &str, encoded: &str| match answer[encoded].as_str() {
        Some(text) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
            String::from_utf8_lossy(&bytes).into_owned()
        }
        None => answer[plain].as_str().unwrap_or_default().to_owned(),
    };
    Ran {
        code: answer["exit_code"].as_i64().unwrap_or(-1),
        stdout: stream("stdout", "stdout_base64"),
        stderr: stream("stderr", "stderr_base64"),
        answer: answer.clone(),
    }
}

/// Percent-encodes a text for a query.
pub fn escape(text: &str) -> String {
    escape_bytes(text.as_bytes())
}

/// Percent-encodes bytes for a query.
pub fn escape_bytes(bytes: &[u8]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'-' | b'_' | b'~');
    bytes.iter().map(|b| if plain(*b) { char::from(*b).to_string() } else { format!("%{b:02X}") }).collect()
}
