//! Bodies that are handed on while they arrive: never held, and given up when the client stalls or goes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use crate::error::ApiError;

// LIMIT: a client that sends nothing for a minute in the middle of an upload is gone or means harm.
const CHUNK_WITHIN: Duration = Duration::from_secs(60);

/// Why an upload broke, where it did; filled in while the content is read.
#[derive(Clone, Default)]
pub(crate) struct Fault(Arc<Mutex<Option<ApiError>>>);

impl Fault {
    pub(crate) fn take(&self) -> Option<ApiError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// When the upload itself broke, that is the news, not what was made of it behind.
    pub(crate) fn or(&self, error: impl Into<ApiError>) -> ApiError {
        self.take().unwrap_or_else(|| error.into())
    }

    fn set(&self, error: ApiError) -> std::io::Error {
        let text = error.message.clone();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        std::io::Error::other(text)
    }
}

/// A body as content, chunk by chunk; it ends with an error when the client stalls or goes.
pub(crate) fn content(body: Body) -> (BoxStream<'static, std::io::Result<Bytes>>, Fault) {
    let fault = Fault::default();
    let state = Some((body.into_data_stream(), fault.clone()));
    let content = stream::unfold(state, |state| async move {
        let (mut chunks, fault) = state?;
        match tokio::time::timeout(CHUNK_WITHIN, chunks.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some((chunks, fault)))),
            Ok(Some(Err(cause))) => {
                let error =
                    ApiError::invalid("the upload ended early; all is as it was before").caused_by(cause);
                Some((Err(fault.set(error)), None))
            }
            Err(_) => {
                let error = ApiError::invalid("the upload stalled for a minute; all is as it was before")
                    .with_status(StatusCode::REQUEST_TIMEOUT);
                Some((Err(fault.set(error)), None))
            }
        }
    });
    (content.boxed(), fault)
}

/// The same to read from.
pub(crate) fn reader(body: Body) -> (impl AsyncRead + Send + Unpin + 'static, Fault) {
    let (content, fault) = content(body);
    (StreamReader::new(content), fault)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_stalls_is_given_up_and_says_why() {
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"a"))]);
        let (mut content, fault) = content(Body::from_stream(first.chain(stream::pending())));
        assert_eq!(content.next().await.unwrap().unwrap(), "a");
        assert!(content.next().await.unwrap().is_err());
        assert!(content.next().await.is_none());
        assert_eq!(fault.take().unwrap().status(), StatusCode::REQUEST_TIMEOUT);
    }
}
