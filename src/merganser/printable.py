"""Makes strings safe to print: masks credentials and escapes control characters."""

from __future__ import annotations

import re

MASK = "***"
_AZURE = "".join(f"(?<!{scheme}://)" for scheme in ("abfs", "abfss", "wasb", "wasbs"))
_WITH_PORTS = ("http", "https", "hdfs", "webhdfs", "ftp", "sftp", "ssh", "sc", "spark")
_PORTS = "|".join(rf"(?<=\b{scheme}://)" for scheme in _WITH_PORTS)
# No alternative crosses another `://`, so that matching takes linear time.
_USER = re.compile(
    r"://(?:"
    # Azure URLs have the container where others have a user.
    rf"{_AZURE}[^\s/?#:]*"
    r"|[^\s/?#:]*:[^\s/?#]*"
    # A password may hold a slash, though it should be escaped; a port is not one.
    rf"|(?!(?:{_PORTS})[^\s/?#:@]*:\d{{1,5}}[/?#])[^\s/?#:@]*:(?:[^\s@:]++|:(?!//))*+"
    r")@",
    re.IGNORECASE,
)
_SECRETS = (
    r"(?:x-(?:amz|goog)-(?:credential|signature|security-token)|awsaccesskeyid|googleaccessid|signature|sig|"
    r"(?:[a-z]{1,20}_){0,3}(?:access_?key(?:_?id)?|secret(?:_?(?:access_?)?key)?|token)|api_?key|password|passwd|pwd|"
    r"auth|jwt|credential|policy)"
)
_QUERY = re.compile(rf"([?&;#]{_SECRETS}=)(?:\"[^\"\n]*\"|'[^'\n]*'|['\"]?[^&;#\s'\"]+)", re.IGNORECASE)
# Connection strings of Azure, which are not URLs.
_CONNECTION = re.compile(r"\b((?:account|sharedaccess)(?:key|signature)=)[^;\s'\"]+", re.IGNORECASE)
# Control characters, line and paragraph separators, marks of text direction, and surrogates.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def mask_credentials(text: str) -> str:
    """Mask credentials: user, password and query secrets of URLs, and keys in Azure connection strings.

    >>> mask_credentials("Cannot read ftp://ada:secret@example.org/jobs.csv?token=abc&day=1.")
    'Cannot read ftp://***@example.org/jobs.csv?token=***&day=1.'
    """
    if "://" in text:
        text = _QUERY.sub(rf"\1{MASK}", _USER.sub(f"://{MASK}@", text))
    return _CONNECTION.sub(rf"\1{MASK}", text) if "=" in text else text


def escape_controls(text: str, keep: str = "") -> str:
    r"""Escape control characters as Python does, except those in `keep`.

    >>> print(escape_controls("a\x1b[2Jb\u202e\n"))
    a\x1b[2Jb\u202e\n
    """
    if text.isprintable():
        return text
    return CONTROL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], text)


def to_printable(text: str) -> str:
    """Mask credentials and escape control characters in a message of one or more lines."""
    return escape_controls(mask_credentials(text), keep="\n\t")
