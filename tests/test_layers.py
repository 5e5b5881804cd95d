"""The import table of docs/architecture.md, held by reading the source: no module is imported for it."""

import ast
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent.parent / "src" / "ludus"
ROOT = {"types", "errors", "config", "plugins", "openai_format", "seeds", "garbage", "__init__"}
"""What every folder may import."""
MAY_IMPORT = {
    "wire": set(),
    "processes": {"wire"},
    "environments": set(),
    "algorithms": set(),
    "models": set(),
    "weights": set(),
    "store": set(),
    "trackers": {"store"},
    "sandboxes": set(),
    "reports": {"store"},
    "hosting": {"environments", "sandboxes", "wire", "processes"},
    "checks": {"environments", "hosting", "sandboxes"},
    "worlds": {"environments", "sandboxes"},
    "adapters": {"environments", "sandboxes"},
    "controller": {"environments", "sandboxes", "hosting", "wire", "processes"},
    "engines": {"models", "weights", "wire"},
    "trainer": {"models", "weights", "algorithms"},
    "rollout": {"controller.client.client", "engines.engine"},  # the protocols, never what implements them
    "pipeline": {
        "rollout", "algorithms", "store", "engines.engine", "trainer.trainer", "controller.client.client",
    },
    "evaluation": {"rollout", "store", "reports"},
    "launch": {
        "environments", "algorithms", "models", "weights", "store", "sandboxes", "worlds", "controller", "engines", "trainer",
        "rollout", "pipeline", "evaluation", "wire", "processes", "hosting", "reports", "trackers",
    },
    "cli": {"*"},
    "types": set(),
    "errors": set(),
    "config": set(),
    "plugins": set(),
    "openai_format": set(),
    "seeds": set(),
    "garbage": set(),
    "__init__": set(),
}  # fmt: skip
TORCH = {"torch", "transformers", "safetensors"}
HTTP = {"httpx", "requests", "aiohttp", "fastapi", "starlette", "uvicorn", "urllib"}
MUST_NEVER_SEE = {
    "types": TORCH | HTTP | {"pydantic"},
    "errors": TORCH | HTTP | {"numpy", "pydantic"},
    "config": TORCH | HTTP | {"numpy"},
    "plugins": TORCH | HTTP | {"numpy"},
    "algorithms": TORCH | HTTP,
    "openai_format": TORCH | HTTP | {"pydantic"},
    "wire": TORCH,
    "processes": TORCH | HTTP,
    "hosting": TORCH | HTTP,
    "checks": TORCH | HTTP,
    "environments": TORCH | HTTP,
    "worlds": TORCH,
    "adapters": TORCH,
    "controller": TORCH,
    "store": TORCH | HTTP,
    "pipeline": HTTP,
    "rollout": HTTP,
}
COMMAND_FILES = {
    "main", "options", "collect", "doctor", "env", "eval", "models", "serve", "train", "trajectories",
}  # fmt: skip
HEAVY = TORCH | HTTP | {"numpy", "pydantic", "matplotlib", "tensorboard"}
"""What a command's module may import only inside its functions, so that `ludus --help` answers at once."""


class Import(NamedTuple):
    file: Path
    line: int
    module: str
    in_function: bool

    @property
    def place(self) -> str:
        return f"src/ludus/{self.file.relative_to(SOURCE)}:{self.line}"

    @property
    def folder(self) -> str:
        return folder_of(self.file)

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


def folder_of(file: Path) -> str:
    return file.relative_to(SOURCE).with_suffix("").parts[0]


def imports_of(file: Path) -> list[Import]:
    found: list[Import] = []
    _collect(ast.parse(file.read_text()), file, in_function=False, into=found)
    return found


def _collect(node: ast.AST, file: Path, *, in_function: bool, into: list[Import]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                _collect(other, file, in_function=in_function, into=into)
            continue
        into += [Import(file, child.lineno, name, in_function) for name in _modules(child, file)]
        inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        _collect(child, file, in_function=inside, into=into)


def _modules(node: ast.AST, file: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = node.module or ""
    if node.level:  # from .a import b
        package = ["ludus", *file.relative_to(SOURCE).parent.parts]
        module = ".".join([*package[: len(package) - node.level + 1], *filter(None, [module])])
    if (
        module.count(".") < 2 and module.split(".")[0] == "ludus"
    ):  # from ludus import config; from ludus.store import report
        return [f"{module}.{alias.name}" for alias in node.names]
    return [module]


FILES = sorted(SOURCE.rglob("*.py"))
IMPORTS = [each for file in FILES for each in imports_of(file)]


def test_every_folder_has_a_row_in_the_table():
    assert {folder_of(file) for file in FILES} <= set(MAY_IMPORT)


def test_folders_import_only_what_the_table_allows():
    broken = [
        f"{each.place}: {each.folder} may not import {each.module}; allowed: {sorted(MAY_IMPORT[each.folder] | ROOT)}"
        for each in IMPORTS
        if each.top == "ludus" and not allowed(each)
    ]
    assert not broken, "\n".join(broken)


def allowed(each: Import) -> bool:
    target = each.module.removeprefix("ludus.")
    folder, rules = target.split(".")[0], MAY_IMPORT[each.folder]
    if folder in ROOT or folder == each.folder or folder.startswith("__") or "*" in rules:
        return True
    return any(target == rule or target.startswith(f"{rule}.") for rule in rules)


def test_what_a_folder_must_never_see_it_does_not_import_not_even_inside_a_function():
    broken = [
        f"{each.place}: {each.folder} must never see {each.top}"
        for each in IMPORTS
        if each.top in MUST_NEVER_SEE.get(each.folder, ())
    ]
    assert not broken, "\n".join(broken)


def test_commands_import_what_is_heavy_inside_their_functions():
    top_level = [each for each in IMPORTS if each.folder == "cli" and not each.in_function]
    broken = [f"{each.place}: torch belongs inside a function" for each in top_level if each.top in TORCH]
    broken += [
        f"{each.place}: {each.module} belongs inside the function that needs it"
        for each in top_level
        if each.file.stem in COMMAND_FILES
        and (
            each.top in HEAVY or (each.top == "ludus" and each.module not in ("ludus.__version__", "ludus.cli.options"))
        )
    ]
    assert not broken, "\n".join(broken)


def test_ray_is_imported_by_its_launcher_only():
    broken = [each.place for each in IMPORTS if each.top == "ray" and each.file != SOURCE / "launch" / "ray.py"]
    assert not broken, "\n".join(broken)


def test_no_file_is_longer_than_500_lines():
    lengths = {str(file.relative_to(SOURCE)): len(file.read_text().splitlines()) for file in FILES}
    assert {file: length for file, length in lengths.items() if length > 500} == {}


def test_the_reader_of_imports_sees_through_functions_and_past_type_checking(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    file = tmp_path / "store" / "a.py"
    file.parent.mkdir()
    file.write_text(
        "import ludus.types\n"
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import torch\n"
        "def f():\n    from ludus.engines import pool\n"
        "from ..trainer import x\n"
        "from . import b\n"
    )
    found = [(each.module, each.in_function) for each in imports_of(file) if each.module != "typing"]
    assert found == [
        ("ludus.types", False),
        ("ludus.engines.pool", True),
        ("ludus.trainer.x", False),
        ("ludus.store.b", False),
    ]
