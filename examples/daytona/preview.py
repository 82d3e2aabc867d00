"""A web app inside, seen from outside."""

import socket
import time
import urllib.error
import urllib.parse
import urllib.request

from daytona import Daytona, SessionExecuteRequest


def request(link):
    """Programs show the sandbox's token; a browser opens a signed link instead."""
    url, headers = link.url, {"x-daytona-preview-token": link.token}
    host = urllib.parse.urlsplit(url)
    if host.scheme == "http" and not resolves(host.hostname):
        # Browsers know every name below localhost, other programs may not: then the name goes into the Host header.
        url, headers["Host"] = url.replace(host.hostname, "127.0.0.1"), host.netloc
    return urllib.request.Request(url, headers=headers)


def resolves(name):
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def fetch(ask, within=60.0):
    """Until the app listens the server answers 502 or 503. Every other error is one."""
    deadline = time.monotonic() + within
    while True:
        try:
            with urllib.request.urlopen(ask, timeout=within) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            if error.code not in (502, 503) or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


daytona = Daytona()
sandbox = daytona.create()
try:
    sandbox.fs.upload_file(b"hello from inside\n", "/tmp/site/index.html")
    sandbox.process.create_session("web")
    sandbox.process.execute_session_command(
        "web", SessionExecuteRequest(command="cd /tmp/site && exec python3 -m http.server 3000", run_async=True)
    )
    print("open", sandbox.create_signed_preview_url(3000, expires_in_seconds=600).url)
    print(fetch(request(sandbox.get_preview_link(3000))), end="")
finally:
    sandbox.delete()
