//! Signed links to files, usable without a key. The holder of the sandbox's signing key makes them without a request to
//! the server.

use atoll_front_kit::ApiError;
use atoll_service::TokenOf;
use axum::http::Uri;
use axum::http::request::Parts;
use base64::Engine;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::inside::{Inside, sandbox_of};
use crate::DaytonaApp;
use axum::extract::FromRequestParts;

const VERSION: &str = "v1_";
/// A time that no link is signed for.
const NEVER_SIGNED: i64 = -1;

/// The content of a link.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    path: String,
    /// Unix seconds; 0: no expiry.
    expires: i64,
    signature: String,
}

/// Authenticates by a key, or by a link that is signed for this method and path.
pub(super) async fn inside(parts: &mut Parts, app: &DaytonaApp) -> Result<Inside, ApiError> {
    let Some(link) = link(&parts.uri) else { return Inside::from_request_parts(parts, app).await };
    let wrong = || ApiError::unauthenticated("this link is invalid or has expired").from_sandbox();
    if link.expires < 0 || (link.expires > 0 && link.expires < app.service.now_ms().div_euclid(1_000)) {
        return Err(wrong());
    }
    let ident = sandbox_of(parts, app).await?;
    let signed = format!("v1:files:{}:{}:{}", parts.method, link.path, link.expires);
    let grant = app.service.access().find_by_token(TokenOf::Files, &mut |lease, key| {
        lease.id.as_str() == ident && is_signed(key, &signed, &link.signature)
    });
    Inside::open(&grant.ok_or_else(wrong)?, None).await
}

fn link(uri: &Uri) -> Option<Link> {
    let (mut path, mut expires, mut signature) = (Vec::new(), Vec::new(), Vec::new());
    for (name, value) in url::form_urlencoded::parse(uri.query()?.as_bytes()) {
        match name.as_ref() {
            "path" => path.push(value.into_owned()),
            "expires" => expires.push(value.parse().unwrap_or(NEVER_SIGNED)),
            "signature" => signature.push(value.into_owned()),
            _ => {}
        }
    }
    // A repeated parameter is refused: otherwise one copy could be checked and another one used.
    let expires = match [path.len(), expires.len(), signature.len()] {
        [1, 1, 1] => expires[0],
        _ => NEVER_SIGNED,
    };
    Some(Link { signature: signature.pop()?, path: path.pop().unwrap_or_default(), expires })
}

fn is_signed(key: &str, text: &str, shown: &str) -> bool {
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let Some(shown) = shown.strip_prefix(VERSION).and_then(|text| engine.decode(text).ok()) else {
        return false;
    };
    hmac(key.as_bytes(), text.as_bytes()).as_slice().ct_eq(&shown).into()
}

/// HMAC-SHA256 (RFC 2104).
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0u8; 64];
    match key.len() {
        0..=64 => block[..key.len()].copy_from_slice(key),
        _ => block[..32].copy_from_slice(&Sha256::digest(key)),
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_text_is_the_known_one() {
        let wanted = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex::encode(hmac(b"Jefe", b"what do ya want for nothing?")), wanted);
        let long = hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(hex::encode(long), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn a_signature_holds_for_its_own_text_and_key_alone() {
        let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let text = "v1:files:GET:/a b:0";
        let shown = format!("v1_{}", engine.encode(hmac(b"key", text.as_bytes())));
        assert!(is_signed("key", text, &shown));
        assert!(!is_signed("other", text, &shown));
        assert!(!is_signed("key", "v1:files:POST:/a b:0", &shown));
        assert!(!is_signed("key", text, &shown[3..]) && !is_signed("key", text, "v1_"));
    }

    #[test]
    fn a_link_is_one_by_its_signature() {
        let uri: Uri = "/files/download?path=%2Fa%20b&expires=7&signature=v1_x".parse().unwrap();
        let wanted = Link { path: "/a b".into(), expires: 7, signature: "v1_x".into() };
        assert_eq!(link(&uri), Some(wanted));
        assert_eq!(link(&"/files/download?path=/a".parse().unwrap()), None);
        let odd: Uri = "/x?path=a&expires=soon&signature=s".parse().unwrap();
        assert_eq!(link(&odd).unwrap().expires, NEVER_SIGNED);
    }

    #[test]
    fn what_is_said_twice_is_no_link() {
        for query in [
            "path=/b&path=/a&expires=0&signature=s",
            "path=/a&path=/b&expires=0&signature=s",
            "path=/a&p%61th=/b&expires=0&signature=s",
            "path=/a&expires=0&expires=0&signature=s",
            "path=/a&expires=0&signature=s&signature=s",
            "expires=0&signature=s",
            "path=/a&signature=s",
        ] {
            let uri: Uri = format!("/files/download?{query}").parse().unwrap();
            assert_eq!(link(&uri).unwrap().expires, NEVER_SIGNED, "{query}");
        }
    }

    #[test]
    fn any_link_is_read_or_is_none() {
        atoll_robustness::check("signed_link", |bytes| {
            let Ok(uri) = Uri::try_from(bytes) else { return };
            if let Some(link) = link(&uri) {
                assert!(!is_signed("key", &link.path, &link.signature));
            }
        });
    }
}
