//! A stand-in for an ACME service (RFC 8555): it checks signatures, nonces and URLs, asks for the proof on port 80 of this world,
//! and signs. For names that begin with `refused` it expects another proof; it says so at once for those that begin with
//! `refused-at-once`, and for others when it is asked again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use atoll_tests::{Value, json};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData,
    SignatureAlgorithm, date_time_ymd,
};
use sha2::{Digest, Sha256};

pub(super) struct AcmeService {
    directory: String,
    shared: Shared,
    task: tokio::task::JoinHandle<()>,
}

type Shared = Arc<ServiceState>;

struct ServiceState {
    base: String,
    ca: String,
    ca_key: KeyPair,
    ca_params: CertificateParams,
    inner: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    nonces: BTreeSet<String>,
    next: u32,
    /// Keys of accounts, by URL.
    accounts: BTreeMap<String, Value>,
    orders: BTreeMap<u32, Order>,
    wrong: Vec<String>,
}

struct Order {
    names: Vec<String>,
    /// One for each name: `None` is not asked yet, `Some(Err)` is refused.
    proofs: Vec<Option<Result<(), String>>>,
    certificate: Option<String>,
}

impl Drop for AcmeService {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AcmeService {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let ca_key = KeyPair::generate().unwrap();
        let mut ca_params = CertificateParams::default();
        ca_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = ca_params.self_signed(&ca_key).unwrap().pem();
        let shared =
            Arc::new(ServiceState { base: base.clone(), ca, ca_key, ca_params, inner: Mutex::default() });
        let routes = Router::new()
            .route("/directory", get(directory))
            .route("/nonce", any(nonce))
            .route("/{what}/{number}", any(request))
            .with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { directory: format!("{base}/directory"), shared, task }
    }

    pub(super) fn directory(&self) -> &str {
        &self.directory
    }

    pub(super) fn ca(&self) -> &str {
        &self.shared.ca
    }

    pub(super) fn accounts(&self) -> usize {
        self.shared.lock().accounts.len()
    }

    /// What clients did against the protocol.
    pub(super) fn wrong(&self) -> Vec<String> {
        self.shared.lock().wrong.clone()
    }
}

