//! A session with one registry about one image. Every request of a pull or a push goes through
//! [`RegistrySession::send`], which checks and follows redirects, answers authentication challenges, and retries where
//! that is safe.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use reqwest::header::{AUTHORIZATION, HeaderValue, LOCATION};
use reqwest::{Body, Method, Response};
use tokio::sync::Mutex;
use tokio_util::io::ReaderStream;
use url::Url;

use super::address::{UrlPolicy, host_of, shown, unreachable};
use super::auth::Auth;
use super::error::RegistryError;
use super::image_location::ImageLocation;
use super::retry::{Patience, RetryDecision, is_passing, retry_after};
use super::token::{self, Challenge};
use super::{Registry, docker_config};
use atoll_model::TemplateRef;

/// LIMIT: redirects of one request.
const REDIRECTS: usize = 5;
/// LIMIT: a registry that sends nothing for this long is given up.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// LIMIT: after the last byte of an upload a registry may have to store it elsewhere first.
const SILENCE_OF_UPLOAD: Duration = Duration::from_secs(180);
/// LIMIT: the duration of a request for a manifest, a config or a token.
const TEXT_WITHIN: Duration = Duration::from_secs(120);
/// LIMIT: the duration of the check whether a host has TLS, and how long its result is valid.
const PROBE: Duration = Duration::from_secs(5);
const BELIEVED: Duration = Duration::from_secs(60);

pub(super) struct RegistrySession<'a> {
    urls: &'a UrlPolicy,
    pub place: ImageLocation,
    /// `https://host/v2/<repository>/`.
    base: Url,
    auth: Auth,
    scope: String,
    /// The last `Authorization` value that the registry accepted.
    header: Mutex<Option<HeaderValue>>,
}

/// A request that can be repeated.
pub(super) struct RegistryRequest {
    pub method: Method,
    pub url: Url,
    pub headers: Vec<(&'static str, String)>,
    pub body: Payload,
    /// Its subject, for errors.
    pub what: String,
}

/// The body of a request.
#[derive(Clone)]
pub(super) enum Payload {
    Nothing,
    Bytes(Bytes),
    /// A file, and a counter of the bytes sent.
    File {
        path: PathBuf,
        size: u64,
        sent: Arc<AtomicU64>,
    },
}

impl RegistryRequest {
    pub(super) fn new(method: Method, url: Url, what: impl Into<String>) -> Self {
        Self { method, url, headers: Vec::new(), body: Payload::Nothing, what: what.into() }
    }
}

impl<'a> RegistrySession<'a> {
    /// Starts a session; `actions` is the scope of a token: `pull` or `pull,push`.
    pub(super) async fn open(
        registry: &'a Registry,
        image: &TemplateRef,
        auth: Auth,
        actions: &str,
    ) -> Result<RegistrySession<'a>, RegistryError> {
        let place = ImageLocation::of(image);
        let auth = match (auth, registry.settings.docker_config.clone()) {
            (Auth::Operator, Some(path)) => {
                let name = place.in_docker_config().to_owned();
                let read = tokio::task::spawn_blocking(move || docker_config::auth_for(&path, &name));
                read.await.expect("reading a config does not panic")?
            }
            (Auth::Operator, None) => Auth::Anonymous,
            (auth, _) => auth,
        };
        let base = base_of(registry, &place).await?;
        let scope = format!("repository:{}:{actions}", place.repository);
        Ok(Self { urls: &registry.urls, place, base, auth, scope, header: Mutex::default() })
    }

    /// The URL of a path below the repository.
    pub(super) fn url(&self, path: &str) -> Url {
        self.base.join(path).expect("the path is a tag, a digest or a constant")
    }

    /// A URL from the registry, which may be relative to the requested one.
    pub(super) fn follow(&self, asked: &Url, location: &str) -> Result<Url, RegistryError> {
        asked
            .join(location)
            .map_err(|_| RegistryError::damaged("the registry's answer", "its Location is not a URL"))
    }

    /// Whether the session has no credentials.
    fn is_anonymous(&self) -> bool {
        self.auth == Auth::Anonymous
    }

    fn refused(&self) -> RegistryError {
        let (host, image) = (self.place.host.clone(), self.place.repository.clone());
        match self.is_anonymous() {
            true => RegistryError::CredentialsNeeded { host, image },
            false => RegistryError::Refused { host, image },
        }
    }

