//! Patterns for names and paths: Docker's, for builds and archives, and those of shells, for searches.
//!
//! | dialect | syntax | a malformed pattern | cost of matching |
//! |---|---|---|---|
//! | [`docker`] | `*`, `?`, `[a-z]`, `[^a-z]`, `\x`; `**` and `!` for paths | is refused | at most the product of both lengths, which is counted |
//! | `shell` (a feature) | `*`, `?`, `[a-z]`, `[!a-z]`, `{a,b}`, `\x`, `**` | is literal text | linear time |
//!
//! Names are bytes: bytes that are not UTF-8 count as one character each. Patterns are untrusted.

pub mod docker;
#[cfg(feature = "shell")]
pub mod shell;
