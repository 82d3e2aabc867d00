//! Signed links to files: `/files?path&username&signature&signature_expiration`.
//!
//! A signature replaces the token of a sandbox, for one path, one direction and one user, optionally with an
//! expiration. The request to the agent is written again from exactly what was signed, so that the agent cannot
//! interpret it differently.

use atoll_model::SandboxId;
use atoll_service::{Grant, SandboxTarget, TokenOf};
use axum::extract::Request;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::AUTHORIZATION;
use http::{Method, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Data;
use super::envd::shown;
use super::refusal::Refusal;

pub(super) const PATH: &str = "/files";
const VERSION: &str = "v1_";
/// LIMIT: the length of a SHA-256 in base64, after its version.
const SIGNATURE_LEN: usize = VERSION.len() + 43;
/// LIMIT: digits of seconds in 64 bits, with a sign.
const TIME_LEN_MAX: usize = 20;

/// The content of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Link {
    path: Vec<u8>,
    username: Vec<u8>,
    operation: &'static str,
    signature: Option<Vec<u8>>,
    /// As written in the link, because that is what was signed.
    expiration: Option<Vec<u8>>,
}

/// Whether a request is for a file by a link that names no sandbox.
pub(super) fn is_link(request: &Request) -> bool {
    let uri = request.uri();
    uri.path() == PATH
        && (values(uri.query(), "signature").next().is_some() || request.method() == Method::OPTIONS)
}

impl Data {
    /// Authenticates a link that was signed with a sandbox's token.
    pub(super) fn signed_for(
        &self,
        sandbox: &SandboxId,
        request: &Request,
    ) -> Result<Grant<SandboxTarget>, Refusal> {
        let signed = || {
            let link = Link::read(request)?;
            let grant = self.find(&link, Some(sandbox))?;
            link.check_time(self.now_s())?;
            Ok(grant)
        };
        signed().map_err(|refusal| if self.known(sandbox).is_some() { refusal } else { Refusal::NotFound })
    }

    /// Answers a link that names no sandbox: the sandbox is the one whose token signed it.
    pub(super) async fn linked(&self, mut request: Request) -> Result<Response, Refusal> {
        let link = Link::read(&request)?;
        let grant = self.find(&link, None)?;
        link.check_time(self.now_s())?;
        // COMPAT(e2b): a token beside a signature must be right too.
        if let Some(token) = shown(request.headers())? {
            self.service.access().admit_token(grant.sandbox(), TokenOf::Agent, token)?;
        }
        self.charge(request.extensions(), &grant);
        unsign(&mut request)?;
        let awake = self.awake(grant).await?;
        self.forward(awake, request).await
    }

    fn now_s(&self) -> i64 {
        self.service.now_ms().div_euclid(1_000)
    }

    fn find(&self, link: &Link, of: Option<&SandboxId>) -> Result<Grant<SandboxTarget>, Refusal> {
        let Some(shown) = &link.signature else {
            return Err(refused("missing signature query parameter"));
        };
        // A text that cannot be a signature causes no search, and a long link is hashed once and not for every sandbox.
        let found = (shown.len() == SIGNATURE_LEN && link.has_a_time()).then(|| {
            let begun = link.begun();
            self.service.access().find_by_token(TokenOf::Agent, &mut |lease, token| {
                let signed = || link.sign_on(begun.clone(), token);
                of.is_none_or(|of| *of == lease.id) && bool::from(signed().as_bytes().ct_eq(shown))
            })
        });
        found.flatten().ok_or_else(|| refused("invalid signature"))
    }
}

