"""Style as a test: who may import whom, which names and calls are out, and where exceptions live.

Each check takes one parsed file and yields findings. The first test runs them over the project;
the others give each check sources that it must refuse, and ones that it must leave alone.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Imports go down this list, never up.
LAYERS = (
    "api",
    "catalyst",
    "plan",
    "runtime",
    "stages",
    "operators",
    "kernels",
    "expressions",
    "connectors",
    "state",
    "log",
)
FOR_EVERYONE = frozenset(
    {"arguments", "arrays", "errors", "config", "clock", "json_codec", "loops", "names", "options"}
)
OUTSIDE = frozenset({"testing", "sim", "bench", "cli"})  # no layer imports them
ENTRIES = frozenset({"__init__", "__main__"})  # the package's own two files, outside as well

WALL_CLOCK_ALLOWED = ("penstock/clock.py", "penstock/bench/", "penstock/cli/", "tools/")
ENVIRONMENT_ALLOWED = ("penstock/bench/", "penstock/cli/", "tools/")
# (file, call) that may rebuild objects or run text; each pair needs its reason beside it.
UNSAFE_ALLOWED: frozenset[tuple[str, str]] = frozenset(
    {
        # Functions that this very driver has pickled a moment before, to tell them apart.
        ("penstock/catalyst/function_digest.py", "pickle.Unpickler"),
    }
)

NAME_WORDS_BANNED = frozenset(
    {
        "abstract",
        "base",
        "common",
        "helper",
        "helpers",
        "impl",
        "manager",
        "misc",
        "util",
        "utils",
    }
)
WALL_CLOCK = frozenset(
    {
        "time.time",
        "time.time_ns",
        "time.localtime",
        "time.gmtime",
        "time.ctime",
        "time.clock_gettime",
        "time.clock_gettime_ns",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "datetime.date.today",
        "pandas.Timestamp.now",
        "pandas.Timestamp.today",
        "pandas.Timestamp.utcnow",
    }
)
ENVIRONMENT = frozenset({"os.environ", "os.environb", "os.getenv", "os.getenvb"})
UNSAFE = frozenset(
    {
        "eval",
        "exec",
        "compile",
        "__import__",
        "builtins.eval",
        "builtins.exec",
        "builtins.compile",
        "pickle.load",
        "pickle.loads",
        "pickle.Unpickler",
        "_pickle.load",
        "_pickle.loads",
        "cloudpickle.load",
        "cloudpickle.loads",
        "pyspark.cloudpickle.load",
        "pyspark.cloudpickle.loads",
        "dill.load",
        "dill.loads",
        "joblib.load",
        "pandas.read_pickle",
        "yaml.load",
        "yaml.unsafe_load",
        "yaml.full_load",
        "os.system",
        "os.popen",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
    }
)
UNSAFE_MODULES = frozenset({"marshal", "shelve"})
UNSAFE_KEYWORDS = frozenset({"shell", "allow_pickle"})

# Paths of one machine; put together here so that this file does not hold them itself.
MACHINE_PATHS = tuple(f"/{folder}/" for folder in ("work", "root"))
SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules"})
SHOWN_FOLDERS = frozenset({".ci", ".github"})  # other folders with a dot are not the project's text


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root, with '/', and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree; walking it costs more than what the checks do with it."""
        return tuple(ast.walk(self.tree))

    @property
    def module(self) -> tuple[str, ...]:
        """The parts of the module's dotted name, `__init__` and `__main__` included."""
        return tuple(self.path.removesuffix(".py").split("/"))

    @property
    def place(self) -> str:
        """The folder or file directly below `penstock` that this source belongs to."""
        return self.module[1]

    @property
    def in_package(self) -> bool:
        return self.module[0] == "penstock"

    def is_in(self, places: tuple[str, ...]) -> bool:
        return self.path.startswith(places)

    @cached_property
    def aliases(self) -> list[tuple[int, ast.alias, str]]:
        """(line, alias, dotted name) of every import, wherever it stands in the file."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(node.lineno, alias, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(node)
                found += [(node.lineno, alias, f"{origin}.{alias.name}") for alias in node.names]
        return found

    @property
    def imports(self) -> list[tuple[int, str]]:
        """(line, dotted name) of every import."""
        return [(line, dotted) for line, _, dotted in self.aliases]

    @property
    def bindings(self) -> dict[str, str]:
        """What the names that imports bind stand for; `import a.b` binds `a` to `a`."""
        return {
            alias.asname or alias.name: dotted
            for _, alias, dotted in self.aliases
            if alias.asname or "." not in alias.name
        }

    def _origin(self, node: ast.ImportFrom) -> str:
        above = self.module[: -node.level] if node.level else ()
        return ".".join([*above, *([node.module] if node.module else [])])

    @cached_property
    def uses(self) -> list[tuple[int, str]]:
        """(line, dotted name) of everything that is mentioned, seen through imports and aliases."""
        names = self.bindings
        found = self.imports
        for node in self.nodes:
            if isinstance(node, ast.Attribute | ast.Name) and (dotted := dotted_name(node)):
                first, dot, rest = dotted.partition(".")
                found.append((node.lineno, names.get(first, first) + dot + rest))
        return found


def dotted_name(node: ast.expr) -> str | None:
    """Return `a.b.c` for the expression a.b.c, None for anything that is not so plain."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := dotted_name(node.value)):
        return f"{owner}.{node.attr}"
    return None


