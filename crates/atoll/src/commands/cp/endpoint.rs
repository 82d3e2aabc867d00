//! One end of a copy that the server keeps: the files of a sandbox, or of a volume without one. Both answer to the same few
//! questions, so that copying is written once.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    client::{Client, segment},
    commands::{sandbox_path, text},
    failure::Failure,
};

/// Where.
pub(in crate::commands) enum EndpointKind<'a> {
    Sandbox(&'a str),
    Volume { name: &'a str, uid: Option<u32>, gid: Option<u32> },
}

/// One end of a copy.
pub(in crate::commands) struct SandboxEnd<'a> {
    pub(in crate::commands) client: &'a Client,
    pub(in crate::commands) home: EndpointKind<'a>,
}

impl<'a> SandboxEnd<'a> {
    pub(super) fn sandbox(client: &'a Client, sandbox: &'a str) -> Self {
        Self { client, home: EndpointKind::Sandbox(sandbox) }
    }

    /// Path of the API below it.
    fn api(&self, in_sandbox: &str, in_volume: &str) -> String {
        match self.home {
            EndpointKind::Sandbox(sandbox) => sandbox_path(sandbox, in_sandbox),
            EndpointKind::Volume { name, .. } => format!("/v1/volumes/{}{in_volume}", segment(name)),
        }
    }

    /// A path that does not begin with `/` is taken from the workdir; a volume has none, so from its top.
    pub(super) async fn absolute(&self, path: &str) -> Result<String, Failure> {
        if path.starts_with('/') {
            return Ok(path.to_owned());
        }
        match self.home {
            EndpointKind::Volume { .. } => Ok(format!("/{path}")),
            EndpointKind::Sandbox(sandbox) => {
                let sandbox = self.client.get(&sandbox_path(sandbox, "")).await?;
                let rest = path.strip_prefix("~/").unwrap_or(path);
                Ok(format!("{}/{rest}", text(&sandbox, "workdir").trim_end_matches('/')))
            }
        }
    }

    pub(super) async fn stat(&self, path: &str) -> Result<Value, Failure> {
        let path = ("path", path.to_owned());
        match self.home {
            EndpointKind::Sandbox(_) => self.client.get_query(&self.api("/files/stat", ""), &[path]).await,
            EndpointKind::Volume { .. } => {
                let query = [path, ("depth", "0".to_owned())];
                let found = self.client.get_query(&self.api("", "/entries"), &query).await?;
                Ok(found["items"][0].clone())
            }
        }
    }

    /// What a folder holds, one level deep.
    pub(in crate::commands) async fn list(&self, path: &str) -> Result<Value, Failure> {
        let query = [("path", path.to_owned()), ("depth", "1".to_owned())];
        self.client.get_query(&self.api("/files/list", "/entries"), &query).await
    }

    pub(super) async fn make_folder(&self, path: &str) -> Result<(), Failure> {
        let mut body = json!({ "path": path });
        if let EndpointKind::Volume { uid, gid, .. } = self.home {
            body["uid"] = json!(uid);
            body["gid"] = json!(gid);
        }
        self.client.post(&self.api("/files/mkdir", "/folders"), &body).await.map(|_| ())
    }

    /// Where a file called `name` goes: into `path` if that is a directory, else to `path` itself.
    pub(super) async fn target(&self, path: &str, name: &str) -> Result<String, Failure> {
        let path = self.absolute(path).await?;
        let into = || format!("{}/{name}", path.trim_end_matches('/'));
        if path.ends_with('/') {
            return Ok(into());
        }
        match self.stat(&path).await {
            Ok(entry) if text(&entry, "kind") == "directory" => Ok(into()),
            Ok(_) => Ok(path),
            Err(failure) if failure.is("file_not_found") => Ok(path),
            Err(failure) => Err(failure),
        }
    }

    /// Whether it takes a directory as one tar stream.
    pub(super) const fn takes_archives(&self) -> bool {
        matches!(self.home, EndpointKind::Sandbox(_))
    }

    /// Unpacks a tar stream below a directory.
    pub(super) async fn write_archive(&self, path: &str, body: reqwest::Body) -> Result<(), Failure> {
        let request =
            self.client.request(Method::PUT, &self.api("/files/archive", "")).query(&[("path", path)]);
        self.client.send(request.body(body)).await.map(|_| ())
    }

    pub(super) async fn read(&self, path: &str) -> Result<reqwest::Response, Failure> {
        let request = self.client.request(Method::GET, &self.api("/files", "/files"));
        self.client.send(request.query(&[("path", path)])).await
    }

    pub(super) async fn write(
        &self,
        path: &str,
        mode: Option<u32>,
        body: reqwest::Body,
    ) -> Result<(), Failure> {
        let mut query = vec![("path", path.to_owned())];
        query.extend(mode.map(|mode| ("mode", format!("{mode:o}"))));
        if let EndpointKind::Volume { uid, gid, .. } = self.home {
            query.extend(uid.map(|uid| ("uid", uid.to_string())));
            query.extend(gid.map(|gid| ("gid", gid.to_string())));
        }
        let request = self.client.request(Method::PUT, &self.api("/files", "/files")).query(&query);
        self.client.send(request.body(body)).await.map(|_| ())
    }
}
