//! Calls of a vendor's control API over a pool of connections: the key, deadlines, bounded answers, retries, the circuit.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_model::ErrorKind;
use atoll_provider::ProviderError;
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::circuit::Circuit;
use crate::connect::VendorAddress;
use crate::link_guard::{GuardedResolver, literal, permitted};

/// LIMIT: calls of one provider that wait for the vendor at a time.
const CALLS_MAX: usize = 64;
/// LIMIT: a page of a list has some 100 KiB.
const ANSWER_MAX: usize = 4 << 20;
/// LIMIT: a vendor's error is one sentence.
const MESSAGE_MAX: usize = 300;
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// LIMIT: attempts of one call.
const ATTEMPTS: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// When a call may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// After every failure: it has the same effect when it is done twice.
    Always,
    /// Only where it is certain that the vendor did nothing.
    Unsent,
}

/// A call.
#[derive(Debug)]
pub struct VendorCall {
    /// The method.
    pub method: Method,
    /// The path below the base address, with a query.
    pub path: String,
    /// A JSON body.
    pub body: Option<Value>,
    /// The fields of a form as the body, instead of JSON. Not for secrets.
    pub form: Option<Vec<(&'static str, String)>>,
    /// A parameter of the query that gets a new random value for each attempt.
    pub nonce: Option<&'static str>,
    /// Whether an answer says that the vendor limits the rate of calls, beside status 429.
    pub is_limited: fn(&VendorAnswer) -> bool,
    /// Headers beside the key. Not for secrets.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// When it may be sent again.
    pub repeat: Repeat,
    /// The deadline of one attempt.
    pub attempt_within: Duration,
    /// The deadline of all attempts.
    pub within: Duration,
}

impl VendorCall {
    /// A call that may be repeated, with ordinary deadlines.
    #[must_use]
    pub fn new(method: Method, path: String) -> Self {
        Self {
            method,
            path,
            body: None,
            form: None,
            nonce: None,
            is_limited: |_| false,
            headers: Vec::new(),
            repeat: Repeat::Always,
            attempt_within: Duration::from_secs(20),
            within: Duration::from_secs(45),
        }
    }

    /// With a JSON body.
    #[must_use]
    pub fn body(self, body: Value) -> Self {
        Self { body: Some(body), ..self }
    }

    /// With the fields of a form as its body.
    #[must_use]
    pub fn form(self, fields: Vec<(&'static str, String)>) -> Self {
        Self { form: Some(fields), ..self }
    }
}

/// Where a vendor takes its key.
#[derive(Debug, Clone)]
pub enum KeyPlace {
    /// In a header.
    Header(HeaderName),
    /// In a field of every form.
    FormField(&'static str),
}

/// An answer with a status below 400.
#[derive(Debug)]
pub struct VendorAnswer {
    /// The status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// A body that is streamed.
pub struct VendorBody {
    /// Its content type.
    pub kind: String,
    /// Its bytes.
    pub content: BoxStream<'static, io::Result<Bytes>>,
}

/// An answer whose body is streamed.
pub struct VendorStream {
    /// The status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub content: BoxStream<'static, Result<Bytes, CallError>>,
}

/// Why a call has no answer that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The request did not reach the vendor.
    #[error("the service cannot be reached: {why}")]
    NotSent {
        /// Why.
        why: String,
    },
    /// The vendor may have done it.
    #[error("the service did not answer: {why}")]
    Unanswered {
        /// Why.
        why: String,
    },
    /// The vendor limits the rate of calls.
    #[error("the service limits the rate of calls")]
    Limited,
    /// Calls are suspended after many failures.
    #[error("the service did not answer for a while; the next attempt is in {} s", retry_in.as_secs_f64().ceil())]
    Suspended {
        /// The rest of the suspension.
        retry_in: Duration,
    },
    /// The vendor refused.
    #[error("the service refused ({status}): {message}")]
    Refused {
        /// The status.
        status: u16,
        /// The vendor's sentence, cleaned.
        message: String,
    },
}

impl CallError {
    /// Whether the vendor may have done what was asked.
    #[must_use]
    pub const fn is_uncertain(&self) -> bool {
        matches!(self, Self::Unanswered { .. })
    }

    /// Whether the vendor refused with this status.
    #[must_use]
    pub fn is_status(&self, wanted: u16) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == wanted)
    }

