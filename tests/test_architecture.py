"""The house rules that a tool can check: imports, lengths, packaging, what a start costs."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from anabranch.ir.ops import REDUCTIONS
from anabranch.ir.scalar import PRIMITIVES

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("frontend", "ir", "lowering", "codegen", "runtime")
PRODUCT = ("anabranch", *LAYERS, "benchmarks")
SOURCES = {".py", ".lark", ".ab", ".c", ".h"}

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_COLD_IMPORT_SECONDS = 0.3

# Function-local imports hide a dependency. These are so slow to import that hiding them pays.
IMPORTED_WHEN_NEEDED = {"torch", "triton", "sympy", "highspy"}

# path:function -> why it may be longer than the others.
LONG_FUNCTIONS: dict[str, str] = {}


# Words that are an operator of the library and, in the layers, something else.
HOMONYMS = {
    "uniform": "a kind of random draw",
    "normal": "a kind of random draw",
    "square": "x*x in the text of a C kernel",
    "maximum": "what Triton calls max",
    "minimum": "what Triton calls min",
}


def files(*folders: str) -> Iterator[Path]:
    """Our files below the folders, each once: the links inside anabranch/ are not followed."""
    for folder in folders:
        for parent, _, names in os.walk(ROOT / folder, followlinks=False):
            yield from (Path(parent, name) for name in sorted(names))


def python_files(*folders: str) -> list[Path]:
    return [path for path in files(*folders) if path.suffix == ".py"]


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every function of a module with its dotted name."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{getattr(node, 'name', '')}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node
        inner = f"{name}." if hasattr(node, "name") else prefix
        yield from functions(node, inner)


def imported_roots(node: ast.AST) -> set[str]:
    """The top-level packages that the import statements under a node name."""
    roots = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in child.names}
        elif isinstance(child, ast.ImportFrom):
            roots.add("." * child.level + (child.module or "").split(".")[0])
    return roots


def test_no_file_is_longer_than_can_be_read_in_one_sitting() -> None:
    lengths = {
        short(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in files(*PRODUCT, "tests")
        if path.suffix in SOURCES
    }
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_a_screen_without_a_reason() -> None:
    long = {
        f"{short(path)}:{name}"
        for path in python_files(*PRODUCT, "tests")
        for name, node in functions(ast.parse(path.read_text(encoding="utf-8")))
        if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == set(LONG_FUNCTIONS)


def test_imports_stand_at_the_top_unless_they_are_dear() -> None:
    """The command line imports a subcommand only when it is asked for, so it is free to."""
    hidden = {
        f"{short(path)}:{name}": imported_roots(node) - IMPORTED_WHEN_NEEDED
        for path in python_files(*PRODUCT)
        if not short(path).startswith("anabranch/cli/")
        for name, node in functions(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert {place: roots for place, roots in hidden.items() if roots} == {}


def test_import_contracts_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(cache_dir=str(tmp_path), no_logo=True) == 0


def test_the_plan_schema_needs_nothing_but_the_standard_library() -> None:
    """A rank loads a saved plan without the compiler, so the schema drags nothing along."""
    plan = ast.parse((ROOT / "ir" / "plan.py").read_text(encoding="utf-8"))
    assert imported_roots(plan) <= sys.stdlib_module_names


def test_no_layer_knows_an_operator_of_the_library_by_name() -> None:
    """What a pass must know of an operator it derives from its definition. Primitives of scalar
    arithmetic and the reductions are the notation itself, so they have meanings of their own."""
    library = list((ROOT / "frontend" / "std").glob("*.ab"))
    if not library:
        pytest.skip("the library is not here yet")
    defined = {
        name
        for path in library
        for name in re.findall(r"^op (\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    operators = defined - set(PRIMITIVES) - set(REDUCTIONS) - set(HOMONYMS)
    named = {
        f"{short(path)}: {node.value}"
        for path in python_files("ir", "lowering", "codegen", "runtime")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in operators
    }
    assert len(operators) > 20
    assert named == set()


def test_a_rank_starts_fast_and_without_the_compiler() -> None:
    """The CPU time of importing every module of the runtime, best of five."""
    probe = (
        "import json, pkgutil, sys, time\n"
        "start = time.process_time()\n"
        "import anabranch.runtime as runtime\n"
        "for module in pkgutil.walk_packages(runtime.__path__, 'anabranch.runtime.'):\n"
        "    __import__(module.name)\n"
        "print(json.dumps([time.process_time() - start, sorted(sys.modules)]))\n"
    )
    runs = [json.loads(run_python("-c", probe)) for _ in range(5)]
    loaded = set(runs[0][1])
    assert loaded & {"torch", "triton", "sympy", "lark", "highspy"} == set()
    compiler = {name for name in loaded if name.startswith("anabranch.ir.")}
    assert compiler <= {"anabranch.ir.plan"}
    assert min(seconds for seconds, _ in runs) <= MAX_COLD_IMPORT_SECONDS


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_says_what_it_holds(layer: str) -> None:
    readme = ROOT / layer / "README.md"
    if not any(path.stem != "__init__" for path in python_files(layer)):
        pytest.skip(f"{layer} is not here yet")
    assert len(readme.read_text(encoding="utf-8").split()) > 40


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_one_name(layer: str) -> None:
    """`import ir` beside `import anabranch.ir` would make a second copy of every class."""
    result = subprocess.run(
        [sys.executable, "-c", f"import {layer}"], cwd=ROOT, capture_output=True, text=True
    )
    assert f"import anabranch.{layer}, not {layer}" in result.stderr


def test_the_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    """A grammar or a library file that no pattern of pyproject.toml matches would go missing."""
    tree = tmp_path / "tree with a space"
    tree.mkdir()
    layers = " ".join(LAYERS)
    subprocess.run(
        f"tar -c --exclude=__pycache__ pyproject.toml README.md LICENSE anabranch {layers}"
        f" | tar -x -C '{tree}'",
        shell=True,
        check=True,
        cwd=ROOT,
    )
    run_python(
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(tree),
    )
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    ours = {short(path) for path in files(*LAYERS) if "__pycache__" not in path.parts}
    assert {f"anabranch/{name}" for name in ours} - inside == set()


def test_every_dependency_is_pinned_in_the_constraints() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {line.split("==")[0].lower() for line in pins.splitlines() if "==" in line}
    assert {requirement.split(">=")[0].lower() for requirement in asked} - pinned == set()


def run_python(*arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
