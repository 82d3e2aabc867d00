//! Volumes: files that several sandboxes share, with a size that holds, owners that are right on both sides, and rules for
//! folders of the host.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use atoll_tests::client::escape;
use atoll_tests::{Answer, Client, Options, Value, World, criu, json, run, run_with, until};
use reqwest::Method;

async fn volume(client: &Client, name: &str, size_mib: u32) -> Value {
    client.post("/v1/volumes", json!({ "name": name, "size_mib": size_mib })).await.ok()
}

fn at(volume: &str, path: &str) -> Value {
    json!({ "volume": volume, "path": path })
}

async fn with(client: &Client, mounts: Value) -> String {
    client.create(json!({ "mounts": mounts })).await
}

async fn write(client: &Client, volume: &str, path: &str, bytes: impl Into<reqwest::Body>) -> Answer {
    let path = format!("/v1/volumes/{volume}/files?path={}", escape(path));
    client.judged(client.raw(Method::PUT, &path).body(bytes), &Method::PUT, &path, None).await
}

async fn read(client: &Client, volume: &str, path: &str) -> Answer {
    client.get(&format!("/v1/volumes/{volume}/files?path={}", escape(path))).await
}

#[test]
fn two_sandboxes_share_a_volume_and_it_outlives_them() {
    run(async |w: &World| {
        let client = w.tenant("acme").await;
        let made = volume(&client, "shared", 64).await;
        assert_eq!(
            (&made["name"], &made["size_mib"], &made["mounted_by"]),
            (&json!("shared"), &json!(64), &json!(0))
        );
        let one = with(&client, json!([at("shared", "/data")])).await;
        let two = with(&client, json!([at(made["id"].as_str().unwrap(), "/home/user/deep/data")])).await;
        client
            .sh(&one, "echo hello > /data/from-one; mkdir /data/d; umask 077; echo x > /data/d/private")
            .await
            .text();
        assert_eq!(client.sh(&two, "cat /home/user/deep/data/from-one").await.text(), "hello");
        client.sh(&two, "echo again >> /home/user/deep/data/from-one; cd /home/user/deep/data && ln from-one hard && ln -s d link").await.text();
        assert_eq!(client.sh(&one, "cat /data/hard; ls /data/link").await.text(), "hello\nagain\nprivate");
        // Owners are the same on both sides.
        let owners = "stat -c '%U %u:%g %a' /data/d/private";
        let seen = client.sh(&one, owners).await.text().to_owned();
        assert_eq!(
            seen,
            client.sh(&two, "stat -c '%U %u:%g %a' /home/user/deep/data/d/private").await.text()
        );
        client.sh_root(&one, "chown 33:44 /data/hard; chmod 640 /data/hard").await.text();
        assert_eq!(
            client.sh_root(&two, "stat -c '%u:%g %a' /home/user/deep/data/hard").await.text(),
            "33:44 640"
        );
        assert_eq!(client.get("/v1/volumes/shared").await.ok()["mounted_by"], json!(2));
        client.delete("/v1/volumes/shared").await.refused(409, "volume_in_use");
        for id in [&one, &two] {
            client.remove(id).await;
        }
        let three = with(&client, json!([at("shared", "/v")])).await;
        assert_eq!(client.sh_root(&three, "cat /v/hard").await.text(), "hello\nagain");
        client.remove(&three).await;
        client.delete("/v1/volumes/shared").await.ok();
        client.get("/v1/volumes/shared").await.refused(404, "volume_not_found");
    });
}

