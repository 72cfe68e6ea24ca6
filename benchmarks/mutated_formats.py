"""The file formats of the package, each with a genuine file, for `benchmarks.mutations`."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console

import relax_eg as rx
from benchmarks.mutations import Format, changed_bytes, edited, json_text, of_json, of_text
from relax_eg.backend.files.artifact import VERSION
from relax_eg.cli.info import print_parts
from relax_eg.driver import cache
from relax_eg.driver.options import read_options
from relax_eg.driver.program_ends import optimized_of, traced_program
from relax_eg.errors import ExtractionError
from relax_eg.explain.certificate import UnaidedCertificate
from relax_eg.extract.profiles.profile import Profile
from relax_eg.extract.selection.check_choice import check_choice
from relax_eg.extract.selection.foreign import egraph_of, extract, read_json
from relax_eg.memory.files import load as load_plan
from relax_eg.memory.files import save as save_plan
from relax_eg.rules.checking.certificates import BOOK_VERDICTS, read_verdicts
from relax_eg.store import Store, checksum
from relax_eg.tir import parse_program

_HEAD = f"relax_eg artifact {VERSION}\n".encode()
_ENTRY = b"relax_eg entry 1\n"

uncached = rx.debug.options(cache=False)(rx.optimize)


def chain(params: Any, x: Any, scale: float = 2.0) -> Any:
    """A program with a constant, a gather, a sort, a softmax and a chain of products."""
    y = (params["a"] @ params["b"]) @ x + jnp.arange(8.0)[:, None]
    z = jnp.sort(y, axis=0)[jnp.array([3, 1])] * scale
    return {"z": z, "e": jnp.exp(y) / jnp.exp(y).sum(0), "p": jnp.cumsum(y, axis=1)}


SPECS = ({"a": "8 64", "b": "64 8"}, "8 n")
ARGUMENTS = ({"a": np.ones((8, 64), np.float32), "b": np.ones((64, 8), np.float32)}, np.ones((8, 3), np.float32))
BY_HAND = """\
@I.ir_module
class Module:
    @R.tensor_program
    def scaled(X: R.Buffer("n 8"), Y: R.Buffer("n 8")):
        Y[i, j] = X[i, j] * 2.0 + exp(X[i, j])

    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(("n", 8), "float32"):
        R.func_attr({"assume": ["n % 2 == 0"]})
        y = R.matmul(x, w)
        z: R.Tensor(("n", 8), "float32") = R.add(y, R.const([1.0, 2, 3, 4, 5, 6, 7, 8], "float32"))
        t = (z, R.softmax(z, axis=1))
        s = R.sum(t[1], axes=(0,), keepdims=True)
        c = R.op.concat((z, y), axis=0)[0:4, 1:] * 2 - s[:, 1:]
        u = R.call_tir(Module.scaled, (z,), out=R.Tensor(("n", 8), "float32"))
        r = R.reshape(u, shape=(R.dim("2*n"), 4))
        if R.op.sum(r) > 0:
            q = t[0]
        else:
            q = t[1]
        return q