    /// Sends a request and retries it until the result is final. The response is a success, 404 or 416.
    pub(super) async fn send(&self, ask: &RegistryRequest) -> Result<Response, RegistryError> {
        let mut patience = Patience::default();
        let mut answered_challenge = false;
        loop {
            let used = self.header.lock().await.clone();
            let failed = match self.send_once(ask, used.as_ref()).await {
                Ok(response) => match response.status().as_u16() {
                    200..=299 | 404 | 416 => return Ok(response),
                    401 if !answered_challenge => match self.answer_challenge(&response, used.as_ref()).await
                    {
                        Ok(()) => {
                            answered_challenge = true;
                            continue;
                        }
                        Err(error) => (None, error),
                    },
                    401 | 403 => return Err(self.refused()),
                    status => {
                        let error = RegistryError::Answered {
                            host: host_of(response.url()),
                            status,
                            asked: ask.what.clone(),
                        };
                        (retry_after(response.headers()), error)
                    }
                },
                Err(error) => (None, error),
            };
            let (asked, error) = failed;
            let next = match &error {
                RegistryError::Answered { status, .. } if is_passing(*status) => patience.failed(asked),
                RegistryError::Unreachable { .. } => patience.failed(None),
                RegistryError::Silent { .. } => patience.failed_slowly(),
                _ => RetryDecision::GiveUp,
            };
            match next {
                RetryDecision::Wait(wait) => tokio::time::sleep(wait).await,
                RetryDecision::TooLong(wait) => {
                    return Err(RegistryError::Busy {
                        host: self.place.host.clone(),
                        wait_s: wait.as_secs(),
                    });
                }
                RetryDecision::GiveUp => return Err(error),
            }
        }
    }

    /// Sends a request once, and follows redirects.
    async fn send_once(
        &self,
        ask: &RegistryRequest,
        header: Option<&HeaderValue>,
    ) -> Result<Response, RegistryError> {
        let mut url = ask.url.clone();
        for _ in 0..=REDIRECTS {
            let client = self.urls.client_for(&url)?;
            self.urls.check_proxied(&url).await?;
            let mut request = client.request(ask.method.clone(), url.clone());
            for (name, value) in &ask.headers {
                request = request.header(*name, value);
            }
            // Storage hosts that a registry redirects to must not get the token.
            if let Some(header) = header
                && url.origin() == self.base.origin()
            {
                request = request.header(AUTHORIZATION, header.clone());
            }
            let response = send_body(request, &ask.body, &url).await?;
            let is_read = matches!(ask.method, Method::GET | Method::HEAD);
            let leads_on = match response.status().as_u16() {
                301..=303 => is_read,
                307 | 308 => true,
                _ => false,
            };
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            match (leads_on, location) {
                (true, Some(location)) => url = self.follow(&url, location)?,
                _ => return Ok(response),
            }
        }
        Err(RegistryError::Forbidden { url: shown(&url), why: "there are too many redirects".into() })
    }

    /// Gets the credentials that the registry asks for, unless another request has just done so.
    async fn answer_challenge(
        &self,
        response: &Response,
        used: Option<&HeaderValue>,
    ) -> Result<(), RegistryError> {
        let asked = token::challenge(response.headers()).ok_or_else(|| self.refused())?;
        // Held while the token is fetched: several downloads that are refused together need one token.
        let mut header = self.header.lock().await;
        if header.as_ref() != used {
            return Ok(());
        }
        let fresh = match (&asked, &self.auth) {
            (_, Auth::Bearer(text)) => token::bearer(text),
            (Challenge::Basic, Auth::Basic { username, password }) => token::basic(username, password),
            (Challenge::Basic, _) => None,
            (Challenge::Bearer { realm, service, scope }, auth) => {
                let mut scopes = vec![self.scope.as_str()];
                scopes.extend(scope.as_deref().filter(|scope| !self.scope.starts_with(scope)));
                let wanted = token::TokenRequest { realm, service: service.as_deref(), scopes };
                token::fetch(self.urls, &wanted, auth).await?
            }
        };
        // The same value would be refused again.
        let fresh = fresh.filter(|fresh| Some(fresh) != used).ok_or_else(|| self.refused())?;
        *header = Some(fresh);
        Ok(())
    }
}

