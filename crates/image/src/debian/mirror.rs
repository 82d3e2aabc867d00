//! Which Debian to install, and from where: read from the host's own apt configuration, so that a private mirror or
//! proxy that works for the host works here. This program contains no mirror address.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{DebianSource, NAME};
use crate::error::TemplateError;
use crate::tool::Tool;

const APT: Tool = Tool { name: "apt-get", package: "apt", template: NAME, limit: Duration::from_secs(30) };
const FORMAT: &str = "$(REPO_URI) $(RELEASE) $(CODENAME) $(COMPONENT)";
/// The suite when the host is not a Debian and none is configured.
const DEFAULT_SUITE: &str = "bookworm";

/// The suite and the lines of `sources.list` for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sources {
    pub lines: Vec<String>,
}

/// The suite to install: the requested one, or the host's.
pub(crate) fn suite(source: &DebianSource, os_release: &Path) -> String {
    let text = std::fs::read_to_string(os_release).unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .map(|value| value.trim_matches('"').to_owned())
    };
    let hosts = || if field("ID").as_deref() == Some("debian") { field("VERSION_CODENAME") } else { None };
    source.suite.clone().or_else(hosts).unwrap_or_else(|| DEFAULT_SUITE.to_owned())
}

/// The sources to install it from.
pub(crate) fn sources(source: &DebianSource, suite: &str) -> Result<Sources, TemplateError> {
    if let Some(mirror) = &source.mirror {
        return Ok(Sources { lines: vec![format!("deb {mirror} {suite} main")] });
    }
    let targets = APT.output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        FORMAT,
        "Created-By: Packages",
    ]))?;
    choose(&String::from_utf8_lossy(&targets), suite)
}

/// Picks the suite itself, its updates and its security fixes; only Debian's free software, no third-party sources.
fn choose(targets: &str, suite: &str) -> Result<Sources, TemplateError> {
    let wanted = [suite.to_owned(), format!("{suite}-updates"), format!("{suite}-security")];
    let mut lines: Vec<String> = Vec::new();
    let mut has_base = false;
    for row in targets.lines() {
        let fields: Vec<&str> = row.split_whitespace().collect();
        // The code name is known only after the lists were fetched; a release may also be named `stable`.
        let (uri, names, component) = match fields[..] {
            [uri, release, component] => (uri, [release, release], component),
            [uri, release, codename, component] => (uri, [release, codename], component),
            _ => continue,
        };
        let Some(name) = wanted.iter().find(|name| names.contains(&name.as_str())) else { continue };
        let line = format!("deb {} {name} main", uri.trim_end_matches('/'));
        if component == "main" && !lines.contains(&line) {
            has_base |= name == suite;
            lines.push(line);
        }
    }
    if has_base { Ok(Sources { lines }) } else { Err(TemplateError::NoMirror { suite: suite.to_owned() }) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn main_of_the_suite_with_updates_and_security_is_chosen_once() {
        let targets = "http://mirror.test/debian/ bookworm bookworm main\n\
                       http://mirror.test/debian/ bookworm bookworm main\n\
                       http://mirror.test/debian/ bookworm bookworm contrib\n\
                       http://mirror.test/debian/ bookworm-updates bookworm-updates main\n\
                       http://mirror.test/security/ bookworm-security bookworm-security main\n\
                       http://other.test/node nodistro nodistro main\n";
        let lines = choose(targets, "bookworm").unwrap().lines;
        assert_eq!(
            lines,
            [
                "deb http://mirror.test/debian bookworm main",
                "deb http://mirror.test/debian bookworm-updates main",
                "deb http://mirror.test/security bookworm-security main",
            ]
        );
    }

    #[test]
    fn a_release_named_stable_is_known_by_its_code_name() {
        assert_eq!(
            choose("http://m.test/d/ stable trixie main\n", "trixie").unwrap().lines,
            ["deb http://m.test/d trixie main"]
        );
    }

    #[test]
    fn lists_that_were_never_fetched_have_no_code_name_and_still_count() {
        assert_eq!(
            choose("http://m.test/d/ trixie  main\n", "trixie").unwrap().lines,
            ["deb http://m.test/d trixie main"]
        );
    }

    #[test]
    fn a_host_of_another_distribution_is_a_typed_refusal() {
        let refused = choose("http://m.test/ubuntu/ noble noble main\n", "bookworm");
        assert!(matches!(refused, Err(TemplateError::NoMirror { suite }) if suite == "bookworm"));
    }

    #[test]
    fn the_suite_is_the_hosts_own_where_that_is_a_debian() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("os-release");
        std::fs::write(&file, "ID=debian\nVERSION_CODENAME=trixie\n").unwrap();
        assert_eq!(suite(&DebianSource::default(), &file), "trixie");
        std::fs::write(&file, "ID=ubuntu\nVERSION_CODENAME=noble\n").unwrap();
        assert_eq!(suite(&DebianSource::default(), &file), "bookworm");
        let asked = DebianSource { suite: Some("sid".into()), mirror: None };
        assert_eq!(suite(&asked, &file), "sid");
    }
}
