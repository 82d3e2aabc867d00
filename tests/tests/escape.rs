//! Ways out that others left open (catalogue A01 to A13), tried from inside, with `runc` as the oracle of what is normal.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use atoll_tests::canary::SECRET;
use atoll_tests::{Options, World, json, probe, proc, run, run_with, runc, template};

/// Capabilities a sandbox has, as `/proc` shows them.
const CAPABILITIES: &str = "00000000800405fb";

fn results(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

async fn surface(w: &World, id: &str, user: &str) -> BTreeMap<String, String> {
    let client = w.admin();
    let path = probe::install(&client, id, "surface").await;
    let ran = client.exec(id, json!({ "argv": [path], "user": user })).await;
    results(ran.text())
}

#[test]
fn nothing_is_allowed_here_that_runc_does_not_allow() {
    run(async |w| {
        let id = w.admin().create(json!({ "network": "deny-all" })).await;
        let ours = surface(w, &id, "root").await;
        let rootfs = w.folder().join("oracle-rootfs");
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .arg(template::shared("busybox").join("rootfs"))
            .arg(&rootfs)
            .status();
        assert!(copied.unwrap().success());
        std::fs::copy(probe::compiled("surface"), rootfs.join("surface")).unwrap();
        let oracle = results(&runc::run(w.folder(), &rootfs, &["/surface"]));
        assert!(
            ours.len() > 150 && ours.keys().eq(oracle.keys()),
            "{} and {} tries",
            ours.len(),
            oracle.len()
        );
        let more: Vec<_> =
            ours.iter().filter(|(name, result)| *result == "OK" && oracle[*name] != "OK").collect();
        assert!(more.is_empty(), "allowed here and not under runc: {more:?}");
        let as_user = surface(w, &id, "user").await;
        let more: Vec<_> =
            as_user.iter().filter(|(name, result)| *result == "OK" && ours[*name] != "OK").collect();
        assert!(more.is_empty(), "allowed to a user and not to root: {more:?}");
    });
}

/// A06, A10: each try with the only answers it may get.
const REFUSED: &[(&str, &[&str])] = &[
    ("acct", EPERM),
    ("add_key", EPERM),
    ("request_key", EPERM),
    ("keyctl", EPERM),
    ("bpf", EPERM),
    ("perf_event_open", EPERM),
    ("userfaultfd", EPERM),
    ("io_uring_setup", EPERM),
    ("io_uring_enter", EPERM),
    ("io_uring_register", EPERM),
    ("kexec_load", EPERM),
    ("kexec_file_load", EPERM),
    ("init_module", EPERM),
    ("finit_module", EPERM),
    ("delete_module", EPERM),
    ("reboot", EPERM),
    ("swapon", EPERM),
    ("swapoff", EPERM),
    ("mount_tmpfs", EPERM),
    ("mount_bind", EPERM),
    ("mount_proc", EPERM),
    ("mount_remount", EPERM),
    ("umount2", EPERM),
    ("pivot_root", EPERM),
    ("open_tree", EPERM),
    ("move_mount", EPERM),
    ("fsopen", EPERM),
    ("fsmount", EPERM),
    ("fsconfig", EPERM),
    ("fspick", EPERM),
    ("mount_setattr", EPERM),
    ("unshare_user", EPERM),
    ("unshare_mount", EPERM),
    ("unshare_net", EPERM),
    ("unshare_pid", EPERM),
    ("unshare_cgroup", EPERM),
    ("clone_user", EPERM),
    ("clone_net", EPERM),
    ("clone3", &["ENOSYS"]),
    ("setns_pid1", EPERM),
    ("setns_self", EPERM),
    ("open_by_handle_at", EPERM),
    ("quotactl", EPERM),
    ("settimeofday", EPERM),
    ("clock_settime", EPERM),
    ("clock_adjtime_set", EPERM),
    ("sethostname", EPERM),
    ("setdomainname", EPERM),
    ("iopl", EPERM),
    ("ioperm", EPERM),
    ("syslog_read", EPERM),
    ("vhangup", EPERM),
    ("lookup_dcookie", EPERM),
    ("move_pages_pid1", EPERM),
    ("set_mempolicy", EPERM),
    ("fanotify_init", EPERM),
    ("ptrace_seize_pid1", EPERM),
    ("process_vm_readv_pid1", EPERM),
    ("pidfd_getfd_pid1", EPERM),
    ("kcmp_pid1", EPERM),
    ("sched_fifo", EPERM),
    ("nice_minus_20", &["EPERM", "EACCES"]),
    ("raise_nofile", EPERM),
    ("raise_core", EPERM),
    ("mknod_block", EPERM),
    ("mknod_mem", EPERM),
    ("tiocsti", EPERM),
    ("personality_aslr", EPERM),
    ("mseal_future", &["ENOSYS"]),
];
const EPERM: &[&str] = &["EPERM"];
const REFUSED_SOCKETS: &[&str] = &[
    "packet",
    "raw",
    "vsock",
    "alg",
    "netlink_netfilter",
    "netlink_audit",
    "netlink_uevent",
    "bluetooth",
    "xdp",
    "tipc",
    "can",
    "kcm",
    "rds",
    "key",
];

#[test]
fn the_kernel_surface_is_as_the_table_says() {
    run(async |w| {
        let witness = w.witness().await;
        let id = w.admin().create(json!({})).await;
        for user in ["root", "user"] {
            let seen = surface(w, &id, user).await;
            let wrong: Vec<_> = REFUSED
                .iter()
                .filter(|(name, fair)| !fair.contains(&seen[&format!("call:{name}")].as_str()))
                .map(|(name, _)| (name, &seen[&format!("call:{name}")]))
                .collect();
            assert!(wrong.is_empty(), "as {user}: {wrong:?}");
            for name in REFUSED_SOCKETS {
                let result = &seen[&format!("socket:{name}")];
                assert!(
                    ["EPERM", "EAFNOSUPPORT", "EACCES"].contains(&result.as_str()),
                    "as {user}: socket {name} {result}"
                );
            }
            for name in ["unix", "inet", "netlink_route"] {
                assert_eq!(seen[&format!("socket:{name}")], "OK", "as {user}");
            }
            // A07, A08.
            for (name, result) in
                seen.iter().filter(|(name, _)| name.starts_with("write:") || name.starts_with("read:"))
            {
                assert_ne!(result, "OK", "as {user}: {name}");
            }
        }
        witness.verify().await;
    });
}

#[test]
fn identity_inside_is_minimal_with_and_without_sudo() {
    // A12.
    run_with(Options::debian(), async |w| {
        let client = w.admin();
        template::variant(&w.templates(), "setuid", |rootfs, _| {
            let path = rootfs.join("bin/rootme");
            std::fs::copy(probe::compiled("whoami"), &path).unwrap();
            template::set_mode(&path, 0o4755);
            let capable = rootfs.join("bin/capable");
            std::fs::copy(probe::compiled("whoami"), &capable).unwrap();
            let done = std::process::Command::new("setcap")
                .arg("cap_sys_admin,cap_net_raw+ep")
                .arg(&capable)
                .status();
            assert!(done.is_ok_and(|s| s.success()), "setcap of libcap2-bin");
        });
        let status = "grep -E 'NoNewPrivs|Seccomp:|CapBnd|CapEff' /proc/self/status | tr '\\n\\t' '  '";
        for (name, no_new_privs) in [("busybox", 1), ("setuid", 1), ("debian", 0)] {
            let id = client.create(json!({ "template": name })).await;
            let as_user = client.sh(&id, status).await;
            let text = as_user.text();
            assert!(text.contains(&format!("NoNewPrivs: {no_new_privs}")), "{name}: {text}");
            assert!(
                text.contains("Seccomp: 2") && text.contains("CapEff: 0000000000000000"),
                "{name}: {text}"
            );
            assert!(text.contains(&format!("CapBnd: {CAPABILITIES}")), "{name}: {text}");
            let as_root = client.sh_root(&id, status).await;
            assert!(
                as_root.text().contains(&format!("CapEff: {CAPABILITIES}")),
                "{name}: {}",
                as_root.text()
            );
            let first = w.agent_pid(&id);
            assert_eq!(proc::status_text(first, "Seccomp").as_deref(), Some("2"));
            assert_eq!(proc::status_text(first, "CapBnd").as_deref(), Some(CAPABILITIES));
            let outside: u32 =
                proc::status_text(first, "Uid").unwrap().split_whitespace().next().unwrap().parse().unwrap();
            assert!(outside >= 1 << 28, "root inside is {outside} outside");
            for kind in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
                assert_ne!(
                    proc::namespace(first, kind),
                    proc::namespace(w.server_pid(), kind),
                    "own {kind} namespace"
                );
            }
        }
        // Without sudo neither a setuid file nor file capabilities give anything.
        let id = client.create(json!({ "template": "setuid" })).await;
        assert_eq!(client.sh(&id, "/bin/rootme").await.text(), "1000 0000000000000000");
        let gained = client.sh(&id, "/bin/capable").await;
        assert!(gained.code != 0 || gained.stdout == "1000 0000000000000000\n", "{gained:?}");
        // With sudo a user becomes root of the sandbox, and no more than that.
        let id = client.create(json!({ "template": "debian" })).await;
        let sudo = client.exec(&id, json!({ "command": "sudo -n sh -c 'id -u; grep CapEff /proc/self/status; unshare -m true 2>&1; mount -t tmpfs x /mnt 2>&1'; true" })).await;
        let text = sudo.text();
        assert!(text.starts_with("0\n") && text.contains(CAPABILITIES), "{text}");
        assert!(
            text.matches("not permitted").count() + text.matches("permission denied").count() >= 2,
            "{text}"
        );
    });
}

