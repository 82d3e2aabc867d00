"""An unknown session is 404, and a name that several sessions have is 409."""

import os

import httpx

api = httpx.Client(base_url=os.environ["ATOLL_URL"], headers={"X-API-Key": os.environ["ATOLL_API_KEY"]}, timeout=60)
unknown = api.get("/api/sandbox/sessions/nothing-there/metrics")
assert unknown.status_code == 404, unknown.text
unknown = api.post("/api/sandbox/sessions/nothing-there/pause?provider=container")
assert unknown.status_code == 404, unknown.text

id = api.post("/v1/sandboxes", json={"thread": "talk"}).json()["id"]
# A fork belongs to the thread of its source.
(copy,) = api.post(f"/v1/sandboxes/{id}/fork", json={"count": 1}).json()["sandboxes"]
ambiguous = api.post("/api/sandbox/sessions/talk/pause?provider=container")
assert ambiguous.status_code == 409, ambiguous.text
for one in (id, copy["id"]):
    assert api.delete(f"/api/sandbox/sessions/{one}?provider=container").json()["ok"]
