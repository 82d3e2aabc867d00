//! Makes a template: the client announces it, sends its files, and starts the build.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, upload_reader};
use atoll_model::{Code, LimitsAsk, TemplateRef};
use atoll_service::is_vendor_image;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use serde::Serialize;

use super::request::{AnnounceBody, BuildBody};
use super::{builds, names, steps};
use crate::domain::Domain;
use crate::error::not_here;
use crate::{E2bApp, PREFIX};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Announced {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "buildID")]
    build_id: String,
    public: bool,
    names: Vec<String>,
    tags: Vec<String>,
    aliases: Vec<String>,
}

/// The first SDKs would push an image to a registry of E2B after this call.
pub(super) async fn announce_v1(Caller(_): Caller) -> ApiError {
    not_here("a build of version 1", "build with the SDK's Template, or with atoll template build")
}

pub(super) async fn announce(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Json(body): Json<AnnounceBody>,
) -> Result<JsonResponse<Announced>, ApiError> {
    let name = body.name.or(body.alias).ok_or_else(|| ApiError::field("name", "is required"))?;
    let (template, tags) = called(&name, body.tags.unwrap_or_default())?;
    let limits = LimitsAsk {
        cpu: body.cpu_count.map(f64::from),
        memory_mib: body.memory_mb.map(i64::from),
        ..LimitsAsk::default()
    };
    let (first, rest) = tags.split_first().ok_or_else(|| ApiError::field("tags", "are missing"))?;
    let reference = TemplateRef { tag: Some(names::stored(first).to_owned()), ..template.clone() };
    let rest = rest.iter().map(|tag| names::stored(tag).to_owned()).collect();
    let build = app.service.builds().announce(&who, reference, rest, limits).await?;
    Ok(JsonResponse(
        StatusCode::ACCEPTED,
        Announced {
            template_id: template.name.clone(),
            build_id: names::uuid(&build.id),
            public: false,
            names: vec![template.name.clone()],
            tags,
            aliases: vec![template.name],
        },
    ))
}

/// The name and all tags of a template, in E2B's form: the tag in the name and further ones, or the default.
fn called(name: &str, tags: Vec<String>) -> Result<(TemplateRef, Vec<String>), ApiError> {
    let reference = names::parse("name", name)?;
    let template = TemplateRef { tag: None, ..reference.clone() };
    let mut all: Vec<String> = Vec::new();
    for tag in reference.tag.into_iter().chain(tags) {
        let tag = own_tag("tags", &template, &tag)?;
        if !all.contains(&tag) {
            all.push(tag);
        }
    }
    if all.is_empty() {
        all.push(names::DEFAULT.to_owned());
    }
    Ok((template, all))
}

/// A tag, with or without the name of its template before it.
pub(super) fn own_tag(field: &str, template: &TemplateRef, tag: &str) -> Result<String, ApiError> {
    let whole = if tag.contains(':') { tag.to_owned() } else { format!("{}:{tag}", template.name) };
    let reference = names::parse(field, &whole)?;
    match reference.tag {
        Some(tag) if reference.name == template.name && reference.digest.is_none() => Ok(tag),
        _ => Err(ApiError::field(field, "a tag must belong to this template")),
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Upload {
    present: bool,
    url: String,
}

/// Whether files are stored already, and a URL to which a client without a key may send them.
pub(super) async fn files(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Domain(domain): Domain,
    headers: HeaderMap,
    Path((_, hash)): Path<(String, String)>,
) -> Result<JsonResponse<Upload>, ApiError> {
    let present = app.service.builds().has_upload(&who, &hash).await?;
    let ticket = app.service.builds().upload_ticket(&who, &hash)?;
    let is_tls = (app.options.hosts)().tls.as_ref() == Some(&domain);
    let scheme = if is_tls { "https" } else { "http" };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or(&domain);
    Ok(created(Upload { present, url: format!("{scheme}://{host}{PREFIX}/uploads/{ticket}") }))
}

/// Receives an archive: a client with the link may send it, without a key.
pub(super) async fn upload(
    State(app): State<E2bApp>,
    Path(ticket): Path<String>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let (bytes, fault) = upload_reader(body);
    let taken = app.service.builds().take_upload(&ticket, Box::new(bytes)).await;
    taken.map_err(|error| fault.or(error))?;
    Ok(StatusCode::OK)
}

pub(super) async fn begin(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path((template, build)): Path<(String, String)>,
    Json(mut body): Json<BuildBody>,
) -> Result<StatusCode, ApiError> {
    let build = builds::find(&app, &who, &template, &build).await?;
    // Images of E2B's own are templates here, which need no preparing.
    if body.from_template.is_none()
        && body.from_image.as_deref().is_some_and(|image| is_vendor_image(image.trim()))
    {
        body.from_template = body.from_image.take();
    }
    let base = match body.from_template.as_deref().map(str::trim).filter(|name| !name.is_empty()) {
        Some(name) => Some(names::word(&app, &who, name).await?),
        None => None,
    };
    if let Some(base) = &base
        && let Some(refusal) = names::vendors_own(base)
        && let Err(error) = app.service.templates().get(&who, base).await
        && error.code == Code::TemplateNotFound
    {
        // Nothing is left that waits for its steps.
        app.service.builds().cancel(&who, build.id.as_str()).await?;
        return Err(refusal);
    }
    let steps = steps::steps(body, base)?;
    app.service.builds().begin(&who, build.id.as_str(), steps).await?;
    Ok(StatusCode::ACCEPTED)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn without_a_tag_the_default_is_meant_and_with_some_only_those() {
        let tags = |name: &str, tags: &[&str]| {
            called(name, tags.iter().map(|tag| (*tag).to_owned()).collect()).map(|(_, tags)| tags.join(" "))
        };
        for (name, more, wanted) in [
            ("app", &[][..], "default"),
            ("app:v1", &[], "v1"),
            ("app", &["v1", "stable", "v1"], "v1 stable"),
            ("team/App:v1", &["latest", "team/app:x"], "v1 latest x"),
        ] {
            assert_eq!(tags(name, more).unwrap(), wanted, "{name}");
        }
        for (name, more) in [
            ("", &[][..]),
            ("a b", &[]),
            ("app", &[":x"]),
            ("app", &["app:"]),
            ("app", &["other:x"]),
            ("app", &["a b"]),
        ] {
            assert_eq!(tags(name, more).unwrap_err().status().as_u16(), 400, "{name} {more:?}");
        }
    }
}
