"""The contenders' environments: one for each file of locked requirements in `benchmarks/peers`, made by uv."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
REQUIREMENTS = Path(__file__).parent / "peers"
ENVIRONMENTS = ROOT / ".peers"
# The oldest Python that a peer supports, if this project's own may be too old.
NEWER = {"fsspeckit": (3, 12)}


class Failed(Exception):  # noqa: N818  the result of a contender, not a bug
    """A contender has no figures; the table shows the reason instead."""


@cache
def python_of(name: str | None) -> str:
    """Return the Python of an environment, which is created if missing; None is that of this process."""
    if name is None:
        return sys.executable
    requirements = REQUIREMENTS / f"{name}.txt"
    folder = ENVIRONMENTS / name
    stamp = folder / ".stamp"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making the environment of {name}", flush=True)
        _make(folder, requirements, NEWER.get(name, (3, 11)))
        stamp.write_text(wanted)
    return str(folder / "bin" / "python")


def variables(name: str | None) -> dict[str, str]:
    """Return the variables of a contender's process; a peer finds the benchmarks and nothing else of this project."""
    path = [str(ROOT)]
    if name is None:
        path = [str(ROOT / "src"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _make(folder: Path, requirements: Path, oldest: tuple[int, int]) -> None:
    uv = _run(["sh", str(ROOT / "scripts" / "setup.sh"), "--uv"], "uv could not be had").strip()
    _run([uv, "venv", "--quiet", "--clear", "--python", _python(oldest), str(folder)], "no environment")
    install = [uv, "pip", "install", "--quiet", "--python", str(folder), "--require-hashes", "-r", str(requirements)]
    _run(install, "its packages could not be installed")


def _run(command: list[str], trouble: str) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
    )
    if done.returncode:
        raise Failed(f"{trouble}: {reason(done.stderr)}")
    return done.stdout


def reason(text: str) -> str:
    """Find the line of an output that describes the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def _python(oldest: tuple[int, int]) -> str:
    """Find a Python that is new enough: this one, one on the path, or one of pyenv's."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(oldest[1], oldest[1] + 4)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [*filter(None, map(shutil.which, names)), *sorted(map(str, pyenv.glob("3.*/bin/python")))]
    test = f"import sys; sys.exit(sys.version_info < {oldest})"
    for candidate in candidates:
        if subprocess.run([candidate, "-c", test], capture_output=True, check=False).returncode == 0:
            return candidate
    raise Failed(f"there is no Python {oldest[0]}.{oldest[1]} or newer")
