//! A tap instead of a veth: the guest is an interface in a namespace of its own, and a thread in the role of the VMM
//! carries frames between it and the tap.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_model::policy::egress::Egress;
use atoll_network::{GATEWAY, LinkEnd, LinkError, SandboxLink, netns, open_tap};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::kernel::world::{
    FORBIDDEN, HOST_PORT, HOST_WAN, INTERNET, QUICK, Sandbox, TCP_PORT, UDP_PORT, World, ip,
};

const TAP: LinkEnd<'static> = LinkEnd::Tap { owner: 0 };

struct Guest {
    sandbox: Sandbox,
    is_over: Arc<AtomicBool>,
    vmm: Option<JoinHandle<()>>,
}

impl Guest {
    fn new(world: &mut World, egress: &Egress) -> Self {
        let link = world.handle().reserve(None).unwrap();
        world.handle().attach(link, egress, TAP).unwrap();
        let outside = open_tap(world.router().namespace(), &link.name()).unwrap();
        let namespace = netns::create().unwrap();
        let inside = open_tap(namespace.as_fd(), "eth0").unwrap();
        netns::run_in(namespace.as_fd(), || set_up_guest(link)).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let vmm = std::thread::spawn(move || carry_frames(outside, inside, &ends));
        Self { sandbox: Sandbox { namespace, link }, is_over, vmm: Some(vmm) }
    }

    fn send(&self, from: Ipv4Addr, text: &str) -> UdpSocket {
        self.sandbox.inside(|| {
            let socket = UdpSocket::bind((from, 0)).unwrap();
            socket.set_read_timeout(Some(QUICK)).unwrap();
            socket.send_to(text.as_bytes(), (INTERNET, UDP_PORT)).unwrap();
            socket
        })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let ended = self.vmm.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))));
    }
}

/// What the agent of a guest does.
fn set_up_guest(link: SandboxLink) {
    let mac: Vec<String> = link.mac().iter().map(|byte| format!("{byte:02x}")).collect();
    ip(&format!("link set eth0 address {} arp off up", mac.join(":")));
    ip(&format!("addr add {}/32 dev eth0", link.address));
    ip(&format!("route add default via {GATEWAY} dev eth0 onlink"));
}

fn carry_frames(outside: OwnedFd, inside: OwnedFd, is_over: &AtomicBool) {
    let (mut outside, mut inside) = (std::fs::File::from(outside), std::fs::File::from(inside));
    let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let mut frame = [0; 2048];
    while !is_over.load(Ordering::SeqCst) {
        let mut ready = [PollFd::new(&outside, PollFlags::IN), PollFd::new(&inside, PollFlags::IN)];
        if poll(&mut ready, Some(&wait)).is_err() {
            continue;
        }
        let [from_outside, from_inside] = [ready[0].revents(), ready[1].revents()];
        if from_outside.contains(PollFlags::IN) {
            carry(&mut outside, &mut inside, &mut frame);
        } else if !from_outside.is_empty() {
            // The tap was deleted.
            return;
        }
        if from_inside.contains(PollFlags::IN) {
            carry(&mut inside, &mut outside, &mut frame);
        }
    }
}

/// One frame. The kernel refuses a frame for an interface that is down or gone; a wire would lose it too.
fn carry(from: &mut impl Read, to: &mut impl Write, frame: &mut [u8]) {
    if let Ok(length) = from.read(frame) {
        let _ = to.write(&frame[..length]);
    }
}

#[test]
fn a_guest_behind_a_tap_is_under_the_policy_of_its_link() {
    let mut world = World::new();
    let guest = Guest::new(&mut world, &Egress::open());
    let link = guest.sandbox.link;
    guest.sandbox.assert_reaches_internet();
    guest.sandbox.assert_refused(FORBIDDEN[0], TCP_PORT);
    guest.sandbox.assert_refused(HOST_WAN, HOST_PORT);
    world.handle().set_policy(link, &Egress::closed(), TAP).unwrap();
    guest.sandbox.assert_refused(INTERNET, TCP_PORT);
    world.handle().set_policy(link, &Egress::open(), TAP).unwrap();
    guest.sandbox.assert_reaches_internet();
    world.handle().detach(link).unwrap();
    let late = guest
        .sandbox
        .inside(|| TcpStream::connect_timeout(&(INTERNET, TCP_PORT).into(), Duration::from_millis(500)));
    assert!(late.is_err());
    world.handle().delete_links(&[link]).unwrap();
    assert_eq!(world.handle().list_links().unwrap(), []);
    assert!(world.handle().release(link).unwrap());
}

#[test]
fn a_guest_behind_a_tap_cannot_use_the_address_of_another_sandbox() {
    let mut world = World::new();
    let neighbour = world.sandbox(&Egress::open());
    let guest = Guest::new(&mut world, &Egress::open());
    guest.sandbox.ip(&format!("addr add {}/32 dev eth0", neighbour.link.address));
    drop(guest.send(neighbour.link.address, "forged"));
    let own = guest.send(guest.sandbox.link.address, "own");
    let mut answer = [0; 16];
    let length = own.recv(&mut answer).unwrap();
    assert_eq!(&answer[..length], b"own");
    let heard: Vec<Vec<u8>> = world.heard.lock().unwrap().iter().map(|(text, _)| text.clone()).collect();
    assert_eq!(heard, [b"own".to_vec()]);
}

#[test]
fn taps_outlive_a_crash_and_a_sweep_removes_those_that_are_not_known() {
    let mut world = World::new();
    let (kept, lost) = (Guest::new(&mut world, &Egress::open()), Guest::new(&mut world, &Egress::open()));
    world.crash();
    kept.sandbox.assert_reaches_internet();
    world.open();
    let sweep = world.handle().sweep(&[kept.sandbox.link]).unwrap();
    assert_eq!((sweep.removed_links, sweep.missing), (vec![lost.sandbox.link], vec![]));
    kept.sandbox.assert_reaches_internet();
    world.handle().set_policy(kept.sandbox.link, &Egress::closed(), TAP).unwrap();
    kept.sandbox.assert_refused(INTERNET, TCP_PORT);
}

#[test]
fn an_upload_rate_is_refused_at_a_tap_and_nothing_is_left() {
    let mut world = World::new();
    let mut limited = Egress::open();
    limited.limits.up_bytes_per_s = Some(1_000_000);
    let link = world.handle().reserve(None).unwrap();
    let refused = world.handle().attach(link, &limited, TAP).unwrap_err();
    assert!(matches!(refused, LinkError::TapUploadRate { .. }), "{refused:?}");
    assert_eq!(world.handle().list_links().unwrap(), []);
    // The other direction is limited at the router's end.
    let mut limited = Egress::open();
    limited.limits.down_bytes_per_s = Some(1_000_000);
    Guest::new(&mut world, &limited).sandbox.assert_reaches_internet();
}

#[test]
fn a_tap_that_exists_already_is_not_taken_over() -> io::Result<()> {
    let mut world = World::new();
    let link = world.handle().reserve(None).unwrap();
    let foreign = open_tap(world.router().namespace(), &link.name())?;
    let refused = world.handle().attach(link, &Egress::open(), TAP).unwrap_err();
    assert!(matches!(refused, LinkError::Kernel { step: "make the tap", .. }), "{refused:?}");
    drop(foreign);
    world.handle().attach(link, &Egress::open(), TAP).unwrap();
    assert_eq!(world.handle().list_links().unwrap(), [link]);
    Ok(())
}
