//! The owner's things, how a request names them, and how they look to their owner.

use std::collections::BTreeMap;

use atoll_tests::{Client, Value, World, json, until};
use reqwest::multipart::{Form, Part};
use reqwest::{Method, RequestBuilder};

use super::{Answered, Row, without_what_is_new};

/// What a caller shows beside its key.
pub(crate) struct Keys {
    key: String,
    /// Its own sandbox, made through the E2B front.
    pub(crate) sandbox: String,
    access_token: String,
    volume_token: String,
    session_token: String,
}

impl Keys {
    pub(crate) async fn make(client: &Client) -> Self {
        let key = client.key().to_owned();
        let e2b = async |path: &str, body: Value| {
            let request = client.raw(Method::POST, path).header("x-api-key", &key).json(&body);
            request.send().await.unwrap().json::<Value>().await.unwrap()
        };
        let sandbox =
            e2b("/e2b/v2/sandboxes", json!({ "templateID": "busybox", "timeout": 600, "secure": true }))
                .await;
        let volume = e2b("/e2b/volumes", json!({ "name": "own" })).await;
        let session =
            client.raw(Method::GET, "/daytona/api/object-storage/push-access").send().await.unwrap();
        let session: Value = session.json().await.unwrap();
        let text = |value: &Value, field: &str| {
            value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
        };
        Self {
            sandbox: text(&sandbox, "sandboxID"),
            access_token: text(&sandbox, "envdAccessToken"),
            volume_token: text(&volume, "token"),
            session_token: text(&session, "sessionToken"),
            key,
        }
    }

    /// Shows what the route wants to see.
    pub(crate) fn sign(&self, request: RequestBuilder, path: &str) -> RequestBuilder {
        match path {
            path if path.starts_with("/e2b/volumecontent/") => {
                // In place of the key, which is there already.
                replaced(request, "authorization", &format!("Bearer {}", self.volume_token))
            }
            path if path.starts_with("/e2b/") => request.header("x-api-key", &self.key),
            path if path.starts_with("/daytona/s3/") => {
                request.header("x-amz-security-token", &self.session_token)
            }
            path if path.starts_with("host:") => request.header("x-access-token", &self.access_token),
            _ => request,
        }
    }
}

fn replaced(request: RequestBuilder, name: &'static str, value: &str) -> RequestBuilder {
    let mut fields = reqwest::header::HeaderMap::new();
    fields.insert(name, value.parse().unwrap());
    request.headers(fields)
}

