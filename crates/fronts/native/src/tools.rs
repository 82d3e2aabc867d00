//! The tools of a running sandbox, for one request.

use atoll_client::exec::StreamError;
use atoll_front_kit::{ApiError, toolbox};
use atoll_model::Principal;
use atoll_service::SandboxSession;
use atoll_toolbox::{Toolbox, ToolboxError};

use crate::App;
use crate::convert::FromCore;

/// A sandbox does not count as idle while this is held.
pub(crate) struct SandboxTools {
    pub(crate) toolbox: Toolbox,
    pub(crate) sandbox: SandboxSession,
}

/// Wakes the sandbox. The tools act as the sandbox's user.
pub(crate) async fn tools(app: &App, who: &Principal, ident: &str) -> Result<SandboxTools, ApiError> {
    let sandbox = app.service.sandboxes().session(who, ident).await?;
    Ok(SandboxTools { toolbox: toolbox(&sandbox), sandbox })
}

impl SandboxTools {
    /// The directory that a request names, or the sandbox's working directory.
    pub(crate) fn directory(&self, named: Option<String>) -> String {
        let workdir = &self.sandbox.lease.workdir;
        named.unwrap_or_else(|| if workdir.is_empty() { "~".to_owned() } else { workdir.clone() })
    }
}

impl FromCore<ToolboxError> for StreamError {
    fn from_core(error: ToolboxError) -> Self {
        Self {
            code: error.code().as_str().to_owned(),
            message: error.to_string(),
            hint: error.hint().map(str::to_owned),
        }
    }
}
