"""What the product does to files, mounts and other processes by their names, as its source says.

Each is ``MODULE FUNCTION: OPERATION``, with ``xN`` behind it where the function does it N times. No
line number is in it, so that it stays the same while other lines change.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.tidy.sources import tree

ROOT = Path(__file__).parents[3]
LIST = ROOT / "tests/root_operations.toml"
FOLDERS = ("chunkstore", "proxy", "mount", "lodefs", "deploy")
WHY_MIN = 20  # characters of a sentence
HOW = f"""
{LIST.relative_to(ROOT)} says of each such line why it is safe when root does it. For a new one, ask
who but root can change a part of the path. Nobody: put the line below the [[places]] whose "why" is
true of it, or make a [[places]] with a sentence of its own. A user: do it through descriptors
(chunkstore/system/safe_open.py, mount/kernel/mountpoints.py), or refuse. Do not only silence this.
"""

MODULE = "<module>"
_OS = {
    "chmod", "chown", "chroot", "fchmod", "fchown", "lchown", "link", "makedirs", "mkdir",
    "mkfifo", "mknod", "remove", "removedirs", "removexattr", "rename", "renames", "replace",
    "rmdir", "setxattr", "symlink", "truncate", "unlink", "utime",
}  # fmt: skip
_SHUTIL = {
    "chown", "copy", "copy2", "copyfile", "copymode", "copystat", "copytree", "move", "rmtree",
}  # fmt: skip
_OF_PATHS = {
    "chmod", "hardlink_to", "lchmod", "mkdir", "rename", "rmdir", "symlink_to", "touch", "unlink",
    "write_bytes", "write_text",
}  # fmt: skip
_SYSCALLS = {"mount", "umount2", "setns", "unshare", "_MOVE_MOUNT", "_OPEN_TREE", "_MOUNT_SETATTR"}
# Where the caller's path counts, and not that of the function itself.
_WRAPPERS = {
    "attach", "detach", "listen", "listen_unix", "make", "make_private", "make_within", "put",
    "remove_within", "take_off", "write_whole",
}  # fmt: skip
_WRAPPERS_OF = {"detached_mounts", "mount_syscalls", "mountpoints", "rpc", "sockets", "state_files"}
_OPENERS = {"os.open": 1, "open_plain": 1, "open_within": 2, "open_below": 2}
_NAMES = {
    *_OS, *_SHUTIL, *_OF_PATHS, *_WRAPPERS, *(name.rpartition(".")[2] for name in _OPENERS),
    "NamedTemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory", "TemporaryFile", "bind",
    "call", "mkdtemp", "mkstemp", "mktemp", "mount", "umount2",
}  # fmt: skip
_WRITING = re.compile(r"O_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)")
_READING = re.compile(r"O_RDONLY|O_PATH|\bPLACE\b")
_PROC = re.compile(r"/proc(?:/|$)")


def operations() -> Iterator[str]:
    """Those of all modules and scripts, in order. lodefs/ also shows other packages, as links."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.resolve() != path or not path.is_file() or path.parent.name == "generated":
                continue
            name = str(path.relative_to(ROOT))
            if path.suffix == ".py":
                yield from of_python(path, name)
            elif folder == "deploy" and _is_program(path):
                yield from of_text(path, name)


def _is_program(path: Path) -> bool:
    return path.suffix in (".c", ".lua") or path.read_bytes()[:2] == b"#!"


def complaint() -> str:
    """Where the list and the source differ, and what to do; "" where they do not."""
    places = tomllib.loads(LIST.read_text())["places"]
    listed = Counter(line for one in places for line in one["operations"])
    found = list(operations())
    lines = [
        *(f"not listed: {line}" for line in found if line not in listed),
        *(f"listed, and not there: {line}" for line in sorted(listed.keys() - set(found))),
        *(f"listed twice: {line}" for line, count in listed.items() if count > 1),
        *(f"no reason: {one['why']!r}" for one in places if len(one["why"]) < WHY_MIN),
    ]
    return f"{LIST.relative_to(ROOT)}: " + "\n".join([*lines, HOW]) if lines else ""


def of_python(path: Path, name: str) -> Iterator[str]:
    """The operations in a Python file, which ``name`` is to stand for."""
    found = _Found(tree(path))
    yield from _counted(name, found.operations)


def of_text(path: Path, name: str) -> Iterator[str]:
    """Those in a shell script, a C or a Lua file."""
    comment, words = _LANGUAGES.get(path.suffix, _SHELL)
    where, found = MODULE, list[tuple[str, str]]()
    for line in path.read_text().splitlines():
        begun = _BEGUN.match(line)
        if begun:
            where = begun[1]
        code = comment.sub("", line)
        found += [(where, next(filter(None, word.groups()))) for word in words.finditer(code)]
        if line == "end" or line.startswith("}") or line.endswith("; }"):
            where = MODULE
    yield from _counted(name, found)


