//! Request bodies that are passed on while they arrive: never collected, and given up when the client stalls or goes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use crate::ApiError;

// LIMIT: a client that sends nothing for a minute in the middle of an upload is gone or hostile.
const CHUNK_DEADLINE: Duration = Duration::from_secs(60);

/// Why an upload broke; empty until it does.
#[derive(Clone, Default)]
pub struct UploadFault(Arc<Mutex<Option<ApiError>>>);

impl UploadFault {
    /// Takes it.
    #[must_use]
    pub fn take(&self) -> Option<ApiError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Why the upload broke, or else `error`, which would only be its consequence.
    #[must_use]
    pub fn or(&self, error: impl Into<ApiError>) -> ApiError {
        self.take().unwrap_or_else(|| error.into())
    }

    fn set(&self, error: ApiError) -> std::io::Error {
        let text = error.message.clone();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        std::io::Error::other(text)
    }
}

/// A body as a stream of chunks. It ends with an error when the client stalls or goes.
pub fn upload_stream(body: Body) -> (BoxStream<'static, std::io::Result<Bytes>>, UploadFault) {
    let fault = UploadFault::default();
    let state = Some((body.into_data_stream(), fault.clone()));
    let content = stream::unfold(state, |state| async move {
        let (mut chunks, fault) = state?;
        match tokio::time::timeout(CHUNK_DEADLINE, chunks.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some((chunks, fault)))),
            Ok(Some(Err(cause))) => {
                let error = ApiError::invalid("the upload ended early; nothing was changed").caused_by(cause);
                Some((Err(fault.set(error)), None))
            }
            Err(_) => {
                let error = ApiError::invalid("the upload stalled for a minute; nothing was changed")
                    .with_status(StatusCode::REQUEST_TIMEOUT);
                Some((Err(fault.set(error)), None))
            }
        }
    });
    (content.boxed(), fault)
}

/// The same as a reader.
pub fn upload_reader(body: Body) -> (impl AsyncRead + Send + Unpin + 'static, UploadFault) {
    let (content, fault) = upload_stream(body);
    (StreamReader::new(content), fault)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_stalls_is_given_up_and_says_why() {
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"a"))]);
        let (mut content, fault) = upload_stream(Body::from_stream(first.chain(stream::pending())));
        assert_eq!(content.next().await.unwrap().unwrap(), "a");
        assert!(content.next().await.unwrap().is_err());
        assert!(content.next().await.is_none());
        assert_eq!(fault.take().unwrap().status(), StatusCode::REQUEST_TIMEOUT);
    }
}
