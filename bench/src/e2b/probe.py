"""Times the official E2B SDK in one process: `probe.py ROUNDS`. Writes milliseconds by row as one JSON object.

The same program runs against Atoll and against a server that does nothing; the second is the SDK's own share.
"""

import json
import sys
import time

from e2b import Sandbox
from e2b_code_interpreter import Sandbox as CodeSandbox

ROUNDS = int(sys.argv[1])
TEN_MB = b"0123456789abcdef" * 625_000


def timed(call):
    began = time.perf_counter()
    said = call()
    return (time.perf_counter() - began) * 1000, said


def create_and_run():
    box = Sandbox.create()
    assert box.commands.run("echo hi").stdout == "hi\n"
    return box


def creates():
    times = []
    for _ in range(ROUNDS):
        took, box = timed(create_and_run)
        times.append(took)
        box.kill()
        # The pool fills up again behind the answers.
        time.sleep(0.05)
    return times


def commands(box):
    for _ in range(10):
        box.commands.run("echo hi")
    return [timed(lambda: box.commands.run("echo hi"))[0] for _ in range(ROUNDS * 2)]


def first_codes():
    times = []
    for _ in range(max(5, ROUNDS // 10)):
        box = CodeSandbox.create()
        took, ran = timed(lambda: box.run_code("1+1"))
        assert ran.text == "2", ran
        times.append(took)
        box.kill()
        # A warm kernel takes a while to come back.
        time.sleep(1.5)
    return times


def codes():
    box = CodeSandbox.create()
    for _ in range(10):
        box.run_code("1+1")
    times = [timed(lambda: box.run_code("1+1"))[0] for _ in range(ROUNDS)]
    box.kill()
    return times


def files(box):
    box.files.write("/tmp/warm", TEN_MB)
    rounds = max(5, ROUNDS // 10)
    write = [timed(lambda: box.files.write(f"/tmp/ten{n}", TEN_MB))[0] for n in range(rounds)]
    read = []
    for _ in range(rounds):
        took, data = timed(lambda: box.files.read("/tmp/ten0", format="bytes"))
        assert len(data) == len(TEN_MB)
        read.append(took)
    return write, read


for _ in range(3):
    create_and_run().kill()
result = {"create": creates()}
shared = Sandbox.create(timeout=600)
result["run"] = commands(shared)
result["write"], result["read"] = files(shared)
shared.kill()
result["first_code"] = first_codes()
result["code"] = codes()
print(json.dumps(result))
