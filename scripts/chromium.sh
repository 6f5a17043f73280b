#!/bin/sh
# Finds Chromium or Chrome, which the browser tests need, and prints its path:
#
#     export CHROMIUM="$(scripts/chromium.sh)"
#
# Searches CHROMIUM, then PATH, then the usual folders. If there is none, installs the system's package if that needs no
# password. Prints only the path on stdout. If no browser can be installed, prints what to install and fails.
# --no-install only searches.
set -eu

. "$(dirname "$0")/packages.sh"

install=yes
for argument in "$@"; do
    case "$argument" in
        --no-install) install=no ;;
        *)
            say "unknown option $argument; known is --no-install"
            exit 2
            ;;
    esac
done

# path_of BROWSER: its absolute path if it runs. The browser is run, because Ubuntu's `chromium-browser` may be a stub.
path_of() {
    have "$1" || return 1
    "$1" --version >/dev/null 2>&1 </dev/null || return 1
    command -v "$1"
}

find_chromium() {
    if [ -n "${CHROMIUM:-}" ]; then
        path_of "$CHROMIUM" && return
    fi
    for name in \
        chromium chromium-browser google-chrome google-chrome-stable chrome \
        /usr/lib/chromium/chromium /snap/bin/chromium /opt/google/chrome/chrome \
        "/Applications/Chromium.app/Contents/MacOS/Chromium" \
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"; do
        path_of "$name" && return
    done
    return 1
}

# Ubuntu's package is a stub for a snap, which a container cannot run; other systems use one name.
chromium_package() {
    case "$1" in
        "" | yum) return 1 ;;
        *) echo chromium ;;
    esac
}

# One sentence, with the command if the system is known.
advise() {
    case "$1" in
        "" | yum) how="install Chromium or Google Chrome" ;;
        apk) how="run: apk add $(chromium_package apk)" ;;
        pacman) how="run: pacman -S $(chromium_package pacman)" ;;
        brew) how="run: brew install --cask $(chromium_package brew)" ;;
        *) how="run: $1 install $(chromium_package "$1")" ;;
    esac
    say "no Chromium or Chrome was found; only the browser tests need one. To run them, $how (or set CHROMIUM)."
}

find_chromium && exit 0

manager=$(package_manager)
if [ "$install" = yes ] && may_install "$manager" && package=$(chromium_package "$manager"); then
    say "installing Chromium with $manager, for the browser tests"
    if refresh_packages "$manager" && install_package "$manager" "$package"; then
        find_chromium && exit 0
    fi
fi

advise "$manager"
exit 1
