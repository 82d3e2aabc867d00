//! The template names that the SDKs of E2B, Daytona and Leap0 send by default, and the built-in templates they resolve to.
//!
//! A program that uses such a name works on a server that has made no template yet: until the first candidate exists, the name
//! resolves to the next one, in the end to `host`, which every server has.

use crate::host;

/// Templates that a server makes at its first start: together they serve every name of [`candidates`].
pub const MADE_AT_FIRST_START: &[&str] = &["debian", "code-interpreter-slim"];

const SLIM: &str = "code-interpreter-slim";
const FULL: &str = "code-interpreter-full";
const BASE: &[&str] = &["debian", SLIM, "code-interpreter", FULL, host::NAME];
const INTERPRETER: &[&str] = &["code-interpreter", FULL, SLIM, host::NAME];
const DAYTONA: &[&str] = &[SLIM, "code-interpreter", FULL, "debian", host::NAME];

/// The built-in templates that a vendor's default name resolves to, best first; `None` for every other name.
#[must_use]
pub fn candidates(name: &str) -> Option<&'static [&'static str]> {
    // COMPAT(leap0): the tag names a release of the vendor's image; here each image has one version.
    let untagged = name.split([':', '@']).next().unwrap_or(name);
    match untagged {
        "base" | "system/debian" => Some(BASE),
        "code-interpreter-v1" | "code-interpreter-beta" | "system/code-interpreter" => Some(INTERPRETER),
        "daytona" | "daytona-small" | "daytona-medium" | "daytona-large" | "daytonaio/sandbox" => {
            Some(DAYTONA)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_name_ends_at_the_template_that_every_server_has() {
        for name in [
            "base",
            "code-interpreter-v1",
            "daytona",
            "system/debian:bookworm",
            "system/code-interpreter:v0.1.0",
        ] {
            assert_eq!(candidates(name).and_then(<[_]>::last), Some(&host::NAME), "{name}");
        }
    }

    #[test]
    fn names_of_built_in_templates_themselves_are_no_default_names() {
        for name in ["debian", "code-interpreter", "code-interpreter-slim", "host", "mine", "debian:bookworm"]
        {
            assert_eq!(candidates(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_made_at_the_first_start_serves_every_default_name() {
        for list in [BASE, INTERPRETER, DAYTONA] {
            assert!(list.iter().any(|name| MADE_AT_FIRST_START.contains(name)), "{list:?}");
        }
    }
}
