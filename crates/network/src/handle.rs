//! Work on sandbox links inside the router namespace: reserve, attach, open and close, detach, delete, sweep.
//!
//! The handle is the only writer of sandbox links and elements; the engine owns the one there is.
//! Making a sandbox unreachable (`detach`) is quick and certain; removing its link may be slow and comes later.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::address::{ETH0_INDEX, GATEWAY, LAST_NUMBER, Link};
use crate::error::LinkError;
use crate::netlink::nft::{self, Change, Edit};
use crate::netlink::route::{self, Arp, End, FoundLink, Veth};
use crate::netlink::{Batch, Family, Socket};
use crate::router::{CHANGES_AT_ONCE, set_keys};
use crate::ruleset::{OPEN, OWN, TABLE};

/// The group that doomed links are put in, to die together.
const DOOMED_GROUP: u32 = 0x0061_746c;

/// What a sandbox may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Everything but the host, sandboxes, private ranges, link-local and metadata.
    AllowAll,
    /// Nothing, not even DNS. Refused at once rather than left hanging.
    DenyAll,
}

/// What a sweep found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// Links removed because nobody claimed them.
    pub removed_links: Vec<Link>,
    /// Elements removed for the same reason.
    pub removed_elements: usize,
    /// Claimed links that do not exist any more.
    pub missing: Vec<Link>,
}

/// How far a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Reserved,
    Created,
    Admitted(Policy),
    Detached,
}

/// The netlink sockets of the router namespace and the book of links in use.
#[derive(Debug)]
pub struct RouterHandle {
    route: Socket,
    nft: Socket,
    mtu: u32,
    next: u32,
    held: HashMap<u32, (Ipv4Addr, Stage)>,
    addresses: HashSet<Ipv4Addr>,
}

impl RouterHandle {
    pub(crate) fn open(namespace: BorrowedFd<'_>, mtu: u32, links: &[FoundLink]) -> io::Result<Self> {
        // A random start: after a restart the numbers of just before are not used again soon, and need not be remembered.
        let next = getrandom::u32().map_err(io::Error::other)? % LAST_NUMBER + 1;
        let mut handle = Self {
            route: Socket::open_in(Family::Route, namespace)?,
            nft: Socket::open_in(Family::Netfilter, namespace)?,
            mtu,
            next,
            held: HashMap::new(),
            addresses: HashSet::new(),
        };
        for link in links.iter().filter_map(|found| Link::from_kernel(&found.name, &found.mac)) {
            handle.hold(link, Stage::Detached);
        }
        Ok(handle)
    }

    /// Takes a number that was not used lately, and the address that goes with it or the one a restored sandbox brings.
    pub fn reserve(&mut self, address: Option<Ipv4Addr>) -> Result<Link, LinkError> {
        if let Some(address) = address {
            if !Link::is_sandbox_address(address) {
                return Err(LinkError::NotASandboxAddress { address });
            }
            if self.addresses.contains(&address) {
                return Err(LinkError::AddressInUse { address });
            }
        }
        for _ in 0..LAST_NUMBER {
            let number = self.next;
            self.next = if number == LAST_NUMBER { 1 } else { number + 1 };
            let wanted = address.unwrap_or_else(|| Link::address_of(number));
            if self.held.contains_key(&number) || self.addresses.contains(&wanted) {
                continue;
            }
            let link = Link { number, address: wanted };
            self.hold(link, Stage::Reserved);
            return Ok(link);
        }
        Err(LinkError::Exhausted)
    }

    /// Keeps an address from being given out while its sandbox has no link, for a checkpointed one.
    pub fn keep_address(&mut self, address: Ipv4Addr) {
        self.addresses.insert(address);
    }

    /// Lets go of an address kept by [`RouterHandle::keep_address`]; needed right before it is reserved again.
    pub fn free_address(&mut self, address: Ipv4Addr) {
        if !self.held.values().any(|(held, _)| *held == address) {
            self.addresses.remove(&address);
        }
    }

    /// Makes the veth into the sandbox's namespace, its route and its elements.
    ///
    /// On an error nothing is left in the kernel; the number stays reserved until [`RouterHandle::release`].
    pub fn attach(&mut self, link: Link, policy: Policy, namespace: BorrowedFd<'_>) -> Result<(), LinkError> {
        self.create_link(link, namespace)?;
        if let Err(error) = self.admit(link, policy) {
            // The first error is the one to tell; a link that cannot be deleted now dies with its namespace.
            let _ = self.delete_links(&[link]);
            return Err(error);
        }
        Ok(())
    }

