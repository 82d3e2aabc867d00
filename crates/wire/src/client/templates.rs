//! Templates: show, change, make, pull, push, import, export.

use reqwest::Method;
use serde::Serialize;

use super::{Answer, Client, Events, Listing, MapError, segment};
use crate::templates::{
    Collected, ExportQuery, ImportQuery, PullBody, PushBody, TagsBody, Template, TemplateList,
};

fn path(name: &str, below: &str) -> String {
    format!("/v1/templates/{}{below}", segment(name))
}

impl<M: MapError> Client<M> {
    pub async fn templates(&self) -> Result<Listing<Template>, M::Error> {
        self.list::<TemplateList>("/v1/templates").await
    }

    pub async fn template(&self, name: &str) -> Result<Answer<Template>, M::Error> {
        self.get(&path(name, "")).await
    }

    /// Changes a template. `body` is an `UpdateTemplateBody`.
    pub async fn update_template(
        &self,
        name: &str,
        body: &impl Serialize,
    ) -> Result<Answer<Template>, M::Error> {
        self.patch(&path(name, ""), body).await
    }

    pub async fn remove_template(&self, name: &str) -> Result<(), M::Error> {
        self.delete_silently(&path(name, "")).await
    }

    /// Events `step`, then `done` or `error`.
    pub async fn make_template(&self, name: &str) -> Result<Events<M>, M::Error> {
        self.events_of(self.request(Method::POST, &path(name, "/make"))).await
    }

    /// Events `step` and `layer`, then `done` or `error`.
    pub async fn pull_image(&self, body: &PullBody) -> Result<Events<M>, M::Error> {
        self.events_of(self.request(Method::POST, "/v1/templates/pull").json(body)).await
    }

    /// Events as of a pull.
    pub async fn push_template(&self, name: &str, body: &PushBody) -> Result<Events<M>, M::Error> {
        self.events_of(self.request(Method::POST, &path(name, "/push")).json(body)).await
    }

    pub async fn tag_template(&self, name: &str, body: &TagsBody) -> Result<Answer<Template>, M::Error> {
        self.post(&path(name, "/tags"), body).await
    }

    pub async fn untag_template(&self, name: &str, tags: &[String]) -> Result<(), M::Error> {
        let request = self.request(Method::DELETE, &path(name, "/tags"));
        self.done(request.query(&[("tags", tags.join(","))])).await
    }

    /// No time limit, because removing many files can take long.
    pub async fn collect_templates(&self) -> Result<Answer<Collected>, M::Error> {
        self.answer_without_limit(self.request(Method::POST, "/v1/templates/gc")).await
    }

    /// The archive as a stream.
    pub async fn export_template(
        &self,
        name: &str,
        query: &ExportQuery,
    ) -> Result<reqwest::Response, M::Error> {
        self.send(self.request(Method::GET, &path(name, "/export")).query(query)).await
    }

    pub async fn import_template(
        &self,
        query: &ImportQuery,
        archive: reqwest::Body,
    ) -> Result<Answer<Template>, M::Error> {
        let request = self.request(Method::POST, "/v1/templates/import").query(query);
        let request = request.header(reqwest::header::CONTENT_TYPE, "application/x-tar");
        self.answer_without_limit(request.body(archive)).await
    }
}
