//! Files through the real agent: permissions, unusual names, hostile entries, atomic uploads, ranges, trees, watches.

#![allow(clippy::unwrap_used)]

use crate::common;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use crate::common::{PATIENCE, TOKEN, TestAgent};
use atoll_agentapi::{EntryKind, InitRequest, Range, WatchKind};
use atoll_model::ErrorKind;
use tokio::io::AsyncWriteExt;

async fn read(agent: &TestAgent, path: &str) -> Vec<u8> {
    agent.client.read_file(path, None, None).await.unwrap().read_to_end(1 << 30).await.unwrap()
}

/// A directory that the user `nobody` may write to.
fn open_dir(agent: &TestAgent) -> String {
    std::fs::set_permissions(agent.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    agent.dir.path().display().to_string()
}

#[tokio::test]
async fn what_was_written_is_read_with_its_mode_and_in_parts() {
    let agent = TestAgent::start();
    let path = agent.path("deep/er/file");
    agent.client.write_bytes(&path, None, Some(0o640), &b"0123456789"[..]).await.unwrap();
    let reader = agent.client.read_file(&path, None, None).await.unwrap();
    assert_eq!((reader.len, reader.size, reader.mode), (10, 10, 0o640));
    assert_eq!(reader.read_to_end(10).await.unwrap(), b"0123456789");
    let part = agent.client.read_file(&path, None, Some(Range { start: 3, len: Some(4) })).await.unwrap();
    assert_eq!((part.len, part.size), (4, 10));
    assert_eq!(part.read_to_end(10).await.unwrap(), b"3456");
    let beyond = agent.client.read_file(&path, None, Some(Range { start: 10, len: None })).await;
    assert_eq!(beyond.unwrap_err().kind(), ErrorKind::Invalid);
    // Overwriting keeps the mode unless a mode is given.
    agent.client.write_bytes(&path, None, None, &b"new"[..]).await.unwrap();
    assert_eq!(
        (read(&agent, &path).await.as_slice(), agent.client.stat(&path, None).await.unwrap().mode),
        (&b"new"[..], 0o640)
    );
    let empty = agent.path("empty");
    agent.client.write_bytes(&empty, None, None, &b""[..]).await.unwrap();
    let (status, head, _) = agent.http("GET", &format!("/files?path={empty}"), "", b"").await;
    assert!(status == 200 && head.contains("content-length: 0"));
}

#[tokio::test]
async fn sixty_megabytes_go_up_and_down_whole() {
    let agent = TestAgent::start();
    let path = agent.path("big");
    let chunk = bytes::Bytes::from((0..65_536u32).map(|n| n as u8).collect::<Vec<u8>>());
    let chunks = futures::stream::iter((0..960).map(move |_| Ok(chunk.clone())));
    agent.client.write_file(&path, None, None, None, chunks).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 960 * 65_536);
    let back = read(&agent, &path).await;
    assert!(back.len() == 960 * 65_536 && back.iter().enumerate().all(|(n, byte)| *byte == n as u8));
}

#[tokio::test]
async fn ranges_by_the_thousand_are_answered_by_the_whole_file() {
    let agent = TestAgent::start();
    std::fs::write(agent.path("f"), "0123456789").unwrap();
    let target = format!("/files?path={}", agent.path("f"));
    let many: Vec<String> = (0..1000).map(|n| format!("{n}-{}", n + 5)).collect();
    let (status, _, body) =
        agent.http("GET", &target, &format!("Range: bytes={}\r\n", many.join(",")), b"").await;
    assert_eq!((status, body.as_slice()), (200, &b"0123456789"[..]));
    let (status, head, _) = agent.http("GET", &target, "Range: bytes=20-30\r\n", b"").await;
    assert!(status == 416 && head.contains("content-range: bytes */10"));
    let (status, head, body) = agent.http("GET", &target, "Range: bytes=-2\r\n", b"").await;
    assert!(status == 206 && head.contains("content-range: bytes 8-9/10") && body == b"89");
}

