//! Paths as callers write them: `~`, relative to the user's home, absolute. Bytes, not text.

use crate::error::AgentError;
use crate::users::User;

/// LIMIT: the kernel's limit.
const PATH_MAX: usize = 4095;

/// The absolute path, without `.`, `..` and repeated slashes, normalised as in envd.
pub(crate) fn resolve(raw: &[u8], user: &User) -> Result<Vec<u8>, AgentError> {
    if raw.contains(&0) {
        return Err(AgentError::Invalid("a path must not contain a NUL byte".into()));
    }
    let home = user.home.as_bytes();
    let whole = match raw {
        [b'/', ..] => raw.to_vec(),
        b"~" => home.to_vec(),
        [b'~', b'/', rest @ ..] => [home, b"/", rest].concat(),
        _ => [home, b"/", raw].concat(),
    };
    let clean = clean(&whole);
    if clean.len() > PATH_MAX {
        return Err(AgentError::Invalid("path: name too long".into()));
    }
    Ok(clean)
}

fn clean(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    let mut clean = Vec::with_capacity(path.len());
    for name in names {
        clean.push(b'/');
        clean.extend_from_slice(name);
    }
    if clean.is_empty() {
        clean.push(b'/');
    }
    clean
}

/// The value of a parameter in a query string, percent-decoded to bytes. `+` is a space, as browsers write it.
pub(crate) fn decode_query(query: &str, name: &str) -> Option<Vec<u8>> {
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key) == name.as_bytes()).then(|| decode(value))
    })
}

fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = |offset: usize| bytes.get(at + offset).and_then(|b| char::from(*b).to_digit(16));
        match (byte, hex(1), hex(2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (b'+', _, _) => {
                out.push(b' ');
                at += 1;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::users::Ids;

    fn user() -> User {
        User { name: "user".into(), home: "/home/user".into(), ids: Ids::ROOT }
    }

    fn text(raw: &str) -> String {
        String::from_utf8(resolve(raw.as_bytes(), &user()).unwrap()).unwrap()
    }

    #[test]
    fn paths_mean_what_envd_means() {
        assert_eq!(
            [text("~"), text("~/a"), text("a/./b"), text("/a//b/")],
            ["/home/user", "/home/user/a", "/home/user/a/b", "/a/b"]
        );
        assert_eq!(
            [text("../../.."), text("/../etc"), text("~x"), text("")],
            ["/", "/etc", "/home/user/~x", "/home/user"]
        );
        assert!(resolve(b"/a\0b", &user()).is_err());
        assert!(resolve(&vec![b'a'; 5000], &user()).is_err());
    }

    #[test]
    fn queries_give_bytes() {
        assert_eq!(decode_query("path=%2Fa+b%FF&x=1", "path").unwrap(), b"/a b\xff");
        assert_eq!(decode_query("path=%2", "path").unwrap(), b"%2");
        assert_eq!(decode_query("a=1", "path"), None);
    }

    proptest! {
        #[test]
        fn a_resolved_path_is_absolute_and_has_no_dots(raw in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(path) = resolve(&raw, &user()) {
                prop_assert_eq!(path[0], b'/');
                prop_assert!(!path.split(|b| *b == b'/').any(|name| name == b".." || name == b"."));
                prop_assert_eq!(resolve(&path, &user()).unwrap(), path);
            }
        }

        #[test]
        fn any_query_decodes_without_panic(query in ".{0,80}") {
            let _ = decode_query(&query, "path");
        }
    }

    #[test]
    fn any_path_in_a_query_leads_to_an_absolute_one() {
        atoll_robustness::check("query_string", |bytes| {
            let Some(path) = decode_query(&String::from_utf8_lossy(bytes), "path") else { return };
            if let Ok(resolved) = resolve(&path, &user()) {
                assert!(resolved.starts_with(b"/") && !resolved.contains(&0));
                assert!(!resolved.split(|byte| *byte == b'/').any(|part| part == b".."));
            }
        });
    }
}
