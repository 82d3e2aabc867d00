//! HTTP/1.1 for connections that programs make inside their sandbox, to a port that a front answers there.
//!
//! The connection names its sandbox, so nothing here reads a credential or a host name, and no other route of the server can be
//! reached over it.

use std::convert::Infallible;
use std::time::Duration;

use atoll_budget::{Budget, BudgetOwner, RequestBudget};
use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

/// LIMIT: for a head, and for the next request of an idle connection.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// LIMIT: bytes of a head, and bytes that are read or written ahead.
const HEAD_BYTES: usize = 16 << 10;
const BUFFER: usize = 32 << 10;

/// Serves one connection until its client ends it. What is held for its requests is charged to the account that `answer` names.
pub async fn serve_inside<I, A, F>(connection: I, budget: &Budget, answer: A)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Fn(Request<Body>) -> F + Send + Sync,
    F: Future<Output = Response<Body>> + Send,
{
    let service = service_fn(|request: Request<Incoming>| {
        let head = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        let mut request = request.map(Body::new);
        let account = budget.account(BudgetOwner::stranger(None));
        request.extensions_mut().insert(RequestBudget::new(account, head));
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(BUFFER)
        .keep_alive(true)
        .half_close(false);
    if let Err(error) = http.serve_connection(TokioIo::new(connection), service).await {
        // Clients that vanish or send invalid data are normal; no action is needed.
        tracing::debug!(%error, "a connection from inside a sandbox ended early");
    }
}
