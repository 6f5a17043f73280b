# Functions that install packages of the system. Sourced by the other scripts; POSIX sh.

say() { echo "merganser: $*" >&2; }

have() { command -v "$1" >/dev/null 2>&1; }

# The system's package manager: apt-get, dnf, ..., or nothing.
package_manager() {
    for manager in apt-get dnf yum apk zypper pacman brew; do
        if have "$manager"; then
            echo "$manager"
            return
        fi
    done
}

# Homebrew refuses to run as root; every other manager needs root, asked for without a password prompt.
may_install() {
    case "$1" in
        "") return 1 ;;
        brew) [ "$(id -u)" -ne 0 ] ;;
        *) [ "$(id -u)" -eq 0 ] || { have sudo && sudo -n true 2>/dev/null; } ;;
    esac
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

# refresh_packages MANAGER: a new Debian or Ubuntu machine has no package lists before this.
refresh_packages() {
    [ "$1" != apt-get ] || as_root apt-get update -qq >&2 </dev/null
}

# install_package MANAGER NAME: without questions, output on stderr.
install_package() {
    case "$1" in
        apt-get) as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" ;;
        dnf | yum) as_root "$1" install -y -q "$2" ;;
        apk) as_root apk add --quiet "$2" ;;
        zypper) as_root zypper --non-interactive --quiet install "$2" ;;
        pacman) as_root pacman -Sy --noconfirm --needed "$2" ;;
        brew) env NONINTERACTIVE=1 brew install --quiet "$2" ;;
        *) return 1 ;;
    esac >&2 </dev/null
}