/// Sends a request and waits for the response header as long as there is progress.
async fn send_body(
    request: reqwest::RequestBuilder,
    body: &Payload,
    url: &Url,
) -> Result<Response, RegistryError> {
    let silent = || RegistryError::Silent { host: host_of(url) };
    let (request, sent) = match body {
        Payload::Nothing => (request, None),
        Payload::Bytes(bytes) => (request.body(bytes.clone()), None),
        Payload::File { path, size, sent } => {
            let file = tokio::fs::File::open(path).await.map_err(RegistryError::io("open", path))?;
            sent.store(0, Ordering::Relaxed);
            let counter = Arc::clone(sent);
            let stream =
                futures::StreamExt::inspect(ReaderStream::with_capacity(file, 256 << 10), move |chunk| {
                    let bytes = chunk.as_ref().map_or(0, Bytes::len) as u64;
                    counter.fetch_add(bytes, Ordering::Relaxed);
                });
            (request.header("content-length", *size).body(Body::wrap_stream(stream)), Some(sent))
        }
    };
    let mut answer = Box::pin(request.send());
    let Some(sent) = sent else {
        let answered = tokio::time::timeout(SILENCE, answer).await.map_err(|_| silent())?;
        return answered.map_err(|cause| unreachable(url, cause));
    };
    let mut seen = 0;
    loop {
        // Cancel-safe: the request itself lives outside of the loop.
        if let Ok(answered) = tokio::time::timeout(SILENCE_OF_UPLOAD, &mut answer).await {
            return answered.map_err(|cause| unreachable(url, cause));
        }
        let now = sent.load(Ordering::Relaxed);
        if now == seen {
            return Err(silent());
        }
        seen = now;
    }
}

/// The next bytes of a response; `None` at its end.
pub(super) async fn next_chunk(response: &mut Response) -> Result<Option<Bytes>, RegistryError> {
    match tokio::time::timeout(SILENCE, response.chunk()).await {
        Ok(chunk) => chunk.map_err(|cause| unreachable(response.url(), cause)),
        Err(_) => Err(RegistryError::Silent { host: host_of(response.url()) }),
    }
}

/// The whole body of a response that must be small.
pub(super) async fn read_bounded(
    mut response: Response,
    max: usize,
    what: &str,
    url: &Url,
) -> Result<Bytes, RegistryError> {
    let mut whole = BytesMut::new();
    let read = async {
        while let Some(chunk) = next_chunk(&mut response).await? {
            if whole.len() + chunk.len() > max {
                let what = format!("{what} of {}", host_of(url));
                return Err(RegistryError::damaged(what, format!("it has more than {max} bytes")));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(())
    };
    let silent = || RegistryError::Silent { host: host_of(url) };
    tokio::time::timeout(TEXT_WITHIN, read).await.map_err(|_| silent())??;
    Ok(whole.freeze())
}

/// The base URL of the registry. A registry that is allowed without TLS is checked once for TLS.
async fn base_of(registry: &Registry, place: &ImageLocation) -> Result<Url, RegistryError> {
    let (host, repository) = (&place.host, &place.repository);
    let build = |scheme: &str| {
        let text = format!("{scheme}://{host}/v2/{repository}/");
        text.parse::<Url>().map_err(|_| RegistryError::Forbidden { url: text, why: "it is not a URL".into() })
    };
    let secure = build("https")?;
    // The default port is 443 or 80; the operator may have named either.
    let plain = build("http")?;
    if !registry.urls.is_named(&secure) && !registry.urls.is_named(&plain) {
        return Ok(secure);
    }
    let hosts = || registry.has_tls.lock().unwrap_or_else(PoisonError::into_inner);
    let known =
        hosts().get(host).filter(|(_, asked_at)| asked_at.elapsed() < BELIEVED).map(|(has_tls, _)| *has_tls);
    let has_tls = match known {
        Some(known) => known,
        None => {
            let has_tls = answers_tls(registry, &secure).await;
            hosts().insert(host.clone(), (has_tls, Instant::now()));
            has_tls
        }
    };
    Ok(if has_tls { secure } else { plain })
}

/// Whether the host responds at all over TLS.
async fn answers_tls(registry: &Registry, secure: &Url) -> bool {
    let Ok(client) = registry.urls.client_for(secure) else { return false };
    let root = secure.join("/v2/").expect("a plain path");
    matches!(tokio::time::timeout(PROBE, client.get(root).send()).await, Ok(Ok(_)))
}
