"""Every error merganser raises on purpose, in one tree.

::

    MerganserError
    ├── InvalidArgumentError       ValueError    an argument that makes no sense, whatever the data
    ├── MissingExtraError          ImportError   packages that are not installed
    ├── PipelineError                            a run that ended early, and can be run again
    │   ├── ConfigurationError     ValueError    a pipeline's configuration that makes no sense
    │   ├── QualityError           ValueError    more rows failed the checks than may
    │   └── AccountingError                      rows that cannot be accounted for
    ├── GraphError
    │   ├── MergeConflictError                   more than one node or edge matches
    │   ├── NodeNotFoundError      LookupError   there is no node with this id or these properties
    │   ├── EdgeNotFoundError      LookupError   there is no edge with this id
    │   ├── UniqueConstraintError  ValueError    two records with one key of a unique index
    │   ├── GraphSchemaError       ValueError    a type, property or edge that the graph's schema does not allow
    │   ├── PropertyTypeError      TypeError     a value of a type that no property can have
    │   ├── PropertyValueError     ValueError    a number, time or text that no property can hold
    │   ├── GraphFileError         OSError       a file that is no graph database, or cannot be opened as one
    │   └── GraphLockedError       TimeoutError  another process or thread kept the graph locked
    └── DatasetMergeError
        ├── KeyColumnError         ValueError    a key column is missing, or holds NULL or NaN
        ├── DuplicateKeyError      ValueError    two source rows with one key
        ├── SchemaMismatchError    ValueError    the columns of source and target differ
        ├── ColumnTypeError        TypeError     a column type that cannot become the target's
        │   └── UnsupportedTypeError             a type that this engine cannot carry at all
        ├── ColumnValueError       ValueError    a value that the target's column cannot hold
        ├── PartitionValueError    ValueError    a partition value that no folder name can carry
        ├── PartitionMoveError     ValueError    a matched key with other partition values
        ├── TargetPathError        ValueError    a target that does not exist, or is not one dataset's folder
        ├── UnreadableFileError    OSError       a data file or footer that cannot be read
        ├── UnsupportedFileError   ValueError    a file or table that merganser must not touch
        ├── OutOfMemoryError       MemoryError   not enough memory
        ├── StagingError           OSError       staged files cannot be written
        │   └── DatasetPermissionError  PermissionError  this user may not write there
        ├── LockTimeoutError       TimeoutError  another writer holds the dataset
        ├── ConcurrentWriteError                 the dataset changed under the merge
        ├── UndoError                            the last commit cannot be undone
        └── CountMismatchError                   staged rows do not add up; nothing was published

Each is also the builtin named beside it, so that callers may catch either. Messages name the column, key or path and
end with what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.printable import to_printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MerganserError(Exception):
    """Base of everything that merganser raises on purpose.

    Messages quote paths, names, values and errors of others, so credentials in URLs are masked and control characters
    escaped here, whatever the message.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*(to_printable(one) if isinstance(one, str) else one for one in arguments))


class InvalidArgumentError(MerganserError, ValueError):
    """An argument makes no sense, whatever the data."""


class MissingExtraError(MerganserError, ImportError):
    """The packages that something needs are not installed."""


class PipelineError(MerganserError):
    """A run of a pipeline ended early; what it had merged is whole, and a run again goes on from there."""


class ConfigurationError(PipelineError, ValueError):
    """A pipeline's configuration makes no sense, by its file, table and key."""

    def __init__(self, message: str, table: str = "", key: str = "", file: str = "") -> None:
        self.message = to_printable(message)
        self.table = to_printable(table)
        self.key = to_printable(key)
        self.file = to_printable(file)
        place = ", ".join(part for part in (file, table, f"key {key!r}" if key else "") if part)
        super().__init__(f"{place}: {message}" if place else message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.table, self.key, self.file)


class QualityError(PipelineError, ValueError):
    """More rows failed the checks than the configuration allows; nothing was merged."""


class AccountingError(PipelineError):
    """The rows that were read are not the rows merged, quarantined and deduplicated."""


class GraphError(MerganserError):
    """An operation on a graph was refused or failed, and changed nothing."""


