//! Sets of addresses as sorted, non-adjacent ranges, and the addresses that are never reachable.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

/// IPv4 addresses.
pub type Ranges4 = Ranges<u32>;
/// IPv6 addresses.
pub type Ranges6 = Ranges<u128>;

/// The address type of ranges.
pub trait Bound: Copy + Ord + std::fmt::Debug {
    /// The first address.
    const FIRST: Self;
    /// The last address.
    const LAST: Self;
    /// The next address, if there is one.
    fn after(self) -> Option<Self>;
    /// The previous address, if there is one.
    fn before(self) -> Option<Self>;
}

macro_rules! bound {
    ($($kind:ty),*) => {$(
        impl Bound for $kind {
            const FIRST: Self = <$kind>::MIN;
            const LAST: Self = <$kind>::MAX;
            fn after(self) -> Option<Self> {
                self.checked_add(1)
            }
            fn before(self) -> Option<Self> {
                self.checked_sub(1)
            }
        }
    )*};
}
bound!(u32, u128);

/// A set of addresses: sorted ranges with first and last included; no two are adjacent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges<T>(Vec<(T, T)>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Bound> Ranges<T> {
    /// The union of ranges in any order.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = (T, T)>) -> Self {
        let mut sorted: Vec<(T, T)> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(T, T)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match merged.last_mut() {
                Some((_, end)) if end.after().is_none_or(|next| first <= next) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// All addresses.
    #[must_use]
    pub fn all() -> Self {
        Self(vec![(T::FIRST, T::LAST)])
    }

    /// The union.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self::new(self.0.iter().chain(&other.0).copied())
    }

    /// The complement.
    #[must_use]
    pub fn not(&self) -> Self {
        let mut gaps = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some(T::FIRST);
        for &(first, last) in &self.0 {
            if let (Some(from), Some(to)) = (next, first.before())
                && from <= to
            {
                gaps.push((from, to));
            }
            next = last.after();
        }
        gaps.extend(next.map(|from| (from, T::LAST)));
        Self(gaps)
    }

    /// The intersection.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        self.not().or(&other.not()).not()
    }

    /// The difference.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.and(&other.not())
    }

    /// Whether an address is in the set.
    #[must_use]
    pub fn contains(&self, one: T) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= one);
        after > 0 && one <= self.0[after - 1].1
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (T, T)> + '_ {
        self.0.iter().copied()
    }
}

const fn net(a: u8, b: u8, len: u8) -> (u32, u32) {
    let first = u32::from_be_bytes([a, b, 0, 0]);
    (first, first | (u32::MAX >> len))
}

/// The addresses that stand for names which only a proxy can resolve. They belong to the range for tests of
/// devices, which is never routed; a sandbox sends packets to them to the gate only.
const STAND_INS: (u32, u32) = (u32::from_be_bytes([198, 19, 0, 0]), u32::from_be_bytes([198, 19, 255, 255]));

/// The address that stands for a name. Two names may share one: an address alone never says which name is meant.
#[must_use]
pub fn stand_in(name: &str) -> Ipv4Addr {
    // FNV-1a: any even distribution does.
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Ipv4Addr::from(STAND_INS.0 | ((hash >> 16) ^ (hash & 0xffff)))
}

/// Whether an address stands for a name.
#[must_use]
pub fn is_stand_in(address: Ipv4Addr) -> bool {
    (STAND_INS.0..=STAND_INS.1).contains(&address.into())
}

/// Private ranges: reachable only if a policy names them and the operator allows it.
pub(super) const PRIVATE: [(u32, u32); 3] = [net(10, 0, 8), net(172, 16, 12), net(192, 168, 16)];

