//! Trying to reach things from inside a sandbox: tasks in, one result each; and the log that must tell of them.
//!
//! The tasks and their results are those of `probes/reach.py`: `dns`, `tcp`, `tls`, `hello`, `udp`, `url`, `raw`. A task gives
//! up after `limit` seconds, ten by default: what a policy refuses is refused at once, so only a slow machine needs that long.
//! With `quiet` it reads for that many seconds, with `until` only until that text came.

use serde_json::{Value, json};

use crate::client::Client;
use crate::world::World;

/// The program inside; standard library of python only.
const PROBE: &str = include_str!("../probes/reach.py");

/// Tries all tasks at once and answers their results in order.
pub async fn reach(client: &Client, id: &str, tasks: Value) -> Vec<Value> {
    reach_as(client, id, tasks, "at-once", "user").await
}

/// Tries the tasks one after the other.
pub async fn reach_in_turn(client: &Client, id: &str, tasks: Value) -> Vec<Value> {
    reach_as(client, id, tasks, "in-turn", "user").await
}

/// As root of the sandbox.
pub async fn reach_as_root(client: &Client, id: &str, tasks: Value) -> Vec<Value> {
    reach_as(client, id, tasks, "at-once", "root").await
}

async fn reach_as(client: &Client, id: &str, tasks: Value, order: &str, user: &str) -> Vec<Value> {
    let argv = json!(["python3", "-c", PROBE, tasks.to_string(), order]);
    let ran = client.exec(id, json!({ "argv": argv, "user": user, "timeout_s": 100 })).await;
    let results: Value =
        ran.text().parse().unwrap_or_else(|cause| panic!("results of the probe: {cause}: {ran:?}"));
    results.as_array().expect("a list").clone()
}

/// One task, one result.
pub async fn try_one(client: &Client, id: &str, task: Value) -> Value {
    reach(client, id, json!([task])).await.remove(0)
}

/// Fetches an URL by the sandbox' own resolver and roots; the body, or what went wrong.
pub async fn fetch(client: &Client, id: &str, url: &str) -> Result<String, String> {
    let got = try_one(client, id, json!({ "do": "url", "url": url, "ca": ca_of(url) })).await;
    match got["body"].as_str() {
        Some(body) if got["status"] == 200 => Ok(body.to_owned()),
        _ => Err(got.to_string()),
    }
}

fn ca_of(url: &str) -> Value {
    if url.starts_with("https:") { json!(ROOTS) } else { Value::Null }
}

/// Where [`trust_the_internet`] puts the roots.
pub const ROOTS: &str = "/tmp/roots.pem";

/// Puts the authority of the test's internet where tasks find it as `ca`.
pub async fn trust_the_internet(client: &Client, id: &str, pem: &str) {
    client.write_file_as(id, ROOTS, pem.to_owned(), "&mode=644").await.ok();
}

/// Whether a task came to nothing: an error, or an end without a byte.
pub fn came_to_nothing(result: &Value) -> bool {
    result.get("error").is_some() || result["bytes"] == 0
}

/// The egress log of a sandbox, newest last.
pub async fn egress_log(client: &Client, id: &str) -> Vec<Value> {
    let page = client.get(&format!("/v1/sandboxes/{id}/egress?limit=1000")).await.ok();
    page["items"].as_array().expect("items").clone()
}

/// Waits until the log holds a record with these fields.
pub async fn logged(client: &Client, id: &str, fields: Value) -> Value {
    let fields = fields.as_object().expect("fields").clone();
    let what = format!("a record with {fields:?}");
    crate::until(&what, async || {
        let is_it = |record: &Value| fields.iter().all(|(name, value)| record[name] == *value);
        egress_log(client, id).await.into_iter().find(is_it)
    })
    .await
}

/// A sandbox with this policy that trusts the test's internet.
pub async fn guarded(world: &World, client: &Client, network: Value) -> String {
    let id = client.create(json!({ "network": network })).await;
    trust_the_internet(client, &id, world.internet.authority_pem()).await;
    id
}
