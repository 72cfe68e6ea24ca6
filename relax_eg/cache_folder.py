"""The folder of the disk cache, entries of data in it, versions that keys of its entries contain, and whether this
machine is measured."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from relax_eg.errors import OptionError
from relax_eg.limits import FEW_KEPT
from relax_eg.logs import raise_if_exhausted
from relax_eg.plain_data import is_count
from relax_eg.store import Store

VARIABLE = "RELAX_EG_CALIBRATE"
MODES = ("auto", "off")
# The packages on which a search depends.
_PACKAGES = ("jax", "jaxlib", "egglog", "z3-solver", "numpy", "scipy", "ml_dtypes")
LIMIT = 256 << 20  # limit: bytes of the folder, unless RELAX_EG_CACHE_BYTES is set


@lru_cache(FEW_KEPT)
def version_of(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


@lru_cache(1)
def surroundings() -> tuple[Any, ...]:
    """What a search runs on: Python, this package's source, and the versions of the packages it uses. LookupError
    without the source."""
    folder, source = Path(__file__).parent, blake2b(digest_size=32)
    files = sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".json"))
    if not files:
        raise LookupError("the package's own source is not at hand")
    for path in files:
        data = path.read_bytes()
        source.update(f"{path.relative_to(folder).as_posix()} {len(data)}\n".encode())
        source.update(data)
    python = (sys.implementation.name, *sys.version_info[:3], sys.byteorder)
    return (source.hexdigest(), python, *[(p, version_of(p)) for p in _PACKAGES])


_T = TypeVar("_T")


def read_entry(kept: Store, name: str, made: Callable[[Any], _T], what: str) -> _T | None:
    """What `made` makes of the JSON data of an entry; None without the entry. A broken entry is never fatal: it is
    ignored, with a warning that it is `what`."""
    payload = kept.read(name)
    if payload is None:
        return None
    try:
        return made(json.loads(payload))
    except Exception as e:
        raise_if_exhausted(e)
        kept.ignore(name, f"it is {what} ({type(e).__name__}: {e})")
        return None


def calibration_mode() -> str:
    """What `RELAX_EG_CALIBRATE` says: whether the machine at hand is measured. OptionError for another value."""
    found = os.environ.get(VARIABLE, "") or "auto"
    if found not in MODES:
        raise OptionError(f"{VARIABLE}={found}: {' or '.join(MODES)} is accepted")
    return found


def store() -> Store:
    """The folder of the cache. OptionError for invalid settings."""
    text = os.environ.get("RELAX_EG_CACHE_BYTES", "") or str(LIMIT)
    if not is_count(text):
        raise OptionError(f"RELAX_EG_CACHE_BYTES={text}: a number of bytes is accepted")
    return Store(_folder(), int(text))


def _folder() -> Path:
    """`RELAX_EG_CACHE_DIR`, else the platform's folder for a user's caches."""
    given = os.environ.get("RELAX_EG_CACHE_DIR")
    if given:
        return Path(given).expanduser()
    return Path(platformdirs.user_cache_dir("relax_eg", appauthor=False))
