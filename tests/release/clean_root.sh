#!/usr/bin/env bash
# Proves that the set-up is complete: a minimal Debian 12 is made in a temporary directory, the committed state (HEAD) is
# put into it, `make setup` runs there as on a new machine, and what it installed is checked. Then the steps of
# docker/Dockerfile run there too, as no container engine is needed to know that they work.
#
# It needs root, for the mounts. They live in a mount and process namespace of their own, so that nothing stays mounted
# and no process stays alive, whatever happens. What the network needs here is carried over: name service,
# certificates, proxies and pip's settings; local directories that pip's settings name are seen read-only.
# Debian's packages are kept in ${XDG_CACHE_HOME:-~/.cache}/distlfm/debs; the rest is removed. The root lies in memory
# where there is plenty of it: on some disks its removal takes longer than its making.
set -euo pipefail

SELF=$(readlink -f "${BASH_SOURCE[0]}")
PROJECT=$(dirname "$SELF")/../..
SUITE=bookworm
WORK=/distlfm   # where the project lies inside the clean root
MAY_BE_MISSING=cuda,slurm
IMAGE_VENV=/opt/venv
ROOT_GB=8       # more than the root takes

say() { printf '[clean-root] %s\n' "$*"; }
die() { printf '[clean-root] %s\n' "$*" >&2; exit 1; }

step() {  # step NAME COMMAND...: run it, and say how long it took
  local name=$1 begin=$SECONDS code=0
  shift
  say "$name ..."
  "$@" || code=$?
  [ "$code" = 0 ] || die "$name: failed with exit code $code after $((SECONDS - begin)) s"
  say "$name: $((SECONDS - begin)) s"
}

# ---- outside: a temporary directory and a namespace, both gone at the end ------------------------------------------

outside() {
  [ "$(id -u)" = 0 ] || die "This needs root, to mount a clean Debian. Run: sudo -E make test-release"
  local command
  for command in debootstrap unshare git; do
    command -v "$command" >/dev/null || die "$command is not installed. Run: make setup-tests"
  done
  [ -z "$(git -C "$PROJECT" status --porcelain)" ] || say "uncommitted changes are left out: HEAD is tested"

  scratch=$(mktemp -d -t distlfm-clean-root.XXXXXX)
  namespace=
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  mkdir "$scratch/root" "$scratch/project"
  git -C "$PROJECT" archive HEAD | tar -x -C "$scratch/project"
  unshare --mount --pid --fork --kill-child "$SELF" --inside "$scratch" &
  namespace=$!
  local code=0
  wait "$namespace" || code=$?
  namespace=
  [ "$code" = 0 ] || exit "$code"
  say "all is well, after $((SECONDS / 60)) min $((SECONDS % 60)) s"
}

clean_up() {
  # The first process of the namespace dies with unshare, and all others with it; their mounts go too.
  if [ -n "$namespace" ]; then kill -KILL "$namespace" 2>/dev/null || true; wait "$namespace" 2>/dev/null || true; fi
  local attempt
  for attempt in 1 2 3 4 5; do
    rm -rf --one-file-system "$scratch" 2>/dev/null && return
    sleep "$attempt"
  done
  say "could not remove $scratch"
}

# ---- inside the namespace: the root ---------------------------------------------------------------------------------

inside() {
  local scratch=$1
  root=$scratch/root
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/distlfm/debs
  mkdir -p "$cache"
  # An interruption ends this process too: as the first of its namespace it would ignore it.
  trap 'exit 143' INT TERM HUP

  if [ "$(free_memory_gb)" -ge $((2 * ROOT_GB)) ]; then mount -t tmpfs -o "size=${ROOT_GB}g,mode=755" tmpfs "$root"; fi
  step "a minimal $SUITE" make_root
  step "network settings" carry_over_network
  mount_kernel
  mv "$scratch/project" "$root$WORK"
  step "make and certificates" in_root "apt-get update -qq && apt-get install -y -qq --no-install-recommends make ca-certificates >/dev/null"
  step "make setup" in_root "make setup"
  step "make setup once more, which finds all in place" in_root "make setup | tee /tmp/again && grep -q 'all there' /tmp/again && grep -q 'up to date' /tmp/again"
  step "every module, every pinned version" in_root ".venv/bin/python tests/release/check_installed.py > /tmp/installed || { cat /tmp/installed; exit 1; }; head -n 1 /tmp/installed"
  step "a bill of materials of all of it" in_root "make sbom > /dev/null && .venv/bin/python tests/release/check_sbom.py"
  step "distlfm doctor" in_root ".venv/bin/distlfm doctor --json > /tmp/doctor.json || true; .venv/bin/python tests/release/check_doctor.py /tmp/doctor.json $MAY_BE_MISSING"
  in_root "rm -rf .venv"  # two environments would be twice as large
  local command
  while IFS= read -r command; do
    step "the image's: $command" in_root "export TORCH_INDEX= DISTLFM_VENV=$IMAGE_VENV; $command"
  done < <(sed -n 's/^RUN //p' "$root$WORK/docker/Dockerfile")
  step "distlfm in the image" as_image_user "distlfm --version && distlfm doctor --json > doctor.json || true; python $WORK/tests/release/check_doctor.py doctor.json $MAY_BE_MISSING"
  say "the root takes $(du -sxm "$root" | cut -f1) MB"
}