#[test]
fn locks_and_maps_work_between_sandboxes() {
    run_with(Options::debian(), async |w: &World| {
        let client = w.tenant("acme").await;
        volume(&client, "shared", 64).await;
        let one = with(&client, json!([at("shared", "/data")])).await;
        let two = with(&client, json!([at("shared", "/data")])).await;
        let map = "import mmap,os,fcntl,sys\nf=open('/data/map','a+b')\nfcntl.flock(f,fcntl.LOCK_EX)\nf.truncate(4096)\nm=mmap.mmap(f.fileno(),4096)\nm[0]=(m[0]+1)%256\nm.flush()\nprint(m[0])";
        for (n, id) in [&one, &two, &one, &two].into_iter().enumerate() {
            assert_eq!(
                client.exec(id, json!({ "argv": ["python3", "-c", map] })).await.text(),
                (n + 1).to_string()
            );
        }
        // SQLite trusts its locks.
        let table = "import sqlite3\nd=sqlite3.connect('/data/db',timeout=20)\nd.execute('create table if not exists t(x)')\n\
                     for n in range(30):\n  d.execute('insert into t values(1)')\n  d.commit()\nprint('done')";
        let body = json!({ "argv": ["python3", "-c", table] });
        let (a, b) = tokio::join!(client.exec(&one, body.clone()), client.exec(&two, body.clone()));
        assert_eq!((a.text(), b.text()), ("done", "done"));
        let count = "import sqlite3\nprint(sqlite3.connect('/data/db').execute('select count(*) from t').fetchone()[0])";
        assert_eq!(client.exec(&one, json!({ "argv": ["python3", "-c", count] })).await.text(), "60");
    });
}

#[test]
fn read_only_and_sub_paths_hold() {
    run(async |w: &World| {
        let client = w.tenant("acme").await;
        volume(&client, "v", 64).await;
        write(&client, "v", "/top", "top").await.ok();
        write(&client, "v", "/a/b/inner", "inner").await.ok();
        let ro = json!([{ "volume": "v", "path": "/ro", "read_only": true }]);
        let id = with(&client, ro).await;
        for line in [
            "echo x > /ro/new",
            "rm /ro/top",
            "chmod 600 /ro/top",
            "mount -o remount,rw /ro",
            "touch /ro/top",
            "umount /ro",
        ] {
            assert_ne!(client.sh_root(&id, line).await.code, 0, "{line}");
        }
        assert_eq!(client.sh(&id, "cat /ro/top").await.text(), "top");
        // A sub-path is all that is seen, and `..` leads to the sandbox's own.
        let sub = json!([{ "volume": "v", "path": "/sub", "sub_path": "a/b" }, { "volume": "v", "path": "/fresh", "sub_path": "new/folder" }]);
        let id = with(&client, sub).await;
        assert_eq!(client.sh(&id, "ls /sub; ls /sub/.. | grep -c ^top$").await.stdout, "inner\n0\n");
        client.sh(&id, "echo x > /fresh/x").await.text();
        assert_eq!(read(&client, "v", "/new/folder/x").await.bytes, "x\n");
        // A link inside cannot lead a sub-path elsewhere.
        client.sh_root(&id, "ln -s /etc /sub/out; ln -s ../../.. /sub/up").await.text();
        for sub in ["a/b/out", "a/b/up", "a/b/inner", "a/b/inner/x"] {
            let body = json!({ "mounts": [{ "volume": "v", "path": "/x", "sub_path": sub }] });
            let refused = client.post("/v1/sandboxes", body).await;
            assert!((400..500).contains(&refused.status), "{sub}: {refused}");
        }
        // A read-only volume is read-only for every sandbox.
        client.patch("/v1/volumes/v", json!({ "read_only": true })).await.ok();
        let id = with(&client, json!([at("v", "/v")])).await;
        assert_ne!(client.sh_root(&id, "echo x > /v/x").await.code, 0);
        assert!(write(&client, "v", "/x", "x").await.status >= 400);
    });
}

