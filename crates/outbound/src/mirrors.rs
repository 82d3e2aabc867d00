//! Mirrors of package registries that sandboxes and builds use instead of the public ones.

/// The operator's mirrors. No credentials: what is written into a sandbox is read there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirrors {
    /// In place of `http://deb.debian.org/debian`.
    pub debian: Option<String>,
    /// In place of `https://pypi.org/simple`.
    pub pypi: Option<String>,
    /// In place of npm's public registry.
    pub npm: Option<String>,
}

/// Reads the address of a mirror.
///
/// # Errors
/// It is not a plain `http` or `https` address, or it has credentials.
pub fn parse(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let rest = rest.ok_or("write http://HOST/PATH or https://HOST/PATH")?;
    let host = rest.split('/').next().unwrap_or_default();
    if host.contains('@') {
        return Err("it contains credentials, which every sandbox could read".to_owned());
    }
    let is_plain =
        |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'\\' | b'[' | b']' | b'?' | b'#');
    if host.is_empty() || !rest.bytes().all(is_plain) {
        return Err("it is not a plain address".to_owned());
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// The hosts of Debian's own archive.
const ARCHIVES: [&str; 4] =
    ["deb.debian.org", "ftp.debian.org", "httpredir.debian.org", "security.debian.org"];

/// A list of apt, in either form, with the mirror in place of Debian's own archive. Security updates come from the same mirror where
/// its path ends in `/debian`: then they are beside it, in `/debian-security`.
#[must_use]
pub fn apt_sources(text: &str, mirror: &str) -> String {
    let security = mirror.strip_suffix("/debian").map(|base| format!("{base}/debian-security"));
    let mut out = text.to_owned();
    for host in ARCHIVES {
        for scheme in ["http", "https"] {
            if let Some(security) = &security {
                out = replaced(&out, &format!("{scheme}://{host}/debian-security"), security);
            }
            out = replaced(&out, &format!("{scheme}://{host}/debian"), mirror);
        }
    }
    out
}

/// Replaces whole addresses only: what follows is the end of one.
fn replaced(text: &str, from: &str, to: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, after) = (&rest[..at], &rest[at + from.len()..]);
        out.push_str(before);
        let is_whole = after.trim_start_matches('/').chars().next().is_none_or(char::is_whitespace);
        out.push_str(if is_whole { to } else { from });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lists_of_both_forms_lead_to_the_mirror() {
        let old = "deb http://deb.debian.org/debian bookworm main\n\
                   deb http://deb.debian.org/debian-security bookworm-security main\n\
                   deb https://other.test/debian bookworm main\n";
        assert_eq!(
            apt_sources(old, "https://mirror.corp.test/apt/debian"),
            "deb https://mirror.corp.test/apt/debian bookworm main\n\
             deb https://mirror.corp.test/apt/debian-security bookworm-security main\n\
             deb https://other.test/debian bookworm main\n"
        );
        let new = "URIs: http://deb.debian.org/debian/\nSuites: trixie\nURIs: http://security.debian.org/debian-security\n";
        let changed = apt_sources(new, "https://m.test/deb");
        assert!(changed.contains("URIs: https://m.test/deb/\n"), "{changed}");
        assert!(changed.contains("URIs: http://security.debian.org/debian-security\n"), "{changed}");
        let once = apt_sources(old, "http://deb.debian.org/debian");
        assert_eq!(apt_sources(&once, "http://deb.debian.org/debian"), once);
    }

    #[test]
    fn a_mirror_is_a_plain_address_without_credentials() {
        assert_eq!(parse("https://m.test/a/").unwrap(), "https://m.test/a");
        for bad in [
            "",
            "m.test",
            "ftp://m.test",
            "https://",
            "https://u:canary@m.test/",
            "https://m.test/a b",
            "https://m/\nx",
        ] {
            let why = parse(bad).unwrap_err();
            assert!(!why.contains("canary"), "{why}");
        }
    }
}
