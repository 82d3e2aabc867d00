//! Logins of command lines: a short code that a person with a key approves, for a key of the command line's own.
//!
//! ```text
//! command line ── start ──► code, secret        a person types the code on the page, or at `atoll login approve`
//!       └──────── poll(secret) ──► key          approve(code): for this tenant, with this scope
//! ```
//!
//! Open logins are in memory only, so a restart of the server ends them. A code says which login is meant and gives nothing to
//! who knows it: the key goes to the holder of the secret, and is made when the secret asks for it. Every login ends after
//! [`VALID_FOR`]; their number is bounded, in all and for each client, and so are a key's wrong codes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_model::policy::authz;
use atoll_model::{Code, KEY_NAME_MAX, KeyId, Principal, Scope};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::throttle::network_of;
use super::{Access, Credential, RequestScope};
use crate::random::entropy;
use crate::{CreatedKey, NewKey, ServiceError};

/// LIMIT: enough to open a page or a shell on the server and type the code.
const VALID_FOR: Duration = Duration::from_secs(300);
/// LIMIT: open logins of all clients, about 100 KiB.
const LOGINS_MAX: usize = 256;
/// LIMIT: open logins of one client; several people may share an address.
const PER_CLIENT_MAX: usize = 16;
/// LIMIT: wrong codes of one key within [`GUESSES_WITHIN`]. A code is one of 2.5e10.
const GUESSES_MAX: u32 = 10;
const GUESSES_WITHIN: Duration = Duration::from_secs(600);
/// LIMIT: keys whose wrong codes are counted; the longest known is forgotten for a further one.
const GUESSERS_MAX: usize = 4_096;
/// How often clients are asked to poll, and the pause that they must leave.
const POLL_EVERY_S: u32 = 1;
const POLL_PAUSE_MIN: Duration = Duration::from_millis(500);
const SECRET_PREFIX: &str = "log_";
/// Consonants: nothing that reads as another letter or digit, and no words.
const ALPHABET: [u8; 20] = *b"BCDFGHJKLMNPQRSTVWXZ";
const CODE_LETTERS: usize = 8;

type SecretHash = [u8; 32];

/// A login that was started. Its secret is known to the client alone.
#[derive(Clone)]
pub struct StartedLogin {
    /// For the person who approves, as `BCDF-GHJK`.
    pub code: String,
    /// `log_` and 40 hex digits.
    pub secret: String,
    /// When it ends.
    pub expires_at_ms: i64,
    /// How long to wait between two polls.
    pub poll_every_s: u32,
}

impl std::fmt::Debug for StartedLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartedLogin").field("code", &self.code).finish_non_exhaustive()
    }
}

/// A login that waits for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingLogin {
    /// As `BCDF-GHJK`.
    pub code: String,
    /// The name that the client gave itself.
    pub name: String,
    /// Where it was started.
    pub client: Option<IpAddr>,
    /// When it was started.
    pub created_at_ms: i64,
    /// When it ends.
    pub expires_at_ms: i64,
}

/// What was approved.
#[derive(Debug, Clone)]
pub struct ApprovedLogin {
    /// The login.
    pub login: PendingLogin,
    /// The tenant of the key.
    pub tenant: atoll_store::TenantRecord,
    /// The scope of the key.
    pub scope: Scope,
}

/// The answer to a poll.
#[derive(Debug)]
pub enum LoginPoll {
    /// No decision yet.
    Pending,
    /// The key and the name of its tenant.
    Approved { key: Box<CreatedKey>, tenant_name: String },
    /// A person refused it.
    Denied,
}

/// The open logins.
#[derive(Default)]
pub(super) struct Logins(Mutex<OpenLogins>);

#[derive(Default)]
struct OpenLogins {
    by_code: HashMap<String, OpenLogin>,
    guesses: HashMap<KeyId, WrongCodes>,
}

struct OpenLogin {
    login: PendingLogin,
    secret: SecretHash,
    started_at: Instant,
    polled_at: Option<Instant>,
    decision: Decision,
}

enum Decision {
    Open,
    Approved(Box<Approval>),
    Denied,
}

#[derive(Clone)]
struct Approval {
    by: Principal,
    new: NewKey,
    tenant_name: String,
}

#[derive(Clone, Copy)]
struct WrongCodes {
    count: u32,
    since: Instant,
}

/// What a secret finds.
enum Polled {
    Pending,
    TooSoon,
    Approved(Box<Approval>),
    Denied,
}

