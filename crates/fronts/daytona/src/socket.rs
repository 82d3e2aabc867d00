//! The notification socket: Socket.IO 5 over Engine.IO 4 over one WebSocket, as far as the SDKs use it. The SDKs
//! connect, send a key, and receive events, so that a wait ends with the event and not with the next poll.
//!
//! ```text
//! server 0{sid,pingInterval,…}      client 40{"token":KEY}      server 40{sid}, or 44{message} and the end
//! server 42["sandbox.state.updated",{sandbox,oldState,newState}]     server 2 … client 3, every 25 s
//! ```
//!
//! This module never polls, never sends events before a key was checked, and closes a socket when its key is revoked.

mod packet;

use std::time::Duration;

use atoll_front_kit::{ApiError, BudgetOwner, JsonResponse, RequestBudget, SocketPlace, authenticate_key};
use atoll_model::Principal;
use atoll_service::{PhaseChange, RequestScope, ServiceError};
use axum::Router;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures::StreamExt;
use futures::stream::BoxStream;
use serde::Serialize;
use serde_json::json;
use tokio::time::{Instant, interval_at, timeout};

use crate::DaytonaApp;
use crate::origin::Origin;
use crate::sandboxes::SandboxResponse;
use crate::states::state;
use packet::{Packet, event};

/// LIMIT: clients send only a key and answers to pings.
const MESSAGE_MAX: usize = 16 << 10;
/// LIMIT: a connection that has sent no key by then is closed.
const KEY_WITHIN: Duration = Duration::from_secs(10);
const PING_EVERY: Duration = Duration::from_secs(25);
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// LIMIT: a client that does not read for this long is disconnected.
const WRITE_WITHIN: Duration = Duration::from_secs(20);

pub(crate) fn routes() -> Router<DaytonaApp> {
    Router::new().route("/socket.io/", any(connect)).route("/socket.io", any(connect))
}

