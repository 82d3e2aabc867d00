//! Below names: false addresses and frames (N04), neighbours (N05), floods (N06), and lists of addresses.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::process::Command;
use std::time::Duration;

use atoll_tests::connection_probes::{
    came_to_nothing, guarded, logged, reach, reach_as_root, reach_in_turn, try_one,
};
use atoll_tests::internet::{EVIL, EVIL6, GOOD, GREETING, HOST6, OTHER, PUBLIC};
use atoll_tests::{Client, Options, Value, World, json, run_with};

fn run(body: impl AsyncFnOnce(&World) + Send) {
    run_with(Options::debian(), body);
}

async fn address_of(client: &Client, id: &str) -> String {
    let own = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('8.8.8.8', 9)); print(s.getsockname()[0])";
    client.exec(id, json!({ "argv": ["python3", "-c", own] })).await.text().to_owned()
}

/// The address of a sandbox that may not send a datagram anywhere.
async fn address_of_named(w: &World, id: &str) -> String {
    let own = "import fcntl, socket, struct; s = socket.socket(); print(socket.inet_ntoa(fcntl.ioctl(s, 0x8915, struct.pack('256s', b'eth0'))[20:24]))";
    with_all_rights(w, id, own, &[]).await
}

/// A python program of the host inside a sandbox' network namespace, with all the rights that no sandbox has.
async fn with_all_rights(w: &World, id: &str, code: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("nsenter");
    command.args(["-t", &w.agent_pid(id).to_string(), "-n", "python3", "-c", code]).args(arguments);
    let done = w.output(command).await;
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Frames that no honest sandbox sends, from its own eth0: false senders, ARP, router advertisements, VLANs, DHCP, multicast.
const FORGE: &str = r#"
import socket, struct, sys
own, neighbour, target, honest = sys.argv[1:5]
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("eth0", 0))
mac = s.getsockname()[4]
a = socket.inet_aton
def total(b):
    if len(b) % 2: b += b"\0"
    n = sum(struct.unpack(">%dH" % (len(b) // 2), b))
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return ~n & 0xffff
def packet(source, to, port, ttl=64, options=b""):
    udp = struct.pack(">HHHH", 4242, port, 8 + 6, 0) + b"forged"
    words = 5 + len(options) // 4
    head = struct.pack(">BBHHHBBH4s4s", 0x40 | words, 0, words * 4 + len(udp), 7, 0, ttl, 17, 0, a(source), a(to)) + options
    return head[:10] + struct.pack(">H", total(head)) + head[12:] + udp
def frame(kind, payload, to=mac, by=mac): return to + by + struct.pack(">H", kind) + payload
everybody, other = b"\xff" * 6, b"\x02\0\0\0\0\x99"
arp = struct.pack(">HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 2, other, a("169.254.0.1"), everybody, a(neighbour))
ra = struct.pack(">IHBB", 6 << 28, 16, 58, 255) + socket.inet_pton(socket.AF_INET6, "fe80::1") + socket.inet_pton(socket.AF_INET6, "ff02::1") + struct.pack(">BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
sent = 0
for one in [
    frame(0x0800, packet(neighbour, target, 7)),
    frame(0x0800, packet("203.0.113.77", target, 7)),
    frame(0x0800, packet("169.254.0.1", target, 7)),
    frame(0x0800, packet("127.0.0.1", target, 7)),
    frame(0x0800, packet("198.18.0.2", target, 7)),
    frame(0x0800, packet(neighbour, own, 7)),
    frame(0x0800, packet(target, neighbour, 7)),
    frame(0x0800, packet(own, neighbour, 7)),
    frame(0x0800, packet(own, "169.254.0.1", 67)),
    frame(0x0800, packet("0.0.0.0", "255.255.255.255", 67), everybody),
    frame(0x0800, packet(own, "224.0.0.251", 5353), b"\1\0\x5e\0\0\xfb"),
    frame(0x0800, packet(own, "10.1.2.3", 7)),
    frame(0x0800, packet(own, "169.254.169.254", 7, options=bytes([131, 7, 4]) + a(target) + b"\0")),
    frame(0x0800, packet(own, target, 9, options=bytes([131, 7, 4]) + a("10.1.2.3") + b"\0")),
    frame(0x0806, arp, everybody, other), frame(0x0806, arp),
    frame(0x86dd, ra, b"\x33\x33\0\0\0\1"), frame(0x86dd, ra),
    frame(0x8100, struct.pack(">HH", 7, 0x0800) + packet(neighbour, target, 7)),
    frame(0x88a8, struct.pack(">HH", 7, 0x0800) + packet(own, "10.1.2.3", 7)),
    frame(0x88cc, b"\2\7\4" + other), frame(0x0800, b"\x45"), frame(0x0800, b""), frame(0x0800, bytes(60)),
]:
    for by in range(3): s.send(one); sent += 1
# The control: the same way of sending, with nothing false in it.
s.send(frame(0x0800, packet(own, honest, 7)))
print(sent)
"#;

/// Packets of protocols that no gate reads, to an address that a name opened.
const ODD: &str = r#"
import socket, struct, sys
own, target = sys.argv[1:3]
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("eth0", 0))
mac = s.getsockname()[4]
def total(b):
    n = sum(struct.unpack(">%dH" % (len(b) // 2), b))
    while n >> 16: n = (n & 0xffff) + (n >> 16)
    return ~n & 0xffff
for protocol in (1, 4, 17, 33, 41, 47, 50, 132, 136, 255):
    for fragment in (0, 0x2000, 0x0001):
        body = bytes([8, 0, 0xf7, 0xff]) + bytes(20) if protocol == 1 else struct.pack(">HHHH", 443, 443, 24, 0) + bytes(16)
        head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 9, fragment, 64, protocol, 0, socket.inet_aton(own), socket.inet_aton(target))
        s.send(mac + mac + b"\x08\0" + head[:10] + struct.pack(">H", total(head)) + head[12:] + body)
print("sent")
"#;

/// Whatever comes to eth0 within a while and was not sent from here.
const LISTEN: &str = r#"
import socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("eth0", 0)); s.settimeout(0.1)
end, got = time.time() + float(sys.argv[1]), []
while time.time() < end:
    try: data, where = s.recvfrom(4096)
    except TimeoutError: continue
    if where[2] != 4: got.append(data[:60].hex())
print(len(got), got[:3])
"#;

#[test]
fn n04_forged_packets_and_frames_end_at_the_port() {
    run(async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let neighbour = guarded(w, &other, json!("allow-all")).await;
        let id = guarded(
            w,
            &client,
            json!({ "mode": "custom", "allow_cidrs": [format!("{OTHER}/32"), format!("{EVIL}/32")] }),
        )
        .await;
        // From inside there is no raw socket, for root neither; a false sender can be written on a datagram.
        let own = address_of(&client, &id).await;
        let far = address_of(&other, &neighbour).await;
        let raw = json!([
            { "do": "raw", "family": "AF_PACKET", "protocol": 3 },
            { "do": "raw", "family": "AF_INET", "protocol": 1 },
            { "do": "raw", "family": "AF_INET", "protocol": 255 },
            { "do": "raw", "family": "AF_INET6", "protocol": 58 },
        ]);
        for (task, result) in
            raw.as_array().unwrap().iter().zip(reach_as_root(&client, &id, raw.clone()).await)
        {
            let said = result["error"].as_str().unwrap_or_default();
            assert!(said.contains("PermissionError") || said.contains("not supported"), "{task}: {result}");
        }
        assert_eq!(
            try_one(&client, &id, json!({ "do": "udp", "host": OTHER, "port": 7, "from": own })).await["got"],
            "hi",
            "the control"
        );
        w.internet.forget();
        let false_sender =
            |from: &str, to: &str| json!({ "do": "udp", "host": to, "port": 7, "from": from, "limit": 1 });
        let tasks = json!([
            false_sender(&far, &EVIL.to_string()),
            false_sender("203.0.113.77", &EVIL.to_string()),
            false_sender(PUBLIC, &far),
            { "do": "udp", "host": "255.255.255.255", "port": 7, "broadcast": true, "connect": false, "limit": 1 },
            { "do": "udp", "host": "224.0.0.251", "port": 5353, "connect": false, "limit": 1 },
            { "do": "udp", "host": "ff02::1", "port": 5353, "connect": false, "limit": 1 },
        ]);
        for (task, result) in
            tasks.as_array().unwrap().iter().zip(reach_as_root(&client, &id, tasks.clone()).await)
        {
            assert!(result["error"].is_string(), "{task}: {result}");
        }
        w.internet.untouched(EVIL, "false senders");
        // Even with all rights inside, frames with a foreign address end at the sandbox's port.
        let listening = with_all_rights(w, &neighbour, LISTEN, &["1.6"]);
        let forging = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            with_all_rights(w, &id, FORGE, &[&own, &far, &EVIL.to_string(), &OTHER.to_string()]).await
        };
        let (heard, sent) = tokio::join!(listening, forging);
        assert!(sent.parse::<u32>().unwrap() > 60, "{sent}");
        assert!(heard.starts_with("0 "), "the neighbour heard {heard}");
        // An address that a name opened takes TCP through the gate and nothing else.
        let named = guarded(w, &client, json!({ "mode": "custom", "allow_domains": ["good.test"] })).await;
        let resolved = try_one(&client, &named, json!({ "do": "dns", "name": "good.test" })).await;
        assert_eq!(resolved["addresses"], json!([GOOD]));
        let named_address = address_of_named(w, &named).await;
        with_all_rights(w, &named, ODD, &[&named_address, &GOOD.to_string()]).await;
        w.internet.untouched(GOOD, "odd protocols");
        with_all_rights(w, &neighbour, ODD, &[&far, &GOOD.to_string()]).await;
        let came = w.internet.packets(GOOD);
        assert!(came.contains_key(&(1, 0)) && came.contains_key(&(47, 0)), "the control: {came:?}");
        w.internet.unharmed("forged frames");
        let udp = 17;
        assert!(w.internet.packets(OTHER).contains_key(&(udp, 7)), "the control: an honest frame passes");
        assert_eq!(
            try_one(&client, &id, json!({ "do": "udp", "host": OTHER, "port": 7 })).await["got"],
            "hi"
        );
        assert_eq!(
            reach(&other, &neighbour, json!([{ "do": "url", "url": "http://good.test/" }])).await[0]["body"],
            GREETING
        );
    });
}

#[test]
fn n05_neighbours_are_out_of_reach_whatever_a_policy_names() {
    run(async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let neighbour = guarded(w, &other, json!("allow-all")).await;
        let serve = json!({ "argv": ["python3", "-m", "http.server", "8000"], "detach": true });
        other.try_exec(&neighbour, serve).await.ok();
        let far = address_of(&other, &neighbour).await;
        let own = json!({ "do": "tcp", "host": far, "port": 8000, "send": "GET / HTTP/1.0\r\n\r\n" });
        atoll_tests::until("the neighbour serves", async || {
            let control = try_one(&other, &neighbour, own.clone()).await;
            control["got"].as_str().is_some_and(|got| got.contains("200 OK")).then_some(())
        })
        .await;
        for never in [
            "100.64.0.0/10",
            "169.254.0.0/16",
            "127.0.0.0/8",
            &format!("{far}/32"),
            "198.18.0.0/15",
            "168.63.129.16/32",
            "10.0.0.0/8",
            "fe80::/10",
            "fd00::/8",
        ] {
            let asked = json!({ "network": { "mode": "custom", "allow_cidrs": [never] } });
            client.post("/v1/sandboxes", asked).await.refused(400, "invalid_request");
        }
        for policy in [
            json!("allow-all"),
            json!({ "mode": "custom", "allow_cidrs": ["0.0.0.0/0"], "allow_domains": ["*"] }),
        ] {
            let id = guarded(w, &client, policy.clone()).await;
            let mut tasks = vec![own.clone()];
            for host in [far.as_str(), "169.254.0.1", "198.18.0.1", "198.18.0.2", "203.0.113.2"] {
                tasks.extend([8000, 7070, 49983, 3129].map(|port| json!({ "do": "tcp", "host": host, "port": port, "send": "GET / HTTP/1.0\r\n\r\n" })));
                tasks.push(json!({ "do": "udp", "host": host, "port": 8000, "limit": 1 }));
            }
            for (task, result) in tasks.iter().zip(reach(&client, &id, json!(tasks)).await) {
                assert!(came_to_nothing(&result), "{policy}: {task}: {result}");
            }
            assert_eq!(
                try_one(&client, &id, json!({ "do": "url", "url": "http://good.test/" })).await["body"],
                GREETING,
                "{policy}"
            );
            logged(&client, &id, json!({ "what": "flow", "verdict": "refused", "address": far, "port": 8000, "protocol": "tcp" })).await;
        }
        w.internet.unharmed("neighbours");
    });
}

#[test]
fn lists_of_addresses_let_every_protocol_pass_and_denials_win() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let policy = json!({ "mode": "custom", "allow_cidrs": ["198.51.100.0/24"], "deny_cidrs": ["198.51.100.64/26"], "allow_domains": ["good.test", "evil.test"] });
        let id = guarded(w, &client, policy).await;
        let ways = |to: std::net::Ipv4Addr| {
            json!([
                { "do": "tcp", "host": to, "port": 22, "send": "hello", "half": true },
                { "do": "udp", "host": to, "port": 443 },
                { "do": "tls", "host": to, "port": 443, "sni": "whatever.test", "send": "GET / HTTP/1.0\r\n\r\n" },
            ])
        };
        for result in reach(&client, &id, ways(OTHER)).await {
            assert!(!came_to_nothing(&result), "{result}");
        }
        for result in reach(&client, &id, ways(EVIL)).await {
            assert!(came_to_nothing(&result), "{result}");
        }
        // A denied address is not opened by its name either.
        let named = try_one(&client, &id, json!({ "do": "url", "url": "http://evil.test/" })).await;
        assert!(named["error"].is_string(), "{named}");
        logged(
            &client,
            &id,
            json!({ "what": "dns", "verdict": "refused", "name": "evil.test", "rule": "deny_cidrs" }),
        )
        .await;
        assert_eq!(
            try_one(&client, &id, json!({ "do": "url", "url": "http://good.test/" })).await["body"],
            GREETING
        );
        assert!(came_to_nothing(
            &try_one(
                &client,
                &id,
                json!({ "do": "tcp", "host": PUBLIC, "port": 80, "send": "GET / HTTP/1.0\r\n\r\n" })
            )
            .await
        ));
        w.internet.unharmed("a denied address");
        let flow = logged(
            &client,
            &id,
            json!({ "what": "flow", "verdict": "allowed", "address": OTHER, "port": 22 }),
        )
        .await;
        assert!(flow["sent"].as_u64() > Some(5), "{flow}");
        // Everything but a part of it; names stay free.
        let id =
            guarded(w, &client, json!({ "mode": "allow-all", "deny_cidrs": [format!("{EVIL}/32")] })).await;
        for result in reach(&client, &id, ways(EVIL)).await {
            assert!(came_to_nothing(&result), "{result}");
        }
        for result in reach(&client, &id, ways(GOOD)).await {
            assert!(!came_to_nothing(&result), "{result}");
        }
        assert_eq!(
            try_one(&client, &id, json!({ "do": "url", "url": "http://other.test/" })).await["body"],
            GREETING
        );
        w.internet.unharmed("all but one");
    });
}

