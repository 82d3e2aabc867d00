//! Which requests are sent again, and when. A request that may have been carried out is repeated only if that is harmless.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use reqwest::{Method, Request};

use super::error::ClientError;

/// LIMIT: a server that wants a longer pause is full or busy; the program decides whether it waits.
const PAUSE_MAX: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// How often a request is sent.
///
/// | what failed | which requests are sent again |
/// |---|---|
/// | no connection: nothing was sent | all |
/// | the connection broke without an answer | `GET`, and creates with an idempotency key |
/// | 429 or 503 with a `Retry-After` of at most two seconds | the same |
///
/// Requests whose body is a stream are sent once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    attempts: u32,
}

impl Default for Retries {
    /// Three attempts.
    fn default() -> Self {
        Self::attempts(3)
    }
}

impl Retries {
    /// Every request is sent once.
    #[must_use]
    pub const fn none() -> Self {
        Self::attempts(1)
    }

    /// A request is sent at most so many times.
    #[must_use]
    pub const fn attempts(attempts: u32) -> Self {
        Self { attempts }
    }

    /// A copy of a request that may have to be sent again after `sent` attempts.
    pub(super) fn copy(self, request: &Request, sent: u32) -> Option<Request> {
        if sent < self.attempts { request.try_clone() } else { None }
    }
}

/// The pause before a request is sent again; `None` if it must not be.
pub(super) fn pause(request: &Request, error: &ClientError, sent: u32) -> Option<Duration> {
    match error {
        ClientError::Http(cause) if cause.is_connect() => Some(grown(sent)),
        // A server that took too long may take as long again.
        ClientError::Http(cause) if cause.is_timeout() => None,
        ClientError::Http(_) if is_harmless(request) => Some(grown(sent)),
        ClientError::Refused(refused) if is_harmless(request) && matches!(refused.status, 429 | 503) => {
            refused.retry_after.filter(|pause| *pause <= PAUSE_MAX)
        }
        ClientError::Http(_)
        | ClientError::Refused(_)
        | ClientError::Unexplained { .. }
        | ClientError::NotUnderstood(_)
        | ClientError::EventTooLarge
        | ClientError::BadAddress { .. } => None,
    }
}

/// Whether a second time changes nothing.
fn is_harmless(request: &Request) -> bool {
    request.method() == Method::GET || request.headers().contains_key("idempotency-key")
}

/// Doubled each time, with up to as much again at random: clients that failed together do not come back together.
fn grown(sent: u32) -> Duration {
    let pause = FIRST_PAUSE.saturating_mul(1 << sent.saturating_sub(1).min(10)).min(PAUSE_MAX);
    let random = u32::try_from(RandomState::new().hash_one(sent) % 1_000).unwrap_or(0);
    pause + pause.mul_f64(f64::from(random) / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ApiError;

    fn request(method: Method, key: Option<&str>) -> Request {
        let mut request = Request::new(method, "http://127.0.0.1:1/".parse().expect("a URL"));
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key.parse().expect("a header"));
        }
        request
    }

    fn refused(status: u16, retry_after_s: Option<u64>) -> ClientError {
        ClientError::Refused(Box::new(ApiError {
            status,
            code: "x".to_owned(),
            message: String::new(),
            hint: None,
            field: None,
            request_id: None,
            retry_after: retry_after_s.map(Duration::from_secs),
        }))
    }

    #[test]
    fn only_what_is_harmless_is_sent_again_after_an_answer() {
        let soon = refused(503, Some(1));
        assert_eq!(pause(&request(Method::GET, None), &soon, 1), Some(Duration::from_secs(1)));
        assert_eq!(pause(&request(Method::POST, Some("k")), &soon, 1), Some(Duration::from_secs(1)));
        for method in [Method::POST, Method::DELETE, Method::PUT, Method::PATCH] {
            assert_eq!(pause(&request(method, None), &soon, 1), None);
        }
    }

    #[test]
    fn a_full_server_and_a_plain_refusal_are_answers() {
        let get = request(Method::GET, None);
        for error in [refused(503, Some(5)), refused(503, None), refused(404, Some(1))] {
            assert_eq!(pause(&get, &error, 1), None, "{error:?}");
        }
    }

    #[test]
    fn pauses_grow_up_to_a_limit() {
        for sent in 1..40 {
            let pause = grown(sent);
            assert!(pause >= FIRST_PAUSE && pause <= PAUSE_MAX * 2, "{pause:?}");
        }
        assert!(grown(4) >= FIRST_PAUSE * 8);
    }

    #[test]
    fn a_request_is_copied_as_long_as_attempts_are_left() {
        let get = request(Method::GET, None);
        assert!(Retries::default().copy(&get, 2).is_some() && Retries::default().copy(&get, 3).is_none());
        assert!(Retries::none().copy(&get, 1).is_none());
    }
}