    /// The first half of [`RouterHandle::attach`]: veth and route, still unreachable.
    pub fn create_link(&mut self, link: Link, namespace: BorrowedFd<'_>) -> Result<(), LinkError> {
        self.expect_stage(link, |stage| stage == Stage::Reserved)?;
        let name = link.name();
        let mut batch = Batch::new();
        route::add_veth(
            &mut batch,
            &Veth {
                near: End { name: &name, index: link.index(), mac: Some(link.mac()) },
                far: End { name: "eth0", index: ETH0_INDEX, mac: Some(link.mac()) },
                far_namespace: namespace,
                mtu: self.mtu,
                arp: Arp::Off,
            },
        );
        route::add_host_route(&mut batch, link.address, link.index(), GATEWAY);
        let answers = self.route.call(&mut batch).map_err(kernel("make the veth", link))?;
        let mut answers = answers.into_iter();
        answers.next().unwrap_or(Ok(())).map_err(kernel("make the veth", link))?;
        self.hold(link, Stage::Created);
        if let Some(Err(cause)) = answers.next() {
            let _ = self.delete_links(&[link]);
            return Err(kernel("add the route", link)(cause));
        }
        Ok(())
    }

    /// The second half of [`RouterHandle::attach`]: from here on the sandbox may send what its policy allows.
    pub fn admit(&mut self, link: Link, policy: Policy) -> Result<(), LinkError> {
        self.expect_stage(link, |stage| stage == Stage::Created)?;
        let keys = Keys::of(link);
        let changes = [keys.own(Edit::Add), keys.open(Edit::Add)];
        let count = if policy == Policy::AllowAll { 2 } else { 1 };
        self.nft
            .call_all(&mut nft::transaction(&changes[..count]))
            .map_err(kernel("admit the sandbox", link))?;
        self.hold(link, Stage::Admitted(policy));
        Ok(())
    }

    /// Opens or closes a running sandbox, also for connections it already has.
    pub fn set_policy(&mut self, link: Link, policy: Policy) -> Result<(), LinkError> {
        let stage = self.expect_stage(link, |stage| matches!(stage, Stage::Admitted(_)))?;
        if stage == Stage::Admitted(policy) {
            return Ok(());
        }
        let keys = Keys::of(link);
        let change = match policy {
            Policy::AllowAll => keys.open(Edit::Add),
            Policy::DenyAll => keys.open(Edit::Remove),
        };
        self.nft.call_all(&mut nft::transaction(&[change])).map_err(kernel("change the policy", link))?;
        self.hold(link, Stage::Admitted(policy));
        Ok(())
    }

    /// Makes the sandbox unreachable, both ways, at once. The link itself stays until it is deleted or its namespace dies.
    pub fn detach(&mut self, link: Link) -> Result<(), LinkError> {
        let stage = self.expect_stage(link, |_| true)?;
        let keys = Keys::of(link);
        let changes = [keys.own(Edit::Remove), keys.open(Edit::Remove)];
        let present = match stage {
            Stage::Reserved | Stage::Created | Stage::Detached => &changes[..0],
            Stage::Admitted(Policy::DenyAll) => &changes[..1],
            Stage::Admitted(Policy::AllowAll) => &changes[..],
        };
        if !present.is_empty() {
            remove_elements(&mut self.nft, present).map_err(kernel("detach the sandbox", link))?;
        }
        self.hold(link, Stage::Detached);
        Ok(())
    }

    /// Detaches and deletes links, all for about the price of one (12-16 ms), and frees their numbers and addresses.
    pub fn delete_links(&mut self, links: &[Link]) -> Result<(), LinkError> {
        for &link in links {
            if self.held.contains_key(&link.number) {
                self.detach(link)?;
            }
        }
        for chunk in links.chunks(CHANGES_AT_ONCE) {
            self.delete_chunk(chunk).map_err(kernel("delete the veth", chunk[0]))?;
        }
        for link in links {
            self.let_go(*link);
        }
        Ok(())
    }

    fn delete_chunk(&mut self, links: &[Link]) -> io::Result<()> {
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

    /// Frees number and address of a detached link once the kernel no longer has it. `false`: it still has; ask again later.
    pub fn release(&mut self, link: Link) -> Result<bool, LinkError> {
        let Some((_, stage)) = self.held.get(&link.number) else { return Ok(true) };
        if matches!(stage, Stage::Admitted(_)) {
            return Ok(false);
        }
        let mut batch = Batch::new();
        route::probe_link(&mut batch, link.index());
        match self.route.call_all(&mut batch) {
            Ok(()) => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
                self.let_go(link);
                Ok(true)
            }
            Err(cause) => Err(kernel("ask for the veth", link)(cause)),
        }
    }

    /// Every sandbox link the kernel has in the router namespace.
    pub fn list_links(&mut self) -> io::Result<Vec<Link>> {
        let found: Vec<FoundLink> = self
            .route
            .dump_steady(route::dump_links, |message, found| found.extend(route::read_link(message)))?;
        Ok(found.iter().filter_map(|found| Link::from_kernel(&found.name, &found.mac)).collect())
    }

