# Tries things from inside a sandbox, all at once, and tells what came of each. Standard library only.
# argv[1]: a JSON list of tasks; prints a JSON list with as many results, in order.
import json, os, socket, ssl, struct, sys, threading, time, urllib.error, urllib.request

KINDS = {"A": 1, "NS": 2, "CNAME": 5, "NULL": 10, "TXT": 16, "AAAA": 28, "SVCB": 64, "HTTPS": 65, "AXFR": 252, "ANY": 255}

def query(t):
    if "raw" in t:
        return bytes.fromhex(t["raw"])
    kind = t.get("kind", "A")
    kind = kind if isinstance(kind, int) else KINDS[kind]
    name = b"".join(bytes([len(l)]) + l.encode("latin-1") for l in t["name"].strip(".").split(".")) + b"\0"
    question = name + struct.pack(">HH", kind, t.get("class", 1))
    more = t.get("more", [])
    for other in more:
        question += b"".join(bytes([len(l)]) + l.encode() for l in other.split(".")) + b"\0" + struct.pack(">HH", 1, 1)
    return os.urandom(2) + struct.pack(">HHHHH", t.get("flags", 0x0100), 1 + len(more), 0, 0, 0) + question

def skip(m, at):
    while True:
        n = m[at]
        if n == 0: return at + 1
        if n & 0xC0: return at + 2
        at += 1 + n

def read_answer(m):
    flags, qd, an, ns, ar = struct.unpack(">HHHHH", m[2:12])
    at = 12
    for _ in range(qd): at = skip(m, at) + 4
    answers = []
    for _ in range(an + ns + ar):
        at = skip(m, at)
        kind, _, ttl, size = struct.unpack(">HHIH", m[at:at + 10])
        data = m[at + 10:at + 10 + size]
        at += 10 + size
        if kind == 41: continue
        shown = socket.inet_ntoa(data) if kind == 1 else data.hex()
        answers.append({"kind": kind, "ttl": ttl, "data": shown})
    return {"rcode": flags & 15, "truncated": bool(flags & 0x200), "answers": answers, "addresses": [a["data"] for a in answers if a["kind"] == 1]}

def gateway():
    for line in open("/proc/net/route").read().splitlines()[1:]:
        f = line.split()
        if f[1] == "00000000": return socket.inet_ntoa(struct.pack("<I", int(f[2], 16)))

def dns(t, limit):
    server = t.get("server") or gateway()
    q = query(t)
    if t.get("tcp"):
        with socket.create_connection((server, t.get("port", 53)), limit) as s:
            s.settimeout(limit)
            s.sendall(struct.pack(">H", len(q)) + q)
            f = s.makefile("rb")
            head = f.read(2)
            if len(head) < 2: return {"error": "closed"}
            return read_answer(f.read(struct.unpack(">H", head)[0]))
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.settimeout(limit)
        s.connect((server, t.get("port", 53)))
        s.send(q)
        return read_answer(s.recv(65535))

# Reads to the end, until nothing comes any more, or until a text came.
def until_end(s, limit, until):
    got, end = b"", time.time() + limit
    s.settimeout(limit)
    try:
        while time.time() < end and len(got) < 1 << 20:
            if until is not None and len(got) > 0 and until.encode("latin-1") in got: return got, "until"
            part = s.recv(65536)
            if not part: return got, "end"
            got += part
    except (socket.timeout, TimeoutError): return got, "quiet"
    except OSError as e: return got, type(e).__name__
    return got, "more"

def send_all(t, s, limit):
    for n, part in enumerate(t["send"] if isinstance(t["send"], list) else [t["send"]]):
        if n: time.sleep(t.get("pause", 0.2))
        try: s.sendall(bytes.fromhex(part[4:]) if part.startswith("hex:") else part.encode("latin-1"))
        except OSError: break
    if t.get("half"): s.shutdown(socket.SHUT_WR)
    got, how = until_end(s, t.get("quiet", limit), t.get("until"))
    return {"got": got.decode("latin-1")[:t.get("keep", 4000)], "bytes": len(got), "how": how}

def connect(t, limit):
    host = t.get("address") or t["host"]
    s = socket.create_connection((host, t["port"]), limit)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s

def tcp(t, limit):
    with connect(t, limit) as s:
        return send_all(t, s, limit)

