//! `atoll login`: a code that a person approves, for a key of the command line's own; and what a stranger can do with it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use atoll_tests::{Value, World, json, run};
use reqwest::Method;

use super::{SERVER, contexts_file, ok, ok_json, refused, text, user};

/// A command line that waits for approval.
struct WaitingLogin {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    code: String,
}

impl WaitingLogin {
    fn start(w: &World, words: &[&str]) -> Self {
        let mut command = user(w);
        command.args(["login", "--json"]).args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(started["approve_url"], json!(format!("{SERVER}/#/approve")), "the link has no code");
        let code = started["code"].as_str().unwrap().to_owned();
        Self { child, lines, code }
    }

    /// What it printed at its end; `Err`: what it said when it failed.
    fn end(mut self) -> Result<Value, String> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        let done = self.child.wait_with_output().unwrap();
        if done.status.success() { Ok(serde_json::from_str(&line).unwrap()) } else { Err(text(&done.stderr)) }
    }
}

/// `atoll` with the admin key, as on the server.
fn on_server(w: &World, words: &[&str]) -> Result<String, String> {
    let done = w.command().args(words).stdin(Stdio::null()).output().unwrap();
    if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
}

#[test]
fn a_login_gives_a_key_of_its_own_that_logout_revokes() {
    run(async |w| {
        let blue = w.tenant("blue").await;
        let login = WaitingLogin::start(w, &[SERVER, "--name", "lab"]);
        // Without a terminal nobody can have read what is approved.
        let asked = on_server(w, &["login", "approve", &login.code]).unwrap_err();
        assert!(asked.contains("--force"), "{asked}");
        let shown = w.admin().get(&format!("/v1/logins/{}", login.code)).await.ok();
        assert!(shown["name"].as_str().unwrap().starts_with("anna@"), "{shown}");
        assert_eq!(shown["address"], json!("127.0.0.1"));
        let code = login.code.clone();
        let told =
            on_server(w, &["login", "approve", &code.to_lowercase(), "--tenant", "blue", "--force"]).unwrap();
        for part in ["anna@", "127.0.0.1", "user key", "tenant blue"] {
            assert!(told.contains(part), "{part}: {told}");
        }
        let again = on_server(w, &["login", "approve", &code, "--force"]).unwrap_err();
        assert!(again.contains("no login is waiting"), "{again}");
        let ended = login.end().unwrap();
        assert_eq!((&ended["context"], &ended["tenant"]), (&json!("lab"), &json!("blue")), "{ended}");

        let who = ok_json(w, &["whoami", "--json"]);
        assert_eq!((&who["context"], &who["tenant_name"]), (&json!("lab"), &json!("blue")), "{who}");
        assert_eq!(
            (&who["scope"], &who["server_version"]),
            (&json!("user"), &who["client_version"]),
            "{who}"
        );
        let whole = ok(w, &["whoami"]);
        assert!(whole.contains("tenant   blue") && whole.contains("rights   user"), "{whole}");
        let listed = blue.get("/v1/keys").await.ok();
        let key = who["key"].as_str().unwrap();
        assert!(listed["items"].as_array().unwrap().iter().any(|one| one["id"] == json!(key)), "{listed}");
        assert!(refused(w, &["login", "http://127.0.0.1:9", "--name", "lab"]).contains("--name"));

        let stored: Value = serde_json::from_slice(&std::fs::read(contexts_file(w)).unwrap()).unwrap();
        let secret = stored["contexts"]["lab"]["key"].as_str().unwrap();
        ok(w, &["logout"]);
        w.client(secret).get("/v1/keys/current").await.refused(401, "unauthenticated");
        assert!(!std::fs::read_to_string(contexts_file(w)).unwrap().contains(secret));
        assert!(refused(w, &["logout"]).contains("no key"));
        assert!(refused(w, &["whoami"]).contains("atoll login --context lab"));

        // Again into the same context, refused by the person.
        let login = WaitingLogin::start(w, &[]);
        on_server(w, &["login", "deny", &login.code]).unwrap();
        assert!(login.end().unwrap_err().contains("was refused"));
    });
}

fn start(name: &str) -> Value {
    json!({ "name": name })
}

