"""Paths of change feeds in a journal: relative to the dataset where possible.

A copied dataset then has its own change feed. One at an absolute path belongs to the original, whose recovery publishes
it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from merganser.core.commit.journal import Journal
    from merganser.core.storage.staging import Staging

_PARENT_PREFIX = "../"


def relativize_feed(staging: Staging, journal: Journal) -> Journal:
    """Make the paths of the feed relative to the dataset where they are below its parent folder."""
    parent = _get_parent(staging)
    feed = [
        replace(move, target=_PARENT_PREFIX + move.target[len(parent) :]) if move.target.startswith(parent) else move
        for move in journal.feed
    ]
    has_outside = any(not move.target.startswith(_PARENT_PREFIX) for move in feed)
    return replace(journal, feed=feed, mark=_identify_mark(staging) if has_outside else None)


def resolve_feed(staging: Staging, journal: Journal) -> Journal:
    """Make the paths of a journal's feed absolute; in a copy of the dataset, leave out the original's."""
    is_copy = journal.mark is not None and journal.mark != _identify_mark(staging)
    feed = [
        replace(move, target=_get_parent(staging) + move.target.removeprefix(_PARENT_PREFIX))
        if move.target.startswith(_PARENT_PREFIX)
        else move
        for move in journal.feed
        if move.target.startswith(_PARENT_PREFIX) or not is_copy
    ]
    return replace(journal, feed=feed)


def _get_parent(staging: Staging) -> str:
    return staging.location.root.rpartition("/")[0] + "/"


def _identify_mark(staging: Staging) -> str | None:
    """Identify the staging folder, to recognize a copy; None where moving a file changes its identity."""
    store = staging.location.store
    return store.get_identity(staging.marker) if store.is_local else None
