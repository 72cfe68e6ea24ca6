"""Files of every format that is read, changed at random with their checksums redone, and read.

    python -m benchmarks.mutations --count 1000

Each file must be read, or refused by an error of this package, within 5 seconds and 1 GiB; nothing in it may be run,
imported, written or put into the environment. The table shows how many files of each format were read, were refused, or
had another outcome.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 5.0  # of computing that reading one file may take, whatever else the machine does
BYTES = 1 << 30  # that it may add to what the process has
_SILENT = 60.0  # seconds after which a worker that says nothing is stopped: C code that no signal interrupts
_BYTES_SHARE = 0.15  # of the mutations that change bytes, not data
_EDITS = 3  # of the data of one file, at most

_LONG, _DEEP, _LARGE = "@@long@@", "@@deep@@", "@@large@@"  # what `json.dumps` does not write
_SPELLED = {_LONG: "9" * 5000, _DEEP: "[" * 100_000 + "]" * 100_000, _LARGE: "9" * 90}

_NAMES = [f"a{i}" for i in range(300)]
ATTACKS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63 - 1, 2**63, -(2**63), 10**9, 10**30, 1e308, -0.0, 1.5, 1e-320,
    float("nan"), float("inf"), float("-inf"), _LONG, _DEEP, _LARGE, "", " ", "\0", "\ud800", "nan", "inf", "-1",
    "1e400", "all sizes", "numpy.f2py.__main__:X", "antigravity:fly", "os:system", "builtins:eval",
    "jax._src.lax.lax:Precision",
    "__import__('os').system('touch {sentinel}')", "{sentinel}", "../../../../etc/passwd", "xla_dump_to",
    "jax.io_callback", "jax.pure_callback", "jax.debug_callback", "jax.ffi_call", "jax.jit", "jax.while", "jax.sort",
    "ffi:xla_ffi_python_cpu_callback", "__class__", "__init__", "mro", "{0.__class__}", "%n%s", "x" * 100_000,
    "9" * 5000, "-" * 500 + "n", "(" * 300 + "n" + ")" * 300, "n*" * 3000 + "n", f"min({', '.join(_NAMES)})",
    f"({' + '.join(_NAMES[:60])})**4", " + ".join(_NAMES), " and ".join(f"{a} <= 7" for a in _NAMES * 17),
    "((n**16)**16)**16", "n % m", "n//0", "float32", "float99", "complex64", "key<fry>",
    "int4", "tuple", "list", "dict", "enum", "record",
    "data", "primitive", "sized", "thing", "foreign", "program", "scalar", "constant", "size", "callable", "var",
    [], {}, [[]], [{}], [0] * 1000, {"a": 1}, ["enum", "numpy.f2py.__main__:X", "a"], ["enum", "os:system", "a"],
    ["data", "jax._src.ffi:FfiEffect"], ["record", "subprocess:Popen", ["tuple", "touch", "{sentinel}"]],
    ["primitive", "io_callback"], ["primitive", "while"], ["primitive", "sort"], ["dtype", "O"], ["dtype", "V8"],
    {"xla_dump_to": "{sentinel}"}, {"xla_gpu_autotune_level": "9" * 100}, ["tuple", ["tuple"]], ["float", "nan"],
    ["constant", 0], ["annotation", 0], ["size", 0], ["foreign", 0], ["scalar", 0], [10**9], [1, 2, 3], "x[0]",
)  # fmt: skip


def edited(data: Any, choose: random.Random) -> Any:
    """A copy of plain data with a few changes anywhere in it."""
    data = json.loads(json.dumps(data))
    for _ in range(choose.randint(1, _EDITS)):
        places = list(_places(data))
        if not places:
            return choose.choice(ATTACKS)
        holder, key = choose.choice(places)
        value = holder[key]
        kind = choose.randrange(8)
        if kind == 0 or (kind == 1 and not isinstance(value, (int, float, str))):
            holder[key] = choose.choice(ATTACKS)
        elif kind == 1:
            holder[key] = _near(value, choose)
        elif kind == 2:
            del holder[key]
        elif kind == 3:  # what stands somewhere else
            other, at = choose.choice(places)
            holder[key] = json.loads(json.dumps(other[at])) if other is not holder else choose.choice(ATTACKS)
        elif kind == 4 and isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(value)))
        elif kind == 5 and isinstance(holder, dict):
            holder[str(choose.choice(ATTACKS))[:50]] = holder.pop(key)
        elif kind == 6:
            holder[key] = [value] * choose.choice((1, 2, 1000))
        else:
            alike = [(h, k) for h, k in places if type(h[k]) is type(value)]
            other, at = choose.choice(alike)
            copies = json.loads(json.dumps([other[at], value]))  # one may be inside of the other
            holder[key], other[at] = copies
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    agenda = [data]
    while agenda:
        holder = agenda.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for key, value in items:
            yield holder, key
            agenda.append(value)


def _near(value: Any, choose: random.Random) -> Any:
    if isinstance(value, str):
        return changed_text(value, choose) if value else "x"
    return choose.choice((value + 1, value - 1, -value, value * 2, str(value), float(value)))


_TOKEN = re.compile(r"\d+|\w+|[^\w\s]")


def changed_text(text: str, choose: random.Random) -> str:
    """A text with a few of its words and lines replaced, removed or doubled."""
    for _ in range(choose.randint(1, _EDITS)):
        words = list(_TOKEN.finditer(text))
        if not words:
            break
        at, other, kind = choose.choice(words), choose.choice(words), choose.randrange(6)
        if kind == 0:
            attack = choose.choice(ATTACKS)
            text = text[: at.start()] + (attack if isinstance(attack, str) else repr(attack)) + text[at.end() :]
        elif kind == 1:
            text = text[: at.start()] + other[0] + text[at.end() :]
        elif kind == 2:
            text = text[: at.start()] + text[at.end() :]
        else:
            lines = text.split("\n")
            i, j = choose.randrange(len(lines)), choose.randrange(len(lines))
            made = lines[:i] + lines[i + 1 :] if kind == 3 else [*lines[:i], lines[j], *lines[i:]]
            made = [*lines[:i], f"    ({lines[i].strip()}, {lines[i].strip()})", *lines[i:]] if kind == 4 else made
            text = "\n".join(made)
    return _spelled(text)


def changed_bytes(data: bytes, choose: random.Random) -> bytes:
    """Returns bytes with a few of them replaced, removed or doubled."""
    out = bytearray(data)
    for _ in range(choose.randint(1, 8)):
        at = choose.randrange(len(out) or 1)
        kind = choose.randrange(4)
        if kind < 2 and out:
            out[at] = choose.randrange(256)
        elif kind == 2:
            del out[at : at + choose.choice((1, 4, 1000))]
        else:
            out[at:at] = out[at : at + choose.choice((1, 16, 1000))]
    return bytes(out)


def _spelled(text: str) -> str:
    for token, long in _SPELLED.items():
        text = text.replace(f'"{token}"', long).replace(token, long)
    return text


def json_text(data: Any) -> str:
    return _spelled(json.dumps(data))


@dataclass(frozen=True)
class Format:
    """A format of files.

    - `name`: its name.
    - `genuine`: the bytes of a genuine file.
    - `changed(data, random)`: returns the bytes of a changed file.
    - `read(path)`: reads a file and looks at all of it.
    """

    name: str
    genuine: bytes
    changed: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path], Any]


def of_json(data: bytes, choose: random.Random, seal: Callable[[str], str] = lambda text: text) -> bytes:
    if choose.random() < _BYTES_SHARE:
        return changed_bytes(data, choose)
    return seal(json_text(edited(json.loads(data), choose))).encode("utf-8", "surrogatepass")


def of_text(data: bytes, choose: random.Random) -> bytes:
    if choose.random() < _BYTES_SHARE:
        return changed_bytes(data, choose)
    return changed_text(data.decode(), choose).encode("utf-8", "surrogatepass")


# --- the worker ---

_WRITING = re.compile(r"[wax+]")
_FORBIDDEN = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.putenv", "os.unsetenv",
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate", "shutil.",
    "socket.", "ctypes.dlopen", "pickle.find_class", "code.__new__", "urllib.Request",
)  # fmt: skip
# Code that our own modules make while they look at what was read: of numbered names, of a template.
_OWN_CODE = (
    "relax_eg/shapes/dispatch.py",
    "/jinja2/",
    "/dataclasses.py",
    "/typing.py",  # annotations of our classes
    "/collections/__init__.py",
    "<frozen importlib",
)


class Watch:
    """Records Python's audit events while a file is read."""

    def __init__(self, sentinel: str) -> None:
        self.on, self.seen, self.sentinel = False, list[str](), sentinel
        sys.addaudithook(self.hook)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = args
            writing = bool(mode and _WRITING.search(mode)) or bool(mode is None and flags & 0o3)
            is_sentinel = isinstance(path, str) and self.sentinel in path
            if is_sentinel or (writing and path != "/dev/null" and not _is_search()):
                self.seen.append(f"open {path!r} {mode}")
        elif event == "import" and args[0] not in sys.modules and not args[0].startswith("relax_eg."):
            self.seen.append(f"import {args[0]}")
        elif event == "exec":
            made_by = sys._getframe(1).f_code
            if not any(own in made_by.co_filename for own in _OWN_CODE):
                self.seen.append(f"exec in {made_by.co_filename}:{made_by.co_name}")
        elif event.startswith(_FORBIDDEN) and not _is_search():
            self.seen.append(f"{event} {args!r:.100}")


