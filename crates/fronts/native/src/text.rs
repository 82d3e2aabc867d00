//! Text that need not be UTF-8.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Text that may be lossy, and the exact bytes if it is.
pub(crate) fn text_of(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(e) => {
            let exact = STANDARD.encode(e.as_bytes());
            (String::from_utf8_lossy(e.as_bytes()).into_owned(), Some(exact))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_kept_beside_it() {
        assert_eq!(text_of(b"ok".to_vec()), ("ok".to_owned(), None));
        assert_eq!(text_of(b"a\xff".to_vec()), ("a\u{fffd}".to_owned(), Some("Yf8=".to_owned())));
    }
}
