//! Operations inside instances of the fake, for the conformance suite.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{FakeProvider, TEMPLATE};
use crate::Provider;
use crate::conformance::{Fixture, InstanceAccess, Live};

struct FakeAccess(Arc<FakeProvider>);

impl FakeProvider {
    /// The conformance suite's view of the fake. `provider` is the same fake, however it was found.
    #[must_use]
    pub fn fixture(self: &Arc<Self>, provider: Arc<dyn Provider>) -> Fixture {
        Fixture {
            provider,
            template: TEMPLATE.to_owned(),
            template_version: "1".to_owned(),
            inside: Arc::new(FakeAccess(Arc::clone(self))),
        }
    }
}

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
impl InstanceAccess for FakeAccess {
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
