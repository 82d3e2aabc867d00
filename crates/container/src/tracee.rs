//! A thread of another process that is stopped by ptrace(2), and the system calls that it is made to run.

use std::io;
use std::time::{Duration, Instant};

use libc::user_regs_struct;

/// LIMIT: a thread stops within microseconds, unless it waits for a disk.
const STOPS_WITHIN: Duration = Duration::from_secs(2);
/// The code segment of a 64-bit program.
const LONG_MODE: u64 = 0x33;

/// A stopped thread. When this is dropped, the thread continues where it was.
#[derive(Debug)]
pub(crate) struct Tracee {
    tid: i32,
    /// A signal that was about to be delivered when the thread stopped.
    signal: i32,
}

/// Whether a stop is an event of ptrace and not a signal.
fn is_event(status: i32) -> bool {
    status >> 16 != 0
}

fn check(answer: libc::c_long) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Tracee {
    /// Stops a thread. `NotFound` if it has ended.
    pub(crate) fn stop(tid: i32) -> io::Result<Self> {
        let seize = |options: libc::c_int| {
            let (none, options) = (std::ptr::null_mut::<libc::c_void>(), libc::c_long::from(options));
            // SAFETY: a request that takes plain numbers.
            check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, none, options) })
        };
        // The seccomp filters of the thread may forbid the injected system call.
        seize(libc::PTRACE_O_SUSPEND_SECCOMP).or_else(|_| seize(0)).map_err(gone)?;
        let mut tracee = Self { tid, signal: 0 };
        tracee.ask(libc::PTRACE_INTERRUPT).map_err(gone)?;
        let status = tracee.wait()?;
        if !is_event(status) {
            tracee.signal = libc::WSTOPSIG(status);
        }
        Ok(tracee)
    }

    fn ask(&self, request: libc::c_uint) -> io::Result<()> {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: used with requests that take neither address nor data.
        check(unsafe { libc::ptrace(request, self.tid, none, none) })
    }

    /// Waits for its next stop.
    fn wait(&self) -> io::Result<i32> {
        let begun = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: `status` lives through the call.
            let found = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
            match found {
                0 if begun.elapsed() < STOPS_WITHIN => std::thread::sleep(Duration::from_micros(50)),
                0 => return Err(io::ErrorKind::TimedOut.into()),
                -1 => return Err(gone(io::Error::last_os_error())),
                _ if libc::WIFSTOPPED(status) => return Ok(status),
                _ => return Err(io::ErrorKind::NotFound.into()),
            }
        }
    }

    pub(crate) fn registers(&self) -> io::Result<user_regs_struct> {
        // SAFETY: all-zero registers are valid.
        let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the kernel fills a structure of this layout, which lives through the call.
        check(unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.tid, none, &raw mut registers) })?;
        Ok(registers)
    }

    fn set_registers(&self, registers: &user_regs_struct) -> io::Result<()> {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the kernel reads a structure of this layout, which lives through the call.
        check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.tid, none, &raw const *registers) })
    }

    /// Makes the thread run one system call with the `syscall` instruction at `instruction`, and restores its
    /// registers.
    pub(crate) fn call(&self, instruction: u64, number: i64, arguments: [u64; 2]) -> io::Result<i64> {
        let before = self.registers()?;
        if before.cs != LONG_MODE {
            return Err(io::Error::other("it is not a 64-bit program"));
        }
        let mut asked = before;
        asked.rip = instruction;
        asked.rax = number.cast_unsigned();
        // The thread is in no system call now, so the kernel restarts none with these registers.
        asked.orig_rax = u64::MAX;
        [asked.rdi, asked.rsi] = arguments;
        let (mut mask, mut all) = (0, u64::MAX);
        self.signal_mask(libc::PTRACE_GETSIGMASK, &mut mask)?;
        // A signal that arrived in between would stop the thread and be lost.
        self.signal_mask(libc::PTRACE_SETSIGMASK, &mut all)?;
        let ran = self.set_registers(&asked).and_then(|()| self.step_over(instruction));
        self.set_registers(&before)?;
        self.signal_mask(libc::PTRACE_SETSIGMASK, &mut mask)?;
        ran
    }

    /// Reads or sets the signals that the thread blocks.
    fn signal_mask(&self, request: libc::c_uint, mask: &mut u64) -> io::Result<()> {
        // SAFETY: the kernel reads or fills as many bytes as the size argument says.
        check(unsafe { libc::ptrace(request, self.tid, size_of::<u64>(), &raw mut *mask) })
    }

    fn step_over(&self, instruction: u64) -> io::Result<i64> {
        /// LIMIT: stops for other reasons, such as signals that arrive.
        const STOPS: usize = 16;
        for _ in 0..STOPS {
            self.ask(libc::PTRACE_SINGLESTEP)?;
            self.wait()?;
            let after = self.registers()?;
            if after.rip != instruction {
                return Ok(after.rax.cast_signed());
            }
        }
        Err(io::Error::other("it does not come past the instruction"))
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: a request that takes plain numbers. For a thread that has ended it does nothing.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.tid, none, libc::c_long::from(self.signal)) };
    }
}

fn gone(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::ECHILD) => io::ErrorKind::NotFound.into(),
        _ => error,
    }
}
