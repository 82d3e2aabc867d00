//! Tags of templates. Each points to the result of a build.

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, ok, rfc3339};
use atoll_model::TemplateRef;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use super::build::own_tag;
use super::request::{AssignBody, RemoveBody};
use super::{builds, list, names};
use crate::E2bApp;

#[derive(Debug, Serialize)]
pub(super) struct Assigned {
    #[serde(rename = "buildID")]
    build_id: String,
    tags: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tag {
    tag: String,
    #[serde(rename = "buildID")]
    build_id: String,
    created_at: String,
}

pub(super) async fn assign(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Json(body): Json<AssignBody>,
) -> Result<JsonResponse<Assigned>, ApiError> {
    let target = names::parse("target", &body.target)?;
    let template = TemplateRef { tag: None, ..target };
    let tags: Result<Vec<String>, ApiError> =
        body.tags.iter().map(|tag| own_tag("tags", &template, tag)).collect();
    let tags = tags?;
    let word = names::word(&app, &who, &body.target).await?;
    let stored: Vec<String> = tags.iter().map(|tag| names::stored(tag).to_owned()).collect();
    let record = app.service.templates().tag(&who, &word, &stored).await?;
    let makers = builds::Makers::of(&builds::newest(&app, &who, Some(&record.name)).await?);
    Ok(created(Assigned { build_id: makers.uuid(&record.version), tags }))
}

pub(super) async fn remove(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Json(body): Json<RemoveBody>,
) -> Result<StatusCode, ApiError> {
    let template = TemplateRef { tag: None, ..names::parse("name", &body.name)? };
    let tags: Result<Vec<String>, ApiError> =
        body.tags.iter().map(|tag| own_tag("tags", &template, tag)).collect();
    let stored: Vec<String> = tags?.iter().map(|tag| names::stored(tag).to_owned()).collect();
    app.service.templates().untag(&who, &template.name, &stored).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list(
    State(app): State<E2bApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<Vec<Tag>>, ApiError> {
    let record = list::find(&app, &who, &id).await?;
    let makers = builds::Makers::of(&builds::newest(&app, &who, Some(&record.name)).await?);
    let mut tags = Vec::with_capacity(record.tags.len());
    for tag in &record.tags {
        let of = app.service.templates().get(&who, &format!("{}:{tag}", record.name)).await?;
        tags.push(Tag {
            tag: names::shown(tag).to_owned(),
            build_id: makers.uuid(&of.version),
            created_at: rfc3339(of.created_at_ms),
        });
    }
    Ok(ok(tags))
}
