//! The two output streams: data goes to stdout, messages to stderr. Only this module writes to them.
//!
//! Names and messages come from sandboxes and servers: on a terminal, control characters in lines and messages are shown as
//! text. The output of commands and files is passed on as it is.
//!
//! Progress is printed only if stderr is a terminal, and colours are not used if `NO_COLOR` is set. A reader that goes
//! away is the end of the command, not an error.

use std::{
    borrow::Cow,
    io::{self, IsTerminal, Write},
};

use serde::Serialize;

use crate::{
    environment,
    failure::Failure,
    human::{harmless, harmless_lines},
};

/// The output of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out {
    /// `--json`: machine-readable data on stdout, errors as JSON on stderr.
    pub(crate) json: bool,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    colour: bool,
}

/// The few styles; named by their meaning, not their colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shade {
    Good,
    Bad,
    Faint,
    Strong,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        let stdout_is_terminal = io::stdout().is_terminal();
        let stderr_is_terminal = io::stderr().is_terminal();
        Self { json, stdout_is_terminal, stderr_is_terminal, colour: !environment::no_color() }
    }

    /// Whether stdout is a terminal.
    pub(crate) fn is_terminal(self) -> bool {
        self.stdout_is_terminal
    }

    /// Whether messages are read by a person.
    pub(crate) fn talks(self) -> bool {
        self.stderr_is_terminal && !self.json
    }

    /// Whether messages may have colours.
    pub(crate) fn colours_talk(self) -> bool {
        self.colour && self.stderr_is_terminal
    }

    /// One line of data.
    pub(crate) fn line(self, text: &str) -> Result<(), Failure> {
        self.styled_line(&for_terminal(self.stdout_is_terminal, text))
    }

    /// A name inside a line: on a terminal it cannot begin another line either.
    pub(crate) fn name<'a>(self, name: &'a str) -> Cow<'a, str> {
        if self.stdout_is_terminal { harmless(name).into() } else { name.into() }
    }

    /// A line with styles; its parts come from [`Self::shade`] or are safe for a terminal.
    pub(crate) fn styled_line(self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        done(stdout.write_all(text.as_bytes()).and_then(|()| stdout.write_all(b"\n")))?;
        done(stdout.flush())
    }

    /// Raw data.
    pub(crate) fn bytes(self, data: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        done(stdout.write_all(data))?;
        done(stdout.flush())
    }

    /// Bytes from the command's stderr.
    pub(crate) fn stderr_bytes(self, data: &[u8]) -> Result<(), Failure> {
        done(io::stderr().lock().write_all(data))
    }

    /// One JSON document on one line.
    pub(crate) fn json(self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value)
            .map_err(|e| Failure::new("internal", format!("the answer cannot be written as JSON: {e}")))?;
        self.line(&text)
    }

    /// The object of an action, by name: a line, or with `--json` an object per line.
    pub(crate) fn named(self, field: &str, name: &str) -> Result<(), Failure> {
        if self.json { self.json(&serde_json::json!({ field: name })) } else { self.line(name) }
    }

    /// A message that is always printed: a warning, a question, an error.
    pub(crate) fn say(self, text: &str) {
        self.styled_say(&for_terminal(self.stderr_is_terminal, text));
    }

    /// A message behind a label with a style.
    pub(crate) fn say_labelled(self, shade: Shade, label: &str, text: &str) {
        let text = for_terminal(self.stderr_is_terminal, text);
        self.styled_say(&format!("{} {text}", self.shade_talk(shade, label)));
    }

    /// A message with styles; its parts come from [`Self::shade_talk`] or are safe for a terminal.
    pub(crate) fn styled_say(self, text: &str) {
        // If stderr cannot be written to, the error cannot be reported either.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// Progress and next steps: only for a person.
    pub(crate) fn tell(self, text: &str) {
        if self.talks() {
            self.say(text);
        }
    }

    /// A next step that is less important than the result: only for a person.
    pub(crate) fn tell_faint(self, text: &str) {
        if self.talks() {
            self.styled_say(&self.shade_talk(Shade::Faint, text));
        }
    }

    /// A status that the next call overwrites.
    pub(crate) fn status(self, text: &str) {
        if self.talks() {
            let _ = write!(io::stderr().lock(), "\r\x1b[K{}", harmless(text));
        }
    }

    /// Removes the status.
    pub(crate) fn status_done(self) {
        if self.talks() {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }

    /// Asks on the terminal; anything but yes is no. Without a terminal the answer is no.
    pub(crate) fn ask(self, question: &str) -> bool {
        if !io::stdin().is_terminal() || !self.talks() {
            return false;
        }
        let _ = write!(io::stderr().lock(), "{} [y/N] ", harmless(question));
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).is_ok()
            && matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
    }

    /// Styles data, if stdout is a terminal.
    pub(crate) fn shade(self, shade: Shade, text: &str) -> String {
        painted(self.colour && self.stdout_is_terminal, shade, &for_terminal(self.stdout_is_terminal, text))
    }

    /// Styles messages, if stderr is a terminal.
    pub(crate) fn shade_talk(self, shade: Shade, text: &str) -> String {
        painted(self.colour && self.stderr_is_terminal, shade, &for_terminal(self.stderr_is_terminal, text))
    }
}

/// Programs get the exact text.
fn for_terminal(is_terminal: bool, text: &str) -> Cow<'_, str> {
    if is_terminal { harmless_lines(text).into() } else { text.into() }
}

fn painted(on: bool, shade: Shade, text: &str) -> String {
    if !on {
        return text.to_owned();
    }
    let code = match shade {
        Shade::Good => "32",
        Shade::Bad => "31",
        Shade::Faint => "2",
        Shade::Strong => "1",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

fn done(result: io::Result<()>) -> Result<(), Failure> {
    result.map_err(|cause| match cause.kind() {
        io::ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => Failure::new("io", format!("cannot write the output: {cause}")),
    })
}
