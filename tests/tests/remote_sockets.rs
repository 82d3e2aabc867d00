//! WebSockets through a preview of this server to a program in a sandbox of a vendor.
#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::fault_proxy::FaultProxy;
use atoll_tests::{Options, json, run_with, web_socket};

use crate::remote_agentbay_server::{forget_providers, with_service};
use crate::remote_server::{DAYTONA, E2B, RemoteService, SERVICE, ServerKind, configure};

fn sockets_pass(kind: &'static ServerKind) {
    run_with(Options::default(), async |w| {
        let service = RemoteService::start(w, "debian").await;
        let account = service.account().await;
        let proxy = FaultProxy::start(SERVICE.parse().unwrap()).await;
        configure(w, kind, &proxy, account.key(), "debian").await;
        let client = w.first_tenant().await;
        let id = client.create(json!({ "provider": "cloud" })).await;
        web_socket::converse(&client, &id).await;
        client.remove(&id).await;
        forget_providers(w);
        service.uninstall().await;
    });
}

#[test]
fn a_socket_to_a_sandbox_at_e2b_carries_messages_both_ways() {
    sockets_pass(&E2B);
}

#[test]
fn a_socket_to_a_sandbox_at_daytona_carries_messages_both_ways() {
    sockets_pass(&DAYTONA);
}

#[test]
fn a_socket_to_a_sandbox_at_agentbay_carries_messages_both_ways() {
    run_with(Options::debian(), async |w| {
        let (_service, _proxy) = with_service(w).await;
        let client = w.first_tenant().await;
        let id = client.create(json!({ "provider": "bay" })).await;
        web_socket::converse(&client, &id).await;
        client.remove(&id).await;
        forget_providers(w);
    });
}
