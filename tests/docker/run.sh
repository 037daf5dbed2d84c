#!/usr/bin/env bash
# make docker-test: build the images, start every service with compose, evaluate each from outside through the client,
# add a data set through one container and play it in another, stop them all.
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
export COMPOSE_PROJECT_NAME=turngym-test-$$ COMPOSE_PROFILES=worlds TURNGYM_BIND=127.0.0.1
export TURNGYM_IMAGE=turngym:test-$$ TURNGYM_SCIENCEWORLD_IMAGE=turngym-scienceworld:test-$$
read -r TURNGYM_PORT TURNGYM_WEBSHOP_PORT TURNGYM_ALFWORLD_PORT TURNGYM_SCIENCEWORLD_PORT < <("$python" -c '
import socket
listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
print(*(listener.getsockname()[1] for listener in listeners))')
TURNGYM_API_KEY=key-$RANDOM$RANDOM
export TURNGYM_PORT TURNGYM_WEBSHOP_PORT TURNGYM_ALFWORLD_PORT TURNGYM_SCIENCEWORLD_PORT TURNGYM_API_KEY
declare -A port=([hub]=$TURNGYM_PORT [webshop]=$TURNGYM_WEBSHOP_PORT [alfworld]=$TURNGYM_ALFWORLD_PORT
  [scienceworld]=$TURNGYM_SCIENCEWORLD_PORT)
# What each service is asked to play.
declare -A plays=([hub]=bandit,frozen-lake,sokoban,webshop,alfworld [webshop]=webshop [alfworld]=alfworld
  [scienceworld]=scienceworld)
services=(hub webshop alfworld scienceworld)
# Tasks of each environment; ScienceWorld's expert plans for up to a dozen processor seconds before its first step.
declare -A tasks=([hub]=4 [webshop]=4 [alfworld]=4 [scienceworld]=2)
compose+=(-f docker/compose.yaml)

clean_up() {
  local status=$?
  ((status == 0)) || "${compose[@]}" logs --tail 50 >&2 || true
  "${compose[@]}" down --volumes --timeout 5 >/dev/null 2>&1 || true
  docker image rm --force "$TURNGYM_IMAGE" "$TURNGYM_SCIENCEWORLD_IMAGE" >/dev/null 2>&1 || true
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
size_of() { docker image inspect --format '{{.Size}}' "$1" | awk '{printf "%.0f MB", $1 / 1e6}'; }
# won FOLDER: "WON of PLAYED" by the expert, read from the records.
won() { "$python" -c '
import sys
from turngym.records import read_episodes
episodes = [each for each in read_episodes(sys.argv[1] + "/episodes.jsonl") if each.policy == "expert"]
print(sum(each.won for each in episodes), "of", len(episodes))' "$1"; }

# shellcheck disable=SC2086 # several words on purpose
build() { docker build ${DOCKER_BUILD_ARGS:-} -f docker/Dockerfile --target "$1" -t "$2" .; }
build hub "$TURNGYM_IMAGE"
build scienceworld "$TURNGYM_SCIENCEWORLD_IMAGE"
"${compose[@]}" up -d --no-build

for service in "${services[@]}"; do
  container=$("${compose[@]}" ps -q "$service")
  url=http://127.0.0.1:${port[$service]}
  for _ in $(seq 60); do
    health=$(inspect '{{.State.Health.Status}}')
    [[ $health == starting ]] || break
    sleep 1
  done
  passes "$service: the container is healthy" equal "$health" healthy
  passes "$service: the user is not root" equal "$(docker exec "$container" id -u)" 10001
  passes "$service: the root file system is read-only" equal "$(inspect '{{.HostConfig.ReadonlyRootfs}}')" true
  passes "$service: nothing can be written outside /tmp and the volumes" equal "$(docker exec "$container" python -c '
import errno
try:
    open("/opt/turngym/x", "w")
except OSError as error:
    print(errno.errorcode[error.errno])')" EROFS
  passes "$service: no capability is held" \
    equal "$(docker exec "$container" sed -n 's/^CapEff:\t0*//p' /proc/1/status)" ""
  passes "$service: health is open" equal "$(status_of "$url/health")" 200
  passes "$service: everything else wants the key" equal "$(status_of "$url/v1/envs")" 401

  count=$((tasks[$service] * ($(tr -cd , <<<"${plays[$service]}" | wc -c) + 1)))
  passes "$service: turngym eval plays ${plays[$service]} from outside" .venv/bin/turngym eval --url "$url" \
    --env "${plays[$service]}" --policy expert,random --episodes "${tasks[$service]}" --concurrency 4 --quiet --out "$work/$service"
  passes "$service: the expert won every episode" equal "$(won "$work/$service")" "$count of $count"
  passes "$service: a report was written" test -s "$work/$service/report.html"
done

# A data set that one container adds to the volume is played by another.
"$python" -c '
import json, pathlib, sys
names = {"items": "items_shuffle_5.json", "instructions": "items_ins_v2_5.json", "humans": "items_human_ins.json"}
for part, content in json.load(open("tests/envs/webshop/shop.json")).items():
    if part in names:
        pathlib.Path(sys.argv[1], names[part]).write_text(json.dumps(content))' "$work"
chmod a+rx "$work"
passes "a data set is added to the volume" \
  "${compose[@]}" run --rm -v "$work:/mnt/shop:ro" hub data add webshop /mnt/shop --copy
passes "the world's service plays it" .venv/bin/turngym eval --url "http://127.0.0.1:${port[webshop]}" \
  --env webshop --config data=official --config split_rule=all --config tagger=words \
  --policy expert --episodes 4 --quiet --out "$work/official"
passes "its episodes were recorded and won ($(won "$work/official"))" test "$(won "$work/official")" != "0 of 4"
passes "all four of them" equal "$(won "$work/official" | cut -d ' ' -f 3)" 4

for service in "${services[@]}"; do
  container=$("${compose[@]}" ps -q "$service")
  start=$SECONDS
  docker stop -t 30 "$container" >/dev/null
  passes "$service: SIGTERM ends it in time, without a kill ($((SECONDS - start)) s)" \
    equal "$(inspect '{{.State.ExitCode}}')" 0
done
echo "docker-test: passed on $(docker version --format '{{.Server.Version}}'), images of $(
  size_of "$TURNGYM_IMAGE") (hub, webshop, alfworld) and $(size_of "$TURNGYM_SCIENCEWORLD_IMAGE") (scienceworld)"
