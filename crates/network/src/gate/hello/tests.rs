//! TLS hellos: complete, in pieces, invalid and hostile.

#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap();
    [&kind.to_be_bytes()[..], &len.to_be_bytes(), body].concat()
}

fn sni(name: &[u8]) -> Vec<u8> {
    let len = u16::try_from(name.len()).unwrap();
    extension(0, &[&(len + 3).to_be_bytes()[..], &[0], &len.to_be_bytes(), name].concat())
}

/// A handshake message with these extensions.
fn message(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 4, 0x1a, 0x1a, 0x13, 0x01, 1, 0]);
    body.extend_from_slice(&u16::try_from(extensions.len()).unwrap().to_be_bytes());
    body.extend_from_slice(extensions);
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[1, len[1], len[2], len[3]][..], &body].concat()
}

fn records(message: &[u8], size: usize) -> Vec<u8> {
    let record =
        |part: &[u8]| [&[22, 3, 1][..], &u16::try_from(part.len()).unwrap().to_be_bytes(), part].concat();
    message.chunks(size).flat_map(record).collect()
}

fn parse_all(extensions: &[u8]) -> Parsed<Option<Hello>> {
    Hello::parse(&records(&message(extensions), 1 << 14))
}

/// The hello of a real client of this workspace.
fn real_hello(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = name.to_owned().try_into().unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_real_hello_is_read_however_it_is_cut() {
    let real = real_hello("API.Example.com");
    let hello = Hello::parse(&real).unwrap().unwrap();
    assert_eq!((hello.name.as_deref(), hello.hides, hello.end), (Some("api.example.com"), false, real.len()));
    for cut in 0..real.len() {
        assert_eq!(Hello::parse(&real[..cut]), Ok(None), "cut at {cut}");
    }
    let again = records(&real[5..], real.len() / 7);
    assert_eq!(Hello::parse(&again).unwrap().unwrap().name.as_deref(), Some("api.example.com"));
}

#[test]
fn what_follows_in_the_next_record_is_left_alone() {
    let mut bytes = real_hello("example.com");
    let end = bytes.len();
    bytes.extend_from_slice(&[20, 3, 3, 0, 1, 1]);
    assert_eq!(Hello::parse(&bytes).unwrap().unwrap().end, end);
}

#[test]
fn a_hidden_name_is_seen_and_grease_is_not_one() {
    for kind in HIDDEN {
        let hello = parse_all(&[sni(b"example.com"), extension(kind, &[1, 2, 3])].concat());
        assert!(hello.unwrap().unwrap().hides, "{kind:x}");
    }
    let grease = [extension(0x0a0a, &[]), sni(b"example.com"), extension(0xfafa, &[0])].concat();
    assert!(!parse_all(&grease).unwrap().unwrap().hides);
}

#[test]
fn a_hello_without_a_name_says_so() {
    assert_eq!(parse_all(&extension(10, &[0, 0])).unwrap().unwrap().name, None);
}

#[test]
fn what_could_be_read_in_two_ways_is_refused() {
    let two_names = extension(0, b"\x00\x0e\x00\x00\x04a.co\x00\x00\x04b.co");
    let other_kind = extension(0, b"\x00\x07\x01\x00\x04a.co");
    let loose_list = extension(0, b"\x00\x07\x00\x00\x04a.co!");
    for bad in [
        [sni(b"a.co"), sni(b"b.co")].concat(),
        two_names,
        other_kind,
        loose_list,
        extension(0, b""),
        sni(b""),
        sni(b"1.2.3.4"),
        sni(b"::1"),
        sni(b"example.com."),
        sni(b"exa\0mple.com"),
        sni(b"exa\xffmple.com"),
        sni(b"*.example.com"),
        sni(&[b'a'; 300]),
        [sni(b"a.co"), vec![0]].concat(),
    ] {
        assert!(parse_all(&bad).is_err(), "{bad:02x?}");
    }
}

#[test]
fn odd_records_are_refused() {
    let good = records(&message(&sni(b"example.com")), 1 << 14);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let trailing = records(&[message(&sni(b"example.com")), vec![1]].concat(), 1 << 14);
    let crumbs = records(&message(&sni(b"example.com")), 1);
    let empty_first = [&[22, 3, 1, 0, 0][..], &good].concat();
    let interleaved = [&records(&message(&sni(b"a.co"))[..10], 10)[..], &[20, 3, 3, 0, 1, 1]].concat();
    for bad in [
        with(0, 23),
        with(1, 2),
        with(2, 9),
        with(3, 0xff),
        with(5, 2),
        with(6, 1),
        with(9, 2),
        trailing,
        crumbs,
        empty_first,
        interleaved,
        b"GET / HTTP/1.1\r\n".to_vec(),
        b"\x80\x2e\x01\x00\x02".to_vec(),
    ] {
        assert!(Hello::parse(&bad).is_err(), "{:02x?}", &bad[..bad.len().min(24)]);
    }
}

#[test]
fn a_hello_that_never_ends_is_refused() {
    let endless = records(&[&[1, 0, 0x5f, 0][..], &[0; LONGEST]].concat(), 1 << 14);
    assert!(Hello::parse(&endless).is_err());
    let announced = [22, 3, 1, 0x40, 0, 1, 0xff, 0, 0];
    assert!(Hello::parse(&announced).is_err());
}

/// Lines of `expectation hex`: `name NAME`, `none`, `hides NAME`, `more` or `bad`.
#[test]
fn the_corpus_is_read_as_it_says() {
    for line in include_str!("../../../tests/corpus/hellos.txt").lines().filter(|line| !line.starts_with('#'))
    {
        let (hex, expected) = line.split_once(' ').unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let found = match Hello::parse(&bytes) {
            Ok(Some(Hello { name: Some(name), hides: true, .. })) => format!("hides {name}"),
            Ok(Some(Hello { name: Some(name), .. })) => format!("name {name}"),
            Ok(Some(_)) => "none".to_owned(),
            Ok(None) => "more".to_owned(),
            Err(_) => "bad".to_owned(),
        };
        assert_eq!(found, expected, "{hex}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Hello::parse(&bytes);
        let _ = Hello::parse(&records(&[&[1, 0, 2, 0][..], &bytes].concat(), 200));
        let _ = read_extensions(Bytes(&bytes));
    }

    #[test]
    fn a_changed_byte_never_makes_a_name_that_is_none(at in 0usize..600, byte: u8) {
        let mut bytes = real_hello("example.com");
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(Some(hello)) = Hello::parse(&bytes) {
            prop_assert!(hello.name.is_none_or(|name| is_host_name(&name)));
            prop_assert!(hello.end <= bytes.len());
        }
    }

    #[test]
    fn cutting_into_records_changes_nothing(size in 12usize..400, name in "[a-z]{1,20}\\.[a-z]{2,10}") {
        let message = message(&[extension(0xbaba, &[]), sni(name.as_bytes())].concat());
        let hello = Hello::parse(&records(&message, size)).unwrap().unwrap();
        prop_assert_eq!(hello.name, Some(name));
    }
}

#[test]
fn any_first_message_is_read_to_its_end_or_refused() {
    atoll_robustness::check("tls_client_hello", |bytes| {
        assert!(whole_records(bytes) <= bytes.len());
        if let Ok(Some(hello)) = Hello::parse(bytes) {
            assert!(hello.name.as_deref().is_none_or(is_host_name));
            assert_eq!(Hello::parse(&bytes[..hello.end]), Ok(Some(hello)));
        }
    });
}
