//! Snapshots, forks and rollback: what is copied, what is not, and who may see it.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use atoll_tests::soak::calls::Shared;
use atoll_tests::soak::kept::{Kept, Version};
use atoll_tests::state_model::{Dice, FOLDER};
use atoll_tests::{Client, Value, criu, json, run, until};

async fn snapshot(client: &Client, id: &str, body: Value) -> Value {
    let taken = client.post(&format!("/v1/sandboxes/{id}/snapshots"), body).await;
    assert_eq!(taken.status, 201, "{taken}");
    taken.ok()
}

fn id_of(thing: &Value) -> String {
    thing["id"].as_str().unwrap().to_owned()
}

/// What must differ between two sandboxes, as each sees it.
async fn identity(client: &Client, id: &str) -> [String; 4] {
    let line = "hostname; echo id=$(cat /etc/machine-id); ip -4 -o addr show | grep -v ' lo ' | head -n 1 | awk '{print $4}'; cat /proc/sys/kernel/random/uuid";
    let seen = client.sh(id, line).await;
    let lines: Vec<String> = seen.stdout.lines().map(str::to_owned).collect();
    lines.try_into().unwrap_or_else(|_| panic!("{seen:?}"))
}

#[test]
fn forks_are_their_own_sandboxes_with_the_same_files() {
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let client = &shared.client;
        let spec = json!({ "network": "allow-all", "labels": { "team": "red" }, "env": { "OPEN": "yes", "SECRET": "s3cret" },
            "private_env": ["SECRET"], "memory_mib": 100, "name": "source" });
        let mut kept = Kept::create(&shared, spec, 7).await;
        assert_eq!(client.sh(&kept.id, "echo $OPEN $SECRET").await.text(), "yes s3cret");
        let forked = client.post(&kept.path("/fork"), json!({ "count": 3, "memory": true })).await;
        assert_eq!(forked.status, 201, "{forked}");
        let forked = forked.ok();
        // A private value lives in the memory of processes too.
        assert_eq!(forked["memory"], false, "{forked}");
        assert!(forked["memory_refused"].as_str().is_some_and(|why| why.contains("private")), "{forked}");
        let children: Vec<String> = forked["sandboxes"].as_array().unwrap().iter().map(id_of).collect();
        let mut seen: Vec<[String; 4]> = vec![identity(client, &kept.id).await];
        for child in &children {
            let about = client.sandbox(child).await;
            assert_eq!((&about["phase"], &about["parent"]), (&json!("running"), &json!(kept.id)), "{about}");
            assert_eq!((&about["labels"], &about["memory_mib"]), (&json!({ "team": "red" }), &json!(100)));
            assert_eq!(about["name"], Value::Null, "a name belongs to one");
            assert_eq!(
                client.sh(child, "echo $OPEN.$SECRET").await.text(),
                "yes.",
                "private values are not inherited"
            );
            let mut copy = Kept::new(child.clone(), kept.may.iter().map(Version::without_memory).collect());
            copy.is_intact(&shared, "running").await;
            seen.push(identity(client, child).await);
        }
        for part in 0..4 {
            let distinct: BTreeSet<&String> = seen.iter().map(|one| &one[part]).collect();
            assert_eq!(distinct.len(), 4, "part {part} is shared: {seen:?}");
        }
        // What one writes, no other sees.
        for (n, child) in children.iter().enumerate() {
            client.sh(child, &format!("echo {n} > {FOLDER}/mine; rm -rf {FOLDER}/n*")).await.text();
        }
        kept.is_intact(&shared, "running").await;
        for (n, child) in children.iter().enumerate() {
            assert_eq!(client.sh(child, &format!("cat {FOLDER}/mine")).await.text(), n.to_string());
        }
        let lineage = client.get(&kept.path("/lineage")).await.ok();
        let known: BTreeSet<String> = lineage["children"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_str().unwrap().to_owned())
            .collect();
        assert_eq!(known, children.iter().cloned().collect(), "{lineage}");
        let of_child = client.get(&format!("/v1/sandboxes/{}/lineage", children[0])).await.ok();
        assert_eq!(of_child["parent"], kept.id, "{of_child}");
        assert_eq!(
            client.get("/v1/snapshots").await.ok()["items"],
            json!([]),
            "a fork leaves no snapshot to see"
        );
        // The source may go; its children stay.
        client.remove(&kept.id).await;
        client.sh(&children[0], "true").await.text();
    });
}

