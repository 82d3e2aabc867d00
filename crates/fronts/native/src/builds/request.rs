//! The request of a build.

use std::collections::BTreeMap;

use atoll_client::builds::{BuildBody, BuildSecretBody};
use atoll_front_kit::ApiError;
use atoll_model::LimitsAsk;
use atoll_service::{BuildSecret, BuildSource, StartBuild};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::convert::{FromApi, IntoCore};
use crate::templates::reference;

impl FromApi<BuildBody> for StartBuild {
    fn from_api(body: BuildBody) -> Result<Self, ApiError> {
        let source = match (body.dockerfile, body.dockerfile_path) {
            (Some(_), Some(_)) => {
                return Err(ApiError::invalid("dockerfile and dockerfile_path cannot be combined"));
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
            auth: body.auth.map(IntoCore::into_core).transpose()?,
            platform: body.platform,
            ..Self::of(reference("template", &body.template)?, source)
        })
    }
}

fn secrets(bodies: Vec<BuildSecretBody>) -> Result<BTreeMap<String, BuildSecret>, ApiError> {
    let mut secrets = BTreeMap::new();
    for BuildSecretBody { id, value, value_base64 } in bodies {
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
            return Err(ApiError::invalid(format!("secrets: {id:?} is listed twice")));
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
        parse_json::<BuildBody>(text.as_bytes())?.into_core()
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
