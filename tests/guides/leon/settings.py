"""One JSON file per provider, and where a key is looked for: the file, the environment of the server, config.env."""

import json
import os
import time
from pathlib import Path

import httpx

home = Path(os.environ["ATOLL_DATA"])
admin = httpx.Client(base_url=os.environ["ATOLL_URL"], headers={"X-API-Key": os.environ["ATOLL_ADMIN_KEY"]}, timeout=60)


def settings(name, said):
    """The settings of a provider once the server has noticed a change."""
    for _ in range(200):
        answer = admin.get(f"/v1/providers/{name}/settings").text
        if said in answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(answer)


def write(name, text):
    (home / name).with_suffix(".new").write_text(text)
    (home / name).with_suffix(".new").rename(home / name)


write("sandboxes/guide-docker.json", json.dumps({
    "provider": "docker",
    "on_exit": "pause",
    "docker": {"image": "python:3.12-slim", "mount_path": "/workspace"},
}))
assert "/workspace" in settings("guide-docker", "python:3.12-slim")

write("sandboxes/guide-agentbay.json", json.dumps({"provider": "agentbay", "on_exit": "destroy", "agentbay": {}}))
write("config.env", "AGENTBAY_API_KEY=from-config-env\n")
assert "from-config-env" not in settings("guide-agentbay", "config.env (AGENTBAY_API_KEY)")
write("sandboxes/guide-agentbay.json", json.dumps({"provider": "agentbay", "agentbay": {"api_key": "from-the-file"}}))
told = settings("guide-agentbay", '"file"')
assert "from-the-file" not in told and "config.env" not in told, told

for name in ("guide-docker", "guide-agentbay"):
    (home / f"sandboxes/{name}.json").unlink()
(home / "config.env").unlink()