    /// As an error of the provider.
    #[must_use]
    pub fn into_provider(self, what: &str) -> ProviderError {
        let kind = match &self {
            Self::Refused { status: 400 | 422, .. } => ErrorKind::Invalid,
            Self::Refused { status: 409, .. } => ErrorKind::Conflict,
            Self::Refused { status: 402 | 429 | 507, .. } => ErrorKind::Exhausted,
            _ => {
                let why = match &self {
                    // The key is the operator's: a caller cannot correct it.
                    Self::Refused { status: 401, .. } => "the service does not accept the key".to_owned(),
                    other => other.to_string(),
                };
                return ProviderError::Transient { what: what.to_owned(), why };
            }
        };
        ProviderError::Refused { kind, message: format!("{what}: {self}") }
    }
}

/// A client of one vendor's control API.
pub struct VendorClient {
    http: reqwest::Client,
    base: String,
    key: String,
    key_header: Option<(HeaderName, HeaderValue)>,
    /// The name of the form's field, and the key with its prefix.
    key_field: Option<(&'static str, String)>,
    circuit: Circuit,
    permits: Semaphore,
    /// Authorities (DER) that are trusted beside those of the machine.
    authorities: Arc<[Vec<u8>]>,
    /// The connections of siblings, whose hosts the vendor named. Made with the first one.
    links: OnceLock<reqwest::Client>,
    /// The host of the API, where the base address was named by the vendor as an IP address. A resolver does not see such a host.
    literal_of: Option<String>,
}

impl std::fmt::Debug for VendorClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VendorClient").field("base", &self.base).finish_non_exhaustive()
    }
}

struct Failure {
    error: CallError,
    retry_after: Option<Duration>,
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { error, retry_after: None }
    }
}

impl VendorClient {
    /// A client of the API at `base`, an `http` or `https` address; `header` carries the key, after `prefix`.
    ///
    /// # Errors
    /// A sentence: the address or the key cannot be used.
    pub fn new(base: &str, header: HeaderName, prefix: &str, key: &str) -> Result<Self, String> {
        Self::open(base, KeyPlace::Header(header), prefix, key, &[])
    }

    /// As [`Self::new`], with the key in the place that the vendor wants, and trusting these authorities (DER) beside those of
    /// the machine.
    ///
    /// # Errors
    /// A sentence: the address, the key or a certificate cannot be used.
    pub fn open(
        base: &str,
        place: KeyPlace,
        prefix: &str,
        key: &str,
        authorities: &[Vec<u8>],
    ) -> Result<Self, String> {
        let base = checked_base(base)?;
        let whole = format!("{prefix}{key}");
        let mut value = HeaderValue::from_str(&whole)
            .map_err(|_| "the key has characters that cannot be sent".to_owned())?;
        value.set_sensitive(true);
        let (key_header, key_field) = match place {
            KeyPlace::Header(header) => (Some((header, value)), None),
            KeyPlace::FormField(field) => (None, Some((field, whole))),
        };
        Ok(Self {
            http: http_client(authorities, None)?,
            base,
            key: key.to_owned(),
            key_header,
            key_field,
            circuit: Circuit::default(),
            permits: Semaphore::new(CALLS_MAX),
            authorities: authorities.into(),
            links: OnceLock::new(),
            literal_of: None,
        })
    }

    /// A client of another base address, which the vendor named, with the same key. It calls only hosts that this API may name. Its
    /// circuit and its limit of calls are its own.
    ///
    /// # Errors
    /// A sentence: the address cannot be used.
    pub fn sibling(&self, base: &str) -> Result<Self, String> {
        let unusable = || "it is not an address".to_owned();
        let api = VendorAddress::of_url(&self.base).ok_or_else(unusable)?;
        let base = checked_base(base)?;
        let named = VendorAddress::of_url(&base).ok_or_else(unusable)?.named_by(&api);
        named.check_tls().map_err(|refused| refused.to_string())?;
        let http = match self.links.get() {
            Some(http) => http.clone(),
            None => {
                let made = http_client(&self.authorities, Some(GuardedResolver { api: api.host.clone() }))?;
                self.links.get_or_init(|| made).clone()
            }
        };
        Ok(Self {
            http,
            base,
            key: self.key.clone(),
            key_header: self.key_header.clone(),
            key_field: self.key_field.clone(),
            circuit: Circuit::default(),
            permits: Semaphore::new(CALLS_MAX),
            authorities: Arc::clone(&self.authorities),
            links: OnceLock::new(),
            literal_of: literal(&named.host).map(|_| api.host),
        })
    }

