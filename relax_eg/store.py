"""A folder of named byte entries: bounded in size, written atomically, each with a checksum.

Several processes and threads may use one folder. A reader finds a whole entry or none; of two writers of one name the
last wins. A damaged entry is ignored, with a warning that names the file. If the folder cannot be used, a warning is
given once and the work goes on without it.
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

from relax_eg.logs import log_at
from relax_eg.memo import Memo

_HEAD = b"relax_eg entry 1\n"
_CHECKSUM = 16  # given: bytes of a digest
_SUFFIX = ".entry"
_PART = ".part"  # suffix of an entry that is being written
_CLAIMED = ".claim"  # suffix of the mark of a process that makes an entry
_ABANDONED = 3600.0  # chosen: seconds without a write after which a part is abandoned and removed

_warnings_given = Memo[tuple[str, str], None](1024)  # warnings given already; each is given once


class StoreWarning(UserWarning):
    """A warning about a folder of entries; results do not change."""


@dataclass(frozen=True, slots=True)
class Store:
    """The entries of a folder.

    - `folder`: where the entries are; it is made at the first write.
    - `limit`: bytes of all entries; the least recently used ones beyond it are removed.
    """

    folder: Path
    limit: int

    def read(self, name: str) -> bytes | None:
        """The bytes of the entry of this name; None where there is none, or it is damaged or of another version."""
        path = self._path(name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            self._warn_once("read", e)
            return None
        start = len(_HEAD) + _CHECKSUM
        if not data.startswith(_HEAD):
            self.ignore(name, "it is no entry of this version")
            return None
        if checksum(data[start:]) != data[len(_HEAD) : start]:
            self.ignore(name, "its checksum does not fit")
            return None
        with suppress(OSError):
            os.utime(path)  # marks it as used now
        return data[start:]

    def write(self, name: str, payload: bytes) -> None:
        """Writes an entry, replacing an earlier one of this name. An entry larger than `limit` is not kept."""
        data = _HEAD + checksum(payload) + payload
        if len(data) > self.limit:
            log_at(1, f"an entry of {len(data)} bytes is not kept: the limit of {self.folder} is {self.limit} bytes")
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
            self._warn_once("write", e)

    def claim(self, name: str, seconds: float) -> bool:
        """Whether this process is to make an entry: no other process has claimed it in the last `seconds`. OSError
        where nothing can be written."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = self._mark(name)
        with suppress(FileNotFoundError):
            if time.time() - mark.stat().st_mtime > seconds:
                mark.unlink()
        try:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True

    def release(self, name: str) -> None:
        """Takes the claim of this process back."""
        with suppress(OSError):
            self._mark(name).unlink()

    def ignore(self, name: str, why: str) -> None:
        """Warns that an entry is not used."""
        warnings.warn(f"cache entry {self._path(name)} is ignored: {why}", StoreWarning, stacklevel=2)

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """Path and status of all entries, least recently used first. Removes abandoned parts.

        OSError where the folder cannot be read.
        """
        found: list[tuple[Path, os.stat_result]] = []
        try:
            paths = [Path(e.path) for e in os.scandir(self.folder)]
        except FileNotFoundError:
            return []
        for path in paths:
            with suppress(FileNotFoundError):  # another process removed it meanwhile
                if path.suffix == _SUFFIX:
                    found.append((path, path.stat()))
                elif path.suffix in (_PART, _CLAIMED) and time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
        return sorted(found, key=lambda entry: (entry[1].st_mtime_ns, entry[0]))

    def remove(self, name: str) -> None:
        """Removes an entry, if there is one."""
        with suppress(OSError):
            self._path(name).unlink()

    def clear(self) -> int:
        """Removes all entries and returns their number. OSError where they cannot be removed."""
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

    def _mark(self, name: str) -> Path:
        return self.folder / f"{name}{_CLAIMED}"

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}"

    def _warn_once(self, what: str, error: OSError) -> None:
        if (what, str(self.folder)) not in _warnings_given:
            _warnings_given[(what, str(self.folder))] = None
            warnings.warn(f"cannot {what} the cache in {self.folder}: {error}", StoreWarning, stacklevel=3)


def checksum(payload: bytes) -> bytes:
    """A checksum that detects damaged bytes; it does not authenticate them."""
    return blake2b(payload, digest_size=_CHECKSUM).digest()
