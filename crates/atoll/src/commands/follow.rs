//! Work that the server tells about while it does it: the steps are shown, the last event is the answer.

use serde_json::Value;

use super::{progress::Progress, text};
use crate::{
    client::{Client, sse::Events},
    failure::Failure,
};

/// Follows the answer of `request` to its end; the answer is what `done` carries. Ending this program ends the work.
pub(super) async fn follow(
    client: &Client,
    request: reqwest::RequestBuilder,
    progress: &mut Progress,
) -> Result<Value, Failure> {
    let answer = client.send(request).await?;
    let outcome = to_the_end(&mut Events::new(answer), progress).await;
    progress.done();
    outcome
}

async fn to_the_end(events: &mut Events, progress: &mut Progress) -> Result<Value, Failure> {
    let mut done = None;
    while let Some(event) = events.next().await? {
        let said = event.json();
        match event.name.as_str() {
            "step" => progress.step(text(&said, "message")),
            "layer" => {
                let number = |field: &str| said[field].as_u64().unwrap_or(0);
                progress.layer(text(&said, "digest"), number("done"), number("total"), text(&said, "state"));
            }
            "done" => done = Some(said),
            "error" => return Err(told(&said)),
            // A newer server may say more.
            _ => {}
        }
    }
    done.ok_or_else(|| {
        Failure::new("no_server", "the server ended the stream before the work was done")
            .hint("atoll server status")
    })
}

/// The failure that an event or an object of the server carries.
pub(super) fn told(said: &Value) -> Failure {
    let mut failure = Failure::new(text(said, "code"), text(said, "message"));
    failure.hint = said["hint"].as_str().map(str::to_owned);
    failure.request_id = said["request_id"].as_str().map(str::to_owned);
    failure
}
