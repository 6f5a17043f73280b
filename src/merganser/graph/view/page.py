"""A neighbourhood as one interactive HTML file that loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from merganser.graph.values import format_value

if TYPE_CHECKING:
    from merganser.graph.records import Edge, Node
    from merganser.graph.view.neighbourhood import Neighbourhood

# Characters that HTML does not allow: control characters, lone surrogates, noncharacters.
_INVALID_IN_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script type="application/json" id="graph">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def render_graph_page(found: Neighbourhood, title: str, depth: int | None, note: str) -> str:
    """Render the page; see `Neighbourhood.to_html`."""
    script = "\n".join(map(_read_asset, ("layout.js", "page.js", "hands.js")))
    style = _read_asset("page.css")
    # With this policy the browser refuses every other script and style, and every request of the page.
    policy = f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(style)}; img-src data:"
    return _PAGE.format(
        policy=policy,
        title=escape(_INVALID_IN_HTML.sub("\ufffd", title)),
        style=style,
        body=_read_asset("page.html"),
        data=encode_for_html(_to_page_data(found, title, depth, note)),
        script=script,
    )


def encode_for_html(value: Any) -> str:
    r"""Encode as JSON without characters that an HTML parser would interpret.

    >>> encode_for_html("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _to_page_data(found: Neighbourhood, title: str, depth: int | None, note: str) -> dict[str, Any]:
    # Ids and values are strings, because numbers of a browser do not hold every integer.
    nodes = [
        _to_fields(node) | {"distance": distance, "beyond": beyond}
        for node, distance, beyond in zip(found.nodes, found.distances, found.beyond, strict=True)
    ]
    edges = [_to_fields(edge) | {"from": str(edge.from_id), "to": str(edge.to_id)} for edge in found.edges]
    return {
        "title": title,
        "note": note,
        "depth": max(found.distances, default=0) if depth is None else depth,
        "nodesLeftOut": found.nodes_left_out,
        "edgesLeftOut": found.edges_left_out,
        "keys": found.keys,
        "nodes": nodes,
        "edges": edges,
    }


def _to_fields(record: Node | Edge) -> dict[str, Any]:
    # Pairs, because a browser sorts names that are numbers first.
    properties = [[name, format_value(value)] for name, value in record.properties.items()]
    return {"id": str(record.id), "type": record.type, "properties": properties}


@cache
def _read_asset(name: str) -> str:
    return files("merganser.graph.view").joinpath("assets", name).read_text("utf-8").strip("\n")


def _hash_source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