    /// Adopts the links in `keep` as they stand and removes every other link and element.
    pub fn sweep(&mut self, keep: &[Link]) -> io::Result<Sweep> {
        let links: HashSet<Link> = self.list_links()?.into_iter().collect();
        let own: HashSet<Vec<u8>> = set_keys(&mut self.nft, TABLE, OWN)?.into_iter().collect();
        let open: HashSet<Vec<u8>> = set_keys(&mut self.nft, TABLE, OPEN)?.into_iter().collect();
        let kept: HashSet<Link> = keep.iter().filter(|link| links.contains(link)).copied().collect();
        let removed_elements = self.sweep_elements(&kept, &own, &open)?;
        let doomed: Vec<Link> = links.difference(&kept).copied().collect();
        for chunk in doomed.chunks(CHANGES_AT_ONCE) {
            self.delete_chunk(chunk)?;
        }
        doomed.iter().for_each(|link| self.let_go(*link));
        for link in kept {
            let keys = Keys::of(link);
            let stage = match (own.contains(&keys.own[..]), open.contains(&keys.open[..])) {
                (true, true) => Stage::Admitted(Policy::AllowAll),
                (true, false) => Stage::Admitted(Policy::DenyAll),
                (false, _) => Stage::Created,
            };
            self.hold(link, stage);
        }
        let missing = keep.iter().filter(|link| !links.contains(link)).copied().collect();
        Ok(Sweep { removed_links: doomed, removed_elements, missing })
    }

    /// Removes the elements of links that are not kept, and what opens a link that is not admitted.
    fn sweep_elements(
        &mut self,
        kept: &HashSet<Link>,
        own: &HashSet<Vec<u8>>,
        open: &HashSet<Vec<u8>>,
    ) -> io::Result<usize> {
        let admitted: Vec<Keys> =
            kept.iter().map(|link| Keys::of(*link)).filter(|keys| own.contains(&keys.own[..])).collect();
        let kept_own: HashSet<&[u8]> = admitted.iter().map(|keys| &keys.own[..]).collect();
        let kept_open: HashSet<&[u8]> = admitted.iter().map(|keys| &keys.open[..]).collect();
        let stray_own = own.iter().filter(|key| !kept_own.contains(&key[..])).map(|key| (OWN, key));
        let stray_open = open.iter().filter(|key| !kept_open.contains(&key[..])).map(|key| (OPEN, key));
        let strays: Vec<Change<'_>> = stray_open
            .chain(stray_own)
            .map(|(set, key)| Change { table: TABLE, set, edit: Edit::Remove(key) })
            .collect();
        for chunk in strays.chunks(CHANGES_AT_ONCE) {
            remove_elements(&mut self.nft, chunk)?;
        }
        Ok(strays.len())
    }

    fn hold(&mut self, link: Link, stage: Stage) {
        self.held.insert(link.number, (link.address, stage));
        self.addresses.insert(link.address);
    }

    fn let_go(&mut self, link: Link) {
        if let Some((address, _)) = self.held.remove(&link.number) {
            self.addresses.remove(&address);
        }
    }

    fn expect_stage(&self, link: Link, fits: impl Fn(Stage) -> bool) -> Result<Stage, LinkError> {
        match self.held.get(&link.number) {
            Some((address, stage)) if *address == link.address && fits(*stage) => Ok(*stage),
            _ => Err(LinkError::Unknown { number: link.number }),
        }
    }
}

/// The set keys of one link.
struct Keys {
    open: [u8; 16],
    own: [u8; 20],
}

impl Keys {
    fn of(link: Link) -> Self {
        let open = nft::name_key(&link.name());
        let mut own = [0u8; 20];
        own[..16].copy_from_slice(&open);
        own[16..].copy_from_slice(&link.address.octets());
        Self { open, own }
    }

    fn open<'a>(&'a self, edit: impl Fn(&'a [u8]) -> Edit<'a>) -> Change<'a> {
        Change { table: TABLE, set: OPEN, edit: edit(&self.open) }
    }

    fn own<'a>(&'a self, edit: impl Fn(&'a [u8]) -> Edit<'a>) -> Change<'a> {
        Change { table: TABLE, set: OWN, edit: edit(&self.own) }
    }
}

/// Removes elements in one transaction; if one is not there, the others one by one.
fn remove_elements(socket: &mut Socket, changes: &[Change<'_>]) -> io::Result<()> {
    match socket.call_all(&mut nft::transaction(changes)) {
        Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {
            changes.iter().try_for_each(|change| {
                socket
                    .call_all(&mut nft::transaction(std::slice::from_ref(change)))
                    .or_else(ignore(Errno::NOENT))
            })
        }
        other => other,
    }
}

fn ignore(errno: Errno) -> impl Fn(io::Error) -> io::Result<()> {
    move |error| if error.raw_os_error() == Some(errno.raw_os_error()) { Ok(()) } else { Err(error) }
}

fn kernel(step: &'static str, link: Link) -> impl Fn(io::Error) -> LinkError {
    move |cause| LinkError::Kernel { step, number: link.number, cause }
}
