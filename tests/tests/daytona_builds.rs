//! Sandboxes that a Daytona create builds first, over plain HTTP against a real server: they are ordinary sandboxes from the first
//! moment, in one list with one name space, and survive a kill of the server.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::{Client, Options, World, image, json, run_with, template};
use reqwest::Method;
use serde_json::Value;

const SLOW: &str = "FROM ground\nRUN touch /began; sleep 600\n";

async fn ask(client: &Client, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
    let mut request = client.raw(method, &format!("/daytona/api{path}"));
    if let Some(body) = body {
        request = request.json(&body);
    }
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    (status, answer.json().await.unwrap_or_default())
}

async fn create(client: &Client, name: &str, dockerfile: &str) -> (u16, Value) {
    let build = json!({ "dockerfileContent": dockerfile });
    let body = json!({ "name": name, "buildInfo": build, "cpu": 1, "memory": 1, "disk": 1 });
    ask(client, Method::POST, "/sandbox", Some(body)).await
}

async fn until_state(client: &Client, id: &str, state: &str) -> Value {
    atoll_tests::until(&format!("{id} is {state}"), async || {
        let (status, found) = ask(client, Method::GET, &format!("/sandbox/{id}"), None).await;
        assert_eq!(status, 200, "{found}");
        (found["state"] == state).then_some(found)
    })
    .await
}

async fn listed(client: &Client, query: &str) -> Vec<String> {
    let (status, page) = ask(client, Method::GET, &format!("/sandbox{query}"), None).await;
    assert_eq!(status, 200, "{page}");
    page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

async fn with_ground(w: &World, name: &str, quota: Value) -> Client {
    let client = w.tenant_with(name, quota).await;
    client.import("ground", image::busybox().docker_archive("x")).await.ok();
    client
}

fn archive(name: &str, content: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, content.as_bytes()).unwrap();
    tar.into_inner().unwrap()
}

/// The object storage as an SDK of Daytona's uses it, with one set of credentials.
struct Storage {
    access: Value,
}

impl Storage {
    async fn open(client: &Client) -> Self {
        let (status, access) = ask(client, Method::GET, "/object-storage/push-access", None).await;
        assert_eq!(status, 200, "{access}");
        Self { access }
    }

    fn token(&self) -> &str {
        self.access["sessionToken"].as_str().unwrap()
    }

