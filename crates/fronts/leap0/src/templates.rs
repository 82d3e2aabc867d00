//! Templates: translates the vendor's names; creates templates from images, renames and deletes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_front_kit::{ApiError, Caller, Json, JsonResponse, Path, created, rfc3339};
use atoll_model::{BadTemplateRef, Code, DEFAULT_TAG, Lease, Principal, TemplateRef};
use atoll_service::{INTERPRETERS, PullImage, RegistryAuth, TemplateRecord};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{patch, post};
use serde::{Deserialize, Serialize};

use crate::Leap0App;
use crate::error::not_here;

/// LIMIT: that of the vendor.
const NAME_MAX: usize = 64;
/// The prefix of the vendor's own template names.
const SYSTEM: &str = "system/";
/// The working directory of commands in the vendor's templates.
const WORKDIR: &str = "/workspace";

pub(crate) fn routes() -> Router<Leap0App> {
    Router::new()
        .route("/v1/template", post(create))
        // Names contain slashes.
        .route("/v1/template/{*id}", patch(rename).delete(remove))
}

/// The working directory of commands: `/workspace`, unless an image sets another one.
pub(crate) fn workdir(template: &TemplateRecord) -> Option<String> {
    let says_none = template.tenant.is_none() || matches!(template.workdir.as_str(), "" | "/");
    says_none.then(|| WORKDIR.to_owned())
}

/// Finds the template of a new sandbox.
pub(crate) async fn resolve(
    app: &Leap0App,
    who: &Principal,
    asked: &str,
) -> Result<TemplateRecord, ApiError> {
    if asked.starts_with("system/desktop") {
        return Err(crate::desktop::refusal());
    }
    Ok(app.service.templates().get_for_create(who, asked).await?)
}

/// Whether a sandbox was created from an interpreter template.
pub(crate) fn interprets(lease: &Lease) -> bool {
    INTERPRETERS.contains(&lease.template.as_str())
}

#[derive(Deserialize)]
struct CreateTemplateRequest {
    name: String,
    uri: String,
    credentials: Option<Credentials>,
}

/// Credentials for the registry only; there is no `Debug`.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Credentials {
    Basic { username: String, password: String },
    Aws {},
    Gcp { gcp_service_account_json: String },
    Azure { azure_client_id: String, azure_client_secret: String },
}

impl Credentials {
    fn into_auth(self) -> Result<RegistryAuth, ApiError> {
        let basic = |username: String, password: String| Ok(RegistryAuth::Basic { username, password });
        match self {
            Self::Basic { username, password } => basic(username, password),
            Self::Gcp { gcp_service_account_json } => basic("_json_key".to_owned(), gcp_service_account_json),
            Self::Azure { azure_client_id, azure_client_secret } => {
                basic(azure_client_id, azure_client_secret)
            }
            // A registry of AWS does not accept a key, but a password that another service of AWS makes from it.
            Self::Aws {} => Err(not_here(
                "a login with AWS keys",
                "use credentials of type basic: user AWS, and the output of `aws ecr get-login-password` as password",
            )),
        }
    }
}

#[derive(Debug, Serialize)]
struct TemplateResponse {
    /// The id for `template_name`, rename and delete.
    id: String,
    name: String,
    digest: String,
    image_config: ImageConfig,
    is_system: bool,
    created_at: String,
}

#[derive(Debug, Serialize)]
struct ImageConfig {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: String,
    user: String,
    env: BTreeMap<String, String>,
}

impl From<TemplateRecord> for TemplateResponse {
    fn from(record: TemplateRecord) -> Self {
        let name = match record.tag.as_deref() {
            Some(tag) if tag != DEFAULT_TAG => format!("{}:{tag}", record.name),
            _ => record.name,
        };
        Self {
            id: name.clone(),
            name,
            digest: record.manifest.unwrap_or(record.version),
            image_config: ImageConfig {
                entrypoint: record.entrypoint,
                cmd: record.cmd,
                working_dir: record.workdir,
                user: record.user,
                env: record.env,
            },
            is_system: record.tenant.is_none(),
            created_at: rfc3339(record.created_at_ms),
        }
    }
}

