"""Errors from executors to the driver, as data that no row can forge.

Spark reports a failed task by a string, which may quote any value of the source. So an error is embedded in it as JSON,
signed with a key of this process that is sent with the task: the rest of the string is ignored, and nothing in it is
ever unpickled.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import secrets
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from merganser import errors
from merganser.display import to_plain
from merganser.errors import MerganserError, MergeConflictError

# Executors load this module too; they sign with the driver's key, which is an argument of their task.
SIGNING_KEY = secrets.token_bytes(32)
_SIGNED_ERROR = re.compile(r"merganser-error:([0-9a-f]{64}):([A-Za-z0-9+/=]+):")
_ERROR_CLASSES: dict[str, type[MerganserError]] = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, MerganserError)
}


def sign_error(error: MerganserError, key: bytes) -> str:
    """Sign an error so that it can be found in a string again."""
    encoded = base64.b64encode(encode_error(error).encode()).decode()
    return f"merganser-error:{_compute_signature(encoded, key)}:{encoded}:"


def find_signed_error(text: str, key: bytes) -> MerganserError | None:
    """Find the error that was signed with the key, and ignore the rest of the string."""
    for signature, encoded in _SIGNED_ERROR.findall(text):
        if hmac.compare_digest(signature, _compute_signature(encoded, key)):
            return decode_error(base64.b64decode(encoded).decode())
    return None


def _compute_signature(encoded: str, key: bytes) -> str:
    return hmac.digest(key, encoded.encode(), "sha256").hex()


def encode_error(error: MerganserError) -> str:
    """Encode an error's class and fields as JSON."""
    fields = error.__reduce__()[1]
    if isinstance(error, MergeConflictError):
        fields = (*fields[:2], [to_plain(one) for one in error.conflicting_nodes], *fields[3:])
    return json.dumps({"class": type(error).__name__, "fields": fields}, default=_to_iso)


def _to_iso(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def decode_error(text: str) -> MerganserError:
    """Decode an error of one of our own classes."""
    found = json.loads(text)
    error_class, fields = _ERROR_CLASSES[found["class"]], found["fields"]
    if error_class is MergeConflictError:
        fields[2] = [_make_record(**one) for one in fields[2]]
    return error_class(*fields)


def _make_record(created_at: str, updated_at: str, **fields: Any) -> SimpleNamespace:
    """Make a node or edge with its attributes; engines must not import the classes of the graph."""
    times = {"created_at": datetime.fromisoformat(created_at), "updated_at": datetime.fromisoformat(updated_at)}
    return SimpleNamespace(**fields, **times)