#[test]
fn the_host_program_cannot_be_overwritten_through_an_exec() {
    // A01. The canary compares the program's and the agent's digests at the end.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "user": "root" })).await;
        let attack = "for i in 1 2 3; do for p in /proc/self/exe /proc/1/exe /.atoll/agent /.atoll/*; do \
            (echo evil > $p) 2>/dev/null && echo overwrote $p; (cp /bin/busybox $p) 2>/dev/null && echo copied $p; done; done; \
            rm -f /bin/sh; printf '#!/proc/self/exe\\n' > /bin/sh; chmod +x /bin/sh; true";
        let tried = client.exec(&id, json!({ "argv": ["/bin/busybox", "sh", "-c", attack] })).await;
        assert_eq!(tried.stdout, "", "{tried:?}");
        for _ in 0..200 {
            let answer =
                client.try_exec(&id, json!({ "argv": ["/bin/sh", "-c", "true"], "timeout_s": 20 })).await;
            assert!(answer.status == 200 || answer.status == 400, "{answer}");
        }
        let replace = "for n in $(busybox ls /proc/1/fd 2>/dev/null); do busybox readlink /proc/1/fd/$n; \
            (: < /proc/1/fd/$n) 2>/dev/null && busybox echo opened $n; done; true";
        assert_eq!(
            client.exec(&id, json!({ "argv": ["/bin/busybox", "sh", "-c", replace] })).await.stdout,
            ""
        );
        assert_eq!(
            client.exec(&id, json!({ "argv": ["/bin/busybox", "echo", "alive"] })).await.text(),
            "alive"
        );
        witness.verify().await;
    });
}