/// By the name in the table: the owner's id, and an unused one of the same form.
pub(crate) struct Things(BTreeMap<&'static str, (String, String)>);

impl Things {
    pub(crate) async fn make(w: &World, alice: &Client) -> Self {
        let mut all = BTreeMap::new();
        make_sandbox(alice, &mut all).await;
        make_rest(w, alice, &mut all).await;
        make_for_fronts(alice, &mut all).await;
        let of =
            |name, id: &str| if matches!(name, "build" | "build_uuid") { next_build(id) } else { other(id) };
        Self(all.into_iter().map(|(name, id)| (name, (id.clone(), of(name, &id)))).collect())
    }

    /// Ids and names that another tenant must never read.
    pub(crate) fn marks(&self) -> impl Iterator<Item = &str> {
        let common = ["pid", "context", "tenant"];
        self.0.iter().filter(move |(name, _)| !common.contains(name)).map(|(_, (id, _))| id.as_str())
    }

    fn filled(&self, text: &str, keys: &Keys, is_theirs: bool) -> String {
        let mut text = text.replace("{=own}", &keys.sandbox);
        for (name, (theirs, none)) in &self.0 {
            text = text.replace(&format!("{{{name}}}"), if is_theirs { theirs } else { none });
        }
        while let Some((before, rest)) = text.split_once("{=") {
            let (literal, after) = rest.split_once('}').unwrap();
            text = format!("{before}{literal}{after}");
        }
        text
    }

    pub(crate) async fn request(
        &self,
        caller: &Client,
        keys: &Keys,
        row: &Row<'_>,
        is_theirs: bool,
    ) -> Answered {
        let path = self.filled(row.path, keys, is_theirs);
        let body = self.filled(row.body, keys, is_theirs);
        let answer = prepared(caller, keys, row.method, &path, &body).send().await;
        let answer = answer.unwrap_or_else(|cause| panic!("{} {path}: {cause:?}", row.method));
        let status = answer.status().as_u16();
        let fields = answer.headers().iter().map(|(name, value)| {
            let is_new = matches!(name.as_str(), "x-request-id" | "date" | "content-length" | "retry-after");
            let value =
                if is_new { "…".to_owned() } else { self.neutral(value.to_str().unwrap_or_default()) };
            (name.to_string(), value)
        });
        let fields = fields.collect();
        // A stream that should not have begun is not read to its end.
        let body = if status == 200 && row.path.contains("follow=1") {
            String::new()
        } else {
            answer.text().await.unwrap()
        };
        Answered { status, fields, body: without_what_is_new(&self.neutral(&body)) }
    }

    /// Every id by what it is.
    fn neutral(&self, text: &str) -> String {
        // Longer ones first: some hold others.
        let mut ids: Vec<_> = self.0.iter().filter(|(name, _)| **name != "pid").collect();
        ids.sort_by_key(|(_, (theirs, _))| std::cmp::Reverse(theirs.len()));
        ids.iter().fold(text.to_owned(), |text, (name, (theirs, none))| {
            text.replace(theirs.as_str(), &format!("<{name}>")).replace(none.as_str(), &format!("<{name}>"))
        })
    }

    fn id(&self, name: &str) -> &str {
        &self.0[name].0
    }

    /// How everything looks to its owner.
    pub(crate) async fn state(&self, owner: &Client) -> BTreeMap<String, String> {
        let sandbox = format!("/v1/sandboxes/{}", self.id("sandbox"));
        let volume = format!("/v1/volumes/{}", self.id("volume"));
        let toolbox = format!("/daytona/toolbox/{}", self.id("sandbox"));
        let mut paths: Vec<String> =
            ["", "/previews", "/terminals", "/awake", "/egress/policy", "/lineage", "/processes"]
                .iter()
                .map(|rest| format!("{sandbox}{rest}"))
                .collect();
        paths.extend(
            ["/files/list?path=/tmp", "/files?path=/tmp/mine"].map(|rest| format!("{sandbox}{rest}")),
        );
        paths.extend(["", "/entries?path=/", "/files?path=/mine"].map(|rest| format!("{volume}{rest}")));
        paths.extend(["/process/session", "/process/pty"].map(|rest| format!("{toolbox}{rest}")));
        paths.push(format!("/v1/templates/{}", self.id("template")));
        paths.push(format!("/v1/builds/{}", self.id("build")));
        paths.push(format!("/v1/sandboxes/{}", self.id("e2b_sandbox")));
        paths.push(format!("/v1/sandboxes/{}/files/list?path=/tmp", self.id("e2b_sandbox")));
        paths.push(format!("/leap0/v1/sandbox/{}/pty", self.id("sandbox")));
        paths.extend(
            [
                "/v1/sandboxes",
                "/v1/events?limit=500",
                "/v1/snapshots",
                "/v1/volumes",
                "/v1/secrets",
                "/daytona/api/secret",
                "/daytona/api/warm-pools",
            ]
            .map(str::to_owned),
        );
        let mut state = BTreeMap::new();
        for path in paths {
            let answer = owner.raw(Method::GET, &path).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{path}");
            let text = answer.text().await.unwrap();
            // A sandbox with a hold is always active, and a time that is counted from now differs slightly.
            let mut value = serde_json::from_str(&text).unwrap_or_else(|_| json!(text));
            forget_activity(&mut value);
            state.insert(path, value.to_string());
        }
        state
    }

    /// The proof that the rows reach the things: their owner gets them by the same requests.
    pub(crate) async fn owner_is_answered(&self, owner: &Client, rows: &[Row<'_>]) {
        let keys = Keys::make(owner).await;
        // Tools that the small template has not, rows about the caller's own sandbox, and what the owner has none of either.
        let skipped = [
            "/git/",
            "/lsp/",
            "/interpreter/",
            "/code/contexts/",
            "watch",
            "host:",
            "{=own}",
            "/regions/",
            "/computeruse/",
            "{sandbox}/build-logs",
            "/e2b/templates/{snapshot}",
        ];
        let reads = rows.iter().filter(|row| {
            row.method == "GET" && row.want == "404" && !skipped.iter().any(|word| row.path.contains(word))
        });
        let mut refused = Vec::new();
        for row in reads {
            let path = self.filled(row.path, &keys, true);
            let answer = prepared(owner, &keys, "GET", &path, "").send().await.unwrap();
            if !answer.status().is_success() {
                refused.push(format!("{path}: {} {}", answer.status(), answer.text().await.unwrap()));
            }
        }
        assert!(refused.is_empty(), "{}", refused.join("\n"));
        owner.remove(&keys.sandbox).await;
    }

    /// Takes away what the world does not.
    pub(crate) async fn forget(&self, owner: &Client) {
        let pool = format!("/daytona/api/warm-pools/{}", self.id("template"));
        assert_eq!(owner.raw(Method::DELETE, &pool).send().await.unwrap().status(), 204);
        owner.delete(&format!("/v1/templates/{}", self.id("template"))).await.ok();
    }
}

fn forget_activity(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("active_at");
            // What a sandbox does by itself, measured over the last seconds.
            if let Some(Value::Array(because)) = fields.get_mut("because") {
                because.retain(|reason| reason != "cpu" && reason != "network");
            }
            fields.get_mut("next").and_then(Value::as_object_mut).map(|next| next.remove("at"));
            fields.values_mut().for_each(forget_activity);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_activity),
        _ => {}
    }
}

