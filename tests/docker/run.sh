#!/usr/bin/env bash
# make docker-test: build the image, start it with compose, evaluate from outside through the client, stop it.
#
#   DOCKER_HOST        the engine; unset means the default one
#   DOCKER_BUILD_ARGS  extra words for docker build, for example "--network host --build-arg PIP_INDEX_URL=..."
#
# Needs the .venv that `make` sets up. The engine must publish ports on this machine's 127.0.0.1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

fail() {
  echo "docker-test: $*" >&2
  exit 1
}
command -v docker >/dev/null ||
  fail "there is no docker command. On Debian: sudo apt-get install -y docker.io docker-compose"
docker info >/dev/null 2>&1 ||
  fail "no engine answers at ${DOCKER_HOST:-the default socket}. Start one, or name one: export DOCKER_HOST=unix:///path"
if docker compose version >/dev/null 2>&1; then
  compose=(docker compose)
elif command -v docker-compose >/dev/null; then
  compose=(docker-compose)
else
  fail "there is neither 'docker compose' nor 'docker-compose'. On Debian: sudo apt-get install -y docker-compose"
fi

python=$PWD/.venv/bin/python
work=$(mktemp -d)
export COMPOSE_PROJECT_NAME=turngym-test-$$ TURNGYM_IMAGE=turngym:test-$$
TURNGYM_PORT=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
TURNGYM_API_KEY=key-$RANDOM$RANDOM
export TURNGYM_PORT TURNGYM_API_KEY TURNGYM_BIND=127.0.0.1
url=http://127.0.0.1:$TURNGYM_PORT
compose+=(-f docker/compose.yaml)

clean_up() {
  local status=$?
  ((status == 0)) || "${compose[@]}" logs --tail 50 >&2 || true
  "${compose[@]}" down --volumes --timeout 5 >/dev/null 2>&1 || true
  docker image rm --force "$TURNGYM_IMAGE" >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap clean_up EXIT

# passes WHAT COMMAND...: run a check and say that it held.
passes() {
  local what=$1
  shift
  "$@" || fail "FAILED: $what"
  echo "ok: $what"
}
equal() { [[ $1 == "$2" ]] || { echo "  got '$1', expected '$2'" >&2; return 1; }; }
inspect() { docker inspect --format "$1" "$container"; }
status_of() { "$python" -c '
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)' "$1"; }

# shellcheck disable=SC2086 # several words on purpose
docker build ${DOCKER_BUILD_ARGS:-} -f docker/Dockerfile -t "$TURNGYM_IMAGE" .
"${compose[@]}" up -d --no-build
container=$("${compose[@]}" ps -q hub)

for _ in $(seq 60); do
  health=$(inspect '{{.State.Health.Status}}')
  [[ $health == starting ]] || break
  sleep 1
done
passes "the container is healthy" equal "$health" healthy
passes "the user is not root" equal "$(docker exec "$container" id -u)" 10001
passes "the root file system is read-only" equal "$(inspect '{{.HostConfig.ReadonlyRootfs}}')" true
passes "nothing can be written outside /tmp" equal "$(docker exec "$container" python -c '
import errno
try:
    open("/opt/turngym/x", "w")
except OSError as error:
    print(errno.errorcode[error.errno])')" EROFS
passes "no capability is held" equal "$(docker exec "$container" sed -n 's/^CapEff:\t0*//p' /proc/1/status)" ""
passes "health is open" equal "$(status_of "$url/health")" 200
passes "everything else wants the key" equal "$(status_of "$url/sokoban/metadata")" 401

passes "turngym eval runs from outside" .venv/bin/turngym eval --url "$url" --env bandit,frozen-lake,sokoban \
  --policy expert --episodes 8 --out "$work/eval"
passes "every episode was recorded and won" equal "$("$python" -c '
import sys
from turngym.records import read_episodes
print(sum(episode.won for episode in read_episodes(sys.argv[1])))' "$work/eval/episodes.jsonl")" 24
passes "a report was written" test -s "$work/eval/report.html"

start=$SECONDS
docker stop -t 30 "$container" >/dev/null
passes "SIGTERM ends it in time, without a kill ($((SECONDS - start)) s)" equal "$(inspect '{{.State.ExitCode}}')" 0
echo "docker-test: passed on $(docker version --format '{{.Server.Version}}'), image of $(
  docker image inspect --format '{{.Size}}' "$TURNGYM_IMAGE" | awk '{printf "%.0f MB", $1 / 1e6}')"
