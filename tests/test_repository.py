"""What must hold for the repository as a whole: packaging, import borders, sizes."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
SHIPPED_FOLDERS = ("actors", "coordinator", "kernels")
SOURCE_SUFFIXES = (".py", ".cu", ".h")
LINES_PER_FILE_MAX = 450
LINES_OF_README_MAX = 200

# Decisions are pure: whoever hosts them passes in time and chance and does all that waits.
IMPURE = {"asyncio", "threading", "socket", "sqlite3", "subprocess", "time", "random"}
THIRD_PARTY_OF_FOLDER = {
    "coordinator": {"numpy", "msgpack", "cbor2", "xxhash"},
    "kernels": {"numpy"},
}
THIRD_PARTY_OF_FILE = {"coordinator/config.py": {"pydantic"}}
DISTRIBUTION_OF_MODULE = {"cupy": "cupy-cuda12x", "yaml": "pyyaml"}


def _sources(folder: str, *suffixes: str) -> list[Path]:
    """Files of a folder, relative to the repository, that end in one of the suffixes."""
    found = (REPOSITORY / folder).rglob("*")
    return sorted(path.relative_to(REPOSITORY) for path in found if path.suffix in suffixes and path.is_file())


SHIPPED_MODULES = [path for folder in SHIPPED_FOLDERS for path in _sources(folder, ".py")]


def _shipped_place(path: Path) -> str:
    """Where a source file lies inside the installed package."""
    folders = PYPROJECT["tool"]["setuptools"]["package-dir"]
    package, folder = max(folders.items(), key=lambda item: path.is_relative_to(item[1]) and len(item[1]))
    return (Path(package.replace(".", "/")) / path.relative_to(folder)).as_posix()


def _imports(path: Path) -> Iterator[str]:
    """Full names of all modules that a file imports, also inside functions and for types only."""
    for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = _shipped_place(path).split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *(node.module or "").split(".")]).rstrip(".")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _third_party(path: Path) -> set[str]:
    """Top-level names of imported modules that are neither ours nor of the standard library."""
    return {name.partition(".")[0] for name in _imports(path)} - sys.stdlib_module_names - {"kvtroupe"}


def _modules_loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after a statement."""
    code = f"import sys, json; {statement}; print(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


def test_every_folder_of_python_files_is_a_listed_package() -> None:
    """A sub-package that is not listed works from a checkout and is missing in every installation."""
    listed = PYPROJECT["tool"]["setuptools"]["packages"]

    places = {_shipped_place(path).rpartition("/")[0].replace("/", ".") for path in SHIPPED_MODULES}

    assert places == set(listed)


def test_a_built_wheel_holds_every_source_file_and_type_marker(tmp_path: Path) -> None:
    """What is installed from a wheel is what lies in the checkout, types included."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for folder in SHIPPED_FOLDERS:
        shutil.copytree(REPOSITORY / folder, checkout / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, checkout)
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", f"--wheel-dir={tmp_path}"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(checkout)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("kvtroupe-*.whl")

    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())

    sources = {_shipped_place(path) for folder in SHIPPED_FOLDERS for path in _sources(folder, *SOURCE_SUFFIXES)}
    assert {name for name in held if name.endswith(SOURCE_SUFFIXES)} == sources
    assert {f"{name}/py.typed" for name in ("kvtroupe", *(f"kvtroupe/{folder}" for folder in SHIPPED_FOLDERS))} <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)


@pytest.mark.parametrize("folder", ["coordinator", "kernels"])
def test_a_pure_folder_imports_nothing_of_ours_but_itself(folder: str) -> None:
    """Decisions and bytes know neither each other nor their hosts."""
    for path in _sources(folder, ".py"):
        ours = [name for name in _imports(path) if name.partition(".")[0] in {"kvtroupe", *SHIPPED_FOLDERS, "tests"}]

        assert all(f"{name}.".startswith(f"kvtroupe.{folder}.") for name in ours), path


@pytest.mark.parametrize("folder", ["coordinator", "kernels"])
def test_a_pure_folder_uses_only_the_libraries_it_may(folder: str) -> None:
    """Other libraries belong to the hosts, behind the folder's border."""
    for path in _sources(folder, ".py"):
        allowed = THIRD_PARTY_OF_FOLDER[folder] | THIRD_PARTY_OF_FILE.get(path.as_posix(), set())

        assert _third_party(path) <= allowed, path