impl Link {
    fn read(request: &Request) -> Result<Self, Refusal> {
        let operation = match *request.method() {
            Method::GET | Method::HEAD => "read",
            Method::POST => "write",
            _ => {
                let message = "files are read by GET and written by POST".to_owned();
                return Err(Refusal::Agents(StatusCode::METHOD_NOT_ALLOWED, message));
            }
        };
        let only = |name: &str| {
            let mut values = values(request.uri().query(), name);
            match (values.next(), values.next()) {
                (value, None) => Ok(value),
                (_, Some(_)) => {
                    let message = format!("{name} is sent more than once");
                    Err(Refusal::Agents(StatusCode::BAD_REQUEST, message))
                }
            }
        };
        // Base64 contains plus signs, which clients that do not encode them have turned into spaces.
        let plus = |b: &mut u8| *b = if *b == b' ' { b'+' } else { *b };
        let signature = only("signature")?.map(|mut signature| {
            signature.iter_mut().for_each(plus);
            signature
        });
        Ok(Self {
            path: only("path")?.unwrap_or_default(),
            username: only("username")?.unwrap_or_default(),
            operation,
            signature,
            expiration: only("signature_expiration")?,
        })
    }

    /// The hash of everything before the token.
    fn begun(&self) -> Sha256 {
        let mut hash = Sha256::new();
        for part in [&*self.path, self.operation.as_bytes(), &*self.username] {
            hash.update(part);
            hash.update(b":");
        }
        hash
    }

    fn sign_on(&self, mut hash: Sha256, token: &str) -> String {
        hash.update(token);
        if let Some(expiration) = &self.expiration {
            hash.update(b":");
            hash.update(expiration);
        }
        format!("{VERSION}{}", STANDARD_NO_PAD.encode(hash.finalize()))
    }

    /// Whether it has no expiration, or one that can be a time.
    fn has_a_time(&self) -> bool {
        self.expiration.as_ref().is_none_or(|text| text.len() <= TIME_LEN_MAX)
    }

    fn check_time(&self, now_s: i64) -> Result<(), Refusal> {
        let Some(expiration) = &self.expiration else { return Ok(()) };
        let until = std::str::from_utf8(expiration).ok().and_then(|text| text.parse::<i64>().ok());
        match until {
            Some(until) if until >= now_s => Ok(()),
            Some(_) => Err(refused("signature is already expired")),
            None => Err(refused("invalid signature")),
        }
    }
}

/// Leaves in a signed request only what was signed: the path and the user, and no other user in another field.
pub(super) fn unsign(request: &mut Request) -> Result<(), Refusal> {
    let link = Link::read(request)?;
    let mut target = PATH.to_owned();
    let named = [("path", &link.path), ("username", &link.username)];
    for (at, (name, value)) in named.into_iter().filter(|(_, value)| !value.is_empty()).enumerate() {
        target.push(if at == 0 { '?' } else { '&' });
        target.push_str(&format!("{name}={}", percent_encode(value, NON_ALPHANUMERIC)));
    }
    let bad = |_| Refusal::Agents(StatusCode::BAD_REQUEST, "the path is malformed".to_owned());
    *request.uri_mut() = target.parse::<Uri>().map_err(bad)?;
    request.headers_mut().remove(AUTHORIZATION);
    Ok(())
}

fn refused(message: &str) -> Refusal {
    Refusal::Agents(StatusCode::UNAUTHORIZED, message.to_owned())
}

