"""A conversation chooses a provider; then it is bound to its sandbox for good."""

import os

import httpx

api = httpx.Client(base_url=os.environ["ATOLL_URL"], headers={"X-API-Key": os.environ["ATOLL_API_KEY"]}, timeout=60)
first = api.post("/v1/sandboxes", json={"thread": "conversation", "provider": "container"}).json()
again = api.post("/v1/sandboxes", json={"thread": "conversation"}).json()
assert again["id"] == first["id"]
elsewhere = api.post("/v1/sandboxes", json={"thread": "conversation", "provider": "local"})
assert (elsewhere.status_code, elsewhere.json()["code"]) == (409, "thread_bound"), elsewhere.text
# on_exit: pause is the default of a conversation.
assert first["on_exit"] == "pause"
clean = api.post("/v1/sandboxes", json={"thread": "clean", "on_exit": "destroy"}).json()
assert clean["on_exit"] == "destroy"
for id in (first["id"], clean["id"]):
    assert api.delete(f"/api/sandbox/sessions/{id}?provider=container").json()["action"] == "destroy"
