//! Language servers.

use reqwest::Method;
use serde::Serialize;

use super::{Answer, Client, MapError, sandbox_path};
use crate::lsp::{
    LspBody, LspCompletionBody, LspCompletions, LspFileBody, LspOpenBody, LspSymbolBody, LspSymbols,
};

impl<M: MapError> Client<M> {
    /// Starts the language server of a project; a running one is kept.
    pub async fn lsp_start(&self, ident: &str, body: &LspBody) -> Result<(), M::Error> {
        self.lsp_tell(ident, "start", body).await
    }

    pub async fn lsp_stop(&self, ident: &str, body: &LspBody) -> Result<(), M::Error> {
        self.lsp_tell(ident, "stop", body).await
    }

    pub async fn lsp_open(&self, ident: &str, body: &LspOpenBody) -> Result<(), M::Error> {
        self.lsp_tell(ident, "open", body).await
    }

    pub async fn lsp_close(&self, ident: &str, body: &LspFileBody) -> Result<(), M::Error> {
        self.lsp_tell(ident, "close", body).await
    }

    pub async fn lsp_completions(
        &self,
        ident: &str,
        body: &LspCompletionBody,
    ) -> Result<Answer<LspCompletions>, M::Error> {
        self.post(&sandbox_path(ident, "/lsp/completions"), body).await
    }

    pub async fn lsp_symbols(
        &self,
        ident: &str,
        body: &LspSymbolBody,
    ) -> Result<Answer<LspSymbols>, M::Error> {
        self.post(&sandbox_path(ident, "/lsp/symbols"), body).await
    }

    async fn lsp_tell(&self, ident: &str, verb: &str, body: &impl Serialize) -> Result<(), M::Error> {
        let path = sandbox_path(ident, &format!("/lsp/{verb}"));
        self.done(self.request(Method::POST, &path).json(body)).await
    }
}
