"""Every command that the documentation shows is run, so that none of them can go stale.

A fenced block of the kind `console` holds commands after `$ `; a backslash continues a command on the next line, and
all other lines are output, which is not compared. A comment `<!-- not run: reason -->` above a block leaves it out.

A block of the kind `python` is a program of its own, or all blocks of a page are one, where it has the comment
`<!-- one program -->`. What a program prints is what the comments behind its prints say.

What a page about the code has in backticks is there, under this name.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("examples/**/*.md")])
COMMAND_TIMEOUT_S = 300
INSTALLED = (".venv/bin/kvtroupe", ".venv/bin/python")
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+?) -->\n+)?^```console\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)

PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ONE_PROGRAM = "<!-- one program -->"
PRINTED = re.compile(r"^\s*print\(.*\)  # (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page; `reason` says why it is not run, if it is not."""

    page: str
    line: int
    text: str
    reason: str | None


def _commands(page: Path) -> list[Command]:
    text = page.read_text()
    found = []
    for block in BLOCK.finditer(text):
        body = block["body"].replace("\\\n", "\0\n")
        first_line = text.count("\n", 0, block.start("body")) + 1
        for shown in re.finditer(r"^\$ ((?:.*\0\n)*.*)$", body, re.MULTILINE):
            line = first_line + body.count("\n", 0, shown.start())
            found.append(Command(page.name, line, shown[1].replace("\0\n", " "), block["reason"]))
    return found


def _programs(page: Path) -> list[str]:
    text = page.read_text()
    blocks: list[str] = PYTHON_BLOCK.findall(text)
    return ["".join(blocks)] if ONE_PROGRAM in text else blocks


ALL_COMMANDS = [command for page in PAGES for command in _commands(page)]
ALL_PROGRAMS = [(page.name, program) for page in PAGES for program in _programs(page)]


def _run(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    # A make that runs the tests must not tell the make that is tested how to run.
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}}
    return subprocess.run(
        arguments, cwd=cwd, env=environment, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )


def _checkout_view(folder: Path) -> Path:
    """A folder that looks like the checkout, in which commands may leave files behind."""
    for entry in REPOSITORY.iterdir():
        if not entry.name.startswith("."):
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=lambda command: f"{command.page}:{command.line}")
def test_a_documented_command_works(command: Command, tmp_path: Path) -> None:
    """A command of the documentation exits with 0; of a make command, all targets exist."""
    if command.reason is not None:
        pytest.skip(command.reason)
    program, *arguments = shlex.split(command.text)
    if program == "make":
        done = _run(["make", "--dry-run", *arguments], REPOSITORY)
    elif program in INSTALLED:
        done = _run([str(Path(sys.executable).parent / Path(program).name), *arguments], _checkout_view(tmp_path))
    else:
        pytest.fail(f"{command.text!r}: only make, {' and '.join(INSTALLED)} are run; mark the block as not run")

    assert done.returncode == 0, f"{command.text}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(("page", "program"), ALL_PROGRAMS, ids=[page for page, _ in ALL_PROGRAMS])
def test_a_documented_program_prints_what_it_says(page: str, program: str, tmp_path: Path) -> None:
    """A program of the documentation runs, and its prints give what the comments behind them announce."""
    done = _run([sys.executable, "-c", program], tmp_path)

    assert done.returncode == 0, f"{page}\n{done.stderr}"
    assert done.stdout.splitlines() == PRINTED.findall(program)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_of_the_repository_lead_somewhere(page: Path) -> None:
    """A relative link names a file or folder that exists, seen from the page."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)", page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []


def _anchors(page: Path) -> set[str]:
    """What headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_pages_lead_to_a_heading(page: Path) -> None:
    """A relative link with an anchor names a heading of the page that it leads to."""
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text())

    missing = [f"{to}#{at}" for to, at in links if at not in _anchors(page.parent / to if to else page)]
    assert missing == []


def _names_of_the_code() -> set[str]:
    """Files of the coordinator, and what they define: names, and with the name of their class or file before them."""
    names: set[str] = set()
    for path in (REPOSITORY / "coordinator").glob("*.py"):
        names.add(path.name)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                names |= {node.name, f"{path.stem}.{node.name}"}
            elif isinstance(node, ast.ClassDef):
                members = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
                members += [
                    one.target.id
                    for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                ]
                names |= {node.name, *members, *[f"{node.name}.{member}" for member in members]}
    return names


def test_the_life_of_a_request_names_what_there_is() -> None:
    """Every file, class, function and field that the page has in backticks is in the code."""
    text = PYTHON_BLOCK.sub("", (REPOSITORY / "docs" / "life-of-a-request.md").read_text())
    named = set(re.findall(r"`([^`]+)`", text))

    assert len(named) > 80
    assert named - _names_of_the_code() == set()


def test_the_readme_shows_commands_that_are_run() -> None:
    """The blocks of the README are found, so that the test above has something to test."""
    run = [command.text for command in ALL_COMMANDS if command.page == "README.md" and command.reason is None]

    assert "make demo" in run
    assert "make test" in run
    assert any("kvtroupe replay" in text for text in run)
    assert any(page == "README.md" and PRINTED.search(program) for page, program in ALL_PROGRAMS)


def test_programs_are_found_one_by_one_or_as_one(tmp_path: Path) -> None:
    """Two blocks are two programs, unless the page says that they are one."""
    page = tmp_path / "page.md"
    blocks = "```python\na = 1\n```\n\nText.\n\n```python\nprint(a)  # 1\n```\n"

    page.write_text(f"# A\n\n{blocks}")
    assert _programs(page) == ["a = 1\n", "print(a)  # 1\n"]
    page.write_text(f"# A\n\n<!-- one program -->\n\n{blocks}")
    assert _programs(page) == ["a = 1\nprint(a)  # 1\n"]


def test_commands_are_found_with_their_continuations_lines_and_reasons(tmp_path: Path) -> None:
    """Output is no command, a backslash joins lines, and a comment above a block gives the reason to leave it out."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n```console\n$ one \\\n    --two\noutput\n$ three\n```\n\n"
        "<!-- not run: slow -->\n```console\n$ four\n```\n"
    )

    assert _commands(page) == [
        Command("page.md", 4, "one      --two", None),
        Command("page.md", 7, "three", None),
        Command("page.md", 12, "four", "slow"),
    ]