#[test]
fn a_working_directory_through_a_descriptor_stays_inside() {
    // A02.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "user": "root" })).await;
        let secret = w.canary.secret().display().to_string();
        for process in ["self", "1"] {
            for n in 0..40 {
                for tail in ["", "/../../../../../..", "/.."] {
                    let cwd = format!("/proc/{process}/fd/{n}{tail}");
                    let look = format!(
                        "cat .{secret} ..{secret} ../../../..{secret} 2>/dev/null; ls -d ./home/user/../../etc/shadow 2>/dev/null"
                    );
                    let answer =
                        client.try_exec(&id, json!({ "argv": ["/bin/sh", "-c", look], "cwd": cwd })).await;
                    assert!(answer.status == 400 || answer.status == 200, "{cwd}: {answer}");
                    assert!(!String::from_utf8_lossy(&answer.bytes).contains(SECRET), "{cwd} leads outside");
                }
            }
        }
    });
}

#[test]
fn images_with_traps_for_the_mounter_start_safely_or_not_at_all() {
    // A03, A04. The canary compares core_pattern at the end.
    run(async |w| {
        let witness = w.witness().await;
        let client = w.admin();
        let dev = |rootfs: &std::path::Path| {
            let _ = std::fs::remove_dir_all(rootfs.join("dev"));
            std::fs::create_dir_all(rootfs.join("dev/pts")).unwrap();
            symlink("/proc/sys/kernel/core_pattern", rootfs.join("dev/null")).unwrap();
            symlink("/proc/sysrq-trigger", rootfs.join("dev/pts/0")).unwrap();
            symlink("/proc/sysrq-trigger", rootfs.join("dev/console")).unwrap();
        };
        template::variant(&w.templates(), "trap-dev", |rootfs, _| dev(rootfs));
        let replace = |rootfs: &std::path::Path, name: &str, target: &str| {
            let path = rootfs.join(name);
            let _ = std::fs::remove_dir_all(&path);
            let _ = std::fs::remove_file(&path);
            symlink(target, path).unwrap();
        };
        let outside = w.folder().join("outside");
        std::fs::create_dir(&outside).unwrap();
        let outside_text = outside.display().to_string();
        let mut names = vec!["trap-dev".to_owned()];
        for (n, (name, target)) in [
            ("proc", "/tmp"),
            ("sys", "/etc"),
            ("dev", "/etc"),
            ("dev", &outside_text),
            ("proc", &outside_text),
            (".atoll", &outside_text),
        ]
        .iter()
        .enumerate()
        {
            let own = format!("trap-{n}");
            template::variant(&w.templates(), &own, |rootfs, _| replace(rootfs, name, target));
            names.push(own);
        }
        template::variant(&w.templates(), "trap-tree", |rootfs, _| {
            std::fs::create_dir_all(rootfs.join("proc/self/ns")).unwrap();
            std::fs::create_dir_all(rootfs.join("proc/sys/kernel")).unwrap();
            std::fs::write(rootfs.join("proc/sys/kernel/core_pattern"), "fake").unwrap();
            std::fs::create_dir_all(rootfs.join("sys/fs/cgroup")).unwrap();
            for name in ["etc/resolv.conf", "etc/hosts", "etc/hostname", "etc/passwd"] {
                let _ = std::fs::remove_file(rootfs.join(name));
                symlink(outside.join("written"), rootfs.join(name)).unwrap();
            }
        });
        names.push("trap-tree".to_owned());
        for name in &names {
            let answer = client.post("/v1/sandboxes", json!({ "template": name, "user": "root" })).await;
            if answer.status != 201 {
                assert!(matches!(answer.status, 400 | 409 | 500..=503), "{name}: {answer}");
                continue;
            }
            let id = answer.ok()["id"].as_str().unwrap().to_owned();
            let look = "readlink /proc/self/ns/pid; test -c /dev/null && echo null; stat -c '%t:%T' /dev/null; stat -f -c %T /proc; echo x > /dev/null; cat /proc/sys/kernel/core_pattern";
            let seen = client.try_exec(&id, json!({ "argv": ["/bin/busybox", "sh", "-c", look] })).await;
            if seen.status == 200 {
                let seen = seen.json();
                let text = seen["stdout"].as_str().unwrap();
                assert!(
                    text.contains("pid:[") && text.contains("null\n1:3") && text.contains("proc"),
                    "{name}: {seen}"
                );
                assert!(!text.contains("fake"), "{name}: {seen}");
            }
            client.remove(&id).await;
        }
        let written: Vec<_> = std::fs::read_dir(&outside).unwrap().flatten().map(|e| e.file_name()).collect();
        assert!(written.is_empty(), "written outside: {written:?}");
        witness.verify().await;
    });
}

