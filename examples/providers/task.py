"""The same task at every provider of a server: write a program, run it, read its result, open its page. Prints one table.

    ATOLL_API_KEY=… python task.py [PROVIDER…]
"""

import sys
import time
from dataclasses import dataclass

import httpx

from atoll_sandbox import Atoll, AtollError, Sandbox
from atoll_sandbox.generated.models import Provider

PROGRAM = """
n=0; for i in 1 2 3 4 5 6; do n=$((n + i * 2)); done
echo "{\\"answer\\": $n}" >result.json
"""
# Images have different programs that serve files.
SERVER = """
if command -v python3 >/dev/null; then exec python3 -m http.server 30100 --bind 127.0.0.1; fi
if command -v httpd >/dev/null; then exec httpd -f -p 127.0.0.1:30100; fi
if command -v busybox >/dev/null; then exec busybox httpd -f -p 127.0.0.1:30100; fi
exit 9
"""
EXPECTED = '{"answer": 42}\n'
COLUMNS = ["provider", "kind", "isolation", "create", "task", "preview", "result"]


@dataclass
class Row:
    provider: str
    kind: str
    isolation: str
    create: str = "-"
    task: str = "-"
    preview: str = "-"
    result: str = "-"


def seconds_since(begun: float) -> str:
    return f"{time.monotonic() - begun:.2f} s"


def run_program(sandbox: Sandbox) -> str:
    """Writes the program, runs it, and returns what it wrote."""
    sandbox.files.write("task/program.sh", PROGRAM)
    sandbox.commands.run("sh program.sh", cwd="task", timeout_s=60).check()
    return sandbox.files.read_text("task/result.json")


def open_page(sandbox: Sandbox) -> str:
    """Serves the folder inside and reads the result from outside, by a link."""
    sandbox.files.write("task/serve.sh", SERVER)
    # A detached command has an open standard input, which not every provider has.
    sandbox.commands.run("sh serve.sh >/dev/null 2>&1 </dev/null &", cwd="task").check()
    link = sandbox.previews.create(30100, expires_s=120).path_url.split("?")
    address = "?".join([link[0].rstrip("/") + "/result.json", *link[1:]])
    with httpx.Client(follow_redirects=True) as browser:
        for _ in range(100):
            answer = browser.get(address)
            if answer.status_code == 200:
                return answer.text
            time.sleep(0.1)
    return f"status {answer.status_code}"


def do_task(client: Atoll, provider: Provider) -> Row:
    row = Row(provider.name, provider.kind, str(provider.isolation or "?"))
    if provider.health != "ok":
        row.result = provider.problem or "degraded"
        return row
    begun = time.monotonic()
    try:
        sandbox = client.sandboxes.create(provider=provider.name, labels={"example": "providers"})
    except AtollError as error:
        row.result = str(error)
        return row
    row.create = seconds_since(begun)
    try:
        begun = time.monotonic()
        result = run_program(sandbox)
        row.task = seconds_since(begun)
        if "dial" in provider.capabilities:
            begun = time.monotonic()
            page = open_page(sandbox)
            row.preview = seconds_since(begun) if page == result else page
        row.result = "ok" if result == EXPECTED else repr(result)
    except AtollError as error:
        row.result = str(error)
    finally:
        sandbox.delete()
    return row


def print_table(rows: list[Row]) -> None:
    cells = [COLUMNS] + [[getattr(row, column) for column in COLUMNS] for row in rows]
    widths = [max(len(line[n]) for line in cells) for n in range(len(COLUMNS))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def main() -> int:
    wanted = sys.argv[1:]
    with Atoll() as client:
        providers = [one for one in client.providers.list() if not wanted or one.name in wanted]
        rows = [do_task(client, provider) for provider in providers]
    print_table(rows)
    return 0 if rows and all(row.result == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