/// Attack A16.
#[test]
fn forks_with_memory_go_on_from_the_same_moment() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let client = &shared.client;
        let mut kept = Kept::create(&shared, json!({ "network": "allow-all" }), 8).await;
        let forked = client.post(&kept.path("/fork"), json!({ "count": 2, "memory": true })).await.ok();
        assert_eq!((&forked["memory"], &forked["memory_refused"]), (&json!(true), &Value::Null), "{forked}");
        let mut seen = vec![identity(client, &kept.id).await];
        let mut copies = Vec::new();
        for child in forked["sandboxes"].as_array().unwrap() {
            let mut copy = Kept::new(id_of(child), kept.may.clone());
            copy.is_intact(&shared, "running").await;
            seen.push(identity(client, &copy.id).await);
            copies.push(copy);
        }
        for part in 0..4 {
            let distinct: BTreeSet<&String> = seen.iter().map(|one| &one[part]).collect();
            assert_eq!(distinct.len(), 3, "part {part} is shared: {seen:?}");
        }
        // Each goes its own way from there.
        for (n, copy) in copies.iter_mut().enumerate() {
            copy.change(&shared, &mut Dice::new(n as u64)).await;
        }
        kept.is_intact(&shared, "running").await;
        w.crash_server().await;
        for copy in &mut copies {
            copy.is_intact(&shared, "running").await;
            let paused = client.post(&copy.path("/pause"), json!({ "memory": "disk" })).await.ok();
            assert_eq!(paused["held"], "disk");
            copy.is_intact(&shared, "paused").await;
            client.act(&copy.id, "resume").await.ok();
            copy.is_intact(&shared, "running").await;
        }
    });
}

#[test]
fn a_snapshot_outlives_its_sandbox_and_makes_others() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let client = &shared.client;
        let mut kept = Kept::create(&shared, json!({ "env": { "A": "b" }, "disk_mib": 300 }), 9).await;
        let was = kept.may.clone();
        let named = snapshot(client, &kept.id, json!({ "name": "golden", "memory": true })).await;
        assert_eq!((&named["state"], &named["memory"]), (&json!("ready"), &json!(true)), "{named}");
        client.post(&kept.path("/snapshots"), json!({ "name": "golden" })).await.refused(409, "name_taken");
        kept.change(&shared, &mut Dice::new(1)).await;
        for phase in ["running", "paused", "stopped"] {
            match phase {
                "paused" => _ = client.act(&kept.id, "pause").await.ok(),
                "stopped" => _ = client.act(&kept.id, "stop").await.ok(),
                _ => {}
            }
            snapshot(client, &kept.id, json!({ "name": format!("when-{phase}") })).await;
            kept.is_intact(&shared, phase).await;
        }
        let changed: Vec<Version> = kept.may.iter().map(Version::without_memory).collect();
        client.remove(&kept.id).await;
        w.crash_server().await;
        client.post_empty("/v1/snapshots/golden/verify").await.ok();
        // Files and processes; files alone; and from each phase.
        let with = client.post("/v1/sandboxes", json!({ "snapshot": "golden", "memory": true })).await.ok();
        let without = client.post("/v1/sandboxes", json!({ "snapshot": "golden" })).await.ok();
        assert_eq!((&with["snapshot"], &with["parent"]), (&named["id"], &json!(kept.id)), "{with}");
        assert_eq!((&with["disk_mib"], &with["template"]), (&json!(300), &json!("keeper")));
        let mut copies = vec![
            Kept::new(id_of(&with), was.clone()),
            Kept::new(id_of(&without), was.iter().map(Version::without_memory).collect()),
        ];
        for phase in ["running", "paused", "stopped"] {
            let made =
                client.post("/v1/sandboxes", json!({ "snapshot": format!("when-{phase}") })).await.ok();
            copies.push(Kept::new(id_of(&made), changed.clone()));
        }
        for copy in &mut copies {
            copy.is_intact(&shared, "running").await;
            assert_eq!(client.sh(&copy.id, "echo $A").await.text(), "b");
        }
        client
            .post("/v1/sandboxes", json!({ "snapshot": "when-stopped", "memory": true }))
            .await
            .refused(400, "invalid_request");
        let page = client.get("/v1/snapshots?limit=3").await.ok();
        assert!(page["items"].as_array().unwrap().len() == 3 && page["next_cursor"].is_string(), "{page}");
        assert_eq!(client.delete("/v1/snapshots/golden").await.status, 204);
        client.get("/v1/snapshots/golden").await.refused(404, "snapshot_not_found");
        client
            .post("/v1/sandboxes", json!({ "snapshot": "golden" }))
            .await
            .refused(404, "snapshot_not_found");
        for copy in &mut copies {
            copy.is_intact(&shared, "running").await;
        }
    });
}

