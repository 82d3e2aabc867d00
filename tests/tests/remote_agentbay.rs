//! The provider `agentbay` over TLS, with a service written from AgentBay's API: the vendor's own SDK drives that service, the
//! conformance suite holds for it in both forms of its shell, and faults on the way do no harm.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]
#![allow(clippy::print_stderr, reason = "a test that does not run says so")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atoll_agentapi::{EntryKind, ProcessEvent, Range};
use atoll_model::ErrorKind;
use atoll_provider::conformance::{self, Fixture};
use atoll_provider::{InstanceSpec, NoticeKind, ProcessSpec, Provider, ProviderError, StartedProcess};
use atoll_remote_agentbay::{
    AgentbayConfig, AgentbayProvider, AgentbaySandboxes, AgentbaySettings, AgentbayTiming, ApiKey,
};
use atoll_tests::agentbay::{AgentbayService, KEY};
use atoll_tests::fault_proxy::{Fault, FaultProxy};
use atoll_tests::remote_access::{SessionAccess, shell, target};
use atoll_tests::{World, run, until};
use futures::StreamExt;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const GRACE: Duration = Duration::from_secs(2);
const CREATES: usize = 50;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The service and the proxy before it, which speaks TLS.
struct AgentbayWorld {
    service: Arc<AgentbayService>,
    proxy: FaultProxy,
}

impl AgentbayWorld {
    async fn open(world: &World) -> Self {
        let service = Arc::new(AgentbayService::start(world.first_tenant().await).await);
        let proxy = FaultProxy::start_tls(service.address).await;
        let remote = Self { service, proxy };
        remote.service.set_public(&remote.authority());
        remote
    }

    fn authority(&self) -> String {
        format!("localhost:{}", self.proxy.address.port())
    }

    fn settings(&self, image: &str) -> AgentbaySettings {
        AgentbaySettings {
            api_key: ApiKey::new(KEY.to_owned()),
            region_id: None,
            endpoint: Some(self.authority()),
            image_id: Some(image.to_owned()),
            context_path: Some("/workspace".to_owned()),
            timeout: None,
        }
    }

    /// A provider of the server `owner`, as it is after a start of that server.
    async fn provider(&self, owner: &str) -> Arc<dyn Provider> {
        self.provider_with(owner, self.settings("linux_latest")).await
    }

    async fn provider_with(&self, owner: &str, settings: AgentbaySettings) -> Arc<dyn Provider> {
        let authority = CertificateDer::from_pem_slice(self.proxy.authority_pem.as_bytes()).unwrap();
        let config = AgentbayConfig {
            name: "agentbay",
            owner: owner.to_owned(),
            settings,
            sandboxes: AgentbaySandboxes::default(),
            timing: AgentbayTiming {
                watch_every: Duration::from_millis(300),
                grace: GRACE,
                poll_first: Duration::from_millis(10),
            },
            authorities: vec![authority.to_vec()],
        };
        let provider: Arc<dyn Provider> = Arc::new(AgentbayProvider::open(config).unwrap());
        assert!(provider.adopt(Vec::new(), Vec::new()).await.unwrap().is_empty());
        // A server listens to its providers; the watch begins with that.
        drop(provider.notices());
        provider
    }

    fn fixture(&self, provider: &Arc<dyn Provider>, image: &str) -> Fixture {
        let service = Arc::clone(&self.service);
        Fixture {
            provider: Arc::clone(provider),
            template: image.to_owned(),
            template_version: image.to_owned(),
            inside: Arc::new(SessionAccess::new(None, move |id| {
                let service = Arc::clone(&service);
                Box::pin(async move { service.forget(&id).await })
            })),
        }
    }

    fn spec(&self, provider: &Arc<dyn Provider>) -> InstanceSpec {
        self.fixture(provider, "linux_latest").spec()
    }

    /// Waits until the sessions were listed so many times more.
    async fn watch_rounds(&self, rounds: usize) {
        let before = self.service.count("ListSession");
        // A list of all is one call for each of four states.
        until("the sessions are listed", async || {
            (self.service.count("ListSession") >= before + rounds * 4).then_some(())
        })
        .await;
    }

