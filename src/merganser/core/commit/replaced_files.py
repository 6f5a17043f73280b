"""What a commit replaces or removes, recognized by recovery, also in a copy of the dataset.

In its own place a file is recognized by its identity, which holds inode and time. A copy has other inodes, and perhaps
other times. So a folder in the staging folder holds a link to each such file, which is copied along and takes no space:
a file with the same content as its link is the file that the journal means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from merganser.core.storage.staging import REPLACED_LINKS
from merganser.errors import ConcurrentWriteError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from merganser.core.storage.location import Location
    from merganser.core.storage.staging import Staging


@dataclass(frozen=True)
class ReplacedFiles:
    """The files that a commit replaces or removes, by path with their identities, and the links to them."""

    staging: Staging
    identities: Mapping[str, str]
    links: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        links = {rel: f"{self.folder}/{number}.replaced" for number, rel in enumerate(self.identities)}
        object.__setattr__(self, "links", links)

    @property
    def folder(self) -> str:
        """The folder of the links."""
        return f"{self.staging.folder}/{REPLACED_LINKS}"

    def link_files(self) -> list[str]:
        """Link the files, before the commit is journaled; returns the folder to flush, if there is one."""
        location = self.staging.location
        if not (self.identities and location.store.is_local):
            return []
        location.store.make_folder(self.folder)
        for rel, identity in self.identities.items():
            link = self.links[rel]
            # A file that changed since it was listed is not what the journal means.
            if location.store.link(location.to_path(rel), link) and location.store.get_identity(link) != identity:
                location.store.remove(link)
        return [self.folder]

    def is_journaled_file(self, rel: str, now: str) -> bool:
        """Check whether a file, by its identity now, is the one that the journal means."""
        location = self.staging.location
        identity = self.identities.get(rel)
        return identity is not None and (
            now == identity or location.store.is_copied(location.to_path(rel), identity, self.links[rel])
        )


def make_conflict_error(location: Location, rel: str, what: str) -> ConcurrentWriteError:
    """Describe a file that is not the one that the journal means."""
    return ConcurrentWriteError(
        f"{location.to_display(rel)} was changed by another program after this commit was journaled, so {what} was not "
        "published. Move that file out of the dataset, then call recover(path)."
    )
