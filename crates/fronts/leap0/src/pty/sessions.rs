//! What Leap0 shows of a PTY session beyond what a terminal keeps. In memory only, and bounded.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_front_kit::ApiError;
use atoll_model::{Code, SandboxId};
use atoll_service::TerminalSize;

/// What a session has where its user said nothing.
pub(super) const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// LIMIT: as many as a sandbox may have terminals.
const PER_SANDBOX: usize = 64;
/// LIMIT: sandboxes that are remembered; those whose sessions only repeat what a terminal knows are given up first, then the
/// one that said nothing for the longest time: it may be gone, which nobody tells us.
const SANDBOXES_MAX: usize = 10_000;
/// LIMIT: of what is remembered of one session; a shell's own variables are a few kilobytes.
const SESSION_BYTES: usize = 64 << 10;
const ID_MAX: usize = 256;
const CWD_MAX: usize = 4_096;

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PtySession {
    pub(super) size: TerminalSize,
    /// `None`: where the sandbox's commands start.
    pub(super) cwd: Option<String>,
    pub(super) envs: BTreeMap<String, String>,
    pub(super) created_at_ms: i64,
    pub(super) lazy_start: bool,
    /// Its shell starts with the first connection, which was not yet.
    pub(super) waits: bool,
}

impl PtySession {
    /// Of a terminal that this front did not open, or not since the server started.
    pub(super) fn unknown(created_at_ms: i64) -> Self {
        Self { size: SIZE, cwd: None, envs: BTreeMap::new(), created_at_ms, lazy_start: false, waits: false }
    }

    /// Whether there is room for all that it says. A shell that waits is not looked at by anybody else until it starts.
    pub(super) fn check(&self, id: &str) -> Result<(), ApiError> {
        if id.is_empty() || id.len() > ID_MAX {
            return Err(ApiError::field("id", format!("must have 1 to {ID_MAX} bytes")));
        }
        if self.cwd.as_ref().is_some_and(|cwd| cwd.len() > CWD_MAX) {
            return Err(ApiError::field("cwd", format!("must have at most {CWD_MAX} bytes")));
        }
        let bytes: usize = self.envs.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > SESSION_BYTES {
            return Err(ApiError::field("envs", format!("must have at most {SESSION_BYTES} bytes in all")));
        }
        Ok(())
    }
}

type ById = BTreeMap<String, PtySession>;

/// All sessions that are remembered. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Sessions(Arc<Mutex<HashMap<SandboxId, ById>>>);

impl Sessions {
    pub(super) fn of(&self, sandbox: &SandboxId) -> ById {
        self.lock().get(sandbox).cloned().unwrap_or_default()
    }

    pub(super) fn put(&self, sandbox: &SandboxId, id: &str, session: PtySession) -> Result<(), ApiError> {
        let mut all = self.lock();
        if all.len() >= SANDBOXES_MAX && !all.contains_key(sandbox) {
            all.retain(|_, sessions| sessions.values().any(|session| session.waits));
            let newest = |sessions: &ById| sessions.values().map(|session| session.created_at_ms).max();
            if all.len() >= SANDBOXES_MAX
                && let Some(oldest) =
                    all.iter().min_by_key(|(_, sessions)| newest(sessions)).map(|(id, _)| id.clone())
            {
                all.remove(&oldest);
            }
        }
        let sessions = all.entry(sandbox.clone()).or_default();
        if sessions.len() >= PER_SANDBOX && !sessions.contains_key(id) {
            // Shells that ended leave theirs behind.
            sessions.retain(|_, session| session.waits);
            if sessions.len() >= PER_SANDBOX {
                let message = format!("the sandbox has {PER_SANDBOX} PTY sessions already");
                return Err(ApiError::new(Code::SandboxExhausted, message));
            }
        }
        sessions.insert(id.to_owned(), session);
        Ok(())
    }

    pub(super) fn remove(&self, sandbox: &SandboxId, id: &str) {
        let mut all = self.lock();
        if let Some(sessions) = all.get_mut(sandbox) {
            sessions.remove(id);
            if sessions.is_empty() {
                all.remove(sandbox);
            }
        }
    }

    /// Its sandbox is gone.
    pub(crate) fn forget(&self, sandbox: &SandboxId) {
        self.lock().remove(sandbox);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, ById>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn waiting(waits: bool) -> PtySession {
        PtySession { waits, ..PtySession::unknown(1) }
    }

    #[test]
    fn sessions_are_bounded_and_those_that_wait_are_kept() {
        let (sessions, one) = (Sessions::default(), SandboxId::from_entropy([1; 20]));
        sessions.put(&one, "keep", waiting(true)).unwrap();
        for n in 0..PER_SANDBOX * 3 {
            sessions.put(&one, &format!("s{n}"), waiting(false)).unwrap();
        }
        assert!(sessions.of(&one).len() <= PER_SANDBOX && sessions.of(&one).contains_key("keep"));
        for n in 0..PER_SANDBOX - 1 {
            sessions.put(&one, &format!("w{n}"), waiting(true)).unwrap();
        }
        assert_eq!(sessions.put(&one, "more", waiting(true)).unwrap_err().code, Code::SandboxExhausted);
        sessions.remove(&one, "keep");
        sessions.put(&one, "more", waiting(true)).unwrap();
        sessions.forget(&one);
        assert!(sessions.of(&one).is_empty());
    }

    #[test]
    fn sandboxes_that_are_gone_do_not_keep_others_out() {
        let sessions = Sessions::default();
        let id = |n: usize| {
            // Digits small enough that no two of them become the same letter.
            let digit = |place: u32| u8::try_from(n / 20_usize.pow(place) % 20).unwrap();
            SandboxId::from_entropy(std::array::from_fn(|at| digit(u32::try_from(at).unwrap().min(10))))
        };
        for n in 0..SANDBOXES_MAX + 10 {
            let at = i64::try_from(n).unwrap();
            sessions.put(&id(n), "s", PtySession { waits: true, ..PtySession::unknown(at) }).unwrap();
        }
        assert!(sessions.lock().len() <= SANDBOXES_MAX);
        assert!(sessions.of(&id(0)).is_empty() && !sessions.of(&id(SANDBOXES_MAX + 9)).is_empty());
    }

    #[test]
    fn a_session_says_little() {
        assert!(waiting(true).check("s").is_ok());
        assert!(waiting(true).check("").is_err() && waiting(true).check(&"s".repeat(300)).is_err());
        let envs = BTreeMap::from([("A".to_owned(), "x".repeat(SESSION_BYTES))]);
        assert!(PtySession { envs, ..waiting(true) }.check("s").is_err());
        assert!(PtySession { cwd: Some("/".repeat(5_000)), ..waiting(true) }.check("s").is_err());
    }
}
