//! `atoll secret ls|create|rotate|rm`. A value comes from stdin, a file or a variable, never from an argument, and is
//! never shown.

use std::{
    io::{self, BufRead, Read},
    os::fd::AsFd,
};

use atoll_client::{
    client::Answer,
    secrets::{Secret as SecretAnswer, SecretBody, SecretChange},
};
use jiff::Timestamp;
use rustix::termios::{self, LocalModes, OptionalActions, Termios};

use super::{CommandContext, moment};
use crate::{
    cli::network::{Secret, SecretValue},
    client::Client,
    environment,
    failure::Failure,
    human::{Table, age},
    out::Out,
};

/// LIMIT: above the server's limit, so that the server refuses it.
const VALUE_BYTES_MAX: u64 = 64 << 10;

pub(super) async fn secret(context: &CommandContext, command: Secret) -> Result<(), Failure> {
    match command {
        Secret::Ls => ls(context, &context.client()?).await,
        Secret::Create { name, value } => {
            let body = SecretBody { name: name.clone(), value: read(context.out, &value)? };
            let made = context.client()?.create_secret(&body).await;
            told(context, &made.map_err(|failure| instead(failure, &name))?)
        }
        Secret::Rotate { name, value } => {
            let body = SecretChange { value: read(context.out, &value)? };
            let rotated = context.client()?.rotate_secret(&name, &body).await;
            told(context, &rotated.map_err(|failure| instead(failure, &name))?)
        }
        Secret::Rm { names } => rm(context, &context.client()?, &names).await,
    }
}

/// Suggests the other verb if that is probably meant.
fn instead(failure: Failure, name: &str) -> Failure {
    match failure.code.as_str() {
        "already_exists" | "name_taken" => {
            failure.hint(format!("`atoll secret rotate {name}` replaces its value"))
        }
        "secret_not_found" => failure.hint(format!("`atoll secret create {name}` creates it")),
        _ => failure,
    }
}

fn told(context: &CommandContext, secret: &Answer<SecretAnswer>) -> Result<(), Failure> {
    if context.out.json {
        return context.out.json(secret);
    }
    let name = &secret.name;
    context.out.line(name)?;
    context.out.tell(&format!("use it: --inject 'api.example.com:Authorization=Bearer {{secret:{name}}}'"));
    Ok(())
}

async fn ls(context: &CommandContext, client: &Client) -> Result<(), Failure> {
    let secrets = client.secrets().await?;
    if context.out.json {
        return context.out.json(&secrets);
    }
    table(&secrets.items, Timestamp::now()).lines().iter().try_for_each(|line| context.out.line(line))?;
    if secrets.items.is_empty() {
        context.out.tell("there are no secrets; `atoll secret create NAME` creates one");
    }
    Ok(())
}

fn table(secrets: &[SecretAnswer], now: Timestamp) -> Table {
    let mut table = Table::new(&["NAME", "USED BY", "AGE", "ROTATED"]);
    for secret in secrets {
        table.row(vec![
            secret.name.clone(),
            match secret.used_by {
                1 => "1 sandbox".to_owned(),
                count => format!("{count} sandboxes"),
            },
            age(moment(secret.created_at.as_str()), now),
            age(moment(secret.rotated_at.as_deref()), now),
        ]);
    }
    table
}

/// Continues after a failure; the exit status reports it.
async fn rm(context: &CommandContext, client: &Client, names: &[String]) -> Result<(), Failure> {
    let mut failed = false;
    for name in names {
        match client.delete_secret(name).await {
            Ok(()) => context.out.named("name", name)?,
            Err(failure) if failure.is("no_server") => return Err(failure),
            Err(failure) => {
                failed = true;
                failure.report(context.out);
            }
        }
    }
    if failed { Err(Failure::silent(1)) } else { Ok(()) }
}

