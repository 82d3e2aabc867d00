//! Compares the filter with the table, and with seccompiler's filter of the same table.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Cmp, SeccompCondition as Condition,
    SeccompFilter, SeccompRule, TargetArch,
};

use super::table::{
    self, BTRFS, CLONES, DRIVER, FAMILIES, MAKES_FILE, NAMESPACE_FLAGS, NETLINK, NETLINK_ROUTE, NEWEST,
    PERSONAS, SPECIAL_BITS, TERMINAL_INPUT,
};
use super::{Check, Clones, FilterVariant, SpecialBits, SyscallVerdict, compile};

const ALLOW: u32 = 0x7fff_0000;
const X86_64: u32 = 0xc000_003e;

/// Runs a classic BPF program over one call, as the kernel would.
fn interpret(program: &[(u16, u8, u8, u32)], number: u32, arch: u32, arguments: [u64; 6]) -> u32 {
    let mut data = [0u8; 64];
    data[0..4].copy_from_slice(&number.to_le_bytes());
    data[4..8].copy_from_slice(&arch.to_le_bytes());
    for (index, argument) in arguments.iter().enumerate() {
        data[16 + index * 8..24 + index * 8].copy_from_slice(&argument.to_le_bytes());
    }
    let (mut at, mut accumulator) = (0usize, 0u32);
    loop {
        let (code, jt, jf, k) = program[at];
        at += 1;
        let taken = |yes: bool| usize::from(if yes { jt } else { jf });
        match code {
            0x20 => accumulator = u32::from_le_bytes(data[k as usize..k as usize + 4].try_into().unwrap()),
            0x05 => at += k as usize,
            0x15 => at += taken(accumulator == k),
            0x25 => at += taken(accumulator > k),
            0x35 => at += taken(accumulator >= k),
            0x45 => at += taken(accumulator & k != 0),
            0x54 => accumulator &= k,
            0x06 => return k,
            other => panic!("instruction {other:#x} is not interpreted here"),
        }
    }
}

fn ours() -> Vec<(u16, u8, u8, u32)> {
    form(Clones::Allowed, SpecialBits::Allowed)
}

fn form(clones: Clones, special_bits: SpecialBits) -> Vec<(u16, u8, u8, u32)> {
    compile(FilterVariant { clones, special_bits }).iter().map(|op| (op.code, op.jt, op.jf, op.k)).collect()
}

fn condition(index: u8, cmp: Cmp, value: u32) -> Condition {
    Condition::new(index, Len::Dword, cmp, u64::from(value)).unwrap()
}

/// A request of another driver differs in at least one bit.
fn requests() -> Vec<SeccompRule> {
    let bits = (0..32).map(|bit| 1u32 << bit).filter(|bit| DRIVER & bit != 0);
    let others = bits.map(|bit| {
        let differs = condition(1, Cmp::MaskedEq(u64::from(bit)), !BTRFS & bit);
        let plain = TERMINAL_INPUT.iter().map(|request| condition(1, Cmp::Ne, *request));
        SeccompRule::new(plain.chain([differs]).collect()).unwrap()
    });
    let clones = CLONES.iter().map(|clone| SeccompRule::new(vec![condition(1, Cmp::Eq, *clone)]).unwrap());
    others.chain(clones).collect()
}

/// The same table as rules of seccompiler, where a match allows the call.
fn oracle(special_bits: SpecialBits) -> Vec<(u16, u8, u8, u32)> {
    let rule = |conditions| SeccompRule::new(conditions).unwrap();
    let without = |index: u32, bits: u32| {
        rule(vec![condition(u8::try_from(index).unwrap(), Cmp::MaskedEq(u64::from(bits)), 0)])
    };
    let is_free = special_bits == SpecialBits::Allowed;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for number in 0..=NEWEST {
        let chain = match table::verdict(number) {
            SyscallVerdict::Allow => vec![],
            SyscallVerdict::Refuse | SyscallVerdict::Unknown => continue,
            SyscallVerdict::Depends(Check::NoNamespaces) => {
                vec![rule(vec![condition(0, Cmp::MaskedEq(u64::from(NAMESPACE_FLAGS)), 0)])]
            }
            SyscallVerdict::Depends(Check::HarmlessPersona) => {
                PERSONAS.iter().map(|persona| rule(vec![condition(0, Cmp::Eq, *persona)])).collect()
            }
            SyscallVerdict::Depends(Check::Copy) => vec![],
            SyscallVerdict::Depends(
                Check::PlainMode { .. } | Check::PlainModeIfNew { .. } | Check::HiddenMode,
            ) if is_free => vec![],
            SyscallVerdict::Depends(Check::PlainMode { mode }) => vec![without(mode, SPECIAL_BITS)],
            SyscallVerdict::Depends(Check::PlainModeIfNew { flags }) => {
                vec![without(flags, MAKES_FILE), without(flags + 1, SPECIAL_BITS)]
            }
            SyscallVerdict::Depends(Check::HiddenMode) => continue,
            SyscallVerdict::Depends(Check::HarmlessRequest) => requests(),
            SyscallVerdict::Depends(Check::PlainSocket) => {
                let netlink = [condition(0, Cmp::Eq, NETLINK), condition(2, Cmp::Eq, NETLINK_ROUTE)];
                FAMILIES
                    .iter()
                    .map(|family| rule(vec![condition(0, Cmp::Eq, *family)]))
                    .chain([rule(netlink.to_vec())])
                    .collect()
            }
        };
        rules.insert(i64::from(number), chain);
    }
    let filter =
        SeccompFilter::new(rules, SeccompAction::Errno(1), SeccompAction::Allow, TargetArch::x86_64).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    program.iter().map(|op| (op.code, op.jt, op.jf, op.k)).collect()
}

