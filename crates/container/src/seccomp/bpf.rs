//! Compiles the table to a classic BPF program: call numbers with equal verdicts form intervals, and the program
//! searches them.

use std::sync::OnceLock;

use super::table::{
    self, BTRFS, CLONES, DRIVER, FAMILIES, MAKES_FILE, NAMESPACE_FLAGS, NETLINK, NETLINK_ROUTE, NEWEST,
    PERSONAS, SPECIAL_BITS, TERMINAL_INPUT,
};
use super::{Check, Clones, FilterVariant, SpecialBits, SyscallVerdict};

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const fn errno(number: i32) -> u32 {
    0x0005_0000 | number as u32
}
const REFUSE: u32 = errno(libc::EPERM);
const UNKNOWN: u32 = errno(libc::ENOSYS);
const NO_FAMILY: u32 = errno(libc::EAFNOSUPPORT);
/// The error of a file system that does not know the request, so that programs fall back.
const NO_REQUEST: u32 = errno(libc::ENOTTY);

/// The filter of every sandbox, compiled once for each variant.
pub(crate) fn compile(variant: FilterVariant) -> &'static [libc::sock_filter] {
    static PROGRAMS: [OnceLock<Vec<libc::sock_filter>>; 4] = [const { OnceLock::new() }; 4];
    let index = match (variant.clones, variant.special_bits) {
        (Clones::Allowed, SpecialBits::Allowed) => 0,
        (Clones::Allowed, SpecialBits::Refused) => 1,
        (Clones::Refused, SpecialBits::Allowed) => 2,
        (Clones::Refused, SpecialBits::Refused) => 3,
    };
    PROGRAMS[index].get_or_init(|| {
        let mut program = vec![
            op(LOAD, OFFSET_ARCH, 0, 0),
            op(JUMP_EQUAL, AUDIT_ARCH_X86_64, 1, 0),
            op(RETURN, KILL, 0, 0),
            op(LOAD, OFFSET_NUMBER, 0, 0),
        ];
        program.extend(search(&intervals(), variant));
        program
    })
}

/// The first number of each interval with equal verdicts.
fn intervals() -> Vec<(u32, SyscallVerdict)> {
    let mut runs: Vec<(u32, SyscallVerdict)> = Vec::new();
    // The number after the newest stands for all higher numbers, including those of x32.
    for number in 0..=NEWEST + 1 {
        let verdict = table::verdict(number);
        if runs.last().is_none_or(|run| run.1 != verdict) {
            runs.push((number, verdict));
        }
    }
    runs
}

fn search(runs: &[(u32, SyscallVerdict)], variant: FilterVariant) -> Vec<libc::sock_filter> {
    if let [(_, verdict)] = runs {
        return leaf(*verdict, variant);
    }
    let (low, high) = runs.split_at(runs.len() / 2);
    let (below, above) = (search(low, variant), search(high, variant));
    let mut program = Vec::with_capacity(below.len() + above.len() + 2);
    match u8::try_from(below.len()) {
        Ok(over) => program.push(op(JUMP_AT_LEAST, high[0].0, over, 0)),
        Err(_) => {
            // A conditional jump reaches only 255 instructions.
            let over = u32::try_from(below.len()).expect("a filter has a few hundred instructions");
            program.extend([op(JUMP_AT_LEAST, high[0].0, 0, 1), op(JUMP, over, 0, 0)]);
        }
    }
    program.extend(below);
    program.extend(above);
    program
}

fn leaf(verdict: SyscallVerdict, variant: FilterVariant) -> Vec<libc::sock_filter> {
    match verdict {
        SyscallVerdict::Allow => answer(ALLOW),
        SyscallVerdict::Refuse => answer(REFUSE),
        SyscallVerdict::Unknown => answer(UNKNOWN),
        SyscallVerdict::Depends(check) => checked(check, variant),
    }
}

