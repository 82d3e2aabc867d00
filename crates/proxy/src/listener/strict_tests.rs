//! Accepted and refused input, independent of how the bytes are split.

use proptest::prelude::*;

use super::*;

/// Tracks bytes split at every `step`; returns the position of the first forbidden one.
fn follow(text: &[u8], step: usize) -> (Result<(), usize>, ParserPosition) {
    let mut framing = Framing::default();
    for (n, piece) in text.chunks(step.max(1)).enumerate() {
        if let Err(at) = framing.follow(piece) {
            return (Err(n * step.max(1) + at), ParserPosition::Refused);
        }
    }
    (Ok(()), framing.at)
}

#[test]
fn plain_requests_pass_one_after_the_other() {
    for text in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        "POST /x HTTP/1.1\r\nHost: a\r\ncontent-length:  0 \r\n\r\n",
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
        "GET /x HTTP/1.1\r\nUpgrade: h2c\r\n\r\n",
    ] {
        let twice = format!("{text}\r\n{text}");
        for step in 1..twice.len() {
            assert_eq!(
                follow(twice.as_bytes(), step),
                (Ok(()), ParserPosition::RequestLine),
                "{text:?} by {step}"
            );
        }
    }
}

#[test]
fn after_an_upgrade_everything_passes() {
    for head in
        ["GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n"]
    {
        assert_eq!(follow(format!("{head}\n\n\0anything").as_bytes(), 7), (Ok(()), ParserPosition::Opaque));
    }
}

#[test]
fn what_can_be_read_in_two_ways_does_not_pass() {
    let post = "POST / HTTP/1.1\r\nHost: a\r\n";
    let chunked = format!("{post}Transfer-Encoding: chunked\r\n\r\n");
    let cases = [
        format!("{post}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"),
        format!("{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\n"),
        format!("{post}Content-Length: 5\r\nContent-Length: 5\r\n\r\n"),
        format!("{post}Content-Length: 5, 5\r\n\r\n"),
        format!("{post}Content-Length: +5\r\n\r\n"),
        format!("{post}Content-Length: -1\r\n\r\n"),
        format!("{post}Content-Length: 0x5\r\n\r\n"),
        format!("{post}Content-Length: 5 5\r\n\r\n"),
        format!("{post}Content-Length:\r\n\r\n"),
        format!("{post}Content-Length: 99999999999999999999\r\n\r\n"),
        format!("{post}Transfer-Encoding: xchunked\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n"),
        format!("{post}Transfer-Encoding: identity, chunked\r\n\r\n"),
        format!("{post}Transfer-Encoding: identity\r\n\r\n"),
        format!("{post}Transfer-Encoding: \x0bchunked\r\n\r\n"),
        format!("{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
        format!("{post}Transfer-Encoding:\r\n chunked\r\n\r\n"),
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
        format!("{post}Content-Length : 5\r\n\r\n"),
        format!("{post}Content-Length\t: 5\r\n\r\n"),
        format!("{post} Content-Length: 5\r\n\r\n"),
        format!("{post}X: a\r\n b\r\n\r\n"),
        format!("{post}X: a\r\n\tb\r\n\r\n"),
        format!("{post}: a\r\n\r\n"),
        format!("{post}no colon\r\n\r\n"),
        "GET / HTTP/1.1\nHost: a\n\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\n\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n".to_owned(),
        "GET  / HTTP/1.1\r\n\r\n".to_owned(),
        "GET /a b HTTP/1.1\r\n\r\n".to_owned(),
        "GET / HTTP/2.0\r\n\r\n".to_owned(),
        "GET /\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\n".to_owned(),
        "\nGET / HTTP/1.1\r\n\r\n".to_owned(),
        format!("{chunked}5\nhello\r\n"),
        format!("{chunked}5\r\nhello\n0\r\n\r\n"),
        format!("{chunked}5\r\nhelloXX0\r\n\r\n"),
        format!("{chunked}0x5\r\nhello\r\n"),
        format!("{chunked} 5\r\nhello\r\n"),
        format!("{chunked}5 \r\nhello\r\n"),
        format!("{chunked}-1\r\n"),
        format!("{chunked}\r\n"),
        format!("{chunked}11111111111111111\r\n"),
        format!("{chunked}5;a\nb\r\nhello\r\n"),
        format!("{chunked}5;{}\r\nhello\r\n", "a".repeat(CHUNK_LINE_MAX)),
        format!("{chunked}0\r\nContent-Length: 5\r\n\r\n"),
        format!("{chunked}0\r\nX: a\n\r\n"),
    ];
    for text in cases {
        // Bytes after it never count, wherever the input is split, and the head never ends.
        let whole = format!("{text}GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n");
        let (first, _) = follow(whole.as_bytes(), whole.len());
        let at = first.expect_err(&text);
        assert!(at < text.len(), "{text:?} passes until {at}");
        for step in [1, 2, 3, 16] {
            assert_eq!(follow(whole.as_bytes(), step).0, Err(at), "{text:?} by {step}");
        }
    }
}

#[tokio::test]
async fn the_reader_gets_all_before_it_and_then_a_nul_and_the_end() {
    use tokio::io::AsyncReadExt;
    let text = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\nHost: a\r\n\r\n";
    let budget = atoll_budget::Budget::default();
    let meter = HeadMeter::new(&budget.account(atoll_budget::BudgetOwner::Stranger(None)));
    let mut strict = Strict::new(&text[10..], Bytes::from_static(&text[..10]), meter);
    let mut read = Vec::new();
    strict.read_to_end(&mut read).await.expect("memory");
    assert_eq!(read, b"GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\0");
}

proptest! {
    #[test]
    fn any_bytes_are_followed_and_cuts_change_nothing(
        text in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b':'), Just(b'5'), any::<u8>()], 0..200),
        head in any::<bool>(),
        step in 1usize..9,
    ) {
        let mut whole = if head { b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec() } else { Vec::new() };
        whole.extend(text);
        prop_assert_eq!(follow(&whole, step), follow(&whole, whole.len()));
    }

    #[test]
    fn the_parser_behind_never_sees_a_whole_head_that_this_refuses(
        fields in prop::collection::vec("[A-Za-z-]{1,18}[ \t]?:[ \t]?[ -~]{0,12}(\r\n|\n|\r)", 0..6)
    ) {
        let text = format!("POST / HTTP/1.1\r\n{}\r\n", fields.concat());
        if let (Err(at), _) = follow(text.as_bytes(), text.len()) {
            let mut seen = text.as_bytes()[..at].to_vec();
            seen.push(POISON);
            let mut fields = [httparse::EMPTY_HEADER; 16];
            prop_assert!(!matches!(httparse::Request::new(&mut fields).parse(&seen), Ok(httparse::Status::Complete(_))));
        }
    }
}

#[test]
fn any_connection_is_followed_the_same_however_it_is_cut() {
    atoll_robustness::check("http1_framing", |bytes| {
        let whole = follow(bytes, bytes.len());
        assert_eq!(follow(bytes, 7), whole);
        if let (Err(at), _) = whole {
            let seen = [&bytes[..at], &[POISON]].concat();
            let begin = seen.windows(4).rposition(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
            let mut fields = [httparse::EMPTY_HEADER; 64];
            let parsed = httparse::Request::new(&mut fields).parse(&seen[begin..]);
            assert!(!matches!(parsed, Ok(httparse::Status::Complete(_))), "a head that was refused is whole");
        }
    });
}