    /// Refuses a base address that is an IP address which the API must not name.
    async fn check_literal(&self) -> Result<(), CallError> {
        let Some(api) = &self.literal_of else { return Ok(()) };
        let host = VendorAddress::of_url(&self.base).map(|address| address.host).unwrap_or_default();
        permitted(&host, 0, api)
            .await
            .map(drop)
            .map_err(|refused| CallError::NotSent { why: refused.to_string() })
    }

    /// The header that carries the key, for a connection that this client does not make.
    #[must_use]
    pub fn key_header(&self) -> Option<(HeaderName, HeaderValue)> {
        self.key_header.clone()
    }

    /// Makes a call once and streams its body and its answer. `within` is the deadline of the answer's head; the body of the answer
    /// may take any time, and is given up after `attempt_within` without a byte.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn stream(
        &self,
        call: VendorCall,
        body: Option<VendorBody>,
    ) -> Result<VendorStream, CallError> {
        self.circuit.admit().map_err(|retry_in| CallError::Suspended { retry_in })?;
        self.check_literal().await?;
        let mut request = self.request(&call)?;
        if let Some(VendorBody { kind, content }) = body {
            request = request.header(header::CONTENT_TYPE, kind).body(reqwest::Body::wrap_stream(content));
        }
        let late = || CallError::Unanswered { why: "it took too long".to_owned() };
        let sent = tokio::time::timeout(call.within, request.send()).await.map_err(|_| late());
        let answer = sent.and_then(|sent| sent.map_err(|error| self.unsent(error)));
        let mut answer = answer.inspect_err(|_| self.circuit.fail())?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        if status.as_u16() >= 300 {
            let read = tokio::time::timeout(call.attempt_within, self.whole(&mut answer)).await;
            let body = read.map_err(|_| late()).and_then(|body| body).unwrap_or_default();
            let message = self.sentence(&body);
            if status.is_server_error() {
                self.circuit.fail();
                return Err(CallError::Unanswered { why: format!("{}: {message}", status.as_u16()) });
            }
            self.circuit.succeed();
            return Err(match status.as_u16() {
                429 if !is_final(&headers) => CallError::Limited,
                status => CallError::Refused { status, message },
            });
        }
        self.circuit.succeed();
        let silence = call.attempt_within;
        let content = futures::stream::try_unfold(answer, move |mut answer| async move {
            let broken = |why: String| CallError::Unanswered { why };
            let chunk = tokio::time::timeout(silence, answer.chunk()).await;
            let chunk = chunk.map_err(|_| broken("the answer broke off".to_owned()))?;
            let chunk = chunk.map_err(|error| broken(innermost(&error.without_url())))?;
            Ok(chunk.map(|chunk| (chunk, answer)))
        });
        Ok(VendorStream { status, headers, content: content.boxed() })
    }

    /// Makes a call, with retries.
    ///
    /// # Errors
    /// [`CallError`]; a status of 400 and above is [`CallError::Refused`] unless it is one that passes.
    pub async fn call(&self, call: VendorCall) -> Result<VendorAnswer, CallError> {
        let deadline = Instant::now() + call.within;
        let mut backoff = Backoff::new(FIRST_WAIT);
        for attempt in 1.. {
            let failure = match self.once(&call, deadline).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let may_repeat = match &failure.error {
                CallError::NotSent { .. } | CallError::Limited => true,
                CallError::Unanswered { .. } => call.repeat == Repeat::Always,
                CallError::Suspended { .. } | CallError::Refused { .. } => false,
            };
            let wait = backoff.wait(failure.retry_after);
            if !may_repeat || attempt >= ATTEMPTS || Instant::now() + wait >= deadline {
                return Err(failure.error);
            }
            tokio::time::sleep(wait).await;
        }
        Err(CallError::Limited)
    }

    async fn once(&self, call: &VendorCall, deadline: Instant) -> Result<VendorAnswer, Failure> {
        self.circuit.admit().map_err(|retry_in| CallError::Suspended { retry_in })?;
        let until = deadline.min(Instant::now() + call.attempt_within);
        let permit = tokio::time::timeout_at(until, self.permits.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            return Err(CallError::NotSent { why: "too many calls wait for the service".to_owned() }.into());
        };
        let sent = tokio::time::timeout_at(until, self.exchange(call)).await;
        let outcome =
            sent.unwrap_or_else(|_| Err(CallError::Unanswered { why: "it took too long".to_owned() }));
        let answer = match outcome {
            Ok(answer) if (call.is_limited)(&answer) => {
                self.circuit.succeed();
                return Err(Failure { error: CallError::Limited, retry_after: retry_after(&answer.headers) });
            }
            Ok(answer) if answer.status.is_server_error() => {
                self.circuit.fail();
                let why = format!("{}: {}", answer.status.as_u16(), self.sentence(&answer.body));
                let retry_after = retry_after(&answer.headers);
                return Err(Failure { error: CallError::Unanswered { why }, retry_after });
            }
            Ok(answer) => answer,
            Err(error) => {
                self.circuit.fail();
                return Err(error.into());
            }
        };
        self.circuit.succeed();
        match answer.status.as_u16() {
            429 if !is_final(&answer.headers) => {
                Err(Failure { error: CallError::Limited, retry_after: retry_after(&answer.headers) })
            }
            // Redirects are not followed: the key must not reach another host.
            status @ 300.. => Err(CallError::Refused { status, message: self.sentence(&answer.body) }.into()),
            _ => Ok(answer),
        }
    }

    /// One request and its whole answer.
    async fn exchange(&self, call: &VendorCall) -> Result<VendorAnswer, CallError> {
        self.check_literal().await?;
        let mut request = self.request(call)?;
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        if let Some(fields) = &call.form {
            let key = self.key_field.iter().map(|(name, key)| (*name, key.as_str()));
            let fields: Vec<_> =
                key.chain(fields.iter().map(|(name, value)| (*name, value.as_str()))).collect();
            request = request.form(&fields);
        }
        let mut answer = request.send().await.map_err(|error| self.unsent(error))?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = self.whole(&mut answer).await?;
        Ok(VendorAnswer { status, headers, body })
    }

    fn request(&self, call: &VendorCall) -> Result<reqwest::RequestBuilder, CallError> {
        let mut address = format!("{}{}", self.base, call.path);
        if let Some(name) = call.nonce {
            let nonce = crate::random_hex().map_err(|error| CallError::NotSent { why: error.to_string() })?;
            let joint = if call.path.contains('?') { '&' } else { '?' };
            address.push_str(&format!("{joint}{name}={nonce}"));
        }
        let mut request = self.http.request(call.method.clone(), address);
        if let Some((name, value)) = &self.key_header {
            request = request.header(name.clone(), value.clone());
        }
        for (name, value) in &call.headers {
            request = request.header(name.clone(), value.clone());
        }
        Ok(request)
    }

    fn unsent(&self, error: reqwest::Error) -> CallError {
        let is_unsent = error.is_connect() || error.is_builder();
        let why = self.redacted(&innermost(&error.without_url()));
        if is_unsent { CallError::NotSent { why } } else { CallError::Unanswered { why } }
    }

    async fn whole(&self, answer: &mut reqwest::Response) -> Result<Bytes, CallError> {
        let mut body = BytesMut::new();
        loop {
            let chunk = answer.chunk().await.map_err(|error| CallError::Unanswered {
                why: self.redacted(&innermost(&error.without_url())),
            })?;
            let Some(chunk) = chunk else { return Ok(body.freeze()) };
            if body.len() + chunk.len() > ANSWER_MAX {
                return Err(CallError::Unanswered { why: "the answer is too large".to_owned() });
            }
            body.extend_from_slice(&chunk);
        }
    }

    /// The vendor's own words in an error, cleaned.
    fn sentence(&self, body: &[u8]) -> String {
        let parsed = serde_json::from_slice::<Value>(body).ok();
        let named = |name: &str| parsed.as_ref().and_then(|body| body[name].as_str());
        let text = match (named("message"), named("Code"), named("Message")) {
            (Some(message), ..) => message.to_owned(),
            (None, Some(code), message) => format!("[{code}] {}", message.unwrap_or_default()),
            _ => String::from_utf8_lossy(body).into_owned(),
        };
        self.redacted(&text)
    }

    /// A text of the vendor without the key, control characters and excess length.
    #[must_use]
    pub fn redacted(&self, text: &str) -> String {
        let text = if self.key.is_empty() { text.to_owned() } else { text.replace(&self.key, "…") };
        text.chars().filter(|c| !c.is_control()).take(MESSAGE_MAX).collect()
    }
}

