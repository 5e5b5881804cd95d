"""The families of generated problems: files, text, permissions, archives, processes, accounts.

A function here draws what its texts in families.toml name. Promise: the expected answer is computed
here, in Python, and not by the gold script, so each checks the other. Scripts use /proc and what
every Debian has (coreutils, find, grep, sed, awk, tar, gzip); archives are the same byte for byte.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from ludus.worlds.files import own_data
from ludus.worlds.shell.problems import Problem, names, only, same, words, write

Draw = Callable[[random.Random], Problem]
Names = dict[str, Any]
_EXTENSIONS = ("txt", "log", "csv", "md", "cfg")
_DATA = own_data("shell/families.toml")


def count_by_extension(rng: random.Random) -> Names:
    return _extensions(rng, count=rng.randint(9, 16))


def largest_file(rng: random.Random) -> Names:
    folder, *stems = words(rng, 7)
    sizes = dict(zip(stems, rng.sample(range(20, 900), len(stems)), strict=True))
    files = {f"{folder}/{stem}.dat": "x" * size for stem, size in sizes.items()}
    return {"folder": folder, "files": write(files), "largest": _largest(sizes)}


def file_that_holds(rng: random.Random) -> Names:
    folder, paths = _tree(rng, count=10)
    wanted, *others = words(rng, 30)
    target = rng.choice(paths)
    files = {path: "\n".join(rng.sample(others, 6)) for path in paths}
    files[target] += f"\n{wanted}"
    return {"folder": folder, "wanted": wanted, "files": write(files), "target": target}


def rename_all(rng: random.Random) -> Names:
    folder, *stems = words(rng, 8)
    old, new, kept = rng.sample(_EXTENSIONS, 3)
    before = {f"{folder}/{stem}.{old if i < 5 else kept}": stem for i, stem in enumerate(stems)}
    after = {f"{folder}/{stem}.{new if i < 5 else kept}": stem for i, stem in enumerate(stems)}
    return {"folder": folder, "old": old, "new": new, "files": write(before), "kept": _exactly(folder, after)}


def remove_empty(rng: random.Random) -> Names:
    folder, paths = _tree(rng, count=11)
    empty = set(rng.sample(paths, 4))
    files = {path: "" if path in empty else _inner(path) for path in paths}
    kept = {path: text for path, text in files.items() if text}
    return {"folder": folder, "files": write(files), "kept": _exactly(folder, kept)}


def count_in_log(rng: random.Random) -> Names:
    log, *_ = words(rng, 1)
    users, levels = names(rng, 4), ("INFO", "WARN", "ERROR")
    rows = [(rng.choice(users), rng.choice(levels), rng.choice(words(rng, 5))) for _ in range(rng.randint(60, 120))]
    user, level, _ = rng.choice(rows)
    text = "\n".join(f"{9 + i // 60:02}:{i % 60:02} {' '.join(row)}" for i, row in enumerate(rows))
    count = sum(row[:2] == (user, level) for row in rows)
    return {"log": log, "level": level, "user": user, "files": write({f"{log}.log": text}), "count": count}


def sum_of_column(rng: random.Random) -> Names:
    table, *_ = words(rng, 1)
    cities = words(rng, 4)
    rows = [(rng.choice(cities), rng.randint(1, 99), rng.randint(1, 99)) for _ in range(rng.randint(30, 60))]
    city, which = rng.choice(rows)[0], rng.choice((1, 2))
    header = ("place", "bought", "sold")
    files = {f"{table}.csv": "\n".join(",".join(map(str, row)) for row in (header, *rows))}
    total = sum(int(row[which]) for row in rows if row[0] == city)
    column = {"column": header[which], "number": which + 1}
    return column | {"table": table, "city": city, "files": write(files), "sum": total}


def most_frequent(rng: random.Random) -> Names:
    source, *vocabulary = words(rng, 9)
    drawn = rng.choices(vocabulary, k=80)
    drawn += [Counter(drawn).most_common(1)[0][0]] * 3  # no ties
    rng.shuffle(drawn)
    files = {f"{source}.txt": "\n".join(drawn)}
    return {"source": source, "files": write(files), "commonest": Counter(drawn).most_common(1)[0][0]}


def sorted_without_repeats(rng: random.Random) -> Names:
    source, target, *vocabulary = words(rng, 20)
    drawn = rng.choices(vocabulary, k=40)
    files = {f"{source}.txt": "\n".join(drawn)}
    wanted = files | {f"{target}.txt": "\n".join(sorted(set(drawn)))}
    return {"source": source, "target": target, "files": write(files), "wanted": same(wanted)}


def change_setting(rng: random.Random) -> Names:
    source, *keys = words(rng, 9)
    before = {key: str(rng.randint(1, 999)) for key in keys}
    key, value = rng.choice(keys), str(rng.randint(1000, 9999))
    files, wanted = (
        {f"{source}.conf": "\n".join(f"{name} = {own}" for name, own in settings.items())}
        for settings in (before, before | {key: value})
    )
    return {"source": source, "key": key, "value": value, "files": write(files), "wanted": same(wanted)}


def set_mode(rng: random.Random) -> Names:
    script, *_ = words(rng, 1)
    mode, meaning = rng.choice(list(_DATA["modes"].items()))
    return {"script": script, "mode": mode, "meaning": meaning, "files": write({f"{script}.sh": f"echo {script}"})}


def run_a_locked_script(rng: random.Random) -> Names:
    script, said = words(rng, 2)
    key, factor, plus = rng.randint(100, 999), rng.randint(3, 9), rng.randint(1, 99)
    text = f"#!/bin/sh\necho {said}-$(( {key} * {factor} + {plus} ))"
    return {"script": script, "said": said, "files": write({script: text}), "number": key * factor + plus}


def open_to_all(rng: random.Random) -> Names:
    folder, *stems = words(rng, 8)
    modes = dict.fromkeys(stems, "644") | {rng.choice(stems): rng.choice(("646", "666", "606"))}
    target = next(stem for stem, mode in modes.items() if mode != "644")
    files = write({f"{folder}/{stem}": stem for stem in stems})
    scripts = "\n".join(f"chmod {mode} {folder}/{stem}" for stem, mode in modes.items())
    return {"folder": folder, "target": target, "files": files, "modes": scripts}


def pack(rng: random.Random) -> Names:
    folder, paths = _tree(rng, count=6)
    files = {path: _inner(path) for path in paths}
    return {"folder": folder, "files": write(files), "kept": _exactly(folder, files)}


def word_in_nested_archive(rng: random.Random) -> Names:
    outer, inner, wanted, decoy = words(rng, 4)
    return {"outer": outer, "inner": inner, "wanted": wanted, "decoy": decoy, "code": rng.randint(10_000, 99_999)}


def entries_of_archive(rng: random.Random) -> Names:
    return _extensions(rng, count=rng.randint(8, 20))


def count_processes(rng: random.Random) -> Names:
    wanted, *others = words(rng, 4)
    count = rng.randint(2, 6)
    running = [wanted] * count + [other for other in others for _ in range(rng.randint(1, 3))]
    return {"wanted": wanted, "count": count, "processes": "\n".join(map(_background, running))}


def folder_of_process(rng: random.Random) -> Names:
    wanted, other, *folders = words(rng, 6)
    at = {wanted: folders[0], other: folders[1]}
    processes = "\n".join(f"(cd /work/{folder}; {_background(name)})" for name, folder in at.items())
    return {"wanted": wanted, "folder": at[wanted], "folders": " ".join(folders), "processes": processes}


def variable_of_process(rng: random.Random) -> Names:
    wanted, other, value, decoy = words(rng, 4)
    number = rng.randint(100, 999)
    tokens = {wanted: f"{value}-{number}", other: f"{decoy}-{number}"}
    processes = "\n".join(_background(name, token=token) for name, token in tokens.items())
    return {"wanted": wanted, "value": tokens[wanted], "processes": processes}


def users_of_shell(rng: random.Random) -> Names:
    users, shells = names(rng, 14), ("/bin/bash", "/bin/zsh", "/usr/sbin/nologin")
    accounts = {user: rng.choice(shells) for user in users}
    shell = accounts[users[0]]
    return {"shell": shell, "files": write(_passwd(accounts)), "count": list(accounts.values()).count(shell)}


def lock_account(rng: random.Random) -> Names:
    users, nologin = names(rng, 9), "/usr/sbin/nologin"
    accounts = {user: rng.choice(("/bin/bash", "/bin/zsh")) for user in users}
    user = rng.choice(users)
    wanted = same(_passwd(accounts | {user: nologin}))
    return {"user": user, "shell": nologin, "files": write(_passwd(accounts)), "wanted": wanted}


def largest_home(rng: random.Random) -> Names:
    users = names(rng, 6)
    sizes = dict(zip(users, rng.sample(range(1, 12), len(users)), strict=True))
    fill = "mkdir -p home/{0}\nhead -c {1}000 /dev/zero > home/{0}/data"
    return {"homes": "\n".join(fill.format(*pair) for pair in sizes.items()), "largest": _largest(sizes)}


def _problem(draw: Callable[[random.Random], Names]) -> Draw:
    texts = _DATA["problems"][draw.__name__]

    @wraps(draw)
    def drawn(rng: random.Random) -> Problem:
        named = draw(rng)
        return Problem(**{field: text.format_map(named) for field, text in texts.items()})

    return drawn


_DRAWS = (
    count_by_extension, largest_file, file_that_holds, rename_all, remove_empty, count_in_log,
    sum_of_column, most_frequent, sorted_without_repeats, change_setting, set_mode, run_a_locked_script,
    open_to_all, pack, word_in_nested_archive, entries_of_archive, count_processes, folder_of_process,
    variable_of_process, users_of_shell, lock_account, largest_home,
)  # fmt: skip
PROBLEMS = tuple(map(_problem, _DRAWS))


def _tree(rng: random.Random, *, count: int) -> tuple[str, list[str]]:
    """A folder's name, and paths of files in it and up to two folders below it."""
    top, *inner = words(rng, 4)
    places = ("", f"{inner[0]}/", f"{inner[1]}/", f"{inner[1]}/{inner[2]}/")
    stems = words(rng, count)
    return top, [f"{top}/{rng.choice(places)}{stem}.{rng.choice(_EXTENSIONS)}" for stem in stems]


