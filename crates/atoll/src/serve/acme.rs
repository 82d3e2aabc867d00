//! Certificates from an ACME service: obtained when `atoll tls acme` asks for one, and renewed after two thirds of their life.
//!
//! ```text
//! acme.json ─ account ─ order ─ answer the service's request on port 80 ─ CSR ─ cert.pem, key.pem ─ acme-state.json
//! ```
//!
//! One task of the server does this, and it ends with the server. Port 80 is open only while an order waits for its proof. The
//! TLS port notices the new files by itself.

mod proof;

use std::{io, path::Path, time::Duration};

use atoll_proxy::HttpServer;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, BodyWrapper, BytesResponse, ChallengeType, HttpClient,
    Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::{
    cli::Global,
    client::trust,
    failure::Failure,
    server::{
        acme_files::{self, AcmeSettings, AcmeState},
        tls_files::{TlsFiles, put_file, validity},
    },
};
use proof::Proofs;

/// LIMIT: how long a new request may go unnoticed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// LIMIT: one attempt, with all its waits.
const ATTEMPT_MAX: Duration = Duration::from_secs(180);
/// LIMIT: the pause after a failure, doubled after each. Services count failed proofs, usually five in an hour.
const RETRY_FIRST: SignedDuration = SignedDuration::from_mins(15);
const RETRY_MAX: SignedDuration = SignedDuration::from_hours(12);
/// LIMIT: an answer of the service; certificates take some KiB.
const ANSWER_MAX: usize = 1 << 20;

/// The account at the service, with its key.
#[derive(Serialize, Deserialize)]
struct StoredAccount {
    directory: String,
    email: Option<String>,
    credentials: AccountCredentials,
}

