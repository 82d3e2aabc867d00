//! The request of a build, and the checks before anything is read.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_model::{BadSpec, BuildStatus, LimitsAsk, NetworkPolicy, StartSettings, TemplateRef};
use tokio::io::AsyncRead;

use crate::RegistryAuth;

/// The files that a build may copy from: a tar, plain or compressed with gzip or zstd.
pub type BuildContext = Box<dyn AsyncRead + Send + Unpin>;

/// A template to be made from steps.
#[derive(Debug, Clone)]
pub struct StartBuild {
    /// Its name; the default tag is `latest`.
    pub template: TemplateRef,
    /// Further tags for it.
    pub tags: Vec<String>,
    /// Its steps.
    pub source: BuildSource,
    /// Uploaded archives that a Dockerfile copies from, by their hashes. Together they are the context.
    pub contexts: Vec<String>,
    /// Values for `ARG`.
    pub args: BTreeMap<String, String>,
    /// Files that steps may use by `RUN --mount=type=secret`.
    pub secrets: BTreeMap<String, BuildSecret>,
    /// The stage that becomes the template; `None`: the last.
    pub target: Option<String>,
    /// Whether to run every step again.
    pub no_cache: bool,
    /// The start settings of its sandboxes, in addition to those of the steps.
    pub settings: StartSettings,
    /// Who commands run as in templates that are built on a given one.
    pub base_user: Option<BaseUser>,
    /// Labels of the image, in addition to those of the steps; they are not a step of the log.
    pub labels: BTreeMap<String, String>,
    /// The network policy of its steps; `None`: that of the tenant's sandboxes.
    pub network: Option<NetworkPolicy>,
    /// The limits of its steps.
    pub limits: LimitsAsk,
    /// The total timeout; `None`: the server's default.
    pub timeout_s: Option<u64>,
    /// How long its start command may take to be ready; `None`: ten minutes.
    pub ready_timeout_s: Option<u64>,
    /// Credentials for the registry of its bases.
    pub auth: Option<RegistryAuth>,
    /// The platform of a base with several; `None`: this machine's.
    pub platform: Option<String>,
}

/// Who commands run as, and where, in a template whose base is this built-in one, unless its steps say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUser {
    /// A name or an alias of the base.
    pub base: String,
    pub user: String,
    pub workdir: String,
}

/// The source of a build's steps.
#[derive(Debug, Clone)]
pub enum BuildSource {
    /// A Dockerfile in the context; `None`: `Dockerfile`.
    Dockerfile {
        /// The path in the context.
        path: Option<String>,
    },
    /// The text of a Dockerfile.
    Text(String),
    /// Steps as the SDKs declare them.
    Declared(atoll_image::build::DeclaredBuild),
}

/// The content of a secret. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct BuildSecret(bytes::Bytes);

impl BuildSecret {
    /// Makes a secret with this content.
    pub fn new(content: impl Into<bytes::Bytes>) -> Self {
        Self(content.into())
    }

    pub(super) fn content(&self) -> bytes::Bytes {
        self.0.clone()
    }
}

impl std::fmt::Debug for BuildSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BuildSecret(…)")
    }
}

/// Which builds to list.
#[derive(Debug, Clone, Default)]
pub struct BuildFilter {
    /// Only in this state.
    pub status: Option<BuildStatus>,
    /// Only of the template with this name.
    pub template: Option<String>,
    /// At most this many; 0 takes the default.
    pub limit: u32,
    /// The cursor of the previous page.
    pub cursor: Option<String>,
}

/// LIMIT: compiling a browser takes hours, but no build needs a day.
const TIMEOUT_S_MAX: u64 = 12 * 3_600;
/// LIMIT: a start command that is not ready after this time will never be.
const READY_S_MAX: u64 = 20 * 60;
// LIMIT: large enough for any reasonable build; together they keep the memory per build below 5 MiB.
const TAGS_MAX: usize = 32;
const CONTEXTS_MAX: usize = 64;
const ARGS_MAX: usize = 256;
const ARGS_BYTES_MAX: usize = 256 << 10;
const SECRETS_MAX: usize = 64;
const SECRET_BYTES_MAX: usize = 512 << 10;
const SECRETS_BYTES_MAX: usize = 2 << 20;
pub(super) const TEXT_BYTES: u64 = 1 << 20;

impl StartBuild {
    /// A build of a Dockerfile in its context, with defaults for the rest.
    #[must_use]
    pub fn of(template: TemplateRef, source: BuildSource) -> Self {
        Self {
            template,
            tags: Vec::new(),
            source,
            contexts: Vec::new(),
            args: BTreeMap::new(),
            secrets: BTreeMap::new(),
            target: None,
            no_cache: false,
            settings: StartSettings::default(),
            base_user: None,
            labels: BTreeMap::new(),
            network: None,
            limits: LimitsAsk::default(),
            timeout_s: None,
            ready_timeout_s: None,
            auth: None,
            platform: None,
        }
    }

    /// The total timeout.
    pub(super) fn timeout(&self, default: Duration) -> Duration {
        self.timeout_s.map_or(default, Duration::from_secs)
    }

