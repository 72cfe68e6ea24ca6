"""A folder of entries: bytes under names, bounded, written whole or not at all, each with a checksum.

Several processes and threads may use one folder. A reader finds a whole entry or none; of two writers of a name the
last one wins. An entry that is damaged is ignored with a warning that names the file; a folder that cannot be used is
told of once, and the work goes on without it.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from relax_eg.debug import tell

_HEAD = b"relax_eg entry 1\n"
_CHECKSUM = 16
_SUFFIX = ".entry"
_PART = ".part"  # of an entry that is being written
_ABANDONED = 3600.0  # seconds after which nobody is writing it any more

_told: set[tuple[str, str]] = set()


class StoreWarning(UserWarning):
    """Something about a folder of entries that changes no result."""


@dataclass(frozen=True, slots=True)
class Store:
    """The entries in `folder`, of `limit` bytes at most; those that were used longest ago go first."""

    folder: Path
    limit: int

    def read(self, name: str) -> bytes | None:
        """The entry of this name; None where there is none, or none that is whole."""
        path = self._path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            self._cannot("read", e)
            return None
        start = len(_HEAD) + _CHECKSUM
        if not data.startswith(_HEAD):
            self.ignore(name, "it is no entry of this version")
            return None
        if checksum(data[start:]) != data[len(_HEAD) : start]:
            self.ignore(name, "its checksum does not fit")
            return None
        with suppress(OSError):
            os.utime(path)  # used now
        return data[start:]

    def write(self, name: str, payload: bytes) -> None:
        """Keep an entry, in place of an earlier one of this name."""
        data = _HEAD + checksum(payload) + payload
        if len(data) > self.limit:
            tell(1, f"an entry of {len(data)} bytes is not kept: the limit of {self.folder} is {self.limit} bytes")
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(_PART, dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(part, self._path(name))
            except BaseException:
                with suppress(OSError):
                    os.unlink(part)
                raise
            self._trim()
        except OSError as e:
            self._cannot("write", e)

    def ignore(self, name: str, why: str) -> None:
        """Warn that an entry is not used."""
        warnings.warn(f"cache entry {self._path(name)} is ignored: {why}", StoreWarning, stacklevel=2)

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """The entries, those used longest ago first. OSError where the folder cannot be read."""
        found: list[tuple[Path, os.stat_result]] = []
        try:
            paths = [Path(e.path) for e in os.scandir(self.folder)]
        except FileNotFoundError:
            return []
        for path in paths:
            with suppress(FileNotFoundError):  # another process was faster
                if path.suffix == _SUFFIX:
                    found.append((path, path.stat()))
                elif path.suffix == _PART and time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
        return sorted(found, key=lambda entry: (entry[1].st_mtime_ns, entry[0]))

    def clear(self) -> int:
        """Remove all entries; how many there were. OSError where they cannot be removed."""
        found = self.entries()
        for path, _ in found:
            path.unlink(missing_ok=True)
        return len(found)

    def _trim(self) -> None:
        found = self.entries()
        total = sum(status.st_size for _, status in found)
        for path, status in found:
            if total <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= status.st_size

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _cannot(self, what: str, error: OSError) -> None:
        if (what, str(self.folder)) not in _told:
            _told.add((what, str(self.folder)))
            warnings.warn(f"cannot {what} the cache in {self.folder}: {error}", StoreWarning, stacklevel=3)


def checksum(payload: bytes) -> bytes:
    """Tells damaged bytes from whole ones; it does not tell who wrote them."""
    return blake2b(payload, digest_size=_CHECKSUM).digest()
