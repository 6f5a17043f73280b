"""A merge that scans every node of its type warns once, and names the call that creates an index."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
from tests.graph.graph_oracle import assert_unchanged, expect_rollback

from merganser.errors import MergePerformanceWarning

if TYPE_CHECKING:
    from merganser.graph import GraphDatabase


def warned(db: GraphDatabase, type_: str, match: dict[str, Any], **options: Any) -> list[MergePerformanceWarning]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        db.merge_node(type_, match, **options)
    found = [entry.message for entry in caught]
    assert all(isinstance(entry, MergePerformanceWarning) for entry in found)
    # The warning points at the caller, not into the library.
    assert all(entry.filename == __file__ for entry in caught)
    return found  # type: ignore[return-value]


def test_a_merge_without_an_index_warns_once(db: GraphDatabase) -> None:
    """G9. The specification's "mergeNode warns on missing index"."""
    (warning,) = warned(db, "Job", {"url": "/1"})
    assert (warning.node_type, warning.properties) == ("Job", ("url",))
    assert "db.create_property_index('Job', 'url')" in str(warning)
    assert warned(db, "Job", {"url": "/2"}) == []
    (composite,) = warned(db, "Job", {"url": "/1", "site": "a"})
    assert "db.create_property_index('Job', ['url', 'site'])" in str(composite)
    assert warned(db, "Job", {"site": "a", "url": "/1"}) == []
    assert len(warned(db, "Company", {"url": "/1"})) == 1


def test_an_index_for_the_match_ends_the_warning(db: GraphDatabase) -> None:
    """G9."""
    db.create_property_index("Job", ["url", "site"])
    assert warned(db, "Job", {"site": 1, "url": 1}) == []
    assert warned(db, "Job", {"url": 1}) == []
    # The index starts with the url, so nodes of one site are scattered in it.
    assert len(warned(db, "Job", {"site": 1})) == 1


def test_the_index_of_a_part_of_the_match_serves_only_if_it_is_unique(db: GraphDatabase) -> None:
    """G9."""
    db.create_property_index("Job", "site")
    assert len(warned(db, "Job", {"site": 1, "url": 1})) == 1
    db.create_property_index("Company", "name", unique=True)
    assert warned(db, "Company", {"name": 1, "city": 1}) == []


def test_the_indexes_of_edges_and_other_types_do_not_serve(db: GraphDatabase) -> None:
    """G9."""
    db.create_property_index("Job", "url", table="edges")
    db.create_property_index("job", "url")
    assert len(warned(db, "Job", {"url": 1})) == 1


def test_a_dropped_index_is_warned_about_again(db: GraphDatabase) -> None:
    """G9."""
    made = db.create_property_index("Job", "url")
    assert warned(db, "Job", {"url": 1}) == []
    db.drop_index(made.name)
    assert len(warned(db, "Job", {"url": 1})) == 1


def test_an_index_that_was_rolled_back_is_warned_about(db: GraphDatabase) -> None:
    """G9, G11."""
    with expect_rollback(db):
        db.create_property_index("Job", "url")
        assert warned(db, "Job", {"url": 1}) == []
    assert db.list_indexes() == []
    assert len(warned(db, "Job", {"url": 1})) == 1


def test_the_warning_can_be_silenced(db: GraphDatabase) -> None:
    """G9."""
    assert warned(db, "Job", {"url": 1}, warn_on_missing_index=False) == []
    assert len(warned(db, "Job", {"url": 1})) == 1


def test_a_warning_that_is_an_error_leaves_the_database_as_it_was(db: GraphDatabase) -> None:
    """G9."""
    with assert_unchanged(db), pytest.raises(MergePerformanceWarning):
        db.merge_node("Job", {"url": 1})
