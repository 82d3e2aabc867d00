//! The name of a node: a server with its own data folder, which may share its database with others.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// LIMIT: a label of a host name.
const NAME_MAX: usize = 63;

/// A plain name: letters, digits, `-`, `_` and `.`, first a letter or digit. Cloning is cheap: every lease has one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

/// The text is not the name of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the name of a node has 1 to 63 letters, digits, '-', '_' or '.', and starts with a letter or digit")]
pub struct BadNodeName;

impl NodeName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The node of records that are older than this field; the store replaces it when it opens them first.
impl Default for NodeName {
    fn default() -> Self {
        Self("local".into())
    }
}

impl FromStr for NodeName {
    type Err = BadNodeName;

    fn from_str(text: &str) -> Result<Self, BadNodeName> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if text.len() > NAME_MAX || !starts_well || !text.bytes().all(plain) {
            return Err(BadNodeName);
        }
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for NodeName {
    type Error = BadNodeName;

    fn try_from(text: String) -> Result<Self, BadNodeName> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes_are_plain() {
        for fine in ["a", "host-1", "db_2.example.com", "9", &"x".repeat(63)] {
            assert!(fine.parse::<NodeName>().is_ok(), "{fine}");
        }
        for bad in ["", "-a", ".a", "a b", "a/b", "ä", "(none)", &"x".repeat(64)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<NodeName>("\"a b\"").is_err());
    }
}
