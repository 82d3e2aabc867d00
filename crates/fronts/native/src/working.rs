//! Work that tells how far it is: its steps and its end as one stream of events. Dropping the stream drops the work.
//!
//! What is refused at once is answered as a refusal, with its status; only what is under way becomes events.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use atoll_front_kit::ApiError;
use atoll_service::{Progress, Progressed, ServiceError};
use atoll_wire::exec::StreamError;
use atoll_wire::templates::{LayerProgress, ProgressStep};
use axum::response::Response;
use axum::response::sse::Event;
use futures::Stream;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::App;
use crate::convert::FromCore;
use crate::sse;

// LIMIT: steps come a few per second; a reader that is slower than that loses some, which harms nobody.
const STEPS: usize = 256;
/// LIMIT: what is wrong with a request is found within this; what takes longer is under way.
const REFUSED_WITHIN: Duration = Duration::from_millis(200);

/// Where work tells its steps, and where they come out.
pub(crate) fn steps() -> (mpsc::Sender<Event>, mpsc::Receiver<Event>) {
    mpsc::channel(STEPS)
}

/// The ear of a transfer.
pub(crate) fn ear(steps: mpsc::Sender<Event>) -> Progress {
    Arc::new(move |progressed| {
        let event = match progressed {
            Progressed::Step(message) => sse::event("step", &ProgressStep { message }),
            Progressed::Layer { digest, done, total, state } => {
                sse::event("layer", &LayerProgress { digest, done, total, state })
            }
        };
        // Full: this step is lost. Closed: nobody listens any more, and the work is about to be dropped.
        drop(steps.try_send(event));
    })
}

/// Answers with the steps of `work` and, last, `done` with what came of it or `error`.
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
