//! Work with progress: its steps and its end as one stream of events. Dropping the stream drops the work.
//!
//! An early refusal is answered with its status; only running work becomes events.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_client::exec::StreamError;
use atoll_client::templates::{LayerProgress, ProgressStep};
use atoll_front_kit::ApiError;
use atoll_service::{Progress, Progressed, ServiceError};
use axum::response::Response;
use axum::response::sse::Event;
use futures::Stream;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::App;
use crate::convert::FromCore;
use crate::sse;

// LIMIT: there are a few steps per second; a slower reader loses some, which is harmless.
const STEPS: usize = 256;
/// LIMIT: an invalid request is refused within this time; after that the work counts as running.
const REFUSED_WITHIN: Duration = Duration::from_millis(200);

/// The channel for the steps of work.
pub(crate) fn steps() -> (mpsc::Sender<Event>, mpsc::Receiver<Event>) {
    mpsc::channel(STEPS)
}

/// The progress callback of a transfer.
pub(crate) fn ear(steps: mpsc::Sender<Event>) -> Progress {
    Arc::new(move |progressed| {
        let event = match progressed {
            Progressed::Step(message) => sse::event("step", &ProgressStep { message }),
            Progressed::Layer { digest, done, total, state } => {
                sse::event("layer", &LayerProgress { digest, done, total, state })
            }
        };
        // If the channel is full, this step is lost. If it is closed, the client has disconnected and the work will be
        // dropped.
        drop(steps.try_send(event));
    })
}

/// Responds with the steps of `work` and, last, `done` with its result or `error`.
pub(crate) async fn respond<T: Serialize + Send + 'static>(
    app: &App,
    work: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
    mut steps: mpsc::Receiver<Event>,
) -> Result<Response, ApiError> {
    let mut work: Pin<Box<dyn Future<Output = Result<T, ServiceError>> + Send>> = Box::pin(work);
    let mut first = None;
    let mut ended = None;
    tokio::select! {
        biased;
        done = &mut work => ended = Some(done),
        step = steps.recv() => first = step,
        () = tokio::time::sleep(REFUSED_WITHIN) => {}
    }
    if let Some(Err(error)) = ended {
        return Err(error.into());
    }
    Ok(sse::respond(app, events(work, ended, first, steps)))
}

fn events<T: Serialize + Send + 'static>(
    mut work: Pin<Box<dyn Future<Output = Result<T, ServiceError>> + Send>>,
    ended: Option<Result<T, ServiceError>>,
    first: Option<Event>,
    mut steps: mpsc::Receiver<Event>,
) -> impl Stream<Item = Event> + Send + 'static {
    async_stream::stream! {
        if let Some(first) = first {
            yield first;
        }
        let done = match ended {
            Some(done) => done,
            None => loop {
                tokio::select! {
                    biased;
                    Some(step) = steps.recv() => yield step,
                    done = &mut work => break done,
                }
            },
        };
        while let Ok(step) = steps.try_recv() {
            yield step;
        }
        yield match done {
            Ok(made) => sse::event("done", &made),
            Err(error) => sse::event("error", &StreamError::from_core(error)),
        };
    }
}
