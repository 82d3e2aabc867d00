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
mod lsp;
mod mcp;
mod operator;
mod sandboxes;
mod sessions;
mod sse;
mod templates;
mod volumes;

use std::time::Duration;

use reqwest::{Method, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::errors::Envelope;
pub use answer::{Answer, List, Listing, Page};
pub use error::{ApiError, ClientError, MapError, PlainErrors};
pub use mcp::McpAnswer;
pub use sandboxes::LifecycleVerb;
pub use sse::{Events, SseEvent};

/// A connection to one server with one key. `M` makes the program's own errors.
#[derive(Debug, Clone)]
pub struct Client<M = PlainErrors> {
    http: reqwest::Client,
    base: Url,
    key: Option<String>,
    errors: M,
}

/// LIMIT: a create waits up to 30 s at the server; streams and transfers have no limit.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);
/// The page size of list requests.
const PAGE: usize = 100;

impl<M: MapError> Client<M> {
    /// A client with the caller's connection pool.
    pub fn new(http: reqwest::Client, base: Url, key: Option<String>, errors: M) -> Self {
        Self { http, base, key, errors }
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
        let answer = request.send().await.map_err(|cause| self.errors.map(ClientError::Http(cause)))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(self.errors.map(refused(answer).await))
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
    let header = answer.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let body = answer.bytes().await.unwrap_or_default();
    match serde_json::from_slice::<Envelope>(&body) {
        Ok(envelope) => ClientError::Refused(Box::new(ApiError {
            status,
            code: envelope.code,
            message: envelope.message,
            hint: envelope.hint,
            field: envelope.field,
            request_id: Some(envelope.request_id).filter(|id| !id.is_empty()).or(header),
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
