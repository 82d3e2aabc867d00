//! Links to ports of a sandbox: with a token beside the host name, and signed ones with the token in it.

use atoll_front_kit::{ApiError, Caller, JsonResponse, Path, Query, ok};
use atoll_model::Lease;
use atoll_service::{NewPreview, TokenOf};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use crate::DaytonaApp;
use crate::origin::Origin;
use crate::sandboxes::lease;

/// COMPAT(daytona): the default and the maximum lifetime of a signed link.
const EXPIRES_S: u64 = 60;
const EXPIRES_S_MAX: u64 = 24 * 3_600;
/// COMPAT(daytona): SDKs in browsers request these ports to get a token for the toolbox.
const OF_TOOLBOX: [u16; 2] = [1, 2_280];

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new()
        .route("/sandbox/{id}/ports/{port}/preview-url", get(link))
        .route("/sandbox/{id}/ports/{port}/signed-preview-url", get(signed))
        .route("/sandbox/{id}/ports/{port}/signed-preview-url/{token}/expire", post(expire))
        .route("/sandbox/{id}/signing-key", get(signing_key))
        .route("/sandbox/{id}/signing-key/rotate", post(rotate))
        .route("/preview/{id}/public", get(is_public))
        .route("/preview/{id}/access", get(access))
        .route("/preview/{id}/validate/{token}", get(validate))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Link {
    sandbox_id: String,
    url: String,
    token: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SignedLink {
    sandbox_id: String,
    port: u16,
    token: String,
    url: String,
}

async fn link(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path((id, port)): Path<(String, i64)>,
) -> Result<JsonResponse<Link>, ApiError> {
    let port = checked(port)?;
    let lease = lease(&app, &who, &id).await?;
    let of = if OF_TOOLBOX.contains(&port) { TokenOf::Agent } else { TokenOf::Ports };
    Ok(ok(Link {
        url: (app.options.hosts)().url(origin.is_tls(), &format!("{port}-{}", lease.id)),
        token: app.service.access().token(&lease, of),
        sandbox_id: lease.id.into(),
    }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SignedQuery {
    expires_in_seconds: Option<i64>,
}

async fn signed(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    Path((id, port)): Path<(String, i64)>,
    Query(query): Query<SignedQuery>,
) -> Result<JsonResponse<SignedLink>, ApiError> {
    let port = checked(port)?;
    let expires_s = match query.expires_in_seconds {
        None => EXPIRES_S,
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds) if (1..=EXPIRES_S_MAX).contains(&seconds) => seconds,
            _ => {
                let message = format!("expiresInSeconds: must be between 1 and {EXPIRES_S_MAX}");
                return Err(ApiError::invalid(message));
            }
        },
    };
    let lease = lease(&app, &who, &id).await?;
    let ask = NewPreview { port, expires_s: Some(expires_s), public: false };
    let made = app.service.access().create_preview(&who, lease.id.as_str(), ask).await?;
    let token = made.token.unwrap_or_default();
    // The token without its prefix, as it is part of the host name.
    let secret = token.rsplit('_').next().unwrap_or(&token).to_owned();
    let url = (app.options.hosts)().url(origin.is_tls(), &format!("{}-{port}-{secret}", lease.id));
    Ok(ok(SignedLink { sandbox_id: lease.id.into(), port, token: secret, url }))
}

async fn expire(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path((id, port, token)): Path<(String, i64, String)>,
) -> Result<StatusCode, ApiError> {
    let port = checked(port)?;
    let lease = lease(&app, &who, &id).await?;
    app.service.access().expire_preview(&who, lease.id.as_str(), port, &token).await?;
    Ok(StatusCode::OK)
}

/// The SDKs sign links to files with it; it gives no other access.
async fn signing_key(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<String>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    Ok(ok(app.service.access().token(&lease, TokenOf::Files)))
}

/// Invalidates all links that were signed before. Preview tokens become invalid too, because they share one counter.
async fn rotate(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<String>, ApiError> {
    let lease: Lease = lease(&app, &who, &id).await?;
    let lease = app.service.access().rotate_tokens(&who, lease.id.as_str()).await?;
    Ok(ok(app.service.access().token(&lease, TokenOf::Files)))
}

async fn is_public(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<bool>, ApiError> {
    Ok(ok(lease(&app, &who, &id).await?.public))
}

/// A caller that can see the sandbox may reach its ports.
async fn access(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path(id): Path<String>,
) -> Result<JsonResponse<bool>, ApiError> {
    lease(&app, &who, &id).await?;
    Ok(ok(true))
}

async fn validate(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    Path((id, token)): Path<(String, String)>,
) -> Result<JsonResponse<bool>, ApiError> {
    let lease = lease(&app, &who, &id).await?;
    Ok(ok(app.service.access().admit_token(&lease.id, TokenOf::Ports, &token).is_ok()))
}

fn checked(port: i64) -> Result<u16, ApiError> {
    match u16::try_from(port) {
        Ok(port @ 1..) => Ok(port),
        _ => Err(ApiError::invalid("port: must be between 1 and 65535")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Hosts, TlsHosts};

    #[test]
    fn a_link_fits_into_a_label_of_dns() {
        let hosts = Hosts { domain: "localhost".into(), port: 7_070, tls: None };
        let id = "abcdefghij0123456789";
        for came_by_tls in [false, true] {
            let url = hosts.url(came_by_tls, &format!("3000-{id}"));
            assert_eq!(url, "http://3000-abcdefghij0123456789.localhost:7070");
        }
        assert!(format!("{id}-65535-{}", "a".repeat(32)).len() <= 63);
    }

    #[test]
    fn a_client_is_sent_to_tls_only_where_it_can_trust_it() {
        let url = |is_operators, came_by_tls| {
            let tls = TlsHosts { domain: "atoll.localhost".into(), port: 7_443, is_operators };
            Hosts { domain: "localhost".into(), port: 7_070, tls: Some(tls) }.url(came_by_tls, "80-x")
        };
        assert_eq!(url(false, false), "http://80-x.localhost:7070");
        for (is_operators, came_by_tls) in [(false, true), (true, false), (true, true)] {
            assert_eq!(url(is_operators, came_by_tls), "https://80-x.atoll.localhost:7443");
        }
    }

    #[test]
    fn a_port_is_a_port() {
        for port in [0, -1, 65_536] {
            assert!(checked(port).is_err(), "{port}");
        }
        assert_eq!(checked(3_000).ok(), Some(3_000));
    }
}