#[test]
fn a_full_volume_is_full_inside_only() {
    run(async |w: &World| {
        let (client, witness) = (w.tenant("acme").await, w.witness().await);
        volume(&client, "small", 16).await;
        volume(&client, "other", 16).await;
        let id = with(&client, json!([at("small", "/v"), at("other", "/o")])).await;
        let fill = client.sh(&id, "dd if=/dev/urandom of=/v/fill bs=1M count=40 2>&1; sync").await;
        assert!(fill.stdout.contains("No space left") || fill.stdout.contains("quota"), "{fill:?}");
        let size: u64 = client.sh(&id, "stat -c %s /v/fill").await.text().parse().unwrap();
        assert!((8 << 20..=17 << 20).contains(&size), "{size}");
        // Its neighbours and the sandbox itself have room.
        client.sh(&id, "dd if=/dev/zero of=/o/x bs=1M count=8 2>/dev/null && dd if=/dev/zero of=/tmp/x bs=1M count=8 2>/dev/null").await.text();
        let refused = write(&client, "small", "/more", vec![7; 4 << 20]).await;
        assert!([409, 413, 422, 507].contains(&refused.status), "{refused}");
        assert!(client.get("/v1/volumes/small").await.ok()["used_bytes"].as_u64().unwrap() >= size);
        // One can make room from inside, and one can give it more.
        client.patch("/v1/volumes/small", json!({ "size_mib": 48 })).await.ok();
        client.sh(&id, "dd if=/dev/urandom of=/v/more bs=1M count=20 2>/dev/null && sync").await.text();
        client.sh(&id, "rm /v/fill /v/more && echo x > /v/small").await.text();
        // The number of files is limited too, and empty files do not fill the machine.
        let many = client.sh(&id, "mkdir /v/many; cd /v/many; i=0; while [ $i -lt 2000 ]; do : > f$i || exit 3; i=$((i+1)); done").await;
        assert!(many.code == 0 || many.code == 3, "{many:?}");
        drop(witness);
    });
}

#[test]
fn a_copy_is_a_copy_and_not_a_link() {
    run(async |w: &World| {
        let client = w.tenant("acme").await;
        volume(&client, "one", 64).await;
        let id = with(&client, json!([at("one", "/v")])).await;
        client.sh_root(&id, "echo first > /v/a; chmod 4750 /v/a; chown 5:6 /v/a; ln -s a /v/l; dd if=/dev/urandom of=/v/large bs=1M count=20 2>/dev/null; sync").await.text();
        let copied = client.post("/v1/volumes/one/copy", json!({ "name": "two" })).await.ok();
        assert_eq!(copied["name"], "two");
        client.sh_root(&id, "echo second > /v/a").await.text();
        let other = with(&client, json!([at("two", "/v")])).await;
        assert_eq!(
            client
                .sh_root(&other, "cat /v/a; stat -c '%u:%g' /v/a; readlink /v/l; wc -c < /v/large")
                .await
                .text(),
            "first\n5:6\na\n20971520"
        );
        client.sh_root(&other, "echo mine > /v/a").await.text();
        assert_eq!(client.sh_root(&id, "cat /v/a").await.text(), "second");
        client.post("/v1/volumes/one/copy", json!({ "name": "two" })).await.refused(409, "name_taken");
    });
}

#[test]
fn setuid_and_devices_in_a_volume_do_nothing() {
    run(async |w: &World| {
        let client = w.tenant("acme").await;
        volume(&client, "v", 64).await;
        let id = with(&client, json!([at("v", "/v")])).await;
        client.sh_root(&id, "cp /bin/busybox /v/id && chmod 4755 /v/id && mkdir -m 777 /v/w").await.text();
        let seen = client.sh(&id, "/v/id id -u").await;
        assert!(seen.code != 0 || seen.stdout.trim() != "0", "{seen:?}");
        assert_ne!(client.sh_root(&id, "mknod /v/null c 1 3 && echo x > /v/null").await.code, 0);
        let flags = client.sh(&id, "grep ' /v ' /proc/self/mountinfo").await;
        assert!(flags.stdout.contains("nosuid") && flags.stdout.contains("nodev"), "{flags:?}");
        // On the host nothing of it is a door either.
        let line = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let pool =
            line.lines().filter(|line| line.contains(w.data().to_str().unwrap()) && line.contains("btrfs"));
        for mount in pool {
            assert!(mount.contains("nosuid") && mount.contains("nodev"), "{mount}");
        }
    });
}

/// A world whose operator allows one folder, with a folder of a user in it.
fn host_world(body: impl AsyncFnOnce(&World, &Path) + Send) {
    let root = tempfile::Builder::new().prefix("atoll-root-").tempdir_in("/var/tmp").unwrap();
    let path = root.path().to_path_buf();
    let allowed = path.join("allowed");
    std::fs::create_dir_all(allowed.join("project/src")).unwrap();
    std::fs::write(allowed.join("project/src/main"), "main\n").unwrap();
    std::fs::write(path.join("secret"), "not yours").unwrap();
    for owned in ["allowed/project", "allowed/project/src", "allowed/project/src/main"] {
        chown(path.join(owned), Some(1234), Some(1235)).unwrap();
    }
    let options = Options::default().env("ATOLL_VOLUME_ROOTS", allowed.display().to_string());
    run_with(options, async |w: &World| body(w, &path).await);
}