def context(t):
    c = ssl.create_default_context(cafile=t.get("ca"))
    if not t.get("ca") and not t.get("verify"):
        c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    if t.get("alpn"): c.set_alpn_protocols(t["alpn"])
    return c

def tls(t, limit):
    with connect(t, limit) as plain, context(t).wrap_socket(plain, server_hostname=t.get("sni")) as s:
        done = send_all(t, s, limit)
        done["version"] = s.version()
        return done

def hello(t, limit):
    # A true client hello, bent: with one more extension, cut into records, or into segments.
    out = ssl.MemoryBIO()
    c = context({})
    o = c.wrap_bio(ssl.MemoryBIO(), out, server_hostname=t.get("sni"))
    try: o.do_handshake()
    except ssl.SSLWantReadError: pass
    m = bytearray(out.read())[5:]
    if t.get("sni_bytes"):
        old = t["sni"].encode()
        m = bytearray(bytes(m).replace(old, t["sni_bytes"].encode("latin-1")[:len(old)].ljust(len(old), b"x")))
    if t.get("ech"):
        at = 4 + 2 + 32
        at += 1 + m[at]
        at += 2 + struct.unpack(">H", m[at:at + 2])[0]
        at += 1 + m[at]
        more = struct.pack(">HH", 0xFE0D, 40) + bytes([0, 0, 1, 0, 1, 7]) + struct.pack(">H", 4) + b"\1\2\3\4" + struct.pack(">H", 26) + b"\x5a" * 26
        size = struct.unpack(">H", m[at:at + 2])[0] + len(more)
        m[at:at + 2] = struct.pack(">H", size)
        m += more
        m[1:4] = struct.pack(">I", len(m) - 4)[1:]
    records = [m[:t["records"]], m[t["records"]:]] if t.get("records") else [m]
    wire = b"".join(b"\x16\x03\x01" + struct.pack(">H", len(r)) + bytes(r) for r in records)
    parts = [wire[:t["split"]], wire[t["split"]:]] if t.get("split") else [wire]
    with connect(t, limit) as s:
        got = send_all({**t, "send": ["hex:" + p.hex() for p in parts]}, s, limit)
    got["answered"] = got["got"][:1] == "\x16"
    return got

def udp(t, limit):
    host = t["host"]
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(limit)
        if t.get("broadcast"): s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        if t.get("from"):
            s.setsockopt(socket.SOL_IP, 15, 1)
            s.bind((t["from"], 0))
        if t.get("connect", True): s.connect((host, t["port"])); s.send(t.get("send", "hi").encode())
        else: s.sendto(t.get("send", "hi").encode(), (host, t["port"]))
        return {"got": s.recv(65535).decode("latin-1")}

class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *a): return None

def url(t, limit):
    request = urllib.request.Request(t["url"], method=t.get("method"), headers=t.get("headers", {}), data=t["data"].encode() if "data" in t else None)
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=t.get("ca")))]
    if t.get("stay"): handlers.append(Stay())
    try: answer = urllib.request.build_opener(*handlers).open(request, timeout=limit)
    except urllib.error.HTTPError as e: answer = e
    body = answer.read()
    return {"status": answer.status, "body": body.decode("latin-1")[:t.get("keep", 4000)], "bytes": len(body), "headers": [[k.lower(), v] for k, v in answer.headers.items()]}

def raw(t, limit):
    socket.socket(getattr(socket, t["family"]), socket.SOCK_RAW, t.get("protocol", 1)).close()
    return {"got": "a raw socket"}

def run(t):
    limit = t.get("limit", 10)
    began = time.time()
    try: result = {"dns": dns, "tcp": tcp, "tls": tls, "hello": hello, "udp": udp, "url": url, "raw": raw}[t["do"]](t, limit)
    except Exception as e: result = {"error": f"{type(e).__name__}: {e}"}
    result["took"] = round(time.time() - began, 3)
    return result

tasks = json.loads(sys.argv[1])
results = [None] * len(tasks)
def work(n): results[n] = run(tasks[n])
in_turn = len(sys.argv) > 2 and sys.argv[2] == "in-turn"
if in_turn:
    for n in range(len(tasks)): work(n)
else:
    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(tasks))]
    for t in threads: t.start()
    for t in threads: t.join()
print(json.dumps(results))
