//! Docker's `config.json` of the operator: credentials as `docker login` stores them, in the file or in a helper
//! program.
//!
//! It is read only for callers that act as the operator ([`super::Auth::Operator`]); tenants never use these
//! credentials. A helper is run by the name in the operator's file, never by a name from a request, and has a deadline.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::auth::Auth;
use super::error::RegistryError;

/// LIMIT: a larger config or helper output is refused.
const SIZE_MAX: u64 = 1 << 20;
/// LIMIT: a helper that prompts a person would wait for ever.
const HELPER_LIMIT: Duration = Duration::from_secs(15);
/// The user name that a helper returns with an identity token.
const TOKEN_USER: &str = "<token>";

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: HashMap<String, RegistryLogin>,
    cred_helpers: HashMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RegistryLogin {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
    registrytoken: Option<String>,
}

#[derive(Deserialize)]
struct HelperCredentials {
    #[serde(rename = "Username", default)]
    username: String,
    #[serde(rename = "Secret", default)]
    secret: String,
}

/// The credentials in the file at `path` for a registry. Blocking. A missing file or entry means [`Auth::Anonymous`].
pub(super) fn auth_for(path: &Path, registry: &str) -> Result<Auth, RegistryError> {
    let bad = |why: String| RegistryError::DockerConfig { path: path.to_owned(), why };
    let mut text = Vec::new();
    match std::fs::File::open(path) {
        Ok(file) => file.take(SIZE_MAX).read_to_end(&mut text).map_err(RegistryError::io("read", path))?,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Auth::Anonymous),
        Err(cause) => return Err(RegistryError::io("open", path)(cause)),
    };
    // The parser's text may quote secrets; the position is enough.
    let config: DockerConfig = serde_json::from_slice(&text)
        .map_err(|cause| bad(format!("line {} column {} is malformed", cause.line(), cause.column())))?;
    let wanted = host_of(registry);
    let helper = config.cred_helpers.iter().find(|(key, _)| host_of(key) == wanted).map(|(_, name)| name);
    if let Some(helper) = helper.or(config.creds_store.as_ref().filter(|name| !name.is_empty()))
        && let Some(auth) = ask(helper, registry, HELPER_LIMIT).map_err(bad)?
    {
        return Ok(auth);
    }
    let entry = config.auths.iter().find(|(key, _)| host_of(key) == wanted);
    entry.map_or(Ok(Auth::Anonymous), |(_, entry)| read(entry).map_err(|why| bad(why.to_owned())))
}

fn read(entry: &RegistryLogin) -> Result<Auth, &'static str> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(token) = given(&entry.identitytoken) {
        return Ok(Auth::Identity(token));
    }
    if let Some(token) = given(&entry.registrytoken) {
        return Ok(Auth::Bearer(token));
    }
    if let (Some(username), Some(password)) = (given(&entry.username), given(&entry.password)) {
        return Ok(Auth::Basic { username, password });
    }
    let Some(auth) = given(&entry.auth) else { return Ok(Auth::Anonymous) };
    let decoded = STANDARD.decode(auth.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let decoded = decoded.ok_or("an `auth` is not base64 text")?;
    let (username, password) = decoded.split_once(':').ok_or("an `auth` has no colon")?;
    Ok(Auth::Basic { username: username.into(), password: password.trim_end_matches('\0').into() })
}

/// Keys are hosts, or URLs with a scheme and the path of an old API.
fn host_of(key: &str) -> String {
    let key = key.trim_start_matches("https://").trim_start_matches("http://");
    key.split('/').next().unwrap_or_default().to_ascii_lowercase()
}

/// Runs `docker-credential-<helper> get`. `None`: it has no credentials for this registry.
fn ask(helper: &str, registry: &str, limit: Duration) -> Result<Option<Auth>, String> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if !helper.bytes().all(is_plain) || helper.starts_with('.') {
        return Err(format!("{helper:?} is not the name of a credential helper"));
    }
    run(Path::new(&format!("docker-credential-{helper}")), registry, limit)
}

