"""The calls that a strategy knows: by a key that few of their arguments determine, what runs them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from relax_eg.backend.calls.call_keys import MOST_KEYS, NO_KEY, SizeKey, UnseenError, is_tracing
from relax_eg.backend.calls.executables import Executable
from relax_eg.errors import OtherProgramError
from relax_eg.memo import Memo

UNSEEN: Any = object()
MOST_REFUSED = 3  # limit: calls of a key that what runs them may refuse before it is no longer tried
_NO_SIZES: Mapping[str, Any] = MappingProxyType({})


class Straight(NamedTuple):
    """What calls begin with, before anything is looked up.

    - `run`: the `jax.jit` that takes the arguments of a call as they are given. While it is traced it refuses calls
      that it must not serve, and all calls once it was evicted.
    - `tick`: counts a call; None where nothing counts them.
    """

    run: Any
    tick: Callable[[], object] | None = None


class KnownCall(NamedTuple):
    """What runs the calls of one key, whatever weights are bound; it refers to no values prepared from them.

    - `run`: the function. It raises UnseenError for calls that it must not serve, and returns UNSEEN for one that is to
      be looked at once more, such as to be timed.
    - `which`: the index of the program whose prepared values it takes first; None where it takes none.
    - `sizes`: the true sizes, which it takes in front of these values; empty where it takes none.
    - `tick`: counts a call; None where nothing does, or `run` itself.
    - `executable`: its executable in the cache; None where JAX keeps it.
    - `has_options`: whether it was compiled with options of XLA's; on these the outer `jit` decides under a trace.
    - `begins`: whether calls may begin with `run`: it never returns UNSEEN.
    """

    run: Any
    which: int | None = None
    sizes: Mapping[str, Any] = _NO_SIZES
    tick: Callable[[], object] | None = None
    executable: Executable | None = None
    has_options: bool = False
    begins: bool = True

    def leading(self, prepared: Any) -> tuple[Any, ...]:
        """What `run` takes before the arguments of a call. `prepared`: for each program the values prepared for it."""
        if self.which is None:
            return ()
        return ((self.sizes, *prepared[self.which]) if self.sizes else prepared[self.which],)

    def straight(self, prepared: Any, run: Any = None) -> Straight:
        """It, with these prepared values, as what calls begin with. `run`: in place of its own."""
        run = self.run if run is None else run
        return Straight(run if self.which is None else functools.partial(run, *self.leading(prepared)), self.tick)


class KnownCalls:
    """A bounded table of known calls. All bindings of weights of the same shapes share one.

    - `key`: the key of a call. It raises one of `NO_KEY` for calls that have none, such as those of another structure.
    - `only`: serves every call, without a look at its key, until it refuses one; None: calls have to be told apart.
    - `is_served`: whether calls are served under the present settings of JAX.
    """

    def __init__(self, key: SizeKey, keywords: Any) -> None:
        """`keywords`: the names in `kwargs` of calls whose arguments are split as the specs were."""
        self.key, self._keywords = key, keywords
        self.only: KnownCall | None = None
        self.is_served: Callable[[], bool] = lambda: True
        self._by_key = Memo[Any, KnownCall](MOST_KEYS)
        self._refused = Memo[Any, int](MOST_KEYS)  # by key, how many calls were refused
        self._are_alike = True  # whether `only` refused no call
        self._lock = threading.Lock()

    def call(self, prepared: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a known call; UNSEEN for any other.

        This is the whole work of such a call: the checks that depend on shapes were made when it became known, and JAX
        itself checks that the arguments have the shapes and dtypes for which the function was traced.
        """
        if (kwargs or self._keywords) and kwargs.keys() != self._keywords:  # JAX would trace it for each split
            return UNSEEN
        found = self.only
        if found is None:
            try:
                found = self._by_key.get(self.key(args, kwargs))
            except NO_KEY:
                return UNSEEN
            if found is None:
                return UNSEEN
        run, which, sizes, tick, executable, has_options, _ = found
        if (executable is not None and executable.dropped) or (has_options and is_tracing()):
            return UNSEEN
        try:
            if which is not None:
                args = (sizes, *prepared[which]) if sizes else prepared[which], *args
            result = run(*args, **kwargs)
        except TypeError:  # an argument is no array
            return UNSEEN
        except UnseenError:
            self._refuse(found, args if which is None else args[1:], kwargs)
            return UNSEEN
        except OtherProgramError:
            self.only = None
            return UNSEEN
        if tick is not None:
            tick()
        return result

    def _refuse(self, found: KnownCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Takes note that a call was refused."""
        if not self.is_served() or is_tracing():  # such as for derivatives
            return
        key = self._key_of(args, kwargs)
        with self._lock:
            if self.only is found:
                self.only, self._are_alike = None, False
            elif key is not None:
                self._refused[key] = times = self._refused.get(key, 0) + 1
                if times >= MOST_REFUSED:
                    self._by_key.pop(key, None)

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self.key(args, kwargs)
        except NO_KEY:
            return None

    def put(self, args: tuple[Any, ...], kwargs: dict[str, Any], call: KnownCall, is_only: bool = False) -> None:
        """Lets `call` run calls like this one. `is_only`: all of them so far are."""
        key = self._key_of(args, kwargs)
        with self._lock:
            if key is not None and self._refused.get(key, 0) < MOST_REFUSED:
                self._by_key[key] = call
                self.only = call if is_only and self._are_alike else self.only

    def forget(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Lets calls like this one be looked at again."""
        key = self._key_of(args, kwargs)
        with self._lock:
            if self._by_key.pop(key, None) is self.only:
                self.only = None

    def at(self, key: Any) -> KnownCall | None:
        """What runs the calls of this key."""
        return self.only or self._by_key.get(key)

    def clear(self) -> None:
        """Forgets all calls."""
        with self._lock:
            self._by_key.clear()
            self.only = None