/// The values of a parameter, with the decoding of forms.
fn values<'a>(query: Option<&'a str>, name: &'a str) -> impl Iterator<Item = Vec<u8>> + 'a {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).collect::<Vec<u8>>();
    query.unwrap_or_default().split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key) == name.as_bytes()).then(|| decode(value))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::body::Body;

    use super::*;

    impl Link {
        fn sign(&self, token: &str) -> String {
            self.sign_on(self.begun(), token)
        }
    }

    fn request(method: Method, target: &str) -> Request {
        Request::builder().method(method).uri(target).body(Body::empty()).unwrap()
    }

    fn read(target: &str) -> Link {
        Link::read(&request(Method::GET, target)).unwrap()
    }

    #[test]
    fn a_signature_is_what_the_sdks_compute() {
        // Computed with the vendor's own get_signature(path, operation, user, token) without and with an expiration.
        let link = read("/files?path=%2Fhome%2Fuser%2Fa%20b.txt");
        let by_hand = |text: &str| format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)));
        assert_eq!(link.sign("tok"), by_hand("/home/user/a b.txt:read::tok"));
        let link = read("/files?path=x&username=root&signature_expiration=1893456000");
        assert_eq!(link.sign("tok"), by_hand("x:read:root:tok:1893456000"));
        assert_eq!(link.sign("tok").len(), SIGNATURE_LEN);
    }

    #[test]
    fn a_signature_holds_for_its_path_direction_user_token_and_time_alone() {
        let link = read("/files?path=a&username=u&signature_expiration=9");
        let signed = link.sign("t");
        for other in [
            Link { path: b"b".to_vec(), ..link.clone() },
            Link { username: b"root".to_vec(), ..link.clone() },
            Link { username: Vec::new(), ..link.clone() },
            Link { operation: "write", ..link.clone() },
            Link { expiration: Some(b"99999999999".to_vec()), ..link.clone() },
            Link { expiration: None, ..link.clone() },
        ] {
            assert_ne!(other.sign("t"), signed, "{other:?}");
        }
        assert_ne!(link.sign("u"), signed);
    }

    #[test]
    fn what_is_long_in_a_link_is_read_once_for_all_sandboxes() {
        let link = read(&format!("/files?path={}&signature_expiration=9", "a".repeat(60_000)));
        let begun = link.begun();
        for token in ["t", "u"] {
            let text = format!("{}:read::{token}:9", "a".repeat(60_000));
            let by_hand = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)));
            assert_eq!(link.sign_on(begun.clone(), token), by_hand);
        }
        assert!(link.has_a_time());
        assert!(!read(&format!("/files?signature_expiration={}", "9".repeat(21))).has_a_time());
    }

    #[test]
    fn what_is_there_twice_is_refused() {
        for target in ["/files?path=a&path=b", "/files?p%61th=a&path=b", "/files?signature=a&signature=b"] {
            assert!(Link::read(&request(Method::GET, target)).is_err(), "{target}");
        }
    }

    #[test]
    fn what_passes_on_is_what_was_signed() {
        let mut request = request(Method::POST, "/files?mode=4777&path=%2Fa%26b+c&signature=v1_x&username=u");
        request.headers_mut().insert(AUTHORIZATION, "Basic cm9vdDo=".parse().unwrap());
        unsign(&mut request).unwrap();
        assert_eq!(request.uri().to_string(), "/files?path=%2Fa%26b%20c&username=u");
        assert!(!request.headers().contains_key(AUTHORIZATION));
    }

    #[test]
    fn a_plus_that_was_not_encoded_is_still_one() {
        assert_eq!(read("/files?signature=v1_a+b/c").signature.unwrap(), b"v1_a+b/c");
        assert_eq!(read("/files?signature=v1_a%2Bb%2Fc").signature.unwrap(), b"v1_a+b/c");
    }

    #[test]
    fn links_end_at_their_time() {
        assert!(read("/files?path=a").check_time(1_000).is_ok());
        assert!(read("/files?signature_expiration=99999999999").check_time(1_000).is_ok());
        assert_eq!(
            read("/files?signature_expiration=5").check_time(1_000),
            Err(refused("signature is already expired"))
        );
        for nonsense in ["x", "", "1e99", "99999999999999999999"] {
            let link = read(&format!("/files?signature_expiration={nonsense}"));
            assert_eq!(link.check_time(1_000), Err(refused("invalid signature")), "{nonsense}");
        }
    }

    #[test]
    fn any_link_is_read_or_refused() {
        atoll_robustness::check("signed_link", |bytes| {
            let Ok(uri) = axum::http::Uri::try_from(bytes) else { return };
            let mut asked = request(Method::GET, "/");
            *asked.uri_mut() = uri;
            if let Ok(link) = Link::read(&asked) {
                assert_eq!(link.sign("token").len(), SIGNATURE_LEN);
                let _ = (link.has_a_time(), link.check_time(0));
            }
        });
    }
}
