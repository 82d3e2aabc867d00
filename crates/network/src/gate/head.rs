//! Heads of requests and responses at the gate: which are refused, which headers are removed, which are changed.
//!
//! Bodies are never read. The HTTP library writes the framing of each message again on each side, so a request has only
//! one meaning for the server.

use atoll_model::policy::egress::{OpenedTransform, Rewrite};
use http::header::{
    CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::{Method, StatusCode, Version};

use super::host::Host;

mod placeholder;

/// Headers of one connection that are never forwarded.
const OF_ONE_HOP: [HeaderName; 8] =
    [CONNECTION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, EXPECT, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION];
const OF_ONE_HOP_TOO: [&str; 2] = ["keep-alive", "proxy-connection"];
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Why a request is refused, and its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadRequest {
    pub(crate) status: StatusCode,
    pub(crate) rule: &'static str,
}

fn bad(status: StatusCode, rule: &'static str) -> BadRequest {
    BadRequest { status, rule }
}

/// The host name of a request. `port` is the destination port.
pub(crate) fn name_of(request: &Parts, port: u16) -> Result<String, BadRequest> {
    if request.method == Method::CONNECT {
        return Err(bad(StatusCode::METHOD_NOT_ALLOWED, "http: connect"));
    }
    if !matches!(request.version, Version::HTTP_10 | Version::HTTP_11) {
        return Err(bad(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "http: version"));
    }
    if request.uri.scheme().is_some() || request.uri.authority().is_some() {
        return Err(bad(StatusCode::BAD_REQUEST, "http: a target with a host"));
    }
    let mut hosts = request.headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err(bad(StatusCode::BAD_REQUEST, "http: not exactly one host"));
    };
    let host =
        Host::parse(host.as_bytes()).ok_or(bad(StatusCode::BAD_REQUEST, "http: a host that is no name"))?;
    if host.port.is_some_and(|named| named != port) {
        return Err(bad(StatusCode::MISDIRECTED_REQUEST, "http: another port"));
    }
    Ok(host.name)
}

/// Whether a request asks for an upgrade to WebSocket. Other protocols are not offered to the server: over unencrypted
/// HTTP/2, for example, requests would pass unread.
pub(crate) fn wants_websocket(headers: &HeaderMap) -> bool {
    let mut upgrades = headers.get_all(UPGRADE).iter();
    let (Some(upgrade), None) = (upgrades.next(), upgrades.next()) else { return false };
    upgrade.as_bytes().eq_ignore_ascii_case(b"websocket") && connection_names(headers).contains(&UPGRADE)
}

/// Removes the headers of the incoming connection, and every header that its `Connection` header names.
pub(crate) fn strip_hop(headers: &mut HeaderMap) {
    let named = connection_names(headers);
    // The gate sets the host itself, and lengths are written again.
    named.iter().filter(|name| **name != HOST).for_each(|name| drop(headers.remove(name)));
    OF_ONE_HOP.iter().for_each(|name| drop(headers.remove(name)));
    OF_ONE_HOP_TOO.iter().for_each(|name| drop(headers.remove(*name)));
}

/// Marks the connection as upgraded to WebSocket.
pub(crate) fn say_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, WEBSOCKET);
}

fn connection_names(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).iter();
    let tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    tokens.filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok()).collect()
}

/// Changes a request by the policy and the secrets of the sandbox. `secure`: the connection to the server uses TLS.
pub(crate) fn rewrite(request: &mut Parts, rewrite: &Rewrite, secure: bool) -> Result<(), BadRequest> {
    // The server would send the injected headers back to the sandbox.
    if [&b"TRACE"[..], b"TRACK", b"DEBUG"].contains(&request.method.as_str().as_bytes()) {
        return Err(bad(StatusCode::METHOD_NOT_ALLOWED, "http: a method that echoes headers"));
    }
    if secure {
        // Before headers are injected: injected values are not searched for placeholders.
        placeholder::replace(&mut request.headers, &rewrite.replacements)?;
    }
    match &rewrite.change {
        Some(transform) => change(request, transform, secure),
        None => Ok(()),
    }
}

fn change(request: &mut Parts, change: &OpenedTransform, secure: bool) -> Result<(), BadRequest> {
    for name in &change.strip {
        request.headers.remove(name.as_str());
    }
    for injected in &change.inject {
        // The sandbox's own header of that name is always removed, so that it cannot replace the injected one.
        request.headers.remove(injected.name.as_str());
        if !secure && !change.plain_http {
            continue;
        }
        let unusable = |_| bad(StatusCode::BAD_GATEWAY, "transforms: a value that is no header");
        let name = HeaderName::from_bytes(injected.name.as_bytes()).map_err(|_| unusable(()))?;
        let mut value = HeaderValue::from_bytes(injected.value.as_bytes()).map_err(|_| unusable(()))?;
        value.set_sensitive(true);
        request.headers.insert(name, value);
    }
    Ok(())
}

#[cfg(test)]
#[path = "head/tests.rs"]
mod tests;
