//! One block of 512 bytes: fields, numbers, the checksum.

use super::BLOCK;

/// Which dialect a header speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Before there was a magic.
    Old,
    Ustar,
    Gnu,
}

/// A header with a right checksum.
pub(super) struct Header<'a>(&'a [u8; BLOCK]);

impl<'a> Header<'a> {
    /// `None`: the checksum says that this is no header.
    pub(super) fn new(block: &'a [u8; BLOCK]) -> Option<Self> {
        let noted = octal(&block[148..156])?;
        let (mut unsigned, mut signed) = (0_u64, 0_i64);
        for (at, &byte) in block.iter().enumerate() {
            let byte = if (148..156).contains(&at) { b' ' } else { byte };
            unsigned += u64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        // Some old programs summed signed bytes.
        let right = noted == unsigned || i64::try_from(noted).is_ok_and(|noted| noted == signed);
        right.then_some(Self(block))
    }

    pub(super) fn dialect(&self) -> Dialect {
        match &self.0[257..265] {
            b"ustar  \0" => Dialect::Gnu,
            magic if magic.starts_with(b"ustar\0") => Dialect::Ustar,
            _ => Dialect::Old,
        }
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[156]
    }

    /// The name, with its prefix where the dialect has one.
    pub(super) fn name(&self, into: &mut Vec<u8>) {
        into.clear();
        if self.dialect() == Dialect::Ustar {
            let prefix = text(&self.0[345..500]);
            if !prefix.is_empty() {
                into.extend_from_slice(prefix);
                into.push(b'/');
            }
        }
        into.extend_from_slice(text(&self.0[..100]));
    }

    pub(super) fn link(&self) -> &'a [u8] {
        text(&self.0[157..257])
    }

    pub(super) fn mode(&self) -> Option<u64> {
        number(&self.0[100..108])
    }

    pub(super) fn uid(&self) -> Option<u64> {
        number(&self.0[108..116])
    }

    pub(super) fn gid(&self) -> Option<u64> {
        number(&self.0[116..124])
    }

    pub(super) fn size(&self) -> Option<u64> {
        number(&self.0[124..136])
    }

    pub(super) fn mtime(&self) -> Option<i64> {
        signed(&self.0[136..148])
    }

    /// GNU's sparse file: its first four pieces, whether more follow, and its real size.
    pub(super) fn sparse(&self) -> Option<(&'a [u8], bool, u64)> {
        Some((&self.0[386..482], self.0[482] != 0, number(&self.0[483..495])?))
    }
}

/// Bytes up to the first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// A number that cannot be negative: octal digits, or GNU's base 256.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    signed(field).and_then(|number| u64::try_from(number).ok())
}

fn signed(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 == 0 {
        return octal(field).and_then(|number| i64::try_from(number).ok());
    }
    // Two's complement, most significant byte first; the top bit only marks the form.
    let negative = first & 0x40 != 0;
    let mut number: i64 = if negative { -1 } else { 0 };
    for (at, &byte) in field.iter().enumerate() {
        let byte = match (at, negative) {
            (0, true) => byte | 0x80,
            (0, false) => byte & 0x7f,
            _ => byte,
        };
        number = number.checked_mul(256)?.checked_add(i64::from(byte))?;
        // The first byte of a negative number is its sign, which the start value already holds.
        if at == 0 && negative {
            number = i64::from(byte.cast_signed());
        }
    }
    Some(number)
}

/// Octal digits with blanks around them; nothing at all is zero.
fn octal(field: &[u8]) -> Option<u64> {
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0_u64, |sum, &byte| match byte {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_both_forms() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"0000648\0"), None);
        assert_eq!(number(b"-0000001"), None);
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 1, 2]), Some(258));
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]), Some(8 << 30));
        assert_eq!(number(&[0xff; 12]), None, "sizes are not negative");
        assert_eq!(signed(&[0xff; 12]), Some(-1));
        assert_eq!(
            signed(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]),
            Some(-2)
        );
        let mut huge = [0x7f_u8; 12];
        huge[0] = 0xbf;
        assert_eq!(number(&huge), None, "more than 63 bits");
        assert_eq!(octal(b"7777777777777777777777777"), None);
    }
}
