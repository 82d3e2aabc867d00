//! Shell sessions.

use bytes::Bytes;
use reqwest::Method;

use super::{Answer, Client, Events, Listing, MapError, sandbox_path, segment};
use crate::sessions::{
    Session, SessionBody, SessionDetails, SessionExecBody, SessionList, SessionOutput, SessionResult,
    SessionStarted,
};

impl<M: MapError> Client<M> {
    pub async fn sessions(&self, ident: &str) -> Result<Listing<Session>, M::Error> {
        self.list::<SessionList>(&sandbox_path(ident, "/sessions")).await
    }

    pub async fn create_session(&self, ident: &str, body: &SessionBody) -> Result<Answer<Session>, M::Error> {
        self.post(&sandbox_path(ident, "/sessions"), body).await
    }

    pub async fn session(&self, ident: &str, name: &str) -> Result<Answer<SessionDetails>, M::Error> {
        self.get(&session_path(ident, name, "")).await
    }

    pub async fn delete_session(&self, ident: &str, name: &str) -> Result<(), M::Error> {
        self.delete_silently(&session_path(ident, name, "")).await
    }

    /// Runs a command and waits for its end.
    pub async fn session_exec(
        &self,
        ident: &str,
        name: &str,
        body: &SessionExecBody,
    ) -> Result<Answer<SessionResult>, M::Error> {
        let request = self.request(Method::POST, &session_path(ident, name, "/exec")).json(body);
        self.answer_without_limit(request).await
    }

    /// Starts a command in the background; `body.detach` is true.
    pub async fn session_exec_detached(
        &self,
        ident: &str,
        name: &str,
        body: &SessionExecBody,
    ) -> Result<Answer<SessionStarted>, M::Error> {
        self.post(&session_path(ident, name, "/exec"), body).await
    }

    pub async fn session_logs(
        &self,
        ident: &str,
        name: &str,
        id: &str,
    ) -> Result<Answer<SessionOutput>, M::Error> {
        self.get(&command_path(ident, name, id, "/logs")).await
    }

    /// The output of a command from its beginning, as a stream; the events are those of a command, without `start`.
    pub async fn session_logs_stream(
        &self,
        ident: &str,
        name: &str,
        id: &str,
    ) -> Result<Events<M>, M::Error> {
        self.events_of(self.request(Method::GET, &command_path(ident, name, id, "/logs/stream"))).await
    }

    /// Writes to the standard input of a detached command.
    pub async fn session_stdin(
        &self,
        ident: &str,
        name: &str,
        id: &str,
        data: Bytes,
    ) -> Result<(), M::Error> {
        let path = command_path(ident, name, id, "/stdin");
        self.done(self.request(Method::POST, &path).body(data)).await
    }
}

fn session_path(ident: &str, name: &str, below: &str) -> String {
    sandbox_path(ident, &format!("/sessions/{}{below}", segment(name)))
}

fn command_path(ident: &str, name: &str, id: &str, below: &str) -> String {
    session_path(ident, name, &format!("/commands/{}{below}", segment(id)))
}
