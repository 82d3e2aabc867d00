//! Builds and their logs.

use reqwest::{Method, multipart};

use super::{Answer, Client, Events, Listing, MapError, segment};
use crate::builds::{Build, BuildLog, BuildPage, LogsQuery};

fn path(build: &str, below: &str) -> String {
    format!("/v1/builds/{}{below}", segment(build))
}

impl<M: MapError> Client<M> {
    /// Starts a build. `form` contains `spec` and then, if files are copied, `context`.
    pub async fn start_build(&self, form: multipart::Form) -> Result<Answer<Build>, M::Error> {
        self.answer_without_limit(self.request(Method::POST, "/v1/builds").multipart(form)).await
    }

    /// All builds, or those of one template.
    pub async fn builds(
        &self,
        template: Option<&str>,
        limit: Option<u32>,
    ) -> Result<Listing<Build>, M::Error> {
        let query: Vec<_> = template.map(|name| ("template", name.to_owned())).into_iter().collect();
        self.pages::<BuildPage>("/v1/builds", &query, limit).await
    }

    pub async fn build(&self, build: &str) -> Result<Answer<Build>, M::Error> {
        self.get(&path(build, "")).await
    }

    pub async fn cancel_build(&self, build: &str) -> Result<Answer<Build>, M::Error> {
        self.delete(&path(build, "")).await
    }

    pub async fn build_log(&self, build: &str, query: &LogsQuery) -> Result<Answer<BuildLog>, M::Error> {
        self.get_query(&path(build, "/logs"), query).await
    }

    /// Events `line` with a `BuildLine`, then `end` with the build or `error`.
    pub async fn follow_build_log(&self, build: &str, query: &LogsQuery) -> Result<Events<M>, M::Error> {
        let request = self.request(Method::GET, &path(build, "/logs"));
        self.events_of(request.query(query).query(&[("follow", "1")])).await
    }
}
