"""Griffe extension of mkdocs.yml: show the examples of docstrings as code blocks on the documentation site."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

# An example: a line that begins with `>>>`, and the lines up to an empty line.
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class DoctestBlocks(Extension):
    """Fence each example."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Fence the examples of a loaded object's docstring."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
