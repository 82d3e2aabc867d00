"""Runs in a fresh kernel: environment per execution, tables and charts as structured data."""


def _atoll_startup():
    import math
    import os
    import re
    import sys
    import types

    from IPython import get_ipython
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName

    module = types.ModuleType("_atoll")
    saved = {}

    def set_env(values):
        for name, value in values.items():
            saved[name] = os.environ.get(name)
            os.environ[name] = value

    def restore_env():
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        saved.clear()

    module.set_env, module.restore_env = set_env, restore_env
    sys.modules["_atoll"] = module

    class Told(BaseFormatter):
        """Shows objects of one class as structured data. By name, since the library may never be loaded; and not by
        registration, since matplotlib's support in IPython throws out all formatters of its figures."""

        print_method = ObjectName("_repr_atoll_")
        _return_type = dict
        shows = ()

        def __call__(self, thing):
            package, name, told = self.shows
            for kind in type(thing).__mro__:
                if kind.__name__ == name and (kind.__module__ or "").split(".")[0] == package:
                    try:
                        return told(thing)
                    except Exception:
                        # A picture without its figures is better than no picture.
                        return None
            return None

    # LIMIT: a larger table is shown, not sent a second time.
    cells_max = 100_000
    points_max = 100_000

    def plain(value):
        if value is None or value != value:
            return None  # NaN and NaT differ from themselves.
        if hasattr(value, "isoformat"):
            return value.isoformat()
        if hasattr(value, "item"):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, (str, int, float, bool)):
            return value
        return str(value)

    def table(frame):
        if frame.size > cells_max:
            return None
        return {str(name): [plain(value) for value in frame[name]] for name in frame.columns}

    def axis(of):
        """Scale, ticks and how a place on the axis is told."""
        name = of.get_scale()
        known = ("linear", "log", "symlog", "logit", "function", "functionlog", "asinh")
        scale = name if name in known else "linear"
        converter = type(getattr(of, "converter", None) or getattr(of, "_converter", None)).__name__
        if "Date" in converter:
            from matplotlib.dates import num2date

            return "datetime", lambda value: value if isinstance(value, str) else plain(num2date(float(value)))
        if "Category" in converter:
            names = {place: text for text, place in getattr(of.units, "_mapping", {}).items()}
            return "categorical", lambda value: names.get(int(value), plain(value))
        return scale, plain

    def named(text):
        """A label, and the unit in brackets behind it."""
        unit = re.search(r"\(([^()]*)\)\s*$", text or "")
        return text or None, unit.group(1) if unit else None

    def plane(ax):
        x_label, x_unit = named(ax.get_xlabel())
        y_label, y_unit = named(ax.get_ylabel())
        return {"x_label": x_label, "y_label": y_label, "x_unit": x_unit, "y_unit": y_unit}

    def ticked(ax):
        chart = plane(ax)
        for name, of in (("x", ax.xaxis), ("y", ax.yaxis)):
            scale, told = axis(of)
            chart[name + "_scale"] = scale
            chart[name + "_ticks"] = [told(tick) for tick in of.get_majorticklocs()]
            chart[name + "_tick_labels"] = [label.get_text() for label in of.get_ticklabels()]
        return chart

    def points(ax, pairs):
        x, y = axis(ax.xaxis)[1], axis(ax.yaxis)[1]
        return [[x(a), y(b)] for a, b in list(pairs)[:points_max]]

    def label_of(artist, number):
        label = str(artist.get_label())
        return "Series %d" % number if label.startswith("_") else label

    def pie(ax, wedges):
        element = lambda w: {"label": w.get_label(), "angle": abs(w.theta2 - w.theta1), "radius": plain(w.r)}
        return {"type": "pie", "elements": [element(wedge) for wedge in wedges]}

    def bars(ax):
        elements = []
        for number, container in enumerate(ax.containers):
            upright = getattr(container, "orientation", None) != "horizontal"
            of = ax.xaxis if upright else ax.yaxis
            texts = dict(zip(of.get_majorticklocs(), (text.get_text() for text in of.get_ticklabels())))
            group = label_of(container, number)
            for bar in container.patches:
                begin, size = (bar.get_x(), bar.get_width()) if upright else (bar.get_y(), bar.get_height())
                near = min(texts, key=lambda tick: abs(tick - (begin + size / 2)), default=None)
                hit = near is not None and abs(near - (begin + size / 2)) <= abs(size) / 2
                label = texts[near] if hit and texts[near] else str(plain(begin + size / 2))
                value = bar.get_height() if upright else bar.get_width()
                elements.append({"label": label, "group": group, "value": plain(value)})
        return {"type": "bar", **plane(ax), "elements": elements}

    def boxes(ax):
        """What `boxplot` drew, found by its shape: closed boxes, medians, whiskers, loners."""
        from matplotlib.patches import PathPatch

        numbers = lambda values: [float(value) for value in values]
        lines = [(l, numbers(l.get_xdata(orig=False)), numbers(l.get_ydata(orig=False))) for l in ax.lines]
        outlines = [(xs, ys) for _, xs, ys in lines if len(xs) == 5 and xs[0] == xs[4] and ys[0] == ys[4]]
        for patch in ax.patches:
            if isinstance(patch, PathPatch):
                vertices = [tuple(map(float, vertex)) for vertex in patch.get_path().vertices]
                outlines.append(([v[0] for v in vertices[:5]], [v[1] for v in vertices[:5]]))
        pairs = [(xs, ys) for _, xs, ys in lines if len(xs) == 2]
        # A median is as wide as its box; whiskers and caps are not.
        spans = lambda pair, box: (min(pair), max(pair)) == (min(box), max(box))
        found = []
        for xs, ys in outlines:
            upright = any(y[0] == y[1] and spans(x, xs) and min(ys) <= y[0] <= max(ys) for x, y in pairs)
            across, along = (xs, ys) if upright else (ys, xs)
            center, low, high = (min(across) + max(across)) / 2, min(along), max(along)
            swap = lambda x, y: (x, y) if upright else (y, x)
            straight = [swap(x, y) for x, y in pairs]
            inside = [b[0] for a, b in straight if b[0] == b[1] and spans(a, across) and low <= b[0] <= high]
            reach = [v for a, b in straight if a[0] == a[1] == center for v in b] + [low, high]
            dots = [swap(x, y) for line, x, y in lines if line.get_linestyle() == "None"]
            loners = [v for a, b in dots for u, v in zip(a, b) if u == center]
            of = ax.xaxis if upright else ax.yaxis
            texts = dict(zip(of.get_majorticklocs(), (text.get_text() for text in of.get_ticklabels())))
            element = {"label": texts.get(center) or str(plain(center)), "min": min(reach), "first_quartile": low}
            element["median"] = inside[0] if inside else None
            element.update({"third_quartile": high, "max": max(reach), "outliers": loners})
            found.append(element)
        return found

    def chart_of(ax):
        from matplotlib.collections import PathCollection
        from matplotlib.container import BarContainer
        from matplotlib.patches import Wedge

        wedges = [patch for patch in ax.patches if isinstance(patch, Wedge)]
        clouds = [cloud for cloud in ax.collections if isinstance(cloud, PathCollection)]
        boxed = boxes(ax)
        if wedges:
            chart = pie(ax, wedges)
        elif boxed:
            chart = {"type": "box_and_whisker", **plane(ax), "elements": boxed}
        elif any(isinstance(container, BarContainer) for container in ax.containers):
            chart = bars(ax)
        elif clouds:
            series = [{"label": label_of(c, n), "points": points(ax, c.get_offsets())} for n, c in enumerate(clouds)]
            chart = {"type": "scatter", **ticked(ax), "elements": series}
        elif ax.lines:
            pairs = lambda line: zip(line.get_xdata(orig=False), line.get_ydata(orig=False))
            series = [{"label": label_of(l, n), "points": points(ax, pairs(l))} for n, l in enumerate(ax.lines)]
            chart = {"type": "line", **ticked(ax), "elements": series}
        else:
            chart = {"type": "unknown", "elements": []}
        return {**chart, "title": ax.get_title() or None}

    def chart(figure):
        charts = [chart_of(ax) for ax in figure.axes]
        if len(charts) > 1:
            title = getattr(figure, "_suptitle", None)
            return {"type": "superchart", "title": title.get_text() if title else None, "elements": charts}
        return charts[0] if charts else None

    shell = get_ipython()
    for name, shows in (("data", ("pandas", "DataFrame", table)), ("chart", ("matplotlib", "Figure", chart))):
        formatter = Told(parent=shell.display_formatter)
        formatter.format_type = "application/vnd.atoll.%s+json" % name
        formatter.shows = shows
        shell.display_formatter.formatters[formatter.format_type] = formatter


_atoll_startup()
del _atoll_startup
