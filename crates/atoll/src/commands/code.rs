//! `atoll code`: runs code in a context of a sandbox, which keeps its state.

use std::io::Read;

use atoll_client::{
    client::SseEvent,
    code::{CodeBody, CodeEvent, CodeException},
    exec::OutputChunk,
};
use serde::Serialize;

use super::{CommandContext, create, follow::told, process::with_exit, suggest};
use crate::{
    cli::tools::RunCode,
    client::{Client, Events},
    failure::{EXIT_OURS, EXIT_TIMED_OUT, Failure},
};

/// LIMIT: the server's limit for the whole request.
const CODE_MAX: u64 = 8 << 20;
const EXIT_EXCEPTION: u8 = 1;

pub(super) async fn code(context: &CommandContext, args: RunCode) -> Result<u8, Failure> {
    let client = context.client().map_err(with_exit)?;
    let body = body(&args)?;
    let mut events = begin(&client, &args.sandbox, &body).await?;
    let outcome = if context.out.json {
        print_events(context, &mut events).await
    } else {
        print_output(context, &mut events).await
    };
    let lost = || {
        Failure::new("sandbox_unavailable", "the server ended the stream before the code ended")
            .hint(format!("`atoll inspect {}` shows the state of the sandbox", args.sandbox))
            .exit(EXIT_OURS)
    };
    outcome?.ok_or_else(lost)
}

async fn begin(client: &Client, sandbox: &str, body: &CodeBody) -> Result<Events, Failure> {
    match client.run_code_stream(sandbox, body).await {
        Ok(events) => Ok(events),
        Err(failure) => Err(with_exit(suggest(client, sandbox, failure).await)),
    }
}

fn body(args: &RunCode) -> Result<CodeBody, Failure> {
    let code = match args.code.as_deref() {
        Some("-") | None => read_stdin()?,
        Some(code) => code.to_owned(),
    };
    Ok(CodeBody {
        code,
        language: args.context.is_none().then(|| args.language.into()),
        context: args.context.clone(),
        env: create::pairs(&args.env),
        timeout_s: args.timeout.map(|limit| limit.0),
    })
}

fn read_stdin() -> Result<String, Failure> {
    let stdin = std::io::stdin();
    if rustix::termios::isatty(&stdin) {
        return Err(Failure::usage("there is no code", "give it as an argument, or on stdin"));
    }
    let mut code = String::new();
    let read = stdin.lock().take(CODE_MAX).read_to_string(&mut code);
    read.map_err(|cause| Failure::usage(format!("stdin cannot be read: {cause}"), "code is UTF-8 text"))?;
    Ok(code)
}

/// Derives the exit status from the events.
#[derive(Default)]
struct CodeStatus {
    failed: bool,
}

impl CodeStatus {
    /// The status after the last event.
    fn take(&mut self, event: &CodeEvent) -> Result<Option<u8>, Failure> {
        match event {
            CodeEvent::Exception(_) => self.failed = true,
            CodeEvent::End(end) if end.timed_out => return Ok(Some(EXIT_TIMED_OUT)),
            CodeEvent::End(_) => return Ok(Some(if self.failed { EXIT_EXCEPTION } else { 0 })),
            CodeEvent::Error(error) => return Err(with_exit(told(error.clone()))),
            _ => {}
        }
        Ok(None)
    }
}

async fn print_output(context: &CommandContext, events: &mut Events) -> Result<Option<u8>, Failure> {
    let mut status = CodeStatus::default();
    while let Some(event) = events.next_code().await.map_err(|failure| failure.exit(EXIT_OURS))? {
        if let Some(exit) = status.take(&event)? {
            if exit == EXIT_TIMED_OUT {
                context.out.tell("atoll: the code took longer than --timeout allows and was interrupted");
            }
            return Ok(Some(exit));
        }
        show(context, event)?;
    }
    Ok(None)
}

