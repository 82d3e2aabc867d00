"""A web app with a preview: write it, start it, open it by a link, change it while it runs, pause it and wake it up.

    ATOLL_API_KEY=… python web_app.py
"""

import httpx

from atoll_sandbox import Sandbox

APP = """
import http.server, json, pathlib

class App(http.server.BaseHTTPRequestHandler):
    visits = 0

    def do_GET(self):
        App.visits += 1
        title = pathlib.Path("title.txt").read_text().strip()
        body = json.dumps({"title": title, "visits": App.visits}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), App)
print("listening", flush=True)
server.serve_forever()
"""


def wait_until_listening(sandbox: Sandbox) -> None:
    """Follows the log of the app until it says that it is ready."""
    for line in sandbox.logs(follow=True):
        if line.type == "stdout" and "listening" in line.text:
            return


def main() -> None:
    with Sandbox.create(labels={"example": "web-app"}) as sandbox:
        sandbox.files.write("app/main.py", APP)
        sandbox.files.write("app/title.txt", "First version\n")
        sandbox.commands.start("python3 -u main.py", cwd="app", detach=True)
        wait_until_listening(sandbox)

        # A link that everyone can open who has it, for ten minutes. `url` has a host name of its own, for browsers;
        # `path_url` is the same below the address of the server.
        preview = sandbox.previews.create(8000, expires_s=600)
        print("has a host of its own:", f"8000-{sandbox.id}." in preview.url)
        with httpx.Client(follow_redirects=True) as browser:
            print(browser.get(preview.path_url).json())

            # An agent changes the app while it runs.
            change = sandbox.files.edit("app/title.txt", ("First", "Second"))
            print(change.diff.splitlines()[-1])
            print(browser.get(preview.path_url).json())

            # A paused app has its memory; the next request wakes it.
            print("phase:", sandbox.pause().phase)
            print(browser.get(preview.path_url).json())
            print("phase:", sandbox.refresh().phase)

            # Without the token the port is closed.
            print("without a token:", httpx.get(preview.path_url.split("?")[0]).status_code)


if __name__ == "__main__":
    main()