impl ServiceState {
    fn lock(&self) -> MutexGuard<'_, Records> {
        self.inner.lock().unwrap()
    }

    fn answer(&self, status: u16, location: Option<&str>, body: &Value) -> Response {
        self.finish(status, location, "application/json", body.to_string())
    }

    fn finish(&self, status: u16, location: Option<&str>, kind: &'static str, body: String) -> Response {
        let mut records = self.lock();
        records.next += 1;
        let nonce = format!("nonce{}", records.next);
        records.nonces.insert(nonce.clone());
        let mut headers = HeaderMap::new();
        headers.insert("replay-nonce", HeaderValue::from_str(&nonce).unwrap());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Some(location) = location {
            headers.insert(header::LOCATION, HeaderValue::from_str(location).unwrap());
        }
        (StatusCode::from_u16(status).unwrap(), headers, body).into_response()
    }

    fn order(&self, number: u32, order: &Order) -> Value {
        let is = |wanted: fn(&Option<Result<(), String>>) -> bool| order.proofs.iter().any(wanted);
        let status = match &order.certificate {
            Some(_) => "valid",
            None if is(|proof| matches!(proof, Some(Err(_)))) => "invalid",
            None if is(Option::is_none) => "pending",
            None => "ready",
        };
        let at = |what: &str, n: u32| format!("{}/{what}/{n}", self.base);
        let authorizations: Vec<String> =
            (0..order.names.len()).map(|n| at("authz", number * 100 + u32::try_from(n).unwrap())).collect();
        json!({
            "status": status, "authorizations": authorizations, "finalize": at("finalize", number),
            "identifiers": order.names.iter().map(|name| json!({ "type": "dns", "value": name })).collect::<Vec<_>>(),
            "certificate": order.certificate.as_ref().map(|_| at("certificate", number)),
        })
    }

    fn authorization(&self, number: u32) -> Value {
        let records = self.lock();
        let (order, place) = (&records.orders[&(number / 100)], (number % 100) as usize);
        let (status, error) = match &order.proofs[place] {
            None => ("pending", Value::Null),
            Some(Ok(())) => ("valid", Value::Null),
            Some(Err(why)) => {
                ("invalid", json!({ "type": "urn:ietf:params:acme:error:unauthorized", "detail": why }))
            }
        };
        let (token, url) = (format!("token{number}"), format!("{}/challenge/{number}", self.base));
        let other = json!({ "type": "dns-01", "url": url, "token": token, "status": "pending" });
        let http = json!({ "type": "http-01", "url": url, "token": token, "status": status, "error": error });
        json!({
            "status": status, "identifier": { "type": "dns", "value": order.names[place] }, "challenges": [other, http],
        })
    }

    /// Asks for the proof as the service on the Internet would.
    async fn prove(&self, number: u32, key: &Value) {
        let canonical =
            format!(r#"{{"crv":{},"kty":{},"x":{},"y":{}}}"#, key["crv"], key["kty"], key["x"], key["y"]);
        let thumbprint = URL_SAFE_NO_PAD.encode(Sha256::digest(canonical));
        let url = format!("http://127.0.0.1:80/.well-known/acme-challenge/token{number}");
        let found = match reqwest::Client::new().get(url).send().await {
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(error) => format!("no answer: {error}"),
        };
        let mut records = self.lock();
        let order = records.orders.get_mut(&(number / 100)).unwrap();
        let place = (number % 100) as usize;
        let is_proven =
            found == format!("token{number}.{thumbprint}") && !order.names[place].starts_with("refused");
        order.proofs[place] = Some(is_proven.then_some(()).ok_or_else(|| format!("{found:?} is no proof")));
    }

    fn sign(&self, number: u32, csr: &str) {
        let csr = URL_SAFE_NO_PAD.decode(csr).unwrap();
        let mut records = self.lock();
        let order = records.orders.get_mut(&number).unwrap();
        for name in &order.names {
            assert!(
                csr.windows(name.len()).any(|part| part == name.as_bytes()),
                "{name} is not in the request"
            );
        }
        let mut params = CertificateParams::new(order.names.clone()).unwrap();
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2027, 12, 31);
        let issuer = Issuer::from_params(&self.ca_params, &self.ca_key);
        let certificate = params.signed_by(&RequestedKey::of(&csr), &issuer).unwrap();
        order.certificate = Some(format!("{}{}", certificate.pem(), self.ca));
    }
}

/// The key of a certificate request: an uncompressed point of P-256.
struct RequestedKey(Vec<u8>);

impl RequestedKey {
    fn of(csr: &[u8]) -> Self {
        let start = [0x03, 0x42, 0x00, 0x04];
        let at = csr.windows(4).position(|part| part == start).expect("a key of P-256") + 3;
        Self(csr[at..at + 65].to_vec())
    }
}

impl PublicKeyData for RequestedKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

async fn directory(State(service): State<Shared>) -> Response {
    let base = &service.base;
    service.answer(
        200,
        None,
        &json!({
            "newNonce": format!("{base}/nonce"), "newAccount": format!("{base}/account/0"),
            "newOrder": format!("{base}/order/0"), "revokeCert": format!("{base}/revoke/0"),
            "keyChange": format!("{base}/key/0"),
        }),
    )
}

async fn nonce(State(service): State<Shared>) -> Response {
    service.answer(200, None, &Value::Null)
}

