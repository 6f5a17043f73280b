"""Show the examples of docstrings as code on the documentation site; mkdocs.yml names this for Griffe."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

# An example: lines that begin with `>>>`, and what follows them up to an empty line.
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class DoctestBlocks(Extension):
    """Put a fence around each example."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the docstring of whatever has been loaded."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