    /// Waits until everything that is removed after the grace time would be.
    async fn after_grace(&self) {
        self.watch_rounds(2).await;
        let seen = Instant::now();
        until("the grace time is over", async || (seen.elapsed() > GRACE).then_some(())).await;
        self.watch_rounds(4).await;
    }

    /// The sessions of an owner: the service's ids, and the sandboxes of their labels.
    fn sessions(&self, owner: &str) -> Vec<(String, String)> {
        let found = self.service.sessions("atoll.owner", owner).into_iter();
        found.map(|(id, labels)| (id, labels["atoll.sandbox"].clone())).collect()
    }
}

/// Whether a request is this action.
fn is_action(path: &str, action: &str) -> bool {
    path.contains(&format!("Action={action}&"))
}

/// A python with the vendor's SDK; `None` where it cannot be had, which on CI is a failure.
fn sdk() -> Option<String> {
    let got = Command::new(here("scripts/get-agentbay-sdk")).output().expect("the script");
    if got.status.success() {
        return Some(String::from_utf8_lossy(&got.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&got.stderr);
    assert!(std::env::var_os("CI").is_none(), "AgentBay's SDK cannot be had: {said}");
    eprintln!("not run: {said}");
    None
}

#[test]
fn the_vendors_own_sdk_drives_the_service_of_these_tests() {
    let Some(python) = sdk() else { return };
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let authority = w.folder().join("authority.pem");
        std::fs::write(&authority, &remote.proxy.authority_pem).unwrap();
        let mut command = Command::new(&python);
        command
            .arg(here("tests/agentbay/drive.py"))
            .current_dir(w.folder())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", w.folder())
            .env("AGENTBAY_API_KEY", KEY)
            .env("AGENTBAY_ENDPOINT", remote.authority())
            .env("SSL_CERT_FILE", &authority)
            .env("REQUESTS_CA_BUNDLE", &authority);
        let done = w.output(command).await;
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        assert_eq!(String::from_utf8_lossy(&done.stdout), "driven: 2 images\n");
        assert_eq!(remote.service.sessions("owner", "sdk"), []);
    });
}

fn conformance_holds(image: &'static str) {
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let provider = remote.provider_with("suite", remote.settings(image)).await;
        conformance::check_capability_table(
            &here("docs/providers.md"),
            "agentbay",
            &provider.capabilities(),
            false,
        );
        let mut ran = Vec::new();
        for case in conformance::all() {
            let started = Instant::now();
            if case.run(remote.fixture(&provider, image)).await {
                ran.push((case.name, started.elapsed()));
            }
            assert_eq!(remote.sessions("suite"), [], "{} left something", case.name);
        }
        assert!(ran.len() >= 18, "{ran:?}");
    });
}

#[test]
fn the_conformance_suite_holds_where_the_shell_answers_raw() {
    conformance_holds("linux_latest");
}

#[test]
fn the_conformance_suite_holds_where_the_shell_answers_wrapped() {
    conformance_holds("code_latest");
}

#[test]
fn fifty_creates_whose_replies_are_half_lost_make_fifty_sessions() {
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let provider = remote.provider("race").await;
        let nth = AtomicU32::new(0);
        remote.proxy.set_rule(move |_, path| {
            let is_create = is_action(path, "CreateMcpSession");
            match is_create && nth.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
                true => Fault::LoseReply,
                false => Fault::None,
            }
        });
        let specs: Vec<InstanceSpec> = (0..CREATES).map(|_| remote.spec(&provider)).collect();
        let mut creates = tokio::task::JoinSet::new();
        for spec in specs.clone() {
            let provider = Arc::clone(&provider);
            creates.spawn(async move { provider.create(&spec).await.map(|booted| booted.facts) });
        }
        let made = creates.join_all().await.into_iter();
        let made: BTreeSet<String> =
            made.map(|facts| facts.unwrap()["object"].as_str().unwrap().to_owned()).collect();
        assert_eq!(made.len(), CREATES, "each sandbox has a session of its own");
        remote.after_grace().await;
        let sessions = remote.sessions("race");
        let wanted: BTreeSet<String> = specs.iter().map(|spec| spec.sandbox.to_string()).collect();
        assert_eq!(sessions.len(), CREATES, "no session too many, and none too few");
        assert_eq!(sessions.iter().map(|(_, sandbox)| sandbox.clone()).collect::<BTreeSet<_>>(), wanted);
        assert_eq!(sessions.iter().map(|(id, _)| id.clone()).collect::<BTreeSet<_>>(), made);
        for spec in &specs {
            provider.destroy(&target(spec)).await.unwrap();
        }
        assert_eq!(remote.sessions("race"), []);
    });
}