Finding = str
Check = Callable[[Source], Iterator[Finding]]


def imports_go_down(source: Source) -> Iterator[Finding]:
    """A layer imports itself, those below it and what is for everyone."""
    if not source.in_package or source.place in OUTSIDE | ENTRIES:
        return
    for line, dotted in source.imports:
        package, _, rest = dotted.partition(".")
        target = rest.partition(".")[0]
        if package != "penstock" or target == "__version__":
            continue
        if not may_import(source.place, target):
            yield f"{source.path}:{line}: {source.place} must not import {dotted}"


def may_import(place: str, target: str) -> bool:
    if target in FOR_EVERYONE or target == place:
        return True
    if place in LAYERS and target in LAYERS:
        return LAYERS.index(place) < LAYERS.index(target)
    return False


def places_are_declared(source: Source) -> Iterator[Finding]:
    """Every folder and file directly below the package has its place in the order."""
    declared = {*LAYERS, *OUTSIDE} if len(source.module) > 2 else {*FOR_EVERYONE, *ENTRIES}
    if source.in_package and source.place not in declared:
        yield f"{source.path}:1: {source.place} has no place in the declared order of layers"


def modules_say_what_they_own(source: Source) -> Iterator[Finding]:
    """Every module opens with a docstring."""
    if not ast.get_docstring(source.tree):
        yield f"{source.path}:1: the module does not open with a docstring"


def names_carry_an_idea(source: Source) -> Iterator[Finding]:
    """No module or class is named after the absence of an idea."""
    for part in source.module:
        if banned := NAME_WORDS_BANNED.intersection(part.lower().split("_")):
            yield f"{source.path}:1: the module name {part} says {', '.join(sorted(banned))}"
    for node in source.nodes:
        if isinstance(node, ast.ClassDef):
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", node.name)
            if banned := NAME_WORDS_BANNED.intersection(word.lower() for word in words):
                found = ", ".join(sorted(banned))
                yield f"{source.path}:{node.lineno}: the class name {node.name} says {found}"


def time_is_an_argument(source: Source) -> Iterator[Finding]:
    """Only the clock, and what stands outside, reads the wall clock."""
    if not source.is_in(WALL_CLOCK_ALLOWED):
        for line, dotted in source.uses:
            if dotted in WALL_CLOCK:
                yield f"{source.path}:{line}: {dotted} reads the wall clock; take a Clock"


