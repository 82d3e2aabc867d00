//! Errors in the form that the user sees: what happened, why, what to try, and an id to find in the logs.
//!
//! They never contain a key, a request body or a backtrace.

use serde::Serialize;

use crate::out::{Out, Shade};

/// A failed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// A code of the server, or one of the few codes of the command line.
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// The field of the request that the server refused.
    pub(crate) field: Option<Box<str>>,
    pub(crate) request_id: Option<String>,
    /// Exit status; commands that pass on a foreign status replace the default 1.
    pub(crate) exit: u8,
    silent: bool,
}

/// Exit status of `run` and `exec` when Atoll itself failed.
pub(crate) const EXIT_OURS: u8 = 125;
/// The command exists but cannot be started.
pub(crate) const EXIT_CANNOT_START: u8 = 126;
/// The command does not exist.
pub(crate) const EXIT_NOT_FOUND: u8 = 127;
/// The command exceeded its time limit.
pub(crate) const EXIT_TIMED_OUT: u8 = 124;

impl Failure {
    pub(crate) fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
            hint: None,
            field: None,
            request_id: None,
            exit: 1,
            silent: false,
        }
    }

    /// The input is invalid; nothing was sent.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new("usage", message).hint(hint).exit(2)
    }

    /// The reader of the output is gone: the command ends without a message.
    pub(crate) fn reader_gone() -> Self {
        // 128 + SIGPIPE, as other tools in a pipe end.
        Self { silent: true, ..Self::new("broken_pipe", "the reader went away").exit(141) }
    }

    /// Only a status: the failure was reported before.
    pub(crate) fn silent(exit: u8) -> Self {
        Self { silent: true, ..Self::new("failed", "").exit(exit) }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn exit(mut self, exit: u8) -> Self {
        self.exit = exit;
        self
    }

    pub(crate) fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// Writes it to stderr, for a person or for a program.
    pub(crate) fn report(&self, out: Out) {
        if self.silent {
            return;
        }
        if out.json {
            out.say(&self.as_json());
            return;
        }
        out.say_labelled(Shade::Bad, "error:", &self.message);
        if let Some(hint) = &self.hint {
            out.say_labelled(Shade::Strong, " hint:", hint);
        }
        if let Some(id) = &self.request_id {
            out.styled_say(&out.shade_talk(Shade::Faint, &format!("   id: {id} ({})", self.code)));
        }
    }

    fn as_json(&self) -> String {
        #[derive(Serialize)]
        struct Envelope<'a> {
            code: &'a str,
            message: &'a str,
            hint: Option<&'a str>,
            request_id: Option<&'a str>,
        }
        let envelope = Envelope {
            code: &self.code,
            message: &self.message,
            hint: self.hint.as_deref(),
            request_id: self.request_id.as_deref(),
        };
        serde_json::to_string(&envelope).unwrap_or_else(|_| self.message.clone())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_in_json_is_the_servers_envelope() {
        let failure = Failure::new("name_taken", "there is one").hint("choose another");
        assert_eq!(
            failure.as_json(),
            r#"{"code":"name_taken","message":"there is one","hint":"choose another","request_id":null}"#
        );
    }
}
