//! The fake passes the suite that it helps to write tests above.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use async_trait::async_trait;
use atoll_provider::conformance::{self, Fixture, Inside, Live};
use atoll_provider::fake::{FakeProvider, TEMPLATE};

struct InMemory(Arc<FakeProvider>);

#[async_trait]
impl Inside for InMemory {
    async fn write(&self, live: &Live<'_>, path: &str, content: &[u8]) {
        self.0.files(&live.target.sandbox, |files| files.insert(path.to_owned(), content.to_vec())).unwrap();
    }

    async fn read(&self, live: &Live<'_>, path: &str) -> Option<Vec<u8>> {
        self.0.files(&live.target.sandbox, |files| files.get(path).cloned())?
    }

    async fn kill(&self, live: &Live<'_>) {
        self.0.kill(&live.target.sandbox, true);
    }
}

#[tokio::test]
#[expect(clippy::print_stdout, reason = "a failing case is found by its name")]
async fn the_fake_conforms() {
    let fake = FakeProvider::new();
    let fixture = Fixture {
        provider: fake.clone(),
        template: TEMPLATE.to_owned(),
        template_version: "1".to_owned(),
        inside: Arc::new(InMemory(fake.clone())),
    };
    for (name, case) in conformance::all() {
        println!("{name}");
        case(fixture.clone()).await;
        assert_eq!(fake.holds(), [], "{name}");
    }
}
