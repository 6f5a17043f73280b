"""`python -m merganser.cli`, the same as `merganser`."""

from __future__ import annotations

from merganser.cli import main

main()