#[test]
fn a_folder_of_the_host_is_its_owners_on_both_sides() {
    host_world(async |w: &World, root: &Path| {
        let client = w.admin();
        let folder = root.join("allowed/project");
        client.post("/v1/volumes", json!({ "name": "code", "folder": folder })).await.ok();
        let id = with(&client, json!([at("code", "/code")])).await;
        assert_eq!(client.sh(&id, "cat /code/src/main").await.text(), "main");
        // The sandbox's own user is the owner; other users inside, root too, have no rights there.
        client.sh(&id, "echo new > /code/src/new && chmod 755 /code/src/new").await.text();
        assert_ne!(client.sh_root(&id, "echo root > /code/src/roots").await.code, 0);
        let made = std::fs::metadata(folder.join("src/new")).unwrap();
        assert_eq!((made.uid(), made.gid(), made.permissions().mode() & 0o7777), (1234, 1235, 0o755));
        // What the host writes is seen, and what is on the host is not more than the folder.
        std::fs::write(folder.join("by-host"), "host\n").unwrap();
        assert_eq!(
            client.sh_root(&id, "cat /code/by-host; ls /code/.. | grep -c allowed").await.stdout,
            "host\n0\n"
        );
        symlink(root.join("secret"), folder.join("out")).unwrap();
        assert_ne!(client.sh_root(&id, "cat /code/out").await.code, 0);
        let flags = client.sh(&id, "grep ' /code ' /proc/self/mountinfo").await;
        assert!(flags.stdout.contains("nosuid") && flags.stdout.contains("nodev"), "{flags:?}");
        assert_ne!(client.sh_root(&id, "mknod /code/dev c 1 3 && cat /code/dev").await.code, 0);
        client.remove(&id).await;
        // Removing the volume leaves the folder.
        client.delete("/v1/volumes/code").await.ok();
        assert_eq!(std::fs::read_to_string(folder.join("src/main")).unwrap(), "main\n");
    });
}

/// Attack B11.
#[test]
fn no_other_folder_of_the_host_can_be_had() {
    host_world(async |w: &World, root: &Path| {
        let (admin, tenant) = (w.admin(), w.tenant("acme").await);
        let allowed = root.join("allowed");
        symlink("/etc", allowed.join("link")).unwrap();
        symlink("..", allowed.join("up")).unwrap();
        let beside = format!("{}-beside", allowed.display());
        std::fs::create_dir_all(&beside).unwrap();
        let text = |path: std::path::PathBuf| path.display().to_string();
        for folder in [
            "/".to_owned(),
            "/etc".to_owned(),
            "/var/run".to_owned(),
            "/proc".to_owned(),
            "/sys".to_owned(),
            "relative".to_owned(),
            String::new(),
            text(allowed.join("link")),
            text(allowed.join("link/ssl")),
            text(allowed.join("up")),
            text(allowed.join("..")),
            text(allowed.join("project/../..")),
            text(allowed.join("missing")),
            text(root.join("secret")),
            beside,
            text(allowed.join("project/src/main")),
            text(w.data()),
            format!("{}\0/etc", allowed.display()),
        ] {
            let refused = admin.post("/v1/volumes", json!({ "name": "bad", "folder": folder })).await;
            assert!((400..500).contains(&refused.status), "{folder:?}: {refused}");
            assert!(refused.json()["message"].as_str().unwrap().contains("folder"), "{folder:?}: {refused}");
        }
        // Only the operator may do this.
        let folder = allowed.join("project");
        let refused = tenant.post("/v1/volumes", json!({ "name": "mine", "folder": folder })).await;
        assert!([400, 403].contains(&refused.status), "{refused}");
        // A folder that becomes a link afterwards is not followed.
        admin.post("/v1/volumes", json!({ "name": "code", "folder": folder })).await.ok();
        std::fs::rename(&folder, allowed.join("moved")).unwrap();
        symlink("/etc", &folder).unwrap();
        let refused = admin.post("/v1/sandboxes", json!({ "mounts": [at("code", "/code")] })).await;
        assert!(refused.status >= 400, "{refused}");
        w.delete_all().await;
    });
}