#[test]
fn n02_ipv6_is_no_side_door() {
    run(async |w| {
        let client = w.tenant("acme").await;
        let ways = json!([
            { "do": "tcp", "host": EVIL6, "port": 80, "send": "GET / HTTP/1.0\r\n\r\n" },
            { "do": "udp", "host": EVIL6, "port": 443 },
            { "do": "dns", "server": EVIL6, "name": "secret-data.test" },
            { "do": "tcp", "host": format!("64:ff9b::{EVIL}"), "port": 80, "send": "GET / HTTP/1.0\r\n\r\n" },
            { "do": "tcp", "host": "fe80::1%eth0", "port": 7070, "send": "GET / HTTP/1.0\r\n\r\n" },
        ]);
        for policy in [
            json!("deny-all"),
            json!("allow-all"),
            json!({ "mode": "custom", "allow_domains": ["*"] }),
            json!({ "mode": "custom", "allow_cidrs": ["0.0.0.0/0"], "deny_cidrs": ["2001:db8::/32"] }),
        ] {
            let id = guarded(w, &client, policy.clone()).await;
            for (way, result) in ways.as_array().unwrap().iter().zip(reach(&client, &id, ways.clone()).await)
            {
                assert!(came_to_nothing(&result), "{policy}: {way}: {result}");
            }
        }
        w.internet.unharmed("IPv6");
        // A range that is named is reached, or refused in words where it cannot be; never silently left out.
        let named = json!({ "network": { "mode": "custom", "allow_cidrs": ["2001:db8:66::/64"] } });
        let made = client.post("/v1/sandboxes", named).await;
        if made.status == 501 {
            made.refused(501, "unsupported");
        } else {
            let id = made.ok()["id"].as_str().unwrap().to_owned();
            for (n, result) in reach(&client, &id, ways.clone()).await.iter().enumerate() {
                // The first three are the evil one's address, in the range; the last two are not.
                assert_eq!(!came_to_nothing(result), n < 3, "{n}: {result}");
            }
            let host = json!({ "do": "tcp", "host": HOST6, "port": 7070, "send": "GET / HTTP/1.0\r\n\r\n" });
            assert!(came_to_nothing(&try_one(&client, &id, host).await), "the host by IPv6");
            w.internet.forget();
        }
        assert!(w.internet.questions_with("secret-data").is_empty());
    });
}

