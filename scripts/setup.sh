#!/bin/sh
# Creates .venv with the locked, hashed requirements and this project, editable. Needs only Python 3.11 or newer: uv is
# taken from PATH, or installed into .tools. Can be run again; existing packages are not downloaded again.
#
#     PYTHON=python3.12 scripts/setup.sh    uses that Python
#     scripts/setup.sh --uv                 only finds or installs uv, and prints its path
#     scripts/setup.sh --browser            adds the packages of the browser tests, not the browser
#     scripts/setup.sh --oldest             creates .venv-oldest instead, with the oldest supported version of each package
set -eu

. "$(dirname "$0")/packages.sh"
cd "$(dirname "$0")/.."

fail() {
    say "$*"
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        new_enough "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer"
        echo "$PYTHON"
        return
    fi
    for name in python3 python3.13 python3.12 python3.11 python; do
        if new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer on PATH: install one, or name it with PYTHON=/path/to/python"
}

# uv 0.8 is the first with all options used here.
usable_uv() {
    version=$("$1" --version 2>/dev/null | sed -n 's/^uv \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
    [ -n "$version" ] || return 1
    [ "${version% *}" -gt 0 ] || [ "${version#* }" -ge 8 ]
}

find_uv() {
    for candidate in "${UV:-uv}" .tools/bin/uv; do
        if usable_uv "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# Three ways to install uv into .tools/bin: a private environment, pip with its own target folder, and virtualenv. All are
# allowed on systems that refuse to install beside their own packages.
install_uv() {
    export PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
    rm -rf .tools
    say "installing uv into .tools"
    if "$1" -m venv .tools >/dev/null 2>&1; then
        .tools/bin/python -m pip install --quiet --require-hashes -r requirements/tools.txt >&2 && return
    fi
    rm -rf .tools
    if "$1" -m pip --version >/dev/null 2>&1; then
        "$1" -m pip install --quiet --target .tools --require-hashes -r requirements/tools.txt >&2 && return
    fi
    rm -rf .tools
    if "$1" -m virtualenv .tools >/dev/null 2>&1; then
        .tools/bin/python -m pip install --quiet --require-hashes -r requirements/tools.txt >&2 && return
    fi
    rm -rf .tools
    return 1
}

# Debian and Ubuntu keep the venv module in a package of its own, one for each Python.
venv_package() {
    "$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
}

get_uv() {
    find_uv && return
    if install_uv "$1"; then
        find_uv && return
    fi
    manager=$(package_manager)
    package=$(venv_package "$1")
    if [ "$manager" != apt-get ]; then
        fail "uv could not be installed: install uv, or a Python with its venv and pip modules, and run this again"
    fi
    if ! "$1" -c 'import ensurepip' 2>/dev/null && may_install "$manager"; then
        say "installing $package"
        if refresh_packages "$manager" && install_package "$manager" "$package" && install_uv "$1"; then
            find_uv && return
        fi
    fi
    fail "uv could not be installed: run 'apt-get install $package', or install uv, and run this again"
}

python=$(find_python)
uv=$(get_uv "$python")
if [ "${1:-}" = --uv ]; then
    echo "$uv"
    exit
fi

# Only an installed Python is used; none is downloaded.
export UV_PYTHON_DOWNLOADS=never

# make_environment FOLDER REQUIREMENTS...: an environment with these requirements and this project.
make_environment() {
    environment=$1
    shift
    if ! new_enough "$environment/bin/python"; then
        "$uv" venv --quiet --clear --python "$python" "$environment"
    fi
    for requirements in "$@"; do
        # Not `pip sync`, which queries the package index even if everything is installed.
        "$uv" pip install --quiet --python "$environment" --require-hashes -r "$requirements"
    done
    # Built with the locked backend of the environment, so nothing is downloaded for it.
    "$uv" pip install --quiet --python "$environment" --no-deps --no-build-isolation --editable .
}

if [ "${1:-}" = --oldest ]; then
    make_environment .venv-oldest requirements/oldest.txt
elif [ "${1:-}" = --browser ]; then
    make_environment .venv requirements/dev.txt requirements/browser.txt
else
    make_environment .venv requirements/dev.txt
fi