/// Ranges that no policy makes reachable, with names for logs and errors.
const NEVER: [((u32, u32), &str); 10] = [
    (net(0, 0, 8), "this network"),
    (net(100, 64, 10), "sandboxes and shared addresses"),
    (net(127, 0, 8), "loopback"),
    (net(169, 254, 16), "link-local and metadata"),
    (net(192, 0, 24), "protocol assignments"),
    ((0xc058_6300, 0xc058_63ff), "6to4 relays"),
    (net(198, 18, 15), "benchmarking and uplinks"),
    // Azure serves metadata and more at this public-looking address.
    ((0xa83f_8110, 0xa83f_8110), "metadata"),
    (net(224, 0, 4), "multicast"),
    (net(240, 0, 4), "reserved"),
];

/// The class of an address that is never reachable, or only if it is named.
#[must_use]
pub fn class_of(address: Ipv4Addr) -> Option<&'static str> {
    let address = u32::from(address);
    let within = |(first, last): (u32, u32)| (first..=last).contains(&address);
    if PRIVATE.into_iter().any(within) {
        return Some("private");
    }
    NEVER.into_iter().find(|(range, _)| within(*range)).map(|(_, name)| name)
}

/// As [`class_of`], for addresses of both versions.
#[must_use]
pub fn class_of_ip(address: IpAddr) -> Option<&'static str> {
    static NEVER6: LazyLock<Ranges6> = LazyLock::new(never6);
    match address {
        IpAddr::V4(address) => class_of(address),
        IpAddr::V6(address) => NEVER6.contains(u128::from(address)).then_some("not public"),
    }
}

/// All unreachable addresses, without the private ranges in `named`.
#[must_use]
pub fn never(named: Ranges4) -> Ranges4 {
    let private = Ranges::new(PRIVATE).minus(&named);
    Ranges::new(NEVER.map(|(range, _)| range)).or(&private)
}

/// Unreachable IPv6 addresses: everything but global unicast, and within it documentation, 6to4, Teredo and other
/// relays that carry IPv4 addresses past the IPv4 rules.
#[must_use]
pub fn never6() -> Ranges6 {
    let net = |high: u128, len: u32| {
        let first = high << 112;
        (first, first | (u128::MAX >> len))
    };
    let teredo = 0x2001_u128 << 112;
    let global = Ranges::new([net(0x2000, 3)]);
    let relays = Ranges::new([net(0x2002, 16), (teredo, teredo | (u128::MAX >> 23))]);
    global.not().or(&relays)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some() -> impl Strategy<Value = Ranges<u32>> {
        let near = prop_oneof![0u32..40, (u32::MAX - 40)..=u32::MAX];
        proptest::collection::vec((near.clone(), near), 0..6).prop_map(Ranges::new)
    }

    proptest! {
        #[test]
        fn sets_do_what_sets_do(a in some(), b in some(), x in prop_oneof![0u32..42, (u32::MAX - 42)..=u32::MAX]) {
            prop_assert_eq!(a.not().contains(x), !a.contains(x));
            prop_assert_eq!(a.or(&b).contains(x), a.contains(x) || b.contains(x));
            prop_assert_eq!(a.and(&b).contains(x), a.contains(x) && b.contains(x));
            prop_assert_eq!(a.minus(&b).contains(x), a.contains(x) && !b.contains(x));
            prop_assert_eq!(a.not().not(), a.clone());
            let ranges: Vec<_> = a.iter().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
        }
    }

    #[test]
    fn classes_are_named() {
        assert_eq!(class_of(Ipv4Addr::new(10, 1, 2, 3)), Some("private"));
        assert_eq!(class_of(Ipv4Addr::new(169, 254, 169, 254)), Some("link-local and metadata"));
        assert_eq!(class_of(Ipv4Addr::new(168, 63, 129, 16)), Some("metadata"));
        assert_eq!(class_of(Ipv4Addr::new(1, 1, 1, 1)), None);
        assert!(never6().contains(0xfd00 << 112) && !never6().contains(0x2600 << 112));
        assert_eq!(class_of_ip([127, 0, 0, 1].into()), Some("loopback"));
        assert_eq!(class_of_ip(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()), Some("not public"));
        assert_eq!(class_of_ip([0x2606, 0x4700, 0, 0, 0, 0, 0, 0x1111].into()), None);
    }
}
