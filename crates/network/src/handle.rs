//! Operations on sandbox links in the router namespace: reserve, attach, open and close, detach, delete, sweep.
//!
//! The handle is the only writer of sandbox links and elements; the engine owns the single handle. Making a sandbox
//! unreachable (`detach`) is quick and reliable; removing its link may be slow and is done later.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use atoll_model::policy::egress::Egress;
use rustix::io::Errno;

use crate::address::{ETH0_INDEX, GATEWAY, LAST_NUMBER, SandboxLink};
use crate::error::LinkError;
use crate::ipv6::Six;
use crate::netlink::nft::Transaction;
use crate::netlink::route::{self, Arp, End, FoundLink, Veth};
use crate::netlink::{Batch, Family, Socket, qdisc};
use crate::router::CHANGES_AT_ONCE;
use crate::ruleset::TABLE;
use crate::tap;
use elements::{Installed, Keys};

mod elements;
mod sweep;

pub use sweep::Sweep;

/// The group of links that are deleted together.
const DOOMED_GROUP: u32 = 0x0061_746c;

/// The other end of a sandbox's link.
#[derive(Clone, Copy, Debug)]
pub enum LinkEnd<'a> {
    /// A veth into a network namespace, where it is `eth0`.
    Namespace(BorrowedFd<'a>),
    /// A tap in the router namespace, under the name of the link, for a VMM with this user id. The guest's interface
    /// has the MAC and the address of the link, resolves no neighbours, and has [`GATEWAY`] as its router. The tap does
    /// not end with the VMM: delete it with [`RouterHandle::delete_links`].
    Tap { owner: u32 },
}

impl<'a> From<BorrowedFd<'a>> for LinkEnd<'a> {
    fn from(namespace: BorrowedFd<'a>) -> Self {
        Self::Namespace(namespace)
    }
}

impl<'a> LinkEnd<'a> {
    fn namespace(self) -> Option<BorrowedFd<'a>> {
        match self {
            Self::Namespace(namespace) => Some(namespace),
            Self::Tap { .. } => None,
        }
    }
}

/// The stage of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkStage {
    Reserved,
    Created,
    Admitted,
    Detached,
}

/// A link in use.
#[derive(Clone, Debug)]
struct LinkInUse {
    address: Ipv4Addr,
    stage: LinkStage,
    installed: Installed,
}

/// The netlink sockets of the router namespace, and the links in use.
#[derive(Debug)]
pub struct RouterHandle {
    route: Socket,
    nft: Socket,
    mtu: u32,
    next: u32,
    held: HashMap<u32, LinkInUse>,
    addresses: HashSet<Ipv4Addr>,
    six: Six,
}

impl RouterHandle {
    pub(crate) fn open(
        namespace: BorrowedFd<'_>,
        mtu: u32,
        links: &[FoundLink],
        six: Six,
    ) -> io::Result<Self> {
        // A random start: after a restart the last numbers are not reused soon, and need not be stored.
        let next = getrandom::u32().map_err(io::Error::other)? % LAST_NUMBER + 1;
        let mut handle = Self {
            route: Socket::open_in(Family::Route, namespace)?,
            nft: Socket::open_in(Family::Netfilter, namespace)?,
            mtu,
            next,
            held: HashMap::new(),
            addresses: HashSet::new(),
            six,
        };
        for link in links.iter().filter_map(|found| SandboxLink::from_kernel(&found.name, &found.mac)) {
            handle.hold(link, LinkStage::Detached, Installed::default());
        }
        Ok(handle)
    }

    /// Takes a number that was not used recently, and its address or the one that a restored sandbox had.
    pub fn reserve(&mut self, address: Option<Ipv4Addr>) -> Result<SandboxLink, LinkError> {
        if let Some(address) = address {
            if !SandboxLink::is_sandbox_address(address) {
                return Err(LinkError::NotASandboxAddress { address });
            }
            if self.addresses.contains(&address) {
                return Err(LinkError::AddressInUse { address });
            }
        }
        for _ in 0..LAST_NUMBER {
            let number = self.next;
            self.next = if number == LAST_NUMBER { 1 } else { number + 1 };
            let wanted = address.unwrap_or_else(|| SandboxLink::address_of(number));
            if self.held.contains_key(&number) || self.addresses.contains(&wanted) {
                continue;
            }
            let link = SandboxLink { number, address: wanted };
            self.hold(link, LinkStage::Reserved, Installed::default());
            return Ok(link);
        }
        Err(LinkError::Exhausted)
    }

    /// Reserves the address of a checkpointed sandbox, which has no link.
    pub fn keep_address(&mut self, address: Ipv4Addr) {
        self.addresses.insert(address);
    }

