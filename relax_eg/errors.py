"""The exceptions of this package. Every exception that it raises on purpose derives from `RelaxEgError`.

The error texts are part of the interface: each names the function or rule, the operand, both sides, the source line if
there is one, and what would be accepted.
"""

from __future__ import annotations

from collections.abc import Sequence


class RelaxEgError(Exception):
    """Base of every error this package raises on purpose."""


def parts_of_error(error: Exception) -> tuple[str, str]:
    """Returns the first line of an error's text, and what the text says is accepted ("" if nothing)."""
    first, *rest = str(error).split("\n")
    accepted = (line.strip()[len(_ACCEPTED) :] for line in rest if line.strip().startswith(_ACCEPTED))
    return first, next(accepted, "")


_ACCEPTED = "accepted: "


class SpecError(RelaxEgError, ValueError):
    """A spec string, a dimension expression or a signature that cannot be read."""


class ShapeError(RelaxEgError, ValueError):
    """Ranks, sizes or dtypes that disagree: in a program, or between a call and a signature."""


class BoundsError(RelaxEgError, ValueError):
    """A size outside its declared bounds, bounds that are empty, or an unknown name in `at` or `bounds`."""


class OtherProgramError(BoundsError):
    """A call at sizes for which the traced function is another program than the one that was optimized."""


class TraceError(RelaxEgError, TypeError):
    """A function that cannot be turned into a module.

    - `undecided`: the comparison of sizes that the trace could not decide, and its negation; one of the two holds at
      any sizes. None if the error has another reason.
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
    """An operator that needs sizes to be equal although they may differ."""


class UnknownShapeError(UndecidedError, TypeError):
    """A request for the shape of a value whose shape is only partly known."""


class RuleError(RelaxEgError, ValueError):
    """A rewrite rule that is not accepted: ill-formed, or refuted by a counterexample."""


class UnknownRuleError(RuleError, KeyError):
    """A name that no rule of a set has."""

    __str__ = Exception.__str__  # a KeyError shows its text in quotes


class DiscoveryError(RelaxEgError, ValueError):
    """A search for laws that cannot be made: an operator without equations, variables to which nothing applies, terms
    without end."""


class LibraryError(RelaxEgError, RuntimeError):
    """A library routine that is missing, whose cost is not a number, or whose result differs from its definition."""


class HostError(RelaxEgError, RuntimeError):
    """A function of the host that is not registered, that raised, or whose result differs from what its call says."""


class ExtractionError(RelaxEgError, ValueError):
    """No executable program was found, or a cost is not a finite number >= 0."""


class NotExecutableError(ExtractionError):
    """A result for which no executable program was found.

    - `operators`: the operators that cannot be executed, one of which the result needs.
    """

    def __init__(self, text: str, operators: Sequence[str]) -> None:
        super().__init__(text)
        self.operators = tuple(operators)


class OptionError(RelaxEgError, ValueError):
    """An option of the public API with a value outside what it accepts."""


class MemoryPlanError(RelaxEgError, ValueError):
    """An invalid memory plan, or a file that is not a plan or is one of another program or version."""


class ArtifactError(RelaxEgError, ValueError):
    """A program that cannot be saved, or a file from which no program can be loaded."""


class OnnxError(RelaxEgError, ValueError):
    """An ONNX model that cannot be read, or that uses an unsupported feature."""


class StableHloError(RelaxEgError, ValueError):
    """StableHLO that cannot be read, or that uses an unsupported operation."""


class ForkedError(RelaxEgError, RuntimeError):
    """A search in a process that was forked from one that had searched before."""


class ExplanationError(RelaxEgError):
    """A program that cannot be explained, or an invalid explanation or certificate; the text names the step and the
    reason."""


class DeviceError(RelaxEgError, RuntimeError):
    """A program that XLA does not compile for a device."""