#[test]
fn codes_are_few_cannot_be_guessed_and_give_nothing_to_who_knows_them() {
    run(async |w| {
        let (admin, red, nobody) = (w.admin(), w.tenant("red").await, w.client(""));
        let login = async |name: &str| admin.post("/v1/logins", start(name)).await.ok();
        let first = login("anna@laptop").await;
        let code = first["code"].as_str().unwrap().to_owned();
        let approve = format!("/v1/logins/{code}/approve");
        for bad in ["", " ", "a\nb", "\u{202e}admin", &"a".repeat(201)] {
            admin.post("/v1/logins", start(bad)).await.refused(400, "invalid_request");
        }
        foreign_pages_approve_nothing(&approve).await;
        nobody.post(&approve, json!({})).await.refused(401, "unauthenticated");
        w.client(first["secret"].as_str().unwrap())
            .post(&approve, json!({}))
            .await
            .refused(401, "unauthenticated");
        w.client(&code).post_empty("/v1/logins/poll").await.refused(401, "unauthenticated");
        // Nobody gives away what he has not.
        red.post(&approve, json!({ "scope": "admin" })).await.refused(403, "forbidden");
        red.post(&approve, json!({ "tenant": "default" })).await.refused(403, "forbidden");
        let poll = w.client(first["secret"].as_str().unwrap());
        assert_eq!(poll.post_empty("/v1/logins/poll").await.ok()["state"], json!("pending"));
        poll.post_empty("/v1/logins/poll").await.refused(429, "rate_limited");

        // A key of the person who approved; it ends with the person's.
        red.post(&approve, json!({})).await.ok();
        tokio::time::sleep(Duration::from_millis(600)).await;
        let polled = poll.post_empty("/v1/logins/poll").await.ok();
        assert_eq!(
            (&polled["state"], &polled["tenant_name"]),
            (&json!("approved"), &json!("red")),
            "{polled}"
        );
        let own = red.get("/v1/keys/current").await.ok();
        assert_eq!(polled["key"]["created_by"], own["id"]);
        tokio::time::sleep(Duration::from_millis(600)).await;
        poll.post_empty("/v1/logins/poll").await.refused(401, "unauthenticated");

        // The person's key is deleted between the approval and the poll.
        let second = login("bob@laptop").await;
        let person = red.post("/v1/keys", json!({})).await.ok();
        let person_client = w.client(person["secret"].as_str().unwrap());
        person_client
            .post(&format!("/v1/logins/{}/approve", second["code"].as_str().unwrap()), json!({}))
            .await
            .ok();
        red.delete(&format!("/v1/keys/{}", person["id"].as_str().unwrap())).await;
        let poll = w.client(second["secret"].as_str().unwrap());
        poll.post_empty("/v1/logins/poll").await.refused(401, "unauthenticated");

        guesses_are_bounded(w).await;
        open_logins_are_bounded_and_end_with_the_server(w).await;
    });
}

/// A page of another site can make a browser send requests, but no key: there is no cookie to ride on.
async fn foreign_pages_approve_nothing(approve: &str) {
    let http = reqwest::Client::new();
    for (kind, body) in [
        ("text/plain", "{}"),
        ("application/x-www-form-urlencoded", "scope=admin"),
        ("application/json", "{}"),
    ] {
        let request = http.request(Method::POST, format!("{SERVER}{approve}")).header("content-type", kind);
        let request =
            request.header("origin", "https://evil.example").header("cookie", "key=atl_x; atoll.key=atl_x");
        let answer = request.body(body).send().await.unwrap();
        assert_eq!(answer.status(), 401, "{kind}");
        assert!(answer.headers().get("access-control-allow-credentials").is_none());
    }
}

async fn guesses_are_bounded(w: &World) {
    let green = w.tenant("green").await;
    let made = w.admin().post("/v1/logins", start("anna@laptop")).await.ok();
    let right = format!("/v1/logins/{}", made["code"].as_str().unwrap());
    green.get(&right).await.ok();
    for n in 0..10 {
        let guess = format!("/v1/logins/{}", ["ZZZZ-ZZZZ", "nonsense"][n % 2]);
        green.get(&guess).await.refused(404, "key_not_found");
    }
    green.get(&right).await.refused(429, "rate_limited");
    green.post(&format!("{right}/approve"), json!({})).await.refused(429, "rate_limited");
    green.delete(&right).await.refused(429, "rate_limited");
    green.get("/v1/keys").await.ok();
    w.admin().get(&right).await.ok();
}

async fn open_logins_are_bounded_and_end_with_the_server(w: &World) {
    let nobody = w.client("");
    let mut started = Vec::new();
    let refused = loop {
        assert!(started.len() <= 16, "without a bound");
        let answer = nobody.post("/v1/logins", start("anna@laptop")).await;
        if answer.status != 201 {
            break answer;
        }
        started.push(answer.ok()["secret"].as_str().unwrap().to_owned());
    };
    refused.refused(429, "rate_limited");
    w.crash_server().await;
    w.client(&started[0]).post_empty("/v1/logins/poll").await.refused(401, "unauthenticated");
    nobody.post("/v1/logins", start("anna@laptop")).await.ok();
}
