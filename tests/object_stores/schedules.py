"""Interleavings of writers on an object store: one is stopped before a request, and another takes over."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from merganser.core.storage.remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The methods of a store that send requests, reads too.
REQUESTS = (
    *("create", "create_exclusively", "write_small", "duplicate", "replace", "remove", "remove_folder"),
    *("read_small", "list_names", "get_path_type", "get_identity", "open_input", "open_reader"),
)


@dataclass
class Stop:
    """Calls `meanwhile` once, before the first request that `matches`, or before request number `at` of this thread."""

    meanwhile: Callable[[], object]
    at: int = 0
    matches: Callable[[str, str], bool] = lambda _name, _path: False
    count: int = 0
    fired: bool = False
    _thread: int = field(default_factory=threading.get_ident)

    def before(self, name: str, path: str) -> None:
        if threading.get_ident() != self._thread or self.fired:
            return
        self.count += 1
        if self.count == self.at or self.matches(name, path):
            self.fired = True
            self.meanwhile()


@contextlib.contextmanager
def stop(one: Stop) -> Iterator[Stop]:
    """Stop the writer of this thread in the block, as SIGSTOP and SIGCONT do, while another one works."""
    with contextlib.ExitStack() as patches:
        for name in REQUESTS:
            patches.enter_context(mock.patch.object(RemoteStore, name, _wrap(name, one)))
        yield one


def _wrap(name: str, one: Stop) -> Callable[..., Any]:
    original = getattr(RemoteStore, name)

    def request(self: RemoteStore, path: str, *others: Any, **named: Any) -> Any:
        one.before(name, path)
        return original(self, path, *others, **named)

    return request
