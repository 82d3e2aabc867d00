"""Runs in a fresh kernel, behind `charts.py`: environment per execution, tables and charts as structured data, pictures of
Pillow as results where they are saved or shown."""


def _atoll_startup(charts, pictures):
    import os
    import time

    from IPython import get_ipython
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName

    shell = get_ipython()
    saved, applied, depth = {}, {}, [0]

    def asked():
        """What came along with the request that runs now."""
        kernel = shell.kernel
        parent = kernel.get_parent("shell") if hasattr(kernel, "get_parent") else kernel._parent_header
        return (parent or {}).get("metadata", {}).get("atoll") or {}

    def put(values):
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if "TZ" in values:
            time.tzset()

    def before():
        # Code may run code.
        depth[0] += 1
        if depth[0] > 1:
            return
        about = asked()
        base = about.get("base")
        if base is not None and base != applied:
            # A kernel that waited for its sandbox learns the sandbox's environment when it is first used.
            put({**dict.fromkeys(applied.keys() - base.keys()), **base})
            applied.clear()
            applied.update(base)
        env = about.get("env") or {}
        saved.update({name: os.environ.get(name) for name in env})
        put(env)

    def after():
        depth[0] = max(depth[0] - 1, 0)
        if depth[0] == 0 and saved:
            put(saved)
            saved.clear()

    async def nothing(*_, **__):
        pass

    if hasattr(shell.kernel, "_flush_control_queue"):
        # Nobody speaks to us over that channel, and asking its thread costs a tenth of each execution.
        shell.kernel._flush_control_queue = nothing

    shell.events.register("pre_execute", before)
    shell.events.register("post_execute", after)

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

    chart, plain = charts
    # LIMIT: a larger table is shown, not sent a second time.
    cells_max = 100_000

    def table(frame):
        if frame.size > cells_max:
            return None
        return {str(name): [plain(value) for value in frame[name]] for name in frame.columns}

    for name, shows in (("data", ("pandas", "DataFrame", table)), ("chart", ("matplotlib", "Figure", chart))):
        formatter = Told(parent=shell.display_formatter)
        formatter.format_type = "application/vnd.atoll.%s+json" % name
        formatter.shows = shows
        shell.display_formatter.formatters[formatter.format_type] = formatter

    pictures()


def _atoll_pictures():
    """Has `Image.save` and `Image.show` of Pillow display the picture too. Pillow is changed when code loads it, and not
    loaded for it: most code has no pictures."""
    import importlib.util
    import os
    import sys

    def change(module):
        from IPython.display import display

        image, save = module.Image, module.Image.save

        def saved(self, fp, format=None, **params):
            save(self, fp, format, **params)
            # matplotlib writes its figures by this function, and shows them itself.
            caller = sys._getframe(1).f_globals.get("__name__") or ""
            if isinstance(fp, (str, os.PathLike)) and caller.split(".")[0] not in ("PIL", "matplotlib"):
                display(self)

        image.save = saved
        image.show = lambda self, *_, **__: display(self)

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name != "PIL.Image":
                return None
            sys.meta_path.remove(Finder)
            spec = importlib.util.find_spec(name)
            if spec and spec.loader and hasattr(spec.loader, "exec_module"):
                load = spec.loader.exec_module

                def exec_module(module):
                    load(module)
                    change(module)

                spec.loader.exec_module = exec_module
            return spec

    if "PIL.Image" in sys.modules:
        change(sys.modules["PIL.Image"])
    else:
        sys.meta_path.insert(0, Finder)


_atoll_startup(_atoll_charts(), _atoll_pictures)
del _atoll_startup, _atoll_charts, _atoll_pictures
