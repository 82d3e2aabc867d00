"""Requests to what a sandbox serves: its default port and another one, HTTP, events and WebSockets, with the key."""

import asyncio
import os
import time

import httpx
from leap0 import Leap0Client
from websockets.asyncio.client import connect

APP = r'''
import base64, hashlib, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *a): pass
    def do_GET(self):
        if self.headers.get("upgrade", "").lower() == "websocket":
            key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
                             + f"sec-websocket-accept: {accept}\r\n\r\n".encode() + b"\x81\x05hello")
            self.wfile.flush()
            self.rfile.read(6)
            self.close_connection = True
            return
        said = b"data: one\n\n" if self.path == "/events" else f"port {self.server.server_port} {self.path}".encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream" if self.path == "/events" else "text/plain")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
'''

client = Leap0Client()
sandbox = client.sandboxes.create(env_vars={"PORT": "8000"}, timeout=600)
sandbox.filesystem.write_file(path="/tmp/app.py", content=APP)
for port in (8000, 3000):
    sandbox.process.execute(command=f"setsid python3 /tmp/app.py {port} >/dev/null 2>&1 </dev/null &")
    while sandbox.process.execute(command=f"grep -qi ':{port:04x} ' /proc/net/tcp").exit_code != 0:
        time.sleep(0.05)

headers = {"authorization": os.environ["LEAP0_API_KEY"]}
with httpx.Client(timeout=60) as http:
    url = sandbox.invoke_url("/greet")
    assert http.get(url, headers=headers).text == "port 8000 /greet"
    # `-<port>` behind the name of the sandbox picks another port.
    other = url.replace(f"//{sandbox.id}.", f"//{sandbox.id}-3000.")
    assert other != url and http.get(other, headers=headers).text == "port 3000 /greet"
    assert http.get(sandbox.invoke_url("/events"), headers=headers).text == "data: one\n\n"
    assert http.get(url).status_code == 401


async def listen():
    async with connect(sandbox.websocket_url("/socket"), additional_headers=headers) as socket:
        return await socket.recv()


assert asyncio.run(listen()) == "hello"
sandbox.delete()
client.close()