/// A signed request: its claims are checked, then it is carried out.
async fn request(
    State(service): State<Shared>,
    Path((what, number)): Path<(String, u32)>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let signed = match check(&service, &method, &uri, &body) {
        Ok(signed) => signed,
        Err(why) => {
            service.lock().wrong.push(format!("{uri}: {why}"));
            let problem = json!({ "type": "urn:ietf:params:acme:error:malformed", "detail": why });
            return service.answer(400, None, &problem);
        }
    };
    let at = |what: &str, n: u32| format!("{}/{what}/{n}", service.base);
    match (what.as_str(), number) {
        ("account", 0) => {
            let url = at("account", 1 + u32::try_from(service.accounts_len()).unwrap());
            service.lock().accounts.insert(url.clone(), signed.key);
            assert_eq!(signed.payload["termsOfServiceAgreed"], json!(true));
            service.answer(201, Some(&url), &json!({ "status": "valid" }))
        }
        ("order", 0) => {
            let names = signed.payload["identifiers"].as_array().unwrap().iter();
            let names: Vec<String> = names.map(|one| one["value"].as_str().unwrap().to_owned()).collect();
            let order = Order { proofs: names.iter().map(|_| None).collect(), names, certificate: None };
            let number = 1 + u32::try_from(service.lock().orders.len()).unwrap();
            let body = service.order(number, &order);
            service.lock().orders.insert(number, order);
            service.answer(201, Some(&at("order", number)), &body)
        }
        ("order", number) => {
            let body = service.order(number, &service.lock().orders[&number]);
            service.answer(200, None, &body)
        }
        ("authz", number) => service.answer(200, None, &service.authorization(number)),
        ("challenge", number) => {
            service.prove(number, &signed.key).await;
            let authorization = service.authorization(number);
            let mut body = authorization["challenges"][1].clone();
            if !authorization["identifier"]["value"].as_str().unwrap().starts_with("refused-at-once.") {
                (body["status"], body["error"]) = (json!("processing"), Value::Null);
            }
            service.answer(200, None, &body)
        }
        ("finalize", number) => {
            service.sign(number, signed.payload["csr"].as_str().unwrap());
            let body = service.order(number, &service.lock().orders[&number]);
            service.answer(200, None, &body)
        }
        ("certificate", number) => {
            let chain = service.lock().orders[&number].certificate.clone().unwrap();
            service.finish(200, None, "application/pem-certificate-chain", chain)
        }
        _ => service.answer(404, None, &Value::Null),
    }
}

impl ServiceState {
    fn accounts_len(&self) -> usize {
        self.lock().accounts.len()
    }
}

struct Signed {
    payload: Value,
    key: Value,
}

/// Signature, nonce, URL and account of a request.
fn check(service: &ServiceState, method: &Method, uri: &Uri, body: &[u8]) -> Result<Signed, String> {
    if *method != Method::POST {
        return Err(format!("{method} instead of POST"));
    }
    let sent: Value = serde_json::from_slice(body).map_err(|e| e.to_string())?;
    let part = |name: &str| sent[name].as_str().map(str::to_owned).ok_or_else(|| format!("no {name}"));
    let (protected, payload, signature) = (part("protected")?, part("payload")?, part("signature")?);
    let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|e| e.to_string());
    let head: Value = serde_json::from_slice(&bytes(&protected)?).map_err(|e| e.to_string())?;
    if head["url"] != json!(format!("{}{}", service.base, uri.path())) {
        return Err(format!("signed for {}", head["url"]));
    }
    if !service.lock().nonces.remove(head["nonce"].as_str().unwrap_or_default()) {
        return Err("an old nonce".to_owned());
    }
    let key = match head["kid"].as_str() {
        Some(kid) => service.lock().accounts.get(kid).cloned().ok_or("no such account")?,
        None => head["jwk"].clone(),
    };
    let number = |name: &str| bytes(key[name].as_str().unwrap_or_default());
    let point = [vec![4], number("x")?, number("y")?].concat();
    let message = format!("{protected}.{payload}");
    let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let algorithm = algorithms.all.iter().find(|one| {
        one.public_key_alg_id() == rustls::pki_types::alg_id::ECDSA_P256
            && one.signature_alg_id() == rustls::pki_types::alg_id::ECDSA_SHA256
    });
    algorithm
        .ok_or("no algorithm")?
        .verify_signature(&point, message.as_bytes(), &as_der(&bytes(&signature)?))
        .map_err(|_| "a wrong signature".to_owned())?;
    let payload = bytes(&payload)?;
    let payload = if payload.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&payload).map_err(|e| e.to_string())?
    };
    Ok(Signed { payload, key })
}

/// A signature of two numbers of 32 bytes in ASN.1.
fn as_der(fixed: &[u8]) -> Vec<u8> {
    let integer = |bytes: &[u8]| {
        let bytes: Vec<u8> = bytes.iter().copied().skip_while(|byte| *byte == 0).collect();
        let sign = bytes.first().is_none_or(|first| first & 0x80 != 0);
        let content = if sign { [vec![0], bytes].concat() } else { bytes };
        [vec![2, u8::try_from(content.len()).unwrap()], content].concat()
    };
    let (r, s) = fixed.split_at(fixed.len() / 2);
    let both = [integer(r), integer(s)].concat();
    [vec![0x30, u8::try_from(both.len()).unwrap()], both].concat()
}
