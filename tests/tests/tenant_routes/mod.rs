//! Attack N14: what a tenant is answered on every route that names a thing of another tenant, in every front.
//!
//! `tests/tenant_routes.tsv` holds the routes: the expected status, the method, the path and the body. Each request is sent
//! with the key of another tenant twice, once with the owner's ids and once with ids that never were. Both answers must be the
//! same but for the ids, and nothing of the owner's may change. A route that the table lacks fails the test.
//!
//! In the table, `{sandbox}` and the like stand for ids, `{=text}` for a path parameter that is nobody's, `{=own}` for the
//! caller's own sandbox. `401/502` are the answers for the owner's id and for none, where the front cannot help to tell them
//! apart. `-` is a route that is not asked; the last column says why.

#![allow(clippy::unwrap_used, reason = "tests")]

mod routes;
mod things;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use atoll_tests::{Client, Value, json, run};
use reqwest::Method;
use things::{Keys, Things};

/// One line of the table.
struct Row<'a> {
    want: &'a str,
    method: &'a str,
    path: &'a str,
    body: &'a str,
}

fn rows() -> Vec<Row<'static>> {
    let row = |line: &'static str| {
        let mut fields = line.split('\t');
        let mut next = || fields.next().unwrap_or_default();
        Row { want: next(), method: next(), path: next(), body: next() }
    };
    static TABLE: LazyLock<String> = LazyLock::new(|| {
        std::fs::read_to_string(routes::root().join("tests/tenant_routes.tsv")).expect("the table")
    });
    TABLE.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

/// Attack N14.
#[test]
fn every_route_that_names_a_thing_is_in_the_table() {
    let document = std::fs::read_to_string(routes::root().join("docs/openapi.json")).unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    let mut known = routes::of_document(&document);
    let fronts = routes::vendor_fronts();
    assert!(fronts.len() >= 3, "{fronts:?}");
    for front in &fronts {
        let found = routes::of_front(front);
        assert!(!found.is_empty(), "the routes of {front} are not found in its sources");
        known.extend(found);
    }
    let listed: Vec<(String, String)> = rows()
        .iter()
        .map(|row| {
            let method = if row.method == "WS" { "GET" } else { row.method };
            (method.to_owned(), routes::plain(row.path))
        })
        .collect();
    let missing: Vec<_> = known
        .iter()
        .filter(|(method, path)| {
            !listed.iter().any(|(has, at)| at == path && (has == method || method == "ANY"))
        })
        .collect();
    assert!(missing.is_empty(), "not in tests/tenant_routes.tsv: {missing:#?}");
}

/// Attack N14.
#[test]
fn other_tenants_things_are_not_there_on_any_route() {
    run(async |w| {
        let (alice, mallory) = (w.tenant("alice").await, w.tenant("mallory").await);
        let things = Things::make(w, &alice).await;
        let keys = Keys::make(&mallory).await;
        let before = things.state(&alice).await;
        let mut wrong = Vec::new();
        for row in rows().iter().filter(|row| row.want != "-") {
            if let Err(why) = hold_against(row, &things, &keys, &mallory).await {
                wrong.push(format!("{} {}: {why}", row.method, row.path));
            }
        }
        assert!(wrong.is_empty(), "{} routes:\n{}", wrong.len(), wrong.join("\n"));
        let after = things.state(&alice).await;
        for (path, state) in &before {
            assert_eq!(Some(state), after.get(path), "{path} changed");
        }
        things.owner_is_answered(&alice, &rows()).await;
        lists_hold_nothing_of_others(&mallory, &things, &keys).await;
        things.forget(&alice).await;
    });
}

/// Sends a row with the owner's ids and with none's.
async fn hold_against(row: &Row<'_>, things: &Things, keys: &Keys, caller: &Client) -> Result<(), String> {
    let theirs = things.request(caller, keys, row, true).await;
    let none = things.request(caller, keys, row, false).await;
    let (want, want_none) = row.want.split_once('/').unwrap_or((row.want, row.want));
    if theirs.status.to_string() != want || none.status.to_string() != want_none {
        return Err(format!("{} {} | {} {}", theirs.status, theirs.body, none.status, none.body));
    }
    if theirs.body.contains(&format!("there is no {} /", row.method)) {
        return Err(format!("no such route: {}", theirs.body));
    }
    if want == want_none && theirs != none {
        return Err(format!("tells them apart:\n  {theirs:?}\n  {none:?}"));
    }
    Ok(())
}

/// What the other tenant sees by itself: its own sandbox and volume, and nothing that came of the requests.
async fn lists_hold_nothing_of_others(caller: &Client, things: &Things, keys: &Keys) {
    let lists = [
        "/v1/sandboxes?all=1",
        "/v1/events",
        "/v1/snapshots",
        "/v1/threads",
        "/api/sandbox/sessions",
        "/v1/volumes",
        "/v1/templates",
        "/v1/builds",
        "/v1/secrets",
        "/v1/system/disk",
        "/e2b/sandboxes",
        "/e2b/v2/sandboxes",
        "/e2b/snapshots",
        "/e2b/templates",
        "/e2b/v2/templates",
        "/e2b/volumes",
        "/e2b/secrets",
        "/daytona/api/sandbox",
        "/daytona/api/sandbox/paginated",
        "/daytona/api/snapshots",
        "/daytona/api/volumes",
        "/daytona/api/secret",
        "/daytona/api/secret/paginated",
        "/daytona/api/warm-pools",
        "/daytona/api/organizations",
        "/leap0/v1/sandboxes",
        "/leap0/v1/snapshots",
    ];
    for path in lists {
        let answer = keys.sign(caller.raw(Method::GET, path), path).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let text = answer.text().await.unwrap();
        let told: Vec<_> = things.marks().filter(|mark| text.contains(mark)).collect();
        assert!(told.is_empty(), "{path} tells {told:?}: {text}");
    }
    let count = async |path: &str| caller.get(path).await.ok()["items"].as_array().unwrap().len();
    assert_eq!(count("/v1/sandboxes").await, 1, "only its own sandbox");
    assert_eq!(count("/v1/volumes").await, 1, "only its own volume");
    assert_eq!((count("/v1/snapshots").await, count("/v1/builds").await), (0, 0));
}

/// What can be compared of an answer: ids replaced by what they are, and nothing that is new each time.
#[derive(Debug, PartialEq, Eq)]
struct Answered {
    status: u16,
    fields: BTreeMap<String, String>,
    body: String,
}

/// Ids of requests, times and links differ from answer to answer.
fn without_what_is_new(body: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(body) else { return body.to_owned() };
    if let Some(object) = value.as_object_mut() {
        for field in ["request_id", "requestId", "timestamp", "url"] {
            if object.contains_key(field) {
                object.insert(field.to_owned(), json!("…"));
            }
        }
    }
    value.to_string()
}
