//! What the E2B SDK is told where nothing is done.

use crate::nothing::whole;

const TEN_MB: usize = 10_000_000;
const SANDBOX: &str = r#"{"templateID":"base","sandboxID":"nothing","clientID":"none","envdVersion":"0.6.13","envdAccessToken":"none","domain":"localhost"}"#;

pub(super) fn answer(method: &str, path: &str, _own: &str) -> Vec<u8> {
    match (method, path) {
        ("DELETE", _) => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        ("POST", "/process.Process/Start") => whole(200, "application/connect+json", &hello()),
        ("POST", "/execute") => whole(200, "application/x-ndjson", two().as_bytes()),
        ("GET", "/files") => whole(200, "application/octet-stream", &vec![b'x'; TEN_MB]),
        ("POST", "/files") => {
            whole(200, "application/json", br#"[{"name":"ten","path":"/tmp/ten","type":"file"}]"#)
        }
        ("POST", path) if path.ends_with("/sandboxes") => whole(201, "application/json", SANDBOX.as_bytes()),
        _ => whole(404, "application/json", br#"{"code":404,"message":"nothing here"}"#),
    }
}

/// The events of `echo hi`, each in its frame.
fn hello() -> Vec<u8> {
    let events = [
        r#"{"event":{"start":{"pid":7}}}"#,
        r#"{"event":{"data":{"stdout":"aGkK"}}}"#,
        r#"{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}"#,
    ];
    let framed = events.iter().map(|event| (0, *event)).chain([(2, "{}")]);
    let mut frames = Vec::new();
    for (flag, text) in framed {
        frames.push(flag);
        frames.extend(u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
        frames.extend(text.as_bytes());
    }
    frames
}

/// The lines of `1+1`.
fn two() -> &'static str {
    "{\"type\":\"number_of_executions\",\"execution_count\":1}\n{\"type\":\"result\",\"text\":\"2\",\"is_main_result\":true}\n\
     {\"type\":\"end_of_execution\"}\n"
}
