//! The session of the sandbox's own command.

use atoll_front_kit::{ApiError, JsonResponse, Query, ok, stream_json};
use atoll_toolbox::EntrypointFollow;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::Response;
use futures::{StreamExt, stream};

use super::{Command, ENTRYPOINT, SessionLogsQuery, SessionResponse, follow_on, shown_logs};
use crate::DaytonaApp;
use crate::toolbox::inside::Inside;
use crate::toolbox::refusal::of_process;
use crate::toolbox::socket;

/// The id of its only command.
const COMMAND: &str = "entrypoint_command";

pub(super) async fn find(inside: Inside) -> Result<JsonResponse<SessionResponse>, ApiError> {
    let mut commands = Vec::new();
    // COMPAT(daytona): every sandbox has this session; without a command of the sandbox it is empty.
    if let Some(words) = inside.lease().command.as_ref().filter(|words| !words.is_empty()) {
        let running = inside.toolbox.entrypoint().await.map_err(of_process)?.is_running;
        // The exit code is not kept, only that the command ended.
        let exit_code = if running { None } else { Some(0) };
        commands.push(Command { id: COMMAND.to_owned(), command: words.join(" "), exit_code });
    }
    Ok(ok(SessionResponse { session_id: ENTRYPOINT.to_owned(), commands }))
}

pub(super) async fn logs(State(app): State<DaytonaApp>, request: Request) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let inside = Inside::from_request_parts(&mut parts, &app).await?;
    let Query(query) = Query::<SessionLogsQuery>::from_request_parts(&mut parts, &app).await?;
    if !(query.follow.unwrap_or(false) && socket::is_asked(&parts.headers)) {
        let logs = inside.toolbox.entrypoint_logs().await.map_err(of_process)?;
        return Ok(stream_json(shown_logs(logs)));
    }
    let upgrade = socket::asked(&mut parts, &app).await?;
    let follow = inside.toolbox.entrypoint_follow().await.map_err(of_process)?;
    let account = inside.sandbox.account.clone();
    socket::upgrade((&app, &account), upgrade, &parts.headers, move |socket| async move {
        let _inside = inside;
        let next =
            |mut follow: EntrypointFollow| async move { follow.next().await.map(|event| (event, follow)) };
        follow_on(socket, stream::unfold(follow, next).boxed()).await
    })
}
