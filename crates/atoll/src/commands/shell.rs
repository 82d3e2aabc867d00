//! `atoll sh`: opens a terminal in a sandbox.

use std::collections::BTreeMap;

use super::{CommandContext, suggest, terminal};
use crate::{cli::sandbox::Sh, failure::Failure};

pub(super) async fn sh(context: &CommandContext, args: Sh) -> Result<u8, Failure> {
    let client = context.client()?;
    let wish = terminal::TerminalRequest {
        command: None,
        cwd: args.workdir,
        user: args.user,
        env: BTreeMap::new(),
        thread: args.thread,
    };
    match terminal::session(context, &client, &args.sandbox, wish).await {
        Err(failure) => Err(suggest(&client, &args.sandbox, failure).await),
        outcome => outcome,
    }
}
