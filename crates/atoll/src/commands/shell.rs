//! `atoll sh`: a terminal in a sandbox.

use super::{Context, suggest, terminal};
use crate::{cli::sandbox::Sh, failure::Failure};

pub(super) async fn sh(context: &Context, args: Sh) -> Result<u8, Failure> {
    let client = context.client()?;
    let wish =
        terminal::Wish { command: None, cwd: args.workdir, user: args.user, env: None, thread: args.thread };
    match terminal::session(context, &client, &args.sandbox, wish).await {
        Err(failure) => Err(suggest(&client, &args.sandbox, failure).await),
        outcome => outcome,
    }
}
