//! How long to wait before a retry, and when to stop. Only requests that are safe to repeat are repeated.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};

/// LIMIT: consecutive tries without progress.
const TRIES: u32 = 5;
/// LIMIT: tries of one operation in total, even with progress.
const TRIES_IN_ALL: u32 = 64;
/// LIMIT: if a registry requests a longer wait, the user gets an error instead.
const LONGEST: Duration = Duration::from_secs(60);
const FIRST: Duration = Duration::from_millis(200);

/// Counts the tries of one operation.
#[derive(Debug, Default)]
pub(super) struct Patience {
    in_vain: u32,
    in_all: u32,
}

/// The decision after a failed try.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RetryDecision {
    /// Try again after this.
    Wait(Duration),
    /// The registry requests a wait above the limit.
    TooLong(Duration),
    /// No further try.
    GiveUp,
}

impl Patience {
    /// The last try made progress, so earlier failures no longer count.
    pub(super) fn moved(&mut self) {
        self.in_vain = 0;
    }

    /// A try failed after a long wait; it counts twice, because a user is waiting.
    pub(super) fn failed_slowly(&mut self) -> RetryDecision {
        self.in_vain += 1;
        self.failed(None)
    }

    /// A try failed; `asked` is the wait that the registry requests.
    pub(super) fn failed(&mut self, asked: Option<Duration>) -> RetryDecision {
        self.in_vain += 1;
        self.in_all += 1;
        if let Some(asked) = asked.filter(|asked| *asked > LONGEST) {
            return RetryDecision::TooLong(asked);
        }
        if self.in_vain >= TRIES || self.in_all >= TRIES_IN_ALL {
            return RetryDecision::GiveUp;
        }
        let doubled = FIRST * 2_u32.pow(self.in_vain - 1);
        // Between half and all of it, so that clients that failed together do not retry together.
        let share = getrandom::u32().unwrap_or(u32::MAX / 2);
        let jittered = doubled / 2 + (doubled / 2).mul_f64(f64::from(share) / f64::from(u32::MAX));
        RetryDecision::Wait(asked.map_or(jittered, |asked| asked.max(jittered)))
    }
}

/// The value of `Retry-After`: seconds, or a date.
#[expect(clippy::disallowed_methods, reason = "a registry named a date")]
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    // A date in the past means now.
    Some(Duration::try_from(date.duration_since(jiff::Timestamp::now())).unwrap_or_default())
}

/// Status codes of temporary errors.
pub(super) fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn patience_grows_and_ends() {
        let mut patience = Patience::default();
        let mut waits = Vec::new();
        while let RetryDecision::Wait(wait) = patience.failed(None) {
            waits.push(wait);
        }
        assert_eq!(waits.len() as u32, TRIES - 1);
        assert!(waits.iter().sum::<Duration>() < Duration::from_secs(4), "{waits:?}");
        patience.moved();
        assert_eq!(
            patience.failed(Some(Duration::from_secs(7))),
            RetryDecision::Wait(Duration::from_secs(7))
        );
        assert_eq!(
            patience.failed(Some(Duration::from_secs(900))),
            RetryDecision::TooLong(Duration::from_secs(900))
        );
    }

    #[test]
    fn even_little_steps_end_some_day() {
        let mut patience = Patience::default();
        let tries = (0..1000).take_while(|_| {
            patience.moved();
            matches!(patience.failed(None), RetryDecision::Wait(_))
        });
        assert_eq!(tries.count() as u32, TRIES_IN_ALL - 1);
    }

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let with = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(with("17"), Some(Duration::from_secs(17)));
        assert_eq!(with("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert!(with("Wed, 21 Oct 2099 07:28:00 GMT").unwrap() > LONGEST);
        assert_eq!((with("soon"), with("-1")), (None, None));
    }

    #[test]
    fn any_retry_time_is_read_or_passed_over() {
        atoll_robustness::check("retry_after", |bytes| {
            let Ok(value) = reqwest::header::HeaderValue::from_bytes(bytes) else { return };
            let _ = retry_after(&HeaderMap::from_iter([(RETRY_AFTER, value)]));
        });
    }
}
