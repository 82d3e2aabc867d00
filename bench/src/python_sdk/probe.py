"""Times the Python SDK in one process: `probe.py ROUNDS`. Writes milliseconds by row as one JSON object.

`sdk` is a create and a command by the SDK, `raw` the same two calls by httpx with a connection that is kept open, in turns.
`import` is what `from atoll_sandbox import Atoll` takes in a fresh interpreter.
"""

import json
import os
import subprocess
import sys
import time

import httpx
from atoll_sandbox import Atoll

ROUNDS = int(sys.argv[1])
URL, KEY = os.environ["ATOLL_URL"], os.environ["ATOLL_API_KEY"]
IMPORT = "import time; t = time.perf_counter(); from atoll_sandbox import Atoll; print((time.perf_counter() - t) * 1000)"


def timed(call):
    began = time.perf_counter()
    said = call()
    return (time.perf_counter() - began) * 1000, said


def by_sdk(client):
    box = client.sandboxes.create(memory_mib=256)
    assert box.commands.run("echo hi").stdout == "hi\n"
    return box.id


def by_http(client):
    box = client.post("/v1/sandboxes", json={"memory_mib": 256}).raise_for_status().json()
    done = client.post(f"/v1/sandboxes/{box['id']}/exec", json={"command": "echo hi"}).raise_for_status().json()
    assert done["stdout"] == "hi\n"
    return box["id"]


def main():
    sdk = Atoll(URL, KEY)
    raw = httpx.Client(base_url=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    rows = {"sdk": [], "raw": [], "import": []}
    calls = [("raw", lambda: by_http(raw)), ("sdk", lambda: by_sdk(sdk))]
    for number in range(ROUNDS + 3):
        # Neither is always the one that finds the pool full.
        calls.reverse()
        for name, call in calls:
            took, box = timed(call)
            # The first rounds open connections.
            if number >= 3:
                rows[name].append(took)
            raw.delete(f"/v1/sandboxes/{box}").raise_for_status()
            # The pool fills up again behind the answers.
            time.sleep(0.02)
    for _ in range(max(5, ROUNDS // 10)):
        said = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True)
        rows["import"].append(float(said.stdout))
    print(json.dumps(rows))


main()
