"""A command group that imports a command only when it runs, so that help is fast."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import click

from merganser.printable import to_printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def _escape_usage_errors() -> Iterator[None]:
    """Escape control characters and mask passwords in the arguments that a usage error quotes."""
    try:
        yield
    except click.ClickException as error:
        error.message = to_printable(error.message)  # type: ignore[misc]  # a new one would lose its context
        raise


class LazyGroup(click.Group):
    """A group whose table gives `module:function` and one line of help for each command."""

    def __init__(self, *arguments: Any, table: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  they are always the same
        """List the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  as above
        """Load a command."""
        if cmd_name not in self.table:
            return None
        module, _, function = self.table[cmd_name][0].partition(":")
        try:
            return cast("click.Command", getattr(import_module(module), function))
        except KeyboardInterrupt:
            sys.exit("Error: Interrupted. Nothing was changed.")

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the arguments of the group."""
        with _escape_usage_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        with _escape_usage_errors():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  as above
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in self.table.items()])