fn prepared(caller: &Client, keys: &Keys, method: &str, path: &str, body: &str) -> RequestBuilder {
    let verb = if method == "WS" { Method::GET } else { method.parse().unwrap() };
    let mut request = match path.strip_prefix("host:") {
        Some(rest) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap());
            caller.raw(verb, path).header("host", format!("{host}.localhost:7070"))
        }
        None => caller.raw(verb, path),
    };
    if method == "WS" {
        request = request
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    }
    keys.sign(with_body(request, body), path)
}

fn with_body(request: RequestBuilder, body: &str) -> RequestBuilder {
    match body.split_once(':') {
        _ if body.is_empty() => request,
        Some(("raw", content)) => {
            request.header("content-type", "application/octet-stream").body(content.to_owned())
        }
        Some(("tar", name)) => request.header("content-type", "application/x-tar").body(archive(name)),
        Some(("file", content)) => {
            let part = Part::text(content.to_owned()).file_name("mine");
            request.multipart(Form::new().part("file", part))
        }
        Some(("files", path)) => {
            // COMPAT(daytona): paths and contents in parts of their own; COMPAT(leap0): parts named by their paths.
            let form = if path.starts_with("daytona") {
                Form::new()
                    .text("files[0].path", path.trim_start_matches("daytona").to_owned())
                    .part("files[0].file", Part::text("changed").file_name("mine"))
            } else {
                Form::new()
                    .percent_encode_noop()
                    .part(path.to_owned(), Part::text("changed").file_name("mine"))
            };
            request.multipart(form)
        }
        _ => request.header("content-type", "application/json").body(body.to_owned()),
    }
}

fn archive(name: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, &b"x"[..]).unwrap();
    tar.into_inner().unwrap()
}

/// An id of the same form as one that is there, with its digits and letters moved by one.
fn other(id: &str) -> String {
    if let Some(object) = id.strip_suffix("/context.tar") {
        return format!("{}/context.tar", other(object));
    }
    // Hexadecimal digits stay hexadecimal.
    let moved = |c: char| match c {
        '0'..='8' | 'a'..='e' | 'g'..='y' => char::from(c as u8 + 1),
        '9' => '0',
        'f' => 'a',
        'z' => 'g',
        other => other,
    };
    id.chars().map(moved).collect()
}

/// The neighbour of a build, by its id or by the UUID that E2B's SDKs know it by: both forms of it are the same number, of which
/// the lowest bit is changed.
fn next_build(id: &str) -> String {
    let (rest, last) = id.split_at(id.len() - 1);
    let digits = if id.contains('-') { "0123456789abcdef" } else { "abcdefghijklmnopqrstuvwxyz0123456789" };
    let at = digits.find(last).unwrap() ^ 1;
    format!("{rest}{}", &digits[at..=at])
}

type Ids = BTreeMap<&'static str, String>;

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}

async fn make_sandbox(alice: &Client, all: &mut Ids) {
    let id = alice
        .create(
            json!({ "name": "box-of-alice", "labels": { "owner": "alice" }, "thread": "thread-of-alice" }),
        )
        .await;
    alice.write_file(&id, "/tmp/mine", "untouched").await.ok();
    let sleep = json!({ "argv": ["sleep", "1000"], "detach": true, "open_stdin": true });
    all.insert("pid", alice.exec(&id, sleep).await.answer["pid"].to_string());
    let at = format!("/v1/sandboxes/{id}");
    let terminal = alice.post(&format!("{at}/terminals"), json!({ "thread": "thread-of-alice" })).await.ok();
    all.insert("terminal", text(&terminal, "id"));
    let preview = alice.post(&format!("{at}/previews"), json!({ "port": 8080 })).await.ok();
    all.insert("preview", text(&preview, "id"));
    all.insert("token", text(&preview, "token").rsplit('_').next().unwrap().to_owned());
    alice.post(&format!("{at}/hold"), json!({ "for_s": 600 })).await.ok();
    // Vendors' fronts find only names of the tenant.
    let named = json!({ "name": "snapshot-of-alice", "tenant_wide": true });
    let snapshot = alice.post(&format!("{at}/snapshots"), named).await.ok();
    all.insert("snapshot", text(&snapshot, "id"));
    all.insert("snapshot_name", "snapshot-of-alice".to_owned());
    all.insert("sandbox_name", "box-of-alice".to_owned());
    all.insert("thread", "thread-of-alice".to_owned());
    all.insert("tenant", "alice".to_owned());
    all.insert("tenant_id", text(&alice.sandbox(&id).await, "tenant"));
    all.insert("sandbox", id);
    all.insert("context", "0b1c2d3e4f5061728394a5b6c7d8e9fa".to_owned());
}

