//! What the steps cost. Printed; only a gross regression fails, since the machine is shared.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use atoll_model::policy::egress::Egress;
use atoll_network::{Dialer, DialerConfig, child_setup, netns, setup_from_outside};

use crate::world::World;

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
    assert!(admitted < Duration::from_millis(5) && detached < Duration::from_millis(5));
}

#[test]
fn dialling_is_cheap() {
    let namespace = netns::create().unwrap();
    netns::run_in(namespace.as_fd(), atoll_network::loopback_up).unwrap().unwrap();
    crate::world::serve_tcp(namespace.as_fd(), 7000);
    let dialer = Dialer::start(DialerConfig::default()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut samples = Samples::default();
    for _ in 0..SAMPLES {
        samples
            .time(|| runtime.block_on(dialer.dial(namespace.as_fd(), 7000, Duration::from_secs(5))))
            .unwrap();
    }
    assert!(samples.print("dial") < Duration::from_millis(20));
}
