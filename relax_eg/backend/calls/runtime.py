"""The one way of a call: from its arguments, over their sizes and a variant, to an executable.

`Optimized` and `Ready` are called alike (`Runtime`). What differs is how the program runs, which a `Strategy` decides:

- `whole.Whole`: one XLA program, at the exact sizes of each call;
- `dynamic.at_capacity.AtCapacity`: few executables for many sizes, at capacity or exact;
- `kernels.ByKernel`: each kernel is an executable of its own;
- `steps.InSteps`: dataflow blocks are compiled, the steps between them are instructions of `vm`.

A strategy is made for a function with all arguments given by the calls, and again for each binding of its weights
(`Strategy.bind`). What it finds out about a call goes into one table of known calls (`known.KnownCalls`), in which
later calls like it are looked up first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, Self

from relax_eg.backend.calls.call_keys import UnseenError, is_tracing
from relax_eg.backend.calls.executables import EXECUTABLES, ClosedError, Executables, FullError, executables
from relax_eg.backend.calls.known import UNSEEN, Straight
from relax_eg.backend.calls.padded import PaddedArray
from relax_eg.backend.calls.program import Program, positional_arguments, without_notes
from relax_eg.backend.calls.statistics import SettledRow, Statistics
from relax_eg.backend.files.loaded import LoadedPrograms
from relax_eg.backend.pallas.choice import Pallas
from relax_eg.errors import ArtifactError, OptionError, RelaxEgError
from relax_eg.reports.record import MeasuredRow

# limit: calls that ask what the next ones may begin with; the calls of a function that asked as often differ
MOST_ASKED = 16
Place = Callable[[Any], Any]  # puts a `jax.ShapeDtypeStruct` on a device


@dataclass(frozen=True, slots=True)
class CallPart:
    """A program that calls run, lowered by JAX and not yet compiled.

    - `name`: its name.
    - `program`: the name of the tensor program for which Pallas was asked; "" for none.
    - `lowered`: what `jax.jit(...).lower(...)` returned.
    - `options`: options of XLA's with which it is to be compiled.
    """

    name: str
    program: str
    lowered: Any
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CallParts:
    """What calls at some sizes run.

    - `parts`: yields the programs that a call runs, in order.
    - `takes`: name and specs of the arrays of each of these programs, without lowering it.
    - `as_written`: whether the function runs as written.
    - `variant`: the index of the variant that serves these sizes.
    - `execution`: "whole", or "kernels" for a program for each kernel.
    - `capacities`: the sizes of the buffers, where calls run padded to these; otherwise empty.
    - `storage_bytes`: bytes of the arrays between the programs, as planned.
    """

    parts: Callable[[], Iterator[CallPart]]
    takes: Callable[[], Sequence[tuple[str, Sequence[Any]]]]
    as_written: bool
    variant: int
    execution: str = "whole"
    capacities: Mapping[str, int] = field(default_factory=dict[str, int])
    storage_bytes: int = 0


class Strategy(ABC):
    """How the calls of a function run, with some of its parameters bound or none.

    - `program`: the function.
    - `executables`: the cache in which all its executables count; those of other bindings as well.
    - `names`: the names, in order, of the arguments of a call; empty where some cannot be given in both ways.
    - `prepared`: the arrays kept of the bound parameters, a tuple for each of several programs.
    """

    default_limit = EXECUTABLES
    # given: relative tolerance for the order in which sums are taken: the order is the program's own
    reorder_tolerance = 0.0

    program: Program
    executables: Executables
    names: tuple[str, ...] = ()
    prepared: tuple[Any, ...] = ()

    def new_executables(self, program: Program) -> Executables:
        """An empty cache for `program`, as large as its options say."""
        return executables(program.at_sizes, self.default_limit)

    def call_known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that is known; UNSEEN for any other call."""
        return UNSEEN

    def straight(self, key: Callable[[], Any], closes: bool = False) -> Straight | None:
        """What calls may begin with, after one whose `executable_key` is `key()`; None where calls have to be told
        apart.

        - `closes`: whether it is to serve only calls of kinds that it served before.
        """
        return None

    def executable_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A value by which calls that run the same executables are known. LookupError for calls that it cannot tell,
        such as the first at certain sizes."""
        raise LookupError

    def compile_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> None:
        """Compiles what calls with these arguments, of which only shapes and dtypes are read, will run: the executable
        of the kind that another strategy of the same class has for `key`. OptionError where it cannot run such calls in
        an executable of this kind."""
        raise OptionError(f"{self.program.name}() is not compiled ahead of its calls")

    @abstractmethod
    def flat_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments of a call in parameter order, as JAX takes them in the caller's x64 mode. ShapeError."""

    @abstractmethod
    def call_arguments(self, arguments: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`(args, kwargs)` of a call with these arguments."""

    @abstractmethod
    def run(self, arguments: list[Any]) -> Any:
        """The result of any call. ShapeError or BoundsError for arguments that do not fit, before anything runs."""

    @abstractmethod
    def check_arguments(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments of a call converted to what is declared. ShapeError where that is not possible."""

    @abstractmethod
    def run_as_written(self, checked: list[Any]) -> Any:
        """The result of the function as written, with nothing bound."""

    @abstractmethod
    def bind(self, indices: Sequence[int], weights: list[Any]) -> Strategy:
        """The same strategy with the parameters at `indices` bound to these arrays."""

    @abstractmethod
    def to_jax(self) -> Callable[..., Any]:
        """The program as a JAX function. Where parameters are bound, its first argument is `prepared`."""

    @property
    def bound(self) -> frozenset[int]:
        """The places of the parameters that are bound."""
        return frozenset()

    @property
    def unbindable_reason(self) -> str:
        """Why no parameters can be bound; empty where they can."""
        return ""

    def at_exact_sizes(self) -> Mapping[str, str]:
        """What cannot run at capacity, with the reason, where that is known or capacities were asked for."""
        return {}

    def use_loaded(self, loaded: LoadedPrograms) -> None:
        """Lets calls run the executables of a file that fit them, in place of what is compiled. To be called before the
        first call."""
        self.executables.loaded = loaded

    def lowering(self, sizes: Mapping[str, int], place: Place, pallas: Pallas | None) -> CallParts:
        """What calls at these sizes run, on the device on which `place` puts its arguments. OptionError where a call
        runs no fixed list of programs.

        - `pallas`: chooses the kernels that are lowered through Pallas; None: none.
        """
        raise OptionError(
            f"{self.program.name}() runs in steps, of which each depends on values of the one before; a "
            "function that is one XLA program or a list of kernels is accepted"
        )

    def statistics(self) -> Statistics:
        """Statistics of the executables; without any where JAX compiles the function for each shape that is called."""
        return Statistics(self.program.name, "exact", {}, (), (), 0, 0.0, 0, {})

    def compile_ahead(self, at: Sequence[Mapping[str, int]], background: bool, weights: Sequence[int]) -> None:
        """Compiles what calls with the sizes `at` will run, once the parameters `weights` are bound. OptionError,
        BoundsError."""
        raise OptionError(
            f"compile_ahead(): {self.program.name}() runs at its very sizes, for each of which JAX compiles it when it "
            "is called; accepted: a function with sizes that vary, optimized with dynamic='auto' or 'capacity' to one "
            "XLA program (with numerics='exact', dynamic='capacity')"
        )


class Serving(Protocol):
    """What serves the calls of a function: a strategy, or `binding.BindsWeights`."""

    def call_known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def run(self, arguments: list[Any]) -> Any: ...

    def executable_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def straight(self, key: Callable[[], Any], closes: bool = False) -> Straight | None: ...


class Settles(Protocol):
    """Serves calls until it is known which of several programs is fastest (`driver.clock.settling`).

    - `rows`: what was found so far.
    - `settled`: the same by combination of sizes, with the calls and seconds that it took.
    - `is_begun`: whether programs take turns for some sizes, or did.
    - `straight`: what calls may begin with, where all sizes so far have one winner.
    """

    straight: Straight | None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    @property
    def rows(self) -> tuple[MeasuredRow, ...]: ...

    @property
    def settled(self) -> tuple[SettledRow, ...]: ...

    @property
    def is_begun(self) -> bool: ...


# Makes what settles: from what serves the calls, its strategy, that of the program as written, and a function that is
# told what serves all later calls.
Settler = Callable[[Serving, Strategy, Strategy, Callable[[Serving], None]], Settles]


class Runtime:
    """A function whose calls a strategy runs.

    - `strategy`: how the program runs.
    - `serving`: serves the calls; None: the strategy itself.
    """

    _settling: Settles | None = None  # serves the calls for now
    _straight: Straight | None = None
    _asks = MOST_ASKED  # how many more calls may ask what the next ones may begin with
    _measured: tuple[MeasuredRow, ...] = ()
    _settled: tuple[SettledRow, ...] = ()

    def __init__(self, strategy: Strategy, serving: Serving | None = None) -> None:
        self.strategy = strategy
        self._serving: Serving = serving or strategy
        self._program, self._executables = strategy.program, strategy.executables
        self._wide, self._names = strategy.program.wide, strategy.names

    def __deepcopy__(self, memo: Any) -> Self:
        """Itself, as of a Python function: a model that holds it can be copied."""
        return self

    def __reduce__(self) -> NoReturn:
        raise ArtifactError(
            f"{self._program.name} is a program for this process, and is not pickled\n  accepted: `save(path)` of what "
            "`optimize` returned, and `rx.load(path)` in another process"
        )

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs on XLA. ShapeError or BoundsError for arguments that do not fit, before anything runs."""
        straight = self._straight
        if straight is not None and not kwargs and not self._wide:  # whose calls may have to enter the x64 mode
            run, tick = straight
            try:
                result = run(*args)
                if tick is not None:
                    tick()
                return result
            except (ClosedError, FullError, UnseenError, RelaxEgError, TypeError, OverflowError):
                self._straight = None  # served below, or raised with its reason
        if kwargs:  # JAX would compile again for each split into positional and keyword arguments
            args, kwargs = positional_arguments(self._names, args, kwargs)
        if self._wide and self._program.needs_x64_mode:
            args, kwargs = self._convert_arguments(args, kwargs)
            with self._program.width_context():
                return self(*args, **kwargs)
        try:
            settling = self._settling  # another thread may end it
            if settling is not None:
                result, self._straight = settling(args, kwargs), settling.straight
                return result
            result = self._serving.call_known(args, kwargs)
            if result is UNSEEN:
                result = self._serving.run(self.strategy.flat_arguments(args, kwargs))
            if self._straight is None and self._asks:
                self._straighten(args, kwargs)
            return result
        except RelaxEgError as e:
            raise without_notes(e) from None
        except (TypeError, OverflowError):
            # `jax.jit` refuses non-arrays and numbers out of range before our check, whose error names the argument.
            arguments = self.strategy.flat_arguments(args, kwargs)
            if not any(isinstance(x, PaddedArray) for x in arguments):
                self.strategy.check_arguments(arguments)
                raise
        args, kwargs = self.strategy.call_arguments([x.cut() if isinstance(x, PaddedArray) else x for x in arguments])
        return self(*args, **kwargs)

    def _straighten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Finds out what later calls may begin with, after one with these arguments."""
        if not is_tracing():
            self._asks -= 1
            self._straight = self._serving.straight(lambda: self._serving.executable_key(args, kwargs))

    def let_settle(self, written: Strategy, settler: Settler) -> None:
        """Lets the first calls settle whether the program is faster than the one as written, which `written` runs. To
        be called before the first call."""

        def settled(serving: Serving) -> None:
            self._serving, self._measured, self._settled, self._settling = serving, made.rows, made.settled, None
            self._straight, self._asks = None, MOST_ASKED

        self._executables.register(written.executables)
        self._settling = made = settler(self._serving, self.strategy, written, settled)

    @property
    def measured(self) -> tuple[MeasuredRow, ...]:
        """What the calls so far measured (`measure`)."""
        settling = self._settling
        return self._measured if settling is None else settling.rows

    @property
    def settled(self) -> tuple[SettledRow, ...]:
        """What the calls so far settled, with the calls and seconds that it took."""
        settling = self._settling
        return self._settled if settling is None else settling.settled

    @property
    def is_settling(self) -> bool:
        """Whether calls still find out which program is faster."""
        settling = self._settling
        return settling is not None and settling.is_begun

    def _convert_arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call of a 64-bit program made outside JAX's x64 mode, as JAX takes them there."""
        return self.strategy.call_arguments(self.strategy.flat_arguments(args, kwargs))

    def _compile_ahead(self, at: Sequence[Mapping[str, int]], background: bool, weights: Sequence[int] = ()) -> None:
        with self._program.width_context():
            self.strategy.compile_ahead(at, background, weights)