async fn make_rest(w: &World, alice: &Client, all: &mut Ids) {
    let volume = alice.post("/v1/volumes", json!({ "name": "volume-of-alice" })).await.ok();
    let id = text(&volume, "id");
    let put = alice.raw(Method::PUT, &format!("/v1/volumes/{id}/files?path=/mine")).body("untouched");
    assert!(put.send().await.unwrap().status().is_success());
    all.insert("volume", id);
    all.insert("volume_name", "volume-of-alice".to_owned());
    let secret = json!({ "name": "secret-of-alice", "value": "value-of-alice" });
    alice.post("/v1/secrets", secret).await.ok();
    all.insert("secret", "secret-of-alice".to_owned());
    let secrets: Value =
        alice.raw(Method::GET, "/daytona/api/secret").send().await.unwrap().json().await.unwrap();
    all.insert("secret_id", text(&secrets[0], "id"));
    let build =
        json!({ "template": "template-of-alice", "dockerfile": "FROM busybox\nRUN echo alice > /alice\n" });
    let build = text(&alice.post("/v1/builds", build).await.ok(), "id");
    until("the build is ready", async || {
        let now = alice.get(&format!("/v1/builds/{build}")).await.ok();
        assert_ne!(now["status"], "failed", "{now}");
        (now["status"] == "ready").then_some(())
    })
    .await;
    all.insert("build", build);
    all.insert("template", "template-of-alice".to_owned());
    let key = w.admin().post("/v1/keys", json!({ "tenant": "alice", "name": "key-of-alice" })).await.ok();
    all.insert("key", text(&key, "id"));
    all.insert("key_name", "key-of-alice".to_owned());
}

async fn make_for_fronts(alice: &Client, all: &mut Ids) {
    let post = async |path: String, body: Value| {
        let request = alice.raw(Method::POST, &path).header("x-api-key", alice.key()).json(&body);
        let answer = request.send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json::<Value>().await.unwrap_or_default()
    };
    let template =
        alice.raw(Method::GET, "/e2b/templates/template-of-alice").header("x-api-key", alice.key());
    let template: Value = template.send().await.unwrap().json().await.unwrap();
    all.insert("build_uuid", text(&template["builds"][0], "buildID"));
    let made =
        post("/e2b/v2/sandboxes".into(), json!({ "templateID": "busybox", "timeout": 600, "secure": true }))
            .await;
    all.insert("e2b_sandbox", text(&made, "sandboxID"));
    let toolbox = format!("/daytona/toolbox/{}", all["sandbox"]);
    post(format!("{toolbox}/process/session"), json!({ "sessionId": "session-of-alice" })).await;
    let exec = json!({ "command": "sleep 1000", "runAsync": true });
    let command = post(format!("{toolbox}/process/session/session-of-alice/exec"), exec).await;
    all.insert("command", text(&command, "cmdId"));
    all.insert("session", "session-of-alice".to_owned());
    let size = json!({ "id": "pty-of-alice", "cols": 80, "rows": 24 });
    // Every front shows the same terminals, so this one is Leap0's too.
    post(format!("{toolbox}/process/pty"), size).await;
    all.insert("pty", "pty-of-alice".to_owned());
    post("/daytona/api/warm-pools".into(), json!({ "snapshot": "template-of-alice", "pool": 1 })).await;
    let session = alice.raw(Method::GET, "/daytona/api/object-storage/push-access").send().await.unwrap();
    let session: Value = session.json().await.unwrap();
    let hash = "1f".repeat(32);
    let object = format!("{}/{hash}/context.tar", text(&session, "organizationId"));
    let put = alice.raw(Method::PUT, &format!("/daytona/s3/contexts/{object}"));
    let put = put.header("x-amz-security-token", text(&session, "sessionToken")).body("untouched");
    assert_eq!(put.send().await.unwrap().status(), 200);
    let begin = alice.raw(Method::POST, &format!("/daytona/s3/contexts/{object}?uploads="));
    let begin = begin.header("x-amz-security-token", text(&session, "sessionToken"));
    let begun = begin.send().await.unwrap().text().await.unwrap();
    let upload = begun.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap();
    all.insert("upload", upload.to_owned());
    all.insert("object", object);
    let files = alice.raw(Method::GET, &format!("/e2b/templates/template-of-alice/files/{hash}"));
    let files: Value = files.header("x-api-key", alice.key()).send().await.unwrap().json().await.unwrap();
    let link = text(&files, "url");
    let put = alice.raw(Method::PUT, &link[link.find("/e2b/").unwrap()..]).body(archive("x"));
    assert!(put.send().await.unwrap().status().is_success());
    all.insert("hash", hash);
}
