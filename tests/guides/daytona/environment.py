"""A development environment: a snapshot, and a volume that outlives its sandbox."""

import os

import httpx
from atoll_sandbox.daytona import CreateSandboxParams, Daytona, DaytonaConfig

api_key = os.environ["ATOLL_API_KEY"]
daytona = Daytona(DaytonaConfig(api_key=api_key))
api = httpx.Client(base_url=daytona.url, headers={"Authorization": f"Bearer {api_key}"}, timeout=60)
volume = api.post("/volumes", json={"name": "guide-data"}).json()
for expected in ("", "kept\n"):
    sandbox = daytona.create(
        CreateSandboxParams(
            snapshot="code-interpreter-slim",
            volumes=[{"volume_id": volume["id"], "mount_path": "/workspace"}],
        )
    )
    assert sandbox.process.execute_command("cat /workspace/file 2>/dev/null").result == expected
    written = sandbox.process.execute_command("echo kept > /workspace/file")
    assert written.exit_code == 0, written
    daytona.delete(sandbox)
assert api.delete(f"/volumes/{volume['id']}").status_code == 200
