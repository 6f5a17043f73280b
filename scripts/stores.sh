#!/bin/sh
# Installs the object stores of `make test-s3` that are not on PyPI into .tools/stores: versitygw and fake-gcs-server where
# Go is, Azurite where npm is. What cannot be installed is named, and its tests are skipped.
set -eu

. "$(dirname "$0")/packages.sh"
cd "$(dirname "$0")/.."

STORES="$PWD/.tools/stores"
mkdir -p "$STORES"

# go_install NAME PACKAGE
go_install() {
    [ ! -x "$STORES/$1" ] || return 0
    if ! have go; then
        say "$1 is not tested: it needs Go to be installed"
    elif ! GOBIN="$STORES" go install "$2" >"$STORES/$1.log" 2>&1; then
        say "$1 is not tested: go install $2 failed, see $STORES/$1.log"
    fi
}

go_install versitygw github.com/versity/versitygw/cmd/versitygw@v1.8.0
go_install fake-gcs-server github.com/fsouza/fake-gcs-server@v1.56.1
if [ ! -x "$STORES/node_modules/.bin/azurite-blob" ]; then
    if ! have npm; then
        say "azurite is not tested: it needs npm to be installed"
    elif ! npm install --no-audit --no-fund --prefix "$STORES" azurite@3 >"$STORES/azurite.log" 2>&1; then
        say "azurite is not tested: npm install failed, see $STORES/azurite.log"
    fi
fi