impl Logins {
    fn lock(&self) -> MutexGuard<'_, OpenLogins> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.by_code.retain(|_, login| login.started_at.elapsed() < VALID_FOR);
        open.guesses.retain(|_, wrong| wrong.since.elapsed() < GUESSES_WITHIN);
        open
    }

    /// `Err`: there are too many; the seconds until one of them ends.
    fn start(&self, login: PendingLogin, secret: SecretHash) -> Result<(), u32> {
        let mut open = self.lock();
        let network = login.client.map(network_of);
        let of_client = || open.by_code.values().filter(|one| one.login.client.map(network_of) == network);
        let oldest = if of_client().count() >= PER_CLIENT_MAX {
            of_client().map(|one| one.started_at).min()
        } else if open.by_code.len() >= LOGINS_MAX {
            open.by_code.values().map(|one| one.started_at).min()
        } else {
            None
        };
        if let Some(oldest) = oldest {
            let left = VALID_FOR.saturating_sub(oldest.elapsed()).as_secs();
            return Err(u32::try_from(left).unwrap_or(u32::MAX).saturating_add(1));
        }
        let code = login.code.clone();
        let started_at = Instant::now();
        let decision = Decision::Open;
        open.by_code.insert(code, OpenLogin { login, secret, started_at, polled_at: None, decision });
        Ok(())
    }

    fn has_code(&self, code: &str) -> bool {
        self.lock().by_code.contains_key(code)
    }

    /// The undecided login of a code. A wrong code counts against the key; `Err(Some(…))`: there were too many, whatever the
    /// code.
    fn find<T>(
        &self,
        who: &KeyId,
        code: &str,
        then: impl FnOnce(&mut OpenLogin) -> T,
    ) -> Result<T, Option<u32>> {
        let mut open = self.lock();
        if let Some(wrong) = open.guesses.get(who).filter(|wrong| wrong.count >= GUESSES_MAX) {
            let left = GUESSES_WITHIN.saturating_sub(wrong.since.elapsed()).as_secs();
            return Err(Some(u32::try_from(left).unwrap_or(u32::MAX).saturating_add(1)));
        }
        let found = written(code).and_then(|code| open.by_code.get_mut(&code));
        if let Some(login) = found.filter(|login| matches!(login.decision, Decision::Open)) {
            return Ok(then(login));
        }
        if open.guesses.len() >= GUESSERS_MAX && !open.guesses.contains_key(who) {
            let longest =
                open.guesses.iter().min_by_key(|(_, wrong)| wrong.since).map(|(key, _)| key.clone());
            longest.and_then(|key| open.guesses.remove(&key));
        }
        let fresh = WrongCodes { count: 0, since: Instant::now() };
        open.guesses.entry(who.clone()).or_insert(fresh).count += 1;
        Err(None)
    }

    /// The state of a login; a decision is returned once and ends it.
    fn poll(&self, secret: &SecretHash) -> Option<Polled> {
        let mut open = self.lock();
        let code = open.by_code.iter().find(|(_, login)| login.secret == *secret)?.0.clone();
        let login = open.by_code.get_mut(&code)?;
        if login.polled_at.is_some_and(|at| at.elapsed() < POLL_PAUSE_MIN) {
            return Some(Polled::TooSoon);
        }
        login.polled_at = Some(Instant::now());
        if matches!(login.decision, Decision::Open) {
            return Some(Polled::Pending);
        }
        Some(match open.by_code.remove(&code)?.decision {
            Decision::Open => Polled::Pending,
            Decision::Approved(approval) => Polled::Approved(approval),
            Decision::Denied => Polled::Denied,
        })
    }
}

impl Access {
    /// Starts a login for whoever asks. It gives nothing until a person with a key approves its code.
    pub fn start_login(&self, name: &str) -> Result<StartedLogin, ServiceError> {
        let is_plain = name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if name.trim().is_empty() || name.len() > KEY_NAME_MAX || !is_plain {
            let problem = format!("must have 1 to {KEY_NAME_MAX} printable ASCII characters");
            return Err(ServiceError::field("name", problem));
        }
        let secret = format!("{SECRET_PREFIX}{}", hex::encode(entropy::<20>()?));
        let code = self.unused_code()?;
        let created_at_ms = self.inner.clock.now().wall_ms;
        let expires_at_ms = created_at_ms + i64::try_from(VALID_FOR.as_millis()).unwrap_or_default();
        let client = RequestScope::current().and_then(|scope| scope.client());
        let login =
            PendingLogin { code: code.clone(), name: name.to_owned(), client, created_at_ms, expires_at_ms };
        self.inner.logins.start(login, Sha256::digest(&secret).into()).map_err(|retry_after_s| {
            ServiceError::new(Code::RateLimited, "too many logins are waiting for approval")
                .hint("approve or wait for those that were started; each ends after five minutes")
                .retry_after(retry_after_s)
        })?;
        Ok(StartedLogin { code, secret, expires_at_ms, poll_every_s: POLL_EVERY_S })
    }

