"""The real programs: how each is started, what it writes, how large it is, and the budget it gets.

`scale` 1 is for `make test` (each needs 3 to 5 times its budget, sized to seconds), 3 for the soak: sizes and budgets
grow with it.
"""

import dataclasses
import subprocess

from common import BUILD, TESTS, VENV_PYTHON, WORK

INPUTS = BUILD / "inputs"


@dataclasses.dataclass
class Case:
    """A program whose output is known from a run without farpage."""

    name: str
    budget_mib: float
    argv: list
    needs: tuple = ()  # commands that must exist
    make_input: list | None = None  # command that makes the input file, once
    input: object = None  # its path
    outputs: tuple = ()  # files it writes in its directory, compared besides stdout
    env: dict = dataclasses.field(default_factory=dict)
    timeout_s: float = 150  # or that for each of `scale`, if it is more
    must_swap: bool = True  # it needs several times its budget, so a run without swap-out tests nothing
    quick: bool = True  # also in the quick suite; else in the soak only
    settings: bool = True  # then in the soak with each setting, too
    as_user: bool = False  # part of the ordinary user's suite
    kernel_mib: float = 0  # page tables and stacks of many processes or threads, which the cgroup counts and the budget does not


def compile_java():
    """The class file of work/Big.java, in build/inputs."""
    made = INPUTS / "Big.class"
    source = WORK / "Big.java"
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        INPUTS.mkdir(parents=True, exist_ok=True)
        subprocess.run(["javac", "-d", INPUTS, source], check=True, timeout=120)
    return INPUTS


def python_cases(scale):
    numpy = (str(VENV_PYTHON),)
    order = int(2700 * scale**0.5)
    return [
        Case("np-sort", 60 * scale, [VENV_PYTHON, WORK / "np_sort.py", 192 * scale], numpy),
        Case("np-solve", 56 * scale, [VENV_PYTHON, WORK / "np_solve.py", order, 4], numpy, timeout_s=300),
        Case("mp-fork", 80 * scale, [VENV_PYTHON, WORK / "mp_fork.py", 230 * scale], numpy),
    ]


def text_cases(scale):
    lines = INPUTS / f"lines-{120 * scale}.txt"
    short = INPUTS / "lines-2.4.txt"
    generate = ["python3", WORK / "gen_lines.py"]
    stages = [
        f"tr a-y b-z <{lines}",
        f"sort -S {600 * scale}M --parallel=2",
        "uniq -c",
        "awk '{c[$1 % 7]++; s=(s*31+length($2))%1000003; n++} END {for (i=0; i<7; i++) print i, c[i]; print n, s}'",
    ]
    plain = {"LC_ALL": "C"}
    sort = ["sort", "--parallel=2", "-S", f"{600 * scale}M", lines, "-o", "sorted.txt"]
    # Its match finder touches a page at random for every byte: one size, since time grows with its square. Two blocks, of which it
    # needs 13 MiB for each MiB.
    xz = ["xz", "-9", "-T2", "--block-size=1MiB", "-c", short]
    make_lines, make_short = [*generate, lines, 120 * scale], [*generate, short, 2.4]
    pipeline = ["sh", "-c", " | ".join(stages)]
    return [
        Case("gnu-sort", 80 * scale, sort, ("sort",), make_lines, lines, ("sorted.txt",), plain, as_user=True),
        Case("xz-9", 8, xz, ("xz",), make_short, short, timeout_s=1800, quick=False),
        Case("pipeline", 80 * scale, pipeline, ("tr", "awk", "sort", "uniq"), make_lines, lines, env=plain, as_user=True),
    ]


def language_cases(scale):
    source = INPUTS / f"big-{scale}.c"
    script = INPUTS / f"table-{scale}.sql"
    pad = "z" * 130
    expressions = ["-e", f"s/@ROWS@/{180000 * scale}/g", "-e", f"s/@PAD@/{pad}/g"]
    write_sql = ["sh", "-c", 'out=$1; shift; exec sed "$@" >"$out"', "sh", script, *expressions, WORK / "table.sql"]
    write_c = ["python3", WORK / "gen_c.py", source, 300 * scale, 200000 * scale]
    sqlite = ["sqlite3", ":memory:", f".read {script}"]
    gcc = ["gcc", "-O0", "-c", source, "-o", "big.o"]
    node = ["node", f"--max-old-space-size={1000 * scale}", WORK / "big.js", 400 * scale]
    heap = f"{600 * scale}m"
    java = ["java", f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-cp", INPUTS, "Big"]
    # At random in all of its memory, as xz: one size.
    perl = ["perl", WORK / "hash.pl", 200000]
    seed = {"PERL_HASH_SEED": "0"}
    return [
        Case("sqlite3", 16 * scale, sqlite, ("sqlite3",), write_sql, script),
        Case("gcc", 88 * scale, gcc, ("gcc",), write_c, source, ("big.o",), timeout_s=300),
        Case("perl", 21, perl, ("perl",), env=seed, timeout_s=2400, quick=False),
        Case("node", 112 * scale, node, ("node",), timeout_s=300),
        Case("java", 144 * scale, [*java, 300 * scale], ("java", "javac"), timeout_s=300),
    ]


def many_cases(scale):
    """Short children by the hundred, at most 8 at once, and threads by the thousand."""
    children, threads = str(TESTS / "spawnmany"), str(TESTS / "threadmany")
    return [
        Case("spawnmany", 64 * scale, [children, 208 * scale, 210], (children,), timeout_s=600, settings=False, kernel_mib=8),
        Case("threadmany", 64 * scale, [threads, 208 * scale], (threads,), timeout_s=600, settings=False, kernel_mib=8),
    ]


def real_programs(scale):
    cases = [*python_cases(scale), *text_cases(scale), *language_cases(scale), *many_cases(scale)]
    for case in cases:
        case.timeout_s = max(case.timeout_s, 150 * scale)
    return cases
