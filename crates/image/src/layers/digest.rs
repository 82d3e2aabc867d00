//! Names by content: `sha256:` and 64 hex digits.

use std::fmt;
use std::io::Write;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const ALGORITHM: &str = "sha256:";

/// The SHA-256 of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// The text is not a supported digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a digest of the form sha256:<64 hex digits>: {text:?}")]
pub struct BadDigest {
    /// The text, cut to one line.
    pub text: String,
}

impl Digest {
    /// The digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The digest of a finished hash.
    #[must_use]
    pub fn from_hash(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }

    /// The 64 hex digits alone, as a file name.
    #[must_use]
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Parses the 64 hex digits, with or without the algorithm in front.
    pub fn parse(text: &str) -> Result<Self, BadDigest> {
        let bad = || BadDigest { text: text.chars().take(80).flat_map(char::escape_default).collect() };
        let digits = text.strip_prefix(ALGORITHM).unwrap_or(text);
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() != 64 || !digits.bytes().all(lower) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| bad())?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ALGORITHM}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        match text.starts_with(ALGORITHM) {
            true => Self::parse(text),
            false => Err(BadDigest { text: text.chars().take(80).flat_map(char::escape_default).collect() }),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;
    fn try_from(text: String) -> Result<Self, BadDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

/// The id of a layer: the digest of its uncompressed archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DiffId(pub Digest);

impl DiffId {
    /// The 64 hex digits alone.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.hex()
    }
}

impl fmt::Display for DiffId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DiffId {
    type Err = BadDigest;
    fn from_str(text: &str) -> Result<Self, BadDigest> {
        text.parse().map(Self)
    }
}

impl From<Digest> for DiffId {
    fn from(digest: Digest) -> Self {
        Self(digest)
    }
}

/// Hashes and counts the bytes that are written through it.
pub(crate) struct Hashing<W> {
    pub(crate) inner: W,
    pub(crate) hash: Sha256,
    pub(crate) bytes: u64,
}

impl<W> Hashing<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), bytes: 0 }
    }

    /// The inner writer, the digest and the number of bytes.
    pub(crate) fn finish(self) -> (W, Digest, u64) {
        (self.inner, Digest::from_hash(self.hash), self.bytes)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = self.inner.write(bytes)?;
        self.hash.update(&bytes[..taken]);
        self.bytes += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_and_written_in_one_form() {
        let digest = Digest::of(b"");
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
        assert_eq!(Digest::parse(&digest.hex()).unwrap(), digest);
        assert_eq!(serde_json::to_string(&DiffId(digest)).unwrap(), format!("{text:?}"));
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        let upper = format!("sha256:{}", "AB".repeat(32));
        let (long, short) = (format!("sha256:{}", "a".repeat(65)), format!("sha256:{}", "a".repeat(63)));
        for text in
            ["", "sha256:", "sha512:00", "../../etc/passwd", upper.as_str(), &long, &short, "sha256:ä"]
        {
            assert!(Digest::parse(text).is_err(), "{text:?}");
            assert!(text.parse::<Digest>().is_err(), "{text:?}");
        }
    }
}