"""
LANGUAGE = """\
@I.ir_module
class Module:
    @R.data
    class Shapes(a):
        Round = (a,)
        Both = (Shapes(a), Shapes(a))

    @T.prim_func
    def prefix(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        B[0] = A[0]
        for i in T.serial(3):
            if A[i] > 0.0:
                B[i + 1] = B[i] + A[i + 1]
            else:
                B[i + 1] = T.exp(A[i + 1])

    @R.function
    def area(s: Shapes(R.Tensor((4,), "float32")), k: R.Tensor((), "float32")) -> R.Tensor((4,), "float32"):
        match s:
            case Shapes.Round(r):
                return R.multiply(r, k)
            case Shapes.Both(x, y):
                return R.add(Module.area(x, k), Module.area(y, k))

    @R.function
    def twice(f: R.Callable((R.Tensor((4,), "float32"),), R.Tensor((4,), "float32")), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return f(f(x))

    @R.function
    def main(s: Shapes(R.Tensor((4,), "float32")), k: R.Tensor((), "float32")):
        cell = R.new_ref(k)
        R.write_ref(cell, R.add(R.read_ref(cell), k))
        y = Module.twice(lambda x: Module.area(Shapes.Both(Shapes.Round(x), s), R.read_ref(cell)), Module.area(s, k))
        z = R.call_tir(Module.prefix, (y,), out_sinfo=R.Tensor((4,), "float32"))
        R.assert_op(R.less(k, R.const(100.0, "float32")), format="too large")
        return (y, z)
"""  # noqa: E501
PROGRAM = """\
def fused(X: R.Buffer("n 64"), Z: R.Buffer("n")):
    Y = rx.script.local("n 64")
    Y[i, j] = X[i, j] * 2.0 + exp(X[i, j])
    Z[i] = 0.0
    Z[i] += Y[i, k] * Y[i, k]
"""


def formats(folder: Path, names: list[str]) -> Iterator[Format]:
    """The formats of these names."""
    for name in names:
        yield NAMES[name](folder)


def _packed(payload: bytes, choose: random.Random) -> bytes:
    """A packed program (the length of its JSON, that, arrays) with data or bytes changed."""
    end = 8 + int.from_bytes(payload[:8], "big")
    if choose.random() < 0.15:
        return changed_bytes(payload, choose)
    text = json_text(edited(json.loads(payload[8:end]), choose)).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(8, "big") + text + payload[end:]


def artifact_parts(data: bytes) -> tuple[bytes, bytes, list[bytes]]:
    """The parts of an artifact: the packed program, the table of executables as JSON ("" for none), machine code."""
    payload, rest = _unsealed(data[len(_HEAD) :])
    table, code = _unsealed(rest) if rest else (b"", b"")
    codes: list[bytes] = []
    for length, _ in json.loads(table)["codes"] if table else ():
        codes.append(code[:length])
        code = code[length:]
    return payload, table, codes


def artifact_file(payload: bytes, table: bytes = b"", codes: Sequence[bytes] = (), head: bytes = _HEAD) -> bytes:
    """An artifact of these parts, with the checksums of the first two redone."""
    sealed = [len(part).to_bytes(8, "big") + checksum(part) + part for part in (payload, table) if part]
    return b"".join([head, *sealed, *codes])


def with_codes(table: bytes, codes: Sequence[bytes]) -> bytes:
    """The table of executables with lengths and checksums of this machine code."""
    sums = [[len(code), checksum(code).hex()] for code in codes]
    return json.dumps({**json.loads(table), "codes": sums}).encode()


def _unsealed(data: bytes) -> tuple[bytes, bytes]:
    end = 24 + int.from_bytes(data[:8], "big")
    return data[24:end], data[end:]


def _artifact(folder: Path) -> Format:
    best = uncached(chain, *SPECS, bounds={"n": (1, 4096)}, target="cpu")
    best.save(folder / "chain.rxe")

    def changed(data: bytes, choose: random.Random) -> bytes:
        head = b"relax_eg artifact " + b"9" * 5000 + b"\n" if choose.random() < 0.01 else _HEAD
        return artifact_file(_packed(artifact_parts(data)[0], choose), head=head)

    return Format("artifact", (folder / "chain.rxe").read_bytes(), changed, _read_artifact)


def _instructions(folder: Path) -> Format:
    uncached(rx.parse(LANGUAGE), target="cpu").save(folder / "language.rxe")

    def changed(data: bytes, choose: random.Random) -> bytes:
        return artifact_file(_packed(artifact_parts(data)[0], choose))

    return Format("artifact of instructions", (folder / "language.rxe").read_bytes(), changed, _read_artifact)


def _with_executables(folder: Path) -> Format:
    best = uncached(chain, *SPECS, bounds={"n": (1, 4096)}, target="cpu")
    best.save(folder / "executables.rxe", devices=["cpu"], at=[{"n": 3}, {"n": 8}])

    def changed(data: bytes, choose: random.Random) -> bytes:
        payload, table, codes = artifact_parts(data)
        kind = choose.randrange(4)
        if kind == 0:  # the checksums fit: XLA would have to find that it is no machine code
            codes = [changed_bytes(code, choose) for code in codes]
            table = with_codes(table, codes)
        elif kind == 1:
            codes[choose.randrange(len(codes))] = changed_bytes(codes[0], choose)
        else:
            table = json_text(edited(json.loads(table), choose)).encode("utf-8", "surrogatepass")
        return artifact_file(payload, table, codes)

    return Format("artifact with executables", (folder / "executables.rxe").read_bytes(), changed, _read_artifact)


def _read_artifact(path: Path) -> None:
    found = rx.load(path)
    print(found.report, found.module, found.statistics(), file=io.StringIO())
    found.report.as_data()
    found.variants[0].module.main.expressions()
    print_parts(path, print_to=Console(file=io.StringIO()))


def _certificate(folder: Path) -> Format:
    best = uncached(chain, *SPECS)
    best.certificate().save(folder / "chain.json")

    def read(path: Path) -> None:
        found = UnaidedCertificate.load(path)
        print(found.verify(rx.rules.default), found.premises, file=io.StringIO())

    return Format("certificate", (folder / "chain.json").read_bytes(), of_json, read)


def _plan(folder: Path) -> Format:
    module = rx.trace(chain, *SPECS)
    save_plan(rx.plan_memory(module, bounds={"n": (1, 64)}), folder / "plan.json")

    def seal(text: str) -> str:
        try:
            data = json.loads(text)
            data.pop("checksum", None)
            sealed = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        except (ValueError, RecursionError, AttributeError, TypeError):
            return text
        return json.dumps({**data, "checksum": sealed})

    return Format(
        "memory plan",
        (folder / "plan.json").read_bytes(),
        lambda data, choose: of_json(data, choose, seal),
        lambda path: load_plan(path, module),
    )


def _profile(folder: Path) -> Format:
    budget = rx.Budget(nodes=2000, seconds=1.0)

    def read(path: Path) -> None:
        found = Profile.from_json(path)
        Console(file=io.StringIO()).print(found)
        best = uncached(lambda a, b, v: (a @ b) @ v, "n n", "n n", "n", target=found, budget=budget)
        print(best.report, file=io.StringIO())

    return Format("device profile", rx.types.PROFILES["cpu"].to_json().encode(), of_json, read)


def _entry(folder: Path) -> Format:
    store = Store(folder / "cache", 1 << 30)
    traced = traced_program(chain, SPECS, {}, {"n": (1, 4096)})
    options = read_options(traced, target="cpu", bounds={"n": (1, 4096)})
    place = cache.EntryPlace(store, cache.key_of(traced, options), traced, options.scope)
    found = uncached(chain, *SPECS, bounds={"n": (1, 4096)}, target="cpu")
    place.write(cache.CachedResult(found.variants, False))
    (entry,) = store.folder.iterdir()
    data = entry.read_bytes()

    def changed(data: bytes, choose: random.Random) -> bytes:
        made = _packed(data[len(_ENTRY) + 16 :], choose)
        return _ENTRY + checksum(made) + made

    class Here(Store):
        """A store whose one entry is the file at hand."""

        def _path(self, name: str) -> Path:
            return self.folder

    def read(path: Path) -> None:
        again = cache.EntryPlace(Here(path, 1 << 30), place.key, traced, options.scope).read()
        if again is None:
            raise ExtractionError("the entry is ignored")  # a search follows
        best = optimized_of(traced, options, again)
        print(best.report, best.module, file=io.StringIO())

    return Format("search-cache entry", data, changed, read)


def _report(folder: Path) -> Format:
    best = uncached(chain, *SPECS, bounds={"n": (1, 4096)})

    def read(path: Path) -> None:
        found = rx.types.CostReport.from_json(path)
        print(found, rx.compare(found, found), file=io.StringIO())
        found.to_html()
        found.to_json()

    return Format("report", best.report.to_json().encode(), of_json, read)


def _text(folder: Path) -> Format:
    def read(path: Path) -> None:
        module = rx.parse(path.read_bytes().decode("utf-8", "surrogateescape"))
        rx.parse(str(module))

    module = rx.trace(chain, *SPECS)
    assert "R.const" in str(module)
    return Format("module text", str(module).encode(), of_text, read)


def _written(folder: Path, name: str = "module text, by hand", text: str = BY_HAND) -> Format:
    def read(path: Path) -> None:
        str(rx.parse(path.read_bytes().decode("utf-8", "surrogateescape")))

    return Format(name, text.encode(), of_text, read)


def _program(folder: Path) -> Format:
    def read(path: Path) -> None:
        str(parse_program(path.read_bytes().decode("utf-8", "surrogateescape")))

    return Format("tensor program text", PROGRAM.encode(), of_text, read)


def _verdicts(folder: Path) -> Format:
    data = json.loads(BOOK_VERDICTS.read_text())
    some = dict(list(data["verdicts"].items())[:40])
    return Format("rule verdicts", json.dumps({**data, "verdicts": some}).encode(), of_json, read_verdicts)


def _egraph(folder: Path) -> Format:
    nodes: dict[str, Any] = {}
    for c in range(30):
        for k in range(2):
            below = [f"{d}.0" for d in range(max(0, c - 2 - k), c)]
            nodes[f"{c}.{k}"] = {"op": f"f{k}", "children": below, "eclass": str(c), "cost": 1.0 + k}
    data = {"nodes": nodes, "root_eclasses": ["29"], "class_data": {}}

    def read(path: Path) -> None:
        extract(egraph_of(read_json(path)), "ilp", seconds=1.0)

    return Format("e-graph of others", json.dumps(data).encode(), of_json, read)


def _choice(folder: Path) -> Format:
    data = json.loads(_egraph(folder).genuine)
    chosen = extract(egraph_of(data), "dag")[0].as_data()
    both = {"graph": data, "choice": chosen}

    def read(path: Path) -> None:
        found = read_json(path)
        egraph_of(found["graph"] if isinstance(found, dict) and "graph" in found else None)
        check_choice(found["graph"], found["choice"]) if isinstance(found.get("choice"), dict) else None

    return Format("choice", json.dumps(both).encode(), of_json, read)


NAMES: dict[str, Callable[[Path], Format]] = {
    "artifact": _artifact, "artifact with executables": _with_executables, "certificate": _certificate,
    "memory plan": _plan, "device profile": _profile,
    "search-cache entry": _entry, "report": _report, "module text": _text, "module text, by hand": _written,
    "artifact of instructions": _instructions,
    "module text, functions as values": lambda folder: _written(folder, "module text, functions as values", LANGUAGE),
    "tensor program text": _program, "rule verdicts": _verdicts, "e-graph of others": _egraph, "choice": _choice,
}  # fmt: skip
