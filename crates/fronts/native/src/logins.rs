//! Logins of command lines: start and poll without a key; see, approve and deny with one.

use atoll_client::keys::CreatedKey;
use atoll_client::logins::{
    ApproveBody, ApprovedLogin, Login, LoginBody, LoginPoll, LoginState, StartedLogin,
};
use atoll_client::words::Scope;
use atoll_front_kit::{ApiError, Caller, FrontState, JsonResponse, Path, StrictJson, ok, rfc3339_millis};
use atoll_service::PendingLogin;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;
use crate::convert::{FromCore, IntoApi};
use crate::keys::unstored;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(start_login))
        .routes(routes!(poll_login))
        .routes(routes!(show_login, deny_login))
        .routes(routes!(approve_login))
}

impl FromCore<PendingLogin> for Login {
    fn from_core(login: PendingLogin) -> Self {
        Self {
            code: login.code,
            name: login.name,
            address: login.client.map(|address| address.to_canonical().to_string()),
            created_at: rfc3339_millis(login.created_at_ms),
            expires_at: rfc3339_millis(login.expires_at_ms),
        }
    }
}

/// Starts the login of a command line. Needs no key: the answer has a code for a person who has one, and a secret that returns the
/// new key once the person has approved the code. Both work once, within five minutes; open logins are bounded in number.
#[utoipa::path(post, path = "/v1/logins", tag = "keys", security(()), request_body = LoginBody,
    responses((status = 201, body = StartedLogin)))]
pub(crate) async fn start_login(
    State(app): State<App>,
    StrictJson(body): StrictJson<LoginBody>,
) -> Result<Response, ApiError> {
    let started = app.service.access().start_login(&body.name)?;
    let body = StartedLogin {
        code: started.code,
        secret: started.secret,
        expires_at: rfc3339_millis(started.expires_at_ms),
        poll_every_s: started.poll_every_s,
    };
    Ok(unstored(StatusCode::CREATED, body))
}

/// Returns the decision about a login, whose secret is sent in place of a key, and the key once.
#[utoipa::path(post, path = "/v1/logins/poll", tag = "keys", responses((status = 200, body = LoginPoll)))]
pub(crate) async fn poll_login(State(app): State<App>, headers: HeaderMap) -> Result<Response, ApiError> {
    let secret = App::key(&headers).ok_or_else(App::missing_key)?;
    let without_key = |state| LoginPoll { state, key: None, tenant_name: None };
    let body = match app.service.access().poll_login(secret).await? {
        atoll_service::LoginPoll::Pending => without_key(LoginState::Pending),
        atoll_service::LoginPoll::Denied => without_key(LoginState::Denied),
        atoll_service::LoginPoll::Approved { key, tenant_name } => LoginPoll {
            state: LoginState::Approved,
            key: Some(CreatedKey::from_core(*key)),
            tenant_name: Some(tenant_name),
        },
    };
    Ok(unstored(StatusCode::OK, body))
}

/// Returns the login that waits with this code. A key may send ten wrong codes within ten minutes.
#[utoipa::path(get, path = "/v1/logins/{code}", tag = "keys", params(("code" = String, Path)),
    responses((status = 200, body = Login)))]
pub(crate) async fn show_login(
    State(app): State<App>,
    Caller(who): Caller,
    Path(code): Path<String>,
) -> Result<JsonResponse<Login>, ApiError> {
    Ok(ok(app.service.access().pending_login(&who, &code)?.into_api()))
}

/// Approves a login: its client gets a key of this tenant, as if the caller had created it.
#[utoipa::path(post, path = "/v1/logins/{code}/approve", tag = "keys", params(("code" = String, Path)),
    request_body = ApproveBody, responses((status = 200, body = ApprovedLogin)))]
pub(crate) async fn approve_login(
    State(app): State<App>,
    Caller(who): Caller,
    Path(code): Path<String>,
    StrictJson(body): StrictJson<ApproveBody>,
) -> Result<JsonResponse<ApprovedLogin>, ApiError> {
    let scope = body.scope.unwrap_or(Scope::User).into();
    let approved = app.service.access().approve_login(&who, &code, body.tenant, scope).await?;
    let login = Login::from_core(approved.login);
    Ok(ok(ApprovedLogin {
        name: login.name,
        address: login.address,
        tenant: approved.tenant.id.into(),
        tenant_name: approved.tenant.name,
        scope: approved.scope.into(),
    }))
}

/// Refuses a login.
#[utoipa::path(delete, path = "/v1/logins/{code}", tag = "keys", params(("code" = String, Path)),
    responses((status = 204, description = "Refused")))]
pub(crate) async fn deny_login(
    State(app): State<App>,
    Caller(who): Caller,
    Path(code): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.service.access().deny_login(&who, &code)?;
    Ok(StatusCode::NO_CONTENT)
}
