//! Logins of command lines.

use reqwest::Method;

use super::{ANSWER_WITHIN, Answer, Client, MapError, segment};
use crate::health::Version;
use crate::logins::{ApproveBody, ApprovedLogin, Login, LoginBody, LoginPoll, StartedLogin};

fn login_path(code: &str, below: &str) -> String {
    format!("/v1/logins/{}{below}", segment(code))
}

impl<M: MapError> Client<M> {
    /// The version of the server; needs no key.
    pub async fn version(&self) -> Result<Answer<Version>, M::Error> {
        self.get("/v1/version").await
    }

    /// Starts a login; needs no key.
    pub async fn start_login(&self, body: &LoginBody) -> Result<Answer<StartedLogin>, M::Error> {
        self.post("/v1/logins", body).await
    }

    /// Asks for the decision about a login. `secret` is that of [`StartedLogin`].
    pub async fn poll_login(&self, secret: &str) -> Result<Answer<LoginPoll>, M::Error> {
        let request = self.http.request(Method::POST, super::join(&self.base, "/v1/logins/poll"));
        self.answer(request.bearer_auth(secret).timeout(ANSWER_WITHIN)).await
    }

    /// The login of a code.
    pub async fn login(&self, code: &str) -> Result<Answer<Login>, M::Error> {
        self.get(&login_path(code, "")).await
    }

    pub async fn approve_login(
        &self,
        code: &str,
        body: &ApproveBody,
    ) -> Result<Answer<ApprovedLogin>, M::Error> {
        self.post(&login_path(code, "/approve"), body).await
    }

    pub async fn deny_login(&self, code: &str) -> Result<(), M::Error> {
        self.delete_silently(&login_path(code, "")).await
    }
}
