"""Every error merganser raises on purpose, in one tree.

::

    MerganserError
    ├── InvalidArgumentError       ValueError    an argument that makes no sense, whatever the data
    ├── MissingExtraError          ImportError   an engine whose packages are not installed
    └── DatasetMergeError
        ├── KeyColumnError         ValueError    a key column is missing, or holds NULL or NaN
        ├── DuplicateKeyError      ValueError    two source rows with one key
        ├── SchemaMismatchError    ValueError    the columns of source and target differ
        ├── ColumnTypeError        TypeError     a column type that cannot become the target's
        │   └── UnsupportedTypeError             a type that this engine cannot carry at all
        ├── ColumnValueError       ValueError    a value that the target's column cannot hold
        ├── PartitionValueError    ValueError    a partition value that no folder name can carry
        ├── PartitionMoveError     ValueError    a matched key with other partition values
        ├── TargetPathError        ValueError    a target that is not a dataset folder
        ├── UnreadableFileError    OSError       a data file or footer that cannot be read
        ├── UnsupportedFileError   ValueError    a file that merganser must not touch
        ├── StagingError           OSError       staged files cannot be written
        ├── LockTimeoutError       TimeoutError  another writer holds the dataset
        ├── ConcurrentWriteError                 the dataset changed under the merge
        ├── UndoError                            the last commit cannot be undone
        └── CountMismatchError                   staged rows do not add up; nothing was published

Each is also the builtin named beside it, so that callers may catch either. Messages name the column, key or path and
end with what to do next.
"""

from __future__ import annotations


class MerganserError(Exception):
    """Base of everything that merganser raises on purpose."""


class InvalidArgumentError(MerganserError, ValueError):
    """An argument makes no sense, whatever the data."""


class MissingExtraError(MerganserError, ImportError):
    """The packages of an engine are not installed."""


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
    """The target path is not a dataset folder."""


class UnreadableFileError(DatasetMergeError, OSError):
    """A data file or its footer cannot be read."""


class UnsupportedFileError(DatasetMergeError, ValueError):
    """A file that merganser must not touch, such as an encrypted one."""


class StagingError(DatasetMergeError, OSError):
    """Staged files cannot be written: no space, no permission."""


class LockTimeoutError(DatasetMergeError, TimeoutError):
    """Another writer holds the dataset."""


class ConcurrentWriteError(DatasetMergeError):
    """Something else changed the dataset while the merge was being prepared."""


class UndoError(DatasetMergeError):
    """There is no commit to undo, or not what it takes to undo the last one."""


class CountMismatchError(DatasetMergeError):
    """The staged rows do not add up to what the merge decided."""
