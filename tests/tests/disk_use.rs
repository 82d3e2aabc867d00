//! What `atoll system df` says of a full one, and what `atoll prune` removes.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::{Options, World, json, run_with, until};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn entry<'a>(entries: &'a Value, kind: &str, name: &str) -> Option<&'a Value> {
    entries.as_array().unwrap().iter().find(|one| one["kind"] == kind && one["name"] == name)
}

fn options(w: &str) -> Options {
    let options = Options { pool: 4, ..Options::default() };
    options.env("ATOLL_CACHE", format!("/var/tmp/atoll-test-cache-{}-{w}", std::process::id()))
}

#[test]
fn df_shows_what_takes_space_and_prune_takes_only_what_nothing_needs() {
    run_with(options("df"), async |w: &World| {
        let (one, two) = (w.tenant("one").await, w.tenant("two").await);
        let id = one.create(json!({ "name": "box", "memory_mib": 64, "disk_mib": 256 })).await;
        one.sh(&id, "head -c 31457280 /dev/urandom > big; sync").await.text();
        one.post(&format!("/v1/sandboxes/{id}/snapshots"), json!({ "name": "kept" })).await.ok();
        one.post("/v1/volumes", json!({ "name": "data", "size_mib": 64 })).await.ok();
        let other = two.create(json!({ "name": "other", "memory_mib": 64, "disk_mib": 64 })).await;
        two.act(&other, "stop").await.ok();
        let admin = w.admin();
        let found = until("the files are counted", async || {
            let found = admin.get("/v1/system/disk").await.ok();
            (entry(&found["items"], "sandbox", "box")?["bytes"].as_u64()? >= 30 * MIB).then_some(found)
        })
        .await;
        assert!(entry(&found["items"], "snapshot", "kept").is_some(), "{found}");
        assert!(
            entry(&found["items"], "volume", "data").is_some()
                && entry(&found["items"], "sandbox", "other").is_some()
        );
        let sum = found["tenants"].as_array().unwrap().iter().find(|one| one["name"] == "one").unwrap();
        assert!(sum["sandbox_bytes"].as_u64().unwrap() >= 30 * MIB, "{sum}");
        let parts = found["parts"].as_array().unwrap();
        let pool = parts.iter().find(|part| part["name"] == "pool").unwrap()["bytes"].as_u64().unwrap();
        assert!(pool >= found["disk"]["pool_bytes"].as_u64().unwrap(), "{found}");
        assert!(parts.iter().any(|part| part["name"] == "database" && part["bytes"].as_u64() > Some(0)));
        // A tenant sees its own.
        let own = two.get("/v1/system/disk").await.ok();
        assert!(own["disk"].is_null() && own["parts"] == json!([]), "{own}");
        assert!(
            entry(&own["items"], "sandbox", "box").is_none() && own["tenants"].as_array().unwrap().len() == 1,
            "{own}"
        );
        two.post("/v1/system/prune", json!({ "apply": true })).await.refused(403, "forbidden");
        // A sandbox whose image cannot be had never runs.
        let failed =
            one.post("/v1/sandboxes?wait=0", json!({ "name": "never", "image": "localhost:1/none:1" })).await;
        assert!(failed.status < 500, "{failed}");
        until("it has failed", async || {
            let found = one.get("/v1/sandboxes/never").await;
            (found.ok()["phase"] == "failed").then_some(())
        })
        .await;
        let young = admin.post("/v1/system/prune", json!({})).await.ok();
        assert!(entry(&young["kept"], "sandbox", "never").is_some(), "{young}");
        let ask = json!({ "older_than_s": 0 });
        let listed = admin.post("/v1/system/prune", ask).await.ok();
        assert!(entry(&listed["removed"], "sandbox", "never").is_some(), "{listed}");
        assert_eq!(one.get("/v1/sandboxes/never").await.ok()["phase"], "failed", "only listed");
        let gone = admin.post("/v1/system/prune", json!({ "older_than_s": 0, "apply": true })).await.ok();
        assert!(entry(&gone["removed"], "sandbox", "never").is_some(), "{gone}");
        one.get("/v1/sandboxes/never").await.refused(404, "sandbox_not_found");
        // The default template, the snapshot, the volume and both sandboxes stay, and the report says why.
        for (kind, name) in [("template", "busybox"), ("snapshot", "1"), ("volume", "1"), ("sandbox", "2")] {
            assert!(entry(&gone["kept"], kind, name).is_some(), "{kind} {name}: {gone}");
        }
        assert_eq!(one.sh(&id, "wc -c < big").await.text().trim(), "31457280");
        two.act(&other, "start").await.ok();
        // The command line.
        for (line, word) in [(&["system", "df"][..], "the pool of layers takes"), (&["prune"], "KEPT")] {
            let mut command = w.command();
            command.args(line);
            let said = String::from_utf8(w.output(command).await.stdout).unwrap();
            assert!(said.contains(word), "{said}");
        }
        one.remove(&id).await;
        two.remove(&other).await;
    });
}
