//! References of templates: `name`, `name:tag`, `name@sha256:…`, with a leading registry host if the template was
//! pulled from one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::LimitsAsk;

/// LIMIT: the maximal length of an image reference.
const NAME_MAX: usize = 255;
const TAG_MAX: usize = 128;
/// The default tag.
pub const DEFAULT_TAG: &str = "latest";

/// A template by name, with a tag or a digest.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateRef {
    /// `debian`, `team/app`, `registry.example:5000/team/app`.
    pub name: String,
    /// After `:`; `None` means [`DEFAULT_TAG`] or the digest.
    pub tag: Option<String>,
    /// After `@`, with its algorithm: `sha256:<64 hex digits>`.
    pub digest: Option<String>,
}

/// The text is not a reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a template: {why}")]
pub struct BadTemplateRef {
    /// The problem.
    pub why: String,
}

impl TemplateRef {
    /// The tag, or the default; `None` if a digest names the exact version.
    #[must_use]
    pub fn tag_or_default(&self) -> Option<&str> {
        match (&self.tag, &self.digest) {
            (Some(tag), _) => Some(tag),
            (None, None) => Some(DEFAULT_TAG),
            (None, Some(_)) => None,
        }
    }

    /// The host of the registry, if the name contains one.
    #[must_use]
    pub fn registry(&self) -> Option<&str> {
        let (first, _) = self.name.split_once('/')?;
        (first.contains(['.', ':']) || first == "localhost").then_some(first)
    }
}

impl FromStr for TemplateRef {
    type Err = BadTemplateRef;

    fn from_str(text: &str) -> Result<Self, BadTemplateRef> {
        let bad = |why: &str| BadTemplateRef { why: format!("{why} in {text:?}") };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        // A colon before the last slash belongs to the port of a registry.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(bad("a name has 1 to 255 characters"));
        }
        let mut parts = name.split('/');
        let first = parts.next().unwrap_or_default();
        let is_host = name.contains('/') && (first.contains(['.', ':']) || first == "localhost");
        if !(if is_host { is_host_and_port(first) } else { is_part(first) }) || !parts.all(is_part) {
            return Err(bad("parts of a name contain a-z, 0-9 and single separators . _ -"));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(bad("a tag has 1 to 128 letters, digits, _ . -"));
        }
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(bad("a digest is sha256: and 64 hex digits"));
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        Ok(Self { name: name.to_owned(), tag: owned(tag), digest: owned(digest) })
    }
}

fn is_part(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    part.starts_with(plain)
        && part.ends_with(plain)
        && part.chars().all(|c| plain(c) || matches!(c, '.' | '_' | '-'))
        && !part.contains("..")
}

fn is_host_and_port(host: &str) -> bool {
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(plain)
        && !name.contains("..")
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

fn is_tag(tag: &str) -> bool {
    (1..=TAG_MAX).contains(&tag.len())
        && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && tag.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

fn is_digest(digest: &str) -> bool {
    digest.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.chars().all(|c| c.is_ascii_digit() || matches!(c, 'a'..='f'))
    })
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl TryFrom<String> for TemplateRef {
    type Error = BadTemplateRef;
    fn try_from(text: String) -> Result<Self, BadTemplateRef> {
        text.parse()
    }
}

impl From<TemplateRef> for String {
    fn from(reference: TemplateRef) -> String {
        reference.to_string()
    }
}

/// How to detect that a template's start command is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReadyCheck {
    /// A program listens on the port, possibly only on loopback.
    Port { port: u16 },
    /// `http://127.0.0.1:<port><path>` in the sandbox returns this status.
    Url {
        port: u16,
        /// With its leading slash.
        path: String,
        /// The expected status.
        status: u16,
    },
    /// The command exits with 0.
    Command {
        /// Run by the shell.
        command: String,
    },
}

/// The origin of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MadeFrom {
    /// Made by this server.
    #[default]
    BuiltIn,
    /// A registry.
    Image,
    /// A build.
    Build,
    /// A file.
    Import,
}

/// The settings of a template version: everything except its files.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartSettings {
    /// The user that runs commands.
    pub user: Option<String>,
    /// The working directory of commands.
    pub workdir: Option<String>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// Started at every boot.
    pub command: Option<Vec<String>>,
    /// When the start command is ready.
    pub ready: Option<ReadyCheck>,
    /// The default port of previews.
    pub port: Option<u16>,
    /// Default limits of sandboxes.
    pub limits: LimitsAsk,
    /// The number of ready instances in the pool.
    pub pool: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_as_people_write_them() {
        for (text, name, tag, registry) in [
            ("debian", "debian", None, None),
            ("python:3.12-slim", "python", Some("3.12-slim"), None),
            ("team/app:v1", "team/app", Some("v1"), None),
            ("localhost/app", "localhost/app", None, Some("localhost")),
            ("127.0.0.1:5000/deb:base", "127.0.0.1:5000/deb", Some("base"), Some("127.0.0.1:5000")),
            ("ghcr.io/a/b", "ghcr.io/a/b", None, Some("ghcr.io")),
        ] {
            let read: TemplateRef = text.parse().expect(text);
            assert_eq!((read.name.as_str(), read.tag.as_deref(), read.registry()), (name, tag, registry));
            assert_eq!(read.to_string(), text);
        }
        let digest = format!("debian@sha256:{}", "ab".repeat(32));
        let read: TemplateRef = digest.parse().expect("a digest");
        assert_eq!((read.tag_or_default(), read.to_string()), (None, digest));
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for text in [
            "",
            ":",
            "a:",
            "@",
            "A",
            "a//b",
            "/a",
            "a/",
            "../a",
            "a/../b",
            "a:b:c",
            "-a",
            "a-",
            "a b",
            "a\0",
            "a@sha256:12",
            "a@md5:x",
            "http://a/b",
            "a:70000/b",
            "x.y:0/b",
            "..x.y/b",
            "a:.x",
        ] {
            assert!(text.parse::<TemplateRef>().is_err(), "{text:?}");
        }
        assert!("a".repeat(256).parse::<TemplateRef>().is_err());
    }

    #[test]
    fn a_reference_that_is_read_is_written_back_the_same() {
        atoll_robustness::check("image_reference", |bytes| {
            if let Ok(reference) = String::from_utf8_lossy(bytes).parse::<TemplateRef>() {
                let _ = (reference.registry(), reference.tag_or_default());
                assert_eq!(reference.to_string().parse(), Ok(reference));
            }
        });
    }
}
