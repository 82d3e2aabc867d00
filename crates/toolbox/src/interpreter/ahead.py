"""Runs in a kernel that waits for its sandbox, behind `startup.py`: does what the first mistake would have to wait for."""


def _atoll_ahead():
    import sys

    from IPython import get_ipython

    # Nobody listens yet.
    get_ipython().run_cell("1 / 0", silent=True, store_history=False)
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)


_atoll_ahead()
del _atoll_ahead