fn checked(check: Check, variant: FilterVariant) -> Vec<libc::sock_filter> {
    match check {
        Check::NoNamespaces => vec![
            op(LOAD, argument(0), 0, 0),
            op(JUMP_ANY_BIT, NAMESPACE_FLAGS, 0, 1),
            op(RETURN, REFUSE, 0, 0),
            op(RETURN, ALLOW, 0, 0),
        ],
        Check::HarmlessPersona => one_of(0, &PERSONAS, ALLOW, REFUSE),
        Check::HarmlessRequest => request(variant.clones),
        Check::Copy if variant.clones == Clones::Refused => answer(UNKNOWN),
        Check::PlainSocket => socket(),
        Check::PlainMode { mode } if variant.special_bits == SpecialBits::Refused => plain_mode(mode),
        Check::PlainModeIfNew { flags } if variant.special_bits == SpecialBits::Refused => {
            let mut program = vec![
                op(LOAD, argument(flags), 0, 0),
                op(JUMP_ANY_BIT, MAKES_FILE, 1, 0),
                op(RETURN, ALLOW, 0, 0),
            ];
            program.extend(plain_mode(flags + 1));
            program
        }
        Check::HiddenMode if variant.special_bits == SpecialBits::Refused => answer(UNKNOWN),
        Check::Copy | Check::PlainMode { .. } | Check::PlainModeIfNew { .. } | Check::HiddenMode => {
            answer(ALLOW)
        }
    }
}

fn answer(verdict: u32) -> Vec<libc::sock_filter> {
    vec![op(RETURN, verdict, 0, 0)]
}

fn plain_mode(index: u32) -> Vec<libc::sock_filter> {
    vec![
        op(LOAD, argument(index), 0, 0),
        op(JUMP_ANY_BIT, SPECIAL_BITS, 0, 1),
        op(RETURN, REFUSE, 0, 0),
        op(RETURN, ALLOW, 0, 0),
    ]
}

/// The offset of an argument's low half. The kernel takes these arguments as 32-bit numbers, so the low half decides.
const fn argument(index: u32) -> u32 {
    16 + index * 8
}

fn one_of(index: u32, values: &[u32], yes: u32, no: u32) -> Vec<libc::sock_filter> {
    let mut program = vec![op(LOAD, argument(index), 0, 0)];
    for (position, value) in values.iter().enumerate() {
        let over = u8::try_from(values.len() - position).expect("a handful of values");
        program.push(op(JUMP_EQUAL, *value, over, 0));
    }
    program.extend([op(RETURN, no, 0, 0), op(RETURN, yes, 0, 0)]);
    program
}

fn request(clones: Clones) -> Vec<libc::sock_filter> {
    let allowed = if clones == Clones::Allowed { &CLONES[..] } else { &[] };
    let mut program = vec![op(LOAD, argument(1), 0, 0)];
    for (values, answer) in [(&TERMINAL_INPUT[..], REFUSE), (allowed, ALLOW)] {
        for value in values {
            program.extend([op(JUMP_EQUAL, *value, 0, 1), op(RETURN, answer, 0, 0)]);
        }
    }
    program.extend([
        op(AND, DRIVER, 0, 0),
        op(JUMP_EQUAL, BTRFS, 0, 1),
        op(RETURN, NO_REQUEST, 0, 0),
        op(RETURN, ALLOW, 0, 0),
    ]);
    program
}

fn socket() -> Vec<libc::sock_filter> {
    let [unix, inet, inet6] = FAMILIES;
    vec![
        op(LOAD, argument(0), 0, 0),
        op(JUMP_EQUAL, unix, 6, 0),
        op(JUMP_EQUAL, inet, 5, 0),
        op(JUMP_EQUAL, inet6, 4, 0),
        op(JUMP_EQUAL, NETLINK, 0, 2),
        op(LOAD, argument(2), 0, 0),
        op(JUMP_EQUAL, NETLINK_ROUTE, 1, 0),
        op(RETURN, NO_FAMILY, 0, 0),
        op(RETURN, ALLOW, 0, 0),
    ]
}

const fn op(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}
