"""The small family of exceptions. Everything this package raises on purpose derives from `RelaxEgError`.

The texts are interface: each names the function or rule, the operand, both sides, the source line where there
is one, and what would be accepted.
"""

from __future__ import annotations

from collections.abc import Sequence


class RelaxEgError(Exception):
    """Base of every error this package raises on purpose."""


class SpecError(RelaxEgError, ValueError):
    """A spec string, a dimension expression or a signature that cannot be read."""


class ShapeError(RelaxEgError, ValueError):
    """Ranks, sizes or dtypes that disagree: in a program, or between a call and a signature."""


class BoundsError(RelaxEgError, ValueError):
    """A size outside its declared bounds, bounds that are empty, or an unknown name in `at` or `bounds`."""


class OtherProgramError(BoundsError):
    """Sizes at which a function is another program than the one that was optimized."""


class TraceError(RelaxEgError, TypeError):
    """A function that cannot be turned into a module.

    `undecided`: two statements about sizes, of which one holds at any sizes, where it takes one of them to trace it.
    """

    def __init__(self, text: str, undecided: tuple[str, str] | None = None) -> None:
        super().__init__(text)
        self.undecided = undecided


class ModuleTextError(RelaxEgError, ValueError):
    """Module text that cannot be read back."""


class ScriptError(ModuleTextError):
    """A scripted function that cannot be read."""


class TensorProgramError(RelaxEgError, ValueError):
    """A tensor program that cannot be read, or that does not define every element of its outputs once and in range."""


class WellFormedError(RelaxEgError, ValueError):
    """A module that breaks a rule of the IR."""


class OperatorError(RelaxEgError, ValueError):
    """An operator applied to operands or attributes it does not accept."""


class UndecidedError(OperatorError):
    """An operator that needs sizes to be equal which may or may not be."""


class UnknownShapeError(UndecidedError, TypeError):
    """The shape of a value is asked for that is known in part only."""


class RuleError(RelaxEgError, ValueError):
    """A rewrite rule that is not accepted: ill-formed, or refuted by a counterexample."""


class LibraryError(RelaxEgError, RuntimeError):
    """A library routine that is not there, costs no number, or does not give what its definition says."""


class ExtractionError(RelaxEgError, ValueError):
    """No executable program, or a cost that is not a finite number >= 0."""


class NotExecutableError(ExtractionError):
    """A result needs one of `operators`, and nothing executes them."""

    def __init__(self, text: str, operators: Sequence[str]) -> None:
        super().__init__(text)
        self.operators = tuple(operators)


class OptionError(RelaxEgError, ValueError):
    """An option of the public API with a value outside what it accepts."""


class MemoryPlanError(RelaxEgError, ValueError):
    """A memory plan that does not hold, or a file that is none, or is of another program or version."""


class ArtifactError(RelaxEgError, ValueError):
    """A program that cannot be saved, or a file from which none can be loaded."""


class OnnxError(RelaxEgError, ValueError):
    """An ONNX model that cannot be read, or has what is not supported."""


class ForkedError(RelaxEgError, RuntimeError):
    """A search asked for in a process that was forked from one that had searched before."""


class ExplanationError(RelaxEgError):
    """A program that cannot be explained, or an explanation or certificate that does not hold: which step, and why."""
