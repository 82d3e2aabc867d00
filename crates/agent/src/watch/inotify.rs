//! Parses the kernel's inotify records.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Raw<'a> {
    pub(super) watch: i32,
    pub(super) cookie: u32,
    pub(super) name: &'a [u8],
    mask: u32,
}

impl Raw<'_> {
    pub(super) fn has(&self, bits: u32) -> bool {
        self.mask & bits != 0
    }
}

const HEAD: usize = 16;

/// All complete records of a buffer.
pub(super) fn parse(buffer: &[u8]) -> impl Iterator<Item = Raw<'_>> {
    let mut rest = buffer;
    std::iter::from_fn(move || {
        let word = |at: usize| rest.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let (watch, mask, cookie, len) = (word(0)?, word(4)?, word(8)?, usize::try_from(word(12)?).ok()?);
        let padded = rest.get(HEAD..HEAD.checked_add(len)?)?;
        rest = &rest[HEAD + len..];
        let end = padded.iter().position(|b| *b == 0).unwrap_or(padded.len());
        Some(Raw { watch: watch.cast_signed(), mask, cookie, name: &padded[..end] })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(watch: i32, mask: u32, name: &[u8]) -> Vec<u8> {
        let padded = name.len() + 16 - name.len() % 16;
        let mut bytes = Vec::new();
        bytes.extend(watch.to_ne_bytes());
        bytes.extend(mask.to_ne_bytes());
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(u32::try_from(padded).unwrap_or(0).to_ne_bytes());
        bytes.extend(name);
        bytes.resize(HEAD + padded, 0);
        bytes
    }

    #[test]
    fn records_come_out_in_order_with_their_names() {
        let buffer =
            [record(1, libc::IN_CREATE, b"a"), record(2, libc::IN_DELETE, b"longer-name-than-16")].concat();
        let seen: Vec<_> = parse(&buffer).map(|raw| (raw.watch, raw.name.to_vec())).collect();
        assert_eq!(seen, [(1, b"a".to_vec()), (2, b"longer-name-than-16".to_vec())]);
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse(&bytes).count() <= bytes.len() / HEAD);
        }
    }
}
