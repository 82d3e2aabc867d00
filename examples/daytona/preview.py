"""A web app inside, seen from outside."""

import time
import urllib.parse
import urllib.request

from daytona import Daytona, SessionExecuteRequest

daytona = Daytona()
sandbox = daytona.create()
try:
    sandbox.fs.upload_file(b"hello from inside\n", "/tmp/site/index.html")
    sandbox.process.create_session("web")
    sandbox.process.execute_session_command(
        "web", SessionExecuteRequest(command="cd /tmp/site && exec python3 -m http.server 3000", run_async=True)
    )
    link = sandbox.get_preview_link(3000)
    print("open", sandbox.create_signed_preview_url(3000, expires_in_seconds=600).url)
    # That one is for a browser; programs show the sandbox's token instead. Browsers know every name below localhost; other programs may not, so the name goes into the Host header there.
    url, headers = link.url, {"x-daytona-preview-token": link.token}
    host = urllib.parse.urlsplit(url)
    if (host.hostname or "").endswith(".localhost"):
        url, headers["Host"] = url.replace(host.hostname, "127.0.0.1"), host.netloc
    for _ in range(50):
        try:
            print(urllib.request.urlopen(urllib.request.Request(url, headers=headers)).read().decode(), end="")
            break
        except OSError:
            time.sleep(0.1)
finally:
    sandbox.delete()
