"""A server that keeps running in the sandbox, reached from outside by its own host."""

import os
import time
import urllib.error
import urllib.request

from e2b import Sandbox

PAGE = "<h1>served from a sandbox</h1>\n"


def get(host):
    """Asks the sandbox's host; a self-hosted server that has no TLS is asked at its own address."""
    local = os.environ.get("E2B_SANDBOX_URL")
    request = urllib.request.Request(local, headers={"Host": host}) if local else f"https://{host}/"
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


sandbox = Sandbox.create(timeout=300)
try:
    sandbox.files.write("/home/user/www/index.html", PAGE)
    server = sandbox.commands.run("python3 -m http.server 3000 -d /home/user/www", background=True, timeout=0)
    host = sandbox.get_host(3000)
    print("host:", host)

    for attempt in range(300):
        try:
            page = get(host)
            break
        except urllib.error.HTTPError:
            time.sleep(0.2)
    else:
        raise SystemExit("the server never answered")
    print(page, end="")
    assert page == PAGE

    print("running:", [" ".join(process.args) for process in sandbox.commands.list()])
    server.kill()
finally:
    sandbox.kill()
