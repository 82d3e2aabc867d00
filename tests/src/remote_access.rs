//! [`InstanceAccess`] by a provider's own calls, for the conformance suite of providers that are clients of a vendor's API. A crash
//! of an instance is the removal of its object at the vendor.

use std::time::Duration;

use async_trait::async_trait;
use atoll_agentapi::ProcessEvent;
use atoll_provider::conformance::{InstanceAccess, Live};
use atoll_provider::{InstanceSpec, ProcessSpec, ProviderError, SessionSupport, Target};
use futures::StreamExt;
use futures::future::BoxFuture;

/// Removes the vendor's object of this id.
type RemoveObject = Box<dyn Fn(String) -> BoxFuture<'static, ()> + Send + Sync>;

/// Files and commands by the provider's own calls.
pub struct SessionAccess {
    user: Option<&'static str>,
    remove: RemoveObject,
}

fn session<'a>(live: &Live<'a>) -> &'a dyn SessionSupport {
    live.provider.session_support().unwrap()
}

/// The running instance of a specification.
pub fn target(spec: &InstanceSpec) -> Target {
    Target { sandbox: spec.sandbox.clone(), instance: Some(spec.instance.clone()) }
}

/// A line of a shell.
pub fn shell(line: &str) -> ProcessSpec {
    ProcessSpec { argv: ["sh", "-c", line].map(str::to_owned).to_vec(), ..ProcessSpec::default() }
}

/// A shell that keeps a text in a variable and answers through fifos.
const HOLD: &str = r#"rm -f /tmp/ask /tmp/answer; mkfifo /tmp/ask /tmp/answer; held=$(cat /tmp/value); rm /tmp/value
echo holds; while true; do read -r x </tmp/ask; printf %s "$held" >/tmp/answer; done"#;

impl SessionAccess {
    /// As this user, where the provider has a choice of users.
    pub fn new(
        user: Option<&'static str>,
        remove: impl Fn(String) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self { user, remove: Box::new(remove) }
    }

    fn command(&self, line: &str) -> ProcessSpec {
        let (user, cwd) = (self.user.map(str::to_owned), Some("/".to_owned()));
        ProcessSpec { user, cwd, ..shell(line) }
    }

    async fn sh(&self, live: &Live<'_>, line: &str) -> Option<Vec<u8>> {
        let what = ProcessSpec { timeout: Some(Duration::from_secs(30)), ..self.command(line) };
        let mut output = session(live).start_process(&live.target, what).await.unwrap().output;
        let mut stdout = Vec::new();
        while let Some(event) = output.next().await {
            match event.unwrap() {
                ProcessEvent::Stdout(data) => stdout.extend_from_slice(&data),
                ProcessEvent::Exit(status) => return (status.shell_code() == 0).then_some(stdout),
                _ => {}
            }
        }
        None
    }
}

#[async_trait]
impl InstanceAccess for SessionAccess {
    async fn write(&self, live: &Live<'_>, path: &str, content: &[u8]) {
        let content = bytes::Bytes::copy_from_slice(content);
        let len = Some(content.len() as u64);
        let content = futures::stream::once(async move { Ok(content) }).boxed();
        session(live).write_file(&live.target, path, self.user, None, len, content).await.unwrap();
    }

    /// A paused instance does not answer until it runs again.
    async fn read(&self, live: &Live<'_>, path: &str) -> Option<Vec<u8>> {
        loop {
            match session(live).read_file(&live.target, path, self.user, None).await {
                Ok(file) => return Some(file.stream.map(|chunk| chunk.unwrap().to_vec()).concat().await),
                Err(ProviderError::Transient { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(_) => return None,
            }
        }
    }

    async fn may_write(&self, _: &Live<'_>, _: &str) -> bool {
        unreachable!("no case needs it without volumes")
    }

    async fn hold_memory(&self, live: &Live<'_>, text: &str) {
        self.write(live, "/tmp/value", text.as_bytes()).await;
        let mut started = session(live).start_process(&live.target, self.command(HOLD)).await.unwrap();
        let first = started.output.next().await.unwrap().unwrap();
        assert_eq!(first, ProcessEvent::Stdout("holds\n".into()));
    }

    async fn memory(&self, live: &Live<'_>) -> Option<String> {
        let held = self.sh(live, "[ -p /tmp/ask ] && echo >/tmp/ask && timeout 20 cat /tmp/answer").await?;
        Some(String::from_utf8(held).unwrap())
    }

    async fn kill(&self, live: &Live<'_>) {
        let id = live.booted.facts["object"].as_str().unwrap();
        (self.remove)(id.to_owned()).await;
    }
}
