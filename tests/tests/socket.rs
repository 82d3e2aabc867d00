//! The Unix socket: who is at the other end, what they may do, and what they change is signed with their name.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use atoll_tests::world::program;
use atoll_tests::{Options, Value, World, json, run_with};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

const GROUP: u32 = 64_000;

/// Users and groups of this test's mount namespace, until it is dropped.
struct MachineUsers(Vec<PathBuf>);

impl MachineUsers {
    /// The group `atoll` with the member alice; mallory is not in it.
    fn enter(folder: &Path) -> Self {
        let lines = [
            ("/etc/passwd", "alice:x:64001:64001::/:/bin/sh\nmallory:x:64002:64002::/:/bin/sh\n".to_owned()),
            ("/etc/group", format!("alice:x:64001:\nmallory:x:64002:\natoll:x:{GROUP}:alice\n")),
        ];
        let mut bound = Vec::new();
        for (path, more) in lines {
            let own = folder.join(path.trim_start_matches("/etc/"));
            std::fs::write(&own, format!("{}{more}", std::fs::read_to_string(path).unwrap())).unwrap();
            let nothing = None::<&str>;
            mount(Some(&own), path, nothing, MsFlags::MS_BIND, nothing).unwrap();
            bound.push(PathBuf::from(path));
        }
        Self(bound)
    }
}

impl Drop for MachineUsers {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = umount2(path, MntFlags::MNT_DETACH);
        }
    }
}

/// A world whose server has a socket, which every user of the machine can find.
struct SocketWorld<'w> {
    world: &'w World,
    socket: PathBuf,
    program: PathBuf,
    _users: MachineUsers,
}