#[tokio::test]
async fn files_are_touched_with_the_rights_of_the_named_user() {
    let agent = TestAgent::start();
    let dir = open_dir(&agent);
    let mine = format!("{dir}/mine");
    agent.client.write_bytes(&mine, Some("nobody"), None, &b"x"[..]).await.unwrap();
    let entry = agent.client.stat(&mine, None).await.unwrap();
    assert_eq!((entry.owner.as_str(), std::fs::metadata(&mine).unwrap().uid()), ("nobody", 65534));
    let secret = agent.path("secret");
    agent.client.write_bytes(&secret, None, Some(0o600), &b"s"[..]).await.unwrap();
    let kind = |result: Result<(), atoll_agentapi::AgentError>| result.unwrap_err().kind();
    assert_eq!(
        kind(agent.client.read_file(&secret, Some("nobody"), None).await.map(|_| ())),
        ErrorKind::Forbidden
    );
    assert_eq!(
        kind(agent.client.read_file("/etc/shadow", Some("nobody"), None).await.map(|_| ())),
        ErrorKind::Forbidden
    );
    assert_eq!(
        kind(agent.client.write_bytes("/etc/atoll-test", Some("nobody"), None, &b""[..]).await),
        ErrorKind::Forbidden
    );
    assert_eq!(kind(agent.client.remove("/etc/hostname", Some("nobody")).await), ErrorKind::Forbidden);
    assert_eq!(
        kind(agent.client.make_dir("/etc/atoll-dir", Some("nobody"), None).await.map(|_| ())),
        ErrorKind::Forbidden
    );
    assert_eq!(
        kind(agent.client.move_entry(&secret, "/etc/x", Some("nobody")).await.map(|_| ())),
        ErrorKind::Forbidden
    );
    assert_eq!(
        kind(agent.client.stat("/", Some("not-a-user")).await.map(|_| ())),
        ErrorKind::Unauthenticated
    );
    // And root again, on the same threads.
    assert_eq!(read(&agent, &secret).await, b"s");
}