def _is_search() -> bool:
    """Whether the engine is at work, which dumps its e-graph into a folder of its own."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("relax_eg/egraph/engine.py"):
            return True
        frame = frame.f_back
    return False


class _TooLong(BaseException):
    pass


def _too_long(*_: Any) -> None:
    raise _TooLong


def work(names: list[str], start: int, count: int, seed: int) -> None:
    """Read mutations `start` to `count` of each format; one line of JSON for each."""
    import jax
    import numpy.f2py  # noqa: F401 -- so that an attack that names it gets as far as it would anywhere
    import scipy.special  # noqa: F401 -- a search imports it when a rule evaluates such a function
    import z3  # noqa: F401 -- ours imports it when a proof needs it

    from benchmarks.mutated_formats import formats

    jax.devices()  # JAX looks for devices when it is first used
    folder = Path(tempfile.mkdtemp(prefix="mutations"))
    sentinel = folder / "sentinel"
    watch = Watch(str(sentinel))
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _too_long)
    for made in formats(folder, names):
        path = folder / f"{made.name.replace(' ', '_')}.file"
        path.write_bytes(made.genuine)
        made.read(path)
        made.read(path)  # what is imported when it is needed is there now
        limit = _status("VmSize") + BYTES
        for i in range(start, count):
            choose = random.Random(f"{seed} {made.name} {i}")
            path.write_bytes(made.changed(made.genuine, choose).replace(b"{sentinel}", str(sentinel).encode()))
            print(json.dumps([made.name, i]), flush=True)
            resource.setrlimit(resource.RLIMIT_AS, (limit, -1))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            started, outcome = time.process_time(), "read"
            watch.seen, watch.on = [], True
            try:
                made.read(path)
            except _TooLong:
                outcome = "too long"
            except BaseException as error:
                outcome = _outcome(error)
            finally:
                watch.on = False
                signal.setitimer(signal.ITIMER_PROF, 0)
                resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
            if watch.seen:
                outcome = f"did {watch.seen[0]}"
            if sentinel.exists():
                outcome = "wrote a file"
                sentinel.unlink()
            print(json.dumps([made.name, i, outcome, time.process_time() - started]), flush=True)


def _outcome(error: BaseException) -> str:
    from relax_eg.errors import RelaxEgError

    if isinstance(error, RelaxEgError):
        return "refused"
    frame, where = error.__traceback__, ""
    while frame is not None:
        if "relax_eg" in frame.tb_frame.f_code.co_filename:
            where = f"{frame.tb_frame.f_code.co_filename.rpartition('relax_eg/')[2]}:{frame.tb_lineno}"
        frame = frame.tb_next
    return f"raised {type(error).__name__} at {where}: {str(error)[:100]}"


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


# --- the conductor ---


def run(names: list[str], count: int, seed: int) -> dict[str, Counter[str]]:
    """Returns the outcomes of the mutations of each format: "read", "refused", or another text."""
    found: dict[str, Counter[str]] = {}
    for group in [[n] for n in names] if count > 200 else [names]:
        start = 0
        while start < count:
            start = _worker(group, start, count, seed, found)
    return found


def _worker(names: list[str], start: int, count: int, seed: int, found: dict[str, Counter[str]]) -> int:
    """Runs a worker; returns the mutation to continue with, after one that ended the worker."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else "benchmarks.mutations", "--worker", *names]
    more = ["--start", str(start), "--count", str(count), "--seed", str(seed)]
    child = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True, bufsize=1)
    assert child.stdout is not None
    last: list[Any] = []
    while True:
        waiting = _SILENT + 120.0 * (not last)  # the genuine files are made first
        ready, _, _ = select.select([child.stdout], [], [], waiting)
        line = child.stdout.readline() if ready else ""
        if not line:
            break
        last = json.loads(line)
        if len(last) == 4:
            name, i, outcome, seconds = last
            row = found.setdefault(name, Counter())
            kind = outcome if outcome in ("read", "refused") else f"{outcome} (number {i})"
            row[kind] += 1
            row["slowest, ms"] = max(row["slowest, ms"], round(1e3 * seconds))
    child.kill()
    code = child.wait()
    if len(last) == 2:  # it ended while it read
        found.setdefault(last[0], Counter())[f"ended the process with {code} (number {last[1]})"] += 1
        return last[1] + 1
    if not last or code not in (0, -9):
        raise RuntimeError(f"the worker for {', '.join(names)} ended with {code} after {last}")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="mutations of each format")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one file of one format, to see that it runs")
    parser.add_argument("--worker", action="store_true", help="read them in this process")
    parser.add_argument("formats", nargs="*")
    options = parser.parse_args()
    from benchmarks.mutated_formats import NAMES

    names = options.formats or list(NAMES)
    if options.quick:
        names, options.count = names[-1:], 1
    if options.worker:
        work(names, options.start, options.count, options.seed)
        return
    found = run(names, options.count, options.seed)
    for name, row in found.items():
        read, refused, slowest = row.pop("read", 0), row.pop("refused", 0), row.pop("slowest, ms")
        print(f"{name:24} read {read:5}  refused {refused:5}  else {sum(row.values()):4}  slowest {slowest} ms")
        for kind, n in row.most_common():
            print(f"    {n} x {kind}")


if __name__ == "__main__":
    main()
