//! `atoll exec`: runs a command in an existing sandbox.

use atoll_client::exec::ExecBody;

use super::{
    CommandContext, command_hints, create,
    process::{self, Input, Signals, with_exit},
    suggest, terminal,
};
use crate::{cli::sandbox::Exec, client::Client, failure::Failure};

pub(super) async fn exec(context: &CommandContext, args: Exec) -> Result<u8, Failure> {
    let client = context.client().map_err(with_exit)?;
    match attempt(context, &client, &args).await {
        Err(failure) if failure.is("sandbox_not_found") => {
            Err(suggest(&client, &args.sandbox, failure).await)
        }
        outcome => outcome.map_err(|failure| command_hints::of_exec(failure, &args.sandbox, &args.command)),
    }
}

async fn attempt(context: &CommandContext, client: &Client, args: &Exec) -> Result<u8, Failure> {
    if args.detach {
        return detached(context, client, args).await.map_err(with_exit);
    }
    if args.attach.tty {
        let wish = terminal::TerminalRequest {
            command: Some(args.command.clone()),
            cwd: args.workdir.clone(),
            user: args.user.clone(),
            env: create::pairs(&args.env),
            thread: None,
        };
        return terminal::session(context, client, &args.sandbox, wish).await.map_err(with_exit);
    }
    // Without -i stdin is not read: a loop that reads lines and runs a command for each keeps its lines.
    let input = if args.attach.interactive { Input::of_stdin(true) } else { Input::None };
    if context.out.json {
        return process::collect(context, client, &args.sandbox, body(args), input).await;
    }
    let mut signals = Signals::listen()?;
    process::join(context, client, &args.sandbox, body(args), input, &mut signals).await
}

async fn detached(context: &CommandContext, client: &Client, args: &Exec) -> Result<u8, Failure> {
    let body = ExecBody { detach: true, ..body(args) };
    let answer = client.exec_detached(&args.sandbox, &body).await?;
    if context.out.json {
        context.out.json(&answer)?;
    } else {
        context.out.line(&answer.pid.to_string())?;
        context.out.tell(&format!("its output: atoll logs -f {}", args.sandbox));
    }
    Ok(0)
}

fn body(args: &Exec) -> ExecBody {
    ExecBody {
        argv: Some(args.command.clone()),
        cwd: args.workdir.clone(),
        user: args.user.clone(),
        timeout_s: args.timeout.map(|v| v.0),
        env: create::pairs(&args.env),
        ..ExecBody::default()
    }
}
