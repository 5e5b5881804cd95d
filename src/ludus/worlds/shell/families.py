"""The families of generated problems: files, text, permissions, archives, processes, accounts.

Promise: the expected answer is computed here, in Python, and not by the gold script, so each checks
the other. Scripts use /proc and what every Debian has (coreutils, find, grep, sed, awk, tar, gzip).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from ludus.worlds.shell.problems import Problem, names, only, same, words, write

Draw = Callable[[random.Random], Problem]
_EXTENSIONS = ("txt", "log", "csv", "md", "cfg")
_PACK = "tar --sort=name --mtime=@0"
"""Gives the same archive, byte for byte, at any time."""


_MODES = {
    "700": "its owner may read, write and run it, and nobody else may do anything with it",
    "750": "its owner may read, write and run it, its group may read and run it, and others may do nothing",
    "644": "its owner may read and write it, and everybody else may only read it",
    "440": "its owner and its group may only read it, and others may do nothing",
}


def count_by_extension(rng: random.Random) -> Problem:
    folder, paths = _tree(rng, count=rng.randint(9, 16))
    extension = paths[0].rpartition(".")[2]
    return Problem(
        "files",
        f"How many files below /work/{folder}, in all its folders, have a name that ends in .{extension}? Answer with the number.",
        init=write({f"{folder}/{path}": path for path in paths}),
        answer=str(sum(path.endswith(f".{extension}") for path in paths)),
        gold=f"find {folder} -type f -name '*.{extension}' | wc -l",
    )


def largest_file(rng: random.Random) -> Problem:
    folder, *stems = words(rng, 7)
    sizes = rng.sample(range(20, 900), len(stems))
    largest = max(zip(sizes, stems, strict=True))[1]
    return Problem(
        "files",
        f"Which file in /work/{folder} is the largest? Answer with its name, without the folder.",
        init=write({f"{folder}/{stem}.dat": "x" * size for stem, size in zip(stems, sizes, strict=True)}),
        answer=f"{largest}.dat",
        gold=f"ls -S {folder} | head -n 1",
    )


def file_that_holds(rng: random.Random) -> Problem:
    folder, paths = _tree(rng, count=10)
    wanted, *others = words(rng, 30)
    target = rng.choice(paths)
    files = {f"{folder}/{path}": "\n".join(rng.sample(others, 6)) for path in paths}
    files[f"{folder}/{target}"] += f"\n{wanted}"
    return Problem(
        "files",
        f"One file below /work/{folder} holds the word {wanted}. Answer with its full path.",
        init=write(files),
        answer=f"/work/{folder}/{target}",
        gold=f"grep -rlw {wanted} /work/{folder}",
    )


def rename_all(rng: random.Random) -> Problem:
    folder, *stems = words(rng, 8)
    old, new, kept = rng.sample(_EXTENSIONS, 3)
    before = {f"{stem}.{old if i < 5 else kept}": stem for i, stem in enumerate(stems)}
    after = {f"{stem}.{new if i < 5 else kept}": stem for i, stem in enumerate(stems)}
    return Problem(
        "files",
        f"Rename every file in /work/{folder} whose name ends in .{old}, so that it ends in .{new} instead. Leave the others as they are.",
        init=write({f"{folder}/{name}": text for name, text in before.items()}),
        check=f"{only(folder, list(after))}\n{same({f'{folder}/{name}': text for name, text in after.items()})}",
        gold=f'cd {folder} && for f in *.{old}; do mv "$f" "${{f%.{old}}}.{new}"; done',
    )


def remove_empty(rng: random.Random) -> Problem:
    folder, paths = _tree(rng, count=11)
    empty = set(rng.sample(paths, 4))
    kept = {path: path for path in paths if path not in empty}
    return Problem(
        "files",
        f"Delete every empty file below /work/{folder}, in all its folders. Leave every other file as it is.",
        init=write({f"{folder}/{path}": "" if path in empty else path for path in paths}),
        check=f"{only(folder, list(kept))}\n{same({f'{folder}/{path}': text for path, text in kept.items()})}",
        gold=f"find {folder} -type f -empty -delete",
    )


def count_in_log(rng: random.Random) -> Problem:
    log, *_ = words(rng, 1)
    users, levels = names(rng, 4), ("INFO", "WARN", "ERROR")
    rows = [(rng.choice(users), rng.choice(levels), rng.choice(words(rng, 5))) for _ in range(rng.randint(60, 120))]
    user, level, _ = rng.choice(rows)
    text = "\n".join(f"{9 + i // 60:02}:{i % 60:02} {who} {how} {what}" for i, (who, how, what) in enumerate(rows))
    return Problem(
        "text",
        f"Each line of /work/{log}.log holds a time, a user, a level and a word. How many lines of level {level} has the user {user}? "
        "Answer with the number.",
        init=write({f"{log}.log": text}),
        answer=str(sum(row[:2] == (user, level) for row in rows)),
        gold=f"""awk '$2 == "{user}" && $3 == "{level}"' {log}.log | wc -l""",
    )


def sum_of_column(rng: random.Random) -> Problem:
    table, *_ = words(rng, 1)
    cities = words(rng, 4)
    rows = [(rng.choice(cities), (rng.randint(1, 99), rng.randint(1, 99))) for _ in range(rng.randint(30, 60))]
    city, which = rng.choice(rows)[0], rng.choice((1, 2))
    text = "\n".join(["place,bought,sold", *(f"{place},{bought},{sold}" for place, (bought, sold) in rows)])
    return Problem(
        "text",
        f"Add up the column {('bought', 'sold')[which - 1]} of /work/{table}.csv over all rows whose place is {city}. Answer with the sum.",
        init=write({f"{table}.csv": text}),
        answer=str(sum(row[1][which - 1] for row in rows if row[0] == city)),
        gold=f"""awk -F, '$1 == "{city}" {{ sum += ${which + 1} }} END {{ print sum }}' {table}.csv""",
    )


def most_frequent(rng: random.Random) -> Problem:
    source, *vocabulary = words(rng, 9)
    drawn = rng.choices(vocabulary, k=80)
    drawn += [Counter(drawn).most_common(1)[0][0]] * 3  # no ties
    rng.shuffle(drawn)
    return Problem(
        "text",
        f"Which word stands most often in /work/{source}.txt, one word a line? Answer with the word.",
        init=write({f"{source}.txt": "\n".join(drawn)}),
        answer=Counter(drawn).most_common(1)[0][0],
        gold=f"sort {source}.txt | uniq -c | sort -rn | head -n 1 | awk '{{ print $2 }}'",
    )


def sorted_without_repeats(rng: random.Random) -> Problem:
    source, target, *vocabulary = words(rng, 20)
    drawn = rng.choices(vocabulary, k=40)
    return Problem(
        "text",
        f"Write the distinct lines of /work/{source}.txt to /work/{target}.txt, in alphabetical order. Do not change /work/{source}.txt.",
        init=write({f"{source}.txt": "\n".join(drawn)}),
        check=same({f"{source}.txt": "\n".join(drawn), f"{target}.txt": "\n".join(sorted(set(drawn)))}),
        gold=f"sort -u {source}.txt > {target}.txt",
    )


def change_setting(rng: random.Random) -> Problem:
    source, *keys = words(rng, 9)
    settings = {key: str(rng.randint(1, 999)) for key in keys}
    key, value = rng.choice(keys), str(rng.randint(1000, 9999))
    return Problem(
        "text",
        f"In /work/{source}.conf, lines read key = value. Set {key} to {value}, and change nothing else.",
        init=write({f"{source}.conf": _settings(settings)}),
        check=same({f"{source}.conf": _settings(settings | {key: value})}),
        gold=f"sed -i 's/^{key} = .*/{key} = {value}/' {source}.conf",
    )


def set_mode(rng: random.Random) -> Problem:
    script, *_ = words(rng, 1)
    mode, meaning = rng.choice(list(_MODES.items()))
    return Problem(
        "permissions",
        f"Set the permissions of /work/{script}.sh so that {meaning}.",
        init=f"{write({f'{script}.sh': 'echo ' + script})}\nchmod 666 {script}.sh",
        check=f'[ "$(stat -c %a {script}.sh)" = {mode} ]',
        gold=f"chmod {mode} {script}.sh",
    )


def run_a_locked_script(rng: random.Random) -> Problem:
    script, said = words(rng, 2)
    key, factor, plus = rng.randint(100, 999), rng.randint(3, 9), rng.randint(1, 99)
    text = f"#!/bin/sh\necho {said}-$(( {key} * {factor} + {plus} ))"
    return Problem(
        "permissions",
        f"/work/{script} is a program that may not be run as it is. Make it run, and answer with what it prints.",
        init=f"{write({script: text})}\nchmod 000 {script}",
        answer=f"{said}-{key * factor + plus}",
        gold=f"chmod u+rx {script} && ./{script}",
    )


def open_to_all(rng: random.Random) -> Problem:
    folder, *stems = words(rng, 8)
    modes = dict.fromkeys(stems, "644") | {rng.choice(stems): rng.choice(("646", "666", "606"))}
    target = next(stem for stem, mode in modes.items() if mode != "644")
    init = write({f"{folder}/{stem}": stem for stem in stems})
    return Problem(
        "permissions",
        f"One file in /work/{folder} can be written by everybody. Answer with its name, without the folder.",
        init="\n".join([init, *(f"chmod {mode} {folder}/{stem}" for stem, mode in modes.items())]),
        answer=target,
        gold=f"find {folder} -type f -perm -o+w | xargs basename",
    )


def pack(rng: random.Random) -> Problem:
    folder, paths = _tree(rng, count=6)
    files = {f"{folder}/{path}": path for path in paths}
    return Problem(
        "archives",
        f"Pack the folder /work/{folder} with all that is in it into /work/{folder}.tar.gz, so that unpacking it gives a folder {folder}.",
        init=write(files),
        check=f"rm -rf /tmp/graded && mkdir /tmp/graded && tar -xzf {folder}.tar.gz -C /tmp/graded || exit 1\ncd /tmp/graded\n"
        f"{only(folder, paths)}\n{same(files)}",
        gold=f"tar -czf {folder}.tar.gz {folder}",
    )


def word_in_nested_archive(rng: random.Random) -> Problem:
    outer, inner, wanted, decoy = words(rng, 4)
    code = rng.randint(10_000, 99_999)
    init = (
        f"mkdir {inner}\necho {wanted}-{code} > {inner}/note\necho {decoy} > {inner}/other\n"
        f"{_PACK} -cf {inner}.tar {inner}\ngzip -n {inner}.tar\n{_PACK} -cf {outer}.tar {inner}.tar.gz\nrm -r {inner} {inner}.tar.gz"
    )
    return Problem(
        "archives",
        f"In the archive /work/{outer}.tar is another archive, and in that a file named note. Answer with what the note says.",
        init=init,
        answer=f"{wanted}-{code}",
        gold=f"tar -xOf {outer}.tar {inner}.tar.gz | tar -xzO {inner}/note",
    )


def entries_of_archive(rng: random.Random) -> Problem:
    folder, paths = _tree(rng, count=rng.randint(8, 20))
    extension = paths[0].rpartition(".")[2]
    return Problem(
        "archives",
        f"How many files in the archive /work/{folder}.tar.gz have a name that ends in .{extension}? Answer with the number.",
        init=f"{write({f'{folder}/{path}': path for path in paths})}\n{_PACK} -c {folder} | gzip -n > {folder}.tar.gz\nrm -r {folder}",
        answer=str(sum(path.endswith(f".{extension}") for path in paths)),
        gold=f"tar -tzf {folder}.tar.gz | grep -c '\\.{extension}$'",
    )


def count_processes(rng: random.Random) -> Problem:
    wanted, *others = words(rng, 4)
    count = rng.randint(2, 6)
    running = [wanted] * count + [other for other in others for _ in range(rng.randint(1, 3))]
    return Problem(
        "processes",
        f"How many processes whose command begins with {wanted} are running? Answer with the number.",
        start="\n".join(_background(name) for name in running),
        answer=str(count),
        gold=f"grep -lsE '^{wanted}' /proc/[0-9]*/cmdline | wc -l",
    )


def folder_of_process(rng: random.Random) -> Problem:
    wanted, other, *folders = words(rng, 6)
    at = {wanted: folders[0], other: folders[1]}
    return Problem(
        "processes",
        f"A process whose command begins with {wanted} is running. Answer with its working directory, as a full path.",
        init=f"mkdir {' '.join(folders)}",
        start="\n".join(f"(cd /work/{folder}; {_background(name)})" for name, folder in at.items()),
        answer=f"/work/{at[wanted]}",
        gold=f"readlink $(grep -lsE '^{wanted}' /proc/[0-9]*/cmdline | sed 's/cmdline/cwd/')",
    )


def variable_of_process(rng: random.Random) -> Problem:
    wanted, other, value, decoy = words(rng, 4)
    number = rng.randint(100, 999)
    return Problem(
        "processes",
        f"A process whose command begins with {wanted} was started with an environment variable TOKEN. Answer with its value.",
        start=f"{_background(wanted, token=f'{value}-{number}')}\n{_background(other, token=f'{decoy}-{number}')}",
        answer=f"{value}-{number}",
        gold=f"tr '\\0' '\\n' < $(grep -lsE '^{wanted}' /proc/[0-9]*/cmdline | sed 's/cmdline/environ/') | grep ^TOKEN= | cut -d= -f2",
    )


def users_of_shell(rng: random.Random) -> Problem:
    users, shells = names(rng, 14), ("/bin/bash", "/bin/zsh", "/usr/sbin/nologin")
    accounts = {user: rng.choice(shells) for user in users}
    shell = accounts[users[0]]
    return Problem(
        "accounts",
        f"/work/passwd lists accounts as in /etc/passwd. How many of them have the login shell {shell}? Answer with the number.",
        init=write({"passwd": _accounts(accounts)}),
        answer=str(sum(found == shell for found in accounts.values())),
        gold=f"grep -c ':{shell}$' passwd",
    )


def lock_account(rng: random.Random) -> Problem:
    users = names(rng, 9)
    accounts = {user: rng.choice(("/bin/bash", "/bin/zsh")) for user in users}
    user, nologin = rng.choice(users), "/usr/sbin/nologin"
    return Problem(
        "accounts",
        f"/work/passwd lists accounts as in /etc/passwd. Change the login shell of {user} to {nologin}, and nothing else.",
        init=write({"passwd": _accounts(accounts)}),
        check=same({"passwd": _accounts(accounts | {user: nologin})}),
        gold=f"sed -i '/^{user}:/s|:[^:]*$|:{nologin}|' passwd",
    )


def largest_home(rng: random.Random) -> Problem:
    users = names(rng, 6)
    sizes = dict(zip(users, rng.sample(range(1, 12), len(users)), strict=True))
    init = "\n".join(
        f"mkdir -p home/{user}\nhead -c {size * 1000} /dev/zero > home/{user}/data" for user, size in sizes.items()
    )
    return Problem(
        "accounts",
        "Each user has a folder in /work/home. Whose folder holds the most bytes? Answer with the user's name.",
        init=init,
        answer=max(sizes, key=lambda user: sizes[user]),
        gold="for u in home/*; do echo $(cat $u/* | wc -c) ${u#home/}; done | sort -rn | head -n 1 | cut -d' ' -f2",
    )


PROBLEMS: tuple[Draw, ...] = (
    count_by_extension, largest_file, file_that_holds, rename_all, remove_empty, count_in_log,
    sum_of_column, most_frequent, sorted_without_repeats, change_setting, set_mode, run_a_locked_script,
    open_to_all, pack, word_in_nested_archive, entries_of_archive, count_processes, folder_of_process,
    variable_of_process, users_of_shell, lock_account, largest_home,
)  # fmt: skip


def _tree(rng: random.Random, *, count: int) -> tuple[str, list[str]]:
    """A folder's name, and relative paths up to two folders below it."""
    top, *inner = words(rng, 4)
    places = ("", f"{inner[0]}/", f"{inner[1]}/", f"{inner[1]}/{inner[2]}/")
    stems = words(rng, count)
    return top, [f"{rng.choice(places)}{stem}.{rng.choice(_EXTENSIONS)}" for stem in stems]


def _settings(values: dict[str, str]) -> str:
    return "\n".join(f"{key} = {value}" for key, value in values.items())


def _accounts(shells: dict[str, str]) -> str:
    rows = enumerate(shells.items(), start=1000)
    return "\n".join(f"{user}:x:{number}:{number}::/home/{user}:{shell}" for number, (user, shell) in rows)


def _background(name: str, *, token: str = "") -> str:
    """Starts an idle process called `name`, and waits until it has that name."""
    environment = f"TOKEN={token} " if token else ""
    named = f"grep -qs '^{name}' /proc/$!/cmdline || ! test -e /proc/$!"
    return f"({environment}exec -a {name} sleep 100000 >/dev/null 2>&1 & until {named}; do sleep 0.01; done)"
