//! The disk of the server.

use reqwest::Method;

use super::{Answer, Client, MapError};
use crate::system::{DiskUse, PruneReport, PruneRequest};

impl<M: MapError> Client<M> {
    /// What takes space. No time limit, because a large data folder takes long to walk.
    pub async fn disk_use(&self) -> Result<Answer<DiskUse>, M::Error> {
        self.answer_without_limit(self.request(Method::GET, "/v1/system/disk")).await
    }

    /// Removes what nothing needs, or lists it. No time limit, because removing many files can take long.
    pub async fn prune(&self, body: &PruneRequest) -> Result<Answer<PruneReport>, M::Error> {
        self.answer_without_limit(self.request(Method::POST, "/v1/system/prune").json(body)).await
    }
}
