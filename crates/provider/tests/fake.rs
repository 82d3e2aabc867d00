//! Runs the conformance suite on the fake.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests; a failing case is found by its name")]

use std::sync::Arc;

use async_trait::async_trait;
use atoll_provider::Capabilities;
use atoll_provider::conformance::{self, Fixture, InstanceAccess, Live};
use atoll_provider::fake::{FakeProvider, TEMPLATE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct InMemory(Arc<FakeProvider>);

/// Operations inside use the agent: a frozen instance does nothing.
async fn answers(live: &Live<'_>) {
    let mut agent = live.dial().await.unwrap();
    let request = format!("GET /hold HTTP/1.1\r\nx-access-token: {}\r\n\r\n", live.token);
    agent.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    agent.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200", "the token is the one that it takes");
}

#[async_trait]
impl InstanceAccess for InMemory {
    async fn write(&self, live: &Live<'_>, path: &str, content: &[u8]) {
        answers(live).await;
        assert!(self.0.write_inside(&live.target.sandbox, path, content));
    }

    async fn read(&self, live: &Live<'_>, path: &str) -> Option<Vec<u8>> {
        answers(live).await;
        self.0.read_inside(&live.target.sandbox, path)
    }

    async fn may_write(&self, live: &Live<'_>, path: &str) -> bool {
        answers(live).await;
        self.0.write_inside(&live.target.sandbox, path, b"x")
    }

    async fn hold_memory(&self, live: &Live<'_>, text: &str) {
        answers(live).await;
        self.0.memory(&live.target.sandbox, |memory| text.as_bytes().clone_into(memory)).unwrap();
    }

    async fn memory(&self, live: &Live<'_>) -> Option<String> {
        answers(live).await;
        let held = self.0.memory(&live.target.sandbox, |memory| memory.clone())?;
        Some(String::from_utf8(held).unwrap()).filter(|text| !text.is_empty())
    }

    async fn kill(&self, live: &Live<'_>) {
        self.0.kill(&live.target.sandbox, true);
    }
}

async fn conform(able: impl FnOnce(&mut Capabilities)) {
    let fake = FakeProvider::new();
    fake.set_capabilities(able);
    let fixture = Fixture {
        provider: fake.clone(),
        template: TEMPLATE.to_owned(),
        template_version: "1".to_owned(),
        inside: Arc::new(InMemory(fake.clone())),
    };
    for case in conformance::all() {
        let name = case.name;
        println!("{name}");
        case.run(fixture.clone()).await;
        assert_eq!(fake.holds(), [], "{name}");
        assert_eq!(fake.snapshots(), [], "{name}");
        assert_eq!(fake.volumes(), [], "{name}");
    }
}

#[tokio::test]
async fn the_fake_conforms() {
    conform(|_| {}).await;
}

#[tokio::test]
async fn the_fake_conforms_without_what_can_be_taken_away() {
    conform(|able| able.checkpoints = false).await;
    conform(|able| (able.captures, able.volumes) = (false, false)).await;
    conform(|able| (able.resizes_live, able.network, able.pools) = (false, false, false)).await;
    conform(|able| (able.snapshots, able.packs) = (false, false)).await;
    conform(|able| (able.pauses, able.checkpoints, able.limits_disk) = (false, false, false)).await;
}
