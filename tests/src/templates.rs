//! Templates over the native API: pulls and pushes as their events tell, archives in and out, builds to their end.

use std::time::Duration;

use reqwest::Method;
use reqwest::multipart::{Form, Part};
use serde_json::{Value, json};

use crate::client::{Answer, Client, escape};
use crate::sse::{Events, SseEvent};

/// LIMIT: no pull, push or build of a test takes longer between two events.
const SILENCE: Duration = Duration::from_secs(90);

impl Client {
    /// Pulls an image; the template, or the error as its last event tells.
    pub async fn pull(&self, image: &str) -> Result<Value, Value> {
        self.pull_with(json!({ "image": image })).await
    }

    /// As [`Client::pull`], with more to say.
    pub async fn pull_with(&self, body: Value) -> Result<Value, Value> {
        outcome(self.working("/v1/templates/pull", &body).await).await
    }

    /// Sends a template to a registry.
    pub async fn push(&self, template: &str, body: Value) -> Result<Value, Value> {
        outcome(self.working(&format!("/v1/templates/{}/push", segment(template)), &body).await).await
    }

    /// A streamed answer, or the refusal before it.
    pub async fn working(&self, path: &str, body: &Value) -> Result<Events, Value> {
        let response = self.raw(Method::POST, path).json(body).send().await.expect("an answer");
        if response.status() == 200 {
            return Ok(Events::of(response));
        }
        Err(response.json().await.expect("an envelope"))
    }

    /// Makes a template of an archive.
    pub async fn import(&self, name: &str, archive: impl Into<reqwest::Body>) -> Answer {
        self.import_as(name, "auto", archive).await
    }

    /// As [`Client::import`], saying what the archive is.
    pub async fn import_as(&self, name: &str, form: &str, archive: impl Into<reqwest::Body>) -> Answer {
        let path = format!("/v1/templates/import?name={}&format={form}", escape(name));
        let request = self.raw(Method::POST, &path).header("content-type", "application/x-tar").body(archive);
        self.judged(request, &Method::POST, &path, None).await
    }

    /// The archive of a template, `oci` or `docker`.
    pub async fn export(&self, template: &str, form: &str) -> Vec<u8> {
        let answer = self.get(&format!("/v1/templates/{}/export?format={form}", segment(template))).await;
        assert_eq!(answer.status, 200, "{answer}");
        answer.bytes.to_vec()
    }

    /// A template as it is shown.
    pub async fn template(&self, name: &str) -> Answer {
        self.get(&format!("/v1/templates/{}", segment(name))).await
    }

    /// Removes a template or a tag of it.
    pub async fn remove_template(&self, name: &str) -> Answer {
        self.delete(&format!("/v1/templates/{}", segment(name))).await
    }

    /// Asks for a build; the build as it was written down, or the refusal.
    pub async fn start_build(&self, spec: &Value, context: Option<Vec<u8>>) -> Answer {
        let mut form = Form::new()
            .part("spec", Part::text(spec.to_string()).mime_str("application/json").expect("a type"));
        if let Some(context) = context {
            form = form.part("context", Part::bytes(context).mime_str("application/x-tar").expect("a type"));
        }
        let request = self.raw(Method::POST, "/v1/builds").multipart(form);
        self.judged(request, &Method::POST, "/v1/builds", None).await
    }

    /// Builds to the end: the build as it ended, and the text of its log.
    pub async fn build(&self, spec: Value, context: Option<Vec<u8>>) -> (Value, String) {
        let asked = self.start_build(&spec, context).await;
        if asked.status >= 300 {
            return (asked.json(), String::new());
        }
        let id = asked.ok()["id"].as_str().expect("an id").to_owned();
        self.follow_build(&id).await
    }

    /// Reads a build's log to its end.
    pub async fn follow_build(&self, id: &str) -> (Value, String) {
        let mut events =
            self.events(Method::GET, &format!("/v1/builds/{id}/logs?follow=1&from=0"), None).await;
        let mut log = String::new();
        while let Some(event) = events.next_within(SILENCE).await.expect("the build goes on") {
            if event.name == "line" {
                log += &format!("{}\n", event.data["text"].as_str().unwrap_or_default());
            }
        }
        (self.get(&format!("/v1/builds/{id}")).await.ok(), log)
    }
}

/// A name as one part of a path.
pub fn segment(name: &str) -> String {
    escape(name).replace('/', "%2F").replace(':', "%3A")
}

async fn outcome(events: Result<Events, Value>) -> Result<Value, Value> {
    let mut events = events?;
    let mut last: Option<SseEvent> = None;
    while let Some(event) = events.next_within(SILENCE).await.expect("the work goes on") {
        last = Some(event);
    }
    let last = last.expect("an event");
    match last.name.as_str() {
        "done" => Ok(last.data.get("template").cloned().unwrap_or(last.data)),
        "error" => Err(last.data),
        other => panic!("the last event is {other}: {}", last.data),
    }
}
