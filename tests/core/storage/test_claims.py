"""A claimed folder shows whether the process that made it lives."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from merganser.core.storage.claims import CLAIM, claim_folder, is_claimed
from merganser.core.storage.local import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

CLAIM_AND_WAIT = """
import sys
from merganser.core.storage.claims import claim_folder
from merganser.core.storage.local import LocalStore
claim = claim_folder(LocalStore(), lambda: sys.argv[1])
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_folder_is_claimed_until_it_is_released(tmp_path: Path) -> None:
    store, folder = LocalStore(), str(tmp_path / "one")
    claim = claim_folder(store, lambda: folder)
    assert claim.folder == folder
    assert is_claimed(store, folder)
    claim.release()
    assert not is_claimed(store, folder)


def test_a_folder_without_a_claim_is_not_claimed(tmp_path: Path) -> None:
    assert not is_claimed(LocalStore(), str(tmp_path))
    assert not is_claimed(LocalStore(), str(tmp_path / "absent"))


def test_the_claim_of_a_killed_process_ends_at_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "one")
    command = [sys.executable, "-c", CLAIM_AND_WAIT, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"claimed\n"
        assert is_claimed(LocalStore(), folder)
        process.kill()
        process.wait()
    assert not is_claimed(LocalStore(), folder)


def test_a_folder_that_another_process_removes_or_tests_is_claimed_under_another_name(tmp_path: Path) -> None:
    class HinderedStore(LocalStore):
        def open_new(self, path: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
            if path.endswith(f"first/{CLAIM}"):
                os.rmdir(os.path.dirname(path))
            stream = super().open_new(path)
            if path.endswith(f"second/{CLAIM}"):
                os.remove(path)
            return stream

    names = iter(["first", "second", "third"])
    claim = claim_folder(HinderedStore(), lambda: str(tmp_path / next(names)))
    assert claim.folder == str(tmp_path / "third")
    assert is_claimed(LocalStore(), claim.folder)
    claim.release()