def environment_stays_at_the_edge(source: Source) -> Iterator[Finding]:
    """Settings come in config objects, not through the environment."""
    if not source.is_in(ENVIRONMENT_ALLOWED):
        for line, dotted in source.uses:
            if dotted in ENVIRONMENT:
                yield f"{source.path}:{line}: {dotted} reads the environment; take a config"


def data_is_never_run(source: Source) -> Iterator[Finding]:
    """Nothing that was read is turned into objects or code by a loader that can run it."""
    for line, dotted in source.uses:
        unsafe = dotted in UNSAFE or dotted.partition(".")[0] in UNSAFE_MODULES
        if unsafe and (source.path, dotted) not in UNSAFE_ALLOWED:
            yield f"{source.path}:{line}: {dotted} can run what it reads"
    for node in source.nodes:
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in UNSAFE_KEYWORDS and not off:
                    yield f"{source.path}:{node.lineno}: {keyword.arg}= can run what it is given"


def errors_are_named(source: Source) -> Iterator[Finding]:
    """No `except:`, which also swallows interrupts and exits."""
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"{source.path}:{node.lineno}: a bare except; name the errors"


CHECKS: tuple[Check, ...] = (
    imports_go_down,
    places_are_declared,
    modules_say_what_they_own,
    names_carry_an_idea,
    time_is_an_argument,
    environment_stays_at_the_edge,
    data_is_never_run,
    errors_are_named,
)


def machine_paths(path: str, text: str) -> Iterator[Finding]:
    """No file names a path of the machine that it was written on."""
    for number, line in enumerate(text.splitlines(), start=1):
        for machine_path in MACHINE_PATHS:
            if machine_path in line:
                yield f"{path}:{number}: names {machine_path}, a path of one machine"


def project_files(root: Path) -> Iterator[Path]:
    """Every file of the project; caches, builds and virtual environments left out."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(
            name
            for name in subfolders
            if name not in SKIPPED_FOLDERS
            and not name.endswith(".egg-info")
            and (not name.startswith(".") or name in SHOWN_FOLDERS)
        )
        # In a second work tree of a repository `.git` is a file, and says where the first one is.
        yield from (Path(folder, name) for name in sorted(names) if name != ".git")


def text_of(path: Path) -> str | None:
    """Return a file's text, None for one that is not text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError):  # gone: another process's temporary file
        return None
    return None if "\0" in text else text


def project_sources() -> list[Source]:
    files = [path for folder in ("penstock", "tools") for path in project_files(ROOT / folder)]
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in files
        if path.suffix == ".py"
    ]


def test_the_project_is_tidy() -> None:
    sources = project_sources()
    assert any(source.path == "penstock/__init__.py" for source in sources), "nothing was looked at"
    assert [finding for source in sources for check in CHECKS for finding in check(source)] == []


def test_no_file_names_a_path_of_one_machine() -> None:
    findings = []
    for path in project_files(ROOT):
        if (text := text_of(path)) is not None:
            findings += machine_paths(path.relative_to(ROOT).as_posix(), text)
    assert findings == []


def test_the_story_names_every_layer_in_order() -> None:
    """The package's docstring lists the layers as they are declared here."""
    story = ast.get_docstring(ast.parse((ROOT / "penstock" / "__init__.py").read_text())) or ""
    listed = re.findall(r"^    (\w+)  ", story, re.MULTILINE)
    assert tuple(listed) == LAYERS
    assert all(f"`{name}`" in story for name in FOR_EVERYONE | OUTSIDE)


