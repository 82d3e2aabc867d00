//! A front for the imaginary vendor Toy, whose API knows boxes.
//!
//! `docs/adding-a-front.md` explains it part by part.

use atoll_front_kit::{
    ApiError, Caller, Front, FrontState, Json, JsonResponse, Mount, Path, RequestInfo, created, error_body,
    ok, rfc3339,
};
use atoll_model::{CreateSandbox, Lease, Phase};
use atoll_service::{Filter, Service};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{delete, get};
use serde::{Deserialize, Serialize};

/// The front. Its only state is the service.
#[derive(Clone)]
pub struct Toy(pub Service);

impl Front for Toy {
    fn mount(&self) -> Mount {
        Mount::prefix("toy", "/toy").key_fields(&["toy-key"])
    }

    fn routes(&self) -> Router {
        Router::new()
            .route("/boxes", get(list_boxes).post(create_box))
            .route("/boxes/{id}", delete(delete_box))
            .with_state(self.clone())
    }

    fn render_error(&self, error: &ApiError, request: &RequestInfo) -> Response {
        let status = error.status();
        let body = ErrorResponse { error: error.sentence(field_name), request: &request.id };
        let mut response = error_body(status, &body);
        error.write_retry_after(status, response.headers_mut());
        response
    }
}

#[derive(Serialize)]
struct ErrorResponse<'a> {
    error: String,
    request: &'a str,
}

/// Toy's name of a core field.
fn field_name(core: &str) -> Option<String> {
    (core == "timeout_s").then(|| "minutes".to_owned())
}

impl FrontState for Toy {
    const WRONG_KEY_HINT: Option<&'static str> = Some("send a key of this server in the header Toy-Key");

    fn service(&self) -> &Service {
        &self.0
    }

    fn key(headers: &HeaderMap) -> Option<&str> {
        headers.get("toy-key")?.to_str().ok()
    }

    fn missing_key() -> ApiError {
        ApiError::unauthenticated("this request needs a key").hint("send the header Toy-Key")
    }
}

#[derive(Deserialize)]
struct CreateBoxRequest {
    name: Option<String>,
    minutes: Option<u64>,
}

#[derive(Serialize)]
struct BoxResponse {
    id: String,
    name: Option<String>,
    running: bool,
    created: String,
}

impl From<Lease> for BoxResponse {
    fn from(lease: Lease) -> Self {
        Self {
            id: lease.id.to_string(),
            running: lease.phase == Phase::Running,
            created: rfc3339(lease.created_at.wall_ms),
            name: lease.name,
        }
    }
}

async fn create_box(
    State(toy): State<Toy>,
    Caller(caller): Caller,
    Json(request): Json<CreateBoxRequest>,
) -> Result<JsonResponse<BoxResponse>, ApiError> {
    let timeout_s = request.minutes.map(|minutes| minutes.saturating_mul(60));
    let spec = CreateSandbox { name: request.name, timeout_s, ..CreateSandbox::default() };
    let (lease, _) = toy.0.sandboxes().create(&caller, spec, true).await?;
    Ok(created(lease.into()))
}

async fn list_boxes(
    State(toy): State<Toy>,
    Caller(caller): Caller,
) -> Result<JsonResponse<Vec<BoxResponse>>, ApiError> {
    let page = toy.0.sandboxes().list(&caller, Filter::default()).await?;
    Ok(ok(page.items.into_iter().map(BoxResponse::from).collect()))
}

async fn delete_box(
    State(toy): State<Toy>,
    Caller(caller): Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    toy.0.sandboxes().delete(&caller, &id, true).await?;
    Ok(StatusCode::NO_CONTENT)
}
