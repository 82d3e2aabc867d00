//! A provider without an agent: commands and files go through its own calls, and what it lacks is refused by name.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use atoll_example_provider::FolderProvider;
use atoll_model::{Code, CreateSandbox, Lease, Phase};
use atoll_service::{
    ByteRange, EntryKind, Exec, ExecEvent, NewPreview, Pause, PortQuestion, ServiceError, TerminalSize,
    WriteFile,
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};

use crate::world::{Options, World};

struct FolderWorld {
    world: World,
    folder: Arc<FolderProvider>,
    root: tempfile::TempDir,
}

fn with(folder: &Arc<FolderProvider>) -> Options {
    Options { other: Some(folder.clone()), ..Options::default() }
}

impl FolderWorld {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let folder = Arc::new(FolderProvider::new(root.path(), "this server"));
        Self { world: World::with(with(&folder)).await, folder, root }
    }

    async fn create(&self) -> Lease {
        let env = [("GREETING".to_owned(), "hello".to_owned())].into();
        let spec = CreateSandbox { provider: Some("folder".to_owned()), env, ..CreateSandbox::default() };
        self.world.try_create(spec).await.unwrap()
    }
}

fn shell(text: &str) -> Exec {
    Exec { argv: ["sh", "-c", text].map(str::to_owned).to_vec(), ..Exec::default() }
}