#[tokio::test]
async fn with_roots_file_rights_everything_is_reached_and_what_is_made_is_the_users() {
    let agent = TestAgent::start();
    let root = agent.client.with_root_files();
    let nobody = Some("nobody");
    let shut = agent.path("shut");
    std::fs::create_dir(&shut).unwrap();
    std::fs::set_permissions(agent.dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(format!("{shut}/secret"), "s").unwrap();
    std::fs::set_permissions(format!("{shut}/secret"), PermissionsExt::from_mode(0o600)).unwrap();
    let owner = |path: &str| std::fs::symlink_metadata(path).map(|found| (found.uid(), found.gid())).unwrap();
    let read = root.read_file(format!("{shut}/secret"), nobody, None).await.unwrap();
    assert_eq!(read.read_to_end(10).await.unwrap(), b"s");
    let new = format!("{shut}/new/er/file");
    root.write_bytes(&new, nobody, None, &b"x"[..]).await.unwrap();
    root.make_dir(format!("{shut}/made"), nobody, None).await.unwrap();
    let made = owner(&new);
    assert_eq!(made.0, 65534);
    assert_eq!([owner(&format!("{shut}/new")), owner(&format!("{shut}/made"))], [made; 2]);
    root.move_entry(format!("{shut}/secret"), format!("{shut}/made/moved"), nobody).await.unwrap();
    assert_eq!(owner(&format!("{shut}/made/moved")), (0, 0));
    assert_eq!(root.list_dir(&shut, nobody, 2).await.unwrap().0.len(), 4);
    let mut watch = root.watch(&shut, nobody, false).await.unwrap();
    root.remove(format!("{shut}/new"), nobody).await.unwrap();
    let seen = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((seen.name.as_slice(), seen.kind), (&b"new"[..], WatchKind::Remove));
    // The next job on the same thread has only the user's permissions, and so has every command.
    let refused = agent.client.stat(format!("{shut}/made"), nobody).await.unwrap_err().kind();
    assert_eq!(refused, ErrorKind::Forbidden);
    let mut look = common::sh(&format!("ls {shut}"));
    look.user = nobody.map(str::to_owned);
    assert_ne!(root.run(look, 1 << 20).await.unwrap().status.code, Some(0));
}

#[tokio::test]
async fn the_default_user_and_home_are_what_init_said() {
    let agent = TestAgent::start()
        .with(InitRequest { default_user: Some("nobody".into()), ..InitRequest::default() })
        .await;
    assert_eq!(agent.sh("id -un").await.stdout, b"nobody\n");
    let home = agent.client.list_dir("~", Some("root"), 1).await;
    assert!(home.is_ok());
    assert_eq!(agent.client.stat("/root/x", None).await.unwrap_err().kind(), ErrorKind::Forbidden);
}

#[tokio::test]
async fn fifos_sockets_devices_and_waiting_kernel_files_are_refused_at_once() {
    let agent = TestAgent::start();
    let fifo = agent.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let socket = agent.path("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for path in [fifo.as_str(), &socket, "/dev/zero", "/dev/tty", "/dev/null"] {
        let reading = tokio::time::timeout(PATIENCE, agent.client.read_file(path, None, None)).await;
        assert_eq!(
            reading.expect("no thread may wait").unwrap_err().kind(),
            ErrorKind::Invalid,
            "read {path}"
        );
        let writing =
            tokio::time::timeout(PATIENCE, agent.client.write_bytes(path, None, None, &b"x"[..])).await;
        assert_eq!(
            writing.expect("no thread may wait").unwrap_err().kind(),
            ErrorKind::Invalid,
            "write {path}"
        );
        assert_eq!(agent.client.stat(path, None).await.unwrap().kind, EntryKind::Other);
    }
    let kmsg = tokio::time::timeout(PATIENCE, agent.client.read_file("/proc/kmsg", None, None)).await;
    assert!(kmsg.expect("no thread may wait").is_err());
    let status = read(&agent, "/proc/self/status").await;
    assert!(String::from_utf8_lossy(&status).contains("atoll-agent"));
    assert_eq!(
        agent.client.read_file(agent.path(""), None, None).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[tokio::test]
async fn magic_links_lead_nowhere_by_any_verb() {
    let agent = TestAgent::start();
    for path in [
        "/proc/self/root/etc/passwd",
        "/proc/1/root/etc/passwd",
        "/proc/self/cwd/etc/passwd",
        "/proc/self/fd/3",
        "/proc/self/exe",
    ] {
        let errors = [
            agent.client.read_file(path, None, None).await.map(|_| ()),
            agent.client.write_bytes(path, None, None, &b"x"[..]).await,
            agent.client.list_dir(path, None, 1).await.map(|_| ()),
            agent.client.watch(path, None, false).await.map(|_| ()),
        ];
        for error in errors {
            assert!(
                matches!(error.unwrap_err().kind(), ErrorKind::Forbidden | ErrorKind::NotFound),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn odd_paths_stay_inside_or_are_refused() {
    let agent = TestAgent::start();
    let dir = agent.dir.path().display().to_string();
    std::fs::write(agent.path("f"), "x").unwrap();
    assert_eq!(read(&agent, &format!("{dir}/a/../f")).await, b"x");
    assert_eq!(read(&agent, &format!("/../../..{dir}//./f")).await, b"x");
    for (path, kind) in [
        (b"/a\0b".to_vec(), ErrorKind::Invalid),
        (vec![b'a'; 5000], ErrorKind::Invalid),
        ([b"/", &[b'n'; 300][..]].concat(), ErrorKind::Invalid),
        (b"/%2e%2e%2fetc%2fpasswd".to_vec(), ErrorKind::NotFound),
        (b"..\\..\\etc\\passwd".to_vec(), ErrorKind::NotFound),
        (b"/\xc0\xae\xc0\xae/etc/passwd".to_vec(), ErrorKind::NotFound),
        (b"/d".repeat(300), ErrorKind::NotFound),
    ] {
        assert_eq!(agent.client.read_file(&path, None, None).await.unwrap_err().kind(), kind, "{path:?}");
        assert_eq!(agent.client.stat(&path, None).await.unwrap_err().kind(), kind, "{path:?}");
        assert_eq!(agent.client.list_dir(&path, None, 1).await.unwrap_err().kind(), kind, "{path:?}");
        assert_eq!(agent.client.remove(&path, None).await.unwrap_err().kind(), kind, "{path:?}");
    }
    assert_eq!(agent.client.remove("/", None).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(agent.client.move_entry("/", "/x", None).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn names_of_any_bytes_round_trip() {
    let agent = TestAgent::start();
    let dir = agent.dir.path().display().to_string().into_bytes();
    let mut names =
        [&b"new\nline"[..], b"esc\x1b[2J", b"bad\xff\xfeutf8", b"percent%41", "rtl\u{202e}gpj".as_bytes()];
    for name in names {
        let path = [&dir[..], b"/", name].concat();
        agent.client.write_bytes(&path, None, None, name.to_vec()).await.unwrap();
        let back = agent.client.read_file(&path, None, None).await.unwrap().read_to_end(100).await.unwrap();
        assert_eq!(back, name);
    }
    let (entries, _) = agent.client.list_dir(&dir, None, 1).await.unwrap();
    names.sort_unstable();
    assert_eq!(entries.iter().map(|entry| entry.name.as_slice()).collect::<Vec<_>>(), names);
    // envd's own service returns valid JSON.
    let (status, body) = agent
        .json("/filesystem.Filesystem/ListDir", &format!(r#"{{"path":"{}"}}"#, agent.dir.path().display()))
        .await;
    assert_eq!((status, body["entries"].as_array().unwrap().len()), (200, 5));
    let moved = [&dir[..], b"/\xffmoved"].concat();
    agent.client.move_entry([&dir[..], b"/bad\xff\xfeutf8"].concat(), &moved, None).await.unwrap();
    agent.client.remove(&moved, None).await.unwrap();
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_the_old_file_and_no_trace() {
    let agent = TestAgent::start();
    let path = agent.path("f");
    std::fs::write(&path, "old").unwrap();
    let mut stream = tokio::net::TcpStream::connect(agent.address).await.unwrap();
    let head = format!(
        "POST /files?path={path} HTTP/1.1\r\nHost: a\r\nX-Access-Token: {TOKEN}\r\nContent-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&[b'x'; 300_000]).await.unwrap();
    let names = || std::fs::read_dir(agent.dir.path()).unwrap().count();
    let begun = std::time::Instant::now();
    while names() != 2 {
        assert!(begun.elapsed() < PATIENCE, "the temporary file never appeared");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    drop(stream);
    while names() != 1 {
        assert!(begun.elapsed() < PATIENCE, "the temporary file stayed");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
}

#[tokio::test]
async fn a_full_disk_is_told_as_such_and_leaves_no_trace() {
    let agent = TestAgent::start_as_pid_1();
    agent.sh("mount -t tmpfs -o size=1m none /mnt").await;
    let (status, _, body) = agent
        .http(
            "POST",
            "/files?path=/mnt/big",
            "Content-Type: application/octet-stream\r\n",
            &vec![b'x'; 3 << 20],
        )
        .await;
    assert_eq!(status, 507, "{}", String::from_utf8_lossy(&body));
    let error = agent.client.write_bytes("/mnt/big", None, None, vec![b'x'; 3 << 20]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(agent.client.list_dir("/mnt", None, 1).await.unwrap().0.is_empty());
}

#[tokio::test]
async fn gzip_and_multipart_uploads_and_metadata_work_as_sdks_send_them() {
    use std::io::Write;
    let agent = TestAgent::start();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"packed").unwrap();
    let headers =
        "Content-Type: application/octet-stream\r\nContent-Encoding: gzip\r\nX-Metadata-Color: blue\r\n";
    let (status, _, body) = agent
        .http("POST", &format!("/files?path={}", agent.path("gz")), headers, &encoder.finish().unwrap())
        .await;
    let answer: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (status, answer[0]["name"].as_str(), answer[0]["type"].as_str()),
        (200, Some("gz"), Some("file"))
    );
    assert_eq!(std::fs::read(agent.path("gz")).unwrap(), b"packed");
    assert_eq!(agent.client.stat(agent.path("gz"), None).await.unwrap().metadata["color"], "blue");
    let (status, ..) = agent
        .http(
            "POST",
            &format!("/files?path={}", agent.path("bad")),
            "Content-Encoding: gzip\r\n",
            b"not gzip",
        )
        .await;
    assert_eq!(status, 400);
    assert!(!std::path::Path::new(&agent.path("bad")).exists());

    let part = |name: &str, content: &str| {
        format!(
            "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{content}\r\n"
        )
    };
    let body = format!("{}{}--B--\r\n", part(&agent.path("m/one"), "1"), part(&agent.path("m/two"), "22"));
    let (status, _, answer) = agent
        .http("POST", "/files", "Content-Type: multipart/form-data; boundary=B\r\n", body.as_bytes())
        .await;
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!((status, answer.as_array().unwrap().len()), (200, 2));
    assert_eq!(answer[1]["path"], agent.path("m/two"));
    assert_eq!(std::fs::read(agent.path("m/two")).unwrap(), b"22");
    assert_eq!(agent.http("POST", "/files", "Content-Type: application/octet-stream\r\n", b"x").await.0, 400);

    let (status, head, body) = agent
        .http(
            "GET",
            &format!("/files?path={}", agent.path("gz")),
            "Accept-Encoding: gzip, identity;q=0\r\n",
            b"",
        )
        .await;
    assert!(status == 200 && head.contains("content-encoding: gzip"));
    let mut unpacked = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&body[..]), &mut unpacked).unwrap();
    assert_eq!(unpacked, "packed");
}

#[tokio::test]
async fn writing_through_a_link_writes_its_target_and_keeps_the_link() {
    let agent = TestAgent::start();
    std::fs::write(agent.path("target"), "old").unwrap();
    std::os::unix::fs::symlink("target", agent.path("link")).unwrap();
    std::os::unix::fs::symlink("later", agent.path("dangling")).unwrap();
    agent.client.write_bytes(agent.path("link"), None, None, &b"new"[..]).await.unwrap();
    agent.client.write_bytes(agent.path("dangling"), None, None, &b"made"[..]).await.unwrap();
    assert_eq!(std::fs::read(agent.path("target")).unwrap(), b"new");
    assert_eq!(std::fs::read(agent.path("later")).unwrap(), b"made");
    let entry = agent.client.stat(agent.path("link"), None).await.unwrap();
    assert_eq!((entry.kind, entry.symlink_target.as_deref()), (EntryKind::Symlink, Some(&b"target"[..])));
    let (_, body) =
        agent.json("/filesystem.Filesystem/Stat", &format!(r#"{{"path":"{}"}}"#, agent.path("link"))).await;
    assert_eq!(
        (body["entry"]["type"].as_str(), body["entry"]["symlinkTarget"].as_str()),
        (Some("FILE_TYPE_FILE"), Some(agent.path("target").as_str()))
    );
}

#[tokio::test]
async fn directories_are_made_listed_moved_and_removed() {
    let agent = TestAgent::start();
    let made = agent.client.make_dir(agent.path("a/b/c"), None, None).await.unwrap();
    assert_eq!((made.kind, made.mode), (EntryKind::Directory, 0o755));
    assert_eq!(
        agent.client.make_dir(agent.path("a/b/c"), None, None).await.unwrap_err().kind(),
        ErrorKind::Exists
    );
    std::fs::write(agent.path("a/file"), "x").unwrap();
    assert_eq!(
        agent.client.make_dir(agent.path("a/file"), None, None).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    assert_eq!(
        agent.client.make_dir(agent.path("a/file/x"), None, None).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    let names = |entries: Vec<atoll_agentapi::Entry>| {
        entries.iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(agent.client.list_dir(agent.path("a"), None, 0).await.unwrap().0), ["b", "file"]);
    assert_eq!(names(agent.client.list_dir(agent.path("a"), None, 9).await.unwrap().0), ["b", "c", "file"]);
    assert_eq!(
        agent.client.list_dir(agent.path("a/file"), None, 1).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    let moved = agent.client.move_entry(agent.path("a"), agent.path("x/y"), None).await.unwrap();
    assert_eq!(moved.path, agent.path("x/y").into_bytes());
    assert_eq!(
        agent.client.move_entry(agent.path("a"), agent.path("z"), None).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    std::os::unix::fs::symlink("/etc", agent.path("x/etc")).unwrap();
    agent.client.remove(agent.path("x"), None).await.unwrap();
    assert!(std::path::Path::new("/etc/passwd").exists() && !std::path::Path::new(&agent.path("x")).exists());
    assert_eq!(agent.client.remove(agent.path("x"), None).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        agent.json("/filesystem.Filesystem/Remove", &format!(r#"{{"path":"{}"}}"#, agent.path("x"))).await.0,
        200
    );
}

#[tokio::test]
async fn a_move_across_file_systems_copies() {
    let agent = TestAgent::start_as_pid_1();
    agent.sh("mount -t tmpfs none /mnt; mkdir -p /mnt/a/b; echo x > /mnt/a/b/f; ln -s f /mnt/a/b/l; chmod 750 /mnt/a").await;
    let entry = agent.client.move_entry("/mnt/a", agent.path("moved"), None).await.unwrap();
    assert_eq!(entry.mode, 0o750);
    assert_eq!(read(&agent, &agent.path("moved/b/l")).await, b"x\n");
    assert_eq!(agent.client.stat("/mnt/a", None).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_tree_far_deeper_than_any_path_is_removed() {
    let agent = TestAgent::start();
    let dir = agent.path("deep");
    let script = format!(
        "import os\nos.mkdir('{dir}')\nos.chdir('{dir}')\nfor _ in range(3000):\n  os.mkdir('d')\n  os.chdir('d')\nopen('f','w').close()"
    );
    assert!(std::process::Command::new("python3").args(["-c", &script]).status().unwrap().success());
    agent.client.remove(&dir, None).await.unwrap();
    assert!(!std::path::Path::new(&dir).exists());
}

async fn seen(watch: &mut atoll_agentapi::WatchStream, count: usize) -> Vec<(String, WatchKind)> {
    let mut events = Vec::new();
    while events.len() < count {
        let event = tokio::time::timeout(PATIENCE, watch.next()).await.expect("an event").unwrap().unwrap();
        events.push((String::from_utf8_lossy(&event.name).into_owned(), event.kind));
    }
    let more = tokio::time::timeout(Duration::from_millis(150), watch.next()).await;
    assert!(more.is_err(), "one event too many after {events:?}: {more:?}");
    events
}

#[tokio::test]
async fn a_new_file_written_through_the_agent_is_exactly_three_events() {
    let agent = TestAgent::start();
    let mut watch = agent.client.watch(agent.dir.path().to_str().unwrap(), None, false).await.unwrap();
    agent.client.write_bytes(agent.path("f"), None, None, &b"x"[..]).await.unwrap();
    let f = |kind| ("f".to_owned(), kind);
    assert_eq!(seen(&mut watch, 3).await, [f(WatchKind::Create), f(WatchKind::Chmod), f(WatchKind::Write)]);
    agent.client.write_bytes(agent.path("f"), None, None, &b"y"[..]).await.unwrap();
    assert_eq!(seen(&mut watch, 1).await, [f(WatchKind::Write)]);
    agent.client.move_entry(agent.path("f"), agent.path("g"), None).await.unwrap();
    assert_eq!(seen(&mut watch, 2).await, [f(WatchKind::Rename), ("g".to_owned(), WatchKind::Create)]);
    agent.client.remove(agent.path("g"), None).await.unwrap();
    assert_eq!(seen(&mut watch, 1).await, [("g".to_owned(), WatchKind::Remove)]);
    assert_eq!(
        agent.client.watch(agent.path("none"), None, false).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(agent.client.watch("/etc/passwd", None, false).await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_recursive_watch_follows_new_and_moved_directories() {
    let agent = TestAgent::start();
    let mut watch = agent.client.watch(agent.dir.path().to_str().unwrap(), None, true).await.unwrap();
    std::fs::create_dir_all(agent.path("a/b")).unwrap();
    let events = seen(&mut watch, 2).await;
    assert_eq!(events, [("a".to_owned(), WatchKind::Create), ("a/b".to_owned(), WatchKind::Create)]);
    std::fs::write(agent.path("a/b/f"), "x").unwrap();
    assert_eq!(
        seen(&mut watch, 2).await,
        [("a/b/f".to_owned(), WatchKind::Create), ("a/b/f".to_owned(), WatchKind::Write)]
    );
    std::fs::rename(agent.path("a"), agent.path("z")).unwrap();
    seen(&mut watch, 2).await;
    std::fs::write(agent.path("z/b/g"), "").unwrap();
    assert_eq!(seen(&mut watch, 1).await, [("z/b/g".to_owned(), WatchKind::Create)]);
}

#[tokio::test]
async fn a_polled_watcher_collects_between_polls() {
    let agent = TestAgent::start();
    let dir = agent.dir.path().display();
    let (_, body) = agent
        .json("/filesystem.Filesystem/CreateWatcher", &format!(r#"{{"path":"{dir}","includeEntry":true}}"#))
        .await;
    let id = body["watcherId"].as_str().unwrap().to_owned();
    agent.client.write_bytes(agent.path("f"), None, None, &b"xyz"[..]).await.unwrap();
    let ask = format!(r#"{{"watcherId":"{id}"}}"#);
    let mut events = Vec::new();
    let begun = std::time::Instant::now();
    while events.len() < 3 {
        assert!(begun.elapsed() < PATIENCE, "only {events:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (_, body) = agent.json("/filesystem.Filesystem/GetWatcherEvents", &ask).await;
        events.extend(body["events"].as_array().into_iter().flatten().cloned());
    }
    assert_eq!(events.len(), 3);
    assert_eq!(
        (events[0]["type"].as_str(), events[0]["entry"]["size"].as_str()),
        (Some("EVENT_TYPE_CREATE"), Some("3"))
    );
    assert_eq!(agent.json("/filesystem.Filesystem/RemoveWatcher", &ask).await.0, 200);
    assert_eq!(agent.json("/filesystem.Filesystem/GetWatcherEvents", &ask).await.0, 404);
}
