//! What a client asks of a build.

use std::collections::BTreeMap;

use atoll_front_kit::ApiError;
use atoll_model::LimitsAsk;
use atoll_service::{BuildSecret, BuildSource, StartBuild};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::network::Network;
use crate::templates::{RegistryAuth, Start, reference};

/// What to build.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BuildBody {
    /// Its name: `name` or `name:tag`; `latest` where no tag is said.
    #[schema(example = "app:v1")]
    template: String,
    /// Further tags of that name.
    #[serde(default)]
    #[schema(required = false)]
    tags: Vec<String>,
    /// The text of the Dockerfile. Absent: it is in the context.
    #[schema(example = "FROM debian\nRUN echo hello > /hello\n")]
    dockerfile: Option<String>,
    /// Where the Dockerfile is in the context, where its text is not given. Default `Dockerfile`.
    dockerfile_path: Option<String>,
    /// Values for `ARG`.
    #[serde(default)]
    #[schema(required = false)]
    args: BTreeMap<String, String>,
    /// What `RUN --mount=type=secret` sees; in no layer, no log and no record.
    #[serde(default)]
    #[schema(required = false)]
    secrets: Vec<SecretBody>,
    /// The stage to end with; absent: the last.
    target: Option<String>,
    /// Do every step again.
    #[serde(default)]
    #[schema(required = false)]
    no_cache: bool,
    /// What sandboxes of it start with, on top of what its steps say.
    #[serde(default)]
    #[schema(required = false)]
    start: Start,
    /// What its steps may reach; absent: what a sandbox of this tenant may.
    network: Option<Network>,
    /// Cores of each step.
    cpu: Option<f64>,
    /// Memory of each step.
    memory_mib: Option<i64>,
    /// Disk of each step.
    disk_mib: Option<i64>,
    /// Processes and threads of each step.
    pids: Option<i64>,
    /// How long it may take in all; absent: the server's default.
    timeout_s: Option<u64>,
    /// Who to be at the registry of its base images.
    auth: Option<RegistryAuth>,
    /// Which form of a base image with several; absent: this machine's.
    #[schema(example = "linux/amd64")]
    platform: Option<String>,
}

/// A secret of a build. Exactly one of `value` and `value_base64`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SecretBody {
    /// As `RUN --mount=type=secret,id=…` names it.
    id: String,
    value: Option<String>,
    /// For bytes that are no text.
    value_base64: Option<String>,
}

impl std::fmt::Debug for SecretBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretBody({:?}, …)", self.id)
    }
}

impl TryFrom<BuildBody> for StartBuild {
    type Error = ApiError;

    fn try_from(body: BuildBody) -> Result<Self, ApiError> {
        let source = match (body.dockerfile, body.dockerfile_path) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid("dockerfile and dockerfile_path exclude each other"));
            }
            (Some(text), None) => BuildSource::Text(text),
            (None, path) => BuildSource::Dockerfile { path },
        };
        Ok(Self {
            tags: body.tags,
            args: body.args,
            secrets: secrets(body.secrets)?,
            target: body.target,
            no_cache: body.no_cache,
            settings: body.start.into(),
            network: body.network.map(Into::into),
            limits: LimitsAsk {
                cpu: body.cpu,
                memory_mib: body.memory_mib,
                disk_mib: body.disk_mib,
                pids: body.pids,
            },
            timeout_s: body.timeout_s,
            auth: body.auth.map(TryInto::try_into).transpose()?,
            platform: body.platform,
            ..Self::of(reference("template", &body.template)?, source)
        })
    }
}

fn secrets(bodies: Vec<SecretBody>) -> Result<BTreeMap<String, BuildSecret>, ApiError> {
    let mut secrets = BTreeMap::new();
    for SecretBody { id, value, value_base64 } in bodies {
        let content = match (value, value_base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(coded)) => STANDARD
                .decode(coded)
                .map_err(|why| ApiError::invalid(format!("secrets: {id:?} is not base64: {why}")))?,
            _ => {
                return Err(ApiError::invalid(format!(
                    "secrets: {id:?} has neither value nor value_base64, or both"
                )));
            }
        };
        if secrets.insert(id.clone(), BuildSecret::new(content)).is_some() {
            return Err(ApiError::invalid(format!("secrets: {id:?} is there twice")));
        }
    }
    Ok(secrets)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_front_kit::parse_json;

    fn read(text: &str) -> Result<StartBuild, ApiError> {
        parse_json::<BuildBody>(text.as_bytes())?.try_into()
    }

    #[test]
    fn a_dockerfile_is_a_text_or_in_the_context_and_never_both() {
        let source = |text: &str| read(text).unwrap().source;
        assert!(matches!(source(r#"{"template":"a"}"#), BuildSource::Dockerfile { path: None }));
        assert!(matches!(source(r#"{"template":"a","dockerfile":"FROM x"}"#), BuildSource::Text(_)));
        assert!(read(r#"{"template":"a","dockerfile":"x","dockerfile_path":"y"}"#).is_err());
    }

    #[test]
    fn what_makes_no_sense_is_named_and_secrets_are_not() {
        for (bad, named) in [
            (r#"{"template":"A b"}"#, "template"),
            (r#"{"template":"a","colour":1}"#, "colour"),
            (r#"{"template":"a","secrets":[{"id":"x"}]}"#, "x"),
            (r#"{"template":"a","secrets":[{"id":"x","value_base64":"?"}]}"#, "base64"),
            (r#"{"template":"a","secrets":[{"id":"x","value":"1"},{"id":"x","value":"2"}]}"#, "twice"),
            (r#"{"template":"a","start":{"ready":{"kind":"port"}}}"#, "ready"),
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.message.contains(named), "{error:?}");
        }
        let body: BuildBody =
            parse_json(br#"{"template":"a","secrets":[{"id":"key","value":"hunter2"}]}"#).unwrap();
        assert!(!format!("{body:?}").contains("hunter2"));
    }
}
