//! Streams over real sockets: a client that disconnects leaves nothing behind, and the closing of the server ends all
//! streams. These tests have a file of their own because the metrics they read are those of the whole process.
#![allow(clippy::disallowed_methods, reason = "tests own their tasks and read the wall clock")]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use crate::support::World;
use atoll_proxy::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

async fn open_streams(world: &World) -> u64 {
    let page = world.ask("GET", "/metrics", Some(&world.admin), None).await.text();
    let line = page.lines().find_map(|line| line.strip_prefix("atoll_http_streams "));
    line.map_or(0, |number| number.parse().unwrap())
}

async fn until_open(world: &World, wanted: u64) {
    for _ in 0..6_000 {
        if open_streams(world).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} streams are open, not {wanted}", open_streams(world).await);
}

#[tokio::test]
async fn followers_that_vanish_leave_nothing_and_closing_ends_the_rest() {
    let world = World::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let http = world.server(world.router.clone(), Limits::default());
    let server = tokio::spawn(async move {
        http.serve(listener).await;
        http.drain().await;
    });

    let follow = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET /v1/events?follow=1&after=0 HTTP/1.1\r\nHost: x\r\nX-API-Key: {}\r\n\r\n",
            world.admin
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut start = [0; 15];
        stream.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200 OK");
        stream
    };
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(follow().await);
    }
    until_open(&world, 20).await;
    clients.truncate(5);
    until_open(&world, 5).await;
    world.shutdown.begin();
    tokio::time::timeout(Duration::from_secs(8), server).await.expect("in time").unwrap();
    until_open(&world, 0).await;
}