#[test]
fn every_call_number_gets_the_verdict_of_the_table() {
    let program = ours();
    for number in 0..2_000 {
        let answer = interpret(&program, number, X86_64, [0; 6]);
        let allowed = match table::verdict(number) {
            SyscallVerdict::Allow => true,
            SyscallVerdict::Refuse | SyscallVerdict::Unknown => false,
            // With all arguments zero: no namespace, no persona, no terminal input; but family 0 is not a socket
            // family.
            SyscallVerdict::Depends(check) => check != Check::PlainSocket,
        };
        assert_eq!(answer == ALLOW, allowed, "call {number}");
    }
}

#[test]
fn foreign_entries_are_closed() {
    let program = ours();
    let i386 = 0x4000_0003;
    assert_eq!(interpret(&program, 11, i386, [0; 6]), 0x8000_0000);
    let x32_read = 0x4000_0000;
    assert_eq!(interpret(&program, x32_read, X86_64, [0; 6]), 0x0005_0000 | libc::ENOSYS as u32);
    assert_eq!(
        interpret(&program, libc::SYS_clone3 as u32, X86_64, [0; 6]),
        0x0005_0000 | libc::ENOSYS as u32
    );
}

#[test]
fn a_pair_of_sockets_is_of_a_plain_family_too() {
    let program = ours();
    let pair = |family: i32| {
        interpret(&program, libc::SYS_socketpair as u32, X86_64, [family as u64, 1, 0, 0, 0, 0])
    };
    assert_eq!(pair(libc::AF_UNIX), ALLOW);
    for family in [libc::AF_VSOCK, libc::AF_PACKET, libc::AF_ALG, libc::AF_TIPC, libc::AF_CAN, libc::AF_XDP] {
        assert_eq!(pair(family), 0x0005_0000 | libc::EAFNOSUPPORT as u32, "family {family}");
    }
}

#[test]
fn nothing_is_asked_of_btrfs_but_clones_and_with_volumes_not_even_those() {
    let (plain, with_volumes) = (ours(), form(Clones::Refused, SpecialBits::Allowed));
    let ioctl = |program: &[_], request: u64| {
        interpret(program, libc::SYS_ioctl as u32, X86_64, [3, request, 0, 0, 0, 0])
    };
    let not_known = 0x0005_0000 | libc::ENOTTY as u32;
    // All forms of subvolumes and snapshots, removal, defragmenting, sync, flags; and a request with a high half, which
    // the kernel ignores.
    for request in [
        0x5000_940e,
        0x5000_9418,
        0x5000_9417,
        0x5000_9401,
        0x5000_940f,
        0x5000_9402,
        0x9408,
        0x4008_941a,
        0xdead_0000_5000_940e,
    ] {
        assert_eq!(ioctl(&plain, request), not_known, "{request:#x}");
        assert_eq!(ioctl(&with_volumes, request), not_known, "{request:#x}");
    }
    for clone in CLONES {
        assert_eq!(ioctl(&plain, clone.into()), ALLOW);
        assert_eq!(ioctl(&with_volumes, clone.into()), not_known);
    }
    let copy = |program: &[_]| interpret(program, libc::SYS_copy_file_range as u32, X86_64, [0; 6]);
    assert_eq!((copy(&plain), copy(&with_volumes)), (ALLOW, 0x0005_0000 | libc::ENOSYS as u32));
    for program in [&plain, &with_volumes] {
        assert_eq!(ioctl(program, 0x5412), 0x0005_0000 | libc::EPERM as u32);
        assert_eq!((ioctl(program, 0x5413), ioctl(program, 0x6602)), (ALLOW, ALLOW));
    }
}

#[test]
fn what_must_never_be_reached_is_refused() {
    let program = ours();
    #[rustfmt::skip]
    let never = [
        libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root, libc::SYS_unshare, libc::SYS_setns, libc::SYS_bpf,
        libc::SYS_perf_event_open, libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key, libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_userfaultfd, libc::SYS_kexec_load,
        libc::SYS_kexec_file_load, libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module,
        libc::SYS_open_by_handle_at, libc::SYS_fsopen, libc::SYS_fsmount, libc::SYS_move_mount, libc::SYS_open_tree,
        libc::SYS_mount_setattr, libc::SYS_reboot, libc::SYS_swapon, libc::SYS_syslog, libc::SYS_acct, libc::SYS_quotactl,
        libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_pidfd_getfd,
        libc::SYS_kcmp, libc::SYS_vhangup, libc::SYS_fanotify_init, libc::SYS_sethostname, libc::SYS_move_pages,
    ];
    for call in never {
        let answer = interpret(&program, call as u32, X86_64, [0; 6]);
        assert_eq!(answer, 0x0005_0000 | libc::EPERM as u32, "call {call}");
    }
}