/// Obtains and renews the certificate until the server closes.
pub(super) async fn keep(server: &HttpServer, settings: &Settings) {
    // A certificate that the operator named is the operator's to renew.
    if settings.tls.as_ref().is_none_or(|tls| tls.is_named) {
        return;
    }
    let files = TlsFiles::of(&settings.data);
    loop {
        tokio::select! {
            () = look(settings, &files) => {}
            () = server.closes() => return,
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = server.closes() => return,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the validity of a certificate is wall time")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// Makes an attempt if one is due.
async fn look(settings: &Settings, files: &TlsFiles) {
    let wanted = match acme_files::read::<AcmeSettings>(&files.acme) {
        Ok(Some(wanted)) => wanted,
        Ok(None) => return,
        Err(error) => {
            tracing::debug!(%error, "the settings for ACME cannot be read");
            return;
        }
    };
    let state = acme_files::read::<AcmeState>(&files.acme_state).ok().flatten();
    let state = state.filter(|state| state.id == wanted.id);
    let due = state.as_ref().and_then(|state| state.next_at.parse::<Timestamp>().ok());
    if due.is_some_and(|due| now() < due) {
        return;
    }
    tracing::info!(names = wanted.names.join(" "), directory = wanted.directory, "asking for a certificate");
    let attempt = tokio::time::timeout(ATTEMPT_MAX, obtain(settings, files, &wanted));
    let result = attempt.await.unwrap_or_else(|_| {
        Err(Failure::new("deadline_exceeded", "the service did not finish within three minutes"))
    });
    let failures = state.map_or(0, |state| state.failures);
    let state = after(files, &wanted, result, failures);
    if let Err(error) = acme_files::write(&files.acme_state, &state) {
        tracing::warn!(%error, "how the attempt went cannot be written down");
    }
}

/// What to write down about an attempt.
fn after(files: &TlsFiles, wanted: &AcmeSettings, result: Result<(), Failure>, failures: u32) -> AcmeState {
    let at = now();
    let state = AcmeState {
        id: wanted.id.clone(),
        at: format!("{at:.0}"),
        error: None,
        hint: None,
        next_at: String::new(),
        failures: 0,
    };
    match result {
        Ok(()) => {
            let pem = std::fs::read_to_string(&files.certificate).unwrap_or_default();
            let next =
                validity(&pem).map_or(at + RETRY_MAX, |(from, to)| renewal(from, to).max(at + RETRY_FIRST));
            tracing::info!(names = wanted.names.join(" "), renewal = %next, "a certificate was obtained");
            AcmeState { next_at: format!("{next:.0}"), ..state }
        }
        Err(failure) => {
            let next = at + retry_in(failures);
            tracing::warn!(error = failure.message, next = %next, "no certificate was obtained");
            AcmeState {
                error: Some(failure.message),
                hint: failure.hint,
                next_at: format!("{next:.0}"),
                failures: failures.saturating_add(1),
                ..state
            }
        }
    }
}

/// After two thirds of the life of a certificate.
fn renewal(from: Timestamp, to: Timestamp) -> Timestamp {
    from + to.duration_since(from) * 2 / 3
}

fn retry_in(failures: u32) -> SignedDuration {
    (0..failures.min(16)).fold(RETRY_FIRST, |pause, _| (pause * 2).min(RETRY_MAX))
}

async fn obtain(settings: &Settings, files: &TlsFiles, wanted: &AcmeSettings) -> Result<(), Failure> {
    let account = account(settings, files, wanted).await?;
    let names: Vec<Identifier> = wanted.names.iter().map(|name| Identifier::Dns(name.clone())).collect();
    let mut order = account.new_order(&NewOrder::new(&names)).await.map_err(|e| refused("the order", &e))?;
    prove(&mut order, wanted).await?;
    let key = order.finalize().await.map_err(|e| refused("the certificate", &e))?;
    let chain = order.poll_certificate(&policy()).await.map_err(|e| refused("the certificate", &e))?;
    if validity(&chain).is_none() {
        return Err(Failure::new("acme", "the service sent something else than a certificate"));
    }
    // The key first: a server that reads in between keeps its current pair.
    let unwritten =
        |path: &Path, e: &io::Error| Failure::new("io", format!("{} cannot be written: {e}", path.display()));
    put_file(&files.key, &key, 0o600).map_err(|e| unwritten(&files.key, &e))?;
    put_file(&files.certificate, &chain, 0o644).map_err(|e| unwritten(&files.certificate, &e))
}

fn policy() -> RetryPolicy {
    RetryPolicy::new().timeout(Duration::from_secs(90))
}

/// The account of this server at the service, made at the first use.
async fn account(settings: &Settings, files: &TlsFiles, wanted: &AcmeSettings) -> Result<Account, Failure> {
    let failed = |e: instant_acme::Error| refused("the account", &e);
    let stored = acme_files::read::<StoredAccount>(&files.acme_account).unwrap_or_else(|error| {
        tracing::warn!(%error, "the stored ACME account cannot be read; a new one is made");
        None
    });
    let builder = Account::builder_with_http(Box::new(Http::new(settings, wanted)?));
    if let Some(stored) =
        stored.filter(|stored| stored.directory == wanted.directory && stored.email == wanted.email)
    {
        return builder.from_credentials(stored.credentials).await.map_err(failed);
    }
    let contact = wanted.email.as_ref().map(|email| format!("mailto:{email}"));
    let contact: Vec<&str> = contact.as_deref().into_iter().collect();
    let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
    let (account, credentials) =
        builder.create(&new, wanted.directory.clone(), None).await.map_err(failed)?;
    let stored =
        StoredAccount { directory: wanted.directory.clone(), email: wanted.email.clone(), credentials };
    acme_files::write(&files.acme_account, &stored).map_err(|e| {
        Failure::new("io", format!("{} cannot be written: {e}", files.acme_account.display()))
    })?;
    Ok(account)
}

/// Answers the service's requests until every name of the order is proven.
async fn prove(order: &mut Order, wanted: &AcmeSettings) -> Result<(), Failure> {
    let mut proofs = Proofs::default();
    let mut authorizations = order.authorizations();
    let mut is_proven = true;
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(|e| refused("the order", &e))?;
        if authorization.status != AuthorizationStatus::Pending {
            continue;
        }
        let challenge = authorization.challenge(ChallengeType::Http01).ok_or_else(|| {
            Failure::new("acme", "the service does not accept a proof over HTTP")
                .hint("wildcards need a proof by DNS")
        })?;
        proofs.add(&challenge.token, challenge.key_authorization().as_str());
        is_proven = false;
    }
    if is_proven {
        return Ok(());
    }
    let listener = proof::listen(wanted.http_listen).await?;
    tokio::select! {
        result = finish(order) => result,
        () = proofs.serve(listener) => Err(Failure::new("internal", "the listener for proofs ended")),
    }
}

/// Tells the service that the proofs are there, and waits for its verdict.
async fn finish(order: &mut Order) -> Result<(), Failure> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(|e| refused("the order", &e))?;
        let name = authorization.identifier().to_string();
        if authorization.status == AuthorizationStatus::Pending
            && let Some(mut challenge) = authorization.challenge(ChallengeType::Http01)
        {
            // Some services ask for the proof before they answer.
            challenge.set_ready().await.map_err(|e| unproven(&format!("{name}: {e}")))?;
        }
    }
    let why = match order.poll_ready(&policy()).await {
        Ok(OrderStatus::Ready | OrderStatus::Valid) => return Ok(()),
        Ok(status) => format!("the order is {status:?}"),
        Err(error) => error.to_string(),
    };
    Err(unproven(&verdict(order).await.unwrap_or(why)))
}