/// Attack B11.
#[test]
fn mounts_that_make_no_sense_are_refused() {
    run(async |w: &World| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        volume(&client, "v", 16).await;
        for path in [
            "",
            "/",
            "data",
            "/a/../b",
            "/proc",
            "/proc/self",
            "/sys/fs/cgroup",
            "/dev",
            "/dev/shm",
            "/.atoll",
            "/a//b",
        ] {
            let refused = client.post("/v1/sandboxes", json!({ "mounts": [at("v", path)] })).await;
            assert_eq!(refused.status, 400, "{path:?}: {refused}");
            assert!(refused.json()["message"].as_str().unwrap().contains("mounts"), "{refused}");
        }
        // In the way: files and links of the template.
        for path in ["/etc/passwd", "/bin/sh", "/bin/sh/x"] {
            let refused = client.post("/v1/sandboxes", json!({ "mounts": [at("v", path)] })).await;
            assert!((400..500).contains(&refused.status), "{path:?}: {refused}");
        }
        client
            .post("/v1/sandboxes", json!({ "mounts": [at("nothing", "/x")] }))
            .await
            .refused(404, "volume_not_found");
        // Others' volumes are not there.
        other
            .post("/v1/sandboxes", json!({ "mounts": [at("v", "/x")] }))
            .await
            .refused(404, "volume_not_found");
        other.get("/v1/volumes/v").await.refused(404, "volume_not_found");
        assert_eq!(other.get("/v1/volumes").await.ok()["items"], json!([]));
        for name in ["", "a b", "../x", "A/B", &"x".repeat(300)] {
            let refused = client.post("/v1/volumes", json!({ "name": name, "size_mib": 16 })).await;
            assert_eq!(refused.status, 400, "{name:?}: {refused}");
        }
        client.post("/v1/volumes", json!({ "name": "v", "size_mib": 16 })).await.refused(409, "name_taken");
    });
}

#[test]
fn a_volume_is_there_after_every_turn_of_a_sandboxs_life() {
    run(async |w: &World| {
        let client = w.tenant("acme").await;
        volume(&client, "v", 64).await;
        let id = with(&client, json!([at("v", "/v")])).await;
        let writer = "n=0; while :; do n=$((n+1)); echo $n > /v/count.tmp && mv /v/count.tmp /v/count; sleep 0.05; done";
        client
            .post(
                &format!("/v1/sandboxes/{id}/exec"),
                json!({ "argv": ["/bin/sh", "-c", writer], "detach": true }),
            )
            .await;
        let grows = async |what: &str| {
            let count = async || read(&client, "v", "/count").await.ok_text().trim().parse::<u64>().ok();
            let first = until("a first count", count).await;
            until(what, async || count().await.filter(|now| *now > first)).await;
        };
        grows("before").await;
        for memory in ["live", "disk"] {
            if memory == "disk" && criu::at_hand().is_none() {
                continue;
            }
            client.post(&format!("/v1/sandboxes/{id}/pause"), json!({ "memory": memory })).await.ok();
            // While it sleeps others may use the volume, and it is still its own.
            write(&client, "v", &format!("/while-{memory}"), "x").await.ok();
            client.delete("/v1/volumes/v").await.refused(409, "volume_in_use");
            client.act(&id, "resume").await.ok();
            grows(memory).await;
            assert_eq!(client.sh(&id, &format!("cat /v/while-{memory}")).await.text(), "x");
        }
        w.crash_server().await;
        grows("after a crash of the server").await;
        // A fork and a snapshot share the volume: it is not part of them.
        let forked = client.post(&format!("/v1/sandboxes/{id}/fork"), json!({ "count": 1 })).await.ok();
        let child =
            forked["sandboxes"][0]["id"].as_str().or(forked["items"][0]["id"].as_str()).unwrap().to_owned();
        client.sh(&child, "echo child > /v/by-child").await.text();
        assert_eq!(client.sh(&id, "cat /v/by-child").await.text(), "child");
        let snapshot = client.post(&format!("/v1/sandboxes/{id}/snapshots"), json!({})).await.ok();
        let from = client.create(json!({ "snapshot": snapshot["id"], "mounts": [at("v", "/v")] })).await;
        assert_eq!(client.sh(&from, "cat /v/by-child").await.text(), "child");
        client.act(&id, "stop").await.ok();
        client.delete("/v1/volumes/v").await.refused(409, "volume_in_use");
        client.act(&id, "start").await.ok();
        assert_eq!(client.sh(&id, "cat /v/by-child").await.text(), "child");
    });
}

