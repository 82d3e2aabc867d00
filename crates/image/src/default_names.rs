//! The one table of the template names that the SDKs of E2B, Daytona and Leap0 send by default, and of the built-in templates
//! they resolve to.
//!
//! A program that uses such a name works on a server that has made no template yet: until the first candidate exists, the name
//! resolves to the next one, in the end to `host`, which every server has.

use crate::host;

/// Templates that a server makes by itself at its first start: together they serve every name of [`candidates`].
pub const MADE_AT_FIRST_START: &[&str] = &["debian", SLIM];

/// Templates that a server makes when a sandbox first needs them.
pub const MADE_AT_FIRST_USE: &[&str] = &["data-science"];

/// The built-in templates with a kernel of the code interpreter.
pub const INTERPRETERS: [&str; 3] = [FULL_LIBRARIES, SLIM, WITH_R_AND_JAVA];

const FULL_LIBRARIES: &str = "code-interpreter";
const SLIM: &str = "code-interpreter-slim";
const WITH_R_AND_JAVA: &str = "code-interpreter-full";

/// Names, and the built-in templates they resolve to, best first. The best one has the names as its aliases.
const TABLE: &[(&[&str], &[&str])] = &[
    (
        &["base", "system/debian", "e2bdev/base"],
        &["debian", SLIM, FULL_LIBRARIES, WITH_R_AND_JAVA, host::NAME],
    ),
    (
        &[
            "code-interpreter-v1",
            "code-interpreter-beta",
            "system/code-interpreter",
            "e2bdev/code-interpreter",
        ],
        &[FULL_LIBRARIES, WITH_R_AND_JAVA, SLIM, host::NAME],
    ),
    (
        &["daytona", "daytona-small", "daytona-medium", "daytona-large", "daytonaio/sandbox"],
        &[SLIM, FULL_LIBRARIES, WITH_R_AND_JAVA, "debian", host::NAME],
    ),
];

/// The built-in templates that a vendor's default name resolves to, best first; `None` for every other name.
#[must_use]
pub fn candidates(name: &str) -> Option<&'static [&'static str]> {
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    // COMPAT(leap0): the tag names a release of the vendor's image; there is one of each here.
    let untagged = name.split([':', '@']).next().unwrap_or(name);
    TABLE.iter().find(|(names, _)| names.contains(&untagged)).map(|(_, candidates)| *candidates)
}

/// Whether a name is that of a built-in template, or a vendor's default name for one.
#[must_use]
pub fn is_built_in(name: &str) -> bool {
    candidates(name).is_some() || TABLE.iter().any(|(_, templates)| templates.contains(&name))
}

/// Whether a reference names a vendor's image, which a built-in template stands for whatever its tag or digest.
#[must_use]
pub fn is_vendor_image(reference: &str) -> bool {
    let name = reference.strip_prefix("docker.io/").unwrap_or(reference);
    candidates(name).is_some() && name.contains('/')
}

/// The default names of a built-in template: those that it is the best candidate for.
pub(crate) fn aliases(template: &str) -> impl Iterator<Item = &'static str> {
    let of_template =
        TABLE.iter().filter(move |(_, candidates)| candidates.first().is_some_and(|best| *best == template));
    of_template.flat_map(|(names, _)| names.iter().copied())
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
            "docker.io/e2bdev/code-interpreter:v1",
        ] {
            assert_eq!(candidates(name).and_then(<[_]>::last), Some(&host::NAME), "{name}");
            assert!(is_built_in(name), "{name}");
        }
    }

    #[test]
    fn names_of_built_in_templates_themselves_are_no_default_names() {
        for name in [
            "debian",
            "code-interpreter",
            "code-interpreter-slim",
            "host",
            "mine",
            "debian:bookworm",
            "mine/debian:bookworm",
            "e2bdev/base2",
        ] {
            assert_eq!(candidates(name), None, "{name}");
        }
    }

    #[test]
    fn what_is_made_at_the_first_start_serves_every_default_name() {
        for (names, candidates) in TABLE {
            assert!(candidates.iter().any(|name| MADE_AT_FIRST_START.contains(name)), "{names:?}");
        }
    }

    #[test]
    fn what_is_made_at_its_first_use_is_in_the_catalogue() {
        assert!(MADE_AT_FIRST_USE.iter().all(|name| crate::is_built_in(name)));
    }

    #[test]
    fn images_of_vendors_are_known_with_any_tag_and_digest() {
        for image in ["daytonaio/sandbox", "docker.io/daytonaio/sandbox:0.6.0-slim", "e2bdev/base@sha256:00"]
        {
            assert!(is_vendor_image(image), "{image}");
        }
        for other in ["base", "daytona", "docker.io/base", "daytonaio/sandbox-mine", "mine/base"] {
            assert!(!is_vendor_image(other), "{other}");
        }
    }

    #[test]
    fn a_default_name_is_an_alias_of_its_best_template() {
        assert_eq!(aliases("debian").collect::<Vec<_>>(), ["base", "system/debian", "e2bdev/base"]);
        assert!(aliases(SLIM).any(|name| name == "daytona-large"));
        assert_eq!(aliases(WITH_R_AND_JAVA).count(), 0);
    }
}
