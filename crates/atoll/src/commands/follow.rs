//! Operations that the server reports while they run: the steps are shown, the last event is the result.

use atoll_client::client::Answer;
use atoll_client::exec::StreamError;
use atoll_client::templates::{LayerProgress, ProgressStep, Template};

use super::progress::Progress;
use crate::{client::Events, failure::Failure};

/// Follows the events to their end; returns the content of `done`. Ending this program cancels the operation.
pub(super) async fn follow(
    events: Result<Events, Failure>,
    progress: &mut Progress,
) -> Result<Answer<Template>, Failure> {
    let outcome = to_the_end(&mut events?, progress).await;
    progress.done();
    outcome
}

async fn to_the_end(events: &mut Events, progress: &mut Progress) -> Result<Answer<Template>, Failure> {
    let mut done = None;
    while let Some(event) = events.next().await? {
        match event.name.as_str() {
            "step" => progress.step(&events.read::<ProgressStep>(&event)?.message),
            "layer" => {
                let layer = events.read::<LayerProgress>(&event)?;
                progress.layer(&layer.digest, layer.done, layer.total, &layer.state);
            }
            "done" => done = Some(events.read(&event)?),
            "error" => return Err(told(events.read::<StreamError>(&event)?.into_typed())),
            // A newer server may send more events.
            _ => {}
        }
    }
    done.ok_or_else(|| {
        Failure::new("no_server", "the server ended the stream before the work was finished")
            .hint("atoll server status")
    })
}

/// The failure in the last event of a stream.
pub(super) fn told(error: StreamError) -> Failure {
    let mut failure = Failure::new(error.code, error.message);
    failure.hint = error.hint;
    failure
}