free_memory_gb() {
  local limit used free
  free=$(awk '/^MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null || echo 0)
  if [ "$limit" != max ] && [ $(((limit - used) >> 30)) -lt "$free" ]; then free=$(((limit - used) >> 30)); fi
  echo "$free"
}

make_root() {
  debootstrap --variant=minbase --cache-dir="$cache" "$SUITE" "$root" > "$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; return 1; }
  # The root is thrown away: its packages need not reach the disk one by one.
  echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/unsafe-io"
}

mount_kernel() {
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
  mkdir -p "$root/dev/shm"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  mount --bind "$cache" "$root/var/cache/apt/archives"
}

carry_over_network() {
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  # A site's own certificates: the package ca-certificates takes them up when it is installed.
  if [ -d /usr/local/share/ca-certificates ]; then
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp -rL /usr/local/share/ca-certificates/. "$root/usr/local/share/ca-certificates/"
  fi
  if command -v apt-config >/dev/null; then
    apt-config dump | grep -E '^Acquire::(https?::|Check-Valid-Until)' > "$root/etc/apt/apt.conf.d/90site" || true
  fi
  pip_settings_to_environment
  local name word path
  for name in $(network_variables); do
    for word in ${!name}; do
      path=${word#file://}
      # Within /etc/ssl, ca-certificates makes the root's own files.
      if [[ $path = /* && $path != /etc/ssl/* && -e $path ]]; then show_read_only "$path"; fi
    done
  done
}

network_variables() { compgen -e | grep -E '^(PIP_.*|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|.*_(proxy|PROXY))$' || true; }

# What pip's files say, as the variables that mean the same; a variable that is set already wins, as it does for pip.
pip_settings_to_environment() {
  local python=python3 line name value
  [ -x "$PROJECT/.venv/bin/python" ] && python=$PROJECT/.venv/bin/python
  while IFS= read -r line; do
    [[ $line =~ ^(global|install)\.([a-z-]+)=\'(.*)\'$ ]] || continue
    name=PIP_$(tr 'a-z-' 'A-Z_' <<< "${BASH_REMATCH[2]}")
    value=${BASH_REMATCH[3]//\\n/ }
    [ -n "${!name:-}" ] || export "$name=$value"
  done < <("$python" -m pip config list 2>/dev/null)
}

show_read_only() {
  local path=$1
  # An index refers to files beside it.
  if [ "$(basename "$path")" = simple ]; then path=$(dirname "$path"); fi
  if mountpoint -q "$root$path"; then return; fi
  mkdir -p "$(dirname "$root$path")"
  if [ -d "$path" ]; then mkdir -p "$root$path"; else touch "$root$path"; fi
  mount --bind "$path" "$root$path"
  mount -o remount,ro,bind "$root$path"
}

in_root() {
  local name settings=()
  for name in $(network_variables); do settings+=("$name=${!name}"); done
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "${settings[@]}" \
    chroot "$root" /bin/bash -euo pipefail -c "cd $WORK && $1" < /dev/null
}

# What an image starts as: its user, in its folder, with its path and no other variable.
as_image_user() {
  chroot --userspec=1000:1000 "$root" /usr/bin/env -i PATH=$IMAGE_VENV/bin:/usr/bin:/bin HOME=/home/distlfm \
    /bin/bash -euo pipefail -c "cd /work && $1" < /dev/null
}

case "${1:-}" in
  "") outside ;;
  --inside) inside "$2" ;;
  *) sed -n '2,11p' "$SELF"; exit 2 ;;
esac