REFUSED: list[tuple[Check, str, str, str]] = [
    (imports_go_down, "log/a.py", "from penstock.api.writer import W", "log must not import"),
    (imports_go_down, "log/a.py", "import penstock.state.keyed", "penstock.state.keyed"),
    (imports_go_down, "log/a.py", "import penstock.state.keyed as k", "penstock.state.keyed"),
    (imports_go_down, "log/a.py", "from penstock import runtime", "penstock.runtime"),
    (imports_go_down, "log/a.py", "import penstock", "log must not import penstock"),
    (imports_go_down, "log/a.py", "from ..state import keyed", "penstock.state.keyed"),
    (imports_go_down, "log/a.py", "from .. import state", "penstock.state"),
    (imports_go_down, "log/a.py", "def f():\n    import penstock.state", ":2:"),
    (imports_go_down, "state/a.py", "from penstock.testing import clock", "state must not"),
    (imports_go_down, "api/a.py", "from penstock.testing.plans import query", "api must not"),
    (imports_go_down, "runtime/a.py", "import penstock.sim.world", "runtime must not"),
    (imports_go_down, "plan/a.py", "def f():\n    import penstock.bench", "plan must not"),
    (imports_go_down, "kernels/a.py", "from penstock.cli.main import main", "penstock.cli"),
    (imports_go_down, "errors.py", "from penstock.log.record import Entry", "errors must not"),
    (imports_go_down, "plan/a.py", "from penstock import writeStream", "penstock.writeStream"),
    (places_are_declared, "engine/a.py", "", "engine has no place"),
    (places_are_declared, "engine.py", "", "engine has no place"),
    (places_are_declared, "log.py", "", "log has no place"),
    (modules_say_what_they_own, "log/a.py", "x = 1", "docstring"),
    (modules_say_what_they_own, "log/a.py", "# a comment\n", "docstring"),
    (names_carry_an_idea, "log/utils.py", "", "says utils"),
    (names_carry_an_idea, "log/read_helpers.py", "", "says helpers"),
    (names_carry_an_idea, "common/a.py", "", "says common"),
    (names_carry_an_idea, "log/a.py", "class AbstractLog: ...", "says abstract"),
    (names_carry_an_idea, "log/a.py", "class LogImpl: ...", "says impl"),
    (names_carry_an_idea, "log/a.py", "class LOGManager: ...", "says manager"),
    (names_carry_an_idea, "log/a.py", "def f():\n    class Base: ...", ":2:"),
    (time_is_an_argument, "log/a.py", "import time\ntime.time()", "time.time "),
    (time_is_an_argument, "log/a.py", "import time as t\nt.time_ns()", "time.time_ns"),
    (time_is_an_argument, "log/a.py", "from time import time", "time.time "),
    (time_is_an_argument, "log/a.py", "import time\nclock = time.time", ":2:"),
    (
        time_is_an_argument,
        "log/a.py",
        "from datetime import datetime as d\nd.now()",
        "datetime.datetime.now",
    ),
    (time_is_an_argument, "sim/a.py", "import datetime\ndatetime.date.today()", "date.today"),
    (environment_stays_at_the_edge, "log/a.py", "import os\nos.environ['A']", "os.environ"),
    (environment_stays_at_the_edge, "log/a.py", "from os import getenv", "os.getenv"),
    (environment_stays_at_the_edge, "sim/a.py", "import os\nos.getenv('A')", "os.getenv"),
    (data_is_never_run, "log/a.py", "import pickle\npickle.loads(b)", "pickle.loads"),
    (data_is_never_run, "log/a.py", "from pickle import load as read", "pickle.load"),
    (data_is_never_run, "log/a.py", "import cloudpickle as c\nc.loads(b)", "cloudpickle.loads"),
    (data_is_never_run, "log/a.py", "from pyspark import cloudpickle as c\nc.loads(b)", ":2:"),
    (data_is_never_run, "cli/a.py", "eval('1')", "eval"),
    (data_is_never_run, "cli/a.py", "exec('1')", "exec"),
    (data_is_never_run, "cli/a.py", "compile('1', 'f', 'eval')", "compile"),
    (data_is_never_run, "cli/a.py", "import yaml\nyaml.load(f)", "yaml.load"),
    (data_is_never_run, "cli/a.py", "import marshal", "marshal"),
    (data_is_never_run, "cli/a.py", "from shelve import open", "shelve.open"),
    (data_is_never_run, "cli/a.py", "run('ls', shell=True)", "shell="),
    (data_is_never_run, "cli/a.py", "run('ls', shell=wanted)", "shell="),
    (data_is_never_run, "cli/a.py", "np.load(f, allow_pickle=True)", "allow_pickle="),
    (errors_are_named, "log/a.py", "try:\n    f()\nexcept:\n    pass", ":3:"),
]