#[test]
fn racing_links_during_start_never_mount_outside() {
    // A05. There are no shared volumes yet: the race is run on the files that a restart mounts over.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "user": "root" })).await;
        let before: BTreeSet<String> = atoll_tests::leaks::mounts().into_iter().collect();
        let flip = "cd /; for d in proc sys dev tmp etc home; do mv $d $d.old 2>/dev/null; ln -s /tmp $d 2>/dev/null; done; \
            rm -rf /home/user/x; ln -s / /home/user/x; rm -rf /.atoll 2>/dev/null; ln -s /tmp /.atoll 2>/dev/null; true";
        let limit = Instant::now() + Duration::from_secs(8);
        let mut rounds = 0;
        while Instant::now() < limit {
            let _ = client
                .try_exec(&id, json!({ "argv": ["/bin/busybox", "sh", "-c", flip], "timeout_s": 5 }))
                .await;
            let answer = client.act(&id, "restart").await;
            let after: BTreeSet<String> = atoll_tests::leaks::mounts().into_iter().collect();
            let new: Vec<_> = after.difference(&before).collect();
            assert!(new.is_empty(), "mounts outside: {new:?}");
            rounds += 1;
            if answer.status != 200 {
                // The sandbox broke its own root so that it cannot start; that is its own affair.
                client.remove(&id).await;
                break;
            }
        }
        assert!(rounds > 0);
    });
}

