#!/bin/sh
# `make demo`: a NumPy program that works on 1.5 GB runs in 384 MB, and is killed in 384 MB without farpage.
# FARPAGE_BIN names the command. Exit code: that of the program under farpage.
set -u
cd "$(dirname "$0")/.." || exit 1
farpage=${FARPAGE_BIN:-target/release/farpage}
unset FARPAGE_BIN
python=.venv/bin/python
mkdir -p build
summary=build/demo-summary.txt

echo "== farpage run --ram 384M -- python demo/sort.py"
"$farpage" run --ram 384M -- "$python" demo/sort.py 2>"$summary"
code=$?
if [ $code -ne 0 ]; then
    cat "$summary" >&2
    echo "demo: the program failed under farpage, exit code $code" >&2
    exit $code
fi

echo
echo "== without farpage, in a cgroup with a hard limit of 384 MB and no swap"
"$python" demo/in_cgroup.py 384 -- "$python" demo/sort.py

echo
echo "== with farpage the program computed all of it in 384 MB:"
cat "$summary"