@pytest.mark.parametrize(("check", "path", "text", "finding"), REFUSED)
def test_a_check_can_fail(check: Check, path: str, text: str, finding: str) -> None:
    found = list(check(Source(f"penstock/{path}", text)))
    assert found
    assert all(finding in each for each in found)


def test_every_check_is_shown_to_fail() -> None:
    assert {check for check, *_ in REFUSED} == set(CHECKS)


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (imports_go_down, "state/a.py", "from penstock.log.record import Entry"),
        (imports_go_down, "state/a.py", "from penstock.state.keys import KeyRange"),
        (imports_go_down, "state/a.py", "from . import keys\nfrom .keys import KeyRange"),
        (imports_go_down, "log/a.py", "from penstock.errors import StreamError"),
        (imports_go_down, "log/a.py", "from penstock import __version__"),
        (imports_go_down, "names.py", "from penstock.errors import InvalidName"),
        (imports_go_down, "cli/a.py", "from penstock.api.writer import W"),
        (imports_go_down, "testing/a.py", "from penstock.log.contract import Log"),
        (imports_go_down, "__main__.py", "from penstock.cli.main import main"),
        (imports_go_down, "log/a.py", "import state, api, cli"),
        (places_are_declared, "log/__init__.py", ""),
        (places_are_declared, "log/codecs/delta.py", ""),
        (places_are_declared, "errors.py", ""),
        (places_are_declared, "cli/a.py", ""),
        (modules_say_what_they_own, "log/a.py", '"""Owns a."""'),
        (names_carry_an_idea, "log/database.py", "class BasementUtility: ..."),
        (names_carry_an_idea, "log/a.py", "from contextlib import AbstractContextManager"),
        (time_is_an_argument, "clock.py", "import time\ntime.time_ns()"),
        (time_is_an_argument, "bench/a.py", "import time\ntime.time()"),
        (time_is_an_argument, "log/a.py", "import time\ntime.monotonic()\nrow.time.time()"),
        (environment_stays_at_the_edge, "cli/a.py", "import os\nos.environ['A']"),
        (data_is_never_run, "log/a.py", "import pickle\npickle.dumps(error)"),
        (data_is_never_run, "log/a.py", "import re\nre.compile('a')\nframe.eval('b')"),
        (data_is_never_run, "log/a.py", "import json\njson.loads(b)"),
        (data_is_never_run, "log/a.py", "np.load(f, allow_pickle=False)"),
        (errors_are_named, "log/a.py", "try:\n    f()\nexcept OSError:\n    pass"),
    ],
)
def test_a_check_leaves_good_code_alone(check: Check, path: str, text: str) -> None:
    assert list(check(Source(f"penstock/{path}", text))) == []


def test_machine_paths_are_found_by_line() -> None:
    text = f"fine\nsee {MACHINE_PATHS[0]}notes and {MACHINE_PATHS[1]}x\na network/root of work/"
    findings = list(machine_paths("a.md", text))
    assert [finding.split(":")[1] for finding in findings] == ["2", "2"]


def test_project_files_leave_out_what_is_not_the_projects(tmp_path: Path) -> None:
    kept = ["a.py", ".ci/run", "penstock/log/b.py"]
    left_out = [".git/c", ".venv/d", "build/e", "x.egg-info/f", "penstock/__pycache__/g.pyc"]
    for name in kept + left_out:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    found = [path.relative_to(tmp_path).as_posix() for path in project_files(tmp_path)]
    assert sorted(found) == sorted(kept)


def test_bytes_that_are_no_text_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "zeros").write_bytes(b"a\0b")
    (tmp_path / "text").write_text("schön", encoding="utf-8")
    assert text_of(tmp_path / "binary") is None
    assert text_of(tmp_path / "zeros") is None
    assert text_of(tmp_path / "text") == "schön"
