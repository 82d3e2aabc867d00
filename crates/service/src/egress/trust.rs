//! A sandbox whose requests are changed by the egress proxy must trust the proxy: a certificate authority of its own is
//! put where programs search. Only the certificate is in the sandbox; the key stays outside.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_agentapi::{AgentClient, AgentError, RpcCode};

/// The path from which Debian's tools take additions, so that a rebuilt bundle contains the authority too.
const OWN: &str = "/usr/local/share/ca-certificates/atoll-egress.crt";
/// The bundle that the variables name: all authorities that were trusted before, and the sandbox's own.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The bundles of images; the authority is added to the first existing one.
const BUNDLES: [&str; 4] =
    [BUNDLE, "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"];
/// LIMIT: the bundle of all public authorities has about 220 KiB.
const BUNDLE_MAX: u64 = 4 << 20;
/// LIMIT: a handful of small files.
const PATIENCE: Duration = Duration::from_secs(5);
const ROOT: Option<&str> = Some("root");

/// The variables for programs; values of the user have precedence.
pub(crate) fn add_env(env: &mut BTreeMap<String, String>) {
    for name in ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT"] {
        env.entry(name.to_owned()).or_insert_with(|| BUNDLE.to_owned());
    }
    env.entry("NODE_EXTRA_CA_CERTS".to_owned()).or_insert_with(|| OWN.to_owned());
}

/// Puts a certificate authority into the sandbox. Does nothing if it already exists.
pub(crate) async fn put(agent: &AgentClient, authority: &str) -> Result<(), AgentError> {
    let late = || AgentError::Argument("the certificate authority was not put inside in time");
    tokio::time::timeout(PATIENCE, put_now(agent, authority)).await.unwrap_or_else(|_| Err(late()))
}

async fn put_now(agent: &AgentClient, authority: &str) -> Result<(), AgentError> {
    let before = read(agent, OWN).await?;
    let own = authority.as_bytes();
    let bundle = read(agent, BUNDLE).await?;
    let is_there = bundle.as_deref().is_some_and(|bundle| find(bundle, own.trim_ascii()).is_some());
    if before.as_deref() == Some(own) && is_there {
        return Ok(());
    }
    let mut base = bundle;
    for other in &BUNDLES[1..] {
        if base.as_ref().is_some_and(|base| !base.is_empty()) {
            break;
        }
        base = read(agent, other).await?;
    }
    let bundle = bundle_with(base.as_deref().unwrap_or_default(), before.as_deref(), own);
    agent.write_bytes(BUNDLE, ROOT, Some(0o644), bundle).await?;
    // This is written last: if it does not exist, the next attempt writes everything again.
    agent.write_bytes(OWN, ROOT, Some(0o644), own.to_vec()).await
}

/// `None` if the file does not exist.
async fn read(agent: &AgentClient, path: &str) -> Result<Option<Vec<u8>>, AgentError> {
    match agent.read_file(path, ROOT, None).await {
        Ok(file) => Ok(Some(file.read_to_end(BUNDLE_MAX).await?)),
        Err(AgentError::Refused { code: RpcCode::NotFound, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The trusted authorities without that of an earlier sandbox with these files (a fork has that of its parent), and
/// with the own one.
fn bundle_with(base: &[u8], before: Option<&[u8]>, own: &[u8]) -> Vec<u8> {
    let mut bundle = base.to_vec();
    for old in before.into_iter().chain([own]).map(<[u8]>::trim_ascii).filter(|old| !old.is_empty()) {
        while let Some(at) = find(&bundle, old) {
            bundle.drain(at..at + old.len());
        }
    }
    bundle.truncate(bundle.trim_ascii_end().len());
    if !bundle.is_empty() {
        bundle.push(b'\n');
    }
    bundle.extend_from_slice(own.trim_ascii());
    bundle.push(b'\n');
    bundle
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    if part.is_empty() {
        return None;
    }
    text.windows(part.len()).position(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bundle: Vec<u8>) -> String {
        String::from_utf8(bundle).expect("ASCII")
    }

    #[test]
    fn ours_is_added_once_and_an_earlier_one_goes() {
        assert_eq!(text(bundle_with(b"", None, b"NEW\n")), "NEW\n");
        assert_eq!(text(bundle_with(b"A\nB\n", None, b"NEW\n")), "A\nB\nNEW\n");
        assert_eq!(text(bundle_with(b"A\nNEW\n", Some(b"NEW\n"), b"NEW\n")), "A\nNEW\n");
        assert_eq!(text(bundle_with(b"A\nOLD\n", Some(b"OLD\n"), b"NEW\n")), "A\nNEW\n");
        assert_eq!(text(bundle_with(b"A\nOLD\n", Some(b" \n"), b"NEW")), "A\nOLD\nNEW\n");
    }

    #[test]
    fn what_the_user_set_stands() {
        let mut env = BTreeMap::from([("SSL_CERT_FILE".to_owned(), "/mine".to_owned())]);
        add_env(&mut env);
        assert_eq!(env["SSL_CERT_FILE"], "/mine");
        assert_eq!((env["PIP_CERT"].as_str(), env["NODE_EXTRA_CA_CERTS"].as_str()), (BUNDLE, OWN));
    }
}
