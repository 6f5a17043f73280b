"""The history: a small readable record of every commit, in files whose names sort by time.

A record is part of its commit's journal, and is saved when the commit is published.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from merganser.core.model.clauses import quote
from merganser.core.model.options import DECLARATIONS
from merganser.core.storage.location import locate
from merganser.core.storage.staging import HISTORY, choose_control_folder, explain_unreadable
from merganser.display import FilesDisplayMixin
from merganser.errors import UnreadableFileError
from merganser.printable import mask_credentials
from merganser.safe_json import load_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from merganser.core.model.options import Options, Request
    from merganser.core.model.result import MergeResult, WriteResult
    from merganser.core.storage.store import Store

VERSION = 1
ID_TIME_FORMAT = "%Y%m%dT%H%M%S.%fZ"
_ID_PATTERN = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)-[0-9a-f]{8}")
_SUFFIX = ".json"
UNCOMMITTED = datetime.min.replace(tzinfo=UTC)

Operation = Literal["merge", "write_dataset", "compact", "dedupe", "alter", "undo"]
FileChange = Literal["rewritten", "inserted", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFile:
    """One data file that a commit changed, its path relative to the dataset.

    A removed file has only `rows_before` and `size_before`, an inserted one only `rows` and `size`; an overwrite does
    not count the rows that it removes. `modified` is the modification time of the new file, if the store reports it
    reliably. `retained` is the name of the old file that is kept for `undo`, and `modified_before` its time.
    """

    path: str
    operation: FileChange
    rows: int | None = None
    size: int | None = None
    rows_before: int | None = None
    size_before: int | None = None
    modified: int | None = None
    modified_before: int | None = None
    retained: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HistoryRecord(FilesDisplayMixin):
    """One commit: its time, options and effects; counts that are not known are None.

    `id`, `committed_at` and `duration`, the seconds until the journal was written, are set by the commit itself.
    `options` are those that differ from the defaults, and the clauses of a MERGE, whose `strategy` is "merge". `undoes`
    is the id of the record that an undo reversed, and `partitions_before` the partition record, if the commit changed
    it. `schema_before` and `schema_after` are the types of all columns by name, if the commit changed the schema.
    `lease` is the number of the lease under which an object store was changed.
    """

    file_class = HistoryFile

    id: str = ""
    committed_at: datetime = UNCOMMITTED
    operation: Operation
    undoes: str | None = None
    strategy: str | None = None
    mode: str | None = None
    key_columns: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    batch_id: str | None = None
    engine: str | None = None
    duration: float = 0.0
    source_count: int | None = None
    target_count_before: int | None = None
    target_count_after: int | None = None
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    skipped: int = 0
    files: list[HistoryFile] = field(default_factory=list)
    audit_files: list[str] = field(default_factory=list)
    partitions_before: dict[str, Any] | None = None
    schema_before: dict[str, str] | None = None
    schema_after: dict[str, str] | None = None
    lease: int | None = None

    @classmethod
    def from_plain(cls, found: Mapping[str, Any]) -> HistoryRecord:
        """Build a record from parsed JSON."""
        committed_at = datetime.fromisoformat(found["committed_at"])
        return cls(**{**found, "committed_at": committed_at, "files": [HistoryFile(**file) for file in found["files"]]})


def history(path: str | os.PathLike[str], *, filesystem: Any = None) -> list[HistoryRecord]:
    """Return the record of every commit to a dataset, newest first.

    Args:
        path: Folder or URL of the dataset.
        filesystem: fsspec filesystem of the dataset; by default that of its URL.

    >>> import merganser, pyarrow as pa, tempfile
    >>> orders = f"{tempfile.mkdtemp()}/orders"
    >>> result = merganser.merge(pa.table({"id": [1, 2]}), orders, key_columns="id", batch_id="monday")
    >>> [(record.strategy, record.inserted, record.batch_id) for record in history(orders)]
    [('upsert', 2, 'monday')]
    """
    location = locate(path, filesystem)
    control = choose_control_folder(location)
    with explain_unreadable(location, control):
        return list(read_records(location.store, control))


def read_records(store: Store, control: str, after: str = "") -> Iterator[HistoryRecord]:
    """Read the records lazily, the newest first, down to the one `after` which they were made."""
    for name in reversed([one for one in _list_names(store, control) if one.removesuffix(_SUFFIX) > after]):
        path = f"{control}/{HISTORY}/{name}"
        try:
            found = load_json(store.read_small(path) or b"")
            if found.pop("version") != VERSION:
                message = f"{path} was written by another version of merganser. Read the history with that version."
                raise UnreadableFileError(message)
            yield HistoryRecord.from_plain(found)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"{path} is damaged: {error}. Restore or remove it; without it, undo skips that commit."
            raise UnreadableFileError(message) from error


def find_newest_id(store: Store, control: str) -> str:
    """Return the id of the last commit, or an empty string."""
    return "".join(_list_names(store, control)[-1:]).removesuffix(_SUFFIX)


def has_undo_since(store: Store, control: str, newest: str) -> bool:
    """Check whether a commit after this one was an undo, which gives files back the identities that they had."""
    return any(record.undoes is not None for record in read_records(store, control, newest))


def skip_undone(records: Iterable[HistoryRecord]) -> Iterator[HistoryRecord]:
    """Leave out undos and the commits they undid; an undo is newer, so it comes first."""
    undone = set()
    for record in records:
        if record.undoes is not None:
            undone.add(record.undoes)
        elif record.id not in undone:
            yield record


def save_record(store: Store, control: str, record: HistoryRecord) -> None:
    """Write the record of a commit."""
    store.make_folder(f"{control}/{HISTORY}")
    text = json.dumps({"version": VERSION, **asdict(record)}, indent=1, default=datetime.isoformat)
    store.write_small(f"{control}/{HISTORY}/{record.id}.json", text.encode())


def has_record(store: Store, control: str, record: HistoryRecord) -> bool:
    """Check whether the record of a commit was written."""
    return store.get_path_type(f"{control}/{HISTORY}/{record.id}{_SUFFIX}") == "file"


def make_record_id(store: Store, control: str, now: datetime) -> str:
    """Make an id that sorts after all others, even if the clock went back or another machine's is ahead."""
    newest = "".join(_list_names(store, control)[-1:]).partition("-")[0]
    stamp = now.strftime(ID_TIME_FORMAT)
    if newest >= stamp:
        later = datetime.strptime(newest, ID_TIME_FORMAT).replace(tzinfo=UTC) + timedelta(microseconds=1)
        stamp = later.strftime(ID_TIME_FORMAT)
    return f"{stamp}-{uuid.uuid4().hex[:8]}"


