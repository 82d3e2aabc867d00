//! Placeholders of secrets in request headers: replaced by their values on the way out.
//!
//! One pass: inserted values are not searched again. Header names, the target and the body are unchanged.

use atoll_model::policy::egress::Replacement;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue};

use super::{BadRequest, bad};

/// LIMIT: bytes of a head after its placeholders were replaced; a secret that occurs often must not fill the memory.
const HEAD_MAX: usize = 64 << 10;
const BASIC: &[u8] = b"basic ";

pub(super) fn replace(headers: &mut HeaderMap, replacements: &[Replacement]) -> Result<(), BadRequest> {
    if replacements.is_empty() {
        return Ok(());
    }
    let mut room = HEAD_MAX;
    for (name, value) in headers.iter_mut() {
        // The host was checked, and the gate sets it itself.
        if *name == HOST {
            continue;
        }
        let Some(filled) = filled(name, value.as_bytes(), replacements, room)? else { continue };
        room = room.saturating_sub(filled.len());
        let unusable = |_| bad(StatusCode::BAD_GATEWAY, "secrets: a value that is no header");
        let mut filled = HeaderValue::from_bytes(&filled).map_err(unusable)?;
        filled.set_sensitive(true);
        *value = filled;
    }
    Ok(())
}

/// A value with its placeholders replaced; `None` if it has none. Basic credentials are decoded first.
fn filled(
    name: &HeaderName,
    value: &[u8],
    replacements: &[Replacement],
    room: usize,
) -> Result<Option<Vec<u8>>, BadRequest> {
    let basic = value.get(..BASIC.len()).filter(|scheme| scheme.eq_ignore_ascii_case(BASIC));
    if let Some(scheme) = basic.filter(|_| *name == AUTHORIZATION)
        && let Ok(plain) = STANDARD.decode(value[scheme.len()..].trim_ascii())
        && let Some(plain) = substituted(&plain, replacements, room)?
    {
        return Ok(Some([scheme, STANDARD.encode(plain).as_bytes()].concat()));
    }
    substituted(value, replacements, room)
}

fn substituted(
    text: &[u8],
    replacements: &[Replacement],
    room: usize,
) -> Result<Option<Vec<u8>>, BadRequest> {
    let too_long = || bad(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "secrets: headers that are too long");
    let (mut out, mut at, mut any) = (Vec::with_capacity(text.len()), 0, false);
    while at < text.len() {
        let rest = &text[at..];
        match replacements.iter().find(|one| rest.starts_with(one.placeholder.as_bytes())) {
            Some(one) => {
                out.extend_from_slice(one.value.as_bytes());
                at += one.placeholder.len();
                any = true;
            }
            None => {
                out.push(rest[0]);
                at += 1;
            }
        }
        if any && out.len() > room {
            return Err(too_long());
        }
    }
    Ok(any.then_some(out))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ONE: &str = "atoll_secret_0123";
    const OTHER: &str = "atoll_secret_4567";

    fn secrets() -> Vec<Replacement> {
        let of = |placeholder: &str, value: &str| Replacement {
            hosts: Vec::new(),
            placeholder: placeholder.to_owned(),
            value: value.to_owned(),
        };
        vec![of(ONE, "sk-live"), of(OTHER, ONE)]
    }

    fn replaced(name: &'static str, value: &str) -> Result<String, BadRequest> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        replace(&mut headers, &secrets())?;
        Ok(headers[name].to_str().unwrap().to_owned())
    }

    #[test]
    fn placeholders_in_values_are_replaced_once() {
        assert_eq!(replaced("authorization", &format!("Bearer {ONE}")).unwrap(), "Bearer sk-live");
        assert_eq!(replaced("x-api-key", &format!("a{ONE}{ONE}b")).unwrap(), "ask-livesk-liveb");
        // A value that has the form of a placeholder stays.
        assert_eq!(
            replaced("cookie", &format!("a={OTHER}; b={ONE}")).unwrap(),
            format!("a={ONE}; b=sk-live")
        );
        for same in ["", "plain", "atoll_secret_", "atoll_secret_012", "ATOLL_SECRET_0123", "Basic !!!"] {
            assert_eq!(replaced("authorization", same).unwrap(), same);
        }
        assert_eq!(replaced("host", ONE).unwrap(), ONE);
    }

    #[test]
    fn basic_credentials_are_looked_into() {
        let of = |text: &str| format!("Basic {}", STANDARD.encode(text));
        assert_eq!(replaced("authorization", &of(&format!("git:{ONE}"))).unwrap(), of("git:sk-live"));
        assert_eq!(replaced("authorization", &of("git:other")).unwrap(), of("git:other"));
        assert_eq!(replaced("x-other", &of(ONE)).unwrap(), of(ONE));
    }

    #[test]
    fn a_head_does_not_grow_without_bound() {
        let long = Replacement { hosts: Vec::new(), placeholder: "p".to_owned(), value: "v".repeat(8 << 10) };
        let mut headers = HeaderMap::new();
        for name in ["a", "b", "c"] {
            headers.insert(name, HeaderValue::from_static("pppp"));
        }
        let refused = replace(&mut headers, &[long]).unwrap_err();
        assert_eq!(refused.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }

    #[test]
    fn what_was_replaced_is_not_shown() {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_static(ONE));
        replace(&mut headers, &secrets()).unwrap();
        assert!(
            headers["x-api-key"].is_sensitive()
                && !format!("{headers:?} {:?}", secrets()).contains("sk-live")
        );
    }
}
