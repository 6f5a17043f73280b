"""The audit: every row changed, as it is afterwards and, if asked for, as it was (R5)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from merganser.core.columnar.take import empty_table
from merganser.core.dataset.nesting import find_enclosing_dataset
from merganser.core.merge.planner import plan_scans
from merganser.core.model.engine import ACTION_COLUMN, OLD_ROW_COLUMN, AuditSpec
from merganser.core.model.schema import to_value_type
from merganser.core.rows.audit_rows import make_audit_schema
from merganser.core.storage.location import locate
from merganser.core.storage.staging import choose_control_folder
from merganser.errors import InvalidArgumentError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from merganser.core.merge.planner import Decision
    from merganser.core.merge.prepare import PreparedMerge
    from merganser.core.model.engine import Engine, GivenT, MatchesT, SourceT
    from merganser.core.model.options import Request
    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging


ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Audit:
    """What was listed: a table, or staged files, each with its path to be and that path as the caller spells it."""

    table: pa.Table | None = None
    files: Sequence[tuple[str, str]] = ()
    display_paths: list[str] = field(default_factory=list)


def find_feed(audit: bool | str | os.PathLike[str], location: Location, filesystem: Any) -> Location | None:  # noqa: FBT001
    """Find the folder that an audit is to be stored in, if it is."""
    if isinstance(audit, bool) or audit == ROWS:
        return None
    feed = locate(audit, filesystem)
    if not feed.store.can_reach(location.store):
        message = (
            f"audit {feed.display} must be on the filesystem of {location.display}: both change in one commit. Choose "
            "a folder there."
        )
        raise InvalidArgumentError(message)
    apart = [location.root, choose_control_folder(location)]
    if any(f"{feed.root}/".startswith(f"{root}/") or f"{root}/".startswith(f"{feed.root}/") for root in apart):
        message = (
            f"audit {feed.display} and the dataset {location.display} are one inside the other, so that readers of one "
            "would find the other. Choose a folder apart."
        )
        raise InvalidArgumentError(message)
    around = find_enclosing_dataset(feed.store, feed.root)
    if around is not None:
        message = (
            f"audit {feed.display} lies inside the dataset {around.path}, so that its readers would find the rows "
            "changed. Choose a folder apart."
        )
        raise InvalidArgumentError(message)
    if feed.store.get_path_type(feed.root) == "file":
        message = f"audit {feed.display} is a file; the rows changed go to a folder. Give the path of one."
        raise InvalidArgumentError(message)
    return feed


def make_audit(
    engine: Engine[GivenT, SourceT, MatchesT],
    prepared: PreparedMerge[SourceT],
    decision: Decision[MatchesT],
    request: Request,
    staging: Staging,
    feed: Location | None,
) -> Audit:
    """List every row changed, as far as the caller asks for it; old rows are read before they go."""
    if not request.options.audit:
        return Audit()
    terms = _make_audit_spec(prepared, request, is_stored=feed is not None)
    found: list[Any] = []
    if decision.inserted or decision.changed_groups.any():
        target = prepared.target
        scans = plan_scans(
            target, request.keys, [0] * len(target.files), decision.changed_groups, decision.deletes_missing
        )
        found = engine.audit(prepared.handle, decision.matches, scans, terms, staging, prepared.policy)
    if feed is None:
        return Audit(pa.concat_tables([empty_table(terms.schema), *found]))
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    names = [f"{stamp}-{uuid.uuid4().hex}.parquet" for _ in found]
    files = [(path, feed.to_path(name)) for path, name in zip(found, names, strict=True)]
    return Audit(None, files, [feed.to_display(name) for name in names])


def _make_audit_spec(prepared: PreparedMerge[SourceT], request: Request, *, is_stored: bool) -> AuditSpec:
    whole, placed = request.options.audit is not True, prepared.target.partition_columns
    columns = request.keys
    if whole:
        # As the dataset has them, also when it is only now being made.
        columns = [*(name for name in prepared.schema.names if name not in placed), *placed]
    taken = [name for name in (ACTION_COLUMN, *([OLD_ROW_COLUMN] * whole)) if name in columns]
    if taken:
        message = f"The audit has a column {taken[0]!r} of its own, and so has the dataset. Rename the dataset's."
        raise InvalidArgumentError(message)
    kinds = {name: to_value_type(prepared.schema.field(name).type) for name in columns}
    return AuditSpec(
        columns, request.keys, prepared.insert_columns, whole, is_stored, make_audit_schema(kinds, has_old_rows=whole)
    )
