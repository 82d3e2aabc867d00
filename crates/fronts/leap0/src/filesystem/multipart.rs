//! Several files in one answer, as the SDK's e-mail parser reads them: CRLF framing, each part named by its path.

use std::fmt;

use atoll_front_kit::ApiError;
use atoll_model::Code;
use bytes::Bytes;

/// Behind every part.
pub(super) const END: &[u8] = b"\r\n";

/// What stands between parts: random, so that no file holds it.
#[derive(Debug, Clone)]
pub(super) struct Boundary(String);

impl Boundary {
    pub(super) fn random() -> Result<Self, ApiError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|cause| ApiError::new(Code::Internal, "no random bytes").caused_by(cause))?;
        Ok(Self(format!("atoll-{}", hex::encode(random))))
    }

    /// The head of a part.
    pub(super) fn head(&self, path: &str) -> Bytes {
        let name = quoted(path);
        let head = format!(
            "--{}\r\nContent-Disposition: form-data; name=\"{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n",
            self.0
        );
        Bytes::from(head)
    }

    /// The end of the last part.
    pub(super) fn last(&self) -> Bytes {
        Bytes::from(format!("--{}--\r\n", self.0))
    }
}

impl fmt::Display for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A path inside quotes; line ends, which would begin a header of their own, are written as browsers do.
fn quoted(path: &str) -> String {
    let mut quoted = String::with_capacity(path.len());
    for c in path.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\r' => quoted.push_str("%0D"),
            '\n' => quoted.push_str("%0A"),
            c => quoted.push(c),
        }
    }
    quoted
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_path_stays_inside_its_quotes() {
        let boundary = Boundary("b".to_owned());
        let head = boundary.head("/tmp/a\"; x=\r\nX-Evil: 1\\");
        let text = std::str::from_utf8(&head).unwrap();
        assert_eq!(text.matches("\r\n").count(), 4);
        assert!(text.contains(r#"name="/tmp/a\"; x=%0D%0AX-Evil: 1\\""#), "{text}");
        assert_ne!(Boundary::random().unwrap().0, Boundary::random().unwrap().0);
        assert_eq!(boundary.last(), "--b--\r\n");
    }
}