    fn unused_code(&self) -> Result<String, ServiceError> {
        // With 256 open codes of 2.5e10, the first is free but for one case in 1e8.
        for _ in 0..8 {
            let code = new_code()?;
            if !self.inner.logins.has_code(&code) {
                return Ok(code);
            }
        }
        Err(ServiceError::new(Code::Internal, "no free code was found"))
    }

    /// The login of a code, for the person who decides about it.
    pub fn pending_login(&self, who: &Principal, code: &str) -> Result<PendingLogin, ServiceError> {
        self.find_login(who, code, |open| open.login.clone())
    }

    /// Approves a login: its client gets a key of this tenant. The caller may approve what it may create by itself
    /// ([`Access::create_key`]). The code is used up.
    pub async fn approve_login(
        &self,
        who: &Principal,
        code: &str,
        tenant: Option<String>,
        scope: Scope,
    ) -> Result<ApprovedLogin, ServiceError> {
        if scope == Scope::Admin || tenant.is_some() {
            authz::admin(who)?;
        }
        let record = self.inner.tenant(tenant.as_deref().unwrap_or_else(|| who.tenant.as_str())).await?;
        let login = self.find_login(who, code, |open| {
            let new = NewKey {
                tenant: (who.scope == Scope::Admin).then(|| record.id.to_string()),
                scope,
                name: Some(open.login.name.clone()),
            };
            let approval = Approval { by: who.clone(), new, tenant_name: record.name.clone() };
            open.decision = Decision::Approved(Box::new(approval));
            open.login.clone()
        })?;
        tracing::info!(name = login.name, client = ?login.client, by = %who.key, "a login was approved");
        Ok(ApprovedLogin { login, tenant: record, scope })
    }

    /// Refuses a login. The code is used up.
    pub fn deny_login(&self, who: &Principal, code: &str) -> Result<(), ServiceError> {
        self.find_login(who, code, |open| open.decision = Decision::Denied)
    }

    fn find_login<T>(
        &self,
        who: &Principal,
        code: &str,
        then: impl FnOnce(&mut OpenLogin) -> T,
    ) -> Result<T, ServiceError> {
        self.inner.logins.find(&who.key, code, then).map_err(|locked_s| match locked_s {
            None => self.wrong_credential(
                ServiceError::new(Code::KeyNotFound, "no login is waiting with this code")
                    .hint("a code works once, within five minutes; compare it, or run `atoll login` again"),
            ),
            Some(seconds) => {
                ServiceError::new(Code::RateLimited, "this key sent too many wrong codes of logins")
                    .hint("no code is accepted from it for now, a right one neither")
                    .retry_after(seconds)
            }
        })
    }

    /// The decision about the login with this secret, and with it the key, once. A wrong secret counts as a wrong key against
    /// the client's address.
    pub async fn poll_login(&self, secret: &str) -> Result<LoginPoll, ServiceError> {
        let over = || {
            let error =
                ServiceError::new(Code::Unauthenticated, "this login is over: it was used or is too old")
                    .hint("a login works once, within five minutes: run `atoll login` again");
            self.wrong_credential(error)
        };
        match self.inner.logins.poll(&Sha256::digest(secret).into()).ok_or_else(over)? {
            Polled::Pending => Ok(LoginPoll::Pending),
            Polled::Denied => Ok(LoginPoll::Denied),
            Polled::TooSoon => {
                Err(ServiceError::new(Code::RateLimited, "this login was asked for a moment ago")
                    .hint("wait a second between two polls")
                    .retry_after(POLL_EVERY_S))
            }
            Polled::Approved(approval) => {
                let Approval { by, new, tenant_name } = *approval;
                // The key of the person may have been deleted since.
                if !self.exists(&Credential::Key(by.key.clone())).await {
                    return Err(over());
                }
                let key = Box::new(self.create_key(&by, new).await?);
                Ok(LoginPoll::Approved { key, tenant_name })
            }
        }
    }
}

/// A random code, each letter with the same probability.
fn new_code() -> Result<String, ServiceError> {
    let mut code = String::with_capacity(CODE_LETTERS + 1);
    while code.len() < CODE_LETTERS + 1 {
        for byte in entropy::<16>()? {
            // 240 is a multiple of 20; the rest would make some letters more frequent.
            if byte < 240 && code.len() < CODE_LETTERS + 1 {
                code.push(char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]));
                if code.len() == CODE_LETTERS / 2 {
                    code.push('-');
                }
            }
        }
    }
    Ok(code)
}

