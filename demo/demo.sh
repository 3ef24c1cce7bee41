#!/bin/sh
# `make demo`: a NumPy program that works on 1.5 GB runs in 384 MB, and is killed in 384 MB without farpage.
# FARPAGE_BIN names the command. Exit code: that of the program under farpage; 1 if it was not killed without.
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
if ! "$python" demo/in_cgroup.py 384 -- "$python" demo/sort.py; then
    echo "demo: without farpage it was to be killed for want of memory in 384 MB" >&2
    exit 1
fi

echo
echo "== with farpage the program computed all of it in 384 MB:"
cat "$summary"
