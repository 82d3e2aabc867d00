//! The error envelope, and the page that lists the codes.

use atoll_client::errors::Envelope;
use atoll_front_kit::{ApiError, RequestInfo, error_body};
use atoll_model::Code;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

pub(crate) fn render(error: &ApiError, request: &RequestInfo) -> Response {
    let status = error.status();
    let envelope = Envelope {
        code: error.code.as_str().to_owned(),
        message: error.message.clone(),
        hint: hint(error, request),
        field: error.field_name().map(str::to_owned),
        request_id: request.id.clone(),
    };
    let mut response = error_body(status, &envelope);
    error.write_retry_after(status, response.headers_mut());
    if error.code == Code::Unauthenticated {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn hint(error: &ApiError, request: &RequestInfo) -> Option<String> {
    // Every call of that SDK has this header, and no other client sends it.
    if request.headers.contains_key("leap0-source") {
        return Some("this is the native API; for the Leap0 SDK the base URL ends in /leap0".to_owned());
    }
    let hint = match error.code {
        Code::RouteNotFound => "/docs lists every route",
        Code::MethodNotAllowed => "the Allow header names the methods",
        _ => return error.hint.clone(),
    };
    Some(hint.to_owned())
}

/// The documented status of a code.
#[must_use]
pub fn status(code: Code) -> StatusCode {
    ApiError::new(code, "").status()
}

/// The page `docs/errors.md`, generated from the list of codes.
#[must_use]
pub fn errors_page() -> String {
    let mut page = String::from(
        "# Errors\n\n\
         Every answer of the native API that is not a success has one shape:\n\n\
         ```json\n\
         {\"code\": \"sandbox_not_found\", \"message\": \"…\", \"hint\": \"…\", \"field\": \"…\", \"request_id\": \"…\"}\n\
         ```\n\n\
         `code` is one of the list below, `message` says what happened, `hint` (where there is one) what to try,\n\
         `field` (where the error is about one) the field of the request, and\n\
         `request_id` is also in the `X-Request-Id` header and in the server's logs. 429 and 503 carry `Retry-After`.\n\
         Three cases keep their code but have a more exact status: a body of the wrong type is 415, a range outside a\n\
         file is 416, and a body that does not arrive in time is 408.\n\n\
         Made from the code by a test; do not edit.\n\n\
         | code | status | meaning |\n|---|---|---|\n",
    );
    for code in Code::ALL {
        page.push_str(&format!(
            "| `{}` | {} | {} |\n",
            code.as_str(),
            status(*code).as_u16(),
            code.meaning().trim()
        ));
    }
    page
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_model::ErrorKind;
    use axum::http::{HeaderMap, Method};

    fn request(headers: HeaderMap) -> RequestInfo {
        RequestInfo { id: "r1".to_owned(), method: Method::GET, path: "/nope".to_owned(), headers }
    }

    async fn envelope(error: &ApiError, headers: HeaderMap) -> Envelope {
        let response = render(error, &request(headers));
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn an_sdk_at_the_wrong_base_url_is_told_the_right_one() {
        let unknown = ApiError::new(Code::RouteNotFound, "there is no GET /nope");
        let sdk = HeaderMap::from_iter([("leap0-source".parse().unwrap(), HeaderValue::from_static("sdk"))]);
        assert!(envelope(&unknown, sdk).await.hint.unwrap().contains("/leap0"));
        let plain = envelope(&unknown, HeaderMap::new()).await;
        assert_eq!((plain.code.as_str(), plain.request_id.as_str()), ("route_not_found", "r1"));
        assert!(plain.hint.unwrap().contains("/docs"));
    }

    #[test]
    fn every_code_has_a_status_that_fits_its_kind() {
        for code in Code::ALL {
            let status = status(*code);
            assert_eq!(status.as_u16(), code.documented_status(), "{code:?}");
            let client =
                !matches!(code.kind(), ErrorKind::Unavailable | ErrorKind::Unsupported | ErrorKind::Internal)
                    && !matches!(code, Code::DiskFull | Code::LoopDetected);
            assert_eq!(status.is_client_error(), client, "{code:?}");
        }
    }

    #[test]
    fn refusals_for_lack_of_room_say_when_to_come_back() {
        for code in Code::ALL {
            let response = render(&ApiError::new(*code, "x"), &request(HeaderMap::new()));
            let expected = matches!(response.status().as_u16(), 429 | 503);
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), expected, "{code:?}");
        }
    }
}