/// A code as it is stored, from what a person typed; `None`: it cannot be one.
fn written(typed: &str) -> Option<String> {
    let letters = typed.chars().filter(|c| !matches!(c, '-' | ' '));
    let letters: String = letters.take(CODE_LETTERS + 1).map(|c| c.to_ascii_uppercase()).collect();
    let is_code = letters.len() == CODE_LETTERS && letters.bytes().all(|byte| ALPHABET.contains(&byte));
    is_code.then(|| format!("{}-{}", &letters[..CODE_LETTERS / 2], &letters[CODE_LETTERS / 2..]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn login(code: &str, client: &str) -> PendingLogin {
        let (name, client) = ("anna@laptop".to_owned(), Some(client.parse().unwrap()));
        PendingLogin { code: code.to_owned(), name, client, created_at_ms: 0, expires_at_ms: 0 }
    }

    fn key(n: u8) -> KeyId {
        KeyId::from_entropy([n; 20])
    }

    #[test]
    fn a_code_has_eight_consonants_and_is_read_in_any_form() {
        for _ in 0..100 {
            let code = new_code().unwrap();
            assert_eq!(written(&code), Some(code.clone()));
            assert_eq!(written(&code.to_lowercase().replace('-', " ")), Some(code.clone()));
            assert_eq!(code.len(), 9);
        }
        for other in ["", "BCDF", "BCDF-GHJK-L", "ACDF-GHJK", "BCDF-GHJ1", "ßßßßßßßß"] {
            assert_eq!(written(other), None, "{other}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_is_decided_once_within_five_minutes() {
        let logins = Logins::default();
        logins.start(login("BCDF-GHJK", "192.0.2.1"), [1; 32]).unwrap();
        logins.start(login("BCDF-GHJL", "192.0.2.1"), [2; 32]).unwrap();
        assert!(matches!(logins.poll(&[1; 32]), Some(Polled::Pending)));
        assert!(matches!(logins.poll(&[1; 32]), Some(Polled::TooSoon)));
        assert!(logins.poll(&[3; 32]).is_none());
        logins.find(&key(1), "bcdfghjk", |open| open.decision = Decision::Denied).unwrap();
        assert!(logins.find(&key(1), "BCDF-GHJK", |_| ()).is_err(), "a code works once");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(matches!(logins.poll(&[1; 32]), Some(Polled::Denied)));
        assert!(logins.poll(&[1; 32]).is_none(), "a decision is returned once");
        tokio::time::advance(VALID_FOR).await;
        assert!(logins.poll(&[2; 32]).is_none());
        assert!(logins.find(&key(1), "BCDF-GHJL", |_| ()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn after_some_wrong_codes_a_key_may_not_try_the_right_one() {
        let logins = Logins::default();
        logins.start(login("BCDF-GHJK", "192.0.2.1"), [1; 32]).unwrap();
        for _ in 0..GUESSES_MAX {
            assert_eq!(logins.find(&key(1), "ZZZZ-ZZZZ", |_| ()), Err(None));
        }
        assert!(matches!(logins.find(&key(1), "BCDF-GHJK", |_| ()), Err(Some(1..))));
        assert_eq!(logins.find(&key(2), "BCDF-GHJK", |_| ()), Ok(()), "another key is not concerned");
        tokio::time::advance(GUESSES_WITHIN).await;
        logins.start(login("BCDF-GHJK", "192.0.2.1"), [1; 32]).unwrap();
        assert_eq!(logins.find(&key(1), "BCDF-GHJK", |_| ()), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn open_logins_are_bounded_for_each_client_and_in_all() {
        let logins = Logins::default();
        let mut count = 0_u16;
        let mut start = |client: &str| {
            count += 1;
            let [high, low] = count.to_be_bytes();
            let mut secret = [0; 32];
            secret[..2].copy_from_slice(&[high, low]);
            logins.start(login(&format!("{count}"), client), secret)
        };
        for _ in 0..PER_CLIENT_MAX {
            start("192.0.2.1").unwrap();
        }
        assert_eq!(start("192.0.2.1"), Err(301));
        for n in 2..=(LOGINS_MAX / PER_CLIENT_MAX) {
            (0..PER_CLIENT_MAX).for_each(|_| start(&format!("192.0.2.{n}")).unwrap());
        }
        assert!(start("198.51.100.1").is_err(), "the bound of all clients");
        tokio::time::advance(VALID_FOR).await;
        start("192.0.2.1").unwrap();
    }
}
