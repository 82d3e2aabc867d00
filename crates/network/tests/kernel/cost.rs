//! The cost of the steps. Printed; only a gross regression fails, since the machine is shared.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use atoll_model::policy::egress::{Egress, TenantFloor, compile};
use atoll_model::{NetworkMode, NetworkPolicy};
use atoll_network::{Dialer, DialerConfig, child_setup, netns, setup_from_outside};

use crate::kernel::world::World;

const SAMPLES: usize = 60;

#[derive(Default)]
struct Samples(Vec<Duration>);

impl Samples {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let started_at = Instant::now();
        let result = work();
        self.0.push(started_at.elapsed());
        result
    }

    fn print(&mut self, what: &str) -> Duration {
        self.0.sort();
        let median = self.0[self.0.len() / 2];
        println!(
            "{what:<34} min {:>8.1?}  median {median:>8.1?}  max {:>8.1?}",
            self.0[0],
            self.0[self.0.len() - 1]
        );
        median
    }
}

#[test]
fn attaching_is_cheap() {
    let mut world = World::new();
    let [mut create, mut admit, mut close, mut detach, mut setup, mut outside]: [Samples; 6] =
        Default::default();
    let mut links = Vec::new();
    let mut namespaces = Vec::new();
    for round in 0..SAMPLES {
        let namespace = netns::create().unwrap();
        let link = world.handle().reserve(None).unwrap();
        create.time(|| world.handle().create_link(link, namespace.as_fd())).unwrap();
        admit.time(|| world.handle().admit(link, &Egress::open())).unwrap();
        if round % 2 == 0 {
            netns::run_in(namespace.as_fd(), || setup.time(|| child_setup(link.address))).unwrap().unwrap();
        } else {
            outside.time(|| setup_from_outside(namespace.as_fd(), link.address)).unwrap();
        }
        links.push(link);
        namespaces.push(namespace);
    }
    for (&link, namespace) in links.iter().zip(&namespaces) {
        close.time(|| world.handle().set_policy(link, &Egress::closed(), namespace.as_fd())).unwrap();
        world.handle().set_policy(link, &Egress::open(), namespace.as_fd()).unwrap();
        detach.time(|| world.handle().detach(link)).unwrap();
    }
    create.print("veth and route");
    let admitted = admit.print("admit (two elements)");
    setup.print("child_setup");
    outside.print("setup_from_outside");
    close.print("set_policy");
    let detached = detach.print("detach");
    let started_at = Instant::now();
    world.handle().delete_links(&links).unwrap();
    println!("delete {SAMPLES} links together: {:?}", started_at.elapsed());
    // Loose, because other tests run beside it; a program that is started for it would take longer.
    assert!(admitted < Duration::from_millis(25) && detached < Duration::from_millis(25));
}

#[test]
fn dialling_is_cheap() {
    let namespace = netns::create().unwrap();
    netns::run_in(namespace.as_fd(), atoll_network::loopback_up).unwrap().unwrap();
    crate::kernel::world::serve_tcp(namespace.as_fd(), 7000);
    let dialer = Dialer::start(DialerConfig::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut samples = Samples::default();
    for _ in 0..SAMPLES {
        samples
            .time(|| runtime.block_on(dialer.dial(namespace.as_fd(), 7000, Duration::from_secs(5))))
            .unwrap();
    }
    assert!(samples.print("dial") < Duration::from_millis(100));
}

#[test]
fn a_policy_change_costs_the_same_among_five_hundred_sandboxes_with_lists() {
    const SANDBOXES: u32 = 500;
    let mut world = World::new();
    // Twenty ranges that are not prefixes, so that they are expensive.
    let list = |first: u32| {
        let ranges = (0..20u32).map(|n| format!("{}.{}.{n}.{}", 11 + first % 80, n * 7, first % 250 + 1));
        let policy = NetworkPolicy {
            mode: NetworkMode::Custom,
            allow_cidrs: ranges.map(|cidr| cidr.parse().unwrap()).collect(),
            ..NetworkPolicy::default()
        };
        compile(&TenantFloor::default(), None, &policy, &[])
    };
    let mut links = Vec::new();
    let (mut attach, mut plain, mut change, mut detach) =
        (Samples::default(), Samples::default(), Samples::default(), Samples::default());
    for number in 0..SANDBOXES {
        // A namespace holds one eth0, so each link is made in a separate one, which only the link keeps alive.
        let inside = netns::create().unwrap();
        let link = world.handle().reserve(None).unwrap();
        world.handle().create_link(link, inside.as_fd()).unwrap();
        attach.time(|| world.handle().admit(link, &list(number))).unwrap();
        links.push((link, inside));
    }
    for (number, (link, inside)) in (0..).zip(&links) {
        let wanted = list(number + 1);
        change.time(|| world.handle().set_policy(*link, &wanted, inside.as_fd())).unwrap();
    }
    for _ in 0..40 {
        let inside = netns::create().unwrap();
        let link = world.handle().reserve(None).unwrap();
        world.handle().create_link(link, inside.as_fd()).unwrap();
        plain.time(|| world.handle().admit(link, &Egress::open())).unwrap();
        links.push((link, inside));
    }
    for (link, _) in &links {
        detach.time(|| world.handle().detach(*link)).unwrap();
    }
    attach.print("admit with 20 ranges, up to 500");
    plain.print("admit plain, among 500");
    let changed = change.print("set_policy, 20 ranges, among 500");
    detach.print("detach");
    world.handle().delete_links(&links.iter().map(|(link, _)| *link).collect::<Vec<_>>()).unwrap();
    assert!(changed < Duration::from_millis(50));
}