    /// Sends a request for the object of a hash; the status and the answer.
    async fn send(
        &self,
        client: &Client,
        method: Method,
        hash: &str,
        query: &str,
        body: Vec<u8>,
    ) -> (u16, String) {
        let organisation = self.access["organizationId"].as_str().unwrap();
        let path = format!("/daytona/s3/contexts/{organisation}/{hash}/context.tar{query}");
        let request = client.raw(method, &path).header("x-amz-security-token", self.token()).body(body);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

/// Sends an archive as E2B's SDKs do: by a link that needs no key.
async fn send_as_e2b(client: &Client, hash: &str, body: Vec<u8>) -> u16 {
    let path = format!("/e2b/templates/app/files/{hash}");
    let asked = client.raw(Method::GET, &path).header("x-api-key", client.key()).send().await.unwrap();
    let answer: Value = asked.json().await.unwrap();
    let url = answer["url"].as_str().unwrap();
    let put = client.raw(Method::PUT, &url[url.find("/e2b/").unwrap()..]).body(body);
    put.send().await.unwrap().status().as_u16()
}

#[test]
fn contexts_and_their_credentials_survive_a_kill_of_the_server() {
    run_with(Options::default(), async |w: &World| {
        let client = with_ground(w, "acme", json!({})).await;
        let storage = Storage::open(&client).await;
        let [one, two] = ["a1".repeat(32), "b2".repeat(32)];
        let put = storage.send(&client, Method::PUT, &one, "", archive("one.txt", "1")).await;
        assert_eq!(put.0, 200, "{}", put.1);
        let parts = archive("two.txt", "2");
        let (head, tail) = parts.split_at(700);
        let (_, begun) = storage.send(&client, Method::POST, &two, "?uploads=", Vec::new()).await;
        let upload = begun.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap();
        let part = |number: u8| format!("?partNumber={number}&uploadId={upload}");
        assert_eq!(storage.send(&client, Method::PUT, &two, &part(2), tail.to_vec()).await.0, 200);
        w.crash_server().await;
        let client = w.client(client.key());
        assert_eq!(storage.send(&client, Method::PUT, &two, &part(1), head.to_vec()).await.0, 200);
        let finish = format!("?uploadId={upload}");
        assert_eq!(storage.send(&client, Method::POST, &two, &finish, Vec::new()).await.0, 200);
        assert_eq!(storage.send(&client, Method::POST, &two, &finish, Vec::new()).await.0, 404);
        // A forged token, with the same credentials otherwise.
        let mut forged = storage.access.clone();
        forged["sessionToken"] =
            json!(storage.token().replace(storage.token().split('.').nth(2).unwrap(), "9999999999"));
        let refused = Storage { access: forged }.send(&client, Method::HEAD, &one, "", Vec::new()).await;
        assert_eq!(refused.0, 403);
        let text = "FROM ground\nCOPY one.txt two.txt /in/\n";
        let build = json!({ "dockerfileContent": text, "contextHashes": [one, two] });
        let body = json!({ "name": "app", "buildInfo": build, "cpu": 1, "memory": 1, "disk": 1 });
        let (status, made) = ask(&client, Method::POST, "/sandbox", Some(body)).await;
        assert_eq!(status, 200, "{made}");
        let id = made["id"].as_str().unwrap();
        until_state(&client, id, "started").await;
        assert_eq!(client.sh(id, "cat /in/one.txt /in/two.txt").await.text(), "12");
        client.remove(id).await;
    });
}

#[test]
fn uploads_by_every_front_share_one_bound() {
    // A context has 1 MiB at most, so all uploads of a tenant together have 4 MiB.
    run_with(Options::default().env("ATOLL_BUILD_CONTEXT_MAX", "1"), async |w: &World| {
        let client = w.tenant("acme").await;
        let storage = Storage::open(&client).await;
        let whole = || vec![0; 1 << 20];
        let hash = |number: u8| format!("{number:02x}").repeat(32);
        for number in 1..=2 {
            assert_eq!(send_as_e2b(&client, &hash(number), whole()).await, 200);
            assert_eq!(storage.send(&client, Method::PUT, &hash(number + 2), "", whole()).await.0, 200);
        }
        // The oldest one, which came by E2B's front, makes room for a new one of Daytona's.
        assert_eq!(storage.send(&client, Method::PUT, &hash(5), "", whole()).await.0, 200);
        assert_eq!(storage.send(&client, Method::HEAD, &hash(1), "", Vec::new()).await.0, 404);
        assert_eq!(storage.send(&client, Method::HEAD, &hash(2), "", Vec::new()).await.0, 200);
        // An unfinished upload of Daytona's leaves no room for one of E2B's or for a native build.
        let (_, begun) = storage.send(&client, Method::POST, &hash(6), "?uploads=", Vec::new()).await;
        let upload = begun.split("<UploadId>").nth(1).unwrap().split('<').next().unwrap();
        for number in 1..=4 {
            let part = format!("?partNumber={number}&uploadId={upload}");
            assert_eq!(storage.send(&client, Method::PUT, &hash(6), &part, whole()).await.0, 200);
        }
        assert_eq!(send_as_e2b(&client, &hash(7), vec![0; 10]).await, 429);
        let full = storage.send(&client, Method::PUT, &hash(7), "", vec![0; 10]).await;
        assert!(full.0 == 503 && full.1.contains("<Code>SlowDown</Code>"), "{full:?}");
        let finish =
            storage.send(&client, Method::POST, &hash(6), &format!("?uploadId={upload}"), Vec::new()).await;
        assert!(finish.0 == 400 && finish.1.contains("<Code>EntityTooLarge</Code>"), "{finish:?}");
        let abort =
            storage.send(&client, Method::DELETE, &hash(6), &format!("?uploadId={upload}"), Vec::new()).await;
        assert_eq!(abort.0, 204);
        assert_eq!(send_as_e2b(&client, &hash(7), vec![0; 10]).await, 200);
    });
}

#[test]
fn a_failed_snapshot_that_was_deleted_stays_deleted() {
    run_with(Options::default(), async |w: &World| {
        let client = with_ground(w, "acme", json!({})).await;
        let snapshot =
            json!({ "name": "broken", "buildInfo": { "dockerfileContent": "FROM ground\nRUN false\n" } });
        let failed = async |client: &Client| {
            atoll_tests::until("the build has failed", async || {
                let (_, found) = ask(client, Method::GET, "/snapshots/broken", None).await;
                (found["state"] == "build_failed").then_some(())
            })
            .await;
        };
        for _ in 0..2 {
            let (status, made) = ask(&client, Method::POST, "/snapshots", Some(snapshot.clone())).await;
            assert_eq!(status, 200, "{made}");
            failed(&client).await;
        }
        w.crash_server().await;
        let client = w.client(client.key());
        failed(&client).await;
        assert_eq!(ask(&client, Method::DELETE, "/snapshots/broken", None).await.0, 200);
        for _ in 0..2 {
            let client = w.client(client.key());
            assert_eq!(ask(&client, Method::GET, "/snapshots/broken", None).await.0, 404);
            let (_, page) = ask(&client, Method::GET, "/snapshots", None).await;
            assert!(page["items"].as_array().unwrap().iter().all(|item| item["name"] != "broken"), "{page}");
            w.crash_server().await;
        }
    });
}

#[test]
fn a_kill_in_the_middle_of_a_create_with_a_build_leaves_the_same_sandbox() {
    run_with(Options::default(), async |w: &World| {
        let client = with_ground(w, "acme", json!({})).await;
        let (status, made) = create(&client, "app", SLOW).await;
        assert_eq!(status, 200, "{made}");
        assert!(["pending_build", "building_snapshot"].contains(&made["state"].as_str().unwrap()), "{made}");
        let id = made["id"].as_str().unwrap().to_owned();
        until_state(&client, &id, "building_snapshot").await;
        w.crash_server().await;
        let client = w.client(client.key());
        for ident in [id.as_str(), "app"] {
            let (status, found) = ask(&client, Method::GET, &format!("/sandbox/{ident}"), None).await;
            assert_eq!((status, found["id"].as_str()), (200, Some(id.as_str())), "{found}");
            let state = found["state"].as_str().unwrap();
            assert!(["building_snapshot", "build_failed"].contains(&state), "{found}");
        }
        let failed = until_state(&client, &id, "build_failed").await;
        let reason = failed["errorReason"].as_str().unwrap();
        assert!(reason.contains("the server ended while this was built"), "{reason}");
        assert_eq!(client.sandbox(&id).await["reason"]["code"], "image_unavailable");
        assert_eq!(listed(&client, "?states=build_failed").await, [id.as_str()]);
        assert_eq!(listed(&client, "?states=error").await, [] as [&str; 0]);
        let logs = client.raw(Method::GET, &format!("/daytona/api/sandbox/{id}/build-logs")).send().await;
        assert_eq!(logs.unwrap().status().as_u16(), 200);
        // The name is its until it is deleted.
        let quick = "FROM ground\nRUN echo quick > /quick\n";
        assert_eq!(create(&client, "app", quick).await.0, 409);
        let (status, start) = ask(&client, Method::POST, &format!("/sandbox/{id}/start"), None).await;
        assert_eq!(status, 400, "{start}");
        assert_eq!(ask(&client, Method::DELETE, &format!("/sandbox/{id}"), None).await.0, 200);
        let (status, made) = create(&client, "app", quick).await;
        assert_eq!(status, 200, "{made}");
        let id = made["id"].as_str().unwrap();
        until_state(&client, id, "started").await;
        assert_eq!(client.sh(id, "cat /quick").await.text(), "quick");
        client.remove(id).await;
    });
}

#[test]
fn a_sandbox_that_is_built_takes_its_place_and_its_delete_ends_the_build() {
    run_with(Options::default(), async |w: &World| {
        let client = with_ground(w, "acme", json!({ "sandboxes": 1 })).await;
        let (status, made) = create(&client, "app", SLOW).await;
        assert_eq!(status, 200, "{made}");
        let id = made["id"].as_str().unwrap().to_owned();
        until_state(&client, &id, "building_snapshot").await;
        // One list, in every front and under every filter.
        assert_eq!(listed(&client, "").await, [id.as_str()]);
        assert_eq!(listed(&client, "?states=building_snapshot&name=app").await, [id.as_str()]);
        assert_eq!(listed(&client, "?states=creating&states=started").await, [] as [&str; 0]);
        let native = client.sandbox(&id).await;
        assert_eq!((&native["phase"], &native["stage"]), (&json!("creating"), &json!("building")));
        let build = native["build"].as_str().expect("the answer names the build");
        assert_eq!(client.get(&format!("/v1/builds/{build}")).await.ok()["id"], native["build"]);
        // One quota, and one name space.
        client.post("/v1/sandboxes", json!({ "template": "ground" })).await.refused(429, "quota_exceeded");
        client
            .post("/v1/sandboxes", json!({ "template": "ground", "name": "app" }))
            .await
            .refused(429, "quota_exceeded");
        // Labels can be changed, what needs an instance cannot.
        let (status, labels) = ask(
            &client,
            Method::PUT,
            &format!("/sandbox/{id}/labels"),
            Some(json!({ "labels": { "a": "b" } })),
        )
        .await;
        assert_eq!((status, &labels["labels"]["a"]), (200, &json!("b")), "{labels}");
        assert_eq!(ask(&client, Method::POST, &format!("/sandbox/{id}/stop"), None).await.0, 409);
        client.try_exec(&id, json!({ "command": "true" })).await.refused(409, "phase_conflict");
        let (status, gone) = ask(&client, Method::DELETE, &format!("/sandbox/{id}"), None).await;
        assert_eq!((status, &gone["state"]), (200, &json!("destroyed")), "{gone}");
        // Long before its step would end.
        atoll_tests::until("the build is cancelled", async || {
            let builds = client.get("/v1/builds").await.ok();
            (builds["items"][0]["status"] == "cancelled").then_some(())
        })
        .await;
        let again = client.create(json!({ "template": "ground", "name": "app" })).await;
        client.remove(&again).await;
    });
}

#[test]
fn what_is_built_on_the_vendors_image_has_its_user_unless_the_dockerfile_says_otherwise() {
    run_with(Options::default(), async |w: &World| {
        template::variant(&w.templates(), "code-interpreter-slim", |rootfs, manifest| {
            manifest["aliases"] = json!(["daytona", "daytonaio/sandbox"]);
            for (file, line) in [
                ("etc/passwd", "daytona:x:1005:1005::/home/daytona:/bin/sh\n"),
                ("etc/group", "daytona:x:1005:\n"),
            ] {
                let path = rootfs.join(file);
                let text = std::fs::read_to_string(&path).unwrap();
                std::fs::write(path, text + line).unwrap();
            }
        });
        let client = w.tenant("acme").await;
        let whole =
            "ARG RELEASE=0.4.3\nFROM daytonaio/sandbox:$RELEASE AS below\nRUN mkdir -p /home/daytona\n";
        for (name, last, wanted) in [
            ("same", "FROM below\n", "daytona /home/daytona"),
            ("root", "FROM below\nUSER root\n", "root /home/daytona"),
            ("place", "FROM below\nRUN true <<USER\nUSER root\nUSER\nWORKDIR /tmp\n", "daytona /tmp"),
        ] {
            let (status, made) = create(&client, name, &format!("{whole}{last}")).await;
            assert_eq!(status, 200, "{made}");
            let id = made["id"].as_str().unwrap();
            until_state(&client, id, "started").await;
            assert_eq!(client.sh(id, "echo $(id -un) $PWD").await.text(), wanted, "{last}");
            client.remove(id).await;
        }
    });
}
