"""Strings that people read: credentials are masked, and nothing in them is obeyed by a terminal."""

from __future__ import annotations

import inspect
import time

import pytest

from merganser import errors
from merganser.errors import MerganserError, MergePerformanceWarning
from merganser.printable import escape_controls, mask_credentials, to_printable

CLASSES = [
    found
    for found in vars(errors).values()
    if inspect.isclass(found) and issubclass(found, MerganserError) and found is not errors.MergeConflictError
]


@pytest.mark.parametrize(
    ("given", "masked"),
    [
        ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
        ("s3://key:sec/ret+@bucket/x y@z", "s3://***@bucket/x y@z"),
        ("ftp://ada:p@ss@host/x", "ftp://***@host/x"),
        ("ftp://ada:p#ss@host/x", "ftp://***@host/x"),
        ("https://token@host/x", "https://***@host/x"),
        ("simplecache::ftp://ada:secret@host/x", "simplecache::ftp://***@host/x"),
        ("'ftp://a:b@h/x', \"ftp://c:d@h/y\"", "'ftp://***@h/x', \"ftp://***@h/y\""),
        ("abfss://key:secret@account/x", "abfss://***@account/x"),
        (
            "https://h/x?AWSAccessKeyId=AK&Signature=s%2F&Expires=1",
            "https://h/x?AWSAccessKeyId=***&Signature=***&Expires=1",
        ),
        (
            "https://h/x?X-Amz-Credential=a/b&X-Amz-Signature=c#f",
            "https://h/x?X-Amz-Credential=***&X-Amz-Signature=***#f",
        ),
        ("https://h/x?sv=1&sig=abc and more", "https://h/x?sv=1&sig=*** and more"),
        ("https://h/x?client_secret=a&refresh_token=b&day=1", "https://h/x?client_secret=***&refresh_token=***&day=1"),
        ("s3://AKIA:12/34secret@bucket", "s3://***@bucket"),
        ("http://ada:123456/7@host/x", "http://***@host/x"),
        (f"s3://{'k' * 1200}:{'a' * 1200}@b/x", "s3://***@b/x"),
        (f"s3://key:/{'a' * 1200}@b/x", "s3://***@b/x"),
        (f"https://{'a' * 1200}@h/x", "https://***@h/x"),
        ("ftp://a:b@h/x,ftp://c:/d@h/y", "ftp://***@h/x,ftp://***@h/y"),
        ("https://h/?auth=a&jwt=b&credential=c&Policy=d", "https://h/?auth=***&jwt=***&credential=***&Policy=***"),
        ("https://h/#access_token=abc&day=1", "https://h/#access_token=***&day=1"),
        ("https://h/?secret=\"a b\"&token='c&d'&day=1", "https://h/?secret=***&token=***&day=1"),
        ('https://h/?secret="abc', "https://h/?secret=***"),
        ("AccountName=x;AccountKey=a/b+c==;EndpointSuffix=y", "AccountName=x;AccountKey=***;EndpointSuffix=y"),
        ("SharedAccessSignature=sv=1&sig=a;x=y", "SharedAccessSignature=***;x=y"),
        ("sc://h:15002/;token=abc;user_id=ada", "sc://h:15002/;token=***;user_id=ada"),
    ],
)
def test_credentials_in_a_url_are_masked(given: str, masked: str) -> None:
    assert mask_credentials(given) == masked
    assert mask_credentials(masked) == masked


@pytest.mark.parametrize(
    "plain",
    [
        "lake/orders",
        "s3://bucket/day=1/a@b.parquet",
        "abfss://container@account.dfs.core.windows.net/x@y",
        "hdfs://namenode:9000/user@host/x",
        "https://host:8080/a@b",
        "spark://host:7077/a@b",
        "https://jobs.example/?jobkey=1&key=2",
        "mail ada@example.org, see https://example.org/x",
    ],
)
def test_what_holds_no_credentials_is_left_alone(plain: str) -> None:
    assert mask_credentials(plain) == plain


def test_terminal_control_characters_are_escaped() -> None:
    hostile = "a\x1b[2J\x07\r\x7f\x9b\u202e\u2066\u2028\ud800é注 \u200d👩"
    escaped = r"a\x1b[2J\x07\r\x7f\x9b\u202e\u2066\u2028\ud800é注 " + "\u200d👩"
    assert escape_controls(hostile) == escaped
    assert escape_controls(escaped) == escaped
    assert escape_controls("a\nb\t") == r"a\nb\t"
    assert to_printable("a\nb\t\x1b") == "a\nb\t\\x1b"


@pytest.mark.parametrize(
    "piece", ["://", "a://", "a://:", "://a:b ", "://:/", "a:", "?a_", "?secret_", "?token='", ";accountkey", "\x1b"]
)
def test_no_string_takes_long(piece: str) -> None:
    text = "://" + piece * (1_000_000 // len(piece))
    started = time.process_time()
    mask_credentials(text)
    assert time.process_time() - started < 1
    started = time.process_time()
    escape_controls(text)
    # What grows with the square takes minutes.
    assert time.process_time() - started < 10


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_can_be_shown_to_anyone(kind: type[MerganserError]) -> None:
    error = kind("Cannot read ftp://ada:s3cr3t@host/a\x1b[2J: told\nso.")
    assert str(error) == "Cannot read ftp://***@host/a\\x1b[2J: told\nso."
    assert "s3cr3t" not in f"{error!r} {error.args} {vars(error)}"


def test_an_error_with_fields_can_be_shown_to_anyone() -> None:
    wrong = errors.ConfigurationError("no", "[[source]]", "path", "ftp://ada:s3cr3t@host/a.toml")
    conflict = errors.MergeConflictError("Job\x1b", {"url": "ftp://ada:s3cr3t@host"}, [])
    for error in (wrong, conflict):
        assert "***@host" in str(error)
        assert "s3cr3t" not in str(error)
    assert "s3cr3t" not in repr(vars(wrong))
    warning = MergePerformanceWarning("Job\x1b", ("a\x9b",))
    assert not {"\x1b", "\x9b"} & set(f"{conflict} {warning}")
