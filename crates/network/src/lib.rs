//! The router namespace, veths and taps, nftables elements, the gate for names, and dialling into sandboxes.
//!
//! ```text
//!  sandbox namespace          router namespace (pinned, one per server)             host's namespace
//! ┌──────────────────┐  veth ┌────────────────────────────────────────────┐  veth ┌─────────────────────────┐
//! │ eth0 100.64.x.y  ├───────┤ s<n>   lo 169.254.0.1 (gateway: DNS, gate) ├───────┤ atl<b>u 198.18.x.1      │
//! │ default via      │ NOARP │        table inet atoll:                   │uplink │ table inet atoll_<b>:   │── internet
//! │  169.254.0.1     │       │         who may reach what: see `ruleset`  │ .x.2  │  masquerade, never local│
//! └──────────────────┘       │        masquerade to the uplink            │       └─────────────────────────┘
//!   ▲ Dialer: a socket made  └────────────────────────────────────────────┘         ▲ DNS upstream sockets
//!     inside, used outside        ▲ launcher lives here: RouterHandle
//! ```
//!
//! Who calls what:
//!
//! | when | who | call |
//! |---|---|---|
//! | start | launcher, still in the host's namespaces | [`Router::open`], [`Router::handle`], [`RouterHandle::sweep`], [`Router::join`] |
//! | before clone | launcher | [`RouterHandle::reserve`]: the sandbox's [`SandboxLink`] with its address |
//! | after clone | launcher | [`RouterHandle::attach`] with the new namespace (or `connect`, then `admit`) |
//! | before a microVM starts | its engine | [`RouterHandle::attach`] with [`LinkEnd::Tap`]; the VMM opens the tap |
//! | inside | first process | [`child_setup`]; a pool instance only [`loopback_up`] |
//! | claim of a pool instance | launcher | [`RouterHandle::attach`], then [`setup_from_outside`] |
//! | live | launcher | [`RouterHandle::set_policy`] |
//! | destroy | launcher | [`RouterHandle::detach`]: unreachable from then on |
//! | afterwards | reaper | [`RouterHandle::delete_links`], or let the namespace die; then [`RouterHandle::release`] |
//! | always | server | [`Dialer`], [`Gate`] over [`Fresh`], [`Flows::read`] every second, [`Router::refresh_host`] every few |
//! | uninstall | any process | [`Router::teardown`] |
//!
//! The meaning of a policy is defined in `model`; this crate gets it compiled. It never starts a process in a sandbox,
//! and never derives the sender of a packet from the packet's content.

#![expect(
    unsafe_code,
    reason = "unshare and the ioctls of taps have no safe wrappers; everything else goes through rustix's safe calls"
)]

mod address;
mod child;
mod dialer;
mod dns;
mod doctor;
mod error;
mod flows;
mod forwarding;
mod fresh_answers;
mod gate;
mod handle;
mod ipv6;
mod netlink;
pub mod netns;
mod router;
mod ruleset;
mod sandbox_networks;
mod sysctl;
mod tap;
mod tool;

pub use address::{Block, BlockOutOfRange, GATEWAY, SandboxLink};
pub use atoll_model::ErrorKind;
pub use child::{
    add_silent_way6, add_to_loopback, add_to_loopback6, child_setup, loopback_up, remove_silent_way6,
    setup_from_outside,
};
pub use dialer::{Dialer, DialerConfig};
pub use dns::Upstreams;
pub use doctor::{ForeignDrop, NetworkFacts, network_facts};
pub use error::{DialError, LinkError, RouterError, SetupError};
pub use flows::Flows;
pub use fresh_answers::Fresh;
pub use gate::{GATE_PORT, Gate, Log as EgressLog, Opener, authority};
pub use handle::{LinkEnd, RouterHandle, Sweep};
pub use router::{Router, RouterConfig};
pub use sandbox_networks::SandboxNetworks;
pub use tap::open_tap;