/// A pool of connections; with a resolver for hosts that the vendor named.
fn http_client(authorities: &[Vec<u8>], guard: Option<GuardedResolver>) -> Result<reqwest::Client, String> {
    let mut http = atoll_outbound::client_builder();
    for authority in authorities {
        let bad = |_| "an authority's certificate cannot be read".to_owned();
        http = http.add_root_certificate(reqwest::Certificate::from_der(authority).map_err(bad)?);
    }
    if let Some(guard) = guard {
        http = http.dns_resolver(Arc::new(guard));
    }
    http.user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .connect_timeout(CONNECT_WITHIN)
        .pool_max_idle_per_host(16)
        .pool_idle_timeout(Duration::from_secs(20))
        .build()
        .map_err(|error| format!("the HTTP client cannot be made: {}", error.without_url()))
}

fn checked_base(base: &str) -> Result<String, String> {
    let base = base.trim_end_matches('/');
    let parsed = reqwest::Url::parse(base).map_err(|bad| format!("{base} is not an address: {bad}"))?;
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
        return Err(format!("{base} is not an http or https address"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some() {
        return Err("an address has no user, no password and no query".to_owned());
    }
    Ok(base.to_owned())
}

/// Why an answer cannot be used, without its text: that may contain tokens.
#[must_use]
pub fn unreadable_answer() -> CallError {
    CallError::Unanswered { why: "the answer is not what the API promises".to_owned() }
}

/// The JSON of an answer.
///
/// # Errors
/// [`unreadable_answer`].
pub fn parsed_answer<T: DeserializeOwned>(answer: &VendorAnswer) -> Result<T, CallError> {
    serde_json::from_slice(&answer.body).map_err(|_| unreadable_answer())
}

/// `None` where the object is not there.
///
/// # Errors
/// Every other one of the outcome.
pub fn unless_missing<T>(outcome: Result<T, CallError>) -> Result<Option<T>, CallError> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_status(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The cause that says most.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// A quota, which does not pass with time.
fn is_final(headers: &HeaderMap) -> bool {
    headers.get("should-retry").is_some_and(|value| value == "false")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(base: &str) -> Result<VendorClient, String> {
        VendorClient::new(base, HeaderName::from_static("x-api-key"), "", "secret-key")
    }

    #[test]
    fn addresses_that_cannot_be_used_are_refused() {
        for bad in ["", "host", "ftp://host", "http://", "http://user:word@host", "http://host/?a=b"] {
            assert!(client(bad).is_err(), "{bad}");
        }
        assert_eq!(client("https://api.host/e2b/").unwrap().base, "https://api.host/e2b");
    }

    #[test]
    fn a_key_is_in_no_text() {
        let client = client("http://127.0.0.1:1").unwrap();
        assert!(!format!("{client:?}").contains("secret-key"));
        let said = client.sentence(br#"{"message": "key secret-key is\u0007 wrong"}"#);
        assert_eq!(said, "key … is wrong");
        assert_eq!(client.sentence("a".repeat(5_000).as_bytes()).len(), MESSAGE_MAX);
        let header = HeaderName::from_static("x-api-key");
        let keyless = VendorClient::new("http://127.0.0.1:1", header, "", "").unwrap();
        assert_eq!(keyless.redacted("no key"), "no key");
    }

    #[tokio::test]
    async fn a_service_that_is_not_there_is_not_sent_to() {
        let client = client("http://127.0.0.1:1").unwrap();
        let call =
            VendorCall { within: Duration::from_millis(300), ..VendorCall::new(Method::GET, "/x".into()) };
        let error = client.call(call).await.unwrap_err();
        assert!(matches!(error, CallError::NotSent { .. }), "{error}");
        assert!(matches!(error.into_provider("listing"), ProviderError::Transient { .. }));
    }

    #[test]
    fn a_refusal_has_the_kind_of_its_status() {
        let kind =
            |status| CallError::Refused { status, message: "no".to_owned() }.into_provider("creating").kind();
        assert_eq!(kind(400), ErrorKind::Invalid);
        assert_eq!(kind(409), ErrorKind::Conflict);
        assert_eq!(kind(429), ErrorKind::Exhausted);
        assert_eq!(kind(401), ErrorKind::Unavailable, "the key is the operator's");
    }
}
