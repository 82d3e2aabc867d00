//! Starts a Python kernel in every ready instance of the code-interpreter templates, so that the first code of a
//! sandbox does not wait for one. This connects the toolbox, which starts kernels, with the engine, which keeps the
//! pool.

use std::error::Error;

use atoll_agentapi::AgentClient;
use atoll_budget::{Budget, BudgetOwner};
use atoll_image::default_names::INTERPRETERS;
use atoll_provider::Prepare;
use atoll_toolbox::{Language, Toolbox};

/// The user of kernels in E2B's front, where the first code matters most. Other fronts start their own.
const USER: &str = "root";

#[derive(Debug)]
pub(super) struct Kernels;

#[async_trait::async_trait]
impl Prepare for Kernels {
    fn wants(&self, template: &str) -> bool {
        INTERPRETERS.contains(&template)
    }

    async fn prepare(&self, _template: &str, agent: AgentClient) -> Result<(), Box<dyn Error + Send + Sync>> {
        // It belongs to no tenant yet.
        let account = Budget::default().account(BudgetOwner::Stranger(None));
        let toolbox = Toolbox::new(agent, account).as_user(Some(USER.to_owned()));
        Ok(toolbox.interpreter().prepare(Language::Python).await?)
    }
}
