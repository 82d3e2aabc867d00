//! Browsers may ask from any page: the SDK runs in them too. Nothing here is authenticated by a cookie, so that an origin says
//! nothing about who asks.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// LIMIT: as long as browsers remember such an answer at most.
const REMEMBERED_S: u32 = 7_200;

/// Answers what browsers ask beforehand, and marks every answer as readable by any page.
pub(crate) async fn allow(request: Request, next: Next) -> Response {
    if let Some(answer) = ahead(request.method(), request.headers()) {
        return answer;
    }
    let mut response = next.run(request).await;
    mark(response.headers_mut());
    response
}

/// The answer to what a browser asks beforehand; `None`: this is not such a question.
pub(crate) fn ahead(method: &Method, asked: &HeaderMap) -> Option<Response> {
    if *method != Method::OPTIONS || !asked.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let wanted = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    mark(headers);
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
    );
    // A star does not stand for Authorization, so what was asked for is named.
    let wanted = wanted.unwrap_or_else(|| HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(REMEMBERED_S));
    headers.insert(header::VARY, HeaderValue::from_static("access-control-request-headers"));
    Some(response)
}

/// The fields that let any page read an answer.
pub(crate) fn mark(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
}
