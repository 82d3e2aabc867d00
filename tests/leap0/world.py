"""What every test of the Leap0 front shares: the official client, a sandbox with an app inside, patience.

Started by tests/tests/leap0.rs against a real server; it sets LEAP0_API_KEY, LEAP0_BASE_URL, LEAP0_SANDBOX_DOMAIN,
SSL_CERT_FILE and HTTPS_PROXY. Nothing of the SDK is changed.
"""

import os
import time
import unittest

import httpx
from leap0 import Leap0Client

# An app that says what it received, counts in memory, streams events and answers WebSockets; standard library only.
APP = r'''
import base64, hashlib, json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

count = 0

class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        global count
        if self.headers.get("upgrade", "").lower() == "websocket": return self.socket()
        if self.path.startswith("/events"):
            self.send_response(200); self.send_header("content-type", "text/event-stream"); self.end_headers()
            self.close_connection = True
            for n in range(5):
                self.wfile.write(b"data: %d\n\n" % n); self.wfile.flush(); time.sleep(0.05)
            return
        count += 1
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        said = {"port": self.server.server_port, "path": self.path, "method": self.command, "body": body, "count": count,
                "headers": {k.lower(): v for k, v in self.headers.items()}}
        data = json.dumps(said).encode()
        self.send_response(200); self.send_header("content-length", str(len(data))); self.end_headers()
        self.wfile.write(data)
    do_POST = do_GET
    def socket(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("upgrade", "websocket"); self.send_header("connection", "Upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            first = self.rfile.read(2)
            if len(first) < 2 or first[0] & 15 == 8: return
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(first[1] & 127)))
            self.wfile.write(bytes([129, len(data)]) + data); self.wfile.flush()

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
'''


def client(**more):
    return Leap0Client(**more)


def http():
    """A plain HTTP client that trusts and is routed as the SDK's own."""
    return httpx.Client(timeout=60)


def key():
    return os.environ["LEAP0_API_KEY"]


def until(what, check, within=60.0):
    """Waits for something true and answers it."""
    deadline = time.monotonic() + within
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within} s: {what}")
        time.sleep(0.05)


def serve(sandbox, *ports):
    """Starts the app in a sandbox on each of the ports."""
    sandbox.filesystem.write_file(path="/tmp/app.py", content=APP)
    for port in ports:
        command = f"setsid python3 /tmp/app.py {port} >/tmp/app-{port}.log 2>&1 </dev/null &"
        started = sandbox.process.execute(command=command)
        assert started.exit_code == 0, started
    for port in ports:
        probe = f"grep -qi ':{port:04x} ' /proc/net/tcp"
        until(f"port {port} listens", lambda: sandbox.process.execute(command=probe).exit_code == 0)


class Case(unittest.TestCase):
    """Tests over one client; `self.sandbox()` makes sandboxes that are gone afterwards."""

    @classmethod
    def setUpClass(cls):
        cls.client = client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def sandbox(self, **ask):
        made = self.client.sandboxes.create(**ask)
        self.addCleanup(self.client.sandboxes.delete, made)
        return made


class Shared(Case):
    """Tests that may share one sandbox: `self.box`."""

    ask = {}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.box = cls.client.sandboxes.create(**cls.ask)

    @classmethod
    def tearDownClass(cls):
        cls.client.sandboxes.delete(cls.box)
        super().tearDownClass()
