"""A sandbox that looks after itself: it stops when nobody works in it, is archived later, and comes back with its files."""

import time

from daytona import CreateSandboxFromSnapshotParams, Daytona

daytona = Daytona()
sandbox = daytona.create(
    CreateSandboxFromSnapshotParams(auto_stop_interval=30, auto_archive_interval=60 * 24, auto_delete_interval=-1)
)
try:
    sandbox.fs.upload_file(b"precious", "/tmp/kept.txt")
    print("stops after", sandbox.auto_stop_interval, "idle minutes, is archived", sandbox.auto_archive_interval, "minutes later")
    # The same by hand:
    sandbox.stop()
    print("now", sandbox.state.value)
    sandbox.archive()
    # Daytona's own server answers before the archive is done.
    deadline = time.monotonic() + 600
    while sandbox.state.value != "archived":
        if time.monotonic() > deadline:
            raise TimeoutError(f"the sandbox is {sandbox.state.value} after ten minutes, not archived")
        time.sleep(0.5)
        sandbox.refresh_data()
    print("now", sandbox.state.value)
    sandbox.start()
    print("kept:", sandbox.fs.download_file("/tmp/kept.txt").decode())
finally:
    sandbox.delete()
