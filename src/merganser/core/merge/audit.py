"""The audit: every changed row as it is afterwards and, on request, as it was (R5)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.columnar.take import empty_table
from merganser.core.dataset.nesting import find_enclosing_dataset
from merganser.core.merge.planner import plan_scans
from merganser.core.model.engine import ACTION_COLUMN, OLD_ROW_COLUMN, UNKNOWN_PARTITION, AuditSpec
from merganser.core.model.schema import to_value_type
from merganser.core.rows.audit_rows import make_audit_schema
from merganser.core.storage.location import locate
from merganser.core.storage.staging import choose_control_folder
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Sequence

    from merganser.core.merge.planner import Decision
    from merganser.core.merge.prepare import PreparedMerge
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging


ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Audit:
    """The changed rows: a table, or staged files with their final paths, and those paths as the caller spells them."""

    table: pa.Table | None = None
    files: Sequence[tuple[str, str]] = ()
    display_paths: list[str] = field(default_factory=list)


def find_feed(audit: bool | str | os.PathLike[str], location: Location, filesystem: Any) -> Location | None:  # noqa: FBT001
    """Find the folder that an audit is stored in; None if it is not stored."""
    if isinstance(audit, bool) or audit == ROWS:
        return None
    feed = locate(audit, filesystem)
    if not feed.store.can_reach(location.store):
        raise InvalidArgumentError(
            f"audit {feed.display} must be on the filesystem of {location.display}: both change in one commit. Choose "
            "a folder there."
        )
    apart = [location.root, choose_control_folder(location)]
    if any(f"{feed.root}/".startswith(f"{root}/") or f"{root}/".startswith(f"{feed.root}/") for root in apart):
        raise InvalidArgumentError(
            f"audit {feed.display} and the dataset {location.display} must not contain each other: "
            "readers of one would read files of the other. Choose a separate folder."
        )
    around = find_enclosing_dataset(feed.store, feed.root)
    if around is not None:
        raise InvalidArgumentError(
            f"audit {feed.display} lies inside the dataset {around.path}, whose readers would read the audit's "
            "rows. Choose a separate folder."
        )
    if feed.store.get_path_type(feed.root) == "file":
        message = f"audit {feed.display} is a file; an audit is stored in a folder. Give the path of a folder."
        raise InvalidArgumentError(message)
    return feed


def make_audit(prepared: PreparedMerge, decision: Decision, staging: Staging, feed: Location | None) -> Audit:
    """List every changed row, if the caller asks for it; old rows are read before they are removed."""
    if not prepared.request.options.audit:
        return Audit()
    spec = _make_audit_spec(prepared, is_stored=feed is not None)
    found: list[Any] = []
    if decision.inserted or decision.changed_groups.any():
        target = prepared.target
        partitions = [UNKNOWN_PARTITION] * len(target.files)
        scans = plan_scans(target, prepared.spec.keys, partitions, decision.changed_groups, decision.deletes_missing)
        found = decision.matched.audit(scans, spec, staging)
    if feed is None:
        return Audit(pa.concat_tables([empty_table(spec.schema), *found]))
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    names = [f"{stamp}-{uuid.uuid4().hex}.parquet" for _ in found]
    files = [(path, feed.to_path(name)) for path, name in zip(found, names, strict=True)]
    return Audit(None, files, [feed.to_display(name) for name in names])


def check_audit_names(columns: Collection[str], *, has_old_rows: bool) -> None:
    """Refuse columns with names that an audit adds."""
    reserved = [ACTION_COLUMN, *([OLD_ROW_COLUMN] * has_old_rows)]
    taken = [name for name in reserved if name in columns]
    if taken:
        message = f"The dataset has a column {taken[0]!r}, a name that audits reserve. Rename the column."
        raise InvalidArgumentError(message)


def _make_audit_spec(prepared: PreparedMerge, *, is_stored: bool) -> AuditSpec:
    keys, partition_columns = prepared.request.keys, prepared.target.partition_columns
    columns, has_old_rows = keys, prepared.request.options.audit is not True
    if has_old_rows:
        # In the order of the dataset, also while that is being created.
        columns = [*(name for name in prepared.schema.names if name not in partition_columns), *partition_columns]
    check_audit_names(columns, has_old_rows=has_old_rows)
    types = {name: to_value_type(prepared.schema.field(name).type) for name in columns}
    return AuditSpec(
        columns=columns,
        keys=keys,
        insert_columns=prepared.insert_columns,
        has_old_rows=has_old_rows,
        is_stored=is_stored,
        schema=make_audit_schema(types, has_old_rows=has_old_rows),
    )