    /// Refuses a request that cannot be built, with the name of the field.
    pub(super) fn check(&self) -> Result<(), BadSpec> {
        if self.template.digest.is_some() {
            return Err(bad("template", "takes a name and a tag; the build determines the digest"));
        }
        if self.template.registry().is_some() {
            return Err(bad("template", "cannot name a registry; push the template to it afterwards"));
        }
        if self.tags.len() > TAGS_MAX {
            return Err(bad("tags", format!("has more than {TAGS_MAX} entries")));
        }
        for tag in &self.tags {
            let named = format!("{}:{tag}", self.template.name);
            named.parse::<TemplateRef>().map_err(|why| bad("tags", why.to_string()))?;
        }
        if self.contexts.len() > CONTEXTS_MAX {
            return Err(bad("contexts", format!("has more than {CONTEXTS_MAX} entries")));
        }
        let text = match &self.source {
            BuildSource::Dockerfile { path } => path.as_ref().map_or(0, String::len),
            BuildSource::Text(text) => text.len(),
            // The planner checks its size.
            BuildSource::Declared(_) => 0,
        };
        if text as u64 > TEXT_BYTES {
            return Err(bad("dockerfile", format!("is longer than {TEXT_BYTES} bytes")));
        }
        if self.timeout_s.is_some_and(|seconds| !(1..=TIMEOUT_S_MAX).contains(&seconds)) {
            return Err(bad("timeout_s", format!("must be between 1 and {TIMEOUT_S_MAX}")));
        }
        if self.ready_timeout_s.is_some_and(|seconds| !(1..=READY_S_MAX).contains(&seconds)) {
            return Err(bad("ready_timeout_s", format!("must be between 1 and {READY_S_MAX}")));
        }
        self.check_args()?;
        self.check_secrets()?;
        self.limits.resolve(atoll_model::Limits::default())?;
        self.settings.limits.resolve(atoll_model::Limits::default())?;
        Ok(())
    }

    fn check_args(&self) -> Result<(), BadSpec> {
        let bytes: usize = self.args.iter().map(|(k, v)| k.len() + v.len() + 2).sum();
        if self.args.len() > ARGS_MAX || bytes > ARGS_BYTES_MAX {
            return Err(bad("args", format!("has more than {ARGS_MAX} values or {ARGS_BYTES_MAX} bytes")));
        }
        let odd = |(key, value): (&String, &String)| {
            key.is_empty() || key.contains(['=', '\0']) || value.contains('\0')
        };
        if self.args.iter().any(odd) {
            return Err(bad(
                "args",
                "names must not be empty or contain '='; names and values must not contain a NUL byte",
            ));
        }
        Ok(())
    }

    fn check_secrets(&self) -> Result<(), BadSpec> {
        let bytes: usize = self.secrets.values().map(|secret| secret.0.len()).sum();
        if self.secrets.len() > SECRETS_MAX || bytes > SECRETS_BYTES_MAX {
            return Err(bad(
                "secrets",
                format!("has more than {SECRETS_MAX} entries or {SECRETS_BYTES_MAX} bytes"),
            ));
        }
        for (id, secret) in &self.secrets {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            if id.is_empty() || id.len() > 128 || !id.chars().all(plain) || matches!(id.as_str(), "." | "..")
            {
                return Err(bad("secrets", "ids have 1 to 128 letters, digits, '.', '_' and '-'"));
            }
            if secret.0.len() > SECRET_BYTES_MAX {
                return Err(bad("secrets", format!("{id} is longer than {SECRET_BYTES_MAX} bytes")));
            }
        }
        Ok(())
    }
}

fn bad(field: &'static str, why: impl Into<String>) -> BadSpec {
    BadSpec::Text { field, why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(template: &str) -> StartBuild {
        StartBuild::of(template.parse().expect("a name"), BuildSource::Dockerfile { path: None })
    }

    #[test]
    fn a_plain_build_is_fine_and_bounded_in_time() {
        assert_eq!(ask("app:v1").check(), Ok(()));
        let default = Duration::from_secs(9);
        assert_eq!(ask("app").timeout(default), default);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_field() {
        let digest = format!("app@sha256:{}", "ab".repeat(32));
        let cases = [
            (ask(&digest), "template"),
            (ask("127.0.0.1:5000/app"), "template"),
            (StartBuild { tags: vec!["no good".into()], ..ask("app") }, "tags"),
            (StartBuild { contexts: vec![String::new(); CONTEXTS_MAX + 1], ..ask("app") }, "contexts"),
            (StartBuild { timeout_s: Some(0), ..ask("app") }, "timeout_s"),
            (StartBuild { timeout_s: Some(u64::MAX), ..ask("app") }, "timeout_s"),
            (StartBuild { args: [("A=".to_owned(), String::new())].into(), ..ask("app") }, "args"),
            (
                StartBuild { secrets: [("../x".to_owned(), BuildSecret::new("y"))].into(), ..ask("app") },
                "secrets",
            ),
            (
                StartBuild { secrets: [("..".to_owned(), BuildSecret::new("y"))].into(), ..ask("app") },
                "secrets",
            ),
            (
                StartBuild {
                    secrets: [("x".to_owned(), BuildSecret::new(vec![0; SECRET_BYTES_MAX + 1]))].into(),
                    ..ask("app")
                },
                "secrets",
            ),
        ];
        for (ask, field) in cases {
            let refusal = ask.check().expect_err(field);
            assert!(refusal.to_string().starts_with(field), "{refusal}");
        }
    }

    #[test]
    fn a_secret_shows_itself_to_nobody() {
        let secrets = [("key".to_owned(), BuildSecret::new("hunter2"))].into();
        let shown = format!("{:?}", StartBuild { secrets, ..ask("app") });
        assert!(shown.contains("key") && !shown.contains("hunter2"), "{shown}");
    }
}
