"""The session endpoints: list, metrics, pause, resume, destroy."""

import os

import httpx

api = httpx.Client(base_url=os.environ["ATOLL_URL"], headers={"X-API-Key": os.environ["ATOLL_API_KEY"]}, timeout=60)
created = api.post("/v1/sandboxes", json={"thread": "thread-1", "provider": "container"})
provider = "container"
assert created.status_code == 201, created.text

sessions = api.get("/api/sandbox/sessions").json()["sessions"]
(session,) = [one for one in sessions if one["thread_id"] == "thread-1"]
fields = {"session_id", "thread_id", "provider", "status", "created_at", "last_active", "lease_id", "instance_id"}
assert fields <= set(session), session
assert (session["provider"], session["status"]) == ("container", "running")
id = session["session_id"]

metrics = api.get(f"/api/sandbox/sessions/{id}/metrics").json()
wanted = {"cpu_percent", "memory_used_mb", "memory_total_mb", "disk_used_gb", "disk_total_gb", "network_rx_kbps"}
assert metrics["session_id"] == id and wanted | {"network_tx_kbps"} <= set(metrics["metrics"]), metrics
assert "web_url" in metrics

paused = api.post(f"/api/sandbox/sessions/{id}/pause?provider={provider}").json()
assert (paused["ok"], paused["action"], paused["session_id"]) == (True, "pause", id), paused
assert {"provider", "thread_id", "lease_id"} <= set(paused)
resumed = api.post(f"/api/sandbox/sessions/{id}/resume?provider={provider}").json()
assert (resumed["ok"], resumed["action"]) == (True, "resume"), resumed
destroyed = api.delete(f"/api/sandbox/sessions/{id}?provider={provider}").json()
assert (destroyed["ok"], destroyed["action"]) == (True, "destroy"), destroyed
assert all(one["session_id"] != id for one in api.get("/api/sandbox/sessions").json()["sessions"])
