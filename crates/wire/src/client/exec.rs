//! Commands and processes.

use bytes::Bytes;
use reqwest::Method;

use super::{Answer, Client, Events, Listing, MapError, sandbox_path};
use crate::exec::{Detached, ExecBody, ExecResult};
use crate::processes::{Process, ProcessList, SignalBody};

impl<M: MapError> Client<M> {
    /// Runs a command and waits for its end; the command's own timeout is the only limit.
    pub async fn exec(&self, ident: &str, body: &ExecBody) -> Result<Answer<ExecResult>, M::Error> {
        let request = self.request(Method::POST, &sandbox_path(ident, "/exec")).json(body);
        self.answer_without_limit(request).await
    }

    /// Starts a command in the background; `body.detach` is true.
    pub async fn exec_detached(&self, ident: &str, body: &ExecBody) -> Result<Answer<Detached>, M::Error> {
        self.post(&sandbox_path(ident, "/exec"), body).await
    }

    /// Runs a command and follows it.
    pub async fn exec_stream(&self, ident: &str, body: &ExecBody) -> Result<Events<M>, M::Error> {
        self.events_of(self.request(Method::POST, &sandbox_path(ident, "/exec/stream")).json(body)).await
    }

    pub async fn processes(&self, ident: &str) -> Result<Listing<Process>, M::Error> {
        self.list::<ProcessList>(&sandbox_path(ident, "/processes")).await
    }

    pub async fn signal(&self, ident: &str, pid: u32, body: &SignalBody) -> Result<(), M::Error> {
        let path = sandbox_path(ident, &format!("/processes/{pid}/signal"));
        self.done(self.request(Method::POST, &path).json(body)).await
    }

    /// Writes to the standard input of a process.
    pub async fn write_stdin(&self, ident: &str, pid: u32, data: Bytes) -> Result<(), M::Error> {
        let path = sandbox_path(ident, &format!("/processes/{pid}/stdin"));
        // No time limit, because the process may read slowly.
        self.send(self.request(Method::POST, &path).body(data)).await.map(drop)
    }

    pub async fn close_stdin(&self, ident: &str, pid: u32) -> Result<(), M::Error> {
        let path = sandbox_path(ident, &format!("/processes/{pid}/stdin"));
        self.send(self.request(Method::DELETE, &path)).await.map(drop)
    }

    /// Events with a `LogEntry` each, and `dropped`.
    pub async fn logs(&self, ident: &str, follow: bool) -> Result<Events<M>, M::Error> {
        let follow = if follow { "1" } else { "0" };
        let request = self.request(Method::GET, &sandbox_path(ident, "/logs"));
        self.events_of(request.query(&[("follow", follow)])).await
    }
}
