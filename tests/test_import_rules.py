"""The import rules of docs/structure.md, checked on the syntax trees; and what else a look at every file can decide."""

import ast
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = ("serve_app", "engine", "kernels")
FIRST_PARTY = (*SHIPPED, "bench", "tests")
MAX_LINES = 350

# package -> prefixes of first-party modules that it may import
ARROWS = {
    "kernels": ("kernels",),
    "engine": ("engine", "kernels"),
    "serve_app": ("serve_app", "engine.api"),
    "bench": ("bench", "serve_app", "engine", "kernels"),
}
ONLY_SERVE_APP = ("ray", "starlette")
BANNED = ("vllm",)
TORCH_FREE = (
    "engine.api",
    "engine.scheduling",
    "engine.kv_cache",
    "engine.text",
    "engine.simulation",
    "serve_app.routing",
    "serve_app.scaling",
    "serve_app.router",
    "serve_app.autoscaling",
    "serve_app.config",
    "serve_app.deploy_file",
    "serve_app.placement",
    "serve_app.__main__",
    "serve_app.launcher",
)
TORCH_ALLOWED = ("engine.kv_cache.tensors",)
ENVIRONMENT_READERS = ("engine.config", "serve_app.config", "kernels.aot.config")


def files(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules that `path` imports, with whether it does so when it is imported itself."""
    deferred = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_checking(node)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree(path)):
        at_import = id(node) not in deferred
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import in line {node.lineno}"
            assert node.module is not None
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if is_module(full) else node.module), at_import


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return name.split(".")[0] in FIRST_PARTY and (path.with_suffix(".py").exists() or (path / "__init__.py").exists())


def under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def test_first_party_imports_follow_the_arrows():
    wrong = [
        f"{module_name(path)} imports {name}"
        for package, allowed in ARROWS.items()
        for path in files(package)
        for name, _ in imports(path)
        if under(name, FIRST_PARTY) and not under(name, allowed)
    ]
    assert wrong == []


def test_ray_and_starlette_stay_in_serve_app():
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in files("engine", "kernels", "bench")
        for name, _ in imports(path)
        if under(name, ONLY_SERVE_APP)
    ]
    assert wrong == []


def test_banned_packages_are_nowhere():
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in files(*FIRST_PARTY)
        for name, _ in imports(path)
        if under(name, BANNED)
    ]
    assert wrong == []


def test_no_import_cycles():
    """Over imports that run when a module is imported; a package counts as its __init__."""
    graph = {
        module_name(path): {name for name, at_import in imports(path) if at_import and is_module(name)}
        for path in files(*SHIPPED, "bench")
    }
    done: set[str] = set()

    def visit(name: str, chain: tuple[str, ...]) -> None:
        assert name not in chain, " → ".join((*chain[chain.index(name) :], name))
        if name in done:
            return
        for target in sorted(graph.get(name, ())):
            if target != name:
                visit(target, (*chain, name))
        done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_torch_free_modules_load_no_torch():
    """In a process of its own, for what they import in turn counts too."""
    modules = [
        name
        for name in map(module_name, files(*SHIPPED))
        if under(name, TORCH_FREE) and not under(name, TORCH_ALLOWED)
    ]
    assert {"engine.api", "serve_app.config"} <= set(modules)
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(f'{name} imports torch')\n"
    )
    result = subprocess.run([sys.executable, "-c", program, *modules], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_launcher_loads_no_ray():
    """The launcher lives as long as the server: its process stays small."""
    program = "import sys, serve_app.__main__; print({'ray', 'torch', 'transformers'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout == "set()\n", result.stderr


def test_environment_is_read_in_config_modules_only():
    wrong = [
        f"{module_name(path)}:{node.lineno}"
        for path in files(*SHIPPED)
        if not under(module_name(path), ENVIRONMENT_READERS)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb")
    ]
    assert wrong == []


def test_files_stay_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files(*FIRST_PARTY)}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_only_three_packages_ship():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["packages"]["find"]["include"] == [f"{name}*" for name in SHIPPED]


def test_version_stays_out_of_the_range_that_transformers_probes_for():
    """transformers takes a distribution `kernels` of versions 0.18.2 to 0.19 for Hugging Face's."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    major, minor, patch = map(int, version.split("."))
    assert not (0, 18, 2) <= (major, minor, patch) < (0, 20, 0)


def test_transformers_imports_beside_our_kernels():
    kernels = importlib.import_module("kernels")
    transformers = pytest.importorskip("transformers")
    from transformers.utils import import_utils

    assert Path(kernels.__file__ or "").parent == ROOT / "kernels"
    assert transformers.AutoConfig
    assert not import_utils.is_kernels_available()