    /// Releases an address of [`RouterHandle::keep_address`]; required right before it is reserved again.
    pub fn free_address(&mut self, address: Ipv4Addr) {
        if !self.held.values().any(|held| held.address == address) {
            self.addresses.remove(&address);
        }
    }

    /// Makes the veth into the sandbox's namespace or the tap, its route and its elements.
    ///
    /// On an error nothing is left in the kernel; the number stays reserved until [`RouterHandle::release`].
    pub fn attach<'a>(
        &mut self,
        link: SandboxLink,
        egress: &Egress,
        end: impl Into<LinkEnd<'a>>,
    ) -> Result<(), LinkError> {
        self.connect(link, egress, end)?;
        // The first error is returned; a link that cannot be deleted now ends with its namespace.
        self.admit(link, egress).inspect_err(|_| drop(self.delete_links(&[link])))
    }

    /// Everything of [`RouterHandle::attach`] except the last step: no traffic passes in either direction before
    /// [`RouterHandle::admit`].
    pub fn connect<'a>(
        &mut self,
        link: SandboxLink,
        egress: &Egress,
        end: impl Into<LinkEnd<'a>>,
    ) -> Result<(), LinkError> {
        let end = end.into();
        self.create_link(link, end)?;
        let shaped = self.shape(link, egress, end).and_then(|()| self.wire(link, egress, end));
        shaped.inspect_err(|_| drop(self.delete_links(&[link])))
    }

    /// The first half of [`RouterHandle::attach`]: link and route, still unreachable.
    pub fn create_link<'a>(
        &mut self,
        link: SandboxLink,
        end: impl Into<LinkEnd<'a>>,
    ) -> Result<(), LinkError> {
        self.expect_stage(link, |stage| stage == LinkStage::Reserved)?;
        let name = link.name();
        let mut batch = Batch::new();
        match end.into() {
            LinkEnd::Namespace(namespace) => route::add_veth(
                &mut batch,
                &Veth {
                    near: End { name: &name, index: link.index(), mac: Some(link.mac()) },
                    far: End { name: "eth0", index: ETH0_INDEX, mac: Some(link.mac()) },
                    far_namespace: namespace,
                    mtu: self.mtu,
                    arp: Arp::Off,
                },
            ),
            LinkEnd::Tap { owner } => {
                tap::create(self.six.router(), &name, link.index(), owner)
                    .map_err(kernel("make the tap", link))?;
                self.hold(link, LinkStage::Created, Installed::default());
                route::set_up(&mut batch, link.index(), link.mac(), self.mtu, Arp::Off);
            }
        }
        route::add_host_route(&mut batch, link.address, link.index(), GATEWAY);
        self.finish_link(link, &mut batch)
    }

    /// Makes the link of the batch and its route, or neither.
    fn finish_link(&mut self, link: SandboxLink, batch: &mut Batch) -> Result<(), LinkError> {
        let answers = self.route.call(batch).map(Vec::into_iter);
        let made = answers.and_then(|mut answers| answers.next().unwrap_or(Ok(())).map(|()| answers));
        let mut answers = match made {
            Ok(answers) => answers,
            Err(cause) => {
                // A tap exists already; a veth was not made.
                if self.expect_stage(link, |stage| stage == LinkStage::Created).is_ok() {
                    let _ = self.delete_links(&[link]);
                }
                return Err(kernel("make the link", link)(cause));
            }
        };
        self.hold(link, LinkStage::Created, Installed::default());
        if let Some(Err(cause)) = answers.next() {
            let _ = self.delete_links(&[link]);
            return Err(kernel("add the route", link)(cause));
        }
        Ok(())
    }

    /// The second half of [`RouterHandle::attach`]: from here on the sandbox may send what its policy allows.
    pub fn admit(&mut self, link: SandboxLink, egress: &Egress) -> Result<(), LinkError> {
        let before = self.expect_stage(link, |stage| stage == LinkStage::Created)?.installed.clone();
        let wanted = Installed::of(egress);
        let keys = Keys::of(link);
        let mut transaction = Transaction::new(TABLE);
        keys.admit(&mut transaction);
        keys.change(&mut transaction, &before, &wanted);
        self.nft.call_all(&mut transaction.finish()).map_err(kernel("admit the sandbox", link))?;
        // Rates and IPv6 addresses are already set, or were not requested.
        let Installed { up, down, wired, .. } = before;
        self.hold(link, LinkStage::Admitted, Installed { up, down, wired, ..wanted });
        Ok(())
    }

    /// Changes the policy of a running sandbox, also for existing connections: those that are still allowed continue.
    pub fn set_policy<'a>(
        &mut self,
        link: SandboxLink,
        egress: &Egress,
        end: impl Into<LinkEnd<'a>>,
    ) -> Result<(), LinkError> {
        let end = end.into();
        self.expect_stage(link, |stage| stage == LinkStage::Admitted)?;
        self.wire(link, egress, end)?;
        let before = self.expect_stage(link, |stage| stage == LinkStage::Admitted)?.installed.clone();
        let wanted = Installed::of(egress);
        let keys = Keys::of(link);
        let mut transaction = Transaction::new(TABLE);
        keys.change(&mut transaction, &before, &wanted);
        if !transaction.is_empty() {
            match self.nft.call_all(&mut transaction.finish()) {
                // Another program changed the table. The link is closed first, then written again.
                Err(error) if is(&error, Errno::NOENT) => purge(&mut self.nft, &keys).and_then(|()| {
                    let mut anew = Transaction::new(TABLE);
                    keys.admit(&mut anew);
                    keys.change(&mut anew, &Installed::default(), &wanted);
                    self.nft.call_all(&mut anew.finish())
                }),
                other => other,
            }
            .map_err(kernel("change the policy", link))?;
        }
        let had = before.wired || before.six.is_some();
        let Installed { up, down, wired, .. } = before;
        self.hold(link, LinkStage::Admitted, Installed { up, down, wired, ..wanted });
        if had && egress.direct6.is_empty() {
            self.unwire(link, end)?;
        }
        self.shape(link, egress, end)
    }

    /// Sets the rates: into the sandbox at the router's end of the link, out of it at the sandbox's end, which programs
    /// in the sandbox cannot change.
    fn shape(&mut self, link: SandboxLink, egress: &Egress, end: LinkEnd<'_>) -> Result<(), LinkError> {
        let wanted = Installed::of(egress);
        if end.namespace().is_none() && wanted.up.is_some() {
            return Err(LinkError::TapUploadRate { number: link.number });
        }
        let held = self.held.get_mut(&link.number).ok_or(LinkError::Unknown { number: link.number })?;
        if held.installed.down != wanted.down {
            set_rate(&mut self.route, link.index(), wanted.down)
                .map_err(kernel("limit the rate to the sandbox", link))?;
            held.installed.down = wanted.down;
        }
        if held.installed.up != wanted.up {
            if let Some(namespace) = end.namespace() {
                Socket::open_in(Family::Route, namespace)
                    .and_then(|mut inside| set_rate(&mut inside, ETH0_INDEX, wanted.up))
                    .map_err(kernel("limit the rate from the sandbox", link))?;
            }
            held.installed.up = wanted.up;
        }
        Ok(())
    }

    /// Makes the machine forward IPv6 for sandboxes, once; done automatically for the first sandbox that needs it. An
    /// error says why it is not possible.
    pub fn prepare_ipv6(&mut self) -> Result<(), LinkError> {
        self.six.prepare().map_err(|cause| LinkError::Ipv6 { cause: Box::new(cause) })
    }

    /// Sets up IPv6 for the link if the policy names IPv6 ranges; does nothing otherwise.
    fn wire(&mut self, link: SandboxLink, egress: &Egress, end: LinkEnd<'_>) -> Result<(), LinkError> {
        let held = self.held.get(&link.number).ok_or(LinkError::Unknown { number: link.number })?;
        if egress.direct6.is_empty() || held.installed.wired {
            return Ok(());
        }
        self.prepare_ipv6()?;
        self.six.wire(&mut self.route, link, end.namespace()).map_err(kernel("set up IPv6", link))?;
        self.held.entry(link.number).and_modify(|held| held.installed.wired = true);
        Ok(())
    }

    fn unwire(&mut self, link: SandboxLink, end: LinkEnd<'_>) -> Result<(), LinkError> {
        self.six.unwire(link, end.namespace()).map_err(kernel("take IPv6 away", link))?;
        self.held.entry(link.number).and_modify(|held| held.installed.wired = false);
        Ok(())
    }

    /// Makes the sandbox unreachable, in both directions, at once. The link stays until it is deleted or its namespace
    /// ends.
    pub fn detach(&mut self, link: SandboxLink) -> Result<(), LinkError> {
        let held = self.expect_stage(link, |_| true)?;
        if held.stage == LinkStage::Admitted {
            let installed = held.installed.clone();
            let keys = Keys::of(link);
            let mut transaction = Transaction::new(TABLE);
            keys.expel(&mut transaction);
            keys.change(&mut transaction, &installed, &Installed::default());
            match self.nft.call_all(&mut transaction.finish()) {
                // An element is gone already, so the transaction failed: everything is removed one by one.
                Err(error) if is(&error, Errno::NOENT) => purge(&mut self.nft, &keys),
                other => other,
            }
            .map_err(kernel("detach the sandbox", link))?;
        }
        self.hold(link, LinkStage::Detached, Installed::default());
        Ok(())
    }

    /// Detaches and deletes links, all for about the cost of one (12-16 ms), and frees their numbers and addresses.
    pub fn delete_links(&mut self, links: &[SandboxLink]) -> Result<(), LinkError> {
        for &link in links {
            if self.held.contains_key(&link.number) {
                self.detach(link)?;
            }
        }
        for chunk in links.chunks(CHANGES_AT_ONCE) {
            self.delete_chunk(chunk).map_err(kernel("delete the link", chunk[0]))?;
        }
        for link in links {
            self.let_go(*link);
        }
        Ok(())
    }

    fn delete_chunk(&mut self, links: &[SandboxLink]) -> io::Result<()> {
        if let [link] = links {
            let mut batch = Batch::new();
            route::delete_link(&mut batch, link.index());
            return self.route.call_all(&mut batch).or_else(ignore(Errno::NODEV));
        }
        let mut batch = Batch::new();
        for link in links {
            route::set_group(&mut batch, link.index(), DOOMED_GROUP);
        }
        for answer in self.route.call(&mut batch)? {
            answer.or_else(ignore(Errno::NODEV))?;
        }
        let mut batch = Batch::new();
        route::delete_group(&mut batch, DOOMED_GROUP);
        self.route.call_all(&mut batch).or_else(ignore(Errno::NODEV))
    }

    /// Frees number and address of a detached link once it is gone from the kernel. `false`: it still exists; try again
    /// later.
    pub fn release(&mut self, link: SandboxLink) -> Result<bool, LinkError> {
        let Some(held) = self.held.get(&link.number) else { return Ok(true) };
        if held.stage == LinkStage::Admitted {
            return Ok(false);
        }
        let mut batch = Batch::new();
        route::probe_link(&mut batch, link.index());
        match self.route.call_all(&mut batch) {
            Ok(()) => Ok(false),
            Err(error) if is(&error, Errno::NODEV) => {
                self.let_go(link);
                Ok(true)
            }
            Err(cause) => Err(kernel("ask for the link", link)(cause)),
        }
    }

    /// Every sandbox link in the router namespace.
    pub fn list_links(&mut self) -> io::Result<Vec<SandboxLink>> {
        let found: Vec<FoundLink> = self
            .route
            .dump_steady(route::dump_links, |message, found| found.extend(route::read_link(message)))?;
        Ok(found.iter().filter_map(|found| SandboxLink::from_kernel(&found.name, &found.mac)).collect())
    }

    fn hold(&mut self, link: SandboxLink, stage: LinkStage, installed: Installed) {
        self.held.insert(link.number, LinkInUse { address: link.address, stage, installed });
        self.addresses.insert(link.address);
    }

    fn let_go(&mut self, link: SandboxLink) {
        if let Some(held) = self.held.remove(&link.number) {
            self.addresses.remove(&held.address);
        }
    }

    fn expect_stage(
        &self,
        link: SandboxLink,
        fits: impl Fn(LinkStage) -> bool,
    ) -> Result<&LinkInUse, LinkError> {
        match self.held.get(&link.number) {
            Some(held) if held.address == link.address && fits(held.stage) => Ok(held),
            _ => Err(LinkError::Unknown { number: link.number }),
        }
    }
}

fn set_rate(socket: &mut Socket, index: u32, bytes_per_s: Option<u64>) -> io::Result<()> {
    let mut batch = Batch::new();
    match bytes_per_s {
        Some(rate) => {
            qdisc::limit_rate(&mut batch, index, rate);
            socket.call_all(&mut batch)
        }
        None => {
            qdisc::unlimit_rate(&mut batch, index);
            // There was no limit: after a restart this is not known.
            socket.call_all(&mut batch).or_else(ignore(Errno::NOENT))
        }
    }
}

/// Removes everything of a link, in steps that each tolerate missing parts.
fn purge(socket: &mut Socket, keys: &Keys) -> io::Result<()> {
    keys.purges().into_iter().try_for_each(|put| {
        let mut step = Transaction::new(TABLE);
        put(&mut step);
        socket.call_all(&mut step.finish()).or_else(ignore(Errno::NOENT))
    })
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn ignore(errno: Errno) -> impl Fn(io::Error) -> io::Result<()> {
    move |error| if is(&error, errno) { Ok(()) } else { Err(error) }
}

fn kernel(step: &'static str, link: SandboxLink) -> impl Fn(io::Error) -> LinkError {
    move |cause| LinkError::Kernel { step, number: link.number, cause }
}
