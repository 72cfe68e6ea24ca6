"""The disk cache of search results: a program that was optimized once is not searched again.

The key of an entry is a hash of all that a search depends on: the traced program bit by bit, the options, the content
of the rules, the versions of Python and of the packages used, this package's own source, and JAX's settings. A program
is not cached if some of this has no visible content (a callback in the program, a rule over an object of another
library), or if the clock stopped the search: another run might find more.

An entry is plain data with a checksum. It names the constants and JAX's objects of the program by their content; they
are taken from the program at hand, of which on a hit only the jaxpr is hashed.

`RELAX_EG_CACHE=0` or `with rx.debug.options(cache=False):` turns it off, `RELAX_EG_CACHE=machine` keeps only what was
measured of the machine; `RELAX_EG_CACHE_DIR` sets its folder (default:
the user's folder for caches), `RELAX_EG_CACHE_BYTES` its size limit.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_eg.backend.family import Variant
from relax_eg.backend.files.packed_variants import pack_variants, unpack_variants
from relax_eg.cache_folder import store, surroundings
from relax_eg.driver.fixed import with_numbers
from relax_eg.frontends import Source
from relax_eg.frontends.fingerprint import settings
from relax_eg.ir.module import Module
from relax_eg.ir.tokens import NoContentError, token
from relax_eg.logs import cache_is_on, log_at, raise_if_exhausted, stage
from relax_eg.plain_data import read_record as checked
from relax_eg.reports import CostReport
from relax_eg.rules import RuleSet
from relax_eg.rules.answer_cache import other_operators
from relax_eg.rules.content import rule_token
from relax_eg.shapes import Scope
from relax_eg.store import Store

if TYPE_CHECKING:
    from relax_eg.driver.options import Options

FORMAT = 5  # given: version of the entry format; entries of other versions are not found
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_count: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The state of the cache.

    - `folder`: its folder.
    - `entries`: the number of entries.
    - `bytes`: the bytes of all entries.
    - `limit`: the limit of these bytes.
    - `hits`: the hits of this process.
    - `misses`: the misses of this process.
    """

    folder: Path
    entries: int
    bytes: int
    limit: int
    hits: int
    misses: int

    def __str__(self) -> str:
        entries = f"{self.entries} {'entry' if self.entries == 1 else 'entries'}"
        return f"{self.folder}: {entries}, {self.bytes / 1e6:.1f} MB of at most {self.limit / 1e6:.1f} MB"


def info() -> CacheInfo:
    """The contents of the cache, and its hits and misses in this process. OptionError for invalid settings."""
    kept = store()
    found = kept.entries()
    with _lock:
        hits, misses = _count["hits"], _count["misses"]
    return CacheInfo(kept.folder, len(found), sum(s.st_size for _, s in found), kept.limit, hits, misses)


def clear() -> int:
    """Remove every entry of the cache; returns how many there were."""
    return store().clear()


@dataclass(frozen=True, slots=True)
class CachedResult:
    """The result of a search.

    - `variants`: one program for all sizes, or a family of several.
    - `effectful`: whether the function has effects.
    """

    variants: tuple[Variant, ...]
    effectful: bool

    @property
    def report(self) -> CostReport:
        return self.variants[0].report

    def as_cached(self, seconds: float) -> CachedResult:
        """The result, whose reports say that it was in the cache, and that finding it there took `seconds`."""
        found = (replace(v, report=replace(v.report, cached=True, seconds={"total": seconds})) for v in self.variants)
        return replace(self, variants=tuple(found))


class EntryPlace:
    """The place in the cache for the search of one program with certain options."""

    def __init__(self, store: Store, key: str, traced: Source, scope: Scope) -> None:
        self._store = store
        self.key = key
        self._traced = traced
        self._scope = scope

    @stage("cache")
    def read(self) -> CachedResult | None:
        """The cached result; None if there is no entry, or if it is invalid, in which case a warning is given."""
        found: CachedResult | None = None
        payload = self._store.read(self.key)
        if payload is not None:
            try:
                found = self._decoded(payload)
            except Exception as e:  # a broken entry is never fatal: the search finds the result again
                raise_if_exhausted(e)
                self._store.ignore(self.key, f"it does not describe this program ({type(e).__name__}: {e})")
        with _lock:
            _count["misses" if found is None else "hits"] += 1
        return found

    @stage("cache")
    def write(self, found: CachedResult) -> None:
        """Store a result for other processes."""
        try:
            payload = self._encoded(found)
        except Exception as e:  # this process has the result even if it cannot be stored
            raise_if_exhausted(e)
            _tell_why_not(self._traced, e)
        else:
            self._store.write(self.key, payload)

    def _encoded(self, found: CachedResult) -> bytes:
        data = {"key": self.key, "effectful": found.effectful}
        return pack_variants(found.variants, self._traced.fingerprint, data)

    def _decoded(self, payload: bytes) -> CachedResult:
        found = unpack_variants(payload, self._traced.fingerprint, lambda: self._traced.module)
        if found.data["key"] != self.key:
            raise ValueError("it is the entry of another key")
        for module in found.chosen:
            self._check_signature(module)
        return CachedResult(found.variants, checked(bool, found.data["effectful"], "effectful"))

    def _check_signature(self, module: Module) -> None:
        main = module.main
        written = self._traced.params, self._traced.result
        if main.name != self._traced.identifier or (main.params, main.annotation) not in (
            written, with_numbers(*written, self._scope),
        ):  # fmt: skip
            raise ValueError("it has another signature")


@stage("cache")
def place_of(traced: Source, options: Options, more: tuple[Any, ...] = ()) -> EntryPlace | None:
    """The place of a program's entry; None if the cache is off or no key can be formed. `more`: as in `key_of`."""
    if not cache_is_on():
        return None
    kept = store()
    try:
        return EntryPlace(kept, key_of(traced, options, more), traced, options.scope)
    except Exception as e:  # JAX's objects change with its versions; without a key the program is searched
        raise_if_exhausted(e)
        _tell_why_not(traced, e)
    return None


def _tell_why_not(traced: Source, error: Exception) -> None:
    why = str(error) if isinstance(error, NoContentError) else f"{type(error).__name__}: {error}"
    log_at(1, f"{traced.name} is not cached: {why}")


def key_of(traced: Source, options: Options, more: tuple[Any, ...] = ()) -> str:
    """The hash of all that a search depends on. `more`: plain data that it depends on besides. NoContentError if some
    of it has no visible content."""
    if names := other_operators():
        raise NoContentError(f"what the operators {', '.join(names)} do is not this package's own")
    try:
        around = surroundings()
    except LookupError as e:
        raise NoContentError(str(e)) from None
    leaves = [(x.path, x.argument, x.name, token(x.annotation), x.weak_type) for x in traced.leaves]
    content = (
        FORMAT, *around, settings(),
        traced.name, leaves, traced.sizes.constraints, traced.fingerprint.digest,
        [(f.name, _option(getattr(options, f.name))) for f in fields(options) if f.compare], more,
    )  # fmt: skip
    return blake2b(repr(content).encode(), digest_size=32).hexdigest()


def _option(value: Any) -> Any:
    if isinstance(value, RuleSet):
        return ("rules", *map(rule_token, (*value, *value.schemas)))
    if isinstance(value, Scope):
        return ("scope", value.assumptions, [(name, value.bounds(name)) for name in sorted(value.names)])
    return token(value)
