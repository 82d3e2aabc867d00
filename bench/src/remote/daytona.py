"""Times the verbs of the official Daytona SDK: `probe.py ROUNDS`. Writes milliseconds by row as one JSON object."""

import json
import sys
import time

from daytona import Daytona

daytona = Daytona()


def timed(call):
    began = time.perf_counter()
    said = call()
    return (time.perf_counter() - began) * 1000, said


rows = {"create": [], "run": [], "delete": []}
# The first one warms caches.
for turn in range(int(sys.argv[1]) + 1):
    taken = {}
    taken["create"], box = timed(daytona.create)
    taken["run"], ran = timed(lambda: box.process.exec("echo hi"))
    assert ran.result == "hi\n", ran
    taken["delete"], _ = timed(box.delete)
    if turn:
        for row, took in taken.items():
            rows[row].append(took)
print(json.dumps(rows))
