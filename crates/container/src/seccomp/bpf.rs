//! Compiles the table to a classic BPF program: call numbers with equal verdicts form intervals, and the program
//! searches them.

use std::sync::OnceLock;

use super::table::{
    self, BTRFS, CLONES, DRIVER, FAMILIES, NAMESPACE_FLAGS, NETLINK, NETLINK_ROUTE, NEWEST, PERSONAS,
    TERMINAL_INPUT,
};
use super::{Check, Clones, SyscallVerdict};

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
pub(crate) fn compile(clones: Clones) -> &'static [libc::sock_filter] {
    static ALLOWED: OnceLock<Vec<libc::sock_filter>> = OnceLock::new();
    static REFUSED: OnceLock<Vec<libc::sock_filter>> = OnceLock::new();
    let program = if clones == Clones::Allowed { &ALLOWED } else { &REFUSED };
    program.get_or_init(|| {
        let mut program = vec![
            op(LOAD, OFFSET_ARCH, 0, 0),
            op(JUMP_EQUAL, AUDIT_ARCH_X86_64, 1, 0),
            op(RETURN, KILL, 0, 0),
            op(LOAD, OFFSET_NUMBER, 0, 0),
        ];
        program.extend(search(&intervals(), clones));
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

fn search(runs: &[(u32, SyscallVerdict)], clones: Clones) -> Vec<libc::sock_filter> {
    if let [(_, verdict)] = runs {
        return leaf(*verdict, clones);
    }
    let (low, high) = runs.split_at(runs.len() / 2);
    let (below, above) = (search(low, clones), search(high, clones));
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

fn leaf(verdict: SyscallVerdict, clones: Clones) -> Vec<libc::sock_filter> {
    match verdict {
        SyscallVerdict::Allow => vec![op(RETURN, ALLOW, 0, 0)],
        SyscallVerdict::Refuse => vec![op(RETURN, REFUSE, 0, 0)],
        SyscallVerdict::Unknown => vec![op(RETURN, UNKNOWN, 0, 0)],
        SyscallVerdict::Depends(Check::NoNamespaces) => vec![
            op(LOAD, argument(0), 0, 0),
            op(JUMP_ANY_BIT, NAMESPACE_FLAGS, 0, 1),
            op(RETURN, REFUSE, 0, 0),
            op(RETURN, ALLOW, 0, 0),
        ],
        SyscallVerdict::Depends(Check::HarmlessPersona) => one_of(0, &PERSONAS, ALLOW, REFUSE),
        SyscallVerdict::Depends(Check::HarmlessRequest) => request(clones),
        SyscallVerdict::Depends(Check::Copy) if clones == Clones::Allowed => vec![op(RETURN, ALLOW, 0, 0)],
        SyscallVerdict::Depends(Check::Copy) => vec![op(RETURN, UNKNOWN, 0, 0)],
        SyscallVerdict::Depends(Check::PlainSocket) => socket(),
    }
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
