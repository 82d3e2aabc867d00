//! Code and its contexts.

use reqwest::Method;

use super::{Answer, Client, Events, Listing, MapError, sandbox_path, segment};
use crate::code::{CodeBody, CodeContext, CodeContextBody, CodeContextList, CodeResult};

impl<M: MapError> Client<M> {
    /// Runs code and waits for its end; the code's own timeout is the only limit.
    pub async fn run_code(&self, ident: &str, body: &CodeBody) -> Result<Answer<CodeResult>, M::Error> {
        let request = self.request(Method::POST, &sandbox_path(ident, "/code")).json(body);
        self.answer_without_limit(request).await
    }

    /// Runs code and follows it. Dropping the events interrupts the code.
    pub async fn run_code_stream(&self, ident: &str, body: &CodeBody) -> Result<Events<M>, M::Error> {
        self.events_of(self.request(Method::POST, &sandbox_path(ident, "/code/stream")).json(body)).await
    }

    pub async fn code_contexts(&self, ident: &str) -> Result<Listing<CodeContext>, M::Error> {
        self.list::<CodeContextList>(&sandbox_path(ident, "/code/contexts")).await
    }

    pub async fn create_code_context(
        &self,
        ident: &str,
        body: &CodeContextBody,
    ) -> Result<Answer<CodeContext>, M::Error> {
        self.post(&sandbox_path(ident, "/code/contexts"), body).await
    }

    /// Ends the code that runs in a context and removes its definitions.
    pub async fn restart_code_context(&self, ident: &str, id: &str) -> Result<Answer<CodeContext>, M::Error> {
        self.answer(self.request(Method::POST, &context_path(ident, id, "/restart"))).await
    }

    /// Interrupts the code that runs in a context.
    pub async fn interrupt_code(&self, ident: &str, id: &str) -> Result<(), M::Error> {
        self.done(self.request(Method::POST, &context_path(ident, id, "/interrupt"))).await
    }

    pub async fn delete_code_context(&self, ident: &str, id: &str) -> Result<(), M::Error> {
        self.delete_silently(&context_path(ident, id, "")).await
    }
}

fn context_path(ident: &str, id: &str, below: &str) -> String {
    sandbox_path(ident, &format!("/code/contexts/{}{below}", segment(id)))
}
