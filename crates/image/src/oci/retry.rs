//! How long to wait before asking again, and when to stop. Only what is safe to repeat is repeated.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};

/// LIMIT: tries that bring nothing, one after another.
const TRIES: u32 = 5;
/// LIMIT: tries of one thing in all, even when each brings a little.
const TRIES_IN_ALL: u32 = 64;
/// LIMIT: a registry that wants us to wait longer is told off to the user, who knows better.
const LONGEST: Duration = Duration::from_secs(60);
const FIRST: Duration = Duration::from_millis(200);

/// Counts the tries of one thing.
#[derive(Debug, Default)]
pub(super) struct Patience {
    in_vain: u32,
    in_all: u32,
}

/// What comes after a failed try.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RetryDecision {
    /// Try again after this.
    Wait(Duration),
    /// It asks for more patience than we have.
    TooLong(Duration),
    /// Enough.
    GiveUp,
}

impl Patience {
    /// The last try brought something, so that those before it count no more.
    pub(super) fn moved(&mut self) {
        self.in_vain = 0;
    }

    /// A try failed after a long wait; those are counted twice, since a person is waiting.
    pub(super) fn failed_slowly(&mut self) -> RetryDecision {
        self.in_vain += 1;
        self.failed(None)
    }

    /// A try failed; `asked` is what the registry said about when to come back.
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
        // Between the half and the whole of it, so that many that failed together do not come back together.
        let share = getrandom::u32().unwrap_or(u32::MAX / 2);
        let jittered = doubled / 2 + (doubled / 2).mul_f64(f64::from(share) / f64::from(u32::MAX));
        RetryDecision::Wait(asked.map_or(jittered, |asked| asked.max(jittered)))
    }
}

/// What `Retry-After` says: seconds, or a date.
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

/// Answers that may be different the next time.
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
