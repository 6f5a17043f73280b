"""What `plan` returns: the action of every file, and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from merganser.display import FilesDisplayMixin, pluralize
from merganser.printable import escape_controls

if TYPE_CHECKING:
    from merganser.core.dataset.mixed_schemas import SchemaDifference

FileAction = Literal["rewrite", "remove", "preserve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """One file's action, and how many of its row groups might hold a source key and how many change."""

    path: str
    action: FileAction
    reason: str
    rows: int
    row_groups: int
    candidate_groups: int
    affected_groups: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MergePlan(FilesDisplayMixin):
    """What a merge would do. Print it.

    `schema_changes` are those that the merge makes. If `schema_differences` lists columns in which files differ, a
    merge with `schema_mode="evolve"` unifies them, and any other refuses them. A MERGE in clauses has the
    `strategy` "merge" and its `clauses`.
    """

    file_class = FilePlan

    path: str
    strategy: str
    key_columns: tuple[str, ...]
    partition_columns: tuple[str, ...]
    source_count: int
    target_count_before: int
    target_count_after: int
    inserted: int
    updated: int
    deleted: int
    skipped: int
    files: tuple[FilePlan, ...]
    schema_changes: tuple[str, ...] = ()
    schema_differences: tuple[SchemaDifference, ...] = ()
    clauses: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        from merganser.core.merge.plan_chart import render_plan  # noqa: PLC0415  it draws plans

        return render_plan(self)

    def __str__(self) -> str:
        """Show the counts, the clauses, and then a line for each file."""
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        head = (
            f"{self.strategy} of {pluralize(self.source_count, 'row')} into {self.path} "
            f"on {', '.join(self.key_columns)}: "
            f"{self.inserted:,} inserted, {self.updated:,} updated, {self.deleted:,} deleted{skipped}; "
            f"{pluralize(self.target_count_before, 'row')} before, {self.target_count_after:,} after"
        )
        clauses = [f"  {clause}" for clause in self.clauses]
        schema = [f"  schema: {line}" for line in self.list_schema_lines()]
        lines = [
            f"  {file.action:<8} {file.path}: {file.reason} "
            f"({file.affected_groups} of {pluralize(file.row_groups, 'row group')}, {pluralize(file.rows, 'row')})"
            for file in self.files
        ]
        return "\n".join(map(escape_controls, [head, *clauses, *schema, *lines]))

    def list_schema_lines(self) -> list[str]:
        """List how the schema changes, and in what files differ now."""
        return [*self.schema_changes, *(f"unify files: {one}" for one in self.schema_differences)]
