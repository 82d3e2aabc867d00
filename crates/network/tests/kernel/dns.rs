//! DNS through the router.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_model::SandboxId;
use atoll_model::policy::egress::Egress;
use atoll_network::{Fresh, GATEWAY, Gate, Upstreams, netns};

use crate::kernel::world::{INTERNET, QUICK, SILENCE, Sandbox, World};

const QUESTION: &[u8] =
    b"\xab\xcd\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x04test\x00\x00\x01\x00\x01";
const ANSWER_TAIL: &[u8] = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\x01\x02\x03\x04";

/// A name server that first sends a forged answer, then the right one. It answers over TCP with many records.
fn serve_names(world: &World) {
    let any = (Ipv4Addr::UNSPECIFIED, 53);
    let (udp, tcp) = netns::run_in(world.internet.as_fd(), || {
        (UdpSocket::bind(any).unwrap(), TcpListener::bind(any).unwrap())
    })
    .unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0u8; 2048];
        while let Ok((len, from)) = udp.recv_from(&mut buffer) {
            let answer = answer(&buffer[..len], 1);
            let mut forged = answer.clone();
            forged[0] ^= 0xff;
            let _ = udp.send_to(&forged, from);
            let _ = udp.send_to(&answer, from);
        }
    });
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = tcp.accept() {
            let mut len = [0u8; 2];
            if stream.read_exact(&mut len).is_err() {
                continue;
            }
            let mut question = vec![0u8; usize::from(u16::from_be_bytes(len))];
            let _ = stream.read_exact(&mut question);
            let answer = answer(&question, 400);
            let _ = stream.write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes());
            let _ = stream.write_all(&answer);
        }
    });
}

fn answer(question: &[u8], records: u16) -> Vec<u8> {
    let mut bytes = question.to_vec();
    bytes[2] |= 0x80;
    bytes[6..8].copy_from_slice(&records.to_be_bytes());
    for _ in 0..records {
        bytes.extend_from_slice(ANSWER_TAIL);
    }
    bytes
}

/// Runs the gate as the server does: listening in the router, asking from the host; every sandbox has an open policy.
fn serve(world: &World, guests: &[&Sandbox], upstreams: Vec<SocketAddr>) -> tokio::sync::oneshot::Sender<()> {
    let router = world.router().namespace();
    let fresh = Arc::new(Fresh::open(router).unwrap());
    let gate = Gate::bind(router, Upstreams::fixed(upstreams), fresh, Arc::new(|_, _| {})).unwrap();
    for guest in guests {
        gate.admit(guest.link, &SandboxId::from_entropy([7; 20]), Arc::new(Egress::open()));
    }
    let host = world.host.try_clone().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        netns::join(host.as_fd()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::select! {
                result = gate.run() => panic!("{result:?}"),
                _ = stopped => {}
            }
        });
    });
    stop
}

fn ask_udp(sandbox: &Sandbox, wait: Duration) -> std::io::Result<Vec<u8>> {
    sandbox.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((GATEWAY, 53))?;
        socket.set_read_timeout(Some(wait))?;
        socket.send(QUESTION)?;
        let mut buffer = vec![0u8; 4096];
        let len = socket.recv(&mut buffer)?;
        buffer.truncate(len);
        Ok(buffer)
    })
}

fn ask_tcp(sandbox: &Sandbox) -> std::io::Result<Vec<u8>> {
    sandbox.inside(|| {
        let mut stream = TcpStream::connect_timeout(&(GATEWAY, 53).into(), SILENCE)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let mut framed = u16::try_from(QUESTION.len()).unwrap().to_be_bytes().to_vec();
        framed.extend_from_slice(QUESTION);
        stream.write_all(&framed)?;
        let mut len = [0u8; 2];
        stream.read_exact(&mut len)?;
        let mut answer = vec![0u8; usize::from(u16::from_be_bytes(len))];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    })
}

#[test]
fn open_sandbox_resolves_names_over_udp_and_tcp() {
    let mut world = World::new();
    serve_names(&world);
    let sandbox = world.sandbox(&Egress::open());
    let _stop = serve(&world, &[&sandbox], vec![(INTERNET, 53).into()]);
    assert_eq!(ask_udp(&sandbox, SILENCE).unwrap(), answer(QUESTION, 1));
    assert_eq!(ask_tcp(&sandbox).unwrap(), answer(QUESTION, 400));
}

#[test]
fn closed_sandbox_gets_no_names() {
    let mut world = World::new();
    serve_names(&world);
    let sandbox = world.sandbox(&Egress::closed());
    let _stop = serve(&world, &[&sandbox], vec![(INTERNET, 53).into()]);
    let started_at = Instant::now();
    assert!(ask_udp(&sandbox, SILENCE).is_err());
    assert!(ask_tcp(&sandbox).is_err());
    assert!(started_at.elapsed() < QUICK, "refusal took {:?}", started_at.elapsed());
    world.handle().set_policy(sandbox.link, &Egress::open(), sandbox.namespace.as_fd()).unwrap();
    assert!(ask_udp(&sandbox, SILENCE).is_ok());
}

#[test]
fn a_dead_name_server_is_passed_over_and_none_at_all_is_said() {
    let mut world = World::new();
    serve_names(&world);
    let sandbox = world.sandbox(&Egress::open());
    {
        let _stop = serve(&world, &[&sandbox], vec![(INTERNET, 5).into(), (INTERNET, 53).into()]);
        assert_eq!(ask_udp(&sandbox, SILENCE * 2).unwrap(), answer(QUESTION, 1));
    }
    let _stop = wait_and_serve(&world, &sandbox, vec![]);
    let failure = ask_udp(&sandbox, SILENCE).unwrap();
    assert_eq!(failure[3] & 0xf, 2, "SERVFAIL");
}

/// The first gate releases its port slightly after it is stopped.
fn wait_and_serve(
    world: &World,
    guest: &Sandbox,
    upstreams: Vec<SocketAddr>,
) -> tokio::sync::oneshot::Sender<()> {
    let started_at = Instant::now();
    while world.in_router(|| UdpSocket::bind((GATEWAY, 53)).is_err()) {
        assert!(started_at.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
    serve(world, &[guest], upstreams)
}
