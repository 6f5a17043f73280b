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

KERNEL = "merganser.core.kernel"


def _refuse(*_arguments: Any) -> NoReturn:
    from merganser.core.oldfile import CannotSpliceError  # noqa: PLC0415  loaded by then

    raise CannotSpliceError("splicing is off")


class _WithoutSplice(MetaPathFinder):
    """Changes one module when it is loaded."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002  asked for
        if fullname != KERNEL:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            vars(module)["open_old"] = _refuse

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


if KERNEL in sys.modules:
    vars(sys.modules[KERNEL])["open_old"] = _refuse
else:
    sys.meta_path.insert(0, _WithoutSplice())
