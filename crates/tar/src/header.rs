//! One block of 512 bytes: fields, numbers, the checksum. [`Header`] reads it, [`HeaderFields`] writes it.

use super::BLOCK;

/// The dialect of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Without a magic number.
    Old,
    Ustar,
    Gnu,
}

/// A header with a correct checksum.
#[derive(Debug, Clone, Copy)]
pub struct Header<'a>(&'a [u8; BLOCK]);

impl<'a> Header<'a> {
    /// `None`: the checksum is wrong, so this is not a header.
    pub fn new(block: &'a [u8; BLOCK]) -> Option<Self> {
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

    pub fn dialect(&self) -> Dialect {
        match &self.0[257..265] {
            b"ustar  \0" => Dialect::Gnu,
            magic if magic.starts_with(b"ustar\0") => Dialect::Ustar,
            _ => Dialect::Old,
        }
    }

    /// The byte with the type of the entry.
    pub fn kind(&self) -> u8 {
        self.0[156]
    }

    /// Major and minor number of a device.
    pub fn device(&self) -> Option<(u64, u64)> {
        Some((number(&self.0[329..337])?, number(&self.0[337..345])?))
    }

    /// The name, with its prefix if the dialect has one.
    pub fn name(&self, into: &mut Vec<u8>) {
        into.clear();
        if self.dialect() == Dialect::Ustar {
            let prefix = text(&self.0[345..500]);
            if !prefix.is_empty() {
                into.extend_from_slice(prefix);
                into.push(b'/');
            }
        }
        into.extend_from_slice(self.name_field());
    }

    /// The name without its prefix.
    pub fn name_field(&self) -> &'a [u8] {
        text(&self.0[..NAME_ROOM])
    }

    pub fn link(&self) -> &'a [u8] {
        text(&self.0[157..257])
    }

    pub fn mode(&self) -> Option<u64> {
        number(&self.0[100..108])
    }

    pub fn uid(&self) -> Option<u64> {
        number(&self.0[108..116])
    }

    pub fn gid(&self) -> Option<u64> {
        number(&self.0[116..124])
    }

    pub fn size(&self) -> Option<u64> {
        number(&self.0[124..136])
    }

    pub fn mtime(&self) -> Option<i64> {
        signed(&self.0[136..148])
    }

    /// GNU's sparse file: its first four pieces, whether more follow, and its real size.
    pub fn sparse(&self) -> Option<(&'a [u8], bool, u64)> {
        Some((&self.0[386..482], self.0[482] != 0, number(&self.0[483..495])?))
    }
}

/// Bytes up to the first NUL.
pub fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// A non-negative number: octal digits, or GNU's base 256.
pub fn number(field: &[u8]) -> Option<u64> {
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
        // The first byte of a negative number is its sign, which the start value already contains.
        if at == 0 && negative {
            number = i64::from(byte.cast_signed());
        }
    }
    Some(number)
}

/// Octal digits with surrounding blanks; an empty field is zero.
fn octal(field: &[u8]) -> Option<u64> {
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0_u64, |sum, &byte| match byte {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// The form of the checksum in [`HeaderFields::block`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ChecksumForm {
    /// Six digits, a NUL and a blank, as in POSIX.
    #[default]
    SixDigits,
    /// Seven digits and a NUL.
    SevenDigits,
}

/// The fields of a ustar header. A name or link that is too long is cut, a number that is too large gets GNU's form;
/// the caller writes PAX records if that is not enough.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeaderFields<'a> {
    pub kind: u8,
    pub name: &'a [u8],
    pub link: &'a [u8],
    /// Permissions; other bits are dropped.
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    pub size: u64,
    pub mtime: u64,
    /// `None`: the fields stay empty.
    pub device: Option<(u32, u32)>,
    pub checksum: ChecksumForm,
}

impl HeaderFields<'_> {
    #[must_use]
    pub fn block(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        put_text(&mut block[..NAME_ROOM], self.name);
        put_number(&mut block[100..108], u64::from(self.mode & 0o7777));
        put_number(&mut block[108..116], self.uid);
        put_number(&mut block[116..124], self.gid);
        put_number(&mut block[124..136], self.size);
        put_number(&mut block[136..148], self.mtime);
        block[156] = self.kind;
        put_text(&mut block[157..257], self.link);
        block[257..265].copy_from_slice(b"ustar\x0000");
        if let Some((major, minor)) = self.device {
            put_number(&mut block[329..337], u64::from(major));
            put_number(&mut block[337..345], u64::from(minor));
        }
        block[148..156].fill(b' ');
        let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
        let end = if self.checksum == ChecksumForm::SixDigits { 155 } else { 156 };
        put_number(&mut block[148..end], sum);
        block
    }
}

/// The maximal length of a name or link in a header.
pub const NAME_ROOM: usize = 100;

fn put_text(field: &mut [u8], text: &[u8]) {
    let some = text.len().min(field.len());
    field[..some].copy_from_slice(&text[..some]);
}

/// Octal digits with leading zeros and a trailing NUL; larger numbers in base 256.
fn put_number(field: &mut [u8], mut number: u64) {
    let last = field.len() - 1;
    let is_octal = number >> (3 * last) == 0;
    let (digits, bits) = if is_octal { (last, 3) } else { (field.len(), 8) };
    for digit in field[..digits].iter_mut().rev() {
        let value = u8::try_from(number & ((1 << bits) - 1)).unwrap_or(0);
        *digit = if is_octal { b'0' + value } else { value };
        number = number.checked_shr(bits).unwrap_or(0);
    }
    if is_octal {
        field[last] = 0;
    } else {
        field[0] |= 0x80;
    }
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

    #[test]
    fn headers_are_those_of_another_writer() {
        for size in [0, 5, 0o777_7777_7777, 0o1_0000_0000_0000, u64::MAX >> 1] {
            let mut theirs = tar::Header::new_ustar();
            theirs.set_entry_type(tar::EntryType::Regular);
            theirs.as_old_mut().name[..4].copy_from_slice(b"a/b\xff");
            theirs.set_mode(0o4755);
            theirs.set_uid(65_535);
            theirs.set_gid(7);
            theirs.set_size(size);
            theirs.set_mtime(1_700_000_000);
            theirs.set_device_major(0).expect("it fits");
            theirs.set_device_minor(3).expect("it fits");
            theirs.set_cksum();
            let fields = HeaderFields {
                kind: b'0',
                name: b"a/b\xff",
                mode: 0o4755,
                uid: 65_535,
                gid: 7,
                size,
                mtime: 1_700_000_000,
                device: Some((0, 3)),
                checksum: ChecksumForm::SevenDigits,
                ..HeaderFields::default()
            };
            let block = fields.block();
            assert_eq!(block.as_slice(), theirs.as_bytes().as_slice(), "{size}");
            let read = Header::new(&block).expect("a header");
            assert_eq!(
                (read.size(), read.device(), read.dialect()),
                (Some(size), Some((0, 3)), Dialect::Ustar)
            );
            let usual = HeaderFields { checksum: ChecksumForm::SixDigits, ..fields }.block();
            assert_eq!(Header::new(&usual).and_then(|header| header.uid()), Some(65_535));
        }
    }
}
