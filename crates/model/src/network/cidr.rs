//! An address range as a prefix, in canonical form only.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An IPv4 or IPv6 network; a single address has the full length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    address: IpAddr,
    len: u8,
}

/// Why a text is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address range: {why}")]
pub struct BadCidr {
    text: String,
    why: String,
}

impl Cidr {
    /// The network of this length that contains an address; `None` if the length is too large.
    #[must_use]
    pub fn around(address: IpAddr, len: u8) -> Option<Self> {
        let full = if address.is_ipv4() { 32 } else { 128 };
        (len <= full).then(|| Self { address: masked(address, len), len })
    }

    /// The first and the last address of an IPv4 network.
    #[must_use]
    pub fn v4(&self) -> Option<(u32, u32)> {
        let IpAddr::V4(address) = self.address else { return None };
        let first = u32::from(address);
        Some((first, first | u32::MAX.checked_shr(self.len.into()).unwrap_or(0)))
    }

    /// The first and the last address of an IPv6 network.
    #[must_use]
    pub fn v6(&self) -> Option<(u128, u128)> {
        let IpAddr::V6(address) = self.address else { return None };
        let first = u128::from(address);
        Some((first, first | u128::MAX.checked_shr(self.len.into()).unwrap_or(0)))
    }

    /// Whether it contains an address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(a) => self.v4().is_some_and(|(first, last)| (first..=last).contains(&a.into())),
            IpAddr::V6(a) => self.v6().is_some_and(|(first, last)| (first..=last).contains(&a.into())),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl FromStr for Cidr {
    type Err = BadCidr;

    fn from_str(text: &str) -> Result<Self, BadCidr> {
        let bad = |why: &str| {
            // Untrusted text is shown, but truncated.
            BadCidr { text: text.chars().take(64).collect(), why: why.to_owned() }
        };
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr =
            address.parse().map_err(|_| bad("write 203.0.113.0/24, 203.0.113.7 or 2001:db8::/32"))?;
        let full = if address.is_ipv4() { 32 } else { 128 };
        let len = match len {
            None => full,
            Some(digits)
                if digits.len() <= 3
                    && digits.bytes().all(|b| b.is_ascii_digit())
                    && (digits == "0" || !digits.starts_with('0')) =>
            {
                digits.parse().ok().filter(|len| *len <= full).ok_or_else(|| bad("the prefix is too long"))?
            }
            Some(_) => return Err(bad("the prefix length is not a plain number")),
        };
        if let IpAddr::V6(v6) = address
            && v6.to_ipv4_mapped().is_some()
        {
            return Err(bad("write the IPv4 address itself"));
        }
        let network = masked(address, len);
        if network != address {
            return Err(bad(&format!("bits after the prefix are set; did you mean {network}/{len}?")));
        }
        Ok(Self { address, len })
    }
}

fn masked(address: IpAddr, len: u8) -> IpAddr {
    let (short, long) = (u32::from(len), u32::from(len));
    match address {
        IpAddr::V4(a) => Ipv4Addr::from(u32::from(a) & !u32::MAX.checked_shr(short).unwrap_or(0)).into(),
        IpAddr::V6(a) => Ipv6Addr::from(u128::from(a) & !u128::MAX.checked_shr(long).unwrap_or(0)).into(),
    }
}

impl TryFrom<String> for Cidr {
    type Error = BadCidr;

    fn try_from(text: String) -> Result<Self, BadCidr> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> Self {
        cidr.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn networks_are_read_and_odd_ones_refused() {
        assert_eq!("0.0.0.0/0".parse::<Cidr>().unwrap().v4(), Some((0, u32::MAX)));
        assert_eq!("10.1.2.3".parse::<Cidr>().unwrap().to_string(), "10.1.2.3/32");
        assert_eq!("::/0".parse::<Cidr>().unwrap().v6(), Some((0, u128::MAX)));
        for bad in [
            "",
            "/",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.5/8",
            "10.0.0/8",
            "0x7f000001",
            "2130706433",
            "::1/129",
            "10.0.0.0/08",
            "10.0.0.0/+8",
            " 10.0.0.0/8",
            "::ffff:10.0.0.1",
            "010.0.0.1",
            "example.com",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(address: u32, len in 0u8..=32, text in ".{0,40}") {
            let network = masked(Ipv4Addr::from(address).into(), len);
            let cidr: Cidr = format!("{network}/{len}").parse().unwrap();
            prop_assert!(cidr.contains(Ipv4Addr::from(address).into()));
            prop_assert_eq!(cidr.to_string().parse::<Cidr>().unwrap(), cidr);
            if let Ok(cidr) = text.parse::<Cidr>() {
                prop_assert_eq!(cidr.to_string().parse::<Cidr>().unwrap(), cidr);
            }
        }
    }

    #[test]
    fn a_range_that_is_read_is_written_back_the_same() {
        atoll_robustness::check("cidr", |bytes| {
            if let Ok(range) = String::from_utf8_lossy(bytes).parse::<Cidr>() {
                assert_eq!(range.to_string().parse::<Cidr>().ok(), Some(range));
            }
        });
    }
}
