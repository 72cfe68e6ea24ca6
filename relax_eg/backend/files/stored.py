"""Executables that XLA made before the calls, as plain data: what a file keeps of them, and what tells where they run.

The machine code of an executable is bytes that only XLA reads. All else is described here: no pickle is involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import jax
import jaxlib

from relax_eg.limits import FEW_KEPT
from relax_eg.processor import processor_flags, processor_name
from relax_eg.settings import settings_now

_RELIES = ("compute capability", "instruction sets")  # what the code for GPUs and CPUs relies on


@dataclass(frozen=True, slots=True)
class StoredArray:
    """The type of an array that an executable takes or gives.

    - `shape`: its sizes.
    - `dtype`: JAX's name of its dtype.
    - `weak`: whether it is weakly typed.
    """

    shape: tuple[int, ...]
    dtype: str
    weak: bool = False

    @classmethod
    def of(cls, array: Any) -> StoredArray:
        """The type of an array, or of its `jax.ShapeDtypeStruct` or abstract value."""
        return cls(tuple(map(int, array.shape)), str(array.dtype), bool(getattr(array, "weak_type", False)))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class DeviceKey:
    """What an executable is made for.

    - `device`: the name of the device for users.
    - `kind`: the name by which JAX knows the device; of a CPU, its model.
    - `platform`: "cpu" or "gpu".
    - `capability`: what its code must be able to rely on: CUDA's compute capability; of a CPU, a digest of its
      instruction sets, or of its model where the system does not name them.
    - `versions`: versions of JAX, of jaxlib, which has XLA in it, and on a GPU of the plug-in.
    """

    device: str
    kind: str
    platform: str
    capability: str
    versions: Mapping[str, str]

    def why_not(self, here: DeviceKey) -> str:
        """Why an executable made for this does not run on `here`; "" where it does. The model may be another."""
        if self.platform != here.platform or self.capability != here.capability:
            both = f"it is for {self.kind}; here is {here.kind}"
            return f"{both}, of other {_RELIES[self.platform == 'cpu']}" if self.platform == here.platform else both
        for name, version in self.versions.items():
            if here.versions.get(name) != version:
                return f"it was made by {name} {version}; here is {here.versions.get(name, 'none')}"
        return ""


@dataclass(frozen=True, slots=True)
class StoredExecutable:
    """An executable.

    - `name`: the name of its program, or of its kernel if a call runs several executables.
    - `code`: the place of its machine code in the file.
    - `arguments`, `results`: the arrays that it takes and gives.
    - `in_tree`, `out_tree`: the structures of `(args, kwargs)` and of the result, as `artifact` writes them.
    - `compile_seconds`: wall time of compiling it.
    - `launches`: the kernels that it launches on a GPU, by kind.
    """

    name: str
    code: int
    arguments: tuple[StoredArray, ...]
    results: tuple[StoredArray, ...]
    in_tree: Any
    out_tree: Any
    compile_seconds: float
    launches: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """What calls at some sizes run on a device.

    - `key`: what it is made for.
    - `settings`: the settings of JAX under which it was made, as text.
    - `at`: the sizes of the calls.
    - `capacities`: the sizes of the buffers, where calls run padded to these; otherwise empty.
    - `execution`: "whole" or "kernels".
    - `variant`: the index of the variant.
    - `weights`: the places of the parameters that are bound.
    - `executables`: what a call runs, in order; several may have the same code.
    """

    key: DeviceKey
    settings: str
    at: Mapping[str, int]
    capacities: Mapping[str, int]
    execution: str
    variant: int
    weights: tuple[int, ...]
    executables: tuple[StoredExecutable, ...]

    def why_not(self, here: DeviceKey) -> str:
        """Why calls cannot run it on `here`, under JAX's settings in force; "" where they can."""
        why = self.key.why_not(here)
        return why or ("" if self.settings == settings_text() else "it was made under other settings of JAX")

    @property
    def codes(self) -> list[int]:
        """The places of its machine code, each once."""
        return list(dict.fromkeys(e.code for e in self.executables))

    @property
    def launches(self) -> int:
        """Kernels that a call launches on a GPU."""
        return sum(n for e in self.executables for n in e.launches.values())


@dataclass(frozen=True, slots=True)
class Stored:
    """The executables of a file.

    - `programs`: what they are made for.
    - `codes`: their machine code.
    """

    programs: tuple[StoredProgram, ...] = ()
    codes: tuple[bytes, ...] = ()

    def code_bytes(self, program: StoredProgram) -> int:
        """Bytes of the machine code of a program."""
        return sum(len(self.codes[c]) for c in program.codes)


NOTHING = Stored()


def settings_text() -> str:
    """JAX's settings in force, on which traces depend, as text."""
    return repr(settings_now())


def default_device_key() -> DeviceKey:
    """The key of what runs on JAX's default device here."""
    return device_key(jax.devices()[0])


def device_key(device: Any, name: str = "") -> DeviceKey:
    """The key of a device of JAX's, present or described; `name` is its name for users, if that is not its platform."""
    platform = str(device.platform)
    made = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}
    if platform == "cpu":
        relied_on = _digest(processor_flags() or (processor_name(),))
        return DeviceKey(name or platform, processor_name(), platform, relied_on, made)
    from relax_eg.backend.gpu.target import plugin_version  # which programs for the CPU never need

    capability = str(getattr(device, "compute_capability", ""))
    return DeviceKey(name or platform, device.device_kind, platform, capability, {**made, **plugin_version()})


@lru_cache(FEW_KEPT)
def _digest(flags: tuple[str, ...]) -> str:
    return blake2b(" ".join(flags).encode(), digest_size=8).hexdigest()
