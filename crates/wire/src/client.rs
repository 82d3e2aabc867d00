//! The HTTP client: one method per call, in one file per noun. An answer is typed and keeps its JSON.
//!
//! The client makes no decisions that belong to the server.

mod answer;
mod builds;
mod code;
mod error;
mod exec;
mod files;
mod git;
mod logins;
mod lsp;
mod mcp;
mod operator;
mod retries;
mod sandboxes;
mod sessions;
mod sse;
mod system;
mod templates;
mod volumes;

use std::time::Duration;

use reqwest::{Method, Request, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::errors::Envelope;
pub use answer::{Answer, List, Listing, Page};
pub use error::{ApiError, ClientError, MapError, PlainErrors, VERSION_HEADER};
pub use mcp::McpAnswer;
pub use retries::Retries;
pub use sandboxes::LifecycleVerb;
pub use sse::{Events, SseEvent};

/// A connection to one server with one key. `M` makes the program's own errors.
#[derive(Debug, Clone)]
pub struct Client<M = PlainErrors> {
    http: reqwest::Client,
    base: Url,
    key: Option<String>,
    errors: M,
    retries: Retries,
}

/// LIMIT: a create waits up to 30 s at the server; streams and transfers have no limit.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The page size of list requests.
const PAGE: usize = 100;

impl Client {
    /// A client of the server at `address`, such as `http://127.0.0.1:7070`, with the default [`Retries`]. It sends no request
    /// yet. For HTTPS, pass a connection pool with TLS to [`Client::new`].
    pub fn connect(address: &str, key: Option<&str>) -> Result<Self, ClientError> {
        let bad = |why: String| ClientError::BadAddress { address: address.to_owned(), why };
        let base = Url::parse(address).map_err(|cause| bad(cause.to_string()))?;
        if !base.has_host() {
            return Err(bad("it has no host".to_owned()));
        }
        let http = reqwest::Client::builder().connect_timeout(CONNECT_WITHIN).tcp_nodelay(true);
        let http = http.build().map_err(ClientError::Http)?;
        Ok(Self::new(http, base, key.map(str::to_owned), PlainErrors).with_retries(Retries::default()))
    }
}

impl<M: MapError> Client<M> {
    /// A client with the caller's connection pool. It sends every request once.
    pub fn new(http: reqwest::Client, base: Url, key: Option<String>, errors: M) -> Self {
        Self { http, base, key, errors, retries: Retries::none() }
    }

    /// Sends requests again that fail for the moment and may be repeated.
    #[must_use]
    pub fn with_retries(mut self, retries: Retries) -> Self {
        self.retries = retries;
        self
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, join(&self.base, path));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends a request; an answer that is not a success is an error.
    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, M::Error> {
        let request = request.build().map_err(|cause| self.errors.map(ClientError::Http(cause)))?;
        self.send_repeatedly(request).await.map_err(|error| self.errors.map(error))
    }

    async fn send_repeatedly(&self, mut request: Request) -> Result<reqwest::Response, ClientError> {
        let mut sent = 1;
        loop {
            let copy = self.retries.copy(&request, sent);
            let error = match self.send_once(request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(copy) = copy else { return Err(error) };
            let Some(pause) = retries::pause(&copy, &error, sent) else { return Err(error) };
            tokio::time::sleep(pause).await;
            (request, sent) = (copy, sent + 1);
        }
    }

    async fn send_once(&self, request: Request) -> Result<reqwest::Response, ClientError> {
        let answer = self.http.execute(request).await.map_err(ClientError::Http)?;
        self.errors.answered(answer.headers());
        if answer.status().is_success() { Ok(answer) } else { Err(refused(answer).await) }
    }

    /// Sends a request, within the default time limit, and reads the answer.
    async fn answer<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<Answer<T>, M::Error> {
        self.answer_without_limit(request.timeout(ANSWER_WITHIN)).await
    }

    /// The same without a time limit.
    async fn answer_without_limit<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<Answer<T>, M::Error> {
        let answer = self.send(request).await?;
        let body = answer.bytes().await.map_err(|cause| self.errors.map(ClientError::Http(cause)))?;
        Answer::read(&body).map_err(|cause| self.errors.map(ClientError::NotUnderstood(cause)))
    }

    /// For an answer without content.
    async fn done(&self, request: reqwest::RequestBuilder) -> Result<(), M::Error> {
        self.send(request.timeout(ANSWER_WITHIN)).await.map(drop)
    }

    async fn events_of(&self, request: reqwest::RequestBuilder) -> Result<Events<M>, M::Error> {
        Ok(Events::new(self.send(request).await?, self.errors.clone()))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, M::Error> {
        self.answer(self.request(Method::GET, path)).await
    }

    async fn get_query<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<Answer<T>, M::Error> {
        self.answer(self.request(Method::GET, path).query(query)).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer<T>, M::Error> {
        self.answer(self.request(Method::POST, path).json(body)).await
    }

    async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer<T>, M::Error> {
        self.answer(self.request(Method::PATCH, path).json(body)).await
    }

    async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer<T>, M::Error> {
        self.answer(self.request(Method::PUT, path).json(body)).await
    }

    async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<Answer<T>, M::Error> {
        self.answer(self.request(Method::DELETE, path)).await
    }

    async fn delete_silently(&self, path: &str) -> Result<(), M::Error> {
        self.done(self.request(Method::DELETE, path)).await
    }

    /// The items of a list without pages.
    async fn list<L: List + DeserializeOwned>(&self, path: &str) -> Result<Listing<L::Item>, M::Error> {
        Ok(Listing::of(self.get::<L>(path).await?))
    }

    /// All pages of a list, or the first `limit` items.
    async fn pages<P: Page + DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        limit: Option<u32>,
    ) -> Result<Listing<P::Item>, M::Error> {
        let wanted = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let mut all = Listing::default();
        let mut cursor: Option<String> = None;
        loop {
            let mut page = query.to_vec();
            page.push(("limit", (wanted - all.items.len()).min(PAGE).to_string()));
            page.extend(cursor.take().map(|cursor| ("cursor", cursor)));
            let answer = self.get_query::<P>(path, &page).await?;
            cursor = answer.next_cursor().map(str::to_owned);
            let found = Listing::of(answer);
            let is_empty = found.items.is_empty();
            all.extend(found);
            // An empty page with a cursor would mean an endless loop.
            if cursor.is_none() || is_empty || all.items.len() >= wanted {
                return Ok(all);
            }
        }
    }
}

async fn refused(answer: reqwest::Response) -> ClientError {
    let status = answer.status().as_u16();
    let named =
        |name: &str| answer.headers().get(name).and_then(|text| text.to_str().ok()).map(str::to_owned);
    let (header, retry_after) = (named("x-request-id"), named("retry-after"));
    let body = answer.bytes().await.unwrap_or_default();
    match serde_json::from_slice::<Envelope>(&body) {
        Ok(envelope) => ClientError::Refused(Box::new(ApiError {
            status,
            code: envelope.code,
            message: envelope.message,
            hint: envelope.hint,
            field: envelope.field,
            request_id: Some(envelope.request_id).filter(|id| !id.is_empty()).or(header),
            retry_after: retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs),
        })),
        Err(_) => ClientError::Unexplained { status, request_id: header },
    }
}

/// The URL of a path on a server, which may itself be below a path.
#[must_use]
pub fn join(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    url.set_query(query);
    url
}

/// A name or id as one segment of a path.
#[must_use]
pub fn segment(text: &str) -> String {
    use std::fmt::Write as _;
    let mut path = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            path.push(char::from(byte));
        } else {
            let _ = write!(path, "%{byte:02X}");
        }
    }
    // The URL parser would remove a segment of dots.
    if path.chars().all(|c| c == '.') { path.replace('.', "%2E") } else { path }
}

/// The path of a sandbox, or of a resource below it.
#[must_use]
pub fn sandbox_path(ident: &str, below: &str) -> String {
    format!("/v1/sandboxes/{}{below}", segment(ident))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_segment() {
        for (text, want) in
            [("box-1", "box-1"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), ("a b?", "a%20b%3F"), ("ü", "%C3%BC")]
        {
            assert_eq!(segment(text), want);
        }
    }

    #[test]
    fn paths_are_put_behind_a_prefix() {
        let base = Url::parse("http://h:1/base/").expect("valid");
        assert_eq!(join(&base, "/v1/x?a=b").as_str(), "http://h:1/base/v1/x?a=b");
    }
}
