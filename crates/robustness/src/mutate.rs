//! Mutations of corpus entries: flips, cuts, copies, splices, and boundary values of integers.

/// The maximal length of an input.
const LONGEST: usize = 64 << 10;

/// Bytes that separate, quote, escape or end something in the parsed formats.
const MARKS: &[u8] = b"\0\x01\t\n\r \"#$%&'()*+,-./09:;<=>?@[\\]^_`{|}~\x7f\x80\xbf\xc0\xc3\xe2\xef\xf0\xff";

/// Texts that are boundary numbers, or that start a syntax element.
const WORDS: &[&[u8]] = &[
    b"0",
    b"-1",
    b"127",
    b"256",
    b"65535",
    b"65536",
    b"2147483648",
    b"4294967296",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"99999999999999999999999999999999",
    b"1e308",
    b"../",
    b"/./",
    b"//",
    b"**",
    b"\r\n\r\n",
    b"\r\n",
    b"\n\n",
    b"null",
    b"{}",
    b"[]",
    b"[[[[[[[[[[[[[[[[",
    b"\"\"",
    b"\\u0000",
    b"\\ud800",
    b"%00",
    b"%2f",
    b"%",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xae",
    b"\xf0\x9f\x92\xa9",
    b"\xff\xfe",
];

const INTEGERS: &[u64] = &[
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_ffff,
];

/// SplitMix64: small, good enough for tests, and the same on every platform.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 1).unwrap_or_default() % end.max(1)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A range of `len` bytes, usually short.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let begin = self.below(len + 1);
        let most = if self.below(4) == 0 { len - begin } else { (len - begin).min(16) };
        begin..begin + self.below(most + 1)
    }
}

/// One entry of the corpus with one to six changes.
pub(crate) fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(6) {
        change(&mut bytes, corpus, random);
        bytes.truncate(LONGEST);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Random) {
    let range = random.range(bytes.len());
    match random.below(12) {
        0 => flip(bytes, random),
        1 => overwrite(bytes, &[random.one_of(MARKS)], random),
        2 => {
            let value = random.one_of(INTEGERS);
            let width = random.one_of(&[1, 2, 3, 4, 8]);
            let big = value.to_be_bytes();
            let little = value.to_le_bytes();
            let field = if random.below(2) == 0 { &big[8 - width..] } else { &little[..width] };
            overwrite(bytes, field, random);
        }
        3 => drop(bytes.drain(range)),
        4 => bytes.truncate(range.start),
        5 => {
            let copy = bytes[range].to_vec();
            insert(bytes, &copy, random);
        }
        6 => {
            let copy = bytes[range].repeat(1 << random.below(10));
            insert(bytes, &copy[..copy.len().min(LONGEST)], random);
        }
        7 => {
            let word = random.one_of(WORDS);
            insert(bytes, word, random);
        }
        8 => insert(bytes, &[random.one_of(MARKS)], random),
        9 => replace_number(bytes, random),
        10 => {
            let other = &corpus[random.below(corpus.len())];
            let piece = other[random.range(other.len())].to_vec();
            insert(bytes, &piece, random);
        }
        _ => {
            let other = &corpus[random.below(corpus.len())];
            bytes.truncate(range.start);
            bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
    }
}

fn flip(bytes: &mut [u8], random: &mut Random) {
    if !bytes.is_empty() {
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
    }
}

fn overwrite(bytes: &mut [u8], with: &[u8], random: &mut Random) {
    let at = random.below(bytes.len());
    for (byte, new) in bytes.iter_mut().skip(at).zip(with) {
        *byte = *new;
    }
}

fn insert(bytes: &mut Vec<u8>, piece: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    bytes.splice(at..at, piece.iter().copied());
}

/// Replaces a number in the text by a boundary value.
fn replace_number(bytes: &mut Vec<u8>, random: &mut Random) {
    let from = random.below(bytes.len());
    let Some(begin) = bytes.iter().skip(from).position(u8::is_ascii_digit).map(|at| at + from) else {
        return;
    };
    let len = bytes[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let word = random.one_of(&WORDS[..14]);
    bytes.splice(begin..begin + len, word.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs() {
        let corpus = [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0, 1, 2, 3]];
        let make =
            |seed: u64| (0..64).map(|n| mutate(&corpus, &mut Random::new(seed + n))).collect::<Vec<_>>();
        assert_eq!(make(7), make(7));
        assert_ne!(make(7), make(1007));
    }

    #[test]
    fn inputs_differ_and_stay_short() {
        let corpus = [b"a: 1\n".to_vec()];
        let made: std::collections::BTreeSet<_> =
            (0..2000).map(|seed| mutate(&corpus, &mut Random::new(seed))).collect();
        assert!(made.len() > 1000, "only {} different inputs", made.len());
        assert!(made.iter().all(|bytes| bytes.len() <= LONGEST));
    }

    #[test]
    fn an_empty_entry_can_be_changed() {
        for seed in 0..2000 {
            mutate(&[Vec::new()], &mut Random::new(seed));
        }
    }
}
