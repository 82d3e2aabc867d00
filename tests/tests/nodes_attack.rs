//! Two servers on one database that are used against each other: races over quotas, names and keys of a request, identities of the
//! other tenant and of the other node, and both servers killed at once.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::{Client, json, run_with, until};
use futures::future::join_all;
use nix::sys::signal::Signal;
use reqwest::Method;

use crate::two_nodes::{SECOND, SecondServer, node_a};

/// Sends the same request to both servers, many times at once. Answers the statuses and codes.
async fn at_both(
    a: &Client,
    b: &Client,
    times: usize,
    body: serde_json::Value,
) -> Vec<(u16, String, String)> {
    let requests = (0..times).map(|number| {
        let (client, body) = (if number % 2 == 0 { a } else { b }, body.clone());
        async move {
            let answer = client.post("/v1/sandboxes", body).await;
            let id = answer.json()["id"].as_str().unwrap_or_default().to_owned();
            (answer.status, answer.code(), id)
        }
    });
    join_all(requests).await
}

/// Attack F21: quotas, names and idempotency keys are one row for both servers, whoever comes first.
#[test]
fn two_servers_that_are_raced_give_one_name_one_quota_and_one_sandbox_per_key() {
    run_with(node_a(), async |w| {
        SecondServer::prepare(w);
        let second = SecondServer::start(w).await;
        let a = w.tenant_with("acme", json!({ "sandboxes": 6 })).await;
        let b = a.at(&format!("http://{SECOND}"), a.key());
        // A quota.
        let answers = at_both(&a, &b, 40, json!({})).await;
        let made: Vec<_> = answers.iter().filter(|(status, ..)| *status == 201).collect();
        assert_eq!(made.len(), 6, "{answers:?}");
        let refused = answers.iter().filter(|(status, ..)| *status != 201);
        refused.for_each(|(_, code, _)| assert_eq!(code, "quota_exceeded", "{answers:?}"));
        let listed = a.get("/v1/sandboxes?limit=100").await.ok();
        let items = listed["items"].as_array().unwrap();
        let on = |node: &str| items.iter().filter(|item| item["node"] == node).count();
        assert!(items.len() == 6 && on("a") + on("b") == 6, "{listed}");
        remove_all(&a, &b).await;
        // A name.
        let answers = at_both(&a, &b, 12, json!({ "name": "the-one" })).await;
        assert_eq!(answers.iter().filter(|(status, ..)| *status == 201).count(), 1, "{answers:?}");
        let refused = answers.iter().filter(|(status, ..)| *status != 201);
        refused.for_each(|(_, code, _)| {
            assert!(["name_taken", "quota_exceeded"].contains(&code.as_str()), "{code}")
        });
        remove_all(&a, &b).await;
        // The key of a request.
        let body = json!({ "labels": { "made": "once" } });
        let sent = (0..12).map(|number| {
            let (client, body) = (if number % 2 == 0 { &a } else { &b }, &body);
            async move {
                let request = client.raw(Method::POST, "/v1/sandboxes").header("idempotency-key", "raced");
                let request = request.json(body);
                client.judged(request, &Method::POST, "/v1/sandboxes", Some(body)).await
            }
        });
        let answers = join_all(sent).await;
        let ids: std::collections::BTreeSet<_> = answers
            .iter()
            .filter(|answer| answer.status < 300)
            .map(|answer| answer.json()["id"].to_string())
            .collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        for refused in answers.iter().filter(|answer| answer.status >= 300) {
            assert!(matches!(refused.status, 409 | 421 | 429 | 503), "{refused}");
        }
        assert_eq!(a.get("/v1/sandboxes").await.ok()["items"].as_array().unwrap().len(), 1);
        remove_all(&a, &b).await;
        second.uninstall().await;
    });
}

async fn remove_all(a: &Client, b: &Client) {
    let listed = a.get("/v1/sandboxes?limit=100").await.ok();
    for item in listed["items"].as_array().unwrap() {
        let client = if item["node"] == "a" { a } else { b };
        client.remove(item["id"].as_str().unwrap()).await;
    }
}

