//! [`InstanceAccess`] for providers on this machine whose instances run the agent.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use atoll_agentapi::{AgentClient, AgentToken, StartProcess};

use super::{InstanceAccess, Live};
use crate::AGENT_PORT;

/// Operations through the agent of an instance. The facts of the instance contain `pid`, its first process on this machine.
#[derive(Debug, Clone, Copy)]
pub struct AgentAccess;

fn agent(live: &Live<'_>) -> AgentClient {
    let (provider, target) = (Arc::downgrade(live.provider), live.target.clone());
    let connect = move || {
        let (provider, target) = (provider.clone(), target.clone());
        async move {
            let provider = provider.upgrade().ok_or(std::io::ErrorKind::NotConnected)?;
            provider.dial(&target, AGENT_PORT).await.map_err(std::io::Error::other)
        }
    };
    AgentClient::new(connect, &AgentToken::new(live.token.as_str()))
}

/// A shell that keeps the text in a variable and in no file. A fifo that is opened in both directions never blocks, and
/// data written to a fifo that no other process has open is lost. `T` is the folder for temporary files: instances without
/// isolation share `/tmp`.
const HOLD: &str = r#"
[ -p $T/ask ] && echo quit 1<>$T/ask
rm -f $T/ask; mkfifo $T/ask
T=$T setsid sh -c '
    exec 3<>$T/ask
    echo $$ >$T/holder
    held=$(cat $T/value); rm $T/value
    while read -r answer <&3; do
        [ "$answer" = quit ] && exit
        printf %s "$held" >"$answer.new"; mv "$answer.new" "$answer"
    done' </dev/null >/dev/null 2>&1 &
while [ -e $T/value ]; do sleep 0.01; done
"#;
const ASK: &str = r#"
[ -p $T/ask ] || exit 1
rm -f $T/answer; echo $T/answer 1<>$T/ask
for _ in $(seq 2000); do
    [ -e $T/answer ] && exec cat $T/answer
    [ "$(readlink "/proc/$(cat $T/holder)/fd/3")" = $T/ask ] || exit 1
    sleep 0.01
done
exit 1
"#;

impl AgentAccess {
    /// Runs a shell command as root in the sandbox; returns its output if it succeeded.
    pub async fn run(&self, live: &Live<'_>, line: &str) -> Option<String> {
        sh(live, line).await
    }
}

async fn sh(live: &Live<'_>, line: &str) -> Option<String> {
    let what = StartProcess {
        cmd: "/bin/sh".into(),
        args: vec!["-c".into(), format!("T=${{TMPDIR:-/tmp}}; {line}")],
        user: Some("root".into()),
        cwd: "/".into(),
        timeout: Some(Duration::from_secs(30)),
        ..StartProcess::default()
    };
    let output = agent(live).run(what, 1 << 20).await.unwrap();
    (output.status.shell_code() == 0).then(|| String::from_utf8(output.stdout.to_vec()).unwrap())
}

#[async_trait]
impl InstanceAccess for AgentAccess {
    async fn write(&self, live: &Live<'_>, path: &str, content: &[u8]) {
        agent(live).write_bytes(path, Some("root"), None, content.to_vec()).await.unwrap();
    }

    async fn read(&self, live: &Live<'_>, path: &str) -> Option<Vec<u8>> {
        let file = agent(live).read_file(path, Some("root"), None).await.ok()?;
        Some(file.read_to_end(4 << 20).await.unwrap())
    }

    async fn may_write(&self, live: &Live<'_>, path: &str) -> bool {
        agent(live).write_bytes(path, Some("root"), None, b"x".to_vec()).await.is_ok()
    }

    async fn hold_memory(&self, live: &Live<'_>, text: &str) {
        // The text has no quotes.
        let line = format!("printf %s '{text}' >$T/value; {HOLD}");
        sh(live, &line).await.expect("a process that holds it");
    }

    async fn memory(&self, live: &Live<'_>) -> Option<String> {
        sh(live, ASK).await
    }

    async fn kill(&self, live: &Live<'_>) {
        let pid = live.booted.facts["pid"].as_i64().unwrap().to_string();
        assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        // A killed process still has to leave its namespaces.
        while std::path::Path::new("/proc").join(&pid).exists() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}
