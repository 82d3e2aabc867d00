//! Responses are counted from their creation until they are written: their state is charged to the caller (its tenant,
//! or its address without a valid credential), their bytes as they pass.

use std::any::Any;
use std::sync::Arc;

use atoll_budget::{Exhausted, Metered, RequestBudget, Reservation, keep_with};
use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http::header::{CONNECTION, HeaderMap, HeaderValue};

use super::strangers::OpenRequest;
use crate::page::ProxyError;

/// Kept until both the head and the last piece of the body are written.
struct OpenAnswer {
    _state: Option<Reservation>,
    _request: OpenRequest,
}

/// The counted response; if there is no memory for it, a refusal.
pub(super) async fn count(
    response: Response<Body>,
    budget: &RequestBudget,
    request: OpenRequest,
) -> Response<Body> {
    match budget.open_answer(Metered::covered(response.body())).await {
        Ok(state) => keep(response, budget, OpenAnswer { _state: Some(state), _request: request }),
        Err(exhausted) => {
            let request = request.into_refused();
            keep(refusal(exhausted), budget, OpenAnswer { _state: None, _request: request })
        }
    }
}

fn keep(mut response: Response<Body>, budget: &RequestBudget, open: OpenAnswer) -> Response<Body> {
    let open: Arc<dyn Any + Send + Sync> = Arc::new(open);
    keep_with_head(response.headers_mut(), &open);
    if http_body::Body::is_end_stream(response.body()) {
        return response;
    }
    response.map(|body| Body::new(Metered::new(body, budget.account(), open)))
}

/// Heads use memory too while a client does not read, and HTTP/2 sends those without a body whatever its windows are.
/// The value of a field is dropped when the head is written.
fn keep_with_head(headers: &mut HeaderMap, open: &Arc<dyn Any + Send + Sync>) {
    // HTTP/2 has no such field, and drops it at once.
    let Some((_, value)) = headers.iter_mut().find(|(name, _)| *name != CONNECTION) else { return };
    let bytes = keep_with(Bytes::copy_from_slice(value.as_bytes()), Arc::clone(open));
    if let Ok(mut kept) = HeaderValue::from_maybe_shared(bytes) {
        kept.set_sensitive(value.is_sensitive());
        *value = kept;
    }
}

fn refusal(exhausted: Exhausted) -> Response<Body> {
    let refusal = ProxyError::new(exhausted.code(), exhausted.to_string());
    refusal.hint(exhausted.hint()).retry_after(1).render()
}
