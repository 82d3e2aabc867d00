//! `atoll provider ls`.

use super::CommandContext;
use crate::{cli::Provider, failure::Failure, human::Table};

pub(super) async fn provider(context: &CommandContext, command: Provider) -> Result<(), Failure> {
    let Provider::Ls = command;
    let providers = context.client()?.providers().await?;
    if context.out.json {
        return context.out.json(&providers);
    }
    let mut table =
        Table::new(&["NAME", "KIND", "ISOLATION", "HEALTH", "DEFAULT", "COST", "BEST FOR", "CAPABILITIES"]);
    for provider in &providers.items {
        table.row(vec![
            provider.name.clone(),
            provider.kind.clone(),
            provider.isolation.as_str().to_owned(),
            provider.problem.clone().unwrap_or_else(|| provider.health.as_str().to_owned()),
            if provider.default { "yes" } else { "-" }.to_owned(),
            provider.cost.clone(),
            provider.best_for.clone(),
            provider.capabilities.join(" "),
        ]);
    }
    table.lines().iter().try_for_each(|line| context.out.line(line))
}
