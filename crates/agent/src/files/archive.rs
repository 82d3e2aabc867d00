//! Trees as tar streams: `POST /archive/unpack` and `POST /archive/pack`, with the permissions of the request's user.
//!
//! A stream is read and written in pieces, so memory use does not depend on the size of the tree. Invalid entries of a
//! hostile stream are refused by name; a stream can change nothing that its user could not change.

mod extract_entry;
mod pack;
mod pattern;
mod unpack;

use atoll_tar::stream::{StreamError, StreamReader};
use futures::StreamExt;
use http::{HeaderValue, Request, Response, header as names};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

use super::ConnectionEnd;
use super::upload_queue::{self, Feed};
use super::{body, decode_query, resolve};
use crate::error::AgentError;
use crate::http::{AgentBody, json, streamed};
use crate::state::Agent;
use crate::users::{Accounts, User};
use pack::{Holes, Layout, PackRequest, Packer};
use unpack::{Into, OwnerRule, Rules, UnpackRequest, Unpacker};

/// LIMIT: bytes of the sources and patterns of one pack.
const PACK_ASK_MAX: usize = 1 << 20;

/// Handles an unpack request of `user`.
pub(crate) async fn unpack(
    agent: &Agent,
    user: &User,
    request: Request<Incoming>,
) -> Result<Response<AgentBody>, AgentError> {
    let (head, mut incoming) = request.into_parts();
    let received = receive(agent, user, head.uri.query().unwrap_or_default(), &mut incoming).await;
    if received.is_err() {
        // A client that is still sending would find the connection closed and never see the error.
        body::drain(&mut incoming).await;
    }
    received
}

async fn receive(
    agent: &Agent,
    user: &User,
    query: &str,
    incoming: &mut Incoming,
) -> Result<Response<AgentBody>, AgentError> {
    let sink = Sink { reader: StreamReader::default(), unpacker: Unpacker::new(ask(query, user)?) };
    let mut feed = Feed::new(&agent.workers, &user.ids, sink);
    while let Some(chunk) = body::next(incoming).await? {
        feed.push(chunk).await?;
    }
    let sink = feed.end().await?;
    let done = agent.workers.run(&user.ids, move || {
        sink.reader.finish()?;
        sink.unpacker.finish()
    });
    let (entries, bytes) = done.await?;
    Ok(json(&serde_json::json!({ "entries": entries, "bytes": bytes })))
}

impl From<StreamError> for AgentError {
    fn from(error: StreamError) -> Self {
        Self::Invalid(error.to_string())
    }
}

struct Sink {
    reader: StreamReader,
    unpacker: Unpacker,
}

impl upload_queue::Sink for Sink {
    fn write(&mut self, chunk: &[u8]) -> Result<(), AgentError> {
        self.reader.push(chunk, &mut self.unpacker)
    }
}

fn ask(query: &str, user: &User) -> Result<UnpackRequest, AgentError> {
    let text = |name: &str| decode_query(query, name).map(|v| String::from_utf8_lossy(&v).into_owned());
    let bad = |name: &str| AgentError::Invalid(format!("unpack has no parameter '{name}'"));
    let dest = decode_query(query, "dest").filter(|dest| !dest.is_empty()).ok_or_else(|| bad("dest"))?;
    let into = match text("into").as_deref() {
        None | Some("folder") => Into::Folder,
        Some("any") => Into::FileOrFolder,
        Some(_) => return Err(bad("into")),
    };
    let rules = match text("rules").as_deref() {
        None | Some("copy") => Rules::Copy,
        Some("archive") => Rules::Archive,
        Some(_) => return Err(bad("rules")),
    };
    let owner = match (text("owner"), text("keep").as_deref()) {
        (Some(owner), _) => named_owner(&owner)?,
        (None, Some("1")) => OwnerRule::Kept,
        (None, _) => OwnerRule::Caller,
    };
    let mode = match text("mode") {
        Some(mode) => {
            let parsed = u32::from_str_radix(&mode, 8).ok().filter(|mode| *mode <= 0o7777);
            Some(parsed.ok_or_else(|| AgentError::Invalid("mode is up to four octal digits".into()))?)
        }
        None => None,
    };
    let strip = text("strip").map_or(Ok(0), |strip| strip.parse().map_err(|_| bad("strip")))?;
    Ok(UnpackRequest { dest: resolve(&dest, user)?, into, rules, owner, mode, strip })
}

