"""What a figure of matplotlib shows, as plain data. Needs nothing but the figure: no IPython, no pandas.

`_atoll_charts()` gives `(chart, plain)`: a figure as a dictionary or None, and any value as one that JSON has."""


def _atoll_charts():
    import math
    import re

    # LIMIT: a series with more is told by its beginning.
    points_max = 100_000
    scales = ("linear", "log", "symlog", "logit", "function", "functionlog", "asinh")

    def plain(value):
        if type(value).__name__ == "datetime64":
            value = value.astype("datetime64[s]")
            return None if str(value) == "NaT" else str(value)
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

    def figure_of(value):
        """A number is one with a point, whatever it was given as."""
        value = plain(value)
        return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def axis(of):
        """Scale, and how a place on the axis is told."""
        name = of.get_scale()
        converter = type(getattr(of, "converter", None) or getattr(of, "_converter", None)).__name__
        if "Date" in converter:
            from matplotlib.dates import num2date

            return "datetime", lambda value: value if isinstance(value, str) else plain(num2date(float(value)))
        if "Category" in converter:
            names = {place: text for text, place in getattr(of.units, "_mapping", {}).items()}
            return "categorical", lambda value: value if isinstance(value, str) else names.get(value, plain(value))
        return name if name in scales else "linear", plain

    def named(text):
        """A label, and the unit in brackets within it."""
        unit = re.search(r"(?:^|\s)\(([^()]*)\)|\[([^\[\]]*)\]", text or "")
        return text or None, (unit.group(1) or unit.group(2) or None) if unit else None

    def plane(ax, upright=True):
        """Labels and units; of what lies on its side, those of its values are y all the same."""
        of_x, of_y = named(ax.get_xlabel()), named(ax.get_ylabel())
        (x_label, x_unit), (y_label, y_unit) = (of_x, of_y) if upright else (of_y, of_x)
        return {"x_label": x_label, "y_label": y_label, "x_unit": x_unit, "y_unit": y_unit}

    def ticked(ax):
        chart = plane(ax)
        for name, of in (("x", ax.xaxis), ("y", ax.yaxis)):
            scale, told = axis(of)
            chart[name + "_scale"] = scale
            at = of.get_majorticklocs()
            chart[name + "_ticks"] = [float(tick) if scale == "categorical" else told(tick) for tick in at]
            chart[name + "_tick_labels"] = [label.get_text() for label in of.get_ticklabels()]
        return chart

    def points(ax, pairs):
        """Dates and names as they were given; what is a place on the axis only, as the axis tells it."""
        (x_scale, x), (y_scale, y) = axis(ax.xaxis), axis(ax.yaxis)
        number = lambda value: isinstance(value, (int, float)) or type(value).__module__ == "numpy"
        dated = lambda value: type(value).__name__ == "datetime64"
        tell = lambda scale, told, v: told(v) if number(v) and not dated(v) and scale != "linear" else plain(v)
        pair = lambda a, b: [figure_of(tell(x_scale, x, a)), figure_of(tell(y_scale, y, b))]
        return [pair(a, b) for a, b in list(pairs)[:points_max]]

    def label_of(artist, what, number):
        label = str(artist.get_label())
        return "%s %d" % (what, number) if label.startswith("_") else label

    def texts_of(of):
        return dict(zip(of.get_majorticklocs(), (text.get_text() for text in of.get_ticklabels())))

    def numeric(text):
        try:
            float(text.replace("\N{MINUS SIGN}", "-"))
        except ValueError:
            return False
        return True

    def pie(wedges):
        # matplotlib has them in single precision: three digits are what is true of the difference of two.
        element = lambda w: {
            "label": w.get_label(),
            "angle": round(abs(float(w.theta2) - float(w.theta1)), 3),
            "radius": figure_of(w.r),
        }
        return {"type": "pie", "elements": [element(wedge) for wedge in wedges]}

    def bars(ax, containers):
        elements, upright = [], True
        for number, container in enumerate(containers):
            upright = getattr(container, "orientation", None) != "horizontal"
            texts = texts_of(ax.xaxis if upright else ax.yaxis)
            group = label_of(container, "Group", number)
            for bar in container.patches:
                begin, size = (bar.get_x(), bar.get_width()) if upright else (bar.get_y(), bar.get_height())
                center = begin + size / 2
                near = min(texts, key=lambda tick: abs(tick - center), default=None)
                # Bars of several groups stand beside their name; a number is the bar's own only where it stands on it.
                room = 1e-9 if near is None or numeric(texts[near]) else abs(size) * len(containers)
                hit = near is not None and abs(near - center) <= room
                label = texts[near] if hit and texts[near] else str(plain(round(float(center), 6)))
                value = bar.get_height() if upright else bar.get_width()
                elements.append({"label": label, "group": group, "value": figure_of(value)})
        return {"type": "bar", **plane(ax, upright), "elements": elements}

    def boxes(ax):
        """What `boxplot` drew, found by its shape: closed boxes, medians, whiskers, loners."""
        from matplotlib.patches import PathPatch

        def numbers(values):
            try:
                return [float(value) for value in values]
            except (TypeError, ValueError):
                return []

        lines = [(l, numbers(l.get_xdata(orig=False)), numbers(l.get_ydata(orig=False))) for l in ax.lines]
        outlines = [(xs, ys) for _, xs, ys in lines if len(xs) == 5 and xs[0] == xs[4] and ys[0] == ys[4]]
        for patch in ax.patches:
            if isinstance(patch, PathPatch):
                vertices = [tuple(map(float, vertex)) for vertex in patch.get_path().vertices]
                outlines.append(([v[0] for v in vertices[:5]], [v[1] for v in vertices[:5]]))
        pairs = [(xs, ys) for _, xs, ys in lines if len(xs) == 2]
        # A median is as wide as its box; whiskers and caps are not.
        spans = lambda pair, box: (min(pair), max(pair)) == (min(box), max(box))
        found, standing = [], True
        for xs, ys in outlines:
            upright = any(y[0] == y[1] and spans(x, xs) and min(ys) <= y[0] <= max(ys) for x, y in pairs)
            standing = standing and upright
            across, along = (xs, ys) if upright else (ys, xs)
            center, low, high = (min(across) + max(across)) / 2, min(along), max(along)
            swap = lambda x, y: (x, y) if upright else (y, x)
            straight = [swap(x, y) for x, y in pairs]
            inside = [b[0] for a, b in straight if b[0] == b[1] and spans(a, across) and low <= b[0] <= high]
            reach = [v for a, b in straight if a[0] == a[1] == center for v in b] + [low, high]
            dots = [swap(x, y) for line, x, y in lines if line.get_linestyle() == "None"]
            loners = [v for a, b in dots for u, v in zip(a, b) if u == center]
            texts = texts_of(ax.xaxis if upright else ax.yaxis)
            element = {"label": texts.get(center) or str(plain(center)), "min": min(reach), "first_quartile": low}
            element["median"] = inside[0] if inside else None
            element.update({"third_quartile": high, "max": max(reach), "outliers": loners})
            # A closed line without a middle is somebody's drawing.
            if inside:
                found.append(element)
        return found, standing

    def lines_of(ax):
        """The lines of data; a line across the whole plane (`axhline`) is one only where there is no other."""
        across = lambda line: line.get_transform() != ax.transData
        return [line for line in ax.lines if not across(line)] or list(ax.lines)

    def chart_of(ax):
        from matplotlib.collections import PathCollection
        from matplotlib.container import BarContainer
        from matplotlib.patches import Wedge

        wedges = [patch for patch in ax.patches if isinstance(patch, Wedge)]
        clouds = [cloud for cloud in ax.collections if isinstance(cloud, PathCollection)]
        containers = [container for container in ax.containers if isinstance(container, BarContainer)]
        boxed, standing = boxes(ax)
        if wedges:
            chart = pie(wedges)
        elif boxed:
            chart = {"type": "box_and_whisker", **plane(ax, standing), "elements": boxed}
        elif containers:
            chart = bars(ax, containers)
        elif clouds:
            told = lambda n, c: {"label": label_of(c, "Scatter", n), "points": points(ax, c.get_offsets())}
            chart = {"type": "scatter", **ticked(ax), "elements": [told(n, c) for n, c in enumerate(clouds)]}
        elif ax.lines:
            pairs = lambda line: zip(line.get_xdata(orig=True), line.get_ydata(orig=True))
            told = lambda n, l: {"label": label_of(l, "Line", n), "points": points(ax, pairs(l))}
            chart = {"type": "line", **ticked(ax), "elements": [told(n, l) for n, l in enumerate(lines_of(ax))]}
        else:
            chart = {"type": "unknown", "elements": []}
        return {**chart, "title": ax.get_title() or None}

    def chart(figure):
        # A colour bar explains another chart, and is none.
        axes = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
        if not any(ax.has_data() for ax in axes):
            return None
        charts = [chart_of(ax) for ax in axes]
        if len(charts) > 1:
            title = getattr(figure, "_suptitle", None)
            return {"type": "superchart", "title": title.get_text() if title else None, "elements": charts}
        return charts[0]

    return chart, plain
