//! Sandboxes whose connections are passed on through a proxy: the kernel leaves them no direct way out.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::Arc;

use atoll_model::policy::egress::{Egress, EgressProxy};
use atoll_model::{EgressVerdict, NetworkPolicy, SandboxId};
use atoll_network::{Flows, GATE_PORT, GATEWAY};

use crate::kernel::egress::{
    FAR, NEAR, compiled, connected, custom, hears_udp, passes, serve_gate, told, wide_world,
};
use crate::kernel::world::{FORBIDDEN, HOST_PORT, HOST_WAN, INTERNET, Sandbox, TCP_PORT, World};

/// An address that stands for a name.
const STAND_IN: Ipv4Addr = Ipv4Addr::new(198, 19, 7, 7);

fn proxied(policy: &NetworkPolicy) -> Egress {
    let url = "http://127.0.0.1:3128".parse().unwrap();
    compiled(policy).through(EgressProxy { url, is_operators: true })
}

fn change(world: &mut World, sandbox: &Sandbox, egress: &Egress) {
    world.handle().set_policy(sandbox.link, egress, sandbox.namespace.as_fd()).unwrap();
}

fn assert_at_gate(sandbox: &Sandbox, to: Ipv4Addr, port: u16) {
    assert_eq!(sandbox.ask(to, port).unwrap(), format!("gate {to}:{port}"));
}

#[test]
fn all_tcp_comes_to_the_gate_and_nothing_else_leaves() {
    let mut world = wide_world();
    serve_gate(&world);
    let flows = Flows::open(world.router().namespace()).unwrap();
    let (open, listed) =
        (Arc::new(proxied(&NetworkPolicy::allow_all())), proxied(&custom(&["198.51.100.7"])));
    let (sandbox, other) = (world.sandbox(&open), world.sandbox(&listed));
    let direct = world.sandbox(&Egress::open());
    flows.admit(sandbox.link, &SandboxId::from_entropy([3; 20]), Arc::clone(&open));
    for one in [&sandbox, &other] {
        // Also what the policy refuses: the gate knows it, and refuses it.
        for (address, port) in
            [(INTERNET, TCP_PORT), (NEAR, 22), (FAR, 443), (FORBIDDEN[3], 80), (STAND_IN, 443)]
        {
            assert_at_gate(one, address, port);
        }
        assert_at_gate(one, direct.link.address, 22);
        assert!(!hears_udp(one, NEAR), "udp has no way");
        let block = world.config.block;
        assert_at_gate(one, block.router_address(), HOST_PORT);
        for address in [HOST_WAN, block.host_address()] {
            one.assert_refused(address, HOST_PORT);
        }
        one.assert_refused(GATEWAY, GATE_PORT);
        one.assert_refused(GATEWAY, HOST_PORT);
    }
    direct.assert_reaches_internet();
    assert!(hears_udp(&direct, NEAR));
    let records = told(&flows, |records| records.iter().any(|r| r.protocol.as_deref() == Some("udp")));
    let udp = records.iter().find(|r| r.protocol.as_deref() == Some("udp")).expect("a record");
    assert_eq!(
        (udp.verdict, udp.rule.as_str()),
        (EgressVerdict::Refused, "egress proxy: only tcp is carried")
    );
}

#[test]
fn a_proxy_that_is_set_later_ends_the_direct_way() {
    let mut world = wide_world();
    serve_gate(&world);
    for policy in [NetworkPolicy::allow_all(), custom(&["198.51.100.7"])] {
        let sandbox = world.sandbox(&compiled(&policy));
        let (mut inside, mut outside) = connected(&world, &sandbox, NEAR);
        assert!(passes(&mut inside, &mut outside) && passes(&mut outside, &mut inside));
        change(&mut world, &sandbox, &proxied(&policy));
        assert!(!passes(&mut outside, &mut inside), "it still hears the internet directly");
        assert!(!passes(&mut inside, &mut outside), "it still talks to the internet directly");
        assert_at_gate(&sandbox, NEAR, TCP_PORT);
        assert!(!hears_udp(&sandbox, NEAR));
        change(&mut world, &sandbox, &compiled(&policy));
        assert!(!sandbox.ask(NEAR, TCP_PORT).unwrap().starts_with("gate"));
        change(&mut world, &sandbox, &proxied(&NetworkPolicy::deny_all()));
        sandbox.assert_refused(NEAR, TCP_PORT);
    }
}

#[test]
fn proxied_links_are_adopted_and_swept() {
    let mut world = wide_world();
    let egress = proxied(&NetworkPolicy::allow_all());
    let (kept, lost) = (world.sandbox(&egress), world.sandbox(&egress));
    world.crash();
    world.open();
    serve_gate(&world);
    let sweep = world.handle().sweep(&[kept.link]).unwrap();
    // own, named and proxied.
    assert_eq!((sweep.removed_links.len(), sweep.removed_elements), (1, 3), "{:?}", lost.link);
    assert_at_gate(&kept, INTERNET, TCP_PORT);
    change(&mut world, &kept, &Egress::open());
    kept.assert_reaches_internet();
    world.handle().detach(kept.link).unwrap();
    let again = world.sandbox(&Egress::open());
    again.assert_reaches_internet();
}
