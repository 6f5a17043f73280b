"""The builder of a MERGE in clauses, in the form that users of Delta Lake know."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from merganser.core.merge.operation import OperationContext
from merganser.core.model.clause_checks import list_repeated_updates
from merganser.core.model.clauses import Clause
from merganser.core.model.option_types import to_column_names
from merganser.core.model.options import check_names, count_own_frames, list_options
from merganser.errors import InvalidArgumentError, RepeatedUpdateWarning

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from merganser.core.merge.dataset_io import DatasetIO
    from merganser.core.merge.merge_plan import MergePlan
    from merganser.core.model.clauses import ClauseAction, Side
    from merganser.core.model.result import MergeResult


@dataclass(frozen=True, slots=True)
class MergeBuilder:
    """A MERGE whose clauses are added one by one; `execute` runs it, `plan` reports what it would do.

    For each row, the first clause of its kind whose condition is true decides. Conditions and values are expressions of
    DuckDB over the columns of the source, `s`, and of the target, `t`. Each method returns a new builder.

    Running an upsert twice is the same as running it once. An update that reads the values that it changes, such as
    `{"qty": "t.qty + s.qty"}`, counts twice: pass `batch_id`, and the same batch is merged once, however often it is
    run. Without one, `execute` issues a `RepeatedUpdateWarning`.

    >>> import tempfile, pyarrow as pa, merganser
    >>> stock = tempfile.mkdtemp()
    >>> _ = merganser.merge(pa.table({"id": [1, 2], "qty": [5, 5]}), stock, key_columns="id")
    >>> sales = pa.table({"id": [1, 3], "qty": [2, 9]})
    >>> merge = merganser.merge_into(stock, sales, on="id", batch_id="monday")
    >>> merge.when_matched_update({"qty": "t.qty - s.qty"}).when_not_matched_insert_all().execute().stats
    {'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 3}
    """

    io: DatasetIO
    path: str | os.PathLike[str]
    source: Any
    on: Sequence[str] | Mapping[str, str] | str
    options: Mapping[str, Any]
    clauses: tuple[Clause, ...] = ()

    def when_matched_update(self, values: Mapping[str, str], where: str | None = None) -> Self:
        """Update columns of matched rows.

        Args:
            values: Expressions by target column, over `s` and `t`.
            where: Condition over `s` and `t`; by default every matched row.
        """
        return self._add("matched", "update", where, values=_check_values(values))

    def when_matched_update_all(self, where: str | None = None, *, exclude: Sequence[str] | str = ()) -> Self:
        """Update all columns of matched rows from the source columns of the same names.

        Args:
            where: Condition over `s` and `t`; by default every matched row.
            exclude: Columns that keep their values.
        """
        return self._add("matched", "update", where, exclude=_list_names(exclude))

    def when_matched_delete(self, where: str | None = None) -> Self:
        """Delete matched rows.

        Args:
            where: Condition over `s` and `t`; by default every matched row.
        """
        return self._add("matched", "delete", where)

    def when_matched_do_nothing(self, where: str | None = None) -> Self:
        """Keep matched rows as they are, whatever later clauses say.

        Args:
            where: Condition over `s` and `t`; by default every matched row.
        """
        return self._add("matched", "nothing", where)

    def when_not_matched_insert(self, values: Mapping[str, str] | None = None, where: str | None = None) -> Self:
        """Insert source rows that match nothing.

        Args:
            values: Expressions by target column, over `s`; other columns are NULL. By default every column that both
                sides have.
            where: Condition over `s`; by default every such row.
        """
        if values is None:
            return self._add("not_matched", "insert", where, by_name=True)
        return self._add("not_matched", "insert", where, values=_check_values(values))

    def when_not_matched_insert_all(self, where: str | None = None, *, exclude: Sequence[str] | str = ()) -> Self:
        """Insert source rows that match nothing, with all columns of the target.

        Args:
            where: Condition over `s`; by default every such row.
            exclude: Columns that are NULL in new rows.
        """
        return self._add("not_matched", "insert", where, exclude=_list_names(exclude))

    def when_not_matched_do_nothing(self, where: str | None = None) -> Self:
        """Do not insert source rows that match nothing, whatever later clauses say.

        Args:
            where: Condition over `s`; by default every such row.
        """
        return self._add("not_matched", "nothing", where)

    def when_not_matched_by_source_update(self, values: Mapping[str, str], where: str | None = None) -> Self:
        """Update columns of target rows that match no source row.

        Args:
            values: Expressions by target column, over `t`.
            where: Condition over `t`; by default every such row.
        """
        return self._add("not_matched_by_source", "update", where, values=_check_values(values))

    def when_not_matched_by_source_delete(self, where: str | None = None) -> Self:
        """Delete target rows that match no source row.

        Args:
            where: Condition over `t`; by default every such row.
        """
        return self._add("not_matched_by_source", "delete", where)

    def when_not_matched_by_source_do_nothing(self, where: str | None = None) -> Self:
        """Keep target rows that match no source row, whatever later clauses say.

        Args:
            where: Condition over `t`; by default every such row.
        """
        return self._add("not_matched_by_source", "nothing", where)

    def add(self, *clauses: Clause) -> Self:
        """Add clauses."""
        return replace(self, clauses=(*self.clauses, *clauses))

    def execute(self) -> MergeResult:
        """Run the MERGE and commit it.

        An update that reads values which the MERGE changes, such as `t.qty + s.qty`, issues a `RepeatedUpdateWarning`
        if there is no `batch_id`.
        """
        context = self._make_context("merge")
        if context.options.batch_id is None:
            self._warn_if_repeatable()
        return self.io.run_merge(self.source, context)

    def plan(self) -> MergePlan:
        """Report what `execute` would do to each file, and why, without doing it."""
        return self.io.plan_merge(self.source, self._make_context("plan"))

    def explain(self) -> str:
        """Return the plan as text, with the clauses as SQL."""
        return str(self.plan())

    def _warn_if_repeatable(self) -> None:
        updates = list_repeated_updates(self.clauses, [self.on] if isinstance(self.on, str) else self.on)
        if updates:
            warnings.warn(RepeatedUpdateWarning(updates), stacklevel=count_own_frames())

    def _add(self, side: Side, action: ClauseAction, where: str | None, **others: Any) -> Self:
        return self.add(Clause(side=side, action=action, where=where, **others))

    def _make_context(self, call: str) -> OperationContext:
        known = list_options("merge")
        check_names("merge_into", self.options, known)
        options = {
            name: value for name, value in self.options.items() if call == "merge" or name in list_options("plan")
        }
        made = self.io.make_options("merge" if call == "merge" else "plan", options)
        return OperationContext(call, self.path, made, "merge", self.on, self.clauses)


def _check_values(values: object) -> Mapping[str, str]:
    if not isinstance(values, dict) or not values or not all(isinstance(name, str) for name in values):
        raise InvalidArgumentError(
            "A clause needs a mapping of target columns to expressions, such as {'qty': 't.qty + s.qty'}, not "
            f"{values!r}."
        )
    return values


def _list_names(names: Sequence[str] | str) -> tuple[str, ...]:
    return tuple(to_column_names(names, "exclude") or ()) if names else ()
