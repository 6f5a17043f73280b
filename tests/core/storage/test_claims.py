"""A claimed folder shows whether the process that made it lives."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, BinaryIO

import pytest

from merganser.core.storage.claims import claim_folder, is_claimed, seize_folder
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


# V1
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


def test_only_a_folder_that_nobody_claims_is_seized(tmp_path: Path) -> None:
    store, folder = LocalStore(), str(tmp_path / "one")
    claim = claim_folder(store, lambda: folder)
    with seize_folder(store, folder) as is_seized:
        assert not is_seized
    claim.release()
    with seize_folder(store, folder) as is_seized, seize_folder(store, folder) as is_seized_twice:
        assert is_seized
        assert not is_seized_twice
        assert is_claimed(store, folder)
    with seize_folder(store, str(tmp_path / "absent")) as is_seized:
        assert not is_seized


@pytest.mark.parametrize("when", ["before its file", "before its lock", "after its lock is tested"])
def test_a_folder_that_another_process_seizes_first_is_claimed_under_another_name(tmp_path: Path, when: str) -> None:
    store, folder = LocalStore(), str(tmp_path / "first")

    class HinderedStore(LocalStore):
        def open_new(self, path: str) -> BinaryIO:
            with seize_folder(store, folder) if when == "before its file" else nullcontext():
                stream = super().open_new(path)
            if path.startswith(folder) and when != "before its file":
                with seize_folder(store, folder) as is_seized:
                    assert is_seized
                    if when == "before its lock":
                        shutil.rmtree(folder)
            return stream

    names = iter(["first", "second"])
    claim = claim_folder(HinderedStore(), lambda: str(tmp_path / next(names)))
    assert claim.folder == str(tmp_path / ("first" if when == "after its lock is tested" else "second"))
    assert is_claimed(store, claim.folder)
    claim.release()
