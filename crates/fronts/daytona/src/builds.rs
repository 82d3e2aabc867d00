//! Builds of snapshots and of sandboxes: passes a Dockerfile and its contexts to the core, and returns the logs as
//! text.

use std::collections::BTreeMap;

use atoll_front_kit::ApiError;
use atoll_model::{Build, BuildId, LimitsAsk, Principal, StartSettings, TemplateRef};
use atoll_service::{BaseUser, BuildSource, StartBuild};
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt;
use sha2::{Digest, Sha256};

use crate::DaytonaApp;
use crate::naming;
use crate::sandboxes::BuildAsk;

/// The prefix of templates that were built for a sandbox without a snapshot name.
pub(crate) const NAMELESS: &str = "daytona-build/";
/// The prefix of image labels that hold what the description of a snapshot must show.
const NOTE: &str = "daytona.";
/// LIMIT: bytes of a note; longer ones are left out.
const NOTE_MAX: usize = 48 << 10;

/// A template to be built.
pub(crate) struct Ask {
    /// The name of the template.
    pub(crate) word: String,
    pub(crate) build: BuildAsk,
    pub(crate) limits: LimitsAsk,
    pub(crate) command: Option<Vec<String>>,
    /// The fields that the description of the snapshot must show.
    pub(crate) notes: Vec<(&'static str, String)>,
}

/// The same Dockerfile with the same contexts gives the same template.
pub(crate) fn name_of(build: &BuildAsk) -> String {
    let mut hash = Sha256::new();
    hash.update(build.dockerfile_content.as_bytes());
    for context in build.context_hashes.iter().flatten() {
        hash.update([0]);
        hash.update(context.as_bytes());
    }
    format!("{NAMELESS}{}", &hex::encode(hash.finalize())[..32])
}

/// A build as the core takes it.
pub(crate) fn request(ask: Ask) -> Result<StartBuild, ApiError> {
    if ask.build.dockerfile_content.trim().is_empty() {
        return Err(ApiError::invalid("buildInfo.dockerfileContent: is empty"));
    }
    let template: TemplateRef =
        ask.word.parse().map_err(|why: atoll_model::BadTemplateRef| ApiError::invalid(why.to_string()))?;
    let settings = StartSettings { limits: ask.limits, command: ask.command, ..StartSettings::default() };
    // COMPAT(daytona): what is built on the vendor's image has its user and home.
    let base_user = BaseUser {
        base: naming::DEFAULT.to_owned(),
        user: naming::USER.to_owned(),
        workdir: naming::HOME.to_owned(),
    };
    Ok(StartBuild {
        contexts: ask.build.context_hashes.unwrap_or_default(),
        settings,
        base_user: Some(base_user),
        labels: labels(&ask.notes),
        ..StartBuild::of(template, BuildSource::Text(ask.build.dockerfile_content))
    })
}

/// Notes are labels in the image's configuration, so that they are kept as long as the template.
fn labels(notes: &[(&'static str, String)]) -> BTreeMap<String, String> {
    let short = notes.iter().filter(|(_, value)| value.len() <= NOTE_MAX);
    short.map(|(word, value)| (format!("{NOTE}{word}"), STANDARD.encode(value))).collect()
}

/// A note of an image's labels.
pub(crate) fn note(labels: &BTreeMap<String, String>, word: &str) -> Option<String> {
    let value = labels.get(&format!("{NOTE}{word}"))?;
    String::from_utf8(STANDARD.decode(value).ok()?).ok()
}

/// The failure of a build as text.
pub(crate) fn reason(build: &Build) -> String {
    match &build.failure {
        Some(failure) => failure.summary(),
        None => format!("the build is {}", build.status.as_str()),
    }
}

/// The log as plain text, line by line as it is written.
pub(crate) async fn log(
    app: &DaytonaApp,
    who: &Principal,
    build: &BuildId,
    follow: bool,
) -> Result<Response, ApiError> {
    let lines = app.service.builds().log(who, build.as_str(), 1, follow).await?;
    let closing = app.options.closing.clone();
    let text = lines
        .map(|line| Ok::<_, std::convert::Infallible>(Bytes::from(format!("{}\n", line.text))))
        .take_until(async move { closing.cancelled().await });
    let mut response = Body::from_stream(text).into_response();
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    Ok(response)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ask(text: &str, contexts: &[&str]) -> BuildAsk {
        let hashes = contexts.iter().map(|hash| (*hash).to_owned()).collect();
        BuildAsk { dockerfile_content: text.to_owned(), context_hashes: Some(hashes) }
    }

    #[test]
    fn the_same_dockerfile_over_the_same_files_is_the_same_template() {
        let one = name_of(&ask("FROM debian\n", &["a"]));
        assert_eq!(one, name_of(&ask("FROM debian\n", &["a"])));
        assert_ne!(one, name_of(&ask("FROM debian\n", &["b"])));
        assert_ne!(one, name_of(&ask("FROM debian\n", &[])));
        assert!(one.parse::<TemplateRef>().is_ok(), "{one}");
    }

    #[test]
    fn notes_are_labels_and_come_back() {
        let labels = labels(&[("name", "a\"b\nc".to_owned()), ("long", "x".repeat(NOTE_MAX + 1))]);
        assert_eq!(note(&labels, "name").as_deref(), Some("a\"b\nc"));
        assert_eq!(note(&labels, "long"), None);
        assert_eq!(note(&labels, "other"), None);
    }
}