/// Opens as many connections and sends as many datagrams as it can for some seconds.
const STORM: &str = r#"
import errno, itertools, os, socket, sys, threading, time
end, target = time.time() + float(sys.argv[1]), sys.argv[2]
count = {"connected": 0, "refused": 0, "datagrams": 0}
def streams():
    held = []
    while time.time() < end:
        s = socket.socket(); s.setblocking(False)
        try:
            code = s.connect_ex((target, 7))
            if code in (0, errno.EINPROGRESS): held.append(s); count["connected"] += 1
            else: s.close(); count["refused"] += 1
        except OSError: count["refused"] += 1
        if len(held) > 3500:
            for old in held[:500]: old.close()
            del held[:500]
def datagrams():
    for n in itertools.count():
        if time.time() > end: return
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try: s.sendto(b"x" * 32, (target, 1024 + n % 60000)); count["datagrams"] += 1
        except OSError: pass
        s.close()
threads = [threading.Thread(target=f) for f in (streams, datagrams)]
[t.start() for t in threads]; [t.join() for t in threads]
print(count["connected"], count["refused"], count["datagrams"])
"#;

#[test]
fn n06_a_storm_of_connections_stays_the_sandboxs_own() {
    run(async |w| {
        let (client, other) = (w.tenant("acme").await, w.tenant("other").await);
        let witness = w.witness().await;
        let calm = guarded(w, &other, json!({ "mode": "custom", "allow_domains": ["good.test"] })).await;
        let limited = json!({ "mode": "custom", "allow_cidrs": [format!("{OTHER}/32")], "limits": { "connections": 500 } });
        let through_the_gate = json!({ "mode": "custom", "allow_domains": ["other.test"] });
        for policy in [json!("allow-all"), limited, through_the_gate] {
            let id = guarded(w, &client, policy.clone()).await;
            try_one(&client, &id, json!({ "do": "dns", "name": "other.test" })).await;
            let argv = json!(["python3", "-c", STORM, "3", OTHER]);
            let storm = client.exec(&id, json!({ "argv": argv, "timeout_s": 100, "user": "root" }));
            let work = async {
                tokio::time::sleep(Duration::from_millis(600)).await;
                let tasks: Vec<Value> =
                    (0..8).map(|_| json!({ "do": "url", "url": "http://good.test/" })).collect();
                let inside = reach_in_turn(&other, &calm, json!(tasks)).await;
                // The host connects, too.
                let host = reqwest::get("http://other.test/").await.unwrap().text().await.unwrap();
                (inside, host)
            };
            let (storm, (inside, host)) = tokio::join!(storm, work);
            let counts: Vec<u64> = storm.text().split(' ').map(|n| n.parse().unwrap()).collect();
            assert!(counts[0] + counts[1] + counts[2] > 3_000, "the storm was none: {counts:?}");
            assert_eq!(host, GREETING);
            for result in &inside {
                assert_eq!(result["body"], GREETING, "{policy}: {result}");
            }
            // A storm that is in the way is in the way of most of them; one or two may have met a busy moment of the machine.
            let quick = inside.iter().filter(|result| result["took"].as_f64() < Some(2.0)).count();
            assert!(quick >= 6, "{policy}: {quick} of {} were answered soon: {inside:?}", inside.len());
            // A scan of the host finds nothing, and is over soon.
            let scan: Vec<Value> = [22, 80, 443, 2375, 3129, 7070, 7443, 8080, 49983]
                .iter()
                .flat_map(|port| ["203.0.113.2", "198.18.0.1", "169.254.0.1"].map(|host| json!({ "do": "tcp", "host": host, "port": port, "send": "GET / HTTP/1.0\r\n\r\n", "limit": 2 })))
                .collect();
            for (task, result) in scan.iter().zip(reach(&client, &id, json!(scan)).await) {
                assert!(came_to_nothing(&result), "{task}: {result}");
            }
            client.remove(&id).await;
        }
        witness.verify().await;
    });
}