fn show(context: &CommandContext, event: CodeEvent) -> Result<(), Failure> {
    let out = context.out;
    let bytes = |chunk: OutputChunk| chunk.into_bytes().unwrap_or_default();
    match event {
        CodeEvent::Stdout(chunk) => out.bytes(&bytes(chunk)),
        CodeEvent::Stderr(chunk) => out.stderr_bytes(&bytes(chunk)),
        CodeEvent::Result(result) => result.text.map_or(Ok(()), |text| out.line(&text)),
        CodeEvent::Exception(error) => {
            let text = explained(&error);
            out.say(&if out.colours_talk() { text } else { without_colours(&text) });
            Ok(())
        }
        CodeEvent::Dropped(lost) => {
            let count = lost.bytes;
            out.say(&format!("atoll: {count} bytes of output were lost: this client read too slowly"));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The traceback; some languages have none.
fn explained(error: &CodeException) -> String {
    match error.traceback.trim_end() {
        "" => format!("{}: {}", error.name, error.value),
        traceback => traceback.to_owned(),
    }
}

/// Removes the colours of tracebacks: `ESC [ … m`.
fn without_colours(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    let is_parameter = |c: char| c.is_ascii_digit() || c == ';';
    parts.fold(first, |plain, part| {
        let rest = part.trim_start_matches(is_parameter);
        plain + rest.strip_prefix('m').unwrap_or(rest)
    })
}

/// One event for `--json`.
#[derive(Serialize)]
struct EventLine<T> {
    event: String,
    #[serde(flatten)]
    data: T,
}

async fn print_events(context: &CommandContext, events: &mut Events) -> Result<Option<u8>, Failure> {
    let mut status = CodeStatus::default();
    while let Some(event) = events.next().await? {
        let read = read(&event)?;
        let data = event.raw();
        context.out.json(&EventLine { event: event.name, data })?;
        if let Some(exit) = status.take(&read)? {
            return Ok(Some(exit));
        }
    }
    Ok(None)
}

fn read(event: &SseEvent) -> Result<CodeEvent, Failure> {
    CodeEvent::parse(&event.name, &event.data).map_err(|cause| {
        Failure::new("internal", format!("the server's event cannot be read: {cause}")).exit(EXIT_OURS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(names: &[(&str, &str)]) -> Option<u8> {
        let mut status = CodeStatus::default();
        let take = |(name, data): &(&str, &str)| {
            status.take(&CodeEvent::parse(name, data).expect("an event")).expect("no failure")
        };
        names.iter().filter_map(take).last()
    }

    #[test]
    fn the_status_says_how_the_code_ended() {
        let exception = ("exception", r#"{"name":"E","value":"v","traceback":""}"#);
        let ended = ("end", r#"{"timed_out":false}"#);
        assert_eq!(last(&[("stdout", r#"{"data":"a"}"#), ended]), Some(0));
        assert_eq!(last(&[exception, ended]), Some(1));
        assert_eq!(last(&[exception, ("end", r#"{"timed_out":true}"#)]), Some(124));
        assert_eq!(last(&[exception]), None);
        assert_eq!(last(&[("newer", "{}"), ended]), Some(0), "events of a newer server are passed over");
    }

    #[test]
    fn colours_are_taken_out_of_tracebacks() {
        assert_eq!(without_colours("\x1b[0;31mError\x1b[0m: 1\x1b[38;5;241m/\x1b[39m0"), "Error: 1/0");
        assert_eq!(without_colours("plain [0m"), "plain [0m");
    }

    #[test]
    fn an_error_without_a_traceback_is_shown_by_its_name() {
        let error = |traceback: &str| CodeException {
            name: "E".to_owned(),
            value: "v".to_owned(),
            traceback: traceback.to_owned(),
        };
        assert_eq!(explained(&error("")), "E: v");
        assert_eq!(explained(&error("Traceback\n  E: v\n")), "Traceback\n  E: v");
    }
}
