"""Runs the cases whose names hold one of the words, or all of them, and says which took longest."""

import pathlib
import sys
import time
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))


class Timed(unittest.TextTestResult):
    took = []

    def startTest(self, test):
        self.since = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        self.took.append((time.monotonic() - self.since, test.id()))
        super().stopTest(test)


def cases(suite):
    for test in suite:
        yield from cases(test) if isinstance(test, unittest.TestSuite) else [test]


words = sys.argv[1:]
found = unittest.defaultTestLoader.discover(str(HERE))
chosen = [t for t in cases(found) if not words or any(w.lower() in t.id().lower() for w in words)]
done = unittest.TextTestRunner(resultclass=Timed, verbosity=2 if words else 1).run(unittest.TestSuite(chosen))
for took, name in sorted(Timed.took, reverse=True)[:12]:
    print(f"{took:6.2f} s  {name}", file=sys.stderr)
sys.exit(not done.wasSuccessful() or not chosen)
