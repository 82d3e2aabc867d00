"""Runs the suite: classes beside each other, since most of a test is waiting; at the end which public methods had a case.

`run.py` runs everything, `run.py WORD...` only the tests whose name holds a word (and then asks no method for a case).
E2B_JOBS says how many classes run at once.
"""

import concurrent.futures
import io
import os
import sys
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import surface  # noqa: E402  (watches calls from the first import of a test on)

surface.watch()


class Result(unittest.TestResult):
    """Keeps how long each test took."""

    def __init__(self):
        super().__init__()
        self.times = []

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def stopTest(self, test):
        super().stopTest(test)
        self.times.append((time.monotonic() - self.began, test.id()))


def classes(suite, words):
    """Tests by class, the chosen ones."""
    found = {}
    for test in flat(suite):
        if not words or any(word in test.id() for word in words):
            found.setdefault(type(test), []).append(test)
    return found


def flat(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flat(item)
        else:
            yield item


def run(tests):
    result = Result()
    unittest.TestSuite(tests).run(result)
    return result


def main(words):
    began = time.monotonic()
    found = classes(unittest.TestLoader().discover(str(HERE), top_level_dir=str(HERE)), words)
    # What takes longest first, so that nothing waits for it at the end.
    order = sorted(found.values(), key=lambda tests: -getattr(tests[0], "weight", len(tests)))
    out = io.StringIO()
    failures = ran = 0
    times = []
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("E2B_JOBS", "6"))) as pool:
        for result in pool.map(run, order):
            ran += result.testsRun
            times += result.times
            for test, why in result.failures + result.errors:
                failures += 1
                print(f"FAIL {test.id()}\n{why}", file=out)
            for test, why in result.skipped:
                print(f"SKIP {test.id()}: {why}", file=out)
                failures += 1
            for test in result.unexpectedSuccesses:
                failures += 1
                print(f"FAIL {test.id()} (unexpected success)", file=out)
    if not words:
        for missing in surface.without_a_case():
            failures += 1
            print(f"FAIL no case calls {missing}", file=out)
    for took, test in sorted(times, reverse=True)[:12]:
        print(f"{took:6.2f} s  {test}", file=out)
    print(f"ran {ran} tests in {time.monotonic() - began:.1f} s: {failures} failures", file=out)
    sys.stderr.write(out.getvalue())
    return 1 if failures or not ran else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
