"""Create from a template with limits, environment and network policy, look at it, delete it by id and by object."""

import os

from leap0 import Leap0Client

assert os.environ["LEAP0_API_KEY"]
client = Leap0Client()
sandbox = client.sandboxes.create(
    vcpu=1,
    memory=512,
    timeout=600,
    auto_pause=True,
    env_vars={"GREETING": "hello"},
    network_policy={"mode": "custom", "allow_cidrs": ["203.0.113.0/24"]},
)
assert sandbox.id and sandbox.state.value == "running"
status = client.sandboxes.get(sandbox.id)
assert (status.state.value, status.vcpu, status.memory) == ("running", 1, 512)
assert sandbox.process.execute(command='printf %s "$GREETING"').stdout == "hello"
client.sandboxes.delete(sandbox.id)

other = client.sandboxes.create()
client.sandboxes.delete(other)
third = client.sandboxes.create()
third.delete()
client.close()
