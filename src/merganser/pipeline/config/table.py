"""The base class of the tables of a configuration."""

from __future__ import annotations

from dataclasses import MISSING, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from merganser.errors import ConfigurationError

if TYPE_CHECKING:
    from merganser.pipeline.config import field_types as types


def declare_key(field_type: types.FieldType, default: Any = MISSING) -> Any:
    """Declare a key of a table; without a default it is required."""
    return field(default=default, metadata={"field_type": field_type})


class Table:
    """A table of the configuration: its keys are its fields, whose values are checked when it is created."""

    __slots__ = ()
    title: ClassVar[str]

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            given = getattr(self, one.name)
            if given is not None or one.default is MISSING:
                object.__setattr__(self, one.name, one.metadata["field_type"].read(given, self.label, one.name))

    @property
    def label(self) -> str:
        """The name of this table in errors."""
        name = getattr(self, "name", None) or getattr(self, "type", None)
        return f"{self.title} {name!r}" if isinstance(name, str) and name else self.title

    def make_error(self, name: str, message: str) -> ConfigurationError:
        """Make the error for one of the keys."""
        return ConfigurationError(message, self.label, name)

    @classmethod
    def list_keys(cls) -> list[str]:
        """List all keys."""
        return [one.name for one in fields(cls)]  # type: ignore[arg-type]

    @classmethod
    def list_required_keys(cls) -> list[str]:
        """List the required keys."""
        return [one.name for one in fields(cls) if one.default is MISSING]  # type: ignore[arg-type]
