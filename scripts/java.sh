#!/bin/sh
# Finds Java 17 or newer, which Spark needs, and prints its home:
#
#     export JAVA_HOME="$(scripts/java.sh)"
#
# Searches JAVA_HOME, then PATH, then the usual folders. If there is none, installs the system's package if that needs no
# password. Prints only the home on stdout. If no Java can be installed, prints what to install and succeeds, because the
# embedded engines need none; with --require it fails. --no-install only searches.
set -eu

. "$(dirname "$0")/packages.sh"

required=17
must=no
install=yes
for argument in "$@"; do
    case "$argument" in
        --require) must=yes ;;
        --no-install) install=no ;;
        *)
            say "unknown option $argument; known are --require and --no-install"
            exit 2
            ;;
    esac
done

# home_of JAVA: the home of that executable if it is new enough. Java itself reports it: the one on PATH may be a shim.
home_of() {
    have "$1" || return 1
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    # Versions look like 17.0.15, 21-ea and 1.8.0_402; the last one gives "1", which counts as too old.
    version=$(echo "$settings" | sed -n 's/.*version "\([0-9][0-9]*\).*/\1/p' | head -n 1)
    if [ "${version:-0}" -lt "$required" ]; then
        return 1
    fi
    home=$(echo "$settings" | sed -n 's/^ *java\.home = //p' | head -n 1)
    [ -n "$home" ] && echo "$home"
}

# Versions that Spark is tested with come first.
find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        home_of "$JAVA_HOME/bin/java" && return
    fi
    home_of java && return
    for pattern in '*17*' '*21*' '*'; do
        # Unquoted on purpose, so that the patterns match.
        for folder in \
            /usr/lib/jvm/$pattern /usr/lib64/jvm/$pattern /usr/java/$pattern /opt/java/$pattern /opt/jdk$pattern \
            /Library/Java/JavaVirtualMachines/$pattern/Contents/Home \
            /opt/homebrew/opt/openjdk$pattern /usr/local/opt/openjdk$pattern \
            /home/linuxbrew/.linuxbrew/opt/openjdk$pattern \
            "${HOME:-/nonexistent}"/.sdkman/candidates/java/$pattern; do
            home_of "$folder/bin/java" && return
        done
    done
    return 1
}

# The package to install, by package manager.
java_package() {
    case "$1" in
        apt-get)
            for name in openjdk-17-jre-headless openjdk-21-jre-headless; do
                if apt-cache show "$name" >/dev/null 2>&1; then
                    echo "$name"
                    return
                fi
            done
            echo default-jre-headless
            ;;
        dnf | yum | zypper) echo java-21-openjdk-headless ;;
        apk) echo openjdk17-jre-headless ;;
        pacman) echo jre17-openjdk-headless ;;
        brew) echo openjdk@17 ;;
    esac
}

# One sentence, with the command if the system is known.
advise() {
    case "$1" in
        "") how="install a Java runtime, version $required or newer, such as Eclipse Temurin $required" ;;
        apk) how="run: apk add $(java_package apk)" ;;
        pacman) how="run: pacman -S $(java_package pacman)" ;;
        *) how="run: $1 install $(java_package "$1")" ;;
    esac
    say "no Java $required or newer was found; only Spark needs it. To use Spark, $how (or set JAVA_HOME)."
}

find_java && exit 0

manager=$(package_manager)
if [ "$install" = yes ] && may_install "$manager"; then
    say "installing Java with $manager, for Spark"
    if refresh_packages "$manager" && install_package "$manager" "$(java_package "$manager")"; then
        find_java && exit 0
    fi
fi

advise "$manager"
[ "$must" = no ]