#[expect(
    clippy::disallowed_methods,
    reason = "ends when the helper's pipes close; a helper that takes too long is killed"
)]
fn run(program: &Path, registry: &str, limit: Duration) -> Result<Option<Auth>, String> {
    let name = program.display();
    let mut child = Command::new(program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|cause| format!("{name} cannot be run: {cause}"))?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (send, receive) = sync_channel(1);
    let registry = registry.to_owned();
    // A separate thread serves the pipes, so that a helper that does not use them can still be ended in time.
    std::thread::spawn(move || {
        if let Some(mut stdin) = stdin {
            let _ = stdin.write_all(registry.as_bytes());
        }
        let mut answer = Vec::new();
        let _ = stdout.map(|stdout| stdout.take(SIZE_MAX).read_to_end(&mut answer));
        let _ = send.send(answer);
    });
    let deadline = Instant::now() + limit;
    let answer = receive.recv_timeout(limit);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if answer.is_ok() && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5))
            }
            _ => break None,
        }
    };
    let (Ok(answer), Some(status)) = (answer, status) else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("{name} did not answer within {} s", limit.as_secs()));
    };
    if !status.success() {
        return match String::from_utf8_lossy(&answer).contains("credentials not found") {
            true => Ok(None),
            false => Err(format!("{name} failed ({status})")),
        };
    }
    let HelperCredentials { username, secret } =
        serde_json::from_slice(&answer).map_err(|_| format!("{name} returned no credentials"))?;
    Ok(match (username.as_str(), secret.is_empty()) {
        (_, true) => None,
        (TOKEN_USER, false) => Some(Auth::Identity(secret)),
        (_, false) => Some(Auth::Basic { username, password: secret }),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn says(config: &serde_json::Value, registry: &str) -> Result<Auth, RegistryError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, config.to_string()).unwrap();
        auth_for(&path, registry)
    }

    #[test]
    fn what_docker_login_left_is_found_by_host() {
        let basic = |name: &str, word: &str| Auth::Basic { username: name.into(), password: word.into() };
        let config = serde_json::json!({"auths": {
            "https://index.docker.io/v1/": {"auth": STANDARD.encode("hub:a:b")},
            "ghcr.io": {"username": "cat", "password": "word"},
            "http://127.0.0.1:5000": {"auth": STANDARD.encode("me:pw")},
            "a.example": {"auth": STANDARD.encode("u:"), "identitytoken": "long"},
            "b.example": {"registrytoken": "short"},
            "c.example": {},
        }});
        for (registry, auth) in [
            ("https://index.docker.io/v1/", basic("hub", "a:b")),
            ("ghcr.io", basic("cat", "word")),
            ("127.0.0.1:5000", basic("me", "pw")),
            ("127.0.0.1", Auth::Anonymous),
            ("a.example", Auth::Identity("long".into())),
            ("b.example", Auth::Bearer("short".into())),
            ("c.example", Auth::Anonymous),
            ("d.example", Auth::Anonymous),
        ] {
            assert!(says(&config, registry).unwrap() == auth, "{registry}");
        }
        assert!(auth_for(Path::new("/nonexistent/config.json"), "x").unwrap() == Auth::Anonymous);
    }

    #[test]
    fn a_broken_config_is_named_without_what_is_in_it() {
        let config = serde_json::json!({"auths": {"x": {"auth": "c2VjcmV0"}}});
        let error = says(&config, "x").unwrap_err().to_string();
        assert!(error.contains("no colon") && !error.contains("secret"), "{error}");
        let error = says(&serde_json::json!({"auths": "secret"}), "x").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
        assert!(says(&serde_json::json!({"credsStore": "../../bin/sh"}), "x").is_err());
    }

    #[test]
    fn a_helper_is_asked_and_left_at_its_deadline() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        // Found by its full path here: the search path belongs to the whole test process.
        let ask = |script: &str, limit: Duration| {
            let path = dir.path().join("docker-credential-x");
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            run(&path, "reg", limit)
        };
        let long = Duration::from_secs(60);
        let answer = ask(r#"read -r host; echo "{\"Username\":\"$1\",\"Secret\":\"$host\"}""#, long).unwrap();
        assert!(answer == Some(Auth::Basic { username: "get".into(), password: "reg".into() }));
        let token = ask(r#"echo '{"Username":"<token>","Secret":"t"}'"#, long).unwrap();
        assert!(token == Some(Auth::Identity("t".into())));
        assert!(ask("echo 'credentials not found in native keychain'; exit 1", long).unwrap().is_none());
        assert!(ask("exit 1", long).is_err());
        assert!(ask("echo nonsense", long).is_err());
        let began = Instant::now();
        assert!(ask("exec sleep 600", Duration::from_millis(200)).is_err());
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}
