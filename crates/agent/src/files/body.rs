//! An upload's body: chunks with a deadline between them, so that a client that stalls holds nothing for ever.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::error::AgentError;
use crate::running;

/// LIMIT: a client that sends nothing for so long is gone; its temporary file goes too.
const STALL_LIMIT: Duration = Duration::from_secs(60);

/// The next bytes, `None` at the orderly end. A broken connection is an error, not an end.
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

/// LIMIT: what is read of a refused upload so that its sender gets to see the refusal.
const DRAIN_MAX: usize = 256 << 20;
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

/// Reads and forgets the rest of a body, within limits.
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
