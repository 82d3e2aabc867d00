"""The code interpreter: state between runs, and a chart that comes back as a picture and as data."""

import base64
from pathlib import Path

from e2b_code_interpreter import Sandbox

PLOT = """
import matplotlib.pyplot as plt

plt.bar(list(totals), list(totals.values()))
plt.title("Fruit")
plt.ylabel("pieces")
plt.show()
"""

sandbox = Sandbox.create(timeout=300)
try:
    sandbox.run_code("totals = {'apples': 3, 'pears': 7}")
    print("sum:", sandbox.run_code("sum(totals.values())").text)

    execution = sandbox.run_code(PLOT, on_stdout=lambda message: print(message.line, end=""))
    if execution.error:
        raise SystemExit(execution.error.traceback)
    picture = next(result for result in execution.results if result.png)
    Path("chart.png").write_bytes(base64.b64decode(picture.png))
    print("chart.png is written;", picture.chart.title, [(bar.label, bar.value) for bar in picture.chart.elements])
    assert picture.chart.title == "Fruit"

    failed = sandbox.run_code("1 / 0")
    print("errors come back too:", failed.error.name)
finally:
    sandbox.kill()