def test_the_coordinator_neither_waits_nor_reads_clocks_nor_draws_numbers() -> None:
    """Every decision can be repeated exactly, because what it depends on is passed in."""
    for path in _sources("coordinator", ".py"):
        assert not {name.partition(".")[0] for name in _imports(path)} & IMPURE, path


def test_our_folders_are_imported_only_under_the_package_name() -> None:
    """A bare `import kernels` works in the checkout only, and means another project's package elsewhere."""
    for folder in (*SHIPPED_FOLDERS, "benchmarks", "tests"):
        for path in _sources(folder, ".py"):
            assert not {name.partition(".")[0] for name in _imports(path)} & set(SHIPPED_FOLDERS), path


def test_every_library_in_use_is_a_declared_dependency() -> None:
    """An import that is not declared works only where something else happens to install it."""
    project = PYPROJECT["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    declared = {re.split(r"[<>=!~;\[ ]", name)[0].lower() for name in wanted}

    for path in SHIPPED_MODULES:
        used = {DISTRIBUTION_OF_MODULE.get(module, module) for module in _third_party(path)}

        assert used <= declared, path


def test_importing_the_package_and_its_decisions_loads_no_heavy_library() -> None:
    """Most processes of a cluster never need torch, CuPy or Ray, which take seconds and hundreds of megabytes."""
    modules = [_shipped_place(path) for path in _sources("coordinator", ".py")]
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in modules]

    loaded = _modules_loaded_by(f"import kvtroupe, {', '.join(names)}")

    assert {"kvtroupe", "numpy"} <= loaded
    assert not {"torch", "cupy", "ray"} & loaded


def test_the_command_line_loads_no_heavy_library() -> None:
    """A command answers at once: only those that need a library load it, and only then."""
    loaded = _modules_loaded_by("import kvtroupe.actors.cli.main")

    assert not {"torch", "cupy", "ray"} & loaded


@pytest.mark.parametrize("folder", [*SHIPPED_FOLDERS, "tests", "benchmarks"])
def test_no_source_file_is_longer_than_one_subject_needs(folder: str) -> None:
    """A file that outgrows the limit has two subjects."""
    lengths = {
        path.as_posix(): len((REPOSITORY / path).read_text().splitlines()) for path in _sources(folder, ".py", ".cu")
    }

    assert lengths
    assert {name: length for name, length in lengths.items() if length > LINES_PER_FILE_MAX} == {}


def test_there_is_no_conftest_at_the_root() -> None:
    """It would put the checkout on the import path, where bare `kernels` shadows another project's package."""
    assert not (REPOSITORY / "conftest.py").exists()


def test_the_readme_is_short_and_names_the_two_commands() -> None:
    """A newcomer finds what to run without scrolling far."""
    readme = (REPOSITORY / "README.md").read_text()

    assert len(readme.splitlines()) <= LINES_OF_README_MAX
    assert "make demo" in readme
    assert "make test" in readme


def test_every_pinned_version_satisfies_what_the_package_asks_for() -> None:
    """The constraints pin each dependency once, and none below the version that the package declares."""
    lines = [line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    project = PYPROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]

    assert len(pins) == len(lines)
    for requirement in wanted:
        name, minimum = requirement.split(">=")
        pinned = [int(part) for part in pins[name].split(".")]
        assert pinned >= [int(part) for part in minimum.split(".")], requirement
