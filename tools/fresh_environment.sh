# Functions for the scripts that check installations. They source this file and define $work.

say() { printf '\n== %s\n' "$*"; }
fail() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; exit 1; }

# fresh_environment PYTHON FOLDER: makes an environment that sees the packages of PYTHON's
# environment, such as torch, but not this tree's treadle.
fresh_environment() {
  "$1" -m venv --without-pip "$2"
  see_packages_of "$1" "$2"
}

# install_commands README: prints the commands of the first block below its heading "Install".
install_commands() {
  sed -n '/^## Install$/,/^```$/{/^```sh$/,/^```$/{/^```/!p}}' "$1"
}

# see_packages_of PYTHON FOLDER: makes FOLDER's environment see the packages of PYTHON's.
see_packages_of() {
  local site='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$1" -c "$site" >"$("$2/bin/python" -c "$site")/torch-is-there.pth"
}
