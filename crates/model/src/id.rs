//! Typed ids. A sandbox id has 20 characters of `[a-z0-9]`, the first a letter: it contains no dash, so `<port>-<id>`
//! is unambiguous in every front.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The text is not an id of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {what} id: an id has 20 characters of a-z and 0-9 and starts with a letter")]
pub struct BadId {
    /// The noun whose id was expected.
    pub what: &'static str,
}

const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const LEN: usize = 20;

fn from_entropy(entropy: [u8; LEN]) -> String {
    // Modulo 36 of a byte is slightly uneven; 19 characters still carry over 97 bits.
    let first = LETTERS[usize::from(entropy[0]) % LETTERS.len()];
    let rest = entropy[1..].iter().map(|b| ALPHABET[usize::from(*b) % ALPHABET.len()]);
    std::iter::once(first).chain(rest).map(char::from).collect()
}

fn is_id(text: &str) -> bool {
    text.len() == LEN
        && text.as_bytes()[0].is_ascii_lowercase()
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Makes an id from random bytes that the caller provides.
            #[must_use]
            pub fn from_entropy(entropy: [u8; LEN]) -> Self {
                Self(from_entropy(entropy))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                if is_id(text) { Ok(Self(text.to_owned())) } else { Err(BadId { what: $what }) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;
            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// A sandbox, which a caller created and names by this id; it outlives any process.
    SandboxId, "sandbox"
);
id!(
    /// One incarnation of a sandbox at a provider. Every effect names its instance; late effects are dropped.
    InstanceId, "instance"
);
id!(
    /// Owns sandboxes, templates, quotas and keys.
    TenantId, "tenant"
);
id!(
    /// A stored copy of a sandbox at one moment.
    SnapshotId, "snapshot"
);
id!(
    /// Identifies an API key without revealing it.
    KeyId, "key"
);
id!(
    /// Files that outlive sandboxes.
    VolumeId, "volume"
);
id!(
    /// One build of a template.
    BuildId, "build"
);
id!(
    /// A value of a tenant that is used outside of sandboxes.
    SecretId, "secret"
);
id!(
    /// Access to one port of a sandbox for other people.
    PreviewId, "preview"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_made_from_any_entropy_parse_back() {
        for seed in 0..=255u8 {
            let id = SandboxId::from_entropy([seed; LEN]);
            assert_eq!(id.as_str().parse::<SandboxId>(), Ok(id));
        }
    }

    #[test]
    fn texts_that_are_not_ids_are_refused() {
        for bad in [
            "",
            "abc",
            "0bcdefghijklmnopqrst",
            "Abcdefghijklmnopqrst",
            "abcdefghij-lmnopqrst",
            "äbcdefghijklmnopqrs",
        ] {
            assert!(bad.parse::<SandboxId>().is_err(), "{bad:?}");
        }
    }
}