/// Attack F21: another tenant, and a token of a sandbox, at the server of the other node.
#[test]
fn the_other_server_is_no_way_around_a_tenant_or_a_token() {
    run_with(node_a(), async |w| {
        SecondServer::prepare(w);
        let second = SecondServer::start(w).await;
        let (acme, stranger) = (w.tenant("acme").await, w.tenant("stranger").await);
        let other = |client: &Client| client.at(&format!("http://{SECOND}"), client.key());
        let id = acme.create(json!({})).await;
        acme.sh(&id, "echo secret-of-acme > /tmp/word").await;
        let path = format!("/v1/sandboxes/{id}");
        // A stranger is told nothing of the node of a sandbox.
        for client in [&stranger, &other(&stranger)] {
            client.get(&path).await.refused(404, "sandbox_not_found");
            client.delete(&path).await.refused(404, "sandbox_not_found");
            client
                .try_exec(&id, json!({ "argv": ["cat", "/tmp/word"] }))
                .await
                .refused(404, "sandbox_not_found");
            let file = client.read_file(&id, "/tmp/word").await;
            file.refused(404, "sandbox_not_found");
            assert_eq!(client.get("/v1/sandboxes").await.ok()["items"], json!([]));
        }
        // The owner is sent to the right server, and nothing happens at the wrong one.
        other(&acme).delete(&path).await.refused(421, "wrong_node");
        other(&acme).act(&id, "stop").await.refused(421, "wrong_node");
        // A preview of a sandbox of the other node.
        let preview = |base: &str| {
            let request = reqwest::Client::new().get(format!("{base}/"));
            request.header("host", format!("8080-{id}.localhost:7171")).bearer_auth(acme.key())
        };
        let answer = preview(&format!("http://{SECOND}")).send().await.unwrap();
        assert!(matches!(answer.status().as_u16(), 404 | 421), "{}", answer.status());
        assert!(!answer.text().await.unwrap().contains("secret-of-acme"));
        // A key of one server's data folder is the machine's key at both; one that was made up is at neither.
        let forged = other(&acme).with_key(&"0".repeat(acme.key().len()));
        assert_eq!(forged.get("/v1/sandboxes").await.status, 401);
        assert_eq!(acme.sh(&id, "cat /tmp/word").await.text(), "secret-of-acme");
        acme.remove(&id).await;
        second.uninstall().await;
    });
}

/// Attack F21: both servers die while both create, and each comes back to its own sandboxes.
#[test]
fn two_servers_that_are_killed_while_they_create_leave_each_sandbox_to_one_node() {
    run_with(node_a(), async |w| {
        SecondServer::prepare(w);
        let mut second = SecondServer::start(w).await;
        for _ in 0..3 {
            let a = w.admin();
            let b = a.at(&format!("http://{SECOND}"), a.key());
            let creating = join_all((0..16).map(|number| {
                let client = if number % 2 == 0 { a.clone() } else { b.clone() };
                async move {
                    let request = client.raw(Method::POST, "/v1/sandboxes").json(&json!({}));
                    let _ = request.send().await;
                }
            }));
            let killing = async {
                tokio::time::sleep(std::time::Duration::from_millis(30)).await;
                second.kill();
                w.stop_server(Signal::SIGKILL).await;
            };
            futures::future::join(creating, killing).await;
            w.start_server().await;
            second = SecondServer::start(w).await;
            let (a, b) = (w.admin(), w.admin().at(&format!("http://{SECOND}"), w.admin().key()));
            let listed = until("every create has an end", async || {
                let listed = a.get("/v1/sandboxes?limit=100").await.ok();
                let items = listed["items"].as_array().unwrap().clone();
                let is_settled = |item: &serde_json::Value| {
                    !matches!(item["phase"].as_str(), Some("creating" | "starting"))
                };
                items.iter().all(is_settled).then_some(items)
            })
            .await;
            for item in &listed {
                let (own, other) = if item["node"] == "a" { (&a, &b) } else { (&b, &a) };
                let id = item["id"].as_str().unwrap();
                other.try_exec(id, json!({ "argv": ["true"] })).await.refused(421, "wrong_node");
                if item["phase"] == "running" {
                    assert_eq!(own.sh(id, "echo alive").await.text(), "alive");
                }
            }
            remove_all(&a, &b).await;
        }
        second.uninstall().await;
    });
}
