//! The adapter between the client of an agent and a provider without one.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use atoll_agentapi::{
    AgentClient, AgentError, AgentToken, InitRequest, ProcessEvent, RpcCode, StartProcess, Unpack,
};
use atoll_example_provider::{FolderProvider, TEMPLATE};
use atoll_model::policy::egress::Egress;
use atoll_model::{InstanceId, Limits, SandboxId, Storage};
use atoll_provider::{FilesOrigin, InstanceSpec, Provider, Target};
use atoll_session::SessionAdapter;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};

struct AdaptedInstance {
    provider: Arc<FolderProvider>,
    target: Target,
    agent: AgentClient,
    _root: tempfile::TempDir,
}

impl AdaptedInstance {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let provider = Arc::new(FolderProvider::new(root.path(), "this server"));
        let spec = InstanceSpec {
            sandbox: SandboxId::from_entropy([1; 20]),
            instance: InstanceId::from_entropy([2; 20]),
            template: TEMPLATE.to_owned(),
            template_version: "1".to_owned(),
            limits: Limits { memory_mib: 64, disk_mib: 64, pids: 64, cpu_milli: 500 },
            network: Arc::new(Egress::closed()),
            storage: Storage::Disk,
            hostname: "adapted".to_owned(),
            origin: FilesOrigin::Template,
            mounts: Vec::new(),
        };
        provider.create(&spec).await.unwrap();
        let target = Target { sandbox: spec.sandbox, instance: Some(spec.instance) };
        let settings = InitRequest { default_user: Some("user".to_owned()), ..InitRequest::default() };
        let adapter = SessionAdapter::new(provider.clone(), target.clone(), settings);
        let connect = move || std::future::ready(Ok(adapter.connect()));
        Self { provider, target, agent: AgentClient::new(connect, &AgentToken::new("none")), _root: root }
    }

    async fn end(self) {
        self.provider.destroy(&self.target).await.unwrap();
    }
}

fn shell(text: &str) -> StartProcess {
    StartProcess {
        cmd: "sh".to_owned(),
        args: vec!["-c".to_owned(), text.to_owned()],
        ..StartProcess::default()
    }
}

fn refusal<T>(outcome: Result<T, AgentError>) -> (RpcCode, String) {
    match outcome.err().expect("refused") {
        AgentError::Refused { code, message } => (code, message),
        other => panic!("{other}"),
    }
}

