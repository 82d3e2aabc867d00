//! Recent DNS answers of the gate, in the kernel: as long as an address is fresh for a sandbox, its TCP connections to
//! that address go to the gate.
//!
//! It has its own socket, so that DNS answers are not delayed by the creation of sandboxes. It makes no decisions.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::address::SandboxLink;
use crate::gate::Opener;
use crate::netlink::nft::Transaction;
use crate::netlink::{Family, Socket};
use crate::ruleset::{FRESH, TABLE};

/// LIMIT: fresh addresses of one sandbox; all sandboxes share one set.
const PER_SANDBOX: usize = 1_024;

/// The set of fresh answers in the router namespace.
#[derive(Debug)]
pub struct Fresh(Mutex<FreshState>);

#[derive(Debug)]
struct FreshState {
    socket: Socket,
    /// The content of the set and its expiry times, by sandbox.
    open: HashMap<Ipv4Addr, HashMap<Ipv4Addr, Instant>>,
}

impl Fresh {
    /// Opens a socket in the router namespace.
    pub fn open(router: BorrowedFd<'_>) -> io::Result<Self> {
        let socket = Socket::open_in(Family::Netfilter, router)?;
        Ok(Self(Mutex::new(FreshState { socket, open: HashMap::new() })))
    }
}

impl Opener for Fresh {
    fn open(&self, link: SandboxLink, addresses: &[Ipv4Addr], ttl: Duration) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).open(link.address, addresses, ttl)
    }

    fn close(&self, link: SandboxLink, addresses: &[Ipv4Addr]) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).close(link.address, addresses)
    }
}

impl FreshState {
    fn open(&mut self, sandbox: Ipv4Addr, addresses: &[Ipv4Addr], ttl: Duration) -> io::Result<()> {
        let now = Instant::now();
        let until = now + ttl;
        let known = self.open.entry(sandbox).or_default();
        known.retain(|_, until| *until > now);
        let new = addresses.iter().filter(|address| !known.contains_key(address)).count();
        if known.len() + new > PER_SANDBOX {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many fresh addresses"));
        }
        let mut wanted: Vec<Ipv4Addr> = addresses.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        // A longer lifetime from an earlier answer is not shortened.
        wanted.retain(|address| known.get(address).is_none_or(|known| *known < until));
        let put = |with: &dyn Fn(&Ipv4Addr) -> bool| {
            let mut transaction = Transaction::new(TABLE);
            for address in &wanted {
                // Kernels before 6.12 keep the old timeout of an existing element, so it is removed first, in the same
                // transaction.
                if with(address) {
                    transaction.remove(FRESH, &key(sandbox, *address));
                }
                transaction.add_for(FRESH, &key(sandbox, *address), ttl);
            }
            transaction
        };
        let first = put(&|address| known.contains_key(address));
        if first.is_empty() {
            return Ok(());
        }
        match self.socket.call_all(&mut first.finish()) {
            // The element expired in the meantime.
            Err(error) if is_absent(&error) => self.socket.call_all(&mut put(&|_| false).finish())?,
            other => other?,
        }
        known.extend(wanted.iter().map(|address| (*address, until)));
        Ok(())
    }

    fn close(&mut self, sandbox: Ipv4Addr, addresses: &[Ipv4Addr]) -> io::Result<()> {
        for address in addresses {
            let mut transaction = Transaction::new(TABLE);
            transaction.remove(FRESH, &key(sandbox, *address));
            match self.socket.call_all(&mut transaction.finish()) {
                Err(error) if is_absent(&error) => {}
                other => other?,
            }
        }
        if let Some(known) = self.open.get_mut(&sandbox) {
            known.retain(|address, _| !addresses.contains(address));
            if known.is_empty() {
                self.open.remove(&sandbox);
            }
        }
        Ok(())
    }
}

fn key(sandbox: Ipv4Addr, address: Ipv4Addr) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&sandbox.octets());
    key[4..].copy_from_slice(&address.octets());
    key
}

fn is_absent(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOENT.raw_os_error())
}
