"""The rooms of src/octavo: who may import whom, what is public, and how long a file may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "octavo"

LEVELS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("server",),
    ("evaluation",),
    ("engine",),
    ("attention",),
    ("kernels", "reference"),
    ("pages",),
    ("recipe",),
    ("formats", "model"),
    ("errors",),
)
"""From the top down. A room imports rooms below it, never its neighbours and never those above."""

OUTSIDE: dict[str, tuple[str, ...]] = {
    "transformers": ("model/", "attention/hook.py", "evaluation/"),
    "tokenizers": ("model/",),
    "gguf": ("model/",),
    "triton": ("kernels/",),
    "cuda": ("kernels/",),
    "starlette": ("server/",),
    "uvicorn": ("server/",),
    "pydantic": ("server/",),
    "prometheus_client": ("server/",),
    "click": ("cli/",),
    "rich": ("cli/",),
}
"""Packages that only these places import."""

INTEGERS = (
    "engine/lock.py",
    "engine/requests.py",
    "engine/scheduler.py",
    "engine/sequence.py",
    "model/shape.py",
    "pages/allocator.py",
    "pages/ledger.py",
    "pages/prefix.py",
    "pages/sizing.py",
)
"""Files that never touch a tensor."""

PURE = ("model/shape.py", "formats/")
"""Of our own, these import errors and formats only."""

MOST_LINES = 250
LONGER: dict[str, str] = {
    "engine/engine.py": "the public face: one class, half of it docstrings and signatures",
}
"""Files that may be longer, and why."""

FILES = sorted(p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py"))
KERNELS = sorted(p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.cu*"))


@cache
def imports(file: str) -> frozenset[str]:
    """Absolute names of all that `file` imports, wherever in it; what is for type checkers does not count."""
    tree = ast.parse((SOURCE / file).read_text())
    unused = {id(n) for node in ast.walk(tree) if is_typing(node) for n in ast.walk(node)}
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in unused:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno} imports relatively"
            assert node.module is not None
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def room(name: str) -> str:
    """The room of a file ("engine/core.py", "recipe.py") or of a module ("octavo.engine.core")."""
    parts = (
        name.removesuffix(".py").split("/") if "/" in name or name.endswith(".py") else name.split(".")[1:]
    )
    return parts[0] if parts else ""


def level(name: str) -> int:
    for n, rooms in enumerate(LEVELS):
        if name in rooms:
            return n
    raise AssertionError(f"room {name!r} has no place in the order; add it to LEVELS where it belongs")


def allowed(importer: str, imported: str) -> bool:
    return importer == imported or level(importer) < level(imported)


@pytest.mark.parametrize("file", [f for f in FILES if f != "__init__.py"])
def test_rooms_import_downwards(file: str) -> None:
    public = {"octavo"} | {f"octavo.{name}" for name in import_module("octavo").__all__}
    for name in imports(file):
        if name.split(".")[0] != "octavo":
            continue
        if name in public:  # the public names stand for the engine, above which only applications are
            assert level(room(file)) < level("engine"), f"{file} imports {name} from the top"
        else:
            assert allowed(room(file), room(name)), f"{file} imports {name}, which is not below it"


@pytest.mark.parametrize("file", FILES)
def test_packages_stay_in_their_rooms(file: str) -> None:
    for name in imports(file):
        places = OUTSIDE.get(name.split(".")[0])
        assert places is None or file.startswith(places), f"{file} imports {name}; only {places} may"


@pytest.mark.parametrize("file", INTEGERS)
def test_integers_only(file: str) -> None:
    assert not {name for name in imports(file) if name.split(".")[0] in ("torch", "transformers")}


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith(PURE)])
def test_pure_files(file: str) -> None:
    own = {room(name) for name in imports(file) if name.startswith("octavo.")}
    assert own <= {"errors", "formats"}, f"{file} imports {own}"


@pytest.mark.parametrize("file", [f for f in FILES if not f.endswith("__main__.py")])
def test_all_is_true(file: str) -> None:
    """Every name of __all__ exists, and whatever other rooms take from this file is in it."""
    tree = ast.parse((SOURCE / file).read_text())
    listed = next(
        (names(node.value) for node in tree.body if isinstance(node, ast.Assign) and is_all(node)), None
    )
    taken = used_elsewhere(file)
    if listed is None:
        assert not taken, f"{file} has no __all__, but other rooms take {sorted(taken)}"
        return
    assert len(set(listed)) == len(listed)
    defined = {name for node in ast.walk(tree) for name in defines(node)}
    lazy = "__getattr__" in defined
    assert lazy or set(listed) <= defined, f"not in {file}: {set(listed) - defined}"
    left_out = sorted(taken - set(listed))
    assert not left_out, f"{file}: other rooms take {left_out}, which __all__ leaves out"


def is_all(node: ast.Assign) -> bool:
    return any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def names(node: ast.expr) -> list[str]:
    return list(ast.literal_eval(node))


def defines(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()):
            return [name]
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return [(alias.asname or alias.name) for alias in aliases]
    return []


def module_of(file: str) -> str:
    return ".".join(("octavo", *file.removesuffix(".py").removesuffix("/__init__").split("/")))


def used_elsewhere(file: str) -> set[str]:
    """Names that files of other rooms import from this module."""
    module = module_of(file)
    taken = set()
    for other in FILES:
        if room(other) != room(file):
            for name in imports(other):
                head, _, tail = name.rpartition(".")
                if head == module and not (SOURCE / file).with_name(f"{tail}.py").exists():
                    taken.add(tail)
    return taken


def test_the_public_names_exist() -> None:
    octavo = import_module("octavo")
    assert sorted(octavo.__all__) == list(octavo.__all__)
    for name in octavo.__all__:
        assert getattr(octavo, name).__name__ == name
    assert set(octavo.__all__) <= set(dir(octavo))


@pytest.mark.parametrize("file", FILES + KERNELS)
def test_files_are_short(file: str) -> None:
    lines = len((SOURCE / file).read_text().splitlines())
    if file in LONGER:
        assert lines > MOST_LINES, f"{file} has {lines} lines; it needs no exception any more"
    else:
        assert lines <= MOST_LINES, f"{file} has {lines} lines"


def test_the_error_tree_in_the_docstring_is_the_tree() -> None:
    errors = import_module("octavo.errors")
    for name in errors.__all__:
        kind = getattr(errors, name)
        if isinstance(kind, type):
            assert issubclass(kind, errors.OctavoError)
            assert name in str(errors.__doc__), f"{name} is missing in the tree"


def test_importing_octavo_is_light() -> None:
    """`octavo --help` needs neither torch nor transformers."""
    code = "import sys, octavo; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
