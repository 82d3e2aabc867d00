"""Times the official Daytona SDK in one process: `probe.py ROUNDS`. Writes milliseconds by row as one JSON object.

The same program runs against Atoll and against a server that does nothing; the second is the SDK's own share.
"""

import json
import os
import sys
import threading
import time

from daytona import Daytona

ROUNDS = int(sys.argv[1])
TEN_MB = b"0123456789abcdef" * 625_000
daytona = Daytona()


def timed(call):
    began = time.perf_counter()
    said = call()
    return (time.perf_counter() - began) * 1000, said


def create_and_run():
    box = daytona.create()
    assert box.process.exec("echo hi").result == "hi\n"
    return box


def creates():
    times = []
    for _ in range(ROUNDS):
        took, box = timed(create_and_run)
        times.append(took)
        box.delete()
        # The pool fills up again behind the answers.
        time.sleep(0.05)
    return times


def commands(box):
    for _ in range(10):
        box.process.exec("echo hi")
    return [timed(lambda: box.process.exec("echo hi"))[0] for _ in range(ROUNDS * 2)]


def files(box):
    box.fs.upload_file(TEN_MB, "/tmp/warm")
    rounds = max(5, ROUNDS // 10)
    up = [timed(lambda: box.fs.upload_file(TEN_MB, "/tmp/ten"))[0] for _ in range(rounds)]
    down = []
    for _ in range(rounds):
        took, data = timed(lambda: box.fs.download_file("/tmp/ten"))
        assert len(data) == len(TEN_MB)
        down.append(took)
    return up, down


def waits():
    """One client waits for a start that another asks for: how long after the answer to that does the wait end?"""
    box, other = daytona.create(), Daytona()
    box.stop()
    seen = other.get(box.id)
    time.sleep(0.5)
    times, ended = [], []

    def wait():
        seen.wait_for_sandbox_start(timeout=30)
        ended.append(time.perf_counter())

    for _ in range(max(8, ROUNDS // 10)):
        thread = threading.Thread(target=wait)
        thread.start()
        # Its first look and its subscription are made.
        time.sleep(0.3)
        box.start()
        at = time.perf_counter()
        thread.join()
        times.append(max(0.0, (ended[-1] - at) * 1000))
        box.stop()
        seen.refresh_data()
    box.delete()
    return times


for _ in range(3):
    create_and_run().delete()
result = {"create": creates()}
shared = daytona.create()
result["exec"] = commands(shared)
result["upload"], result["download"] = files(shared)
shared.delete()
if "NOTHING" not in os.environ:
    result["wait"] = waits()
print(json.dumps(result))
