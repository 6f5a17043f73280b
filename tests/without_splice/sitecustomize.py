"""Python runs this when it starts with this folder on its path: no file is spliced, every one is rewritten whole.

Nothing is loaded for it that would not be loaded anyway.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

KERNELS = {"merganser.core.rows.rewrite", "merganser.core.rows.append"}


def _refuse(*_arguments: Any) -> NoReturn:
    from merganser.core.parquet.source_file import CannotSpliceError  # noqa: PLC0415  loaded by then

    raise CannotSpliceError("splicing is off")


class _WithoutSplice(MetaPathFinder):
    """Changes the modules that splice when they are loaded."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002  asked for
        if fullname not in KERNELS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            vars(module)["open_source_file"] = _refuse

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


for _kernel in KERNELS & set(sys.modules):
    vars(sys.modules[_kernel])["open_source_file"] = _refuse
sys.meta_path.insert(0, _WithoutSplice())
