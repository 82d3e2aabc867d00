//! Heads of plain HTTP requests: the host that is checked is the host that is contacted.

#![allow(clippy::unwrap_used)]
use atoll_model::policy::egress::{Injected, Replacement};
use http::Request;
use proptest::prelude::*;

use super::*;

fn request(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
    let mut builder = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap().into_parts().0
}

fn rule(value: &str, plain_http: bool) -> Rewrite {
    let change = OpenedTransform {
        domain: "api.example.com".parse().unwrap(),
        inject: vec![Injected { name: "Authorization".into(), value: value.into() }],
        strip: vec!["Cookie".into()],
        plain_http,
    };
    Rewrite { change: Some(change), replacements: Vec::new() }
}

#[test]
fn the_name_is_the_one_host_that_is_given() {
    let name = |headers: &[(&str, &str)]| name_of(&request("GET", "/x", headers), 8080);
    assert_eq!(name(&[("host", "API.example.com")]).unwrap(), "api.example.com");
    assert_eq!(name(&[("host", "api.example.com:8080")]).unwrap(), "api.example.com");
    for bad in [
        &[][..],
        &[("host", "a.test"), ("host", "b.test")],
        &[("host", "a.test"), ("host", "a.test")],
        &[("host", "1.2.3.4")],
        &[("host", "a.test:9090")],
        &[("host", "a.test.")],
        &[("host", "")],
    ] {
        assert!(name(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn targets_that_name_a_host_and_tunnels_are_refused() {
    let host = &[("host", "a.test")][..];
    assert!(name_of(&request("GET", "http://b.test/x", host), 80).is_err());
    assert!(name_of(&request("CONNECT", "b.test:443", host), 80).is_err());
    assert!(name_of(&request("OPTIONS", "*", host), 80).is_ok());
    let mut two = request("GET", "/", host);
    two.version = Version::HTTP_2;
    assert!(name_of(&two, 80).is_err());
}

#[test]
fn what_belongs_to_one_connection_stays_behind() {
    let headers = [
        ("host", "a.test"),
        ("connection", "close, X-Mine , host, authorization"),
        ("x-mine", "1"),
        ("authorization", "own"),
        ("keep-alive", "5"),
        ("proxy-connection", "x"),
        ("te", "trailers"),
        ("upgrade", "h2c"),
        ("http2-settings", "x"),
        ("trailer", "x"),
        ("expect", "100-continue"),
        ("accept", "*/*"),
    ];
    let mut parts = request("GET", "/", &headers);
    assert!(!wants_websocket(&parts.headers));
    strip_hop(&mut parts.headers);
    let mut left: Vec<_> = parts.headers.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["accept", "host", "http2-settings"]);
}

#[test]
fn only_a_websocket_is_an_upgrade() {
    let wants = |headers: &[(&str, &str)]| wants_websocket(&request("GET", "/", headers).headers);
    assert!(wants(&[("upgrade", "WebSocket"), ("connection", "keep-alive, Upgrade")]));
    assert!(!wants(&[("upgrade", "websocket")]));
    assert!(!wants(&[("upgrade", "h2c"), ("connection", "upgrade")]));
    assert!(!wants(&[("upgrade", "websocket, h2c"), ("connection", "upgrade")]));
    assert!(!wants(&[("upgrade", "websocket"), ("upgrade", "h2c"), ("connection", "upgrade")]));
}

#[test]
fn a_secret_goes_in_over_tls_only_and_over_what_the_sandbox_sent() {
    let sent = [("authorization", "own"), ("Authorization", "again"), ("cookie", "c"), ("accept", "*/*")];
    let mut secure = request("GET", "/", &sent);
    rewrite(&mut secure, &rule("Bearer s3cret", false), true).unwrap();
    let values: Vec<_> = secure.headers.get_all("authorization").iter().collect();
    assert_eq!(values, ["Bearer s3cret"]);
    assert!(values[0].is_sensitive() && !format!("{secure:?}").contains("s3cret"));
    assert!(!secure.headers.contains_key("cookie") && secure.headers.contains_key("accept"));
    let mut plain = request("GET", "/", &sent);
    rewrite(&mut plain, &rule("Bearer s3cret", false), false).unwrap();
    assert!(!plain.headers.contains_key("authorization") && !plain.headers.contains_key("cookie"));
    let mut said_so = request("GET", "/", &sent);
    rewrite(&mut said_so, &rule("Bearer s3cret", true), false).unwrap();
    assert_eq!(said_so.headers["authorization"], "Bearer s3cret");
}

#[test]
fn a_method_that_echoes_headers_is_refused() {
    for method in ["TRACE", "TRACK", "DEBUG"] {
        assert!(rewrite(&mut request(method, "/", &[]), &rule("x", false), true).is_err());
    }
    assert!(rewrite(&mut request("GET", "/", &[]), &rule("a\r\nb: c", false), true).is_err());
}

#[test]
fn a_placeholder_is_replaced_over_tls_only_and_never_in_what_is_put_in() {
    let secret = Replacement { hosts: Vec::new(), placeholder: "PLACE".into(), value: "s3cret".into() };
    let with = Rewrite { replacements: vec![secret], ..rule("Bearer PLACE", false) };
    let sent = [("x-key", "PLACE"), ("authorization", "PLACE")];
    let mut secure = request("GET", "/PLACE", &sent);
    rewrite(&mut secure, &with, true).unwrap();
    assert_eq!(secure.headers["x-key"], "s3cret");
    assert_eq!(secure.headers["authorization"], "Bearer PLACE");
    assert_eq!(secure.uri, "/PLACE");
    let mut plain = request("GET", "/", &sent);
    rewrite(&mut plain, &with, false).unwrap();
    assert_eq!(plain.headers["x-key"], "PLACE");
    let alone = Rewrite { change: None, ..with };
    assert!(rewrite(&mut request("TRACE", "/", &sent), &alone, true).is_err());
}

proptest! {
    #[test]
    fn no_connection_header_takes_the_host_or_keeps_an_upgrade(value in "[ -~]{0,60}") {
        let mut parts = request("GET", "/", &[("host", "a.test"), ("connection", &value), ("upgrade", "h2c")]);
        strip_hop(&mut parts.headers);
        prop_assert!(parts.headers.contains_key("host"));
        prop_assert!(!parts.headers.contains_key("upgrade") && !parts.headers.contains_key("connection"));
    }
}

#[test]
fn any_head_is_judged_and_cleaned() {
    let secret = Replacement { hosts: Vec::new(), placeholder: "PLACE".into(), value: "s3cret".into() };
    let with = Rewrite { replacements: vec![secret], ..rule("Bearer PLACE", true) };
    atoll_robustness::check("http_head", |bytes| {
        let mut parts = request("GET", "/", &[]);
        for line in bytes.split(|byte| *byte == b'\n').take(100) {
            let (name, value) =
                line.split_at(line.iter().position(|byte| *byte == b':').unwrap_or(line.len()));
            let value = HeaderValue::from_bytes(value.get(1..).unwrap_or_default().trim_ascii());
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), value) {
                parts.headers.append(name, value);
            }
        }
        assert!(name_of(&parts, 80).map_or(true, |name| atoll_model::is_host_name(&name)));
        let _ = wants_websocket(&parts.headers);
        let _ = rewrite(&mut parts, &with, true);
        strip_hop(&mut parts.headers);
        assert!(OF_ONE_HOP.iter().all(|name| !parts.headers.contains_key(name)));
    });
}
