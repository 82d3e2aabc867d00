"""A pause keeps memory; any request resumes the sandbox, and the caller does nothing for it."""

from leap0 import Leap0Client

client = Leap0Client()
sandbox = client.sandboxes.create(timeout=600, auto_pause=True)
sandbox.process.execute(command="setsid sh -c 'echo $$ >/tmp/pid; exec sleep 1000' >/dev/null 2>&1 </dev/null &")
sandbox.filesystem.write_file(path="/tmp/kept", content="kept")
sandbox.pause()
assert client.sandboxes.get(sandbox.id).state.value == "paused"
assert sandbox.filesystem.read_file(path="/tmp/kept") == "kept"
assert client.sandboxes.get(sandbox.id).state.value == "running"
assert sandbox.process.execute(command="kill -0 $(cat /tmp/pid) && echo alive").stdout == "alive\n"
sandbox.delete()
assert client.sandboxes.get(sandbox.id).state.value in ("deleting", "deleted")
client.close()
