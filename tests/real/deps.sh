#!/bin/sh
# Installs what the demo and the tests run: packages by apt-get when we are root, NumPy into .venv by pip.
# Usage: deps.sh PYTHON [PACKAGE COMMAND]... (what else is wanted).
# Quick and silent when nothing is missing. Who is not root is told what is missing.
# Exit 1: an installation failed.
set -u
python=${1:-python3}
cd "$(dirname "$0")/../.." || exit 1

missing=
need() { # need PACKAGE COMMAND: the package is missing when the command is
    for directory in $(echo "$PATH:/usr/sbin:/sbin" | tr ':' ' '); do
        [ -x "$directory/$2" ] && return
    done
    case " $missing " in *" $1 "*) ;; *) missing="$missing $1" ;; esac
}
need gcc gcc
need libc6-dev gcc
need make make
need redis-server redis-server
need redis-tools redis-benchmark
need xz-utils xz
need sqlite3 sqlite3
need perl perl
need nodejs node
need default-jdk-headless javac
need e2fsprogs mkfs.ext4
need util-linux setpriv
need mount losetup
need procps ps
need mawk awk
[ $# = 0 ] || shift
while [ $# -ge 2 ]; do
    need "$1" "$2"
    shift 2
done
if [ ! -x .venv/bin/python ]; then
    "$python" -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
fi

install_packages() {
    # RUNLEVEL=1: packages that are daemons (redis) must not start one.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >build/apt.log 2>&1
}
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        mkdir -p build
        echo "deps: installing$missing"
        # shellcheck disable=SC2086
        install_packages $missing || { apt-get update -q >>build/apt.log 2>&1; install_packages $missing; } || {
            echo "deps: apt-get could not install:$missing (see build/apt.log)" >&2
            exit 1
        }
    else
        echo "deps: missing, and tests that need them will be skipped:$missing" >&2
        echo "deps: to install them, as root: apt-get install$missing" >&2
    fi
fi

if ! .venv/bin/python -c 'import numpy' 2>/dev/null; then
    echo "deps: NumPy into .venv"
    [ -x .venv/bin/python ] || "$python" -m venv .venv || exit 1
    .venv/bin/python -m pip install -q --disable-pip-version-check numpy || exit 1
fi