class MergeConflictError(GraphError):
    """More than one node matches; for an edge merge, these are the edge's type, its key and the edges."""

    def __init__(
        self,
        node_type: str,
        match_properties: Mapping[str, Any],
        conflicting_nodes: Sequence[Any],
        kind: str = "nodes",
        label: str = "",
    ) -> None:
        self.node_type = node_type
        self.match_properties = match_properties
        self.conflicting_nodes = conflicting_nodes
        self.kind = kind
        self.label = label
        ids = ", ".join(str(found.id) for found in conflicting_nodes[:10])
        more = ", …" if len(conflicting_nodes) > 10 else ""  # noqa: PLR2004 - enough to look at
        prefix = f"{label}: " if label else ""
        super().__init__(
            f"{prefix}Multiple {kind} match the merge of {node_type} by {dict(match_properties)!r}. Found "
            f"{len(conflicting_nodes)} matches, with the ids {ids}{more}. Match on properties that uniquely identify "
            "one, or delete the duplicates and add a unique index."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.node_type, self.match_properties, self.conflicting_nodes, self.kind, self.label)

    def of(self, label: str) -> MergeConflictError:
        """Give the same error with the row or record that it is about."""
        return MergeConflictError(self.node_type, self.match_properties, self.conflicting_nodes, self.kind, label)


class NodeNotFoundError(GraphError, LookupError):
    """There is no such node."""


class EdgeNotFoundError(GraphError, LookupError):
    """There is no such edge."""


class UniqueConstraintError(GraphError, ValueError):
    """Two records would have, or have, one key of a unique index."""


class GraphSchemaError(GraphError, ValueError):
    """The graph's schema does not allow this."""


class PropertyTypeError(GraphError, TypeError):
    """A property's value or name has a type that cannot be stored."""


class PropertyValueError(GraphError, ValueError):
    """A property's value cannot be stored."""


class GraphFileError(GraphError, OSError):
    """A file cannot be opened as a graph database."""


class GraphLockedError(GraphError, TimeoutError):
    """Another process or thread kept the graph locked for longer than the timeout."""


class DatasetMergeError(MerganserError):
    """A merge or write was refused or failed; unless it says otherwise, nothing changed."""


class KeyColumnError(DatasetMergeError, ValueError):
    """A key column is missing, or holds NULL or NaN in the source."""


class DuplicateKeyError(DatasetMergeError, ValueError):
    """Two source rows have one key."""


class SchemaMismatchError(DatasetMergeError, ValueError):
    """The columns of source and target, or of two target files, differ."""


class ColumnTypeError(DatasetMergeError, TypeError):
    """A column's type cannot become the target's without loss."""


class UnsupportedTypeError(ColumnTypeError):
    """A type that this engine, or a key or partition column, cannot carry."""


class ColumnValueError(DatasetMergeError, ValueError):
    """A source value does not fit the target's column."""


class PartitionValueError(DatasetMergeError, ValueError):
    """A partition value that no folder name can carry."""


class PartitionMoveError(DatasetMergeError, ValueError):
    """A matched key has other partition values in the source than in the target."""


class TargetPathError(DatasetMergeError, ValueError):
    """The target path does not exist, or is not the folder of one dataset."""


class UnreadableFileError(DatasetMergeError, OSError):
    """A data file or its footer cannot be read."""


class UnsupportedFileError(DatasetMergeError, ValueError):
    """A file that merganser must not touch, such as an encrypted one, or a table of another format."""


class OutOfMemoryError(DatasetMergeError, MemoryError):
    """There is not enough memory for what was asked for."""


class StagingError(DatasetMergeError, OSError):
    """Staged files cannot be written: no space, no permission."""


class DatasetPermissionError(StagingError, PermissionError):
    """This user may not write the lock, the staged files or the history of a dataset."""


class LockTimeoutError(DatasetMergeError, TimeoutError):
    """Another writer holds the dataset."""


class ConcurrentWriteError(DatasetMergeError):
    """Something else changed the dataset while the merge was being prepared."""


class UndoError(DatasetMergeError):
    """There is no commit to undo, or not what it takes to undo the last one."""


class CountMismatchError(DatasetMergeError):
    """The staged rows do not add up to what the merge decided."""


class MergePerformanceWarning(UserWarning):
    """A merge looks for nodes by properties that no index serves, and so looks at every node of the type."""

    def __init__(self, node_type: str, properties: tuple[str, ...], remedy: str = "") -> None:
        self.node_type = node_type
        self.properties = properties
        self.remedy = remedy
        given = repr(properties[0]) if len(properties) == 1 else repr(list(properties))
        super().__init__(
            to_printable(
                f"MERGE on {node_type}.{'+'.join(properties)} without index: it looks at every {node_type} node. "
                + (remedy or f"Create one with: db.create_property_index({node_type!r}, {given})")
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.node_type, self.properties, self.remedy)
