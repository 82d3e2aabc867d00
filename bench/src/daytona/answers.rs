//! What the Daytona SDK is told where nothing is done.

use crate::nothing::whole;

const TEN_MB: usize = 10_000_000;
const JSON: &str = "application/json";
const SANDBOX: &str = r#"{"id":"nothing","organizationId":"none","name":"nothing","user":"daytona","env":{},
"labels":{"code-toolbox-language":"python"},"public":false,"networkBlockAll":false,"kvm":false,"target":"local","cpu":1,
"gpu":0,"memory":1,"disk":3,"state":"started","toolboxProxyUrl":"/toolbox","createdAt":"2026-01-01T00:00:00Z"}"#;

pub(super) fn answer(method: &str, path: &str, own: &str) -> Vec<u8> {
    let sandbox = SANDBOX.replace("\"/toolbox\"", &format!("\"{own}/toolbox\""));
    match (method, path) {
        ("POST", "/toolbox/nothing/process/execute") => {
            whole(200, JSON, br#"{"exitCode":0,"result":"hi\n"}"#)
        }
        ("POST", "/toolbox/nothing/files/bulk-upload") => whole(200, JSON, br#"{"files":[],"errors":[]}"#),
        ("POST", "/toolbox/nothing/files/bulk-download") => {
            let head = format!(
                "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/ten\"\r\n\
                 Content-Type: application/octet-stream\r\nContent-Length: {TEN_MB}\r\n\r\n"
            );
            let body = [head.as_bytes(), &vec![b'x'; TEN_MB], b"\r\n--B--\r\n"].concat();
            whole(200, "multipart/form-data; boundary=B", &body)
        }
        ("POST" | "GET" | "DELETE", path) if path.starts_with("/api/sandbox") => {
            whole(200, JSON, sandbox.as_bytes())
        }
        _ => whole(404, JSON, br#"{"statusCode":404,"message":"nothing here"}"#),
    }
}
