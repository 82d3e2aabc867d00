//! Connecting into sandboxes.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use atoll_network::{DialError, Dialer, DialerConfig, loopback_up, netns};
use tokio::io::AsyncReadExt;

const DEADLINE: Duration = Duration::from_secs(20);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn namespace_with_loopback() -> std::os::fd::OwnedFd {
    let namespace = netns::create().unwrap();
    netns::run_in(namespace.as_fd(), loopback_up).unwrap().unwrap();
    namespace
}

fn listen(namespace: &std::os::fd::OwnedFd, greeting: &'static [u8]) -> u16 {
    let listener =
        netns::run_in(namespace.as_fd(), || TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap().unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(greeting);
        }
    });
    port
}

#[test]
fn dial_reaches_the_port_inside_and_threads_return_home() {
    let (one, other) = (namespace_with_loopback(), namespace_with_loopback());
    let (one_port, other_port) = (listen(&one, b"one"), listen(&other, b"other"));
    let dialer = Dialer::start(DialerConfig::default()).unwrap();
    let home = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    runtime().block_on(async {
        for _ in 0..20 {
            let mut said = String::new();
            let mut stream = dialer.dial(one.as_fd(), one_port, DEADLINE).await.unwrap();
            assert!(stream.nodelay().unwrap());
            stream.read_to_string(&mut said).await.unwrap();
            let mut stream = dialer.dial(other.as_fd(), other_port, DEADLINE).await.unwrap();
            stream.read_to_string(&mut said).await.unwrap();
            assert_eq!(said, "oneother");
        }
    });
    // An idle dialer must not keep a dead sandbox's namespace alive.
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if name.starts_with("dialer") {
            assert_eq!(std::fs::metadata(task.path().join("ns/net")).unwrap().ino(), home);
        }
    }
}

#[test]
fn a_listener_takes_connections_of_its_namespace_and_leaves_a_taken_port() {
    let (one, other) = (namespace_with_loopback(), namespace_with_loopback());
    let taken = listen(&other, b"mine");
    let dialer = Dialer::start(DialerConfig::default()).unwrap();
    runtime().block_on(async {
        assert!(dialer.listen(other.as_fd(), taken).await.unwrap().is_none());
        let listener = dialer.listen(one.as_fd(), taken).await.unwrap().unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
        for _ in 0..2 {
            let dialled = dialer.dial(one.as_fd(), taken, DEADLINE);
            let (accepted, dialled) = tokio::join!(listener.accept(), dialled);
            drop((accepted.unwrap(), dialled.unwrap()));
        }
        // Closed connections do not hold the port.
        drop(listener);
        assert!(dialer.listen(one.as_fd(), taken).await.unwrap().is_some());
    });
}

#[test]
fn a_port_nobody_listens_on_is_refused() {
    let namespace = namespace_with_loopback();
    let dialer = Dialer::start(DialerConfig::default()).unwrap();
    let result = runtime().block_on(dialer.dial(namespace.as_fd(), 1, DEADLINE));
    assert!(matches!(result, Err(DialError::Refused { port: 1 })), "{result:?}");
}

#[test]
fn a_listener_that_never_accepts_holds_up_nobody_else() {
    let (stubborn, friendly) = (namespace_with_loopback(), namespace_with_loopback());
    let listener = netns::run_in(stubborn.as_fd(), || {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)?;
        rustix::net::bind(&socket, &std::net::SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7001))?;
        rustix::net::listen(&socket, 0)?;
        Ok::<_, rustix::io::Errno>(socket)
    })
    .unwrap()
    .unwrap();
    let port = listen(&friendly, b"hello");
    let dialer = Dialer::start(DialerConfig { threads: 1, queue_len: 16 }).unwrap();
    runtime().block_on(async {
        let mut held = Vec::new();
        let mut timed_out = 0;
        for _ in 0..4 {
            match dialer.dial(stubborn.as_fd(), 7001, Duration::from_millis(100)).await {
                Ok(stream) => held.push(stream),
                Err(DialError::TimedOut { .. }) => timed_out += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(timed_out > 0, "the backlog never filled");
        let started_at = Instant::now();
        let waiting = dialer.dial(stubborn.as_fd(), 7001, Duration::from_secs(5));
        let quick = dialer.dial(friendly.as_fd(), port, DEADLINE);
        let (waiting, quick) = tokio::join!(waiting, async {
            let result = quick.await;
            (result, started_at.elapsed())
        });
        assert!(waiting.is_err() && quick.0.is_ok());
        assert!(quick.1 < Duration::from_secs(4), "{:?}", quick.1);
    });
    drop(listener);
}

#[test]
fn a_full_queue_says_busy_at_once() {
    let namespace = namespace_with_loopback();
    let dialer = Dialer::start(DialerConfig { threads: 1, queue_len: 1 }).unwrap();
    let results = runtime().block_on(async {
        let dials: Vec<_> = (0..2000).map(|_| dialer.dial(namespace.as_fd(), 1, DEADLINE)).collect();
        futures_join(dials).await
    });
    let busy = results.iter().filter(|result| matches!(result, Err(DialError::Busy))).count();
    let answered = results.iter().filter(|result| matches!(result, Err(DialError::Refused { .. }))).count();
    assert!(busy > 0 && answered > 0, "{busy} busy, {answered} answered");
    assert_eq!(busy + answered, results.len());
}

/// Polls all of them concurrently, so that they compete for the queue.
async fn futures_join<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    results.into_iter().flatten().collect()
}
