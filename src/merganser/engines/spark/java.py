"""Check for Java, because Spark's own error without it is long and unclear."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from merganser.errors import MissingExtraError

REQUIRED = 17
_VERSION = re.compile(r'version "(\d+)')


def check_java() -> None:
    """Refuse to start a session on a machine without Java, or with one that is too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(os.path.join(home, "bin", "java") if home else "java")
    found = "there is none on PATH and JAVA_HOME is not set" if not home else f"JAVA_HOME is {home}, which has no Java"
    if java is not None:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
        version = _VERSION.search(answer.stderr)
        if version is not None and int(version[1]) >= REQUIRED:
            return
        reported = next(iter(answer.stderr.splitlines()), "nothing")
        found = f"{java} reports {reported.strip()!r}"
    raise MissingExtraError(
        f"Spark needs Java {REQUIRED} or newer; {found}. Install it (on Debian: apt-get install "
        f"openjdk-{REQUIRED}-jre-headless) and set JAVA_HOME to its folder."
    )