#[test]
fn refusals_that_pass_are_waited_for_and_others_are_told_without_the_key() {
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let provider = remote.provider("statuses").await;
        for (status, lines) in [(429, "retry-after: 1\r\n"), (500, ""), (503, "")] {
            let mut left = 2;
            remote.proxy.set_rule(move |_, path| {
                let is_meant = is_action(path, "CreateMcpSession") && left > 0;
                left -= i32::from(is_meant);
                if is_meant { Fault::Answer(status, lines) } else { Fault::None }
            });
            let spec = remote.spec(&provider);
            provider.create(&spec).await.unwrap_or_else(|error| panic!("{status}: {error}"));
            assert_eq!(remote.sessions("statuses").len(), 1, "{status}");
            // Every other call may be repeated: the reply to the first of each action is lost.
            let mut seen = BTreeSet::new();
            remote.proxy.set_rule(move |_, path| {
                let action = path.split('&').next().unwrap_or_default().to_owned();
                if seen.insert(action) { Fault::LoseReply } else { Fault::None }
            });
            provider.pause(&target(&spec)).await.unwrap();
            provider.resume(&target(&spec)).await.unwrap();
            provider.usage(&target(&spec)).await.unwrap();
            provider.destroy(&target(&spec)).await.unwrap();
            assert_eq!(remote.sessions("statuses"), []);
        }
        remote.proxy.set_rule(|_, _| Fault::Answer(401, ""));
        let refused = provider.create(&remote.spec(&provider)).await.unwrap_err();
        assert!(refused.to_string().contains("does not accept the key"), "{refused}");
        let settings = AgentbaySettings {
            api_key: ApiKey::new("akm-wrong".to_owned()),
            ..remote.settings("linux_latest")
        };
        assert!(!format!("{refused:?} {settings:?}").contains("akm-"));
    });
}

#[test]
fn no_command_runs_twice_and_no_byte_is_written_twice_when_replies_are_lost() {
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let provider = remote.provider("once").await;
        let spec = remote.spec(&provider);
        provider.create(&spec).await.unwrap();
        let (session, at) = (provider.session_support().unwrap(), target(&spec));
        let mut nth = 0;
        remote.proxy.set_rule(move |_, path| {
            nth += i32::from(is_action(path, "CallMcpTool"));
            if nth % 2 == 1 && is_action(path, "CallMcpTool") { Fault::LoseReply } else { Fault::None }
        });
        let line = "echo ran >>/tmp/runs; cat /tmp/runs; exit 5";
        let StartedProcess { output, .. } = session.start_process(&at, shell(line)).await.unwrap();
        let events: Vec<ProcessEvent> = output.map(Result::unwrap).collect().await;
        assert_eq!(events.first(), Some(&ProcessEvent::Stdout("ran\n".into())), "{events:?}");
        assert!(
            matches!(events.last(), Some(ProcessEvent::Exit(exit)) if exit.code == Some(5)),
            "{events:?}"
        );
        // Text, bytes that are no text, and letters at the ends of windows.
        let text = "line with ümlaut and \u{1F600}\n".repeat(6_000);
        let bytes: Vec<u8> = (0..120_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for content in [text.into_bytes(), bytes, Vec::new()] {
            let (len, upload) = (content.len() as u64, bytes::Bytes::from(content.clone()));
            let upload = futures::stream::once(async move { Ok(upload) }).boxed();
            session.write_file(&at, "/tmp/big", None, Some(0o640), Some(len), upload).await.unwrap();
            let file = session.read_file(&at, "/tmp/big", None, None).await.unwrap();
            assert_eq!((file.size, file.mode), (len, 0o640));
            let read = file.stream.map(|chunk| chunk.unwrap().to_vec()).concat().await;
            assert!(read == content, "{} bytes became {}", content.len(), read.len());
        }
        remote.proxy.set_rule(|_, _| Fault::None);
        provider.destroy(&at).await.unwrap();
    });
}