fn unproven(why: &str) -> Failure {
    Failure::new("acme", format!("the service did not accept the proof: {why}"))
        .hint("each name must lead to this machine, and port 80 from the Internet to the server")
}

/// Why the service refused a name.
async fn verdict(order: &mut Order) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let state = authorization.refresh().await.ok()?;
        let error = state.challenges.iter().find_map(|challenge| challenge.error.as_ref());
        if let Some(error) = error {
            return Some(format!(
                "{}: {}",
                state.identifier(),
                error.detail.as_deref().unwrap_or("no reason")
            ));
        }
    }
    None
}

fn refused(what: &str, cause: &instant_acme::Error) -> Failure {
    let mut text = format!("{what} was not accepted by the service: {cause}");
    let mut next = std::error::Error::source(cause);
    while let Some(source) = next {
        text.push_str(&format!(": {source}"));
        next = source.source();
    }
    Failure::new("acme", text)
}

/// The HTTP client of this program, for the ACME client.
struct Http(reqwest::Client);

impl Http {
    fn new(settings: &Settings, wanted: &AcmeSettings) -> Result<Self, Failure> {
        let trusted =
            Global { ca_pem: wanted.ca.clone(), data: Some(settings.data.clone()), ..Global::default() };
        let tls = trust::config(&trusted)?;
        reqwest::Client::builder()
            .timeout(Duration::from_secs(30))
            .tls_backend_preconfigured(rustls::ClientConfig::clone(&tls))
            .build()
            .map(Self)
            .map_err(|e| Failure::new("internal", format!("the HTTP client cannot be created: {e}")))
    }
}

type AcmeRequest = axum::http::Request<BodyWrapper<bytes::Bytes>>;
type Answering = std::pin::Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>>;

impl HttpClient for Http {
    fn request(&self, request: AcmeRequest) -> Answering {
        let http = self.0.clone();
        Box::pin(async move {
            let other = |e: reqwest::Error| instant_acme::Error::Other(Box::new(e));
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(axum::body::Body::new(body), ANSWER_MAX)
                .await
                .map_err(|e| instant_acme::Error::Other(Box::new(e)))?;
            let sending = http.request(head.method, head.uri.to_string()).headers(head.headers).body(body);
            let mut answer = sending.send().await.map_err(other)?;
            let mut response = axum::http::Response::builder().status(answer.status());
            if let Some(headers) = response.headers_mut() {
                headers.clone_from(answer.headers());
            }
            let mut content = Vec::new();
            while let Some(piece) = answer.chunk().await.map_err(other)? {
                if content.len() + piece.len() > ANSWER_MAX {
                    return Err(instant_acme::Error::Str("an answer is too large"));
                }
                content.extend_from_slice(&piece);
            }
            let response = response
                .body(axum::body::Body::from(content))
                .map_err(|e| instant_acme::Error::Other(Box::new(e)))?;
            Ok(BytesResponse::from(response))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        let due = renewal(at("2026-01-01T00:00:00Z"), at("2026-04-01T00:00:00Z"));
        assert_eq!(due, at("2026-03-02T00:00:00Z"));
    }

    #[test]
    fn attempts_become_rarer_up_to_twice_a_day() {
        let pauses = [0, 1, 2, 6, 100].map(|failures| retry_in(failures).as_mins());
        assert_eq!(pauses, [15, 30, 60, 720, 720]);
    }
}