#[test]
fn rollback_puts_files_and_processes_back() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let client = &shared.client;
        let mut kept = Kept::create(&shared, json!({}), 10).await;
        let files = id_of(&snapshot(client, &kept.id, json!({})).await);
        let memory = id_of(&snapshot(client, &kept.id, json!({ "memory": true })).await);
        let was = kept.may.clone();
        let other = client.create(json!({})).await;
        client
            .post(&format!("/v1/sandboxes/{other}/rollback"), json!({ "snapshot": files }))
            .await
            .refused(400, "invalid_request");
        for (snapshot, has_memory) in [(&memory, true), (&files, false), (&memory, true)] {
            kept.change(&shared, &mut Dice::new(3)).await;
            let back = client.post(&kept.path("/rollback"), json!({ "snapshot": snapshot })).await.ok();
            assert_eq!(back["phase"], "running", "{back}");
            kept.may = was.clone();
            if !has_memory {
                kept.may = was.iter().map(Version::without_memory).collect();
            }
            kept.is_intact(&shared, "running").await;
            kept.ensure_holder(&shared, 77).await.unwrap();
        }
        // A stopped one stays stopped.
        client.act(&kept.id, "stop").await.ok();
        let back = client.post(&kept.path("/rollback"), json!({ "snapshot": files })).await.ok();
        assert_eq!(back["phase"], "stopped", "{back}");
        kept.may = was.iter().map(Version::without_memory).collect();
        kept.is_intact(&shared, "stopped").await;
    });
}

