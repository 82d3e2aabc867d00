//! The body of a build: the specification first, then the files, which are passed on as they arrive.

use std::time::Duration;

use atoll_front_kit::multipart::{self, BadForm, Part};
use atoll_front_kit::{ApiError, RequestBudget, UploadFault, parse_json, read_body, upload_stream};
use atoll_service::{BuildContext, ServiceError};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use tokio_util::io::StreamReader;

use atoll_client::builds::BuildBody;

/// LIMIT: bytes of the specification; a Dockerfile of 1 MiB and secrets of 2 MiB fit, also in base64.
const SPEC_MAX: usize = 8 << 20;
// LIMIT: as for every body that is read completely.
const SPEC_WITHIN: Duration = Duration::from_secs(30);

/// The parsed form.
pub(super) struct Form {
    pub(super) spec: BuildBody,
    pub(super) context: Option<BuildContext>,
    /// The reason if the upload failed.
    pub(super) fault: UploadFault,
}

/// Reads the specification; the files remain to be read.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    budget: Option<&RequestBudget>,
) -> Result<Form, ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json")) {
        let spec = parse_json(&read_body(body, SPEC_MAX, budget).await?)?;
        return Ok(Form { spec, context: None, fault: UploadFault::default() });
    }
    let (content, fault) = upload_stream(body);
    let mut form = multipart::Form::from_stream(Some(kind), content).ok_or_else(|| {
        ApiError::invalid("the body must be multipart/form-data with spec and context, or application/json")
            .with_status(StatusCode::UNSUPPORTED_MEDIA_TYPE)
    })?;
    let spec = async {
        let part = next(&mut form, &fault).await?.filter(|part| part.name.as_deref() == Some("spec"));
        let mut part = part.ok_or_else(|| {
            ApiError::invalid("the first part of the form must be spec").hint("send spec before context")
        })?;
        let mut bytes = Vec::new();
        while let Some(chunk) = part.chunk().await.map_err(|cause| broken(&fault, cause))? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > SPEC_MAX {
                let message = format!("spec is larger than {SPEC_MAX} bytes");
                return Err(ApiError::new(atoll_model::Code::PayloadTooLarge, message));
            }
            if let Some(budget) = budget {
                budget.hold_body(2 * bytes.len()).await.map_err(ServiceError::from)?;
            }
        }
        parse_json(&bytes)
    };
    let spec = tokio::time::timeout(SPEC_WITHIN, spec).await.unwrap_or_else(|_| {
        Err(ApiError::invalid("spec did not arrive in time").with_status(StatusCode::REQUEST_TIMEOUT))
    })?;
    let context = match next(&mut form, &fault).await? {
        None => None,
        Some(part) if part.name.as_deref() == Some("context") => {
            Some(Box::new(StreamReader::new(part.into_stream())) as BuildContext)
        }
        Some(part) => {
            let name = part.name.clone().unwrap_or_default();
            return Err(ApiError::invalid(format!(
                "the form has a part {name:?}; it takes spec and context"
            )));
        }
    };
    Ok(Form { spec, context, fault })
}

async fn next(form: &mut multipart::Form, fault: &UploadFault) -> Result<Option<Part>, ApiError> {
    form.next().await.map_err(|cause| broken(fault, cause))
}

fn broken(fault: &UploadFault, cause: BadForm) -> ApiError {
    fault.or(ApiError::invalid("the form is not valid").caused_by(cause))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;
    use tokio::io::AsyncReadExt;

    fn typed(kind: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))])
    }

    fn part(name: &str, content: &str) -> String {
        format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{content}\r\n")
    }

    async fn formed(parts: &[(&str, &str)]) -> Result<Form, ApiError> {
        let body: String = parts.iter().map(|(name, content)| part(name, content)).collect();
        read(&typed("multipart/form-data; boundary=x"), Body::from(body + "--x--\r\n"), None).await
    }

    #[tokio::test]
    async fn the_files_of_a_form_are_read_as_they_come() {
        let form = formed(&[("spec", r#"{"template":"a"}"#), ("context", "tar tar")]).await.unwrap();
        let mut text = String::new();
        form.context.unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "tar tar");
        assert!(formed(&[("spec", r#"{"template":"a"}"#)]).await.unwrap().context.is_none());
        let alone = read(&typed("application/json"), Body::from(r#"{"template":"a"}"#), None).await.unwrap();
        assert!(alone.context.is_none());
    }

    #[tokio::test]
    async fn forms_in_another_order_or_with_more_are_refused() {
        let refused = async |parts: &[(&str, &str)]| formed(parts).await.err().unwrap().message;
        assert!(refused(&[("context", "x"), ("spec", "{}")]).await.contains("first part"));
        assert!(refused(&[("spec", r#"{"template":"a"}"#), ("other", "x")]).await.contains("other"));
        assert!(refused(&[]).await.contains("first part"));
        let plain = read(&typed("text/plain"), Body::from("x"), None).await.err().unwrap();
        assert_eq!(plain.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        let cut = read(&typed("multipart/form-data; boundary=x"), Body::from(part("spec", "{")), None).await;
        assert!(cut.is_err());
    }

    #[test]
    fn any_form_of_a_build_is_read_or_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        atoll_robustness::check("build_form", |bytes| {
            runtime.block_on(async {
                let body = Body::from(bytes.to_vec());
                let Ok(form) = read(&typed("multipart/form-data; boundary=x"), body, None).await else {
                    return;
                };
                if let Some(mut context) = form.context {
                    let mut files = Vec::new();
                    let _ = context.read_to_end(&mut files).await;
                    assert!(files.len() <= bytes.len());
                }
            });
        });
    }
}
