"""Runs code once as the main program. Figures that it shows go out between marks. `told` is what the host said."""
import importlib.abc
import importlib.util
import json
import linecache
import os
import sys
import traceback
import types

NAME = "<string>"


def tell(fields):
    sys.stdout.flush()
    mark = b"\x1e" + told["word"].encode()
    rest = mark + json.dumps(fields, allow_nan=False).encode() + mark
    while rest:
        rest = rest[os.write(1, rest) :]


def show(*_args, **_kwargs):
    import base64
    import io

    import matplotlib.pyplot as plt

    charts = {}
    exec(compile(told["charts"], "charts", "exec"), charts)
    chart_of, _ = charts["_atoll_charts"]()
    for number in plt.get_fignums():
        figure = plt.figure(number)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", bbox_inches="tight")
        try:
            chart = chart_of(figure)
            json.dumps(chart, allow_nan=False)
        except Exception:
            chart = None  # A picture without its figures is better than no picture.
        tell({"chart": chart, "png": base64.b64encode(picture.getvalue()).decode()})
    plt.close("all")


class Shown(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Puts our `show` into matplotlib when it is first imported, whatever backend the code asks for."""

    def find_spec(self, name, path, target=None):
        if name != "matplotlib.pyplot":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            self.inner = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec):
        return self.inner.create_module(spec)

    def exec_module(self, module):
        self.inner.exec_module(module)
        module.show = show


def main():
    code = told["code"]
    os.environ.setdefault("MPLBACKEND", "Agg")
    sys.meta_path.insert(0, Shown())
    sys.argv = ["-c", *told["argv"]]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    linecache.cache[NAME] = (len(code), None, code.splitlines(True), NAME)
    try:
        exec(compile(code, NAME, "exec"), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        # Our own frame is none of the code's.
        trace = error.__traceback__.tb_next if not isinstance(error, SyntaxError) else None
        traceback.print_exception(type(error), error, trace)
        if isinstance(error, KeyboardInterrupt):
            sys.exit(130)
        sys.exit(1)


main()
