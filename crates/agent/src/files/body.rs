//! The body of an upload: chunks with a deadline between them, so that a stalled client does not hold resources for
//! ever.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::error::AgentError;
use crate::running;

/// LIMIT: a client that sends nothing for this long is given up; its temporary file is removed.
const STALL_LIMIT: Duration = Duration::from_secs(60);

/// The next bytes, `None` at a regular end. A broken connection is an error, not an end.
pub(super) async fn next(body: &mut Incoming) -> Result<Option<Bytes>, AgentError> {
    loop {
        let Some(frame) = running::within(STALL_LIMIT, body.frame()).await else {
            return Err(AgentError::Unavailable("the upload stalled".into()));
        };
        match frame {
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Some(Err(_)) => return Err(AgentError::Unavailable("the upload ended early".into())),
            None => return Ok(None),
        }
    }
}

/// LIMIT: how much of a refused upload is read so that its sender receives the error.
const DRAIN_MAX: usize = 256 << 20;
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

/// Reads and discards the rest of a body, within limits.
pub(crate) async fn drain(body: &mut Incoming) {
    let draining = async {
        let mut left = DRAIN_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let len = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(len) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_LIMIT, draining).await;
}