/// Bytes that a process has written so far.
fn written_by(pid: u32) -> usize {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_stops_the_process_and_loses_nothing() {
    const ALL: usize = 8_000_000;
    let at = AdaptedInstance::new().await;
    let (started, mut stream) =
        at.agent.start(shell(&format!("exec head -c {ALL} /dev/zero"))).await.unwrap();
    let mut seen = 0;
    // It writes until everything between it and the client is full.
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let written = written_by(started.pid);
        if written == seen && written > 0 {
            break;
        }
        seen = written;
    }
    assert!(seen < 2_000_000, "the adapter took {seen} bytes that were not read");
    let mut got = 0;
    while let Some(event) = stream.next().await {
        match event.unwrap() {
            ProcessEvent::Stdout(data) => got += data.len(),
            ProcessEvent::Exit(status) => assert_eq!(status.code, Some(0)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got, ALL);
    at.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_attaches_again_at_its_position_and_after_the_exit() {
    let at = AdaptedInstance::new().await;
    let (started, stream) = at.agent.start(shell("printf 0123456789")).await.unwrap();
    let whole = stream.collect(100).await.unwrap();
    assert_eq!(whole.stdout, b"0123456789");
    let rest = at.agent.attach_from(started.pid, 4).await.unwrap().collect(100).await.unwrap();
    assert_eq!((rest.stdout.as_slice(), rest.status.code), (&b"456789"[..], Some(0)));
    let (code, _) = refusal(at.agent.attach(4_000_000, true).await);
    assert_eq!(code, RpcCode::NotFound);
    at.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_copied_and_moved_without_replacing_what_is_kept() {
    let at = AdaptedInstance::new().await;
    at.agent.write_bytes("/a/one", None, Some(0o600), "one").await.unwrap();
    at.agent.write_bytes("/a/sub/two", None, None, "two").await.unwrap();
    at.agent.copy(b"/a", b"/b", None, true, false).await.unwrap();
    let copy = at.agent.read_file("/b/sub/two", None, None).await.unwrap();
    assert_eq!(copy.read_to_end(10).await.unwrap(), b"two");
    assert_eq!(at.agent.stat("/b/one", None).await.unwrap().mode, 0o600);
    assert_eq!(refusal(at.agent.copy(b"/a", b"/b", None, true, false).await).0, RpcCode::AlreadyExists);
    assert_eq!(refusal(at.agent.copy(b"/a", b"/a/c", None, true, false).await).0, RpcCode::InvalidArgument);
    assert_eq!(refusal(at.agent.move_new(b"/a/one", b"/b/one", None).await).0, RpcCode::AlreadyExists);
    at.agent.move_entry(b"/a/one", b"/b/one", None).await.unwrap();
    assert_eq!(refusal(at.agent.stat("/a/one", None).await).0, RpcCode::NotFound);
    at.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_says_it_is_empty_is_read_whole() {
    let at = AdaptedInstance::new().await;
    std::os::unix::fs::symlink("/proc", at.provider.files(&at.target.sandbox).join("proc")).unwrap();
    assert_eq!(at.agent.stat("/proc/version", None).await.unwrap().size, 0);
    let file = at.agent.read_file("/proc/version", None, None).await.unwrap();
    let text = std::fs::read_to_string("/proc/version").unwrap();
    assert_eq!(file.size, text.len() as u64);
    assert_eq!(file.read_to_end(1 << 20).await.unwrap(), text.into_bytes());
    at.agent.write_bytes("/empty", None, None, "").await.unwrap();
    let file = at.agent.read_file("/empty", None, None).await.unwrap();
    assert_eq!(file.read_to_end(10).await.unwrap(), b"");
    at.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_the_agent_is_refused_by_that_name() {
    let at = AdaptedInstance::new().await;
    let content = futures::stream::iter([Ok(Bytes::from(vec![0; 1024]))]);
    let renamed = Unpack { strip: 1, ..Unpack::below("/") };
    let refusals = [
        refusal(at.agent.watch("/", None, true).await),
        refusal(at.agent.unpack(&renamed, None, content).await),
    ];
    for (code, message) in refusals {
        assert_eq!(code, RpcCode::Unimplemented);
        assert!(message.ends_with("provider folder lacks the capability agent"), "{message}");
    }
    at.end().await;
}

/// The calls of E2B's SDKs, as their front forwards them: JSON, with envelopes for streams.
async fn forwarded(at: &AdaptedInstance, path: &str, kind: &str, body: Vec<u8>) -> (u16, Vec<u8>) {
    let request = http::Request::post(path)
        .header("host", "agent")
        .header("content-type", kind)
        .header("connect-protocol-version", "1")
        .body(Full::new(Bytes::from(body)))
        .unwrap();
    let response = at.agent.forward(request).await.unwrap();
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

fn enveloped(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap().to_be_bytes();
    [&[0][..], &len, text.as_bytes()].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_protocol_of_e2b_is_served_too() {
    let at = AdaptedInstance::new().await;
    let start = r#"{"process":{"cmd":"sh","args":["-c","echo out; exit 2"]}}"#;
    let (status, body) =
        forwarded(&at, "/process.Process/Start", "application/connect+json", enveloped(start)).await;
    let text = String::from_utf8_lossy(&body);
    // "out\n" in base64.
    assert!(status == 200 && text.contains("b3V0Cg==") && text.contains("exit status 2"), "{status} {text}");
    let path = "/files?path=/notes/a.txt&username=user";
    let (status, body) = forwarded(&at, path, "application/octet-stream", b"text".to_vec()).await;
    assert!(status == 200 && String::from_utf8_lossy(&body).contains("/notes/a.txt"), "{status}");
    let form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/notes/b.txt\"\r\n\r\nmore\r\n--x--\r\n";
    let (status, _) = forwarded(&at, "/files", "multipart/form-data; boundary=x", form.into()).await;
    assert_eq!(status, 200);
    let list = r#"{"path":"/notes","depth":1}"#;
    let (status, body) =
        forwarded(&at, "/filesystem.Filesystem/ListDir", "application/json", list.into()).await;
    let listed: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let names: Vec<_> = listed["entries"].as_array().unwrap().iter().map(|entry| &entry["name"]).collect();
    assert_eq!(status, 200);
    assert_eq!(names, ["a.txt", "b.txt"]);
    let (status, body) = forwarded(&at, "/files?path=/x&username=other", "text/plain", vec![]).await;
    let refused = String::from_utf8_lossy(&body);
    assert!(status == 501 && refused.contains("lacks the capability user"), "{status} {refused}");
    let terminal = r#"{"process":{"cmd":"sh"},"pty":{"size":{"cols":80,"rows":24}}}"#;
    let (_, body) =
        forwarded(&at, "/process.Process/Start", "application/connect+json", enveloped(terminal)).await;
    assert!(String::from_utf8_lossy(&body).contains("lacks the capability terminal"));
    at.end().await;
}
