"""What every test of the E2B front shares: sandboxes that are gone afterwards, an app inside, requests past the SDK, patience.

Started by tests/tests/e2b.rs against a real server, with exactly the variables that `atoll env e2b` prints, plus
E2B_OTHER_KEY, the key of another tenant. Nothing of the SDK is changed.
"""

import asyncio
import http.client
import json
import os
import time
import unittest
import urllib.parse

from e2b_code_interpreter import AsyncSandbox, Sandbox as CodeSandbox
from e2b import Sandbox

# An app that says what it received and counts in memory; standard library only.
APP = r"""
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

count = 0

class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        global count
        count += 1
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        said = {"path": self.path, "method": self.command, "body": body, "count": count, "names": list(self.headers.keys()),
                "headers": {k.lower(): v for k, v in self.headers.items()}}
        data = json.dumps(said).encode()
        self.send_response(200); self.send_header("content-length", str(len(data))); self.end_headers()
        self.wfile.write(data)
    do_POST = do_GET

ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), App).serve_forever()
"""

# A process whose memory is its state: every line it is told through a pipe makes it count.
COUNTER = r"""
import os, time
path = "/tmp/count"
n = 0
while True:
    n += 1
    with open(path + ".new", "w") as f: f.write("%d %d" % (os.getpid(), n))
    os.rename(path + ".new", path)
    time.sleep(0.02)
"""


def until(what, check, within=60.0, every=0.05):
    """Waits for something true and answers it."""
    deadline = time.monotonic() + within
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(every)


async def until_async(what, check, within=60.0, every=0.05):
    """As `until`; the check may be a coroutine function."""
    deadline = time.monotonic() + within
    while True:
        found = check()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what}")
        await asyncio.sleep(every)


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.body = response.read()

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.body[:300]!r}>"


def raw(method, url, headers=None, body=None, host=None):
    """One plain HTTP request, as somebody without the SDK would send it."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        path = parts.path + ("?" + parts.query if parts.query else "")
        fields = dict(headers or {})
        if host:
            fields["Host"] = host
        connection.request(method, path or "/", body=body, headers=fields)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def door():
    """Where the data plane answers."""
    return os.environ["E2B_SANDBOX_URL"]


def api(method, path, body=None, key=None):
    """One request to the control API."""
    headers = {"X-API-KEY": key or os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    return raw(method, os.environ["E2B_API_URL"] + path, headers, None if body is None else json.dumps(body))


def native(method, path, body=None):
    """One request to Atoll's own API, as by its command line."""
    url = os.environ["E2B_API_URL"].removesuffix("/e2b") + path
    headers = {"Authorization": "Bearer " + os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    return raw(method, url, headers, None if body is None else json.dumps(body))


def envd(sandbox, method, path, headers=None, body=None, port=49983, **other):
    """One request to the agent of a sandbox, without its token unless given."""
    fields = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port), **(headers or {})}
    return raw(method, door() + path, fields, body, **other)


def preview(sandbox, port, path="/", headers=None, method="GET", body=None):
    """A request to an app inside by the host that the SDK names. Names below localhost may have no address here."""
    return raw(method, door() + path, headers, body, host=sandbox.get_host(port))


def serve(sandbox, port=8000):
    """Starts the app in a sandbox and waits until it listens."""
    sandbox.files.write("/tmp/app.py", APP)
    sandbox.commands.run(f"setsid python3 /tmp/app.py {port} >/tmp/app.log 2>&1 </dev/null &")
    listens(sandbox, port)


def listens(sandbox, port):
    probe = f"grep -qi ':{port:04x} ' /proc/net/tcp && echo yes || true"
    until(f"port {port} listens", lambda: "yes" in sandbox.commands.run(probe).stdout)


def count(sandbox):
    """Starts the counter; answers its process id."""
    sandbox.files.write("/tmp/counter.py", COUNTER)
    sandbox.commands.run("setsid python3 /tmp/counter.py >/dev/null 2>&1 </dev/null &")
    until("the counter counts", lambda: sandbox.files.exists("/tmp/count"))
    return counted(sandbox)[0]


def counted(sandbox):
    """The counter's process id and how far it is."""
    pid, n = sandbox.files.read("/tmp/count").split()
    return int(pid), int(n)


class Case(unittest.TestCase):
    """`self.sandbox()` makes sandboxes that are gone afterwards."""

    def sandbox(self, *args, kind=Sandbox, **ask):
        made = kind.create(*args, **ask)
        self.addCleanup(made.kill)
        return made

    def fetch(self, sandbox, url, more=""):
        """What curl says inside: (exit code, output)."""
        ran = sandbox.commands.run(f"curl -sS -m 4 {more} {url} 2>&1; echo; echo $?")
        lines = ran.stdout.rstrip("\n").split("\n")
        return int(lines[-1]), "\n".join(lines[:-1]).strip()

    def reaches(self, sandbox, url, more=""):
        code, said = self.fetch(sandbox, url, more)
        self.assertEqual((code, "hello from the internet" in said), (0, True), f"{url}: {code} {said}")

    def reaches_not(self, sandbox, url, more=""):
        code, said = self.fetch(sandbox, url, more)
        self.assertNotIn("hello from the internet", said, f"{url} was reached")
        self.assertTrue(code != 0 or said, f"{url}: nothing said")


class Shared(Case):
    """Tests that may share one sandbox: `self.box`."""

    ask = {}
    kind = Sandbox

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.box = cls.kind.create(timeout=600, **cls.ask)

    @classmethod
    def tearDownClass(cls):
        cls.box.kill()
        super().tearDownClass()

    def sh(self, line, **more):
        return self.box.commands.run(line, **more).stdout


class AsyncCase(unittest.IsolatedAsyncioTestCase):
    """As `Case`, for the SDK's other half."""

    kind = AsyncSandbox

    async def sandbox(self, *args, kind=None, **ask):
        made = await (kind or self.kind).create(*args, **ask)
        self.ends(made)
        return made

    def ends(self, box):
        """Kills it afterwards. The SDK's method does not look like a coroutine function, and would not be waited for."""

        async def end():
            await box.kill()

        self.addAsyncCleanup(end)


class SharedCode(Shared):
    """Tests over one sandbox with the interpreter."""

    kind = CodeSandbox