/// A valid name for a template of the caller.
fn new_name(name: &str) -> Result<TemplateRef, ApiError> {
    let name = name.trim();
    if name.len() > NAME_MAX || name.starts_with(SYSTEM) {
        let rule = format!("has at most {NAME_MAX} characters and does not begin with {SYSTEM}");
        return Err(ApiError::field("name", rule));
    }
    let parsed: Result<TemplateRef, _> = name.parse();
    match parsed {
        Ok(parsed) if parsed.digest.is_none() => Ok(parsed),
        Ok(_) => Err(ApiError::field("name", "a digest cannot be chosen")),
        Err(bad) => Err(ApiError::field("name", bad.why)),
    }
}

/// Pulls an image and gives it a name. It also keeps its own name, so that the next pull reuses its layers.
async fn create(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Json(body): Json<CreateTemplateRequest>,
) -> Result<JsonResponse<TemplateResponse>, ApiError> {
    let name = new_name(&body.name)?;
    let image: TemplateRef = body.uri.trim().parse().map_err(|bad: BadTemplateRef| {
        ApiError::field("uri", format!("is not an image of a registry: {}", bad.why))
    })?;
    let auth = body.credentials.map(Credentials::into_auth).transpose()?;
    match app.service.templates().get(&who, &name.to_string()).await {
        Ok(known) if known.tenant.as_ref() == Some(&who.tenant) => {
            let message = format!("name: there is a template {name}; delete or rename it first");
            return Err(ApiError::new(Code::NameTaken, message));
        }
        Err(error) if error.code != Code::TemplateNotFound => return Err(error.into()),
        Ok(_) | Err(_) => {}
    }
    let ask = PullImage { image: image.clone(), auth, platform: None };
    let pulled = app.service.templates().pull(&who, ask, Arc::new(|_| {})).await?;
    let tag = format!("{}:{}", name.name, name.tag.as_deref().unwrap_or(DEFAULT_TAG));
    let pulled = match &pulled.tag {
        Some(tag) => format!("{}:{tag}", pulled.name),
        None => pulled.name,
    };
    let made = app.service.templates().tag(&who, &pulled, &[tag]).await?;
    Ok(created(made.into()))
}

#[derive(Debug, Deserialize)]
struct RenameBody {
    name: String,
}

/// Renames one tag; a name without a tag means the default one, as in every id of this front. Its sandboxes and snapshots
/// continue; they show the old name.
async fn rename(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
    Json(body): Json<RenameBody>,
) -> Result<StatusCode, ApiError> {
    let name = new_name(&body.name)?;
    app.service.templates().rename_tag(&who, &id, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove(
    State(app): State<Leap0App>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.templates().remove(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_start_in_workspace_unless_an_image_says_otherwise() {
        let of = |workdir: &str, tenant: Option<&str>| {
            let tenant = tenant.map(|id| id.parse().expect("an id"));
            workdir_of(TemplateRecord { workdir: workdir.to_owned(), tenant, ..TemplateRecord::default() })
        };
        let own = Some("abcdefghij0123456789");
        assert_eq!(of("/home/user", None).as_deref(), Some(WORKDIR));
        assert_eq!(of("/", own).as_deref(), Some(WORKDIR));
        assert_eq!(of("/srv/app", own), None);
    }

    fn workdir_of(record: TemplateRecord) -> Option<String> {
        workdir(&record)
    }

    #[test]
    fn a_new_name_is_one_of_a_template_and_none_of_the_vendors() {
        assert_eq!(
            new_name(" team/app:v1 ").ok().map(|name| name.to_string()).as_deref(),
            Some("team/app:v1")
        );
        let long = "a".repeat(65);
        for bad in ["", "system/debian", "a b", "App", &long, "-", "a@sha256:0"] {
            let field = new_name(bad).err().and_then(|error| error.field_name().map(str::to_owned));
            assert_eq!(field.as_deref(), Some("name"), "{bad:?}");
        }
    }
}
