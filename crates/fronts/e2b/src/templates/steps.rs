//! Translates the build steps of E2B's SDKs to those of the service: shells, users, ready commands.

use atoll_front_kit::ApiError;
use atoll_model::{ReadyCheck, StartSettings};
use atoll_service::{BuildSource, BuildSteps, DeclaredBuild, DeclaredStep, RegistryAuth};

use super::request::{BuildBody, Registry, StepBody};

use crate::error::not_here;

/// LIMIT: that of E2B, for all attempts of a ready command together. A single attempt has no limit of its own.
const READY_S: u64 = 600;

/// Commands run by a login shell; the image need not have bash.
const SHELL: [&str; 3] =
    ["/bin/sh", "-c", "if [ -x /bin/bash ]; then exec /bin/bash -l -c \"$0\"; fi; exec /bin/sh -l -c \"$0\""];

/// Prepares an image for code that relies on E2B: a user that may become root, and the tools of ready commands. Tools
/// that cannot be installed are left out without a failure, because most code needs none of them.
const PREPARE: &str = r#"
lacking=
for tool in sudo curl git ss pgrep bash; do
  command -v "$tool" >/dev/null 2>&1 || lacking="$lacking $tool"
done
packages() {
  for tool in $lacking; do
    case $tool in ss) echo "$1" ;; pgrep) echo "$2" ;; *) echo "$tool" ;; esac
  done
}
within() { if command -v timeout >/dev/null 2>&1; then timeout 180 "$@"; else "$@"; fi; }
if [ -n "$lacking" ]; then
  echo "not in this image:$lacking"
  if command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    quick='-o Acquire::Retries=0 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15'
    within apt-get $quick -qq update && within apt-get $quick -qq install -y --no-install-recommends ca-certificates $(packages iproute2 procps)
    rm -rf /var/lib/apt/lists/*
  elif command -v apk >/dev/null 2>&1; then
    within apk add --no-cache ca-certificates $(packages iproute2-ss procps)
  elif command -v dnf >/dev/null 2>&1; then
    within dnf install -y --setopt=install_weak_deps=False $(packages iproute procps-ng)
  fi || echo 'these packages cannot be installed now and are left out'
fi
if command -v sudo >/dev/null 2>&1; then
  mkdir -p /etc/sudoers.d
  echo 'user ALL=(ALL:ALL) NOPASSWD: ALL' > /etc/sudoers.d/90-user
  chmod 0440 /etc/sudoers.d/90-user
fi
exit 0
"#;

/// The build steps of a request. `base`: the template for `fromTemplate`.
pub(super) fn steps(body: BuildBody, base: Option<String>) -> Result<BuildSteps, ApiError> {
    let image = body.from_image.as_deref().map(str::trim).filter(|image| !image.is_empty());
    let (base, prepare) = match (image, base) {
        (Some(image), None) => (image.to_owned(), prepare()),
        (None, Some(base)) => (base, Vec::new()),
        (None, None) | (Some(_), Some(_)) => {
            return Err(ApiError::invalid("one of fromImage and fromTemplate is needed, not both"));
        }
    };
    let field = if image.is_some() { "fromImage" } else { "fromTemplate" };
    let base =
        base.parse().map_err(|bad: atoll_model::BadTemplateRef| ApiError::field(field, bad.to_string()))?;
    let steps: Result<Vec<DeclaredStep>, ApiError> =
        body.steps.unwrap_or_default().into_iter().map(step).collect();
    let shell: Vec<String> = SHELL.map(str::to_owned).to_vec();
    let start = body.start_cmd.filter(|command| !command.trim().is_empty());
    let ready = body.ready_cmd.filter(|command| !command.trim().is_empty());
    let command = match (start, &ready) {
        (Some(start), _) => Some(shell.iter().cloned().chain([start]).collect()),
        // No command is started, but the ready check still runs.
        (None, Some(_)) => Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), ":".to_owned()]),
        (None, None) => None,
    };
    let settings = StartSettings { command, ready: ready.as_deref().map(check), ..StartSettings::default() };
    Ok(BuildSteps {
        source: BuildSource::Declared(DeclaredBuild { base, prepare, steps: steps?, shell }),
        settings,
        no_cache: body.force.unwrap_or_default(),
        ready_timeout_s: Some(READY_S),
        auth: body.from_image_registry.map(auth).transpose()?,
    })
}

fn prepare() -> Vec<DeclaredStep> {
    let step = |kind: &str, args: &[&str]| DeclaredStep {
        kind: kind.to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        files: None,
        force: false,
    };
    vec![step("RUN", &[PREPARE, "root"]), step("USER", &["user"]), step("WORKDIR", &["/home/user"])]
}

fn step(step: StepBody) -> Result<DeclaredStep, ApiError> {
    let kind = step.kind.to_ascii_uppercase();
    let files = step.files_hash.filter(|hash| !hash.is_empty());
    if kind == "COPY" && files.is_none() {
        return Err(ApiError::field("steps", "COPY needs filesHash"));
    }
    Ok(DeclaredStep {
        kind,
        args: step.args.unwrap_or_default(),
        files,
        force: step.force.unwrap_or_default(),
    })
}

fn auth(registry: Registry) -> Result<RegistryAuth, ApiError> {
    match registry {
        Registry::Basic { username, password } => Ok(RegistryAuth::Basic { username, password }),
        // The form that Google's registries require for a service account file.
        Registry::Gcp { service_account_json } => {
            Ok(RegistryAuth::Basic { username: "_json_key".to_owned(), password: service_account_json })
        }
        Registry::Aws {} => Err(not_here(
            "an AWS registry by access key",
            "get a password from AWS (aws ecr get-login-password) and use it with the user AWS",
        )),
    }
}

/// A ready command. The SDKs' own commands need tools that an image may not have, and the server can check the same
/// from outside.
fn check(command: &str) -> ReadyCheck {
    port(command).or_else(|| url(command)).unwrap_or_else(|| {
        let command = format!(
            "if [ -x /bin/bash ]; then exec /bin/bash -l -c {0}; fi; exec /bin/sh -l -c {0}",
            quoted(command)
        );
        ReadyCheck::Command { command }
    })
}

/// `wait_for_port`, in its newer and older form.
fn port(command: &str) -> Option<ReadyCheck> {
    let newer =
        command.strip_prefix("[ -n \"$(ss -Htuln sport = :").and_then(|rest| rest.strip_suffix(")\" ]"));
    let port = newer.or_else(|| command.strip_prefix("ss -tuln | grep :"))?;
    Some(ReadyCheck::Port { port: port.parse().ok().filter(|port| *port > 0)? })
}

/// `wait_for_url` of a local address.
fn url(command: &str) -> Option<ReadyCheck> {
    let rest = command.strip_prefix("curl -s -o /dev/null -w \"%{http_code}\" ")?;
    let (url, status) = rest.rsplit_once(" | grep -q \"")?;
    let status = status.strip_suffix('"')?.parse().ok()?;
    let url = url.trim_matches(|c| matches!(c, '\'' | '"'));
    let rest = url.strip_prefix("http://")?;
    let (host, path) = rest.split_once('/').map_or((rest, ""), |(host, path)| (host, path));
    let (name, port) = host.split_once(':').map_or((host, "80"), |(name, port)| (name, port));
    if !matches!(name, "localhost" | "127.0.0.1") || path.contains(|c: char| c.is_control() || c == ' ') {
        return None;
    }
    Some(ReadyCheck::Url { port: port.parse().ok()?, path: format!("/{path}"), status })
}

/// Quotes a text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(value: serde_json::Value) -> BuildBody {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_the_python_sdk_sends_becomes_a_declared_build() {
        let sent = json!({
            "fromImage": "python:3", "force": false,
            "startCmd": "python -m http.server 8000",
            "readyCmd": "[ -n \"$(ss -Htuln sport = :8000)\" ]",
            "steps": [
                { "type": "COPY", "args": ["app.py", "/app/", "", "0644"], "force": false, "filesHash": "ab".repeat(32) },
                { "type": "RUN", "args": ["pip install x", "root"], "force": true },
                { "type": "ENV", "args": ["A", "1"], "force": false },
            ],
        });
        let asked = steps(body(sent), None).unwrap();
        let BuildSource::Declared(declared) = &asked.source else { panic!() };
        assert_eq!((declared.base.to_string().as_str(), declared.prepare.len()), ("python:3", 3));
        assert_eq!(declared.files(), ["ab".repeat(32)]);
        assert_eq!((declared.forces(1), declared.forces(2), declared.forces(3)), (false, true, false));
        assert_eq!(asked.settings.ready, Some(ReadyCheck::Port { port: 8000 }));
        assert_eq!(
            asked.settings.command.unwrap().last().map(String::as_str),
            Some("python -m http.server 8000")
        );
    }

    #[test]
    fn a_template_goes_on_as_it_is_and_one_base_is_needed() {
        let asked = steps(body(json!({ "fromTemplate": "mine:default" })), Some("mine".to_owned())).unwrap();
        let BuildSource::Declared(declared) = &asked.source else { panic!() };
        assert_eq!((declared.base.to_string().as_str(), declared.prepare.len()), ("mine", 0));
        for (sent, base) in [
            (json!({}), None),
            (json!({ "fromImage": "a", "fromTemplate": "b" }), Some("b".to_owned())),
            (json!({ "fromImage": "A B" }), None),
            (json!({ "fromImage": "a", "steps": [{ "type": "COPY", "args": ["a", "b"] }] }), None),
        ] {
            assert_eq!(steps(body(sent.clone()), base).unwrap_err().status().as_u16(), 400, "{sent}");
        }
    }

    #[test]
    fn ready_commands_of_the_sdks_need_no_tools_inside() {
        let wanted = ReadyCheck::Url { port: 3000, path: "/health?x=1".to_owned(), status: 204 };
        let url =
            "curl -s -o /dev/null -w \"%{http_code}\" 'http://localhost:3000/health?x=1' | grep -q \"204\"";
        assert_eq!(check(url), wanted);
        assert_eq!(check("ss -tuln | grep :80"), ReadyCheck::Port { port: 80 });
        for other in [
            "sleep 1",
            "[ -f /tmp/it's ]",
            "curl -s -o /dev/null -w \"%{http_code}\" https://example.com | grep -q \"200\"",
            "ss -tuln | grep :80 || true",
        ] {
            let ReadyCheck::Command { command } = check(other) else { panic!("{other}") };
            assert!(command.contains("/bin/bash -l -c '"), "{command}");
        }
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }

    #[test]
    fn registries_are_shown_what_they_want() {
        let read = |value| serde_json::from_value::<Registry>(value).map(auth).unwrap();
        let known = read(json!({ "type": "registry", "username": "a", "password": "b" })).unwrap();
        assert_eq!(known, RegistryAuth::Basic { username: "a".into(), password: "b".into() });
        assert!(
            matches!(read(json!({ "type": "gcp", "serviceAccountJson": "{}" })), Ok(RegistryAuth::Basic { username, .. }) if username == "_json_key")
        );
        let aws =
            json!({ "type": "aws", "awsAccessKeyId": "x", "awsSecretAccessKey": "y", "awsRegion": "z" });
        assert_eq!(read(aws).unwrap_err().status().as_u16(), 501);
    }
}