/// Attack A17.
#[test]
fn damaged_snapshots_are_refused_and_nothing_is_made_of_them() {
    if criu::at_hand().is_none() {
        return;
    }
    run(async |w| {
        let shared = Shared::quiet(w, w.tenant("acme").await);
        let client = &shared.client;
        let mut kept = Kept::create(&shared, json!({}), 11).await;
        let taken = id_of(&snapshot(client, &kept.id, json!({ "memory": true })).await);
        client.post_empty(&format!("/v1/snapshots/{taken}/verify")).await.ok();
        let damaged = damage(&w.data().join("pool/snapshots").join(&taken));
        assert!(damaged > 0, "nothing to damage was found");
        client.post_empty(&format!("/v1/snapshots/{taken}/verify")).await.refused(409, "damaged");
        client
            .post("/v1/sandboxes", json!({ "snapshot": taken, "memory": true }))
            .await
            .refused(409, "damaged");
        client.post(&kept.path("/rollback"), json!({ "snapshot": taken })).await.refused(409, "damaged");
        let left = until("what was begun has ended", async || {
            let page = client.get("/v1/sandboxes?limit=100").await.ok();
            let left: Vec<Value> = page["items"].as_array().unwrap().to_vec();
            left.iter().all(|one| one["id"] == kept.id.as_str() || one["phase"] == "failed").then_some(left)
        })
        .await;
        // What failed says why, and never becomes a sandbox without the files that it was to have.
        for failed in left.iter().filter(|one| one["id"] != kept.id.as_str()) {
            assert!(
                failed["reason"]["message"].as_str().is_some_and(|why| why.contains("damaged")),
                "{failed}"
            );
            let started = client.act(&id_of(failed), "start").await;
            assert!(started.status >= 400, "{started}");
        }
        kept.is_intact(&shared, "running").await;
    });
}

/// Turns bytes over in every image of memory; copies of files on btrfs are read-only and checked by btrfs itself.
fn damage(folder: &std::path::Path) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            count += damage(&path);
        } else if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pages"))
            && let Ok(mut bytes) = std::fs::read(&path)
            && !bytes.is_empty()
        {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0xff;
            count += usize::from(std::fs::write(&path, bytes).is_ok());
        }
    }
    count
}

#[test]
fn snapshots_belong_to_their_tenant() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let other = w.tenant("other").await;
        let id = client.create(json!({})).await;
        let taken = id_of(&snapshot(&client, &id, json!({ "name": "mine" })).await);
        let own = other.create(json!({})).await;
        for name in [taken.as_str(), "mine", &taken[..6]] {
            other.get(&format!("/v1/snapshots/{name}")).await.refused(404, "snapshot_not_found");
            other.delete(&format!("/v1/snapshots/{name}")).await.refused(404, "snapshot_not_found");
            other
                .post_empty(&format!("/v1/snapshots/{name}/verify"))
                .await
                .refused(404, "snapshot_not_found");
            other.post("/v1/sandboxes", json!({ "snapshot": name })).await.refused(404, "snapshot_not_found");
            other
                .post(&format!("/v1/sandboxes/{own}/rollback"), json!({ "snapshot": name }))
                .await
                .refused(404, "snapshot_not_found");
        }
        assert_eq!(other.get("/v1/snapshots").await.ok()["items"], json!([]));
        for verb in ["fork", "snapshots"] {
            other
                .post(&format!("/v1/sandboxes/{id}/{verb}"), json!({}))
                .await
                .refused(404, "sandbox_not_found");
        }
        other.get(&format!("/v1/sandboxes/{id}/lineage")).await.refused(404, "sandbox_not_found");
        // The same name may be used by each.
        snapshot(&other, &own, json!({ "name": "mine" })).await;
        assert_eq!(client.get("/v1/snapshots").await.ok()["items"].as_array().unwrap().len(), 1);
        assert_eq!(w.admin().get("/v1/snapshots").await.ok()["items"].as_array().unwrap().len(), 2);
    });
}

#[test]
fn a_fork_beyond_the_quota_makes_none() {
    run(async |w| {
        let client = w.tenant_with("small", json!({ "sandboxes": 3 })).await;
        let id = client.create(json!({})).await;
        client
            .post(&format!("/v1/sandboxes/{id}/fork"), json!({ "count": 3 }))
            .await
            .refused(429, "quota_exceeded");
        until("those that were begun are gone", async || {
            let page = client.get("/v1/sandboxes").await.ok();
            (page["items"].as_array().unwrap().len() == 1).then_some(())
        })
        .await;
        let forked = client.post(&format!("/v1/sandboxes/{id}/fork"), json!({ "count": 2 })).await.ok();
        assert_eq!(forked["sandboxes"].as_array().unwrap().len(), 2);
    });
}