async fn connect(
    State(app): State<DaytonaApp>,
    origin: Origin,
    budget: Option<Extension<RequestBudget>>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Response {
    let Ok(upgrade) = upgrade else {
        // The response of Engine.IO for an unsupported transport.
        let unknown = json!({ "code": 0, "message": "Transport unknown" });
        return JsonResponse(axum::http::StatusCode::BAD_REQUEST, unknown).into_response();
    };
    // The caller has sent no key yet: until then its address is charged for the connection.
    let stranger = budget.map_or_else(
        || app.service.budget().account(BudgetOwner::stranger(None)),
        |Extension(budget)| budget.account(),
    );
    let place = match stranger.take_socket() {
        Ok(place) => place,
        Err(exhausted) => return ApiError::from(ServiceError::from(exhausted)).into_response(),
    };
    // The key arrives with the first packet. If the key is revoked, the connection ends, as it would if the key had
    // been in the request.
    let scope = RequestScope::current();
    upgrade.max_message_size(MESSAGE_MAX).max_frame_size(MESSAGE_MAX).on_upgrade(move |socket| async move {
        let session = SocketSession { app, origin, socket, place }.run();
        match scope {
            Some(scope) => scope.run(session).await,
            None => session.await,
        }
    })
}

struct SocketSession {
    app: DaytonaApp,
    origin: Origin,
    socket: WebSocket,
    place: SocketPlace,
}

/// The connection must be closed.
struct Ended;

impl SocketSession {
    async fn run(mut self) {
        if let Ok((who, key)) = self.greet().await {
            let _ = self.tell(&who, &key).await;
        }
        let bye = Message::Close(Some(CloseFrame { code: 1_000, reason: "".into() }));
        let _ = timeout(WRITE_WITHIN, self.socket.send(bye)).await;
    }

    /// The two handshakes; returns the caller.
    async fn greet(&mut self) -> Result<(Principal, String), Ended> {
        let id = packet::session_id().ok_or(Ended)?;
        let open = json!({
            "sid": id,
            "upgrades": [],
            "pingInterval": PING_EVERY.as_millis(),
            "pingTimeout": PONG_WITHIN.as_millis(),
            "maxPayload": MESSAGE_MAX,
        });
        self.send(format!("0{open}")).await?;
        let shown = timeout(KEY_WITHIN, self.key()).await.map_err(|_| Ended)??;
        match authenticate_key(&self.app, Some(&shown)).await {
            Ok(who) => {
                let Ok(place) = self.app.service.account_of(&who).take_socket() else {
                    self.send(format!("44{}", json!({ "message": "Too many sockets" }))).await?;
                    return Err(Ended);
                };
                self.place = place;
                self.send(format!("40{}", json!({ "sid": id }))).await?;
                Ok((who, shown))
            }
            Err(_) => {
                self.send(format!("44{}", json!({ "message": "Unauthorized" }))).await?;
                Err(Ended)
            }
        }
    }

    async fn key(&mut self) -> Result<String, Ended> {
        loop {
            match self.next().await? {
                Packet::Connect { token: Some(token) } => return Ok(token),
                Packet::Connect { token: None } => {
                    self.send(format!("44{}", json!({ "message": "Unauthorized" }))).await?;
                    return Err(Ended);
                }
                Packet::Close => return Err(Ended),
                Packet::Pong | Packet::Ping | Packet::Other => {}
            }
        }
    }

    /// Sends changes until one side ends the connection.
    async fn tell(&mut self, who: &Principal, key: &str) -> Result<(), Ended> {
        let closing = self.app.options.closing.clone();
        let mut news = self.news(who);
        let mut pings = interval_at(Instant::now() + PING_EVERY, PING_EVERY);
        let mut heard_at = Instant::now();
        loop {
            tokio::select! {
                () = closing.cancelled() => return Ok(()),
                text = news.next() => self.send(text.ok_or(Ended)?).await?,
                packet = self.next() => match packet? {
                    Packet::Close => return Ok(()),
                    Packet::Ping => self.send("3".to_owned()).await?,
                    Packet::Pong | Packet::Connect { .. } | Packet::Other => heard_at = Instant::now(),
                },
                _ = pings.tick() => {
                    let silent = heard_at.elapsed() > PING_EVERY + PONG_WITHIN;
                    // A revoked key receives no more events.
                    if silent || authenticate_key(&self.app, Some(key)).await.is_err() {
                        return Ok(());
                    }
                    self.send("2".to_owned()).await?;
                }
            }
        }
    }

    /// Changes of sandboxes as packets.
    fn news(&self, who: &Principal) -> BoxStream<'static, String> {
        let origin = self.origin.clone();
        let changes = self.app.service.follow_all(who);
        changes.flat_map(move |change| futures::stream::iter(packets(&change, &origin))).boxed()
    }

    async fn send(&mut self, text: String) -> Result<(), Ended> {
        let sent = timeout(WRITE_WITHIN, self.socket.send(Message::Text(text.into())));
        sent.await.map_err(|_| Ended)?.map_err(|_| Ended)
    }

    /// The next packet; the WebSocket library answers control frames.
    async fn next(&mut self) -> Result<Packet, Ended> {
        loop {
            match self.socket.recv().await {
                Some(Ok(Message::Text(text))) => return Ok(Packet::parse(&text)),
                Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Err(Ended),
            }
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StateUpdated {
    sandbox: SandboxResponse,
    old_state: &'static str,
    new_state: &'static str,
}

fn packets(change: &PhaseChange, origin: &Origin) -> Vec<String> {
    let sandbox = SandboxResponse::of(&change.lease, origin);
    let new_state = state(&change.lease);
    let whole = event("sandbox.created", &sandbox);
    let Some(old_state) = change.before.as_deref().map(state) else { return vec![whole] };
    let updated = event("sandbox.state.updated", &StateUpdated { sandbox, old_state, new_state });
    match new_state {
        // COMPAT(daytona): from an update the SDKs read only the state, so a waiting client would never learn the
        // reason of a failure; from the other event they read everything.
        "error" | "build_failed" => vec![whole, updated],
        _ => vec![updated],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use atoll_model::{Lease, Phase, Stage};

    use super::*;
    use crate::states::samples::{lease, waiting};

    #[test]
    fn a_failure_is_told_with_its_reason() {
        let names = |before: Option<Lease>, lease: Lease| {
            let change = PhaseChange { before: before.map(Arc::new), lease: Arc::new(lease) };
            let told = packets(&change, &Origin::sample());
            told.iter().map(|text| text.split('"').nth(1).unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        let (queued, building) = (waiting(Stage::Queued), waiting(Stage::Building));
        assert_eq!(names(None, queued.clone()), ["sandbox.created"]);
        assert_eq!(names(Some(queued), building.clone()), ["sandbox.state.updated"]);
        assert_eq!(names(Some(lease(Phase::Starting)), lease(Phase::Running)), ["sandbox.state.updated"]);
        let failed = Lease { phase: Phase::Failed, ..building.clone() };
        assert_eq!(names(Some(building), failed), ["sandbox.created", "sandbox.state.updated"]);
    }
}
