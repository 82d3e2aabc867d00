//! Bodies that are handed on while they arrive: never held, and given up when the client stalls or goes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use futures::stream::{self, StreamExt};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use crate::error::ApiError;

/// LIMIT: who sends nothing for this long in the middle of a body is gone.
const PIECE_WITHIN: Duration = Duration::from_secs(60);

/// Why a body broke, where it did; filled in while it is read.
#[derive(Clone, Default)]
pub(crate) struct Fault(Arc<Mutex<Option<ApiError>>>);

impl Fault {
    /// Where the body itself broke, that is the news, not what was made of it behind.
    pub(crate) fn or(&self, error: impl Into<ApiError>) -> ApiError {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_else(|| error.into())
    }

    fn set(&self, error: ApiError) -> std::io::Error {
        let text = error.message.clone();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        std::io::Error::other(text)
    }
}

/// A body to be read; it ends with an error when the client stalls or goes.
pub(crate) fn reader(body: Body) -> (impl AsyncRead + Send + Unpin + 'static, Fault) {
    let fault = Fault::default();
    let begin = Some((body.into_data_stream(), fault.clone()));
    let pieces = stream::unfold(begin, |state| async move {
        let (mut pieces, fault) = state?;
        match tokio::time::timeout(PIECE_WITHIN, pieces.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some((pieces, fault)))),
            Ok(Some(Err(cause))) => {
                let error =
                    ApiError::invalid("the body ended early; nothing was kept of it").caused_by(cause);
                Some((Err(fault.set(error)), None))
            }
            Err(_) => {
                let error = ApiError::invalid("the body stalled for a minute; nothing was kept of it")
                    .with_status(StatusCode::REQUEST_TIMEOUT);
                Some((Err(fault.set(error)), None))
            }
        }
    });
    (StreamReader::new(pieces.boxed()), fault)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up_and_says_so() {
        let (mut bytes, _) = reader(Body::from("whole"));
        let mut read = String::new();
        bytes.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "whole");
        let never = stream::once(async { Ok::<_, std::io::Error>("a") }).chain(stream::pending());
        let (mut bytes, fault) = reader(Body::from_stream(never));
        assert!(bytes.read_to_end(&mut Vec::new()).await.is_err());
        let shown = fault.or(ApiError::invalid("something behind"));
        assert_eq!(shown.status, StatusCode::REQUEST_TIMEOUT);
    }
}
