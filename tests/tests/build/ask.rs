//! Asking for builds and watching them.

use std::time::{Duration, Instant};

use atoll_tests::client::{Answer, Client};
use atoll_tests::poll;
use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

/// A build to be asked for.
pub(crate) struct Ask {
    spec: Value,
    files: Vec<(String, Vec<u8>, u32)>,
}

impl Ask {
    pub(crate) fn new(name: &str, dockerfile: &str) -> Self {
        Self { spec: json!({ "template": name, "dockerfile": dockerfile }), files: Vec::new() }
    }

    pub(crate) fn with(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }

    pub(crate) fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.file_as(path, content, 0o644)
    }

    pub(crate) fn file_as(mut self, path: &str, content: impl AsRef<[u8]>, mode: u32) -> Self {
        self.files.push((path.to_owned(), content.as_ref().to_vec(), mode));
        self
    }

    fn form(&self) -> Form {
        let spec = Part::text(self.spec.to_string()).mime_str("application/json").unwrap();
        let form = Form::new().part("spec", spec);
        if self.files.is_empty() {
            return form;
        }
        let mut tar = tar::Builder::new(Vec::new());
        for (path, content, mode) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(*mode);
            header.set_mtime(1_700_000_000);
            tar.append_data(&mut header, path, content.as_slice()).unwrap();
        }
        form.part("context", Part::bytes(tar.into_inner().unwrap()))
    }

    /// Sends it; whatever comes.
    pub(crate) async fn send(&self, client: &Client) -> Answer {
        let request = client.raw(Method::POST, "/v1/builds").multipart(self.form());
        client.judged(request, &Method::POST, "/v1/builds", None).await
    }

    /// Begins it; answers its id.
    pub(crate) async fn begin(&self, client: &Client) -> String {
        let build = self.send(client).await.ok();
        build["id"].as_str().expect("an id").to_owned()
    }

    /// Begins it and waits for its end.
    pub(crate) async fn end(&self, client: &Client) -> Value {
        let id = self.begin(client).await;
        ended(client, &id).await
    }

    /// Builds it; it must succeed.
    pub(crate) async fn build(&self, client: &Client) -> Value {
        let build = self.end(client).await;
        let id = build["id"].as_str().unwrap().to_owned();
        assert_eq!(build["status"], "ready", "{build:#}\n{}", log(client, &id).await.join("\n"));
        build
    }

    /// Builds it; it must fail.
    pub(crate) async fn fail(&self, client: &Client) -> Value {
        let build = self.end(client).await;
        assert_eq!(build["status"], "failed", "{build:#}");
        build
    }
}

pub(crate) async fn get(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/builds/{id}")).await.ok()
}

/// Waits for the end of a build.
pub(crate) async fn ended(client: &Client, id: &str) -> Value {
    let begun = Instant::now();
    loop {
        let build = get(client, id).await;
        if !matches!(build["status"].as_str(), Some("waiting" | "building")) {
            return build;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "never ends: {build:#}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a build has come to a step.
pub(crate) async fn at_step(client: &Client, id: &str, step: u64) {
    poll::until("the build is there", async || {
        let build = get(client, id).await;
        assert!(matches!(build["status"].as_str(), Some("waiting" | "building")), "{build:#}");
        (build["step"].as_u64().unwrap() >= step).then_some(())
    })
    .await;
}

/// The texts of a build's log.
pub(crate) async fn log(client: &Client, id: &str) -> Vec<String> {
    lines(client, id).await.iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect()
}

/// A build's log, until the build ends.
pub(crate) async fn lines(client: &Client, id: &str) -> Vec<Value> {
    let events = client.events(Method::GET, &format!("/v1/builds/{id}/logs?follow=1"), None).await;
    let all = events.rest().await;
    assert_eq!(all.last().map(|event| event.name.as_str()), Some("end"), "{all:?}");
    all.into_iter().filter(|event| event.name == "line").map(|event| event.data).collect()
}

/// A build with a context of exactly these bytes, to its end.
pub(crate) async fn with_context(client: &Client, name: &str, dockerfile: &str, context: Vec<u8>) -> Value {
    let spec = json!({ "template": name, "dockerfile": dockerfile }).to_string();
    let spec = Part::text(spec).mime_str("application/json").unwrap();
    let form = Form::new().part("spec", spec).part("context", Part::bytes(context));
    let request = client.raw(Method::POST, "/v1/builds").multipart(form);
    let build = client.judged(request, &Method::POST, "/v1/builds", None).await.ok();
    ended(client, build["id"].as_str().unwrap()).await
}
