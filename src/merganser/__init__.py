"""Idempotent MERGE of keyed rows into plain Parquet datasets, and of keyed records into a property graph."""

from __future__ import annotations

from typing import Any

# Public names stand in __init__.pyi. Each is imported when it is first used: Arrow and NumPy alone take longer to load
# than a small merge takes.


def __getattr__(name: str) -> Any:
    if name == "__all__":
        # `from merganser import *` reads it first.
        return __dir__()
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  slow to load

        # Not before it is used: a package that was shipped to an executor has no version there.
        return version("merganser")
    from importlib import import_module  # noqa: PLC0415  as above

    from merganser.public_names import find_module  # noqa: PLC0415  as above

    module = find_module(__name__, name)
    if module == __name__:
        return import_module(f"merganser.{name}")
    from merganser.engines import load  # noqa: PLC0415  as above

    loaded = load(module, name, "merganser[spark]" if "spark" in module else "merganser")
    globals()[name] = loaded
    return loaded


def __dir__() -> list[str]:
    from contextlib import suppress  # noqa: PLC0415  slow to load
    from importlib.util import find_spec  # noqa: PLC0415  as above

    from merganser.public_names import read_names  # noqa: PLC0415  as above

    has_spark = False
    with suppress(ImportError):
        has_spark = find_spec("pyspark") is not None
    names = [name for name, module in read_names(__name__).items() if has_spark or "spark" not in module]
    return sorted(["__version__", *(name for name in names if read_names(__name__)[name] != __name__)])