/// Reads the value from the given source.
fn read(out: Out, from: &SecretValue) -> Result<String, Failure> {
    if from.argument.is_some() {
        return Err(Failure::usage(
            "a value cannot be an argument: every user of this machine can read arguments",
            "pipe it in, or use --from-env or --from-file; it may be in your shell's history by now",
        ));
    }
    let raw = match (&from.from_file, &from.from_env) {
        (Some(path), _) => {
            let mut content = Vec::new();
            let read = std::fs::File::open(path)
                .and_then(|file| file.take(VALUE_BYTES_MAX).read_to_end(&mut content));
            read.map_err(|cause| {
                Failure::usage(format!("{} cannot be read: {cause}", path.display()), "name another file")
            })?;
            content
        }
        (None, Some(name)) => environment::of_user(name)
            .ok_or_else(|| Failure::usage(format!("{name} is not set here"), "is it exported?"))?
            .into_bytes(),
        (None, None) if termios::isatty(io::stdin()) => typed(out)?,
        (None, None) => {
            let mut content = Vec::new();
            let read = io::stdin().lock().take(VALUE_BYTES_MAX).read_to_end(&mut content);
            read.map_err(|cause| Failure::new("io", format!("stdin cannot be read: {cause}")))?;
            content
        }
    };
    value(raw)
}

/// Text without the line end that files and pipes usually have.
fn value(raw: Vec<u8>) -> Result<String, Failure> {
    let text = String::from_utf8(raw).map_err(|_| {
        Failure::usage(
            "the value is not text",
            "headers contain text; encode the value, for example as base64",
        )
    })?;
    let value = text.strip_suffix('\n').unwrap_or(&text);
    let value = value.strip_suffix('\r').unwrap_or(value);
    if value.is_empty() {
        return Err(Failure::usage("the value is empty", "pipe it in, or use --from-file or --from-env"));
    }
    Ok(value.to_owned())
}

/// Reads a line from the terminal without showing it.
fn typed(out: Out) -> Result<Vec<u8>, Failure> {
    out.status("value (not shown): ");
    let quiet = EchoOff::enter();
    let mut line = String::new();
    let read = io::stdin().lock().take(VALUE_BYTES_MAX).read_line(&mut line);
    drop(quiet);
    out.status_done();
    read.map_err(|cause| Failure::new("io", format!("the terminal cannot be read: {cause}")))?;
    Ok(line.into_bytes())
}

/// Disables the echo of the terminal until this is dropped.
struct EchoOff(Option<Termios>);

impl EchoOff {
    fn enter() -> Self {
        let stdin = io::stdin();
        let before = termios::tcgetattr(stdin.as_fd()).ok();
        if let Some(before) = &before {
            let mut quiet = before.clone();
            quiet.local_modes.remove(LocalModes::ECHO);
            let _ = termios::tcsetattr(stdin.as_fd(), OptionalActions::Flush, &quiet);
        }
        Self(before)
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = termios::tcsetattr(io::stdin().as_fd(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_end_is_no_part_of_a_value() {
        for (raw, want) in [("x", "x"), ("x\n", "x"), ("x\r\n", "x"), ("x\n\n", "x\n"), (" x ", " x ")] {
            assert_eq!(value(raw.as_bytes().to_vec()), Ok(want.to_owned()), "{raw:?}");
        }
        assert!(value(Vec::new()).is_err() && value(b"\n".to_vec()).is_err() && value(vec![0xff]).is_err());
    }

    #[test]
    fn the_table_is_as_reviewed() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().expect("valid");
        let secret = |name: &str, rotated_at: Option<&str>, used_by| SecretAnswer {
            name: name.to_owned(),
            created_at: "2026-01-01T00:00:00Z".to_owned(),
            rotated_at: rotated_at.map(str::to_owned),
            used_by,
        };
        let secrets = [secret("OPENAI", None, 1), secret("b", Some("2026-01-01T00:59:00Z"), 0)];
        insta::assert_snapshot!(table(&secrets, now).lines().join("\n"), @r"
        NAME    USED BY      AGE  ROTATED
        OPENAI  1 sandbox    1h   -
        b       0 sandboxes  1h   1m
        ");
    }
}
