#!/usr/bin/env bash
# Sets up all that distlfm needs on a Debian 12 machine: system packages, then the environment .venv with locked versions.
# `make`, the container images and the release test all call this script, so that they cannot drift apart.
#
#   launch/bootstrap.sh            system packages for running, .venv with every extra
#   launch/bootstrap.sh --tests    the same, and what the test-suite starts (Slurm, network namespaces, a clean root, a browser)
#   launch/bootstrap.sh --system   system packages for running, and nothing else
#   launch/bootstrap.sh --image    the environment alone, without what only developers need
#   launch/bootstrap.sh --lock     resolve the dependencies anew and write constraints.txt
#
# It is idempotent: what is there already is left alone. It works as root, or through sudo. DISTLFM_VENV is where the
# environment goes (.venv), DISTLFM_TORCH_INDEX where torch is taken from, if not from where all other packages are.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SELF=launch/bootstrap.sh

RUN_PACKAGES=(python3 python3-venv python3-dev g++ make git
  python3-dolfin python3-petsc4py python3-mpi4py openmpi-bin libopenmpi-dev)
TEST_PACKAGES=(slurm-wlm munge iproute2 procps debootstrap chromium chromium-driver)
VENV=${DISTLFM_VENV:-.venv}
PYTHON=/usr/bin/python3

say() { printf '[setup] %s\n' "$*"; }
die() { printf '[setup] %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "Installing system packages needs root. Run this as root, or install sudo, or ask your administrator for: $*"
  fi
}

install_system() {
  command -v dpkg-query >/dev/null || die "This is not a Debian system. Use a container instead: see docker/."
  local package missing=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  if [ ${#missing[@]} = 0 ]; then say "system packages: all there"; return; fi
  say "system packages: installing ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# The system's own Python: legacy FEniCS, PETSc and MPI are built for it and are seen through --system-site-packages.
make_venv() { "$PYTHON" -m venv --system-site-packages "$1"; }

fingerprint() { { cat pyproject.toml constraints.txt "$SELF"; echo "$1"; } | sha256sum | cut -d' ' -f1; }

install_python() {  # install_python EXTRA
  local extra=$1 stamp=$VENV/.distlfm-setup wanted
  wanted=$(fingerprint "$extra")
  if [ -x "$VENV/bin/distlfm" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] \
      && "$VENV/bin/python" -c 'import distlfm' 2>/dev/null; then
    say "python environment: up to date ($VENV)"; return
  fi
  say "python environment: installing into $VENV (a few minutes the first time)"
  [ -x "$VENV/bin/python" ] || make_venv "$VENV"
  local install=("$VENV/bin/pip" install --quiet --disable-pip-version-check -c constraints.txt)
  # Only torch comes from there: such an index has other packages too, at other versions.
  if [ -n "${DISTLFM_TORCH_INDEX:-}" ]; then "${install[@]}" --no-deps --index-url "$DISTLFM_TORCH_INDEX" torch; fi
  "${install[@]}" -e ".[$extra]"
  echo "$wanted" > "$stamp"
}

write_lock() {
  local scratch
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$scratch'" EXIT
  # --ignore-installed: a package that this system happens to have must be in the lock all the same.
  say "lock: resolving in a fresh environment"
  make_venv "$scratch/venv"
  "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check --ignore-installed "torch==${DISTLFM_TORCH:-2.13.0}" -e '.[all]'
  {
    echo "# Every version that is installed. Refresh: make lock"
    # A local tag such as +cpu names a build, not a version: whoever installs chooses the build.
    # --all: torch needs setuptools, which would be left out; pip itself comes with Debian.
    "$scratch/venv/bin/pip" freeze --local --all --exclude-editable | sed -E 's/^(torch==[0-9.]+)\+.*/\1/' | grep -v '^pip=='
  } > constraints.txt
  say "lock: $(grep -c == constraints.txt) versions written to constraints.txt"
}

case "${1:-}" in
  "") install_system "${RUN_PACKAGES[@]}"; install_python all ;;
  --tests) install_system "${RUN_PACKAGES[@]}" "${TEST_PACKAGES[@]}"; install_python all ;;
  --system) install_system "${RUN_PACKAGES[@]}" ;;
  --image) install_python full ;;
  --lock) install_system "${RUN_PACKAGES[@]}"; write_lock ;;
  *) sed -n '2,12p' "$SELF"; exit 2 ;;
esac