def _inner(path: str) -> str:
    return path.partition("/")[2]


def _extensions(rng: random.Random, *, count: int) -> Names:
    folder, paths = _tree(rng, count=count)
    extension = paths[0].rpartition(".")[2]
    number = sum(path.endswith(f".{extension}") for path in paths)
    files = write({path: _inner(path) for path in paths})
    return {"folder": folder, "extension": extension, "files": files, "count": number}


def _exactly(folder: str, files: Mapping[str, str]) -> str:
    return f"{only(folder, [_inner(path) for path in files])}\n{same(files)}"


def _largest(sizes: Mapping[str, int]) -> str:
    return max(sizes, key=lambda name: sizes[name])


def _passwd(shells: Mapping[str, str]) -> dict[str, str]:
    rows = enumerate(shells.items(), start=1000)
    text = "\n".join(f"{user}:x:{number}:{number}::/home/{user}:{shell}" for number, (user, shell) in rows)
    return {"passwd": text}


def _background(name: str, *, token: str = "") -> str:
    """Starts an idle process called `name`, and waits until it has that name."""
    environment = f"TOKEN={token} " if token else ""
    named = f"grep -qs '^{name}' /proc/$!/cmdline || ! test -e /proc/$!"
    return f"({environment}exec -a {name} sleep 100000 >/dev/null 2>&1 & until {named}; do sleep 0.01; done)"
