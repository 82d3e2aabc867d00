"""Data analysis with a chart: a model's code runs in a sandbox without a network; the chart comes back as a picture.

    ATOLL_API_KEY=… python data_analysis.py
"""

import base64
import csv
import io
import os
from pathlib import Path

from atoll_sandbox import Atoll

TEMPLATE = os.environ.get("ATOLL_CODE_TEMPLATE", "code-interpreter-slim")

# The file of a user, and the code that a model wrote for it.
SALES = [("north", 120), ("south", 340), ("east", 90), ("west", 250)]

LOAD = """
import csv
rows = [(region, int(count)) for region, count in csv.reader(open("sales.csv"))]
total = sum(count for _, count in rows)
print(f"{len(rows)} regions, {total} sales")
"""
BEST = "max(rows, key=lambda row: row[1])[0]"
CHART = """
import matplotlib.pyplot as plt
names, counts = zip(*rows)
plt.bar(names, counts)
plt.title("Sales by region")
plt.show()
"""


def main() -> None:
    table = io.StringIO()
    csv.writer(table).writerows(SALES)
    client = Atoll()
    with client.sandboxes.create(TEMPLATE, network="deny-all", memory_mib=1024) as sandbox:
        sandbox.files.write("sales.csv", table.getvalue())

        # What the code defines stays for the next code.
        print(sandbox.code.run(LOAD).stdout.strip())
        print("best region:", sandbox.code.run(BEST).text)

        # A mistake of the model is a value, not an exception: tell it to the model.
        failed = sandbox.code.run("total / len(no_such_name)")
        assert failed.error is not None
        print("error for the model:", failed.error.name)

        # A chart is a picture and data.
        for result in sandbox.code.run(CHART).results:
            if result.png is not None:
                picture = base64.b64decode(result.png)
                Path("sales.png").write_bytes(picture)
                print("sales.png is a PNG:", picture.startswith(b"\x89PNG"))
            if result.chart is not None:
                heights = {bar["label"]: int(bar["value"]) for bar in result.chart["elements"]}
                print("the chart as data:", result.chart["type"], heights)

        # The code cannot send the data anywhere.
        leak = sandbox.code.run("import urllib.request; urllib.request.urlopen('http://example.com')")
        print("network:", leak.error.name if leak.error else "open")


if __name__ == "__main__":
    main()