#[test]
fn the_agents_secrets_cannot_be_read() {
    // A09.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "user": "root" })).await;
        let token = agent_token_traces(w, &id).await;
        let look = "cat /proc/1/environ /proc/1/cmdline /proc/1/maps 2>&1 | tr '\\0' '\\n'; ls -l /proc/1/fd /proc/1/root /proc/1/exe 2>&1; \
            dd if=/proc/1/mem bs=1 count=1 2>&1; find / -xdev -name '*token*' -size -4k 2>/dev/null | head; env";
        let seen = client.sh(&id, look).await.stdout.to_lowercase();
        for secret in token {
            assert!(!seen.contains(&secret.to_lowercase()), "a token of the agent is visible");
        }
        assert!(seen.contains("denied") || seen.contains("not permitted"), "{seen}");
        let admin = w.admin();
        assert!(!seen.contains(admin.key().trim_start_matches("atl_")));
        // The agent's port is reachable, and answers no request without the token.
        let knock = "printf 'POST /process.Process/List HTTP/1.0\\r\\nContent-Type: application/json\\r\\nContent-Length: 2\\r\\n\\r\\n{}' | nc -w 2 127.0.0.1 49983; \
            printf 'GET /files?path=/etc/passwd HTTP/1.0\\r\\n\\r\\n' | nc -w 2 127.0.0.1 49983";
        let answered = client.sh(&id, knock).await.stdout;
        assert!(!answered.contains("200 OK") && !answered.contains("root:"), "{answered}");
        assert!(answered.contains("401") || answered.contains("403") || answered.is_empty(), "{answered}");
    });
}

/// The stored token, which must be sealed, and the texts that would betray it.
async fn agent_token_traces(w: &World, id: &str) -> Vec<String> {
    let select = "select agent_token from sandbox_instances where sandbox = ?1";
    let sealed: Vec<u8> = w.database().query_row(select, [id], |row| row.get(0)).unwrap();
    let printable = sealed.iter().filter(|byte| byte.is_ascii_graphic()).count();
    assert!(printable < sealed.len() * 3 / 4, "the token is stored in the clear");
    vec![hex::encode(&sealed)]
}

#[test]
fn ids_on_disk_are_canonical_and_nobody_can_enter_the_pool() {
    // A13.
    run(async |w| {
        let client = w.tenant("acme").await;
        let id = client.create(json!({ "user": "root" })).await;
        client.sh(&id, "echo x > /root/by-root; cp /bin/busybox /root/suid; chmod 4755 /root/suid; mknod /root/dev c 1 1 2>&1; true").await;
        use std::os::unix::fs::MetadataExt;
        let mode = std::fs::metadata(w.data()).unwrap().mode();
        let templates = std::fs::metadata(w.templates()).unwrap().mode();
        assert_eq!(templates & 0o077, 0, "templates are closed: {templates:o}");
        let as_nobody = std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "find"])
            .arg(w.data())
            .args(["-name", "suid"])
            .output()
            .unwrap();
        assert!(
            !String::from_utf8_lossy(&as_nobody.stdout).contains("suid"),
            "a user of the host finds it (data is {mode:o})"
        );
        for line in atoll_tests::leaks::mounts()
            .iter()
            .filter(|line| line.contains("btrfs") && line.contains(w.data().to_str().unwrap()))
        {
            assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");
        }
        if let Some(found) = find(&w.data(), "by-root") {
            let meta = std::fs::metadata(&found).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (0, 0), "{}", found.display());
        }
    });
}

fn find(below: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    let found = std::process::Command::new("find").arg(below).args(["-name", name]).output().unwrap();
    String::from_utf8_lossy(&found.stdout).lines().next().map(Into::into)
}
