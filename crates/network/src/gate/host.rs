//! The `Host` of a request, by one strict grammar: `name` or `name:port`. No address, no user, no final dot.

use atoll_model::is_host_name;

/// LIMIT: a name of 253 bytes and a port.
const LONGEST: usize = 253 + 6;

/// The host of a request, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
}

impl Host {
    /// `None` for anything but a name with an optional port.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= LONGEST && text.is_ascii())?;
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(parse_port(port)?)),
            None => (text, None),
        };
        let name = name.to_ascii_lowercase();
        is_host_name(&name).then_some(Self { name, port })
    }
}

/// Digits in canonical form; `0443` and `+443` are refused.
fn parse_port(digits: &str) -> Option<u16> {
    let plain = !digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    const NASTY: &str = include_str!("../../tests/corpus/hosts.txt");

    #[test]
    fn names_and_ports_are_read() {
        let host = |name: &str, port| Some(Host { name: name.into(), port });
        assert_eq!(Host::parse(b"example.com"), host("example.com", None));
        assert_eq!(Host::parse(b"ExAmple.COM:8443"), host("example.com", Some(8443)));
        assert_eq!(Host::parse(b"xn--bcher-kva.de"), host("xn--bcher-kva.de", None));
    }

    #[test]
    fn every_host_of_the_corpus_is_refused() {
        for line in NASTY.lines().filter(|line| !line.starts_with('#')) {
            let bytes = line.replace("\\t", "\t").replace("\\0", "\0");
            assert_eq!(Host::parse(bytes.as_bytes()), None, "{line:?}");
        }
        assert_eq!(Host::parse(b"exa\xffmple.com"), None);
        assert_eq!(Host::parse(&[b'a'; 300]), None);
    }

    proptest! {
        #[test]
        fn what_is_read_is_a_name_and_reads_the_same_again(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(host) = Host::parse(&text) {
                prop_assert!(is_host_name(&host.name));
                let again = host.port.map_or(host.name.clone(), |port| format!("{}:{port}", host.name));
                prop_assert_eq!(Host::parse(again.as_bytes()), Some(host));
            }
        }

        #[test]
        fn near_names_never_panic(text in "[a-zA-Z0-9.:@\\[\\]%_ -]{0,40}") {
            if let Some(host) = Host::parse(text.as_bytes()) {
                prop_assert!(text.to_ascii_lowercase().starts_with(&host.name));
            }
        }
    }

    #[test]
    fn a_host_that_is_read_is_a_name_and_reads_the_same_again() {
        atoll_robustness::check("host_header", |bytes| {
            if let Some(host) = Host::parse(bytes) {
                assert!(is_host_name(&host.name));
                let again = host.port.map_or(host.name.clone(), |port| format!("{}:{port}", host.name));
                assert_eq!(Host::parse(again.as_bytes()), Some(host));
            }
        });
    }
}