def make_merge_record(engine: str, request: Request, result: MergeResult) -> HistoryRecord:
    """Make the record of a merge, without its files."""
    return HistoryRecord(
        operation="merge",
        strategy=result.strategy,
        key_columns=request.keys,
        options={**_list_changed_options(request.options), **_list_clauses(request)},
        batch_id=result.batch_id,
        engine=engine,
        source_count=result.source_count,
        target_count_before=result.target_count_before,
        target_count_after=result.target_count_after,
        inserted=result.inserted,
        updated=result.updated,
        deleted=result.deleted,
        skipped=result.skipped,
        audit_files=result.audit_files,
    )


def _list_clauses(request: Request) -> dict[str, Any]:
    """List the clauses of a merge as SQL, and the expressions of its keys if they are not columns of these names."""
    if request.has_strategy:
        return {}
    computed = {name: text for name, text in request.on.items() if text != quote(name)}
    return {"clauses": request.clause_texts} | ({"on": computed} if computed else {})


def make_write_record(engine: str, options: Options, result: WriteResult, before: int | None) -> HistoryRecord:
    """Make the record of an append, or of an overwrite, whose rows `before` are not counted, without its files."""
    return HistoryRecord(
        operation="write_dataset",
        mode=result.mode,
        options=_list_changed_options(options),
        engine=engine,
        source_count=result.row_count,
        target_count_before=before,
        target_count_after=(before or 0) + result.row_count,
        inserted=result.row_count,
        updated=0,
        deleted=None if before is None else 0,
    )


def make_maintenance_record(
    operation: Operation, options: Options, extra: Mapping[str, Any], rows: tuple[int, int], keys: Sequence[str] = ()
) -> HistoryRecord:
    """Make the record of a maintenance call, with its own options and the row counts before and after."""
    before, after = rows
    return HistoryRecord(
        operation=operation,
        key_columns=list(keys),
        options={**_list_changed_options(options), **extra},
        target_count_before=before,
        target_count_after=after,
        inserted=0,
        updated=0,
        deleted=before - after,
    )


def record_schemas(record: HistoryRecord, before: pa.Schema, after: pa.Schema) -> HistoryRecord:
    """Add a change of the schema to a record."""
    described = ({field.name: str(field.type) for field in schema} for schema in (before, after))
    return replace(record, schema_before=next(described), schema_after=next(described))


def _list_changed_options(options: Options) -> dict[str, Any]:
    """List the options that differ from their defaults, as JSON values."""
    recorded = [one for one in fields(options) if DECLARATIONS[one.name].is_recorded]
    given = {one.name: (_to_plain(getattr(options, one.name)), _to_plain(one.default)) for one in recorded}
    return {name: value for name, (value, default) in given.items() if value != default}


def _to_plain(value: Any) -> Any:
    if isinstance(value, str | os.PathLike):
        # The path of an audit may contain a password.
        return mask_credentials(os.fspath(value))
    return load_json(json.dumps(value, default=str))


def is_record_id(text: str) -> bool:
    """Check whether a string has the form of a record id."""
    return _ID_PATTERN.fullmatch(text) is not None


def _list_names(store: Store, control: str) -> list[str]:
    names = store.list_names(f"{control}/{HISTORY}")
    return [name for name in names if name.endswith(_SUFFIX) and is_record_id(name.removesuffix(_SUFFIX))]
