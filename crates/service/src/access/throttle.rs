//! The throttle for wrong credentials, per client address.
//!
//! Every address has a bucket of failures that fills up again slowly. While it is empty, a wrong credential is answered with
//! [`Code::RateLimited`] instead of [`Code::Unauthenticated`]. A valid one always passes: several clients may share an address
//! behind a proxy, and keys are 160 random bits, so that the throttle bounds load and noise rather than luck.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use atoll_model::Code;
use tokio::time::Instant;

use super::{Access, RequestScope};
use crate::ServiceError;

/// LIMIT: wrong credentials that an address may send at once.
const BURST: f64 = 100.0;
/// LIMIT: how many more it may send each second.
const PER_SECOND: f64 = 2.0;
/// LIMIT: addresses that are recorded, about 1 MiB; further ones share one bucket until others are full again.
const ADDRESSES_MAX: usize = 16_384;
const REFUSED: &str = "atoll_auth_throttled_total";

#[derive(Default)]
pub(super) struct AuthThrottle(Mutex<Buckets>);

#[derive(Default)]
struct Buckets {
    known: HashMap<IpAddr, Bucket>,
    shared: Option<Bucket>,
}

#[derive(Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
    is_reported: bool,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { left: BURST, at: now, is_reported: false }
    }

    fn refill(&mut self, now: Instant) {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * PER_SECOND;
        self.left = (self.left + gained).min(BURST);
        self.at = now;
        self.is_reported &= self.left < BURST;
    }

    fn is_full(&self, now: Instant) -> bool {
        let mut copy = *self;
        copy.refill(now);
        copy.left >= BURST
    }

    /// `Err`: the bucket is empty; the seconds until it is not.
    fn take(&mut self, now: Instant) -> Result<(), u32> {
        self.refill(now);
        if self.left >= 1.0 {
            self.left -= 1.0;
            return Ok(());
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 1 second, rounded up"
        )]
        Err((((1.0 - self.left) / PER_SECOND).ceil() as u32).max(1))
    }
}

impl AuthThrottle {
    /// Counts a failure from this address. `Err`: there were too many; when to retry, and whether to log it.
    fn failed(&self, client: IpAddr, now: Instant) -> Result<(), (u32, bool)> {
        let client = network_of(client);
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.known.len() >= ADDRESSES_MAX && !buckets.known.contains_key(&client) {
            buckets.known.retain(|_, bucket| !bucket.is_full(now));
        }
        let bucket = if buckets.known.len() < ADDRESSES_MAX || buckets.known.contains_key(&client) {
            buckets.known.entry(client).or_insert_with(|| Bucket::new(now))
        } else {
            buckets.shared.get_or_insert_with(|| Bucket::new(now))
        };
        bucket.take(now).map_err(|retry_after_s| {
            let is_first = !std::mem::replace(&mut bucket.is_reported, true);
            (retry_after_s, is_first)
        })
    }
}

/// One client can have every address of an IPv6 /64.
pub(super) fn network_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

impl Access {
    /// Counts a wrong credential of the current request; returns `error`, or that there were too many.
    pub(super) fn wrong_credential(&self, error: ServiceError) -> ServiceError {
        let Some(client) = RequestScope::current().and_then(|scope| scope.client()) else { return error };
        match self.inner.throttle.failed(client, Instant::now()) {
            Ok(()) => error,
            Err((retry_after_s, is_first)) => {
                metrics::counter!(REFUSED).increment(1);
                if is_first {
                    tracing::warn!(%client, "too many wrong credentials from this address; they are answered 429 for now");
                }
                ServiceError::new(Code::RateLimited, "too many wrong keys or tokens came from this address")
                    .hint("check the key; a valid one is accepted at any time")
                    .retry_after(retry_after_s)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_gets_its_burst_and_then_so_many_a_second() {
        let (throttle, now) = (AuthThrottle::default(), Instant::now());
        let passed =
            |at: Instant| (0..1_000).filter(|_| throttle.failed(address("192.0.2.1"), at).is_ok()).count();
        assert_eq!(passed(now), 100);
        assert_eq!(throttle.failed(address("192.0.2.1"), now), Err((1, false)));
        assert!(throttle.failed(address("192.0.2.2"), now).is_ok(), "another address is not concerned");
        assert_eq!(passed(now + Duration::from_secs(5)), 10);
        assert_eq!(passed(now + Duration::from_secs(500)), 100);
    }

    #[test]
    fn one_network_of_ipv6_is_one_client_and_a_mapped_address_is_ipv4() {
        assert_eq!(network_of(address("2001:db8:1:2:3::4")), network_of(address("2001:db8:1:2:ffff::1")));
        assert_ne!(network_of(address("2001:db8:1:2::1")), network_of(address("2001:db8:1:3::1")));
        assert_eq!(network_of(address("::ffff:192.0.2.1")), address("192.0.2.1"));
    }

    #[test]
    fn memory_is_bounded_and_full_buckets_make_room() {
        let (throttle, now) = (AuthThrottle::default(), Instant::now());
        let nth = |n: u32| IpAddr::from(std::net::Ipv4Addr::from(n));
        for n in 0..40_000 {
            let _ = throttle.failed(nth(n), now);
        }
        assert_eq!(throttle.0.lock().unwrap().known.len(), ADDRESSES_MAX);
        assert!(throttle.failed(nth(90_000), now).is_err(), "what has no bucket of its own shares one");
        assert!(throttle.failed(nth(90_000), now + Duration::from_secs(60)).is_ok());
        assert_eq!(throttle.0.lock().unwrap().known.len(), 1);
    }
}
