"""Paths that become part of an SQL statement (D5)."""

from __future__ import annotations

from typing import Any

import pytest

from merganser.core import PathValidator

GOOD = [
    "/lake/orders",
    "lake",
    "/lake/day=2025-01-01/part-0.parquet",
    "/with space/and more",
    "/a:b",
    "/100%/x",
    "/a+b",
    "/me@host",
    "~/lake",
    "/a,b",
    "/東京/größe",
    "/عربي",
    "/Привет/мир",
    "/a.b/..c/d..",
    "/a/.hidden/_x",
    "/a-b/c_d",
    "/(brackets)/[x]/{y}",
    "/a!b#c$d&e",
    "s3://bucket/key",
    "/emoji-🦆",
    "/a*b?c",
    "/...",
]
BAD = [
    "/a'b",
    '/a"b',
    "/a;b",
    "/a--b",
    "/a/*b",
    "/a*/b",
    "/a`b",
    "/a\\b",
    "/a/../b",
    "../a",
    "/a/..",
    "..",
    "/a\x00b",
    "/a\nb",
    "/a\tb",
    "/a\x1bb",
    "/a\x7fb",
    "/a\x85b",
    "/a\u202eb",
    "/a\u2066b",
    "/a\u200bb",
    "/a\u200db",
    "/a\ufeffb",
    "/a\u2028b",
    "/a\u2029b",
    "/a\u00adb",
    "/a\ud800b",
    "",
]


# D5
@pytest.mark.parametrize("path", GOOD)
def test_good_paths_pass_unchanged(path: str) -> None:
    PathValidator.validate_path_for_sql(path)
    assert PathValidator.escape_for_sql(path) == path


# D5
@pytest.mark.parametrize("path", BAD, ids=ascii)
def test_bad_paths_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        PathValidator.validate_path_for_sql(path)
    with pytest.raises(ValueError, match="path"):
        PathValidator.escape_for_sql(path)


# D5
@pytest.mark.parametrize("path", [None, 3, b"/lake", ["/lake"]])
def test_only_a_string_is_a_path(path: Any) -> None:
    with pytest.raises(ValueError, match="must be a non-empty string"):
        PathValidator.validate_path_for_sql(path)


# D5
def test_the_message_shows_invisible_characters_by_number() -> None:
    with pytest.raises(ValueError, match=r"U\+202E"):
        PathValidator.validate_path_for_sql("/a\u202eb")