_BEGUN = re.compile(r"(?:(?:static|local|function|const|int|void|char) )*\*?(\w+)\(")
_SHELL = (
    re.compile(r"(?:^|\s)#.*"),
    re.compile(
        r"(?:^|[;&|({!]|\b(?:then|do|else|exec|if|xargs|as_root)\b)\s*(?P<word>chmod|chown|cp|install"
        r"|ln|mkdir|mktemp|mknod|mount|mv|rm|rmdir|tar|tee|truncate|umount)(?=\s)"
        r"|(?P<proc>/proc)/|(?<![0-9&=])(?P<write>>)>? ?(?![&>|]|/dev/)"
    ),
)
_LANGUAGES = {
    ".c": (
        re.compile(r"//.*|^\s*/?\*.*"),
        re.compile(
            r"\b(?P<word>chmod|chown|exec\w+|fopen|mkdir|mount|open|openat|rename|setns|umount2?"
            r"|unlink|unshare)\s*\("
        ),
    ),
    ".lua": (
        re.compile(r"--.*"),
        re.compile(r"\b(?P<word>io\.open|io\.popen|os\.(?!getenv)\w+)\s*\("),
    ),
}


def _counted(name: str, found: list[tuple[str, str]]) -> Iterator[str]:
    for (where, what), count in Counter(found).items():
        yield f"{name} {where}: {what}" + (f" x{count}" if count > 1 else "")


class _Found:
    """Collects (function, operation) of a module."""

    def __init__(self, module: ast.Module) -> None:
        self.operations: list[tuple[str, str]] = []
        self._constants = {
            target.id: value
            for node in module.body
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            for value in [node.value]
            if isinstance(target, ast.Name)
        }
        self._of_proc = {name for name, value in self._constants.items() if _names_proc(value)}
        self._look(module, MODULE)

    def _look(self, node: ast.AST, where: str) -> None:
        what = ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            where = node.name if where == MODULE else f"{where}.{node.name}"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        elif isinstance(node, ast.Call):
            what = self._operation(node)
        elif isinstance(node, ast.Constant):
            what = "/proc" if _names_proc(node) else ""
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            what = "/proc" if node.id in self._of_proc else ""
        if what:
            self.operations.append((where, what))
        for below in ast.iter_child_nodes(node):
            self._look(below, where)

    def _operation(self, node: ast.Call) -> str:
        if not isinstance(node.func, ast.Name | ast.Attribute):
            return ""
        function = ast.unparse(node.func)
        owner, _, last = function.rpartition(".")
        if last not in _NAMES:  # most, which is quick
            return ""
        arguments = [ast.unparse(one) for one in node.args]
        if (owner == "os" and last in _OS) or (owner == "shutil" and last in _SHUTIL):
            return function
        if last.startswith(("Temporary", "Named", "Spooled", "mkdtemp", "mkstemp", "mktemp")):
            return last
        if function in _OPENERS:
            return self._opened(function, arguments[_OPENERS[function] :])
        if last == "open":
            return _file_opened(node, is_method=owner not in ("", "io"))
        if owner == "libc":
            return _syscall(last, arguments)
        if last in _WRAPPERS and (owner in _WRAPPERS_OF or (not owner and "_" in last)):
            return last
        if last == "touch" and len(arguments) > 1:
            return ""  # Cache.touch: a path's gets a mode
        if owner and last in _OF_PATHS:
            return f".{last}"
        if last == "replace" and len(arguments) == 1 and not node.keywords:
            return ".replace"
        is_address = bool(arguments) and arguments[0].startswith(("str(", "os.fsencode("))
        return ".bind" if last == "bind" and is_address else ""

    def _opened(self, function: str, arguments: list[str]) -> str:
        flags = arguments[0] if arguments else ""
        for name in re.findall(r"\b_?[A-Z][A-Z_]+\b", flags):
            if name in self._constants:
                flags += f" {ast.unparse(self._constants[name])}"
        if _WRITING.search(flags) or not _READING.search(flags):
            return function
        return ""


def _names_proc(node: ast.expr) -> bool:
    return any(
        isinstance(one, ast.Constant)
        and isinstance(one.value, str)
        and _PROC.match(one.value) is not None
        for one in ast.walk(node)
    )


def _file_opened(node: ast.Call, *, is_method: bool) -> str:
    named = [one.value for one in node.keywords if one.arg == "mode"]
    modes = [*named, *node.args[0 if is_method else 1 :][:1]]
    if not modes:
        return ""
    mode = modes[0].value if isinstance(modes[0], ast.Constant) else None
    if isinstance(mode, str):
        return "open" if set("wax+") & set(mode) else ""
    return "" if is_method else "open"  # who knows how


def _syscall(function: str, arguments: list[str]) -> str:
    names = [*[word.strip("'\"") for word in arguments[:2]], function]
    found = next((word for word in names if word in _SYSCALLS), "")
    return f"{found.strip('_').lower()}(2)" if found else ""