#[test]
fn special_bits_are_refused_by_every_call_that_sets_a_mode() {
    let refusing = form(Clones::Allowed, SpecialBits::Refused);
    let (eperm, enosys) = (0x0005_0000 | libc::EPERM as u32, 0x0005_0000 | libc::ENOSYS as u32);
    let creates =
        [libc::O_CREAT | libc::O_WRONLY, libc::O_TMPFILE | libc::O_RDWR, libc::O_CREAT | libc::O_EXCL];
    let mut calls = vec![
        (libc::SYS_chmod, 1, [0; 6]),
        (libc::SYS_fchmod, 1, [0; 6]),
        (libc::SYS_fchmodat, 2, [0; 6]),
        (452, 2, [0; 6]),
        (libc::SYS_creat, 1, [0; 6]),
        (libc::SYS_mknod, 1, [0; 6]),
        (libc::SYS_mknodat, 2, [0; 6]),
    ];
    for flags in creates {
        calls.push((libc::SYS_open, 2, [0, flags as u64, 0, 0, 0, 0]));
        calls.push((libc::SYS_openat, 3, [0, 0, flags as u64, 0, 0, 0]));
    }
    for (call, mode_at, arguments) in calls {
        // The kernel takes a mode as 16 bits: what is above does not make it another one.
        for mode in [0o4755, 0o2755, 0o6000, 0o7777, 0o104_755, 0xdead_0000_0000_0800_u64] {
            let mut asked = arguments;
            asked[mode_at] = mode;
            assert_eq!(interpret(&refusing, call as u32, X86_64, asked), eperm, "{call} {mode:o}");
            assert_eq!(interpret(&ours(), call as u32, X86_64, asked), ALLOW, "{call} {mode:o}");
        }
        for mode in [0, 0o644, 0o1777, 0o777, 0o100_644] {
            let mut asked = arguments;
            asked[mode_at] = mode;
            assert_eq!(interpret(&refusing, call as u32, X86_64, asked), ALLOW, "{call} {mode:o}");
        }
    }
    // Without a new file the argument means nothing, and some libraries leave anything in it.
    let flags = (libc::O_RDWR | libc::O_DIRECTORY | libc::O_CLOEXEC) as u64;
    let open = interpret(&refusing, libc::SYS_open as u32, X86_64, [0, flags, u64::MAX, 0, 0, 0]);
    let openat = interpret(&refusing, libc::SYS_openat as u32, X86_64, [0, 0, flags, u64::MAX, 0, 0]);
    assert_eq!((open, openat), (ALLOW, ALLOW));
    assert_eq!(interpret(&refusing, libc::SYS_openat2 as u32, X86_64, [0; 6]), enosys);
}

#[test]
fn the_longest_search_is_short() {
    // The cost of a call is the depth of the tree and its check, not the length of the table.
    for variant in FilterVariant::ALL {
        assert!(compile(variant).len() < 400, "{} instructions", compile(variant).len());
    }
}

proptest! {
    #[test]
    fn our_filter_and_seccompilers_agree(
        number in prop_oneof![0u32..500, any::<u32>(), Just(libc::SYS_socket as u32),
            Just(libc::SYS_socketpair as u32), Just(libc::SYS_clone as u32),
            Just(libc::SYS_personality as u32), Just(libc::SYS_ioctl as u32),
            Just(libc::SYS_open as u32), Just(libc::SYS_openat as u32), Just(libc::SYS_fchmodat as u32)],
        arguments in prop::array::uniform6(prop_oneof![0u64..64, any::<u64>(), Just(0x5412), Just(0x541c), Just(0x1000_0000),
            Just(0x5000_940e), Just(0x4004_9409), Just(0o4755), Just(0o2000), Just(0o1777), Just(0o101),
            Just(0x2_0008), Just(0xffff_ffff)]),
        arch in prop_oneof![9 => Just(X86_64), 1 => any::<u32>()],
        special_bits in prop_oneof![Just(SpecialBits::Allowed), Just(SpecialBits::Refused)],
    ) {
        use std::sync::LazyLock;
        static FREE: LazyLock<(Program, Program)> = LazyLock::new(|| pair_of(SpecialBits::Allowed));
        static REFUSING: LazyLock<(Program, Program)> = LazyLock::new(|| pair_of(SpecialBits::Refused));
        let (ours, oracle) = if special_bits == SpecialBits::Allowed { &*FREE } else { &*REFUSING };
        let a = interpret(ours, number, arch, arguments) == ALLOW;
        let b = interpret(oracle, number, arch, arguments) == ALLOW;
        prop_assert_eq!(a, b);
    }
}

type Program = Vec<(u16, u8, u8, u32)>;

fn pair_of(bits: SpecialBits) -> (Program, Program) {
    (form(Clones::Allowed, bits), oracle(bits))
}