fn is_missing(refused: &ServiceError, capability: &str) {
    assert_eq!(refused.code, Code::Unsupported, "{refused}");
    let end = format!("provider folder lacks the capability {capability}");
    assert!(refused.message.ends_with(&end), "{refused}");
    assert!(refused.hint.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_run_through_the_calls_of_the_provider() {
    let at = FolderWorld::new().await;
    let lease = at.create().await;
    let (sandboxes, who, id) = (at.world.service.sandboxes(), &at.world.admin, lease.id.as_str());
    let ran = sandboxes.exec(who, id, shell("echo $GREETING; echo no >&2; exit 3")).await.unwrap();
    assert_eq!(
        (ran.exit_code, &ran.stdout.head[..], &ran.stderr.head[..]),
        (3, &b"hello\n"[..], &b"no\n"[..])
    );
    let fed = Exec { stdin: Some(Bytes::from_static(b"some input")), ..shell("cat") };
    assert_eq!(&sandboxes.exec(who, id, fed).await.unwrap().stdout.head[..], b"some input");
    let late = Exec { timeout: Some(Duration::from_millis(200)), ..shell("exec sleep 600") };
    let ended = sandboxes.exec(who, id, late).await.unwrap();
    assert_eq!((ended.exit_code, ended.timed_out), (124, true));
    let refused = sandboxes.exec(who, id, Exec { argv: vec!["no-such-program".into()], ..Exec::default() });
    assert_eq!(refused.await.unwrap_err().code, Code::InvalidArgument);
    // Its output arrives while it runs.
    let waits = "echo first; until [ -e go ]; do sleep 0.01; done; echo last";
    let (pid, mut events) = sandboxes.exec_stream(who, id, shell(waits)).await.unwrap();
    let Some(ExecEvent::Stdout(first)) = events.next().await else { panic!("output before the end") };
    assert_eq!(&first[..], b"first\n");
    let listed = sandboxes.processes(who, id).await.unwrap();
    assert_eq!(listed.iter().map(|process| process.pid).collect::<Vec<_>>(), [pid]);
    sandboxes.exec(who, id, shell("touch go")).await.unwrap();
    let rest: Vec<_> = events.collect().await;
    assert!(matches!(&rest[..], [ExecEvent::Stdout(_), ExecEvent::Exit { exit_code: 0, .. }]), "{rest:?}");
    // A detached command writes to the logs.
    sandboxes.exec(who, id, Exec { detach: true, ..shell("echo logged") }).await.unwrap();
    sandboxes.delete(who, id, true).await.unwrap();
    assert_eq!(std::fs::read_dir(at.root.path()).unwrap().count(), 0, "nothing is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_read_and_listed_through_the_calls_of_the_provider() {
    let at = FolderWorld::new().await;
    let lease = at.create().await;
    let (sandboxes, who, id) = (at.world.service.sandboxes(), &at.world.admin, lease.id.as_str());
    let content: Vec<u8> = (0..700_000).map(|n| (n % 251) as u8).collect();
    let sent = Bytes::from(content.clone());
    let file = WriteFile {
        path: "/data/sub/file.bin".to_owned(),
        mode: Some(0o640),
        user: None,
        len: Some(content.len() as u64),
        as_root: false,
    };
    let body = futures::stream::once(async move { Ok(sent) }).boxed();
    let written = sandboxes.write_file(who, id, file, body).await.unwrap();
    assert_eq!((written.size, written.kind), (content.len() as u64, EntryKind::File));
    let read = sandboxes.read_file(who, id, "/data/sub/file.bin", None).await.unwrap();
    assert_eq!(read.mode, Some(0o640));
    let got: Vec<Bytes> = read.stream.try_collect().await.unwrap();
    assert_eq!(got.concat(), content);
    let part =
        sandboxes.read_file(who, id, "/data/sub/file.bin", Some(ByteRange::Within(10, 19))).await.unwrap();
    assert_eq!(part.stream.try_collect::<Vec<_>>().await.unwrap().concat(), content[10..20]);
    sandboxes.make_dir(who, id, "/data/made").await.unwrap();
    let (listed, is_cut) = sandboxes.list_dir(who, id, "/data", 2).await.unwrap();
    let paths: Vec<_> = listed.iter().map(|entry| str::from_utf8(&entry.path).unwrap()).collect();
    assert_eq!((paths, is_cut), (vec!["/data/made", "/data/sub", "/data/sub/file.bin"], false));
    sandboxes.remove_path(who, id, "/data/sub").await.unwrap();
    let gone = sandboxes.read_file(who, id, "/data/sub/file.bin", None).await.err().unwrap();
    assert_eq!(gone.code, Code::FileNotFound);
    sandboxes.delete(who, id, true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_provider_lacks_is_refused_with_the_name_of_the_capability() {
    let at = FolderWorld::new().await;
    let lease = at.create().await;
    let (service, who, id) = (&at.world.service, &at.world.admin, lease.id.as_str());
    let sandboxes = service.sandboxes();
    let size = TerminalSize { cols: 80, rows: 24 };
    let terminal = Exec { terminal: Some(size), ..shell("true") };
    is_missing(&sandboxes.exec(who, id, terminal).await.unwrap_err(), "terminal");
    let other = Exec { user: Some("somebody".to_owned()), ..shell("true") };
    is_missing(&sandboxes.exec(who, id, other).await.unwrap_err(), "user");
    let (pid, _events) = sandboxes.exec_stream(who, id, shell("exec sleep 600")).await.unwrap();
    is_missing(&sandboxes.signal(who, id, pid, 15).await.unwrap_err(), "signal");
    is_missing(&sandboxes.watch(who, id, "/", false).await.err().unwrap(), "agent");
    is_missing(&sandboxes.pause(who, id, Pause::default(), true).await.unwrap_err(), "pause");
    let preview = NewPreview { port: 80, ..NewPreview::default() };
    is_missing(&service.access().create_preview(who, id, preview).await.unwrap_err(), "dial");
    let keys = [at.world.admin_key.clone()];
    let question = PortQuestion { keys: &keys, ..PortQuestion::new(&lease.id, Some(80)) };
    let port = service.access().reach_port(question).await.unwrap().grant.open().await.unwrap();
    is_missing(&port.dial().await.err().unwrap(), "dial");
    sandboxes.delete(who, id, true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_finds_the_sandbox_with_its_settings() {
    let mut at = FolderWorld::new().await;
    let lease = at.create().await;
    let dir = at.world.crash().await;
    let world = World::open(dir, at.world.fake.clone(), at.world.clock.clone(), with(&at.folder)).await;
    world.until(&lease.id, Phase::Running).await;
    let sandboxes = world.service.sandboxes();
    let ran = sandboxes.exec(&world.admin, lease.id.as_str(), shell("pwd; echo $GREETING")).await.unwrap();
    let text = String::from_utf8_lossy(&ran.stdout.head).into_owned();
    assert!(text.ends_with("/files/home/user\nhello\n"), "{text}");
    sandboxes.delete(&world.admin, lease.id.as_str(), true).await.unwrap();
    assert_eq!(std::fs::read_dir(at.root.path()).unwrap().count(), 0);
}