impl<'w> SocketWorld<'w> {
    async fn new(world: &'w World) -> Self {
        let folder = world.folder();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)).unwrap();
        let socket = folder.join("run/atoll.sock");
        let users = MachineUsers::enter(folder);
        // The folder of the build belongs to root alone.
        let copy = folder.join("atoll");
        std::fs::copy(program(), &copy).unwrap();
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(folder.join("config.toml"), format!("socket = {socket:?}\n")).unwrap();
        world.stop_server(Signal::SIGTERM).await;
        world.set_env("ATOLL_SOCKET", socket.to_str().unwrap());
        world.start_server().await;
        Self { world, socket, program: copy, _users: users }
    }

    /// A command of a user who has nothing but the socket.
    fn of(&self, user: &str, words: &[&str]) -> Output {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", user, "--regid", user, "--init-groups", "--"])
            .arg(&self.program)
            .args(words);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
        command.env("ATOLL_CONFIG", self.world.folder().join("config.toml"));
        command.output().unwrap()
    }

    fn ok(&self, user: &str, words: &[&str]) -> String {
        let done = self.of(user, words);
        assert!(done.status.success(), "{user} {words:?}: {}", text(&done.stderr));
        text(&done.stdout)
    }

    fn json(&self, user: &str, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(user, words)).unwrap()
    }

    /// The error of a refused command, as its code and its words.
    fn refused(&self, user: &str, words: &[&str]) -> (String, String) {
        let words: Vec<&str> = [&["--json"], words].concat();
        let done = self.of(user, &words);
        assert!(!done.status.success(), "{user} {words:?}: {}", text(&done.stdout));
        let error: Value =
            serde_json::from_slice(&done.stderr).unwrap_or_else(|_| panic!("{}", text(&done.stderr)));
        let code = error["code"].as_str().unwrap().to_owned();
        (
            code,
            format!("{} {}", error["message"].as_str().unwrap(), error["hint"].as_str().unwrap_or_default()),
        )
    }

    #[track_caller]
    fn needs_root(&self, words: &[&str]) {
        let (code, said) = self.refused("alice", words);
        assert_eq!(code, "forbidden", "{words:?}: {said}");
        assert!(said.contains("sudo") && said.contains("admin"), "{words:?}: {said}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn with_local(world_folder_root: &str) -> Options {
    Options::default().env("ATOLL_ALLOW_LOCAL", "true").env("ATOLL_VOLUME_ROOTS", world_folder_root)
}

#[test]
fn a_member_needs_neither_root_nor_key_and_signs_what_they_change() {
    run_with(Options::default(), async |w| {
        let s = SocketWorld::new(w).await;
        let mode = std::fs::metadata(&s.socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let made = s.json("alice", &["--json", "create", "--name", "box"]);
        assert_eq!(made["created_by_key"]["name"], "unix:alice", "{made}");
        assert_eq!(s.ok("alice", &["exec", "box", "--", "echo", "hi"]), "hi\n");
        s.ok("alice", &["update", "box", "--label", "team=red"]);
        s.ok("alice", &["pause", "box"]);
        s.ok("root", &["resume", "box"]);
        let events = w.admin().get("/v1/events?after=0&limit=500").await.ok();
        let by = |kind: &str, to: &str| {
            let items = events["items"].as_array().unwrap();
            // The world begins with a sandbox of the admin.
            let found = items.iter().find(|event| {
                event["sandbox"] == made["id"]
                    && event["kind"] == kind
                    && (to.is_empty() || event["to"] == to)
            });
            found.map(|event| event["by"]["name"].clone()).unwrap_or_else(|| panic!("{kind} {to}: {events}"))
        };
        assert_eq!(by("phase", "creating"), "unix:alice");
        assert_eq!(by("updated", ""), "unix:alice");
        assert_eq!(by("phase", "pausing"), "unix:alice");
        assert_eq!(by("phase", "resuming"), "unix:root");
        assert_eq!(by("phase", "paused"), Value::Null, "the server by itself");
        // One record for each user, which is no key.
        let keys = w.admin().get("/v1/keys").await.ok();
        let members: Vec<&Value> =
            keys["items"].as_array().unwrap().iter().filter(|key| key["scope"] == "member").collect();
        assert_eq!(members.len(), 1, "{keys}");
        let (name, id) = (&members[0]["name"], members[0]["id"].as_str().unwrap());
        assert_eq!(name, "unix:alice");
        let spoofed = w.admin().post("/v1/keys", json!({ "name": "unix:bob" })).await;
        spoofed.refused(400, "invalid_request");
        // A key for an SDK, which has no more rights than its maker and ends with the record.
        let key = s.json("alice", &["--json", "key", "create", "--name", "sdk"]);
        assert_eq!((&key["scope"], &key["created_by"]), (&json!("member"), &json!(id)));
        let with_key = w.client(key["secret"].as_str().unwrap());
        with_key.get("/v1/sandboxes/box").await.ok();
        w.admin().delete(&format!("/v1/keys/{id}")).await.ok();
        with_key.get("/v1/sandboxes/box").await.refused(401, "unauthenticated");
        assert!(s.ok("alice", &["ls"]).contains("box"), "the user is still a member");
        s.ok("alice", &["rm", "-f", "box"]);
    });
}

#[test]
fn a_member_is_never_an_admin_and_gets_no_rights_on_the_machine() {
    run_with(with_local("/var/tmp"), async |w| {
        let s = SocketWorld::new(w).await;
        let folder = w.folder().join("project");
        std::fs::create_dir(&folder).unwrap();
        // Folders of root are mounted read-only alone.
        std::os::unix::fs::chown(&folder, Some(64_001), Some(64_001)).unwrap();
        let folder = folder.to_str().unwrap();
        // Root has everything, also what a member must not get through it.
        assert!(s.ok("root", &["tenant", "ls"]).contains("default"));
        let made = s.json("root", &["--json", "create", "--name", "onhost", "--provider", "local"]);
        assert_eq!(made["created_by_key"]["name"], "unix:root", "{made}");
        s.ok("root", &["volume", "create", "project", "--folder", folder]);
        s.ok("root", &["create", "--name", "mounted", "--volume", "project:/project"]);
        for words in [
            &["tenant", "ls"][..],
            &["tenant", "create", "acme"],
            &["key", "create", "--admin"],
            &["provider", "set", "container", "--on-exit", "keep"],
            &["create", "--provider", "local"],
            &["exec", "onhost", "id"],
            &["fork", "onhost"],
            &["exec", "mounted", "id"],
            &["exec", made["id"].as_str().unwrap(), "id"],
            &["volume", "create", "etc", "--folder", folder],
            &["create", "--volume", "project:/p"],
            &["volume", "files", "project"],
        ] {
            s.needs_root(words);
        }
        // Neither with a key that the member makes.
        let key = s.json("alice", &["--json", "key", "create"]);
        let with_key = w.client(key["secret"].as_str().unwrap());
        with_key.post("/v1/sandboxes", json!({ "provider": "local" })).await.refused(403, "forbidden");
        let more = with_key.post("/v1/keys", json!({ "scope": "user" })).await.ok();
        assert_eq!(more["scope"], "member", "{more}");
        // Who is not in the group cannot even connect, and is told how to get in.
        let (code, said) = s.refused("mallory", &["ls"]);
        assert!(code == "forbidden" && said.contains("usermod -aG atoll"), "{code}: {said}");
        for name in ["onhost", "mounted"] {
            s.ok("root", &["rm", "-f", name]);
        }
        s.ok("root", &["volume", "rm", "project"]);
    });
}

#[test]
fn a_sandbox_with_the_folder_of_the_socket_is_refused_by_the_server() {
    let options = Options { env: vec![("ATOLL_VOLUME_ROOTS", "/var/tmp".to_owned())], ..Options::debian() };
    run_with(options, async |w| {
        let s = SocketWorld::new(w).await;
        let folder = s.socket.parent().unwrap().to_str().unwrap();
        s.ok("root", &["volume", "create", "run", "--folder", folder]);
        s.ok("root", &["create", "--name", "box", "--volume", "run:/mnt:ro"]);
        let ask = "import socket\n\
                   s = socket.socket(socket.AF_UNIX)\n\
                   try:\n s.connect('/mnt/atoll.sock'); s.sendall(b'GET /v1/sandboxes HTTP/1.0\\r\\n\\r\\n')\n print(s.recv(4096).decode())\n\
                   except OSError as e: print('refused', e)";
        for user in ["root", "user"] {
            let said = s.ok("root", &["exec", "--user", user, "box", "--", "python3", "-c", ask]);
            let is_refused = said.contains("refused")
                || said.starts_with("HTTP/1.0 403")
                || said.starts_with("HTTP/1.1 403");
            assert!(is_refused && !said.contains("items"), "{user}: {said}");
        }
        s.ok("root", &["rm", "-f", "box"]);
        s.ok("root", &["volume", "rm", "run"]);
    });
}

#[test]
fn the_socket_of_a_killed_server_is_replaced_and_that_of_a_running_one_is_not() {
    run_with(Options::default(), async |w| {
        let s = SocketWorld::new(w).await;
        let mut second = w.command();
        second.env("ATOLL_DATA", w.folder().join("second"));
        second.args(["serve", "--listen", "127.0.0.1:7999", "--tls-port", "0"]);
        let refused = w.output(second).await;
        assert!(!refused.status.success() && text(&refused.stderr).contains("another server has the socket"));
        w.crash_server().await;
        assert!(s.of("alice", &["ls"]).status.success());
        // The address does not matter, and neither does a wrong one in the environment of the server.
        let health = s.json("alice", &["--json", "server", "status"]);
        assert!(health["health"]["version"].is_string(), "{health}");
        w.stop_server(Signal::SIGTERM).await;
        assert!(!s.socket.exists(), "removed at an orderly end");
        w.start_server().await;
    });
}
