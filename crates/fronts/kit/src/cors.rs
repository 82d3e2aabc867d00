//! CORS for fronts that pages of every origin may call, because vendors' SDKs run in browsers too. No cookie authenticates a
//! front, so the origin of a page says nothing about its user.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// LIMIT: the longest that browsers keep the answer to a preflight request.
const MAX_AGE_S: u32 = 7_200;

/// Answers preflight requests, and marks every response as readable by any page.
pub(crate) async fn allow_any_origin(request: Request, next: Next) -> Response {
    if let Some(response) = preflight(request.method(), request.headers()) {
        return response;
    }
    let mut response = next.run(request).await;
    allow_reading(response.headers_mut());
    response
}

/// The response to a preflight request; `None` for any other.
#[must_use]
pub fn preflight(method: &Method, request: &HeaderMap) -> Option<Response> {
    if *method != Method::OPTIONS || !request.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let wanted = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    allow_reading(headers);
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
    );
    // A star does not include Authorization, so the headers are repeated by name.
    let wanted = wanted.unwrap_or_else(|| HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(MAX_AGE_S));
    headers.insert(header::VARY, HeaderValue::from_static("access-control-request-headers"));
    Some(response)
}

/// Lets any page read a response.
pub fn allow_reading(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
}