/// `user[:group]`: a name implies the user's own group; a number without a group implies the group with the same
/// number.
fn named_owner(text: &str) -> Result<OwnerRule, AgentError> {
    let accounts = Accounts::read().map_err(|e| AgentError::from_errno(e, "users of the sandbox"))?;
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let missing = |what: &str, name: &str| {
        let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        AgentError::Invalid(format!("no {what} '{shown}' in this sandbox"))
    };
    let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id != u32::MAX);
    let (uid, own) = match number(user) {
        Some(id) => (id, id),
        None => {
            let ids = accounts.find(user).ok_or_else(|| missing("user", user))?.ids;
            (ids.uid, ids.gid)
        }
    };
    let gid = match group.filter(|group| !group.is_empty()) {
        Some(group) => accounts.group_id(group).ok_or_else(|| missing("group", group))?,
        None => own,
    };
    Ok(OwnerRule::To { uid, gid })
}

/// Handles a pack request of `user`.
pub(crate) async fn pack(
    agent: &Agent,
    user: &User,
    request: Request<Incoming>,
    connection: &ConnectionEnd,
) -> Result<Response<AgentBody>, AgentError> {
    let (head, incoming) = request.into_parts();
    let query = head.uri.query().unwrap_or_default();
    let layout = match decode_query(query, "layout").as_deref() {
        None | Some(b"contents") => Layout::Contents,
        Some(b"named") => Layout::Named,
        Some(b"parents") => Layout::Parents,
        Some(_) => return Err(AgentError::Invalid("layout is contents, named or parents".into())),
    };
    let globs = decode_query(query, "globs").is_some();
    let holes = if decode_query(query, "sparse").is_some() { Holes::Kept } else { Holes::Filled };
    let body = Limited::new(incoming, PACK_ASK_MAX).collect().await;
    let body =
        body.map_err(|_| AgentError::Invalid("the list of sources is too long or incomplete".into()))?;
    let (mut sources, mut exclude) = (Vec::new(), Vec::new());
    for item in body.to_bytes().split(|b| *b == 0).filter(|item| !item.is_empty()) {
        match item.split_first() {
            Some((b's', path)) => sources.push(pack::source(path, user)?),
            Some((b'x', pattern)) => exclude.push(pattern.to_vec()),
            _ => return Err(AgentError::Invalid("the list of sources is malformed".into())),
        }
    }
    let wanted = PackRequest { sources, globs, layout, exclude, holes };
    let reader = agent.readers.begin(connection)?;
    let (chunk, room) = (reader.chunk(), reader.room().await?);
    // Resolved before the response begins, so that a missing source gives an error and not a broken stream.
    let planned = agent.workers.run(&user.ids, move || {
        let mut packer = Packer::plan(wanted, chunk)?;
        let first = packer.next_chunk()?;
        Ok((packer, first))
    });
    let (packer, first) = planned.await?;
    let (workers, ids) = (agent.workers.clone(), user.ids.clone());
    let first = first.map(|chunk| room.hold(chunk));
    let rest = futures::stream::unfold(Some((packer, reader)), move |state| {
        let (workers, ids) = (workers.clone(), ids.clone());
        async move {
            let (mut packer, reader) = state?;
            let room = match reader.room().await {
                Ok(room) => room,
                Err(refusal) => return Some((Err(refusal), None)),
            };
            let turn = workers.run(&ids, move || packer.next_chunk().map(|chunk| (packer, chunk)));
            match turn.await {
                Ok((packer, Some(chunk))) => Some((Ok(room.hold(chunk)), Some((packer, reader)))),
                Ok((_, None)) => None,
                Err(refusal) => Some((Err(refusal), None)),
            }
        }
    });
    let chunks = futures::stream::iter(first.map(Ok)).chain(rest);
    let mut response = Response::new(streamed(chunks));
    response.headers_mut().insert(names::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    Ok(response)
}