#[test]
fn files_of_all_kinds_are_described_and_what_cannot_be_is_refused_by_name() {
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let provider = remote.provider("files").await;
        let spec = remote.spec(&provider);
        provider.create(&spec).await.unwrap();
        let (session, at) = (provider.session_support().unwrap(), target(&spec));
        let line = "mkdir -p '/data/a b' /data/.hidden; cd /data; ln -s 'a b' link; printf x >\"$(printf 'two\\nlines')\"; \
                    printf y >\"it's\"; mkfifo pipe; seq 1 700 | while read n; do : >f$n; done";
        let StartedProcess { output, .. } = session.start_process(&at, shell(line)).await.unwrap();
        assert_eq!(output.collect::<Vec<_>>().await.len(), 1);
        let listed = session.list_folder(&at, "/data", None).await.unwrap();
        assert_eq!(listed.len(), 706, "{}", listed.len());
        let find = |name: &str| listed.iter().find(|entry| entry.name == name.as_bytes()).unwrap();
        assert_eq!(find("a b").kind, EntryKind::Directory);
        assert_eq!(find(".hidden").kind, EntryKind::Directory);
        assert_eq!(
            (find("link").kind, find("link").symlink_target.as_deref()),
            (EntryKind::Symlink, Some(&b"a b"[..]))
        );
        assert_eq!((find("two\nlines").size, find("it's").size, find("pipe").kind), (1, 1, EntryKind::Other));
        let part =
            session.read_file(&at, "/data/it's", None, Some(Range { start: 0, len: Some(0) })).await.unwrap();
        assert_eq!((part.size, part.stream.count().await), (1, 0));
        let refused = |outcome: Result<StartedProcess, ProviderError>| outcome.err().unwrap().to_string();
        let stdin = ProcessSpec { stdin: true, ..shell("cat") };
        assert!(refused(session.start_process(&at, stdin).await).contains("stdin"));
        let user = ProcessSpec { user: Some("root".to_owned()), ..shell("id") };
        assert!(refused(session.start_process(&at, user).await).contains("user"));
        let long =
            ProcessSpec { argv: vec!["echo".to_owned(), "x".repeat(60_000)], ..ProcessSpec::default() };
        assert!(refused(session.start_process(&at, long).await).contains("at most"));
        provider.destroy(&at).await.unwrap();
    });
}

#[test]
fn a_session_that_a_lost_create_left_is_removed_and_those_of_others_stay() {
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let (ours, theirs) = (remote.provider("ours").await, remote.provider("theirs").await);
        let other = remote.spec(&theirs);
        theirs.create(&other).await.unwrap();
        // The create is done and its reply lost; then the service is away, so it can be neither found nor removed.
        remote.proxy.set_rule(|_, path| match is_action(path, "CreateMcpSession") {
            true => Fault::LoseReply,
            false => Fault::Answer(500, ""),
        });
        let refused = ours.create(&remote.spec(&ours)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert_eq!(remote.sessions("ours").len(), 1);
        remote.proxy.set_rule(|_, _| Fault::None);
        until("the session is removed after the grace time", async || {
            remote.sessions("ours").is_empty().then_some(())
        })
        .await;
        ours.destroy(&target(&other)).await.unwrap();
        ours.adopt(Vec::new(), Vec::new()).await.unwrap();
        remote.after_grace().await;
        assert_eq!(remote.sessions("theirs").len(), 1, "a session of another server");
        assert!(theirs.usage(&target(&other)).await.is_ok());
        theirs.destroy(&target(&other)).await.unwrap();
    });
}

