"""Pause a sandbox and take it up again: files and running processes are as they were."""

import time

from e2b import Sandbox

sandbox = Sandbox.create(timeout=300)
try:
    sandbox.files.write("/home/user/note.txt", "written before the pause")
    # Renamed, so that a reader never sees a file that is half written.
    count = "while true; do n=$((n+1)); echo $n > n.new && mv n.new n; sleep 0.1; done"
    counter = sandbox.commands.run(count, cwd="/home/user", background=True, timeout=0)
    while not sandbox.files.exists("/home/user/n"):
        time.sleep(0.1)
    before = int(sandbox.files.read("/home/user/n"))

    sandbox.pause()
    print("state:", sandbox.get_info().state.value)
    time.sleep(2)

    again = Sandbox.connect(sandbox.sandbox_id, timeout=300)
    print("note:", again.files.read("/home/user/note.txt"))
    deadline = time.monotonic() + 60
    while (after := int(again.files.read("/home/user/n"))) <= before and time.monotonic() < deadline:
        time.sleep(0.1)
    print(f"the counter went on from {before} to {after}")
    assert before < after < before + 100 and counter.pid in [process.pid for process in again.commands.list()]
finally:
    sandbox.kill()
