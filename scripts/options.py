"""Write the options of `merge`, `plan` and `write_dataset` into their signatures and docstrings, from the declaration.

`merganser.core.model.options.Options` declares them. With `--check` nothing is written; the exit code is 1 where a file
would change.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

from merganser.core.model.options import ARGUMENTS, DECLARATIONS, POSITIONAL, Call, Options, list_options

SOURCE = Path(__file__).parents[1] / "src" / "merganser"
MERGE = SOURCE / "core" / "merge"
FILES = (SOURCE / "api.py", MERGE / "dataset_io.py", MERGE / "operation.py")
CALLS: tuple[Call, ...] = ("merge", "plan", "write_dataset")
WIDTH = 120


def main() -> None:
    """Rewrite the files, or with `--check` only compare."""
    check = "--check" in sys.argv[1:]
    changed = [path for path in FILES if rewrite(path, check=check)]
    for path in changed:
        print(f"{path.relative_to(SOURCE.parents[1])} {'differs from' if check else 'follows'} the declaration")  # noqa: T201
    sys.exit(1 if check and changed else 0)


def rewrite(path: Path, *, check: bool) -> bool:
    """Bring one file up to date; returns whether it changes."""
    old = path.read_text("utf-8")
    lines = old.splitlines(keepends=True)
    tree = ast.parse(old)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    # From the last to the first, so that line numbers above stay true.
    for node in sorted(nodes, key=lambda node: -node.lineno):
        if isinstance(node, ast.ClassDef) and node.name == "MergeOptions":
            lines[node.body[0].end_lineno : node.end_lineno] = make_typed_dict()
        elif isinstance(node, ast.FunctionDef) and node.name in CALLS:
            docstring = node.body[0]
            lines[docstring.lineno - 1 : docstring.end_lineno] = make_docstring(node)
            lines[node.lineno - 1 : docstring.lineno - 1] = make_signature(node)
    new = format_source("".join(lines), path)
    if not check:
        path.write_text(new, "utf-8")
    return new != old


def make_typed_dict() -> list[str]:
    """Write the options of `merge` as keys."""
    return ["\n", *(f"    {name}: {Options.__annotations__[name]}\n" for name in list_options("merge"))]


def make_signature(node: ast.FunctionDef) -> list[str]:
    """Write the head of a function: its own parameters, then the options."""
    call, arguments = node.name, node.args
    names = list_options(call)  # type: ignore[arg-type]
    own = [one for one in arguments.args if one.arg not in names]
    # The last parameters are those with defaults.
    padding = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = dict(zip([one.arg for one in arguments.args], [*padding, *arguments.defaults], strict=True))
    by_name = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    is_method = own[0].arg == "self"
    positional = [name for name in names if is_method and name in POSITIONAL]
    parameters = [
        *(_format_parameter(one, defaults[one.arg]) for one in own),
        *map(_format_option, positional),
        "*",
        *(_format_parameter(one, default) for one, default in by_name if one.arg not in names),
        *(_format_option(name) for name in names if name not in positional),
    ]
    indent = " " * node.col_offset
    body = "".join(f"{indent}    {one},\n" for one in parameters)
    return [f"{indent}def {call}(\n{body}{indent}) -> {ast.unparse(node.returns or ast.Constant(None))}:\n"]


def _format_parameter(one: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(one.annotation)}" if one.annotation else ""
    return f"{one.arg}{annotation}{'' if default is None else f' = {ast.unparse(default)}'}"


def _format_option(name: str) -> str:
    default = getattr(Options(), name)
    shown = f"{default:_}" if isinstance(default, int) and not isinstance(default, bool) else repr(default)
    return f"{name}: {Options.__annotations__[name]} = {shown}"


def make_docstring(node: ast.FunctionDef) -> list[str]:
    """Write the docstring of a function, with all parameters under `Args:`."""
    indent = " " * (node.col_offset + 4)
    text = ast.get_docstring(node) or ""
    listed = [f"    {name}: {describe(name)}" for name in list_parameters(node)]
    wrapped = [
        textwrap.fill(one, WIDTH - len(indent), subsequent_indent=" " * 8, break_on_hyphens=False) for one in listed
    ]
    before, _, rest = text.partition("Args:")
    after = rest.partition("\n\n")[2]
    whole = "\n".join([f"{before}Args:", *wrapped, *(["", after] if after else [])])
    return [textwrap.indent(f'"""{whole}\n"""\n', indent)]


def list_parameters(node: ast.FunctionDef) -> list[str]:
    """List the parameters of a function in the order of its new signature."""
    parsed = ast.parse(textwrap.dedent("".join(make_signature(node))) + "    ...").body[0]
    assert isinstance(parsed, ast.FunctionDef)  # noqa: S101
    return [one.arg for one in [*parsed.args.args, *parsed.args.kwonlyargs] if one.arg != "self"]


def describe(name: str) -> str:
    """Describe a parameter."""
    return DECLARATIONS[name].description if name in DECLARATIONS else ARGUMENTS[name]


def format_source(text: str, path: Path) -> str:
    """Format source as `make lint` wants it."""
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"]
    return subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603


if __name__ == "__main__":
    main()