#[test]
fn a_session_is_kept_alive_and_one_that_was_paused_or_forgotten_is_noticed() {
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let settings = AgentbaySettings { timeout: Some(3), ..remote.settings("linux_latest") };
        let provider = remote.provider_with("kept", settings).await;
        let mut notices = provider.notices();
        let spec = remote.spec(&provider);
        let booted = provider.create(&spec).await.unwrap();
        let id = booted.facts["object"].as_str().unwrap().to_owned();
        until("it is kept alive beyond its idle time", async || {
            (remote.service.count("RefreshSessionIdleTime") >= 5).then_some(())
        })
        .await;
        assert_eq!(remote.service.status(&id), Some("RUNNING"));
        // Somebody pauses it there: it has to run.
        remote.service.pause(&id).await;
        until("it runs again", async || (remote.service.status(&id) == Some("RUNNING")).then_some(())).await;
        // What this server pauses stays so.
        until("it is as it was", async || provider.usage(&target(&spec)).await.ok()).await;
        provider.pause(&target(&spec)).await.unwrap();
        remote.watch_rounds(3).await;
        provider.resume(&target(&spec)).await.unwrap();
        remote.service.forget(&id).await;
        let gone = provider.session_support().unwrap().processes(&target(&spec)).await;
        assert!(matches!(gone, Err(ProviderError::Gone { .. })), "{gone:?}");
        let notice = notices.recv().await.unwrap();
        assert_eq!((notice.instance, notice.what), (spec.instance.clone(), NoticeKind::Died));
        provider.destroy(&target(&spec)).await.unwrap();
    });
}

#[test]
fn a_port_is_reached_by_its_link() {
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let provider = remote.provider("ports").await;
        let spec = remote.spec(&provider);
        provider.create(&spec).await.unwrap();
        let line = "mkdir -p /www/sub; echo page >/www/sub/index.html; httpd -p 127.0.0.1:8080 -h /www";
        let session = provider.session_support().unwrap();
        let started = session.start_process(&target(&spec), shell(line)).await.unwrap();
        assert_eq!(started.output.collect::<Vec<_>>().await.len(), 1);
        for _ in 0..2 {
            let mut stream = provider.dial(&target(&spec), 8080).await.unwrap();
            stream
                .write_all(b"GET /sub/?a=b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                .await
                .unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("page\n"), "{answer}");
            assert!(!answer.contains("link-token"), "{answer}");
        }
        assert_eq!(remote.service.count("GetLink"), 1);
        provider.destroy(&target(&spec)).await.unwrap();
        assert!(matches!(provider.dial(&target(&spec), 8080).await, Err(ProviderError::Gone { .. })));
    });
}

#[test]
fn a_service_that_hangs_or_fails_is_given_up_and_used_again() {
    run(async |w| {
        let remote = AgentbayWorld::open(w).await;
        let provider = remote.provider("dead").await;
        let spec = remote.spec(&provider);
        provider.create(&spec).await.unwrap();
        remote.proxy.set_rule(|_, _| Fault::Answer(500, ""));
        until("calls are refused without being sent", async || {
            let before = remote.proxy.count("POST", "DeleteSessionAsync");
            let refused = provider.destroy(&target(&spec)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
            let is_sent = remote.proxy.count("POST", "DeleteSessionAsync") > before;
            (!is_sent && refused.to_string().contains("the next attempt is in")).then_some(())
        })
        .await;
        let started = Instant::now();
        assert!(provider.owned().await.is_err());
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        remote.proxy.set_rule(|_, _| Fault::None);
        until("the service is used again", async || provider.destroy(&target(&spec)).await.ok()).await;
        assert_eq!(remote.sessions("dead"), []);
        remote.proxy.set_rule(|_, _| Fault::Hang);
        let refused = provider.node().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    });
}
