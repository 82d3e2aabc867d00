//! `atoll create`: one object with `--json`, else the id on stdout and the next command on stderr.

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::{Context, text};
use crate::{
    cli::{
        sandbox::{Create, Shape},
        values::Pair,
    },
    client::Client,
    failure::Failure,
    out::Shade,
};

pub(super) async fn create(context: &Context, args: Create) -> Result<(), Failure> {
    let client = context.client()?;
    let mut body = body(&args.shape);
    if let Some(timeout) = args.timeout {
        body.insert("timeout_s".to_owned(), json!(timeout.whole()));
    }
    if let Some(on_timeout) = args.on_timeout {
        body.insert("on_timeout".to_owned(), json!(on_timeout.as_str()));
    }
    if !args.command.is_empty() {
        body.insert("command".to_owned(), json!(args.command));
    }
    context.out.status("creating …");
    let wait = if args.detach { "0" } else { "1" };
    let answer = send(&client, &body, wait, args.idempotency_key.as_deref()).await;
    context.out.status_done();
    let sandbox = answer?;
    if context.out.json {
        return context.out.json(&sandbox);
    }
    context.out.line(text(&sandbox, "id"))?;
    let name = if text(&sandbox, "name").is_empty() { text(&sandbox, "id") } else { text(&sandbox, "name") };
    context.out.tell(&context.out.shade_talk(Shade::Faint, &format!("next: atoll sh {name}")));
    Ok(())
}

/// Asks for a sandbox.
pub(super) async fn send(
    client: &Client,
    body: &Map<String, Value>,
    wait: &str,
    idempotency_key: Option<&str>,
) -> Result<Value, Failure> {
    let mut request = client.request(Method::POST, "/v1/sandboxes").query(&[("wait", wait)]).json(body);
    if let Some(key) = idempotency_key {
        request = request.header("Idempotency-Key", key);
    }
    client.json(request).await
}

/// What was said, and nothing else: the rest is the server's default.
pub(super) fn body(shape: &Shape) -> Map<String, Value> {
    let mut body = Map::new();
    let mut put = |field: &str, value: Option<Value>| {
        if let Some(value) = value {
            body.insert(field.to_owned(), value);
        }
    };
    put("template", shape.template.as_ref().map(|v| json!(v)));
    put("name", shape.name.as_ref().map(|v| json!(v)));
    put("cpu", shape.cpu.map(|v| json!(v)));
    put("memory_mib", shape.memory.map(|v| json!(v.0)));
    put("disk_mib", shape.disk.map(|v| json!(v.0)));
    put("pids", shape.pids.map(|v| json!(v)));
    put("network", shape.network.map(|v| json!(v.as_str())));
    put("storage", shape.storage.map(|v| json!(v.as_str())));
    put("user", shape.user.as_ref().map(|v| json!(v)));
    put("env", pairs(&shape.env));
    put("labels", pairs(&shape.label));
    body
}

/// Pairs as an object; the last of a repeated key holds. Nothing said is nothing sent.
pub(super) fn pairs(pairs: &[Pair]) -> Option<Value> {
    if pairs.is_empty() {
        return None;
    }
    let fields = pairs.iter().map(|Pair(key, value)| (key.clone(), json!(value)));
    Some(Value::Object(fields.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::values::Mebibytes;

    #[test]
    fn only_what_was_said_is_sent() {
        assert_eq!(Value::Object(body(&Shape::default())), json!({}));
        let shape = Shape {
            memory: Some(Mebibytes(64)),
            env: vec![Pair("A".into(), "1".into()), Pair("A".into(), "2".into())],
            ..Shape::default()
        };
        assert_eq!(Value::Object(body(&shape)), json!({"memory_mib": 64, "env": {"A": "2"}}));
    }
}