/// The text of a file's answer, empty when there is none.
trait Text {
    fn ok_text(&self) -> String;
}

impl Text for Answer {
    fn ok_text(&self) -> String {
        if self.status == 200 { String::from_utf8_lossy(&self.bytes).into_owned() } else { String::new() }
    }
}

#[test]
fn files_of_a_volume_can_be_had_without_a_sandbox() {
    run(async |w: &World| {
        let client = w.tenant("acme").await;
        volume(&client, "v", 64).await;
        let large: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
        write(&client, "v", "/a/b/large", large.clone()).await.ok();
        assert_eq!(read(&client, "v", "/a/b/large").await.bytes, large);
        client
            .post(
                "/v1/volumes/v/folders",
                json!({ "path": "/made", "mode": "0750", "uid": 1000, "gid": 1000 }),
            )
            .await
            .ok();
        client.post("/v1/volumes/v/move", json!({ "from": "/a/b/large", "to": "/made/moved" })).await.ok();
        client
            .patch("/v1/volumes/v/entries?path=/made/moved", json!({ "mode": "0600", "uid": 5 }))
            .await
            .ok();
        let listed = client.get("/v1/volumes/v/entries?path=/&depth=3").await.ok();
        let found: Vec<String> = listed["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| format!("{} {}", e["path"].as_str().unwrap(), e["mode"].as_str().unwrap()))
            .collect();
        for expected in ["made", "made/moved", "a/b"] {
            assert!(
                found.iter().any(|line| line.trim_start_matches('/').starts_with(&format!("{expected} "))),
                "{expected}: {found:?}"
            );
        }
        let id = with(&client, json!([at("v", "/v")])).await;
        assert_eq!(
            client.sh_root(&id, "stat -c '%a %u' /v/made/moved; stat -c '%a %u:%g' /v/made").await.text(),
            "600 5\n750 1000:1000"
        );
        // What a sandbox does to the tree cannot lead us out of it.
        client.sh_root(&id, "ln -s / /v/root; ln -s ../../../../../etc /v/etc; ln -s loop /v/loop; mkfifo /v/pipe; mkdir -p /v/deep/er").await.text();
        for path in
            ["/root/etc/passwd", "/etc/passwd", "../../../etc/passwd", "/../../etc/shadow", "/etc/../../x"]
        {
            let answer = read(&client, "v", path).await;
            assert!((400..500).contains(&answer.status), "{path}: {answer}");
            let written = write(&client, "v", path, "pwned").await;
            assert!((400..500).contains(&written.status), "{path}: {written}");
        }
        assert!((400..500).contains(&read(&client, "v", "/pipe").await.status));
        client.delete("/v1/volumes/v/files?path=/root").await.ok();
        assert!(Path::new("/etc/passwd").exists());
        client.delete("/v1/volumes/v/files?path=/deep").await.ok();
        read(&client, "v", "/deep").await.refused(404, "file_not_found");
        assert!(client.delete("/v1/volumes/v/files?path=/").await.status >= 400);
        // A race of links while the API walks.
        let race = "cd /v; while :; do ln -sfn / swap; rm -f swap; mkdir -p swap; echo mine > swap/passwd; rm -r swap; done";
        client
            .post(
                &format!("/v1/sandboxes/{id}/exec"),
                json!({ "argv": ["/bin/sh", "-c", race], "user": "root", "detach": true }),
            )
            .await;
        for _ in 0..200 {
            let answer = client.get("/v1/volumes/v/files?path=/swap/passwd").await;
            assert!(!answer.ok_text().contains("root:"), "{answer}");
        }
    });
}
