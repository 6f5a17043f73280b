"""Every error merganser raises on purpose, in one tree.

::

    MerganserError
    ├── InvalidArgumentError       ValueError    an argument is invalid, whatever the data
    │   └── SqlError                             a statement is not a MERGE that can be run
    ├── MissingExtraError          ImportError   a package is not installed
    ├── PipelineError                            a run ended early and can be repeated
    │   ├── ConfigurationError     ValueError    a pipeline's configuration is invalid
    │   ├── QualityError           ValueError    more rows failed the checks than allowed
    │   └── AccountingError                      rows are not accounted for
    ├── GraphError
    │   ├── MergeConflictError                   more than one node or edge matches
    │   ├── NodeNotFoundError      LookupError   a node does not exist
    │   ├── EdgeNotFoundError      LookupError   an edge does not exist
    │   ├── UniqueConstraintError  ValueError    a unique index would have a duplicate key
    │   ├── GraphSchemaError       ValueError    the graph's schema does not allow a record
    │   ├── PropertyTypeError      TypeError     a property cannot have this type
    │   ├── PropertyValueError     ValueError    a property cannot hold this value
    │   ├── GraphFileError         OSError       a file cannot be opened as a graph database
    │   └── GraphLockedError       TimeoutError  another process or thread locks the graph
    └── DatasetMergeError
        ├── KeyColumnError         ValueError    a key column is missing, or holds NULL or NaN
        ├── DuplicateKeyError      ValueError    two source rows have one key
        ├── SchemaMismatchError    ValueError    the columns of source and target differ
        ├── ColumnTypeError        TypeError     a column cannot be cast to the target's type
        │   └── UnsupportedTypeError             this engine does not support a type
        ├── ColumnValueError       ValueError    a value does not fit the target's column
        ├── PartitionValueError    ValueError    a folder name cannot hold a partition value
        ├── PartitionMoveError     ValueError    a matched key has other partition values
        ├── TargetPathError        ValueError    the target does not exist or is not one dataset
        ├── UnreadableFileError    OSError       a data file or footer cannot be read
        ├── UnsupportedFileError   ValueError    a file or table must not be changed
        ├── OutOfMemoryError       MemoryError   not enough memory
        ├── StagingError           OSError       staged files cannot be written
        │   └── DatasetPermissionError  PermissionError  this user may not write there
        ├── LockTimeoutError       TimeoutError  another writer holds the dataset
        ├── ConcurrentWriteError                 another program changed the dataset
        ├── UndoError                            the last commit cannot be undone
        ├── NotRetainedError       LookupError   a past state is not retained
        └── CountMismatchError                   staged rows differ from the plan

Each also subclasses the builtin beside it, so callers can catch either. Messages name the column, key or path and end
with what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from merganser.printable import to_printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MerganserError(Exception):
    """The base class of all errors that merganser raises on purpose.

    Messages quote paths, names, values and other errors, so credentials and control characters are removed here.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*(to_printable(one) if isinstance(one, str) else one for one in arguments))


class InvalidArgumentError(MerganserError, ValueError):
    """An argument is invalid, whatever the data."""


class SqlError(InvalidArgumentError):
    """A statement is not a MERGE, or not one that can be run exactly; names the line and column."""


class MissingExtraError(MerganserError, ImportError):
    """A required package is not installed, or the system is not supported."""


class PipelineError(MerganserError):
    """A pipeline run ended early; what it merged is committed, and the next run continues from there."""


class ConfigurationError(PipelineError, ValueError):
    """A pipeline's configuration is invalid; names the file, table and key."""

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
    """The rows read differ from the sum of rows merged, quarantined and deduplicated."""


class GraphError(MerganserError):
    """An operation on a graph was refused or failed, and changed nothing."""


class MergeConflictError(GraphError):
    """More than one node matches; in an edge merge the attributes hold the edge type, its key and the edges."""

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
        """Return the same error with a label of the row or record."""
        return MergeConflictError(self.node_type, self.match_properties, self.conflicting_nodes, self.kind, label)


class NodeNotFoundError(GraphError, LookupError):
    """The node does not exist."""


class EdgeNotFoundError(GraphError, LookupError):
    """The edge does not exist."""


class UniqueConstraintError(GraphError, ValueError):
    """Two records have, or would have, the same key of a unique index."""


class GraphSchemaError(GraphError, ValueError):
    """The graph's schema does not allow a type, property or edge."""


class PropertyTypeError(GraphError, TypeError):
    """A property's value or name has a type that cannot be stored."""


class PropertyValueError(GraphError, ValueError):
    """A property's value cannot be stored."""


class GraphFileError(GraphError, OSError):
    """A file cannot be opened as a graph database."""


class GraphLockedError(GraphError, TimeoutError):
    """Another process or thread kept the graph locked for longer than the timeout."""


class DatasetMergeError(MerganserError):
    """A merge or write was refused or failed; nothing changed unless the message says so."""


class KeyColumnError(DatasetMergeError, ValueError):
    """A key column is missing, or holds NULL or NaN in the source."""


class DuplicateKeyError(DatasetMergeError, ValueError):
    """Two source rows have one key."""


class SchemaMismatchError(DatasetMergeError, ValueError):
    """The columns of source and target, or of two target files, differ."""


class ColumnTypeError(DatasetMergeError, TypeError):
    """A column cannot be cast to the target's type without loss."""


class UnsupportedTypeError(ColumnTypeError):
    """A type is not supported by this engine, or as a key or partition column."""


class ColumnValueError(DatasetMergeError, ValueError):
    """A source value does not fit the target's column."""


class PartitionValueError(DatasetMergeError, ValueError):
    """A folder name cannot hold a partition value."""


class PartitionMoveError(DatasetMergeError, ValueError):
    """A matched key has other partition values in the source than in the target."""


class TargetPathError(DatasetMergeError, ValueError):
    """The target path does not exist, or is not the folder of one dataset."""


class UnreadableFileError(DatasetMergeError, OSError):
    """A data file or its footer cannot be read."""


class UnsupportedFileError(DatasetMergeError, ValueError):
    """A file must not be changed, such as an encrypted one or one of a table of another format."""


class OutOfMemoryError(DatasetMergeError, MemoryError):
    """There is not enough memory."""


class StagingError(DatasetMergeError, OSError):
    """Staged files cannot be written, for lack of space or permission."""


class DatasetPermissionError(StagingError, PermissionError):
    """This user may not write the lock, the staged files or the history of a dataset."""


class LockTimeoutError(DatasetMergeError, TimeoutError):
    """Another writer holds the dataset."""


class ConcurrentWriteError(DatasetMergeError):
    """Another program changed the dataset while the merge was being prepared."""


class UndoError(DatasetMergeError):
    """There is no commit to undo, or its replaced files are not retained."""


class NotRetainedError(DatasetMergeError, LookupError):
    """The files of a past state are not retained."""


class CountMismatchError(DatasetMergeError):
    """The number of staged rows differs from the plan; nothing was published."""


class MergePerformanceWarning(UserWarning):
    """A merge matches nodes by properties without an index, which scans all nodes of the type."""

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


class RepeatedUpdateWarning(UserWarning):
    """A MERGE computes new values from old ones and has no `batch_id`, so running it twice changes rows twice."""

    def __init__(self, updates: Sequence[str]) -> None:
        self.updates = tuple(updates)
        listed = "; ".join(self.updates)
        super().__init__(
            to_printable(
                f"Running this MERGE twice applies it twice, because new values depend on old ones: {listed}. Pass "
                "batch_id, so that the same batch is merged once."
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.updates,)
